//! `cargo xtask real`: the binaries against components that other people wrote.
//!
//! csi-sanity runs against a driver directly, and then against the same driver with its controller behind
//! edge-csi-driver, edge-hub and edge-agent, once for each kind of link. The relay is right if every case ends as
//! it ended directly. So is the socket that the agent puts before a driver for kubelet. Then again over links that are cut
//! every two seconds, and over slow and lossy ones. Two drivers take part: hostpath-driver, which mounts for real, and the
//! mock driver of Kubernetes' own end-to-end tests.
//!
//! Errands follow: volumes on the mock, which says that it mounts and does not; kubelet's example plugin, which registers
//! with the agent; one random trace of orders to volumes, put to each driver; and external-provisioner and
//! external-attacher, whose own code judges every code and every trouble of ours, and which run as processes, with -resizer
//! and -snapshotter, while the edge is off. What waits is run side by side, while Kubernetes is built (`lanes`). Then Kubernetes
//! itself is brought up, scene by scene (`kubernetes`). At the end the schema is compared with the official one.

mod arguments;
mod certificates;
mod component;
mod enclosure;
mod errand;
mod error;
mod kubernetes;
mod lanes;
mod leftovers;
mod leg;
mod node;
mod offline;
mod process;
mod report;
mod sanity;
mod sidecars;
mod stack;
mod table;
mod trace;
mod wait;
mod weather;

use std::path::{Path, PathBuf};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use certificates::Certificates;
use component::{Components, Needs};
use errand::Errand;
use error::RealError;
use kubernetes::{Ground, Scene};
use lanes::{Lane, Task};
use leg::{Leg, Subject, Way};
use report::Outcomes;
use stack::Stack;
use table::{Fact, Row};

/// Options of `cargo xtask real`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only legs whose name contains this, such as `hostpath`, `block-quic` or `mock-direct`; a leg's direct run
    /// comes along, since it is what the leg is compared with. The schema is then not compared
    #[arg(long, value_name = "TEXT")]
    leg: Option<String>,

    /// Run only the legs with Kubernetes itself: a control plane, stock sidecars and a kubelet
    #[arg(long)]
    kubernetes: bool,

    /// Run nothing side by side. Slower, and with less to do for the host at a time
    #[arg(long)]
    one_at_a_time: bool,

    /// Leave the schema out
    #[arg(long)]
    no_schema: bool,

    /// Where the run is; given by the chore to itself, once it is in namespaces of its own
    #[arg(long, value_name = "DIR", hide = true)]
    inside: Option<PathBuf>,

    #[command(flatten)]
    trace: trace::TraceOptions,

    #[command(flatten)]
    offline: offline::OfflineOptions,
}

const NEEDS_ROOT: &str = "needs root, to mount";

/// Runs the legs that were asked for.
///
/// # Errors
/// If a component cannot be had, if any leg is not as it should be, or, with `CI=true`, if one could not run.
pub(crate) fn run(options: &Options) -> Result<(), RealError> {
    let text = options.leg.as_deref();
    let (mut wanted, mut errands) = (Leg::matching(text), Errand::matching(text));
    if options.kubernetes {
        wanted.clear();
        errands.clear();
    }
    let scenes = Scene::matching(text);
    let root = rustix::process::geteuid().is_root();
    if options.inside.is_none() && root && !scenes.is_empty() {
        let scratch = scratch()?;
        return enclosure::run(scratch.path(), scenes.iter().any(|scene| scene.needs_kubelet()));
    }
    let place = Place::new(options.inside.as_deref())?;
    if wanted.is_empty() && errands.is_empty() && scenes.is_empty() {
        return Err(RealError::NoSuchLeg {
            found: options.leg.clone().unwrap_or_default(),
            known: format!("{}, {}, {}", Leg::names(), Errand::names(), Scene::names()),
        });
    }
    // Without root they are not played, so nothing is built for them.
    let played = root && !scenes.is_empty();
    let mock = played || wanted.iter().any(|leg| leg.subject == Subject::Mock);
    let needs = Needs {
        mock_driver: mock || errands.iter().any(|errand| errand.needs_mock()),
        example_plugin: errands.contains(&Errand::ExamplePlugin),
        sidecars: errands.iter().any(|errand| errand.needs_sidecars()),
        kubernetes: played,
    };
    let components = Components::build(&place.root, needs)?;

    let tasks = Task::all(&wanted, &errands);
    let mut rows = place.perform(&tasks, options, root, &components)?;
    if !scenes.is_empty() {
        rows.extend(place.play(&scenes, options.offline.length(), root, &components));
    }
    table::print(&rows);

    let whole = options.leg.is_none() && !options.kubernetes && !options.no_schema;
    let schema = if whole { component::compare_schema(&place.root) } else { Ok(()) };
    let failed =
        rows.iter().filter(|row| row.failed(std::env::var_os("CI").is_some_and(|ci| ci == "true"))).count();
    if failed > 0 {
        return Err(RealError::Legs { failed, of: rows.len(), logs: place.logs });
    }
    schema
}

/// Where everything is.
struct Place {
    /// The workspace.
    root: PathBuf,
    /// One folder for each leg, kept.
    logs: PathBuf,
    /// Short, for the sake of the sockets in it.
    scratch: PathBuf,
    /// Takes it away at the end; nothing if who started us does that.
    _removal: Option<tempfile::TempDir>,
    certificates: Certificates,
}

/// What the names of scratch folders begin with.
const PREFIX: &str = "ecr-";

/// A folder for one run, gone at the end.
fn scratch() -> Result<tempfile::TempDir, RealError> {
    tempfile::Builder::new()
        .prefix(PREFIX)
        .tempdir()
        .map_err(|cause| RealError::Folder { path: std::env::temp_dir(), cause })
}

impl Place {
    /// The place of a run in a folder that is there, or in one of its own.
    fn new(inside: Option<&Path>) -> Result<Self, RealError> {
        let root = crate::workspace_root().to_owned();
        let logs = root.join("target/real/logs");
        let (scratch, removal) = match inside {
            Some(folder) => (folder.to_owned(), None),
            None => scratch().map(|folder| (folder.path().to_owned(), Some(folder)))?,
        };
        let certificates = Certificates::make(&scratch)?;
        Ok(Self { root, logs, scratch, _removal: removal, certificates })
    }

    /// All legs and errands, a row for each in this order. What is built later is there afterwards.
    fn perform(
        &self,
        tasks: &[Task],
        options: &Options,
        root: bool,
        components: &Components,
    ) -> Result<Vec<Row>, RealError> {
        let (possible, not_run): (Vec<Task>, Vec<Task>) =
            tasks.iter().partition(|task| root || !task.needs_root());
        let (first, rest): (Vec<Task>, Vec<Task>) = possible.into_iter().partition(|task| task.is_baseline());
        let lanes = lanes::lanes(&rest, options.one_at_a_time);
        let (later, at_once): (Vec<Lane>, Vec<Lane>) =
            lanes.into_iter().partition(|lane| lane.behind_sidecars);
        if options.one_at_a_time {
            components.build_sidecars()?;
            components.build_kubernetes()?;
        }

        let work = Work { place: self, options, components };
        let mut rows: Vec<(Task, Row)> =
            not_run.into_iter().map(|task| (task, Row::not_run(task.to_string(), NEEDS_ROOT))).collect();
        thread::scope(|scope| {
            let built = scope.spawn(|| -> Result<Vec<(Task, Row)>, RealError> {
                components.build_sidecars()?;
                let lanes: Vec<_> = later.iter().map(|lane| scope.spawn(|| work.lane(lane, &[]))).collect();
                components.build_kubernetes()?;
                Ok(lanes.into_iter().flat_map(joined).collect())
            });
            let mut baselines = Vec::new();
            for task in first {
                let (row, baseline) = work.row(task, &[]);
                rows.push((task, row));
                baselines.extend(baseline);
            }
            rows.extend(thread::scope(|scope| {
                let lanes: Vec<_> =
                    at_once.iter().map(|lane| scope.spawn(|| work.lane(lane, &baselines))).collect();
                lanes.into_iter().flat_map(joined).collect::<Vec<_>>()
            }));
            joined(built).map(|more| rows.extend(more))
        })?;
        rows.sort_by_key(|(task, _)| tasks.iter().position(|other| other == task));
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    /// The scenes with Kubernetes, a row for each.
    fn play(&self, scenes: &[Scene], offline: Duration, root: bool, components: &Components) -> Vec<Row> {
        if !root {
            return vec![Row::not_run("kubernetes".to_owned(), NEEDS_ROOT)];
        }
        let started = Instant::now();
        match self.folders("kubernetes") {
            Ok((scratch, logs)) => {
                let certificates = &self.certificates;
                let (scratch, logs) = (scratch.as_path(), logs.as_path());
                kubernetes::run(scenes, &Ground { components, certificates, scratch, logs, offline })
            }
            Err(error) => vec![Row::broken("kubernetes".to_owned(), &error, started.elapsed())],
        }
    }

    /// One leg from start to an empty table: what the cases gave.
    fn run(&self, leg: Leg, components: &Components) -> Result<Outcomes, RealError> {
        let (scratch, logs) = self.folders(&leg.to_string())?;
        let run = Stack::start(leg, components, &self.certificates, &scratch, &logs)
            .and_then(|stack| {
                let outcomes = sanity::run(leg, components, &stack, &scratch, &logs);
                let stopped = stack.stop();
                outcomes.and_then(|outcomes| stopped.map(|()| outcomes))
            })
            .and_then(|outcomes| report::search_logs(&logs, &leg.own_processes()).map(|()| outcomes))
            .and_then(|outcomes| match leg.way {
                Way::Shim => report::search_violations(&logs).map(|()| outcomes),
                Way::Direct | Way::Relayed(..) => Ok(outcomes),
            });
        // Looked for in any case, so that a broken leg cannot hide in the next one.
        let clean = leftovers::clear(&scratch);
        run.and_then(|outcomes| clean.map(|()| outcomes))
    }

    /// One errand from start to an empty table: what was found.
    fn go(&self, errand: Errand, options: &Options, components: &Components) -> Result<Vec<Fact>, RealError> {
        let (scratch, logs) = self.folders(&errand.to_string())?;
        let facts = errand
            .run(options, components, &self.certificates, &scratch, &logs)
            .and_then(|facts| report::search_below(&logs).map(|()| facts));
        let clean = leftovers::clear(&scratch);
        facts.and_then(|facts| clean.map(|()| facts))
    }

    /// The scratch folder and the folder of the logs of one leg, both empty.
    fn folders(&self, leg: &str) -> Result<(PathBuf, PathBuf), RealError> {
        let folders = (self.scratch.join(leg), self.logs.join(leg));
        for folder in [&folders.0, &folders.1] {
            match std::fs::remove_dir_all(folder) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    return Err(RealError::Folder { path: folder.clone(), cause });
                }
                _ => std::fs::create_dir_all(folder)
                    .map_err(|cause| RealError::Folder { path: folder.clone(), cause })?,
            }
        }
        Ok(folders)
    }
}

/// What a driver itself gave.
type Baseline = (Subject, Outcomes);

/// What legs and errands are done with.
struct Work<'a> {
    place: &'a Place,
    options: &'a Options,
    components: &'a Components,
}

impl Work<'_> {
    fn lane(&self, lane: &Lane, baselines: &[Baseline]) -> Vec<(Task, Row)> {
        lane.tasks.iter().map(|&task| (task, self.row(task, baselines).0)).collect()
    }

    /// Does one, and says how it went; with what others are compared with, if it is that.
    fn row(&self, task: Task, baselines: &[Baseline]) -> (Row, Option<Baseline>) {
        let started = Instant::now();
        let broken = |error| Row::broken(task.to_string(), &error, started.elapsed());
        let (row, baseline) = match task {
            Task::Leg(leg) => match self.place.run(leg, self.components) {
                Ok(outcomes) => {
                    let direct = baselines.iter().find(|(subject, _)| *subject == leg.subject);
                    let direct = direct.map(|(_, outcomes)| outcomes);
                    let row = Row::finished(leg, &outcomes, direct, started.elapsed());
                    (row, task.is_baseline().then_some((leg.subject, outcomes)))
                }
                Err(error) => (broken(error), None),
            },
            Task::Errand(errand) => match self.place.go(errand, self.options, self.components) {
                Ok(facts) => (Row::of_errand(task.to_string(), facts, started.elapsed()), None),
                Err(error) => (broken(error), None),
            },
        };
        table::say(&row.line());
        (row, baseline)
    }
}

/// What a thread gave. Its panic is ours.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

//! The binaries against components that other people wrote. Tests without the standard harness, so that each row of theirs is a test
//! with a name: `cargo test -p edge-csi-e2e -- --ignored NAME`. They need Go 1.26, and root to mount.
//!
//! `drivers`: csi-sanity runs against a driver directly, and then against the same driver with its controller behind
//! edge-csi-driver, edge-hub and edge-agent, once for each kind of link. The relay is right if every case ends as
//! it ended directly. So is the socket that the agent puts before a driver for kubelet. Then again over links that are cut
//! every two seconds, and over slow and lossy ones. Two drivers take part: hostpath-driver, which mounts for real, and the
//! mock driver of Kubernetes' own end-to-end tests. Errands follow: volumes on the mock, which says that it mounts and does not;
//! kubelet's example plugin, which registers with the agent; one random trace of orders to volumes, put to each driver; and
//! external-provisioner and external-attacher, whose own code judges every code and every trouble of ours, and which run as
//! processes, with -resizer and -snapshotter, while the edge is off.
//!
//! `kubernetes`: Kubernetes itself is brought up once, and its scenes are played one after the other.
//!
//! `manifests`: the manifests of `deploy/` and the guide's commands, on API servers and as pods.
//!
//! As root they run in namespaces of their own, whose mounts and processes end with them.

mod certificates;
mod component;
mod deploy;
mod enclosure;
mod errand;
mod error;
mod kubernetes;
mod leftovers;
mod leg;
mod offline;
mod report;
mod sanity;
mod schedule;
mod setup;
mod sidecars;
mod stack;
mod table;
mod trace;
mod weather;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

use certificates::Certificates;
use component::{Components, Part};
use deploy::Deployment;
use errand::Errand;
use error::RealError;
use kubernetes::Scene;
use leg::{Leg, Subject, Way};
use report::Outcomes;
use schedule::Kind;
use setup::Setup;
use stack::Stack;

/// Runs the legs and errands that the command line asks for.
#[must_use]
pub fn drivers() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They wait for each other by their kinds.
    arguments.test_threads.get_or_insert_with(|| Leg::all().count() + Errand::ALL.len());
    let whole = arguments.filter.is_none();
    enclosed(&arguments, false, |place| {
        if whole && place.may_mount && runs(&arguments) {
            // For the tests that follow these. What goes wrong is met there again.
            std::thread::spawn(|| place.components().map(|components| components.build(Part::Kubernetes)));
        }
        let legs = Leg::all()
            .map(|leg| place.trial(leg.to_string(), leg.subject.needs_root(), move || place.leg(leg)));
        let errands = Errand::ALL
            .map(|errand| place.trial(errand.to_string(), errand.needs_root(), move || place.errand(errand)));
        libtest_mimic::run(&arguments, legs.chain(errands).collect()).exit_code()
    })
}

/// Plays the scenes that the command line asks for.
#[must_use]
pub fn kubernetes() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let with_kubelet =
        Scene::ALL.iter().any(|scene| asked_for(&arguments, &scene.to_string()) && scene.needs_kubelet());
    enclosed(&arguments, with_kubelet, |place| {
        let stage: &'static kubernetes::Stage =
            Box::leak(Box::new(kubernetes::Stage::new(place, with_kubelet)));
        let scenes = Scene::ALL.map(|scene| place.trial(scene.to_string(), true, move || stage.play(scene)));
        let conclusion = libtest_mimic::run(&arguments, scenes.into());
        match stage.end() {
            Ok(()) => conclusion.exit_code(),
            Err(failed) => {
                table::say(&format!("kubernetes-down FAILED: {}", failed.message().unwrap_or_default()));
                ExitCode::FAILURE
            }
        }
    })
}

/// Sets up what the manifests say, as the command line asks for it.
#[must_use]
pub fn manifests() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(Deployment::ALL.len());
    enclosed(&arguments, false, |place| {
        let all = Deployment::ALL.map(|it| place.trial(it.to_string(), true, move || it.run(place)));
        libtest_mimic::run(&arguments, all.into()).exit_code()
    })
}

/// Whether tests are run at all, and not listed or left out.
const fn runs(arguments: &Arguments) -> bool {
    !arguments.list && (arguments.ignored || arguments.include_ignored)
}

/// As the harness decides it.
fn asked_for(arguments: &Arguments, name: &str) -> bool {
    let fits = |text: &String| if arguments.exact { name == text } else { name.contains(text) };
    arguments.filter.as_ref().is_none_or(fits) && !arguments.skip.iter().any(fits)
}

/// Does it in namespaces of its own, if this is root and something is to be run.
fn enclosed(
    arguments: &Arguments,
    kubelet: bool,
    inside: impl FnOnce(&'static Place) -> ExitCode,
) -> ExitCode {
    let may_mount = rustix::process::geteuid().is_root();
    let outcome = match std::env::var_os(enclosure::INSIDE) {
        // Whoever started this takes the folder away.
        Some(scratch) => Place::new(PathBuf::from(scratch), may_mount).map(inside),
        None => scratch().and_then(|scratch| {
            if may_mount && runs(arguments) {
                enclosure::run(scratch.path(), kubelet).map(|()| ExitCode::SUCCESS)
            } else {
                Place::new(scratch.path().to_owned(), may_mount).map(inside)
            }
        }),
    };
    outcome.unwrap_or_else(|error| {
        table::say(&format!("error: {error}"));
        ExitCode::FAILURE
    })
}

/// Where everything is.
struct Place {
    /// The workspace.
    root: PathBuf,
    /// One folder for each test, kept.
    logs: PathBuf,
    /// Short, for the sake of the sockets in it.
    scratch: PathBuf,
    may_mount: bool,
    certificates: Certificates,
    components: Mutex<Option<&'static Components>>,
    /// What the drivers themselves gave, once they were asked.
    direct: [OnceLock<Result<Outcomes, RealError>>; 3],
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
    /// The place of a run with this folder, for as long as the process lives: the harness has threads of its own.
    fn new(scratch: PathBuf, may_mount: bool) -> Result<&'static Self, RealError> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let root = root.canonicalize().map_err(|cause| RealError::Folder { path: root.to_owned(), cause })?;
        Ok(Box::leak(Box::new(Self {
            logs: root.join("target/real/logs"),
            root,
            certificates: Certificates::make(&scratch),
            scratch,
            may_mount,
            components: Mutex::default(),
            direct: Default::default(),
        })))
    }

    /// A test, which is left out where it has to mount and may not.
    fn trial(
        &'static self,
        name: String,
        mounts: bool,
        run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
    ) -> Trial {
        let not_run =
            (mounts && !self.may_mount).then(|| format!("{name}: not run, since it needs root to mount"));
        let trial = Trial::test(name, move || match not_run {
            Some(why) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => Err(why.into()),
            Some(why) => {
                table::say(&why);
                Ok(())
            }
            None => run(),
        });
        trial.with_ignored_flag(true)
    }

    /// The workspace's own binaries are built by whoever comes first.
    fn components(&self) -> Result<&'static Components, RealError> {
        let mut built = self.components.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(components) = *built {
            return Ok(components);
        }
        let components = Box::leak(Box::new(Components::new(&self.root)?));
        *built = Some(components);
        Ok(components)
    }

    /// One leg against what the driver itself gave.
    fn leg(&self, leg: Leg) -> Result<(), Failed> {
        let [hostpath, block, mock] = &self.direct;
        let known = match leg.subject {
            Subject::Hostpath => hostpath,
            Subject::HostpathBlock => block,
            Subject::Mock => mock,
        };
        let started = Instant::now();
        let direct = known.get_or_init(|| {
            let _turn = Kind::Busy.turn();
            self.run(Leg { subject: leg.subject, way: Way::Direct })
        });
        let direct = direct.as_ref().map_err(|error| format!("the driver itself: {error}"))?;
        if leg.way == Way::Direct {
            return table::compared(leg, direct, direct, started.elapsed());
        }
        let _turn = Kind::from(leg).turn();
        let started = Instant::now();
        table::compared(leg, &self.run(leg)?, direct, started.elapsed())
    }

    /// One leg from start to an empty table: what the cases gave.
    fn run(&self, leg: Leg) -> Result<Outcomes, RealError> {
        let components = self.components()?;
        components.build(Part::CsiSanity)?;
        if leg.subject == Subject::Mock {
            components.build(Part::MockDriver)?;
        }
        let (scratch, logs) = self.folders(&leg.to_string())?;
        let setup = Setup { components, certificates: &self.certificates, scratch: &scratch, logs: &logs };
        let run = Stack::start(leg, setup)
            .and_then(|stack| {
                let outcomes = sanity::run(leg, setup, &stack);
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

    /// One errand from start to an empty table.
    fn errand(&self, errand: Errand) -> Result<(), Failed> {
        let components = self.components()?;
        errand.build(components)?;
        let _turn = Kind::from(errand).turn();
        let started = Instant::now();
        let (scratch, logs) = self.folders(&errand.to_string())?;
        let setup = Setup { components, certificates: &self.certificates, scratch: &scratch, logs: &logs };
        let facts = errand.run(setup).and_then(|facts| report::search_below(&logs).map(|()| facts));
        let clean = leftovers::clear(&scratch);
        table::found(&errand.to_string(), facts.and_then(|facts| clean.map(|()| facts))?, started.elapsed())
    }

    /// The scratch folder and the folder of the logs of one test, both empty.
    fn folders(&self, name: &str) -> Result<(PathBuf, PathBuf), RealError> {
        let folders = (self.scratch.join(name), self.logs.join(name));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_leaves_all_tests_out_leaves_no_folder_behind() {
        let mut scratch = PathBuf::new();
        enclosed(&Arguments::default(), false, |place| {
            place.scratch.clone_into(&mut scratch);
            assert!(scratch.join("ca.pem").exists());
            ExitCode::SUCCESS
        });
        assert!(scratch.is_absolute() && !scratch.exists(), "{scratch:?}");
    }
}

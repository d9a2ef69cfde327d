//! Runs the binaries with third-party components. The tests have no standard harness, so that each run of a suite is a
//! named test: `cargo test -p edge-csi-e2e -- --ignored NAME`. The tests need Go 1.26, and root to mount.
//!
//! `drivers`: csi-sanity runs against a driver directly, and then against the same driver with its controller behind
//! edge-csi-driver, edge-hub and edge-agent, once for each kind of link. The relay is correct if every case ends as it did
//! directly. The same holds for the socket that the agent puts in front of a driver for kubelet, and for the examples of a
//! relay over NATS, over MQTT, and with hub, agent and socket in one process. Further runs use links that
//! are cut every two seconds, and slow and lossy links. Two drivers take part: hostpath-driver, which really mounts, and the
//! mock driver of Kubernetes' own end-to-end tests. Scenarios follow: volumes on the mock, which reports mounts that it has not
//! made; kubelet's example plugin, which registers with the agent; one random trace of volume operations, run on each driver;
//! external-provisioner's and external-attacher's own code, which classifies every status code and every fault of the relay;
//! and both as processes, with -resizer and -snapshotter, while the edge is offline.
//!
//! `kubernetes`: a real Kubernetes is started once, and the cases run one after another.
//!
//! `kubeedge`: the same with KubeEdge in place of kubelet, which CI does not run.
//!
//! `manifests`: the manifests of `deploy/` and the guide's commands, on API servers and as pods.
//!
//! As root, the tests run in separate namespaces, which end their mounts and processes.

mod component;
mod deploy;
mod driver;
mod embedded;
mod enclosure;
mod error;
mod kubeedge;
mod kubernetes;
mod leftovers;
mod link_condition;
mod offline;
mod report;
mod sanity;
mod scenario;
mod schedule;
mod setup;
mod sidecars;
mod table;
mod test_run;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::fs::statvfs;

use component::{Components, Part};
use deploy::Deployment;
use driver::DriverUnderTest;
use edge_csi_tests::certificates::ClusterCertificates;
use enclosure::PodRuntime;
use error::E2eError;
use kubernetes::Case;
use report::Outcomes;
use scenario::Scenario;
use schedule::Kind;
use setup::Setup;
use test_run::{Route, Subject, TestRun};

/// Runs the test runs and scenarios that the command line selects.
#[must_use]
pub fn drivers() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A thread for each test: `schedule` decides which tests run at the same time.
    arguments.test_threads.get_or_insert_with(|| TestRun::all().count() + Scenario::ALL.len());
    let whole = arguments.filter.is_none();
    enclosed(&arguments, PodRuntime::None, |environment| {
        if whole && environment.may_mount && runs(&arguments) {
            // Builds in advance for the test binaries that run next. These repeat a failed build and report the error.
            std::thread::spawn(|| {
                environment.components().map(|components| components.build(Part::Kubernetes))
            });
        }
        let test_runs = TestRun::all().map(|test_run| {
            environment.trial(test_run.to_string(), test_run.subject.needs_root(), move || {
                environment.test_run(test_run)
            })
        });
        let scenarios = Scenario::ALL.map(|scenario| {
            environment
                .trial(scenario.to_string(), scenario.needs_root(), move || environment.scenario(scenario))
        });
        libtest_mimic::run(&arguments, test_runs.chain(scenarios).collect()).exit_code()
    })
}

/// Runs the Kubernetes cases that the command line selects.
#[must_use]
pub fn kubernetes() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let with_kubelet =
        Case::ALL.iter().any(|case| is_selected(&arguments, &case.to_string()) && case.needs_kubelet());
    let pods = if with_kubelet { PodRuntime::Kubelet } else { PodRuntime::None };
    enclosed(&arguments, pods, |environment| {
        let shared_cluster: &'static kubernetes::SharedCluster =
            Box::leak(Box::new(kubernetes::SharedCluster::new(environment, with_kubelet)));
        let cases =
            Case::ALL.map(|case| environment.trial(case.to_string(), true, move || shared_cluster.run(case)));
        let conclusion = libtest_mimic::run(&arguments, cases.into());
        match shared_cluster.end() {
            Ok(()) => conclusion.exit_code(),
            Err(failed) => {
                table::say(&format!("kubernetes-down FAILED: {}", failed.message().unwrap_or_default()));
                ExitCode::FAILURE
            }
        }
    })
}

/// Runs the KubeEdge cases that the command line selects.
#[must_use]
pub fn kubeedge() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    enclosed(&arguments, PodRuntime::KubeEdge, |environment| {
        let shared: &'static kubeedge::Shared = Box::leak(Box::new(kubeedge::Shared::new(environment)));
        let cases = kubeedge::Case::ALL
            .map(|case| environment.trial(case.to_string(), true, move || shared.run(case)));
        let conclusion = libtest_mimic::run(&arguments, cases.into());
        match shared.end() {
            Ok(()) => conclusion.exit_code(),
            Err(failed) => {
                table::say(&format!("kubeedge-down FAILED: {}", failed.message().unwrap_or_default()));
                ExitCode::FAILURE
            }
        }
    })
}

/// Runs the deployments that the command line selects.
#[must_use]
pub fn manifests() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(Deployment::ALL.len());
    enclosed(&arguments, PodRuntime::None, |environment| {
        if let Some(code) = deploy::inside(environment) {
            return code;
        }
        let all =
            Deployment::ALL.map(|it| environment.trial(it.to_string(), true, move || it.run(environment)));
        libtest_mimic::run(&arguments, all.into()).exit_code()
    })
}

/// Returns true if tests are run, and not only listed or ignored.
const fn runs(arguments: &Arguments) -> bool {
    !arguments.list && (arguments.ignored || arguments.include_ignored)
}

/// Returns true if the harness would run the test of this name.
fn is_selected(arguments: &Arguments, name: &str) -> bool {
    let fits = |text: &String| if arguments.exact { name == text } else { name.contains(text) };
    arguments.filter.as_ref().is_none_or(fits) && !arguments.skip.iter().any(fits)
}

/// Runs the tests in separate namespaces, if this process is root and tests are run.
fn enclosed(
    arguments: &Arguments,
    pods: PodRuntime,
    inside: impl FnOnce(&'static Environment) -> ExitCode,
) -> ExitCode {
    let may_mount = rustix::process::geteuid().is_root();
    let outcome = match std::env::var_os(enclosure::INSIDE) {
        // The outer process removes the folder.
        Some(scratch) => Environment::new(PathBuf::from(scratch), may_mount).map(inside),
        None => scratch().and_then(|scratch| {
            if may_mount && runs(arguments) {
                if pods == PodRuntime::KubeEdge {
                    // The namespaces have no network for downloads.
                    kubeedge::build(&Components::new(&workspace()?)?)?;
                }
                enclosure::run(scratch.path(), pods).map(|()| ExitCode::SUCCESS)
            } else {
                Environment::new(scratch.path().to_owned(), may_mount).map(inside)
            }
        }),
    };
    outcome.unwrap_or_else(|error| {
        table::say(&format!("error: {error}"));
        ExitCode::FAILURE
    })
}

/// The folders and shared state of a run.
struct Environment {
    /// The workspace.
    root: PathBuf,
    /// One folder for each test, kept after the run.
    logs: PathBuf,
    /// A short path, since socket paths have a length limit.
    scratch: PathBuf,
    may_mount: bool,
    certificates: Arc<ClusterCertificates>,
    components: Mutex<Option<&'static Components>>,
    /// The results of running the suite on the drivers directly.
    direct: [OnceLock<Result<Outcomes, E2eError>>; 3],
}

/// The prefix of scratch folders.
const PREFIX: &str = "ecr-";

/// Returns the folder of the workspace.
fn workspace() -> Result<PathBuf, E2eError> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    root.canonicalize().map_err(|cause| E2eError::Folder { path: root.to_owned(), cause })
}

/// Creates a folder for one run, which is removed when dropped.
fn scratch() -> Result<tempfile::TempDir, E2eError> {
    tempfile::Builder::new()
        .prefix(PREFIX)
        .tempdir()
        .map_err(|cause| E2eError::Folder { path: std::env::temp_dir(), cause })
}

impl Environment {
    /// Creates the environment of a run with this scratch folder. The value is never dropped, since the harness uses it
    /// in other threads.
    fn new(scratch: PathBuf, may_mount: bool) -> Result<&'static Self, E2eError> {
        let root = workspace()?;
        Ok(Box::leak(Box::new(Self {
            logs: root.join("target/real/logs"),
            root,
            certificates: Arc::new(ClusterCertificates::new(&scratch)),
            scratch,
            may_mount,
            components: Mutex::default(),
            direct: Default::default(),
        })))
    }

    /// Returns a test. If it must mount and this process may not, it prints a line and passes, or fails if `CI` is `true`.
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

    /// Returns the programs. The first caller builds the workspace's binaries.
    fn components(&self) -> Result<&'static Components, E2eError> {
        let mut built = self.components.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(components) = *built {
            return Ok(components);
        }
        let components = Box::leak(Box::new(Components::new(&self.root)?));
        *built = Some(components);
        Ok(components)
    }

    /// Compares one test run with the driver's direct result.
    fn test_run(&self, test_run: TestRun) -> Result<(), Failed> {
        let [hostpath, block, mock] = &self.direct;
        let known = match test_run.subject {
            Subject::Hostpath => hostpath,
            Subject::HostpathBlock => block,
            Subject::Mock => mock,
        };
        let started = Instant::now();
        let direct = known.get_or_init(|| {
            let _turn = Kind::Busy.turn();
            self.run(TestRun { subject: test_run.subject, route: Route::Direct })
        });
        let direct =
            direct.as_ref().map_err(|error| format!("the direct run of the driver failed: {error}"))?;
        if test_run.route == Route::Direct {
            return table::compared(test_run, direct, direct, started.elapsed());
        }
        let _turn = Kind::from(test_run).turn();
        let started = Instant::now();
        table::compared(test_run, &self.run(test_run)?, direct, started.elapsed())
    }

    /// Runs one test run from start to cleanup, and returns the results of its cases.
    fn run(&self, test_run: TestRun) -> Result<Outcomes, E2eError> {
        let components = self.components()?;
        components.build(Part::CsiSanity)?;
        if test_run.subject == Subject::Mock {
            components.build(Part::MockDriver)?;
        }
        let (scratch, logs) = self.folders(&test_run.to_string())?;
        let setup = Setup { components, certificates: &self.certificates, scratch: &scratch, logs: &logs };
        let run = DriverUnderTest::start(test_run, setup)
            .and_then(|driver| {
                let outcomes = sanity::run(test_run, setup, &driver);
                let stopped = driver.stop();
                outcomes.and_then(|outcomes| stopped.map(|()| outcomes))
            })
            .and_then(|outcomes| report::search_logs(&logs, &test_run.own_processes()).map(|()| outcomes))
            .and_then(|outcomes| match test_run.route {
                Route::Shim => report::search_violations(&logs).map(|()| outcomes),
                Route::Direct | Route::Relayed(..) | Route::Embedded(_) => Ok(outcomes),
            });
        // Checked in any case, so that a broken test run cannot affect the next one.
        let clean = leftovers::clear(&scratch);
        run.and_then(|outcomes| clean.map(|()| outcomes))
    }

    /// Runs one scenario from start to cleanup.
    fn scenario(&self, scenario: Scenario) -> Result<(), Failed> {
        let components = self.components()?;
        scenario.build(components)?;
        let _turn = Kind::from(scenario).turn();
        let started = Instant::now();
        let (scratch, logs) = self.folders(&scenario.to_string())?;
        let setup = Setup { components, certificates: &self.certificates, scratch: &scratch, logs: &logs };
        let facts = scenario.run(setup).and_then(|facts| report::search_below(&logs).map(|()| facts));
        let clean = leftovers::clear(&scratch);
        table::found(&scenario.to_string(), facts.and_then(|facts| clean.map(|()| facts))?, started.elapsed())
    }

    /// Returns the setup of a cluster, which all cases of the process share.
    fn setup(&'static self, name: &str) -> Result<Setup<'static>, E2eError> {
        let components = self.components()?;
        let (scratch, logs) = self.folders(name)?;
        let (scratch, logs) = (Box::leak(scratch.into_boxed_path()), Box::leak(logs.into_boxed_path()));
        Ok(Setup { components, certificates: &self.certificates, scratch, logs })
    }

    /// Creates the scratch folder and the log folder of one test, both empty.
    fn folders(&self, name: &str) -> Result<(PathBuf, PathBuf), E2eError> {
        let space = statvfs(&self.scratch)
            .map_err(|cause| E2eError::Folder { path: self.scratch.clone(), cause: cause.into() })?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < FREE_BYTES {
            return Err(E2eError::DiskSpace { path: self.scratch.clone(), free: free >> 20 });
        }
        let folders = (self.scratch.join(name), self.logs.join(name));
        for folder in [&folders.0, &folders.1] {
            match std::fs::remove_dir_all(folder) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    return Err(E2eError::Folder { path: folder.clone(), cause });
                }
                _ => std::fs::create_dir_all(folder)
                    .map_err(|cause| E2eError::Folder { path: folder.clone(), cause })?,
            }
        }
        Ok(folders)
    }
}

/// The free space of the disk that the tests need: images of pods, and drivers that refuse a volume which the disk has no room
/// for, so that its claim would only stay pending.
const FREE_BYTES: u64 = 6 << 30;

/// Runs a future to its end: the tests themselves run without a runtime.
fn on_runtime<T>(work: impl Future<Output = Result<T, E2eError>>) -> Result<T, E2eError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|cause| E2eError::Runtime { cause })?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_leaves_all_tests_out_leaves_no_folder_behind() {
        let mut scratch = PathBuf::new();
        enclosed(&Arguments::default(), PodRuntime::None, |environment| {
            environment.scratch.clone_into(&mut scratch);
            assert!(scratch.join("authority.pem").exists());
            ExitCode::SUCCESS
        });
        assert!(scratch.is_absolute() && !scratch.exists(), "{scratch:?}");
    }
}

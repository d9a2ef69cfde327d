//! Runs a trace on a driver.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::node_client::NodeClient;
use rustix::mount::{MountFlags, mount_bind, mount_remount};
use tokio::runtime::Handle;

use super::driver::{Deviation, TracedDriver, log_of, socket_of};
use super::model::{Answer, CONSUMERS, Model, Order, Step, VOLUMES};
use super::observed::{CANARY, Fixture, consumer, expected, found, holders};
use crate::csi::{channel, controller, create_volume};
use crate::process::Process;
use crate::volumes::history::History;
use crate::volumes::interceptor::{Interception, Interceptor};
use crate::volumes::namespace;
use crate::volumes::node::{Ended, NodeOptions, NodeProcess, log_of as end_of};
use crate::volumes::rounds::Rounds;
use crate::wait;

/// A trace and its driver.
#[allow(clippy::exhaustive_structs, reason = "this is all there is to a trace")]
#[derive(Debug)]
pub struct Trace {
    /// The directory of all files, sockets and mounts. It has to be short, empty, and in a mount namespace of the
    /// trace.
    pub directory: PathBuf,
    /// The path of the program `volume-node`.
    pub program: PathBuf,
    /// The driver under the trace.
    pub driver: TracedDriver,
    /// The number of steps.
    pub steps: u64,
}

/// Runs a trace on its driver. Returns a line for each step: the step, the node's answer and the state.
///
/// # Panics
/// If the state differs from the model.
pub async fn run(trace: &Trace, rounds: &mut Rounds) -> Vec<String> {
    let mut run = Run::begin(trace).await;
    for id in 0..VOLUMES.len() {
        run.write_canary(id).await;
    }
    let mut lines = Vec::new();
    for number in 1..=trace.steps {
        let step = run.model.next(rounds);
        let line = run.step(number, step).await;
        eprintln!("{line}");
        lines.push(line);
    }
    run.end().await;
    lines
}

struct Run<'a> {
    trace: &'a Trace,
    interceptor: Interceptor,
    driver: Option<Process>,
    options: NodeOptions,
    node: Option<NodeProcess>,
    model: Model,
    ids: Vec<String>,
    /// The targets at which the interceptor mounts read-only, with [`Deviation::MountsNothing`].
    read_only: Arc<Mutex<BTreeSet<PathBuf>>>,
    /// The number of reboots.
    boots: Arc<AtomicU32>,
}

impl<'a> Run<'a> {
    async fn begin(trace: &'a Trace) -> Self {
        let directory = &trace.directory;
        let driver = trace.driver.start(directory).await;
        let interceptor = Interceptor::start(&directory.join("between.sock"), &socket_of(directory));
        let options = NodeOptions::new(&trace.program, directory, &trace.driver.name, interceptor.socket());
        let read_only = Arc::default();
        let (node, model, boots) = (None, Model::default(), Arc::default());
        let mut run = Self {
            trace,
            interceptor,
            driver: Some(driver),
            options,
            node,
            model,
            ids: Vec::new(),
            read_only,
            boots,
        };
        for name in VOLUMES {
            let id = create(&socket_of(directory), name).await;
            if trace.driver.has(Deviation::MountsNothing) {
                run.mount_for_driver(&id, name);
            }
            if trace.driver.has(Deviation::CountsBoots) {
                run.unpublish_for_each_boot(&id);
            }
            run.ids.push(id);
        }
        run.start_node().await;
        run
    }

    /// Makes the interceptor mount and unmount a volume, since the driver only claims to do so.
    fn mount_for_driver(&self, id: &str, name: &str) {
        let data = self.trace.directory.join("data").join(name);
        fs::create_dir_all(&data).expect("a directory for a volume");
        let read_only = Arc::clone(&self.read_only);
        let publish = Interception::after(move |about| {
            let target = Path::new(&about.path);
            if namespace::table().at(target).is_some() {
                return Ok(());
            }
            fs::create_dir_all(target)?;
            mount_bind(&data, target)?;
            if read_only.lock().unwrap_or_else(PoisonError::into_inner).contains(target) {
                mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, c"")?;
            }
            Ok(())
        });
        // The mock removes every entry at the target, so the unmount comes first.
        let unpublish = Interception::before(|about| {
            while namespace::table().at(Path::new(&about.path)).is_some() {
                namespace::unmount(Path::new(&about.path));
            }
            Ok(())
        });
        self.interceptor.always(Method::NodePublishVolume, id, publish);
        self.interceptor.always(Method::NodeUnpublishVolume, id, unpublish);
    }

    /// Makes the interceptor repeat NodeUnpublishVolume once for each boot.
    fn unpublish_for_each_boot(&self, id: &str) {
        let (socket, boots) = (socket_of(&self.trace.directory), Arc::clone(&self.boots));
        let again = Interception::after(move |about| {
            let mut client = NodeClient::new(channel(&socket));
            for _ in 0..boots.load(Ordering::SeqCst) {
                let (volume_id, target_path) = (about.volume.clone(), about.path.clone());
                let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
                let unpublished = Handle::current().block_on(client.node_unpublish_volume(request));
                unpublished.map_err(std::io::Error::other)?;
            }
            Ok(())
        });
        self.interceptor.always(Method::NodeUnpublishVolume, id, again);
    }

    /// Writes the file that identifies a volume into the volume.
    async fn write_canary(&mut self, volume: usize) {
        self.must(Order::Publish(volume, 0, false)).await;
        fs::write(self.target(volume, 0).join(CANARY), VOLUMES[volume]).expect("a canary");
        self.must(Order::Unpublish(volume, 0)).await;
    }

    async fn step(&mut self, number: u64, step: Step) -> String {
        let expected = self.model.step(step);
        let answer = match step {
            Step::Order(order) => {
                self.ask(order).await.unwrap_or_else(|Ended| panic!("{number} {step}: the node ended"))
            }
            Step::Killed(at, order) => self.killed(at, order).await,
            Step::RestartNode => {
                self.kill_node().await;
                self.start_node().await;
                Answer::Done
            }
            Step::RestartDriver => {
                self.restart_driver().await;
                Answer::Done
            }
            Step::ReleaseWithoutDriver(volume, consumer) => {
                let restarts = !self.trace.driver.has(Deviation::ForgetsAtRestart);
                if restarts {
                    self.driver = None;
                }
                let answer = self.ask(Order::Release(volume, consumer)).await;
                if restarts {
                    self.restart_driver().await;
                }
                answer.unwrap_or_else(|Ended| panic!("{number} {step}: the node ended"))
            }
            Step::Reboot => {
                self.reboot().await;
                Answer::Done
            }
        };
        assert_eq!(answer, expected, "{number} {step}: the node's answer; {}", self.logs());
        let state = self.settled(&format!("{number} {step}")).await;
        if matches!(step, Step::RestartNode | Step::Killed(..) | Step::Reboot) {
            // `release` submits the desired set of this process, so the new process must have received every
            // publication. The state does not change.
            let held: Vec<_> = self.model.held().iter().map(|(held, path)| (*held, *path)).collect();
            for ((volume, consumer), read_only) in held {
                self.must(Order::Publish(volume, consumer, read_only)).await;
            }
            self.settled(&format!("{number} {step}, and all volumes published again")).await;
        }
        self.interceptor.assert_lawful();
        format!("{number} {step} -> {answer} | {state}")
    }

    /// Starts a node that is killed before the step `at`, and sends the order. The order may end before that step.
    async fn killed(&mut self, at: u64, order: Order) -> Answer {
        self.kill_node().await;
        self.options.kill_at = Some(at);
        if let Ok(node) = NodeProcess::start(&self.options).await {
            self.node = Some(node);
            // The process may be killed before or after its answer.
            let _ = self.ask(order).await;
        }
        self.options.kill_at = None;
        self.kill_node().await;
        self.start_node().await;
        if let Order::Publish(volume, consumer, true) = order
            && self.trace.driver.has(Deviation::RefusesReadOnlyTwice)
        {
            self.must(Order::Unpublish(volume, consumer)).await;
        }
        let since = Instant::now();
        loop {
            match self.ask(order).await {
                Ok(Answer::Refused) if since.elapsed() < wait::SOON => tokio::task::yield_now().await,
                Ok(answer) => return answer,
                Err(Ended) => panic!("{order}: the node ended; {}", self.logs()),
            }
        }
    }

    async fn reboot(&mut self) {
        self.kill_node().await;
        if !self.trace.driver.has(Deviation::ForgetsAtRestart) {
            self.driver = None;
            namespace::unmount_all(&[&self.trace.directory]);
            self.interceptor.history(History::reboot);
            self.restart_driver().await;
            self.options.boot += 1;
            self.boots.fetch_add(1, Ordering::SeqCst);
        }
        self.start_node().await;
    }

    async fn restart_driver(&mut self) {
        if self.trace.driver.has(Deviation::ForgetsAtRestart) {
            return;
        }
        drop(self.driver.take());
        self.driver = Some(self.trace.driver.start(&self.trace.directory).await);
    }

    async fn start_node(&mut self) {
        let node = NodeProcess::start(&self.options).await;
        self.node =
            Some(node.unwrap_or_else(|Ended| panic!("volume-node ended at its start; {}", self.logs())));
    }

    async fn kill_node(&mut self) {
        if let Some(node) = self.node.take() {
            node.kill().await;
        }
        self.interceptor.history(History::another_caller);
    }

    async fn must(&mut self, order: Order) {
        match self.ask(order).await {
            Ok(Answer::Done) => {}
            other => panic!("{order}: {other:?}; {}", self.logs()),
        }
    }

    async fn ask(&mut self, order: Order) -> Result<Answer, Ended> {
        let driver = &self.trace.driver.name;
        let words = match order {
            Order::Publish(volume, of, read_only) => {
                let mut targets = self.read_only.lock().unwrap_or_else(PoisonError::into_inner);
                let target = self.target(volume, of);
                if read_only {
                    targets.insert(target)
                } else {
                    targets.remove(&target)
                };
                let (id, name) = (&self.ids[volume], consumer(volume, of));
                let path = if read_only { "ro" } else { "rw" };
                format!("publish {driver} {id} {name} pods/{name}/mount {path}")
            }
            Order::Unpublish(volume, of) => {
                format!("unpublish {driver} {} {}", self.ids[volume], consumer(volume, of))
            }
            Order::Release(volume, of) => {
                format!("release {driver} {} {}", self.ids[volume], consumer(volume, of))
            }
            Order::Expand(volume, bytes) => format!("expand {driver} {} {bytes}", self.ids[volume]),
        };
        let node = self.node.as_mut().expect("a node runs between two steps");
        Ok(match (node.ask(&words).await?, order) {
            (Ok(answer), Order::Expand(..)) => Answer::Bytes(answer.parse().expect("a number of bytes")),
            (Ok(_), _) => Answer::Done,
            (Err(reason), _) => {
                eprintln!("{order}: {reason}");
                Answer::Refused
            }
        })
    }

    /// Waits until the state equals the model, and returns it as a line.
    async fn settled(&mut self, when: &str) -> String {
        let expected = expected(&self.model);
        let since = Instant::now();
        loop {
            let node = self.node.as_mut().expect("a node runs between two steps");
            let reported = holders(&node.must("holders").await);
            let (pods, staging) = (self.trace.directory.join("pods"), self.trace.directory.join("v"));
            let namespace = Fixture { pods: &pods, staging: &staging, driver: &self.trace.driver };
            let (found, wrong) = found(&namespace, &reported, &self.ids, &self.model);
            if found == expected && wrong.is_empty() {
                return found;
            }
            let late = since.elapsed() > wait::SOON;
            assert!(!late, "{when}:\n expected {expected}\n found    {found} {wrong:?}\n{}", self.logs());
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Unpublishes and deletes every volume, and checks that nothing is left.
    async fn end(&mut self) {
        for volume in 0..VOLUMES.len() {
            for consumer in 0..CONSUMERS.len() {
                self.model.step(Step::Order(Order::Unpublish(volume, consumer)));
                self.must(Order::Unpublish(volume, consumer)).await;
            }
        }
        self.settled("the end").await;
        let mut client = controller(&socket_of(&self.trace.directory));
        for id in &self.ids {
            let request = csi::DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
            let deleted = client.delete_volume(request).await;
            assert!(deleted.is_ok(), "{id} is not deleted: {deleted:?}; {}", self.logs());
        }
        self.interceptor.assert_lawful();
    }

    fn target(&self, volume: usize, of: usize) -> PathBuf {
        self.trace.directory.join("pods").join(consumer(volume, of)).join("mount")
    }

    fn logs(&self) -> String {
        let directory = &self.trace.directory;
        format!(
            "the end of the node's log:\n{}\nthe end of the driver's log:\n{}",
            end_of(&directory.join("node.log")),
            end_of(&log_of(directory))
        )
    }
}

/// Creates a volume that several consumers may write to, and returns its id.
async fn create(socket: &Path, name: &str) -> String {
    let mut request = create_volume(name);
    for capability in &mut request.volume_capabilities {
        let mode = csi::volume_capability::access_mode::Mode::SingleNodeMultiWriter.into();
        capability.access_mode = Some(csi::volume_capability::AccessMode { mode });
    }
    let made = controller(socket).create_volume(request).await.expect("a volume");
    made.into_inner().volume.expect("a volume in the answer").volume_id
}

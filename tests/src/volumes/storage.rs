//! A driver process behind an interceptor, with its volumes and directories.

use std::fs;
use std::path::{Path, PathBuf};

use csi_proto::csi::v1 as csi;

use super::interceptor::Interceptor;
use super::namespace;
use super::node::NodeOptions;
use crate::arguments::Arguments;
use crate::cluster::{DRIVER, NODE};
use crate::csi::{controller, create_volume};
use crate::process::Process;
use crate::wait;

/// hostpath-driver as a process behind an [`Interceptor`]. The driver's state is on disk, so a test may kill and
/// restart it.
#[derive(Debug)]
pub struct Storage {
    /// The directory of the test.
    pub directory: PathBuf,
    /// The interceptor, whose socket the node uses as the driver's.
    pub interceptor: Interceptor,
    driver: Option<Process>,
}

impl Storage {
    /// Starts the interceptor and the driver.
    pub async fn start(directory: &Path) -> Self {
        let interceptor = Interceptor::start(&directory.join("between.sock"), &directory.join("driver.sock"));
        let mut storage = Self { directory: directory.to_owned(), interceptor, driver: None };
        storage.start_driver().await;
        storage
    }

    /// Starts the driver, and waits until Probe succeeds.
    pub async fn start_driver(&mut self) {
        let (socket, state) = (self.driver_socket(), self.directory.join("driver-state"));
        let arguments = Arguments::driver(DRIVER, &socket, NODE, &state).flag("-v");
        self.driver = Some(Process::start(&self.directory, "driver", "hostpath-driver", arguments));
        crate::csi::ready(&self.driver_socket()).await;
    }

    /// Kills the driver.
    pub fn kill_driver(&mut self) {
        self.driver = None;
    }

    /// Kills the driver, removes every mount, and starts the driver again, as a reboot does.
    pub async fn reboot(&mut self) {
        self.kill_driver();
        namespace::unmount_all(&[&self.pods(), &self.root(), &self.directory.join("driver-state")]);
        self.interceptor.history(super::history::History::reboot);
        self.start_driver().await;
    }

    /// Returns the path of the driver's own socket.
    #[must_use]
    pub fn driver_socket(&self) -> PathBuf {
        self.directory.join("driver.sock")
    }

    /// Returns the directory of the node's staging paths.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.directory.join("v")
    }

    /// Returns the directory of the targets.
    #[must_use]
    pub fn pods(&self) -> PathBuf {
        self.directory.join("pods")
    }

    /// Returns the target of a consumer.
    #[must_use]
    pub fn target(&self, consumer: &str) -> PathBuf {
        self.pods().join(consumer).join("mount")
    }

    /// Returns the options that start the node's process with this driver.
    #[must_use]
    pub fn node(&self, program: &str) -> NodeOptions {
        NodeOptions::new(program.as_ref(), &self.directory, DRIVER, self.interceptor.socket())
    }

    /// Creates a volume with the canary `name` in it, and returns its id.
    ///
    /// # Panics
    /// If the volume or the canary cannot be created.
    pub async fn create(&self, name: &str) -> String {
        let mut request = create_volume(name);
        for capability in &mut request.volume_capabilities {
            let mode = csi::volume_capability::access_mode::Mode::SingleNodeMultiWriter.into();
            capability.access_mode = Some(csi::volume_capability::AccessMode { mode });
        }
        let made = controller(&self.driver_socket()).create_volume(request).await.expect("a volume");
        let id = made.into_inner().volume.expect("a volume in the answer").volume_id;
        fs::create_dir(self.tree(&id).join("deep")).expect("the volume's tree");
        fs::write(self.tree(&id).join("deep/canary"), name).expect("a canary");
        id
    }

    /// Returns the directory in which the driver stores a volume.
    #[must_use]
    pub fn tree(&self, id: &str) -> PathBuf {
        self.directory.join("driver-state/data").join(id).join("tree")
    }

    /// Asserts that the volume has its canary.
    ///
    /// # Panics
    /// If the canary is lost or changed.
    pub fn assert_canary(&self, id: &str, name: &str) {
        let found = fs::read_to_string(self.tree(id).join("deep/canary"));
        assert_eq!(found.ok().as_deref(), Some(name), "the canary of {id}");
    }

    /// Returns whether the volume is mounted at the target: its canary can be read, and there is exactly one mount.
    #[must_use]
    pub fn is_at(&self, consumer: &str, name: &str) -> bool {
        let target = self.target(consumer);
        let canary = fs::read_to_string(target.join("deep/canary"));
        canary.is_ok_and(|found| found == name) && namespace::table().stack(&target).len() == 1
    }

    /// Waits until the volume is mounted at the target.
    pub async fn mounted_at(&self, consumer: &str, name: &str) {
        wait::until(&format!("{name} is mounted at the target of {consumer}"), async || {
            self.is_at(consumer, name).then_some(())
        })
        .await;
    }

    /// Asserts that nothing is left of any volume on the node.
    ///
    /// # Panics
    /// If there is a mount, or an entry at a target or staging path.
    pub fn assert_clean(&self) {
        let left: Vec<_> =
            [self.root(), self.pods()].iter().flat_map(|place| namespace::mounts_below(place)).collect();
        assert!(left.is_empty(), "mounts are left: {left:?}");
        let mut entries = Vec::new();
        for pod in fs::read_dir(self.pods()).into_iter().flatten().flatten() {
            entries
                .extend(fs::read_dir(pod.path()).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        for driver in fs::read_dir(self.root()).into_iter().flatten().flatten() {
            entries.extend(
                fs::read_dir(driver.path()).into_iter().flatten().flatten().map(|entry| entry.path()),
            );
        }
        assert!(entries.is_empty(), "entries are left: {entries:?}");
    }
}

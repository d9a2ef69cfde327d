//! A node with volumes and a controller that sets them. A failed test leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::csi::v1 as csi;
use csi_proto::{DriverName, VolumeId};
use edge_csi_tests::arguments::unix;
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::{binaries, wait};
use edge_transport::link::{Address, DialOptions};
use edge_transport::{Peer, PeerId, ReplyEvent, Request, ServiceName};
use rustix::mount::{UnmountFlags, unmount};
use volume_manager::advanced::message::answer::Kind;
use volume_manager::advanced::message::{Answer, DesiredSet, Reconciled, Refusal, SERVICE};
use volume_manager::driver::{Access, AccessMode, ConsumerSpec, MountPath, VolumeSpec};
use volume_manager::node::DesiredVolume;
use volume_manager::{ConsumerId, VolumeKey};

/// The cluster with the directories of a node's volumes. The drop removes every mount below it.
pub(crate) struct Fixture {
    pub(crate) cluster: TestCluster,
    peer: Option<Peer>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::over(LinkKind::Uds)
    }

    /// The agent dials the hub over a link of this kind.
    pub(crate) fn over(kind: LinkKind) -> Self {
        let fixture = Self { cluster: TestCluster::empty(kind), peer: None };
        fixture.boots("11111111-1111-4111-8111-111111111111");
        fixture
    }

    /// The boot id that the next agent reads.
    pub(crate) fn boots(&self, id: &str) {
        fs::write(self.cluster.path("boot-id"), id).unwrap();
    }

    pub(crate) fn start_agent(&mut self, more: &[&str]) {
        let root = self.cluster.path("volumes").to_string_lossy().into_owned();
        let boot = self.cluster.path("boot-id").to_string_lossy().into_owned();
        let arguments = ["--staging-dir", &root, "--boot-id-file", &boot];
        self.cluster.start_agent(&[&arguments, more].concat()).unwrap();
    }

    /// Creates a volume as a sidecar would.
    pub(crate) async fn volume(&self, name: &str) -> VolumeKey {
        ready(&self.cluster.driver_socket()).await;
        let made =
            controller(&self.cluster.driver_socket()).create_volume(create_volume(name)).await.unwrap();
        key(&made.into_inner().volume.unwrap().volume_id)
    }

    pub(crate) fn target(&self, consumer: &str) -> PathBuf {
        self.cluster.path("pods").join(consumer).join("data")
    }

    /// Returns a desired set in which each volume has these consumers.
    pub(crate) fn set(&self, revision: u64, volumes: &[(&VolumeKey, &[&str])]) -> DesiredSet {
        let volumes = volumes.iter().map(|(key, consumers)| {
            let mode = AccessMode::SingleNodeMultiWriter;
            let spec = VolumeSpec::builder((*key).clone(), Access::filesystem(), mode).build().unwrap();
            let consumers = consumers.iter().map(|id| {
                let target = MountPath::new(self.target(id)).unwrap();
                Arc::new(ConsumerSpec::new(ConsumerId::new(id).unwrap(), target))
            });
            DesiredVolume { spec: Arc::new(spec), consumers: consumers.collect() }
        });
        DesiredSet::new(revision, volumes.collect())
    }

    /// Sends a request of the controller once the node is connected, and returns the answers.
    pub(crate) async fn ask(&mut self, request: Vec<u8>) -> Vec<Kind> {
        let peer = self.peer.get_or_insert_with(|| {
            let address: Address = unix(&self.cluster.path("hub.sock")).parse().unwrap();
            let dialer = address.dialer(&DialOptions::default()).unwrap();
            Peer::builder(PeerId::new("cloud").unwrap()).dialer(dialer).start().unwrap()
        });
        let (node, service) = (PeerId::new(NODE).unwrap(), ServiceName::new(SERVICE).unwrap());
        wait::until("the node answers", async || {
            let request = Request::new(service.clone(), request.clone());
            let mut replies =
                peer.call(node.clone(), request.remaining(Duration::from_secs(10))).await.ok()?;
            let mut answers = Vec::new();
            loop {
                match replies.next().await? {
                    Ok(ReplyEvent::Message(bytes)) => answers.extend(Answer::read(&bytes).unwrap().answer),
                    Ok(_) => return Some(answers),
                    Err(_) => return None,
                }
            }
        })
        .await
    }

    pub(crate) async fn taken(&mut self, set: &DesiredSet) -> Reconciled {
        match &self.ask(set.encode()).await[..] {
            [Kind::Reconciled(reconciled)] => reconciled.clone(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn refused(&mut self, request: Vec<u8>) -> Refusal {
        match &self.ask(request).await[..] {
            [Kind::Refusal(refusal)] => refusal.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the output of one of the agent's commands.
    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(binaries::path("edge-agent"));
        command.args(arguments).arg("--state-dir").arg(self.cluster.path("agent-state"));
        command.env_remove("RUST_LOG").output().unwrap()
    }

    /// Returns the output of a command, and asserts that the command succeeds.
    pub(crate) fn printed(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until the agent reports the volume as published for all its consumers. Without an agent the table has the state
    /// from before its start.
    pub(crate) async fn published(&self, key: &VolumeKey) {
        wait::until(&format!("{key} is published"), async || {
            let output = self.command(&["volumes"]);
            if String::from_utf8_lossy(&output.stderr).contains("no agent uses") {
                return None;
            }
            let table = String::from_utf8(output.stdout).unwrap();
            let row = table.lines().find(|line| line.starts_with(&key.to_string()))?.to_owned();
            (row.contains("PUBLISHED") && !row.contains('(')).then_some(())
        })
        .await;
    }

    /// Waits until nothing is mounted below the cluster any more.
    pub(crate) async fn nothing_mounted(&self) {
        wait::until("all is unmounted", async || self.mounts().is_empty().then_some(())).await;
    }

    /// Waits until the table has no volume any more.
    pub(crate) async fn forgotten(&self) {
        wait::until("nothing is left", async || {
            (self.printed(&["volumes"]).lines().count() == 1).then_some(())
        })
        .await;
    }

    /// Returns the id and the path of every mount below the cluster, in the order of the mounts.
    pub(crate) fn mounts(&self) -> Vec<(u64, PathBuf)> {
        let below = self.cluster.directory();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = table.lines().map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[0].parse().unwrap(), PathBuf::from(fields[4]))
        });
        mounts.filter(|(_, place)| place.starts_with(below)).collect()
    }

    /// Returns the number of mounts at a path.
    pub(crate) fn mounts_at(&self, place: &Path) -> usize {
        self.mounts().iter().filter(|(_, mounted)| mounted == place).count()
    }

    /// Removes all mounts, as a reboot does.
    pub(crate) fn unmount_all(&self) {
        for (_, place) in self.mounts().iter().rev() {
            unmount(place, UnmountFlags::DETACH).unwrap();
        }
    }

    /// Returns the paths of all entries below a folder.
    pub(crate) fn below(&self, folder: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.cluster.path(folder)];
        while let Some(folder) = folders.pop() {
            let Ok(entries) = fs::read_dir(folder) else { continue };
            for entry in entries.flatten() {
                found.push(entry.path());
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                }
            }
        }
        found
    }

    /// Returns the number of nodes to which the volume is attached, according to the driver.
    pub(crate) async fn attached_nodes(&self, key: &VolumeKey) -> usize {
        let listed =
            controller(&self.cluster.driver_socket()).list_volumes(csi::ListVolumesRequest::default()).await;
        let entries = listed.unwrap().into_inner().entries;
        let is_it = |entry: &csi::list_volumes_response::Entry| {
            entry.volume.as_ref().unwrap().volume_id == key.id.as_str()
        };
        entries.into_iter().find(is_it).and_then(|entry| entry.status).unwrap().published_node_ids.len()
    }

    /// Calls ControllerPublishVolume as the attacher in the cloud would.
    pub(crate) async fn attach_as_others_do(&self, key: &VolumeKey) -> csi::ControllerPublishVolumeResponse {
        let capability = create_volume("x").volume_capabilities.remove(0);
        let mode = csi::volume_capability::access_mode::Mode::SingleNodeMultiWriter;
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: key.id.to_string(),
            node_id: NODE.to_owned(),
            volume_capability: Some(capability.with_mode(mode)),
            ..Default::default()
        };
        let socket = self.cluster.driver_socket();
        controller(&socket).controller_publish_volume(request).await.unwrap().into_inner()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.cluster.agent = None;
        self.cluster.driver = None;
        for (_, place) in self.mounts().iter().rev() {
            let _ = unmount(place, UnmountFlags::DETACH);
        }
    }
}

pub(crate) fn key(id: &str) -> VolumeKey {
    VolumeKey { driver: DriverName::new(DRIVER).unwrap(), id: VolumeId::new(id).unwrap() }
}

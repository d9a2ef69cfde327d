//! `--keep-mounts-in-use`: a target stays published while a container of its pod runs.
//!
//! kubelet unpublishes the volumes of a pod after its containers have ended. KubeEdge's edged also does so at each of its starts,
//! before it has its pods. The driver then takes a device from under a container, or cannot unstage it. An answer with an error
//! is true, as the volume stays in use, and edged keeps the volume until its pod has ended.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use async_trait::async_trait;
use csi_proto::csi::v1::NodeUnpublishVolumeRequest;
use csi_proxy::monitor::pod_uid;
use csi_proxy::{Call, Code, Fault, Outcome, Relay, Replies};
use prost::Message as _;

use edge_csi_common::process::Fatal;

const NODE_UNPUBLISH_VOLUME: &str = "/csi.v1.Node/NodeUnpublishVolume";

/// Refuses to unpublish the volumes of pods with running containers, and forwards all other calls.
pub(super) struct KeepMounts {
    inner: Arc<dyn Relay>,
    processes: PathBuf,
}

impl KeepMounts {
    /// Creates the relay.
    ///
    /// # Errors
    /// If the containers of the node cannot be seen: without the node's process namespace, or without the right to read the
    /// mounts of other processes.
    pub(super) fn new(inner: Arc<dyn Relay>) -> Result<Self, Fatal> {
        let processes = PathBuf::from("/proc");
        if std::process::id() == 1 {
            let cause = "the agent sees no process but its own; a pod needs hostPID: true";
            return Err(Fatal::Input(format!("--keep-mounts-in-use: {cause}")));
        }
        match fs::read_link(namespace_of("1", &processes)) {
            Ok(_) => Ok(Self { inner, processes }),
            Err(cause) => Err(Fatal::Input(format!(
                "--keep-mounts-in-use: cannot read the mounts of other processes: {cause}; run the agent as root with the \
                 capability SYS_PTRACE"
            ))),
        }
    }

    /// Returns the outcome of a call that is refused.
    async fn refusal(&self, call: &Call) -> Option<Outcome> {
        if call.method.as_str() != NODE_UNPUBLISH_VOLUME {
            return None;
        }
        let request = NodeUnpublishVolumeRequest::decode(call.body.clone()).ok()?;
        let uid = pod_uid(&request.target_path)?.to_owned();
        let (pod, processes) = (uid.clone(), self.processes.clone());
        let container = tokio::task::spawn_blocking(move || container_of(&pod, &processes)).await;
        let (call, driver, volume) = (call.id, &call.driver, &request.volume_id);
        match container.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(None) => None,
            Ok(Some(process)) => {
                tracing::warn!(%call, %driver, volume, pod = uid, process, "kept a volume published: its pod still runs");
                let message = format!(
                    "a container of pod {uid} runs as process {process}; unpublish after it has ended"
                );
                Some(Outcome::from_endpoint(Code::FAILED_PRECONDITION, message))
            }
            Err(cause) => {
                tracing::warn!(%call, %driver, volume, pod = uid, %cause, "kept a volume published: cannot list the processes");
                Some(Outcome::from_endpoint(Code::UNAVAILABLE, format!("cannot list the processes: {cause}")))
            }
        }
    }
}

#[async_trait]
impl Relay for KeepMounts {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        match self.refusal(&call).await {
            Some(outcome) => Ok(Replies::outcome(outcome)),
            None => self.inner.relay(call).await,
        }
    }
}

/// Returns a process in a container of the pod. `processes` is the folder of procfs.
///
/// kubelet binds a file below the pod's folder `containers` into each container, for the message with which it ends. The mounts
/// of the agent's own namespace, usually the host's, are not those of a container.
fn container_of(uid: &str, processes: &Path) -> io::Result<Option<u32>> {
    let bound = format!("/pods/{uid}/containers/");
    let mut seen = BTreeSet::from([fs::read_link(namespace_of("self", processes))?]);
    for entry in fs::read_dir(processes)?.flatten() {
        let name = entry.file_name();
        let Some((name, process)) = name.to_str().and_then(|name| Some((name, name.parse().ok()?))) else {
            continue;
        };
        // A process may end meanwhile.
        let Ok(namespace) = fs::read_link(namespace_of(name, processes)) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        let table = fs::read(processes.join(name).join("mountinfo")).unwrap_or_default();
        let table = String::from_utf8_lossy(&table);
        // The fourth field is the part of the filesystem that is mounted.
        let mut roots = table.lines().filter_map(|line| line.split(' ').nth(3));
        if roots.any(|root| root.contains(&bound)) {
            return Ok(Some(process));
        }
    }
    Ok(None)
}

fn namespace_of(process: &str, processes: &Path) -> PathBuf {
    processes.join(process).join("ns/mnt")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Mutex;

    use bytes::Bytes;
    use csi_proxy::{CallId, MethodPath};

    use super::*;

    const TARGET: &str = "/var/lib/kubelet/pods/1c2d/volumes/kubernetes.io~csi/pv/mount";

    /// Counts its calls.
    #[derive(Default)]
    struct Counted(Mutex<usize>);

    #[async_trait]
    impl Relay for Counted {
        async fn relay(&self, _: Call) -> Result<Replies, Fault> {
            *self.0.lock().unwrap() += 1;
            Ok(Replies::unary(Bytes::new(), Outcome::ok()))
        }
    }

    /// Adds a process with one mount besides that of its root.
    fn process(processes: &Path, name: &str, namespace: &str, root: &str, point: &str) {
        let folder = processes.join(name);
        fs::create_dir_all(folder.join("ns")).unwrap();
        symlink(format!("mnt:[{namespace}]"), folder.join("ns/mnt")).unwrap();
        let table =
            format!("1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:1 {root} {point} rw - ext4 /dev/sda rw\n");
        fs::write(folder.join("mountinfo"), table).unwrap();
    }

    fn unpublish(target: &str) -> Call {
        let request =
            NodeUnpublishVolumeRequest { volume_id: "v".to_owned(), target_path: target.to_owned() };
        let method = MethodPath::new(NODE_UNPUBLISH_VOLUME).unwrap();
        let (node, driver) = ("edge-1".parse().unwrap(), "csi.example.org".parse().unwrap());
        Call::new(CallId::new(), node, driver, method, request.encode_to_vec().into())
    }

    const LOG: &str = "/lib/kubelet/pods/1c2d/containers/app/7f";

    #[test]
    fn container_is_found_by_a_mount_of_its_pod() {
        let folder = tempfile::tempdir().unwrap();
        let processes = folder.path();
        // The agent's own namespace has all mounts of the host.
        process(processes, "self", "1", LOG, "/dev/termination-log");
        process(processes, "1", "1", LOG, "/dev/termination-log");
        // A container that was started with the mounts of the host, as those of monitoring are.
        process(processes, "20", "2", "/data", &format!("/host{TARGET}"));
        process(processes, "30", "3", "/lib/kubelet/pods/other/containers/app/7f", "/dev/termination-log");
        fs::create_dir(processes.join("40")).unwrap();
        fs::write(processes.join("uptime"), "1").unwrap();
        assert_eq!(container_of("1c2d", processes).unwrap(), None);
        process(processes, "50", "5", LOG, "/dev/termination-log");
        assert_eq!(container_of("1c2d", processes).unwrap(), Some(50));
        assert!(container_of("1c2d", &processes.join("none")).is_err());
    }

    #[tokio::test]
    async fn only_targets_of_running_pods_stay_published() {
        let folder = tempfile::tempdir().unwrap();
        let inner = Arc::new(Counted::default());
        let keep = KeepMounts { inner: inner.clone(), processes: folder.path().to_owned() };
        let code = async |call| keep.relay(call).await.unwrap().collect().await.1.code;
        assert_eq!(code(unpublish(TARGET)).await, Code::UNAVAILABLE, "without a list of processes");
        process(folder.path(), "self", "1", "/data", "/data");
        process(folder.path(), "50", "5", LOG, "/dev/termination-log");
        assert_eq!(code(unpublish(TARGET)).await, Code::FAILED_PRECONDITION);
        assert_eq!(*inner.0.lock().unwrap(), 0);

        let of_another = TARGET.replace("1c2d", "other");
        let mut publish = unpublish(TARGET);
        publish.method = MethodPath::new("/csi.v1.Node/NodePublishVolume").unwrap();
        for call in [unpublish(&of_another), unpublish("/mnt/target"), unpublish(""), publish] {
            assert_eq!(code(call).await, Code::OK);
        }
        assert_eq!(*inner.0.lock().unwrap(), 4);
        fs::remove_dir_all(folder.path().join("50")).unwrap();
        assert_eq!(code(unpublish(TARGET)).await, Code::OK, "its container has ended");
    }
}

//! Consumers of a volume.

use super::bounds::{self, InvalidSpec, MAX_NAME_BYTES};
use super::mount_path::MountPath;
use crate::name::ConsumerId;

/// A consumer of a volume, with its target path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConsumerSpec {
    id: ConsumerId,
    target_path: MountPath,
    read_only: bool,
    fs_group: Option<u32>,
    pod: Option<PodInfo>,
}

impl ConsumerSpec {
    /// Creates a consumer that reads and writes and is not a pod.
    #[must_use]
    pub fn new(id: ConsumerId, target_path: MountPath) -> Self {
        Self { id, target_path, read_only: false, fs_group: None, pod: None }
    }

    /// Sets whether the volume is published read-only. Default: false.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets the fsGroup of this consumer. Default: the volume's.
    #[must_use]
    pub fn fs_group(mut self, group: u32) -> Self {
        self.fs_group = Some(group);
        self
    }

    /// Sets the pod of this consumer, for drivers that request it (`podInfoOnMount`, `tokenRequests`).
    #[must_use]
    pub fn pod(mut self, pod: PodInfo) -> Self {
        self.pod = Some(pod);
        self
    }

    /// The consumer's id.
    #[must_use]
    pub fn id(&self) -> &ConsumerId {
        &self.id
    }

    /// The path where the volume is published.
    #[must_use]
    pub fn target_path(&self) -> &MountPath {
        &self.target_path
    }

    /// Whether the volume is published read-only for this consumer.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The consumer's own fsGroup.
    #[must_use]
    pub fn own_fs_group(&self) -> Option<u32> {
        self.fs_group
    }

    /// The consumer's pod.
    #[must_use]
    pub fn pod_info(&self) -> Option<&PodInfo> {
        self.pod.as_ref()
    }

    /// Returns the first differing field that would require another NodePublishVolume.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let uid = |consumer: &Self| consumer.pod_info().map(|pod| pod.uid().to_owned());
        [
            ("target_path", self.target_path == other.target_path),
            ("read_only", self.read_only == other.read_only),
            ("fs_group", self.fs_group == other.fs_group),
            ("pod uid", uid(self) == uid(other)),
        ]
        .into_iter()
        .find_map(|(field, same)| (!same).then_some(field))
    }
}

/// The pod information that is sent to drivers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodInfo {
    name: String,
    namespace: String,
    uid: String,
    service_account: String,
}

impl PodInfo {
    /// Validates the names of a pod: 1 to 253 bytes each, without control characters. Only the service account may be empty.
    ///
    /// # Errors
    /// If one of them is empty, too long, or has a control character.
    pub fn new(
        name: impl Into<String>,
        namespace: impl Into<String>,
        uid: impl Into<String>,
        service_account: impl Into<String>,
    ) -> Result<Self, InvalidSpec> {
        let pod = Self {
            name: name.into(),
            namespace: namespace.into(),
            uid: uid.into(),
            service_account: service_account.into(),
        };
        for (field, value) in
            [("pod.name", &pod.name), ("pod.namespace", &pod.namespace), ("pod.uid", &pod.uid)]
        {
            if value.is_empty() {
                return Err(InvalidSpec::Empty { field });
            }
            bounds::check_text(field, value, MAX_NAME_BYTES)?;
        }
        bounds::check_text("serviceAccount.name", &pod.service_account, MAX_NAME_BYTES)?;
        Ok(pod)
    }

    /// The pod's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pod's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The pod's UID.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The name of the pod's service account; may be empty.
    #[must_use]
    pub fn service_account(&self) -> &str {
        &self.service_account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_field_that_differs() {
        let at =
            |path: &str| ConsumerSpec::new(ConsumerId::new("one").unwrap(), MountPath::new(path).unwrap());
        let one = at("/t/1");
        for (other, differs) in [
            (one.clone(), None),
            (at("/t/2"), Some("target_path")),
            (one.clone().read_only(true), Some("read_only")),
            (one.clone().fs_group(5), Some("fs_group")),
            (one.clone().pod(PodInfo::new("p", "ns", "uid", "").unwrap()), Some("pod uid")),
        ] {
            assert_eq!(one.difference(&other), differs);
        }
    }

    #[test]
    fn pod_names_are_bounded_and_not_empty() {
        assert!(PodInfo::new("web-0", "default", "9f0c", "").is_ok());
        assert_eq!(PodInfo::new("web-0", "", "9f0c", ""), Err(InvalidSpec::Empty { field: "pod.namespace" }));
        let long = PodInfo::new("n".repeat(254), "default", "9f0c", "");
        assert_eq!(long, Err(InvalidSpec::TooLong { field: "pod.name", found: 254, bound: 253 }));
        let garbled = PodInfo::new("web-0", "default", "9f0c", "a\tb");
        assert_eq!(garbled, Err(InvalidSpec::Character { field: "serviceAccount.name", found: '\t' }));
    }
}

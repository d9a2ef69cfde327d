//! The part of a volume's spec that the calls to its driver depend on.

use std::collections::BTreeMap;

use super::access::{Access, AccessMode};
use super::bounds::{self, InvalidSpec, MAX_NAME_BYTES};
use super::secret_reference::SecretReference;
use crate::lifecycle::Attach;
use crate::name::VolumeKey;

/// The references to the secrets of each call. The values are resolved for each call, and never stored.
///
/// NodeUnstageVolume and NodeUnpublishVolume have no secrets, so a teardown on the node needs none.
#[allow(clippy::exhaustive_structs, reason = "the calls of a volume on a node that take secrets")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SecretReferences {
    /// The secret for ControllerPublishVolume and ControllerUnpublishVolume.
    pub controller_publish: Option<SecretReference>,
    /// The secret for NodeStageVolume.
    pub node_stage: Option<SecretReference>,
    /// The secret for NodePublishVolume.
    pub node_publish: Option<SecretReference>,
    /// The secret for ControllerExpandVolume.
    pub controller_expand: Option<SecretReference>,
    /// The secret for NodeExpandVolume.
    pub node_expand: Option<SecretReference>,
}

/// A volume and its use on this node, validated.
///
/// ```
/// use csi_proto::{DriverName, VolumeId};
/// use volume_manager::VolumeKey;
/// use volume_manager::driver::{Access, AccessMode, Attach, VolumeSpec};
///
/// let key = VolumeKey { driver: DriverName::new("hostpath.csi.example.org")?, id: VolumeId::new("vol-1")? };
/// let volume = VolumeSpec::builder(key, Access::filesystem(), AccessMode::SingleNodeWriter)
///     .attach(Attach::NotRequired)
///     .volume_context([("pool", "fast")])
///     .build()?;
/// assert_eq!(volume.volume_context()["pool"], "fast");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    key: VolumeKey,
    access: Access,
    mode: AccessMode,
    read_only: bool,
    ephemeral: bool,
    attach: Attach,
    volume_context: BTreeMap<String, String>,
    publish_context: BTreeMap<String, String>,
    secrets: SecretReferences,
    fs_group: Option<u32>,
    selinux_label: Option<String>,
}

impl VolumeSpec {
    /// Creates a builder for a persistent, writable volume of [`Attach::Here`] without contexts and secrets.
    #[must_use]
    pub fn builder(key: VolumeKey, access: Access, mode: AccessMode) -> VolumeSpecBuilder {
        VolumeSpecBuilder(Self {
            key,
            access,
            mode,
            read_only: false,
            ephemeral: false,
            attach: Attach::Here,
            volume_context: BTreeMap::new(),
            publish_context: BTreeMap::new(),
            secrets: SecretReferences::default(),
            fs_group: None,
            selinux_label: None,
        })
    }

    /// Returns a builder with the fields of this volume, such as for adding a publish context.
    #[must_use]
    pub fn to_builder(&self) -> VolumeSpecBuilder {
        VolumeSpecBuilder(self.clone())
    }

    /// The volume's driver and id.
    #[must_use]
    pub fn key(&self) -> &VolumeKey {
        &self.key
    }

    /// The access type.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// The access mode.
    #[must_use]
    pub fn mode(&self) -> AccessMode {
        self.mode
    }

    /// Whether the volume is read-only, by request or by its access mode.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.mode.is_read_only()
    }

    /// Whether the volume is ephemeral: NodePublishVolume creates it for one consumer, NodeUnpublishVolume deletes it.
    #[must_use]
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral
    }

    /// Whether the volume has at most one consumer at a time: its mode is `SINGLE_NODE_SINGLE_WRITER` (Kubernetes:
    /// `ReadWriteOncePod`), or it is ephemeral. `SINGLE_NODE_WRITER` counts nodes, not consumers: Kubernetes publishes such a
    /// volume to several pods of a node, and so does this crate.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.ephemeral || self.mode == AccessMode::SingleNodeSingleWriter
    }

    /// The volume's lifecycle mode, named as in `volumeLifecycleModes` of a CSIDriver object.
    pub(crate) fn lifecycle_mode(&self) -> &'static str {
        if self.ephemeral { "Ephemeral" } else { "Persistent" }
    }

    /// How the volume is attached.
    #[must_use]
    pub fn attach(&self) -> Attach {
        self.attach
    }

    /// The volume context: the answer of CreateVolume, or the attributes of an ephemeral volume.
    #[must_use]
    pub fn volume_context(&self) -> &BTreeMap<String, String> {
        &self.volume_context
    }

    /// The publish context from ControllerPublishVolume; empty before that call.
    #[must_use]
    pub fn publish_context(&self) -> &BTreeMap<String, String> {
        &self.publish_context
    }

    /// The secrets of the volume's calls.
    #[must_use]
    pub fn secrets(&self) -> &SecretReferences {
        &self.secrets
    }

    /// The fsGroup of the volume's files.
    #[must_use]
    pub fn fs_group(&self) -> Option<u32> {
        self.fs_group
    }

    /// The SELinux label to mount the volume with, if the driver's policy has `seLinuxMount`.
    #[must_use]
    pub fn selinux_label(&self) -> Option<&str> {
        self.selinux_label.as_deref()
    }

    fn check(&self) -> Result<(), InvalidSpec> {
        if self.mode == AccessMode::Unknown {
            return Err(InvalidSpec::Mode { found: self.mode });
        }
        match &self.access {
            Access::Filesystem { fs_type, mount_flags } => {
                bounds::check_text("fs_type", fs_type, csi_proto::validate::STRING_MAX_BYTES)?;
                bounds::check_mount_flags(mount_flags)?;
            }
            Access::Block => {
                let fields =
                    [("fs_group", self.fs_group.is_some()), ("selinux_label", self.selinux_label.is_some())];
                if let Some((field, _)) = fields.into_iter().find(|(_, set)| *set) {
                    return Err(InvalidSpec::Block { field });
                }
            }
        }
        bounds::check_context("volume_context", &self.volume_context)?;
        bounds::check_context("publish_context", &self.publish_context)?;
        if let Some(label) = &self.selinux_label {
            check_label(label)?;
        }
        if self.is_ephemeral() {
            self.check_ephemeral()?;
        }
        if self.attach == Attach::NotRequired && !self.publish_context.is_empty() {
            return Err(InvalidSpec::ContextWithoutAttach);
        }
        Ok(())
    }

    fn check_ephemeral(&self) -> Result<(), InvalidSpec> {
        let fields = [
            ("block access", self.access.is_block()),
            ("a mode for several nodes", self.mode.is_multi_node()),
            ("attach", self.attach != Attach::NotRequired),
            ("a secret of ControllerPublishVolume", self.secrets.controller_publish.is_some()),
            ("a secret of NodeStageVolume", self.secrets.node_stage.is_some()),
            ("a secret of ControllerExpandVolume", self.secrets.controller_expand.is_some()),
            ("a secret of NodeExpandVolume", self.secrets.node_expand.is_some()),
        ];
        match fields.into_iter().find(|(_, set)| *set) {
            Some((field, _)) => Err(InvalidSpec::Ephemeral { field }),
            None => Ok(()),
        }
    }
}

/// Validates a label, which becomes a quoted mount option: it must not contain a quote or a backslash.
fn check_label(label: &str) -> Result<(), InvalidSpec> {
    const FIELD: &str = "selinux_label";
    if label.is_empty() {
        return Err(InvalidSpec::Empty { field: FIELD });
    }
    bounds::check_text(FIELD, label, MAX_NAME_BYTES)?;
    match label.chars().find(|found| matches!(found, '"' | '\\')) {
        Some(found) => Err(InvalidSpec::Character { field: FIELD, found }),
        None => Ok(()),
    }
}

/// A builder of a [`VolumeSpec`].
#[derive(Debug, Clone)]
pub struct VolumeSpecBuilder(VolumeSpec);

impl VolumeSpecBuilder {
    /// Makes the volume read-only, whatever its mode and its consumers. Default: false.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.0.read_only = read_only;
        self
    }

    /// Makes the volume ephemeral, such as an inline volume of a pod. It is neither attached nor staged.
    #[must_use]
    pub fn ephemeral(mut self) -> Self {
        self.0.ephemeral = true;
        self.0.attach = Attach::NotRequired;
        self
    }

    /// Sets how the volume is attached. Default: [`Attach::Here`].
    #[must_use]
    pub fn attach(mut self, attach: Attach) -> Self {
        self.0.attach = attach;
        self
    }

    /// Sets the volume context, at most 64 KiB of keys and values. Default: empty.
    #[must_use]
    pub fn volume_context<K: Into<String>, V: Into<String>>(
        mut self,
        context: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.0.volume_context = entries(context);
        self
    }

    /// Sets the publish context, at most 64 KiB of keys and values. Default: empty.
    #[must_use]
    pub fn publish_context<K: Into<String>, V: Into<String>>(
        mut self,
        context: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.0.publish_context = entries(context);
        self
    }

    /// Sets the secrets of the volume's calls. Default: none.
    #[must_use]
    pub fn secrets(mut self, secrets: SecretReferences) -> Self {
        self.0.secrets = secrets;
        self
    }

    /// Sets the fsGroup of the files, staged and published. Default: the driver's choice.
    #[must_use]
    pub fn fs_group(mut self, group: u32) -> Self {
        self.0.fs_group = Some(group);
        self
    }

    /// Sets the SELinux label of the mount: at most 253 bytes without quotes. Default: none.
    #[must_use]
    pub fn selinux_label(mut self, label: impl Into<String>) -> Self {
        self.0.selinux_label = Some(label.into());
        self
    }

    /// Validates the fields.
    ///
    /// # Errors
    /// If a field exceeds its bound, or two of them contradict each other.
    pub fn build(self) -> Result<VolumeSpec, InvalidSpec> {
        self.0.check()?;
        Ok(self.0)
    }
}

fn entries<K: Into<String>, V: Into<String>>(
    context: impl IntoIterator<Item = (K, V)>,
) -> BTreeMap<String, String> {
    context.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

#[cfg(test)]
mod tests {
    use csi_proto::{DriverName, VolumeId};

    use super::*;

    fn builder(access: Access) -> VolumeSpecBuilder {
        let key = VolumeKey { driver: DriverName::new("a").unwrap(), id: VolumeId::new("v").unwrap() };
        VolumeSpec::builder(key, access, AccessMode::SingleNodeWriter)
    }

    #[test]
    fn block_volume_rejects_file_system_fields() {
        assert!(builder(Access::Block).build().is_ok());
        let grouped = builder(Access::Block).fs_group(5).build();
        assert_eq!(grouped, Err(InvalidSpec::Block { field: "fs_group" }));
        let labelled = builder(Access::Block).selinux_label("s0").build();
        assert_eq!(labelled, Err(InvalidSpec::Block { field: "selinux_label" }));
    }

    #[test]
    fn ephemeral_volume_is_neither_attached_nor_block() {
        let ephemeral = || builder(Access::filesystem()).ephemeral();
        assert_eq!(ephemeral().build().unwrap().attach(), Attach::NotRequired);
        for (field, bad) in [
            ("attach", ephemeral().attach(Attach::Awaited)),
            ("block access", builder(Access::Block).ephemeral()),
        ] {
            assert_eq!(bad.build(), Err(InvalidSpec::Ephemeral { field }));
        }
    }

    #[test]
    fn only_single_writer_and_ephemeral_volumes_are_exclusive() {
        let is_exclusive = |mode| {
            let mut spec = builder(Access::filesystem());
            spec.0.mode = mode;
            spec.build().unwrap().is_exclusive()
        };
        for mode in
            [AccessMode::SingleNodeWriter, AccessMode::SingleNodeMultiWriter, AccessMode::MultiNodeReaderOnly]
        {
            assert!(!is_exclusive(mode), "{mode:?}");
        }
        assert!(is_exclusive(AccessMode::SingleNodeSingleWriter));
        assert!(builder(Access::filesystem()).ephemeral().build().unwrap().is_exclusive());
    }

    #[test]
    fn reader_only_mode_makes_the_volume_read_only() {
        let mut spec = builder(Access::filesystem());
        spec.0.mode = AccessMode::MultiNodeReaderOnly;
        assert!(spec.build().unwrap().is_read_only());
        assert!(!builder(Access::filesystem()).build().unwrap().is_read_only());
        assert!(builder(Access::filesystem()).read_only(true).build().unwrap().is_read_only());
    }

    #[test]
    fn errors_name_the_field_over_its_bound() {
        let context = builder(Access::filesystem()).volume_context([("k", "v".repeat(64 * 1024))]).build();
        assert_eq!(
            context,
            Err(InvalidSpec::TooLong { field: "volume_context", found: 65537, bound: 65536 })
        );
        let fs_type = Access::Filesystem { fs_type: "x".repeat(129), mount_flags: vec![] };
        let fs_type = builder(fs_type).build();
        assert_eq!(fs_type, Err(InvalidSpec::TooLong { field: "fs_type", found: 129, bound: 128 }));
        let flags = Access::Filesystem { fs_type: String::new(), mount_flags: vec![String::new()] };
        assert_eq!(builder(flags).build(), Err(InvalidSpec::Empty { field: "mount_flags" }));
        let label = builder(Access::filesystem()).selinux_label("s0\",exec").build();
        assert_eq!(label, Err(InvalidSpec::Character { field: "selinux_label", found: '"' }));
        let mut unknown = builder(Access::filesystem());
        unknown.0.mode = AccessMode::Unknown;
        assert_eq!(unknown.build(), Err(InvalidSpec::Mode { found: AccessMode::Unknown }));
    }

    #[test]
    fn publish_context_requires_attach() {
        let context = || builder(Access::filesystem()).publish_context([("device", "/dev/sdb")]);
        assert!(context().attach(Attach::Awaited).build().is_ok());
        assert_eq!(context().attach(Attach::NotRequired).build(), Err(InvalidSpec::ContextWithoutAttach));
    }
}

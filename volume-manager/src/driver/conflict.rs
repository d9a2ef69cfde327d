//! Which consumers of one volume exclude each other.

use super::access::AccessMode;
use super::consumer_spec::ConsumerSpec;
use super::mount_path::MountPath;
use super::volume_spec::VolumeSpec;
use crate::name::ConsumerId;

/// Why a consumer may not have the volume now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerConflict {
    /// The volume is for one consumer at a time.
    #[error("the volume is {why} and {holder} has it; let that consumer go first")]
    Exclusive {
        /// What makes it exclusive.
        why: &'static str,
        /// Who has it.
        holder: ConsumerId,
    },
    /// Two consumers cannot share a target.
    #[error("the target {target_path} belongs to {holder} already; give each consumer a target of its own")]
    Target {
        /// The target.
        target_path: MountPath,
        /// Who has it.
        holder: ConsumerId,
    },
    /// One consumer has one target.
    #[error("{id} has the volume at {found}; release it before it is published at {wanted}")]
    Moved {
        /// Who asks.
        id: ConsumerId,
        /// Where it has the volume.
        found: MountPath,
        /// Where it wants it.
        wanted: MountPath,
    },
    /// One consumer has the volume in one way.
    #[error("{id} has the volume with another {field}; release it before it is published otherwise")]
    Changed {
        /// Who asks.
        id: ConsumerId,
        /// What differs.
        field: &'static str,
    },
}

impl VolumeSpec {
    /// Whether a consumer may have the volume besides those that have it.
    ///
    /// A volume of mode `SINGLE_NODE_SINGLE_WRITER` (Kubernetes: `ReadWriteOncePod`) has one consumer at a time, and so
    /// has an ephemeral one. `SINGLE_NODE_WRITER` counts nodes, not consumers: Kubernetes publishes such a volume to
    /// several pods of a node, and so may this side. A consumer that asks again for what it has is no conflict.
    ///
    /// # Errors
    /// If the volume or the target is another's, or the consumer has the volume elsewhere or otherwise.
    pub fn conflicts<'a>(
        &self,
        existing: impl IntoIterator<Item = &'a ConsumerSpec>,
        wanted: &ConsumerSpec,
    ) -> Result<(), ConsumerConflict> {
        let why = match (self.is_ephemeral(), self.mode()) {
            (true, _) => Some("ephemeral"),
            (false, AccessMode::SingleNodeSingleWriter) => Some("for a single writer"),
            (false, _) => None,
        };
        for holder in existing {
            if holder.id() == wanted.id() {
                if holder.target_path() == wanted.target_path() {
                    match holder.difference(wanted) {
                        None => continue,
                        Some(field) => {
                            return Err(ConsumerConflict::Changed { id: wanted.id().clone(), field });
                        }
                    }
                }
                return Err(ConsumerConflict::Moved {
                    id: wanted.id().clone(),
                    found: holder.target_path().clone(),
                    wanted: wanted.target_path().clone(),
                });
            }
            if let Some(why) = why {
                return Err(ConsumerConflict::Exclusive { why, holder: holder.id().clone() });
            }
            if holder.target_path() == wanted.target_path() {
                return Err(ConsumerConflict::Target {
                    target_path: wanted.target_path().clone(),
                    holder: holder.id().clone(),
                });
            }
        }
        Ok(())
    }
}

impl ConsumerSpec {
    /// What of it makes another publish, besides the target.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let uid = |consumer: &Self| consumer.pod_info().map(|pod| pod.uid().to_owned());
        [
            ("read_only", self.is_read_only() == other.is_read_only()),
            ("fs_group", self.own_fs_group() == other.own_fs_group()),
            ("pod uid", uid(self) == uid(other)),
        ]
        .into_iter()
        .find_map(|(field, same)| (!same).then_some(field))
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::{DriverName, VolumeId};

    use super::*;
    use crate::driver::{Access, PodInfo};
    use crate::name::VolumeKey;

    fn volume(mode: AccessMode) -> VolumeSpec {
        let key = VolumeKey { driver: DriverName::new("a").unwrap(), id: VolumeId::new("v").unwrap() };
        VolumeSpec::builder(key, Access::filesystem(), mode).build().unwrap()
    }

    fn consumer(id: &str, path: &str) -> ConsumerSpec {
        ConsumerSpec::new(ConsumerId::new(id).unwrap(), MountPath::new(path).unwrap())
    }

    #[test]
    fn only_a_single_writer_volume_refuses_a_second_consumer() {
        let (one, two) = (consumer("one", "/t/1"), consumer("two", "/t/2"));
        for mode in
            [AccessMode::SingleNodeWriter, AccessMode::SingleNodeMultiWriter, AccessMode::MultiNodeReaderOnly]
        {
            assert_eq!(volume(mode).conflicts([&one], &two), Ok(()), "{mode:?}");
        }
        let single = volume(AccessMode::SingleNodeSingleWriter);
        assert_eq!(single.conflicts([], &two), Ok(()));
        assert_eq!(single.conflicts([&one], &one), Ok(()));
        let refused = single.conflicts([&one], &two).unwrap_err();
        assert!(refused.to_string().contains("one has it"), "{refused}");
        let ephemeral = volume(AccessMode::SingleNodeWriter).to_builder().ephemeral().build().unwrap();
        assert!(matches!(ephemeral.conflicts([&one], &two), Err(ConsumerConflict::Exclusive { .. })));
    }

    #[test]
    fn a_consumer_that_comes_again_otherwise_is_a_conflict() {
        let volume = volume(AccessMode::MultiNodeMultiWriter);
        let one = consumer("one", "/t/1");
        for (other, differs) in [
            (one.clone().read_only(true), "read_only"),
            (one.clone().fs_group(5), "fs_group"),
            (one.clone().pod(PodInfo::new("p", "ns", "uid", "").unwrap()), "pod uid"),
        ] {
            let conflict = volume.conflicts([&one], &other).unwrap_err();
            assert!(matches!(conflict, ConsumerConflict::Changed { field, .. } if field == differs));
        }
    }

    #[test]
    fn a_target_has_one_consumer_and_a_consumer_one_target() {
        let volume = volume(AccessMode::MultiNodeMultiWriter);
        let one = consumer("one", "/t/1");
        assert!(matches!(
            volume.conflicts([&one], &consumer("two", "/t/1")),
            Err(ConsumerConflict::Target { .. })
        ));
        assert!(matches!(
            volume.conflicts([&one], &consumer("one", "/t/2")),
            Err(ConsumerConflict::Moved { .. })
        ));
    }
}

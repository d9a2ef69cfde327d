//! The durable record of the fsGroup jobs that were done in this boot.

use std::collections::BTreeSet;

use csi_proto::{DriverName, VolumeId};
use prost::Message;
use volume_manager::driver::MountPath;
use volume_manager::store::BootId;
use volume_manager::{ConsumerId, VolumeKey};

use super::super::super::store::{Document, TableError};
use super::job::FsGroupJob;
use super::tree::FsGroup;
use crate::generated::groups as stored;

/// The record of done fsGroup jobs, valid for one boot.
#[derive(Debug, Clone)]
pub(in super::super) struct DoneGroups {
    document: Document,
    boot: BootId,
}

impl DoneGroups {
    pub(in super::super) fn new(document: Document, boot: BootId) -> Self {
        Self { document, boot }
    }

    /// Returns the jobs done in this boot; none if the record cannot be read. A repeated job does no harm.
    pub(super) fn load(&self) -> BTreeSet<FsGroupJob> {
        let lost = "the record of done fsGroup jobs is unreadable, so the jobs run again";
        let decode = |bytes: &[u8]| stored::Done::decode(bytes).map_err(|error| error.to_string());
        match self.document.load(lost, decode) {
            Ok(Some(saved)) if saved.boot == self.boot.as_str() => {
                saved.volumes.into_iter().filter_map(job).collect()
            }
            Ok(_) => BTreeSet::new(),
            Err(error) => {
                tracing::warn!("--state-dir: {lost}: {error}");
                BTreeSet::new()
            }
        }
    }

    /// Writes the done jobs. They are on the disk when this returns.
    pub(super) async fn save(&self, done: &BTreeSet<FsGroupJob>) -> Result<(), TableError> {
        let (boot, volumes) =
            (self.boot.as_str().to_owned(), done.iter().map(stored::Volume::from).collect());
        self.document.save_from(move || stored::Done { boot, volumes }.encode_to_vec()).await
    }
}

impl From<&FsGroupJob> for stored::Volume {
    fn from(job: &FsGroupJob) -> Self {
        Self {
            driver: job.key.driver.to_string(),
            id: job.key.id.to_string(),
            consumer: job.consumer.to_string(),
            target: job.target.to_string(),
            group: job.fs_group.group,
            only_if_root_differs: job.fs_group.only_if_root_differs,
        }
    }
}

fn job(volume: stored::Volume) -> Option<FsGroupJob> {
    let key =
        VolumeKey { driver: DriverName::new(&volume.driver).ok()?, id: VolumeId::new(&volume.id).ok()? };
    let (consumer, target) = (ConsumerId::new(&volume.consumer).ok()?, MountPath::new(volume.target).ok()?);
    let fs_group = FsGroup { group: volume.group, only_if_root_differs: volume.only_if_root_differs };
    Some(FsGroupJob { key, consumer, target, fs_group })
}

#[cfg(test)]
mod tests {
    use super::super::super::super::store::AgentStore;
    use super::*;

    #[tokio::test]
    async fn done_jobs_are_valid_for_their_boot_only() {
        let directory = tempfile::tempdir().unwrap();
        let document = AgentStore::open(directory.path()).unwrap().groups;
        let boots = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"];
        let [first, second] = boots.map(|boot| DoneGroups::new(document.clone(), boot.parse().unwrap()));
        assert_eq!(first.load(), BTreeSet::new());
        let job = |group| FsGroupJob {
            key: VolumeKey { driver: DriverName::new("d.example").unwrap(), id: VolumeId::new("v").unwrap() },
            consumer: ConsumerId::new("9f0c/data").unwrap(),
            target: MountPath::new("/pods/9f0c/mount").unwrap(),
            fs_group: FsGroup { group, only_if_root_differs: group == 8 },
        };
        let done = BTreeSet::from([job(7), job(8)]);
        first.save(&done).await.unwrap();
        assert_eq!(first.load(), done);
        assert_eq!(second.load(), BTreeSet::new());
        document.save(b"torn").unwrap();
        assert_eq!(first.load(), BTreeSet::new());
        first.save(&done).await.unwrap();
        assert_eq!(first.load(), done);
    }
}

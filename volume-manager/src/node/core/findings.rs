//! What is seen of a call at a path and in the mount table.

use super::event::{LookError, Sight};
use crate::lifecycle::{Failure, Mismatch};
use crate::mounts::{DeviceNumber, Expectation, MountIdentity, MountTable, Presence, Verdict, held, verdict};

use std::path::Path;

/// What was seen, and is as expected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Only one that the table has under the very path, so that the table alone can tell when it is lost.
    pub(super) mount: Option<MountIdentity>,
    /// The block device that was seen as it should be.
    pub(super) device: Option<DeviceNumber>,
    /// What was left at the path, and is no mount.
    pub(super) left: Option<Presence>,
}

/// What was seen is not as expected, in words too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unfit {
    pub(super) failure: Failure,
    pub(super) words: String,
}

impl Unfit {
    pub(super) fn new(failure: Failure, words: impl Into<String>) -> Self {
        Self { failure, words: words.into() }
    }
}

impl From<&LookError> for Unfit {
    fn from(error: &LookError) -> Self {
        Self::new(Failure::Unchecked, crate::excerpt::chain(error))
    }
}

/// What is to be at a target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) block: bool,
    pub(super) read_only: bool,
    /// What was there before, if it was published before.
    pub(super) before: Option<&'a MountIdentity>,
    /// The same of a block volume.
    pub(super) device: Option<DeviceNumber>,
    /// What is staged, if it has to be on the same device.
    pub(super) staged: Option<&'a MountIdentity>,
    /// Whether a directory without a mount will not do.
    pub(super) mount: bool,
}

/// After NodeStageVolume. A driver need not mount anything there; if it did before, it has to again.
pub(super) fn staged(
    path: &Path,
    before: Option<&MountIdentity>,
    block: bool,
    sight: &Sight,
) -> Result<Found, Unfit> {
    let Sight { table, inspection } = sight;
    let mount = table.at(path).or_else(|| table.by_id(inspection.as_ref()?.mount?));
    if mount.is_none() && (before.is_none() || block) {
        return match inspection.map(|inspection| inspection.presence) {
            Some(Presence::Hung) => Err(Unfit::new(Failure::Unchecked, "the staging path does not answer")),
            _ => Ok(Found::default()),
        };
    }
    let mut expectation = Expectation::file_system(path);
    if let Some(before) = before {
        expectation = expectation.identity(before.clone());
    }
    upward(&sight.verdict(&expectation))?;
    Ok(Found { mount: table.at(path).map(MountIdentity::of), ..Found::default() })
}

/// After NodePublishVolume.
pub(super) fn published(path: &Path, wanted: Wanted<'_>, sight: &Sight) -> Result<Found, Unfit> {
    let presence = sight.inspection.map(|inspection| inspection.presence);
    if wanted.block {
        let mut expectation = Expectation::block_device(path);
        if let Some(device) = wanted.device {
            expectation = expectation.device(device);
        }
        upward(&sight.verdict(&expectation))?;
        let device = match presence {
            Some(Presence::BlockDevice(device)) => Some(device),
            _ => None,
        };
        return Ok(Found { device, ..Found::default() });
    }
    let mut expectation = Expectation::file_system(path);
    if wanted.read_only {
        expectation = expectation.read_only(true);
    }
    if let Some(before) = wanted.before {
        expectation = expectation.identity(before.clone());
    } else if let Some(staged) = wanted.staged {
        expectation = expectation.device(staged.device);
    }
    let verdict = sight.verdict(&expectation);
    if !wanted.mount && verdict == Verdict::NothingMounted(Presence::Directory) {
        return Ok(Found::default());
    }
    upward(&verdict)?;
    Ok(Found { mount: sight.table.at(path).map(MountIdentity::of), ..Found::default() })
}

fn upward(verdict: &Verdict) -> Result<(), Unfit> {
    let failure = match verdict {
        Verdict::AsExpected => return Ok(()),
        Verdict::NothingMounted(_)
        | Verdict::MissingPath
        | Verdict::RegularFileAtTarget { .. }
        | Verdict::UnfitTarget(_) => Failure::Contradicted(Mismatch::Missing),
        // What is beneath another mount is not lost, and what is above it is not ours to undo.
        Verdict::Unreachable | Verdict::NotLookedAt | Verdict::Covered { .. } | Verdict::Hidden { .. } => {
            Failure::Unchecked
        }
        _ => Failure::Contradicted(Mismatch::Wrong),
    };
    Err(Unfit::new(failure, words(verdict)))
}

/// After NodeUnpublishVolume and NodeUnstageVolume.
pub(super) fn gone(path: &Path, sight: &Sight) -> Result<Found, Unfit> {
    let failure = match sight.verdict(&Expectation::nothing(path)) {
        Verdict::AsExpected => return Ok(Found::default()),
        // It is no mount, so nothing of the volume is there. What is left is not ours to delete.
        Verdict::Leftover(left) => return Ok(Found { left: Some(left), ..Found::default() }),
        verdict @ (Verdict::Unreachable | Verdict::NotLookedAt) => {
            return Err(Unfit::new(Failure::Unchecked, words(&verdict)));
        }
        verdict => words(&verdict),
    };
    Err(Unfit::new(Failure::Contradicted(Mismatch::StillThere), failure))
}

/// Before NodeUnstageVolume.
pub(super) fn unused(
    staging: &Path,
    before: Option<&MountIdentity>,
    known: impl Fn(&Path) -> bool,
    table: &MountTable,
) -> Result<(), Unfit> {
    let found = match held(staging, before, table, known) {
        Verdict::AsExpected => return Ok(()),
        Verdict::ForeignBind { mount_points } => {
            let places: Vec<_> = mount_points.iter().take(3).map(|at| at.display().to_string()).collect();
            format!("it is bound at {}", places.join(", "))
        }
        // An unmount would meet the mount above it.
        verdict => words(&verdict),
    };
    Err(Unfit::new(Failure::InUse, found))
}

/// Whether a mount that was seen before is gone or is another; what is merely covered or read-only is not touched.
pub(super) fn is_lost(path: &Path, before: &MountIdentity, table: &MountTable) -> bool {
    let expectation = Expectation::file_system(path).identity(before.clone());
    matches!(
        verdict(&expectation, table, None),
        Verdict::NotLookedAt
            | Verdict::NothingMounted(_)
            | Verdict::MissingPath
            | Verdict::AnotherDevice { .. }
            | Verdict::AnotherRoot { .. }
            | Verdict::AnotherType { .. }
    )
}

/// Whether the server of a mount that was seen before is gone. That of one that lies over it says nothing.
pub(super) fn is_dead(path: &Path, before: &MountIdentity, sight: &Sight) -> bool {
    let expectation = Expectation::file_system(path).identity(before.clone());
    matches!(sight.verdict(&expectation), Verdict::DeadMount { .. })
}

impl Sight {
    fn verdict(&self, expectation: &Expectation) -> Verdict {
        verdict(expectation, &self.table, self.inspection.as_ref())
    }
}

fn words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::NothingMounted(presence) => format!("nothing is mounted over {presence}"),
        Verdict::MissingPath => "the path is missing".to_owned(),
        Verdict::Unreachable => "the path does not answer".to_owned(),
        Verdict::NotLookedAt => "the path was not looked at".to_owned(),
        Verdict::Covered { by, .. } => format!("mount {by} lies over it; take that away"),
        Verdict::Hidden { .. } => "a mount of a directory above hides it; take that away".to_owned(),
        Verdict::DeviceLeft(device) => format!("the block device {device} is still there"),
        Verdict::AnotherDevice { expected, found } => format!("device {found} is there, and not {expected}"),
        Verdict::AnotherRoot { expected, found } => {
            format!("{} of the file system is there, and not {}", found.display(), expected.display())
        }
        Verdict::AnotherType { expected, found } => format!("a {found} is mounted, and not a {expected}"),
        Verdict::OptionsDiffer { read_only: true } => "the mount is read-only".to_owned(),
        Verdict::OptionsDiffer { read_only: false } => "the mount can be written".to_owned(),
        Verdict::StackedMounts { count } => format!("{count} mounts lie on each other"),
        Verdict::StillMounted { .. } => "it is still mounted".to_owned(),
        Verdict::RegularFileAtTarget { size } => format!("a file of {size} bytes is there"),
        Verdict::UnfitTarget(presence) | Verdict::Leftover(presence) => format!("{presence} is there"),
        Verdict::DeadMount { .. } => "the mount is dead: its server is gone".to_owned(),
        verdict => format!("{verdict:?}"),
    }
}

//! What a look at the mount table means for the lifecycle.

use super::event::Sight;
use crate::lifecycle::Finding;
use crate::mounts::{
    DeviceNumber, Expectation, Inspection, MountIdentity, MountTable, Presence, Verdict, held, verdict,
};

use std::path::Path;

/// A finding, what was found in words if it is not as expected, and which mount was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) finding: Finding,
    pub(super) words: Option<String>,
    /// Only one that the table has under the very path, so that the table alone can tell when it is lost.
    pub(super) mount: Option<MountIdentity>,
    /// The block device that was seen as it should be.
    pub(super) device: Option<DeviceNumber>,
}

impl Found {
    fn agrees(mount: Option<MountIdentity>) -> Self {
        Self { finding: Finding::Agrees, words: None, mount, device: None }
    }

    fn not(finding: Finding, words: impl Into<String>) -> Self {
        Self { finding, words: Some(words.into()), mount: None, device: None }
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

fn parts(sight: &Sight) -> Result<(&MountTable, Option<&Inspection>), Found> {
    let table = match &sight.table {
        Ok(table) => table,
        Err(reason) => return Err(Found::not(Finding::Unknown, reason.clone())),
    };
    match &sight.inspection {
        Some(Err(reason)) => Err(Found::not(Finding::Unknown, reason.clone())),
        Some(Ok(inspection)) => Ok((table, Some(inspection))),
        None => Ok((table, None)),
    }
}

/// After NodeStageVolume. A driver need not mount anything there; if it did before, it has to again.
pub(super) fn staged(path: &Path, before: Option<&MountIdentity>, block: bool, sight: &Sight) -> Found {
    let (table, inspection) = match parts(sight) {
        Ok(parts) => parts,
        Err(found) => return found,
    };
    let mount = table.at(path).or_else(|| table.by_id(inspection?.mount?));
    if mount.is_none() && (before.is_none() || block) {
        return match inspection.map(|inspection| inspection.presence) {
            Some(Presence::Hung) => Found::not(Finding::Unknown, "the staging path does not answer"),
            _ => Found::agrees(None),
        };
    }
    let mut expectation = Expectation::file_system(path);
    if let Some(before) = before {
        expectation = expectation.identity(before.clone());
    }
    upward(&verdict(&expectation, table, inspection), table.at(path).map(MountIdentity::of))
}

/// After NodePublishVolume.
pub(super) fn published(path: &Path, wanted: Wanted<'_>, sight: &Sight) -> Found {
    let (table, inspection) = match parts(sight) {
        Ok(parts) => parts,
        Err(found) => return found,
    };
    if wanted.block {
        let mut expectation = Expectation::block_device(path);
        if let Some(device) = wanted.device {
            expectation = expectation.device(device);
        }
        let mut found = upward(&verdict(&expectation, table, inspection), None);
        found.device = match inspection.map(|inspection| inspection.presence) {
            Some(Presence::BlockDevice(device)) if found.finding == Finding::Agrees => Some(device),
            _ => None,
        };
        return found;
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
    let verdict = verdict(&expectation, table, inspection);
    if !wanted.mount && verdict == Verdict::NothingMounted(Presence::Directory) {
        return Found::agrees(None);
    }
    upward(&verdict, table.at(path).map(MountIdentity::of))
}

fn upward(verdict: &Verdict, mount: Option<MountIdentity>) -> Found {
    let finding = match verdict {
        Verdict::AsExpected => return Found::agrees(mount),
        Verdict::NothingMounted(_)
        | Verdict::MissingPath
        | Verdict::RegularFileAtTarget { .. }
        | Verdict::UnfitTarget(_) => Finding::Missing,
        // What is beneath another mount is not lost, and what is above it is not ours to undo.
        Verdict::Unreachable | Verdict::NotLookedAt | Verdict::Covered { .. } | Verdict::Hidden { .. } => {
            Finding::Unknown
        }
        _ => Finding::Wrong,
    };
    Found::not(finding, words(verdict))
}

/// After NodeUnpublishVolume and NodeUnstageVolume.
pub(super) fn gone(path: &Path, sight: &Sight) -> Found {
    let (table, inspection) = match parts(sight) {
        Ok(parts) => parts,
        Err(found) => return found,
    };
    match verdict(&Expectation::nothing(path), table, inspection) {
        Verdict::AsExpected => Found::agrees(None),
        // It is no mount, so nothing of the volume is there. What is left is not ours to delete.
        Verdict::Leftover(left) => Found {
            finding: Finding::Agrees,
            words: Some(format!("{left} was left at the path")),
            mount: None,
            device: None,
        },
        Verdict::Unreachable => Found::not(Finding::Unknown, "the path does not answer"),
        Verdict::NotLookedAt => Found::not(Finding::Unknown, words(&Verdict::NotLookedAt)),
        verdict => Found::not(Finding::StillThere, words(&verdict)),
    }
}

/// Before NodeUnstageVolume.
pub(super) fn unused(
    staging: &Path,
    before: Option<&MountIdentity>,
    known: impl Fn(&Path) -> bool,
    sight: &Sight,
) -> Found {
    let (table, _) = match parts(sight) {
        Ok(parts) => parts,
        Err(found) => return found,
    };
    match held(staging, before, table, known) {
        Verdict::AsExpected | Verdict::ShareUsedElsewhere { .. } => Found::agrees(None),
        Verdict::ForeignBind { mount_points } => {
            let places: Vec<_> = mount_points.iter().take(3).map(|at| at.display().to_string()).collect();
            Found::not(Finding::InUse, format!("it is bound at {}", places.join(", ")))
        }
        // An unmount would meet the mount above it.
        verdict => Found::not(Finding::InUse, words(&verdict)),
    }
}

/// Whether a mount that was seen before is gone or is another; what is merely covered or read-only is not touched.
pub(super) fn lost(path: &Path, before: &MountIdentity, table: &MountTable) -> Option<String> {
    let expectation = Expectation::file_system(path).identity(before.clone());
    let verdict = verdict(&expectation, table, None);
    match verdict {
        Verdict::NotLookedAt => Some("nothing is mounted there".to_owned()),
        Verdict::NothingMounted(_)
        | Verdict::MissingPath
        | Verdict::AnotherDevice { .. }
        | Verdict::AnotherRoot { .. }
        | Verdict::AnotherType { .. } => Some(words(&verdict)),
        _ => None,
    }
}

/// Whether the server of a mount that was seen before is gone. That of one that lies over it says nothing.
pub(super) fn dead(path: &Path, before: &MountIdentity, sight: &Sight) -> bool {
    let Ok((table, inspection)) = parts(sight) else { return false };
    let expectation = Expectation::file_system(path).identity(before.clone());
    matches!(verdict(&expectation, table, inspection), Verdict::DeadMount { .. })
}

fn words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::NothingMounted(presence) => format!("nothing is mounted over {presence}"),
        Verdict::MissingPath => "the path is missing".to_owned(),
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

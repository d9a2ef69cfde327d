//! Verification of calls against the mount table and the path.

use super::event::{CheckError, Observation};
use crate::lifecycle::{Failure, Mismatch};
use crate::mounts::{
    DeviceNumber, Expectation, MountCheck, MountIdentity, MountTable, PathState, check_mount, check_unused,
};

use std::path::Path;

/// A verified observation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Verified {
    /// The mount at exactly this path, so that the mount table alone shows its loss.
    pub(super) mount: Option<MountIdentity>,
    /// The verified block device.
    pub(super) device: Option<DeviceNumber>,
    /// Remaining content at the path that is not a mount.
    pub(super) leftover: Option<PathState>,
}

/// A failed verification, with a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckFailure {
    pub(super) failure: Failure,
    pub(super) description: String,
}

impl CheckFailure {
    pub(super) fn new(failure: Failure, description: impl Into<String>) -> Self {
        Self { failure, description: description.into() }
    }
}

impl From<&CheckError> for CheckFailure {
    fn from(error: &CheckError) -> Self {
        Self::new(Failure::Unchecked, crate::excerpt::chain(error))
    }
}

/// The expected mount at a target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'a> {
    pub(super) block: bool,
    pub(super) read_only: bool,
    /// The earlier mount, if the target was published before.
    pub(super) before: Option<&'a MountIdentity>,
    /// The earlier device of a block volume.
    pub(super) device: Option<DeviceNumber>,
    /// The staging mount, if the target must be on the same device.
    pub(super) staged: Option<&'a MountIdentity>,
    /// True if the target must be a mount.
    pub(super) must_be_mount: bool,
}

/// Verifies NodeStageVolume. A driver is not required to mount anything, unless it did before.
pub(super) fn verify_staged(
    path: &Path,
    before: Option<&MountIdentity>,
    block: bool,
    observation: &Observation,
) -> Result<Verified, CheckFailure> {
    let Observation { table, inspection } = observation;
    let mount = table.at(path).or_else(|| table.by_id(inspection.as_ref()?.mount?));
    if mount.is_none() && (before.is_none() || block) {
        return match inspection.map(|inspection| inspection.state) {
            Some(PathState::Hung) => {
                Err(CheckFailure::new(Failure::Unchecked, "the staging path does not respond"))
            }
            _ => Ok(Verified::default()),
        };
    }
    let mut expectation = Expectation::file_system(path);
    if let Some(before) = before {
        expectation = expectation.identity(before.clone());
    }
    verify_upward(&observation.check(&expectation))?;
    Ok(Verified { mount: table.at(path).map(MountIdentity::of), ..Verified::default() })
}

/// Verifies NodePublishVolume.
pub(super) fn verify_published(
    path: &Path,
    expected: Expected<'_>,
    observation: &Observation,
) -> Result<Verified, CheckFailure> {
    let state = observation.inspection.map(|inspection| inspection.state);
    if expected.block {
        let mut expectation = Expectation::block_device(path);
        if let Some(device) = expected.device {
            expectation = expectation.device(device);
        }
        verify_upward(&observation.check(&expectation))?;
        let device = match state {
            Some(PathState::BlockDevice(device)) => Some(device),
            _ => None,
        };
        return Ok(Verified { device, ..Verified::default() });
    }
    let mut expectation = Expectation::file_system(path);
    if expected.read_only {
        expectation = expectation.read_only(true);
    }
    if let Some(before) = expected.before {
        expectation = expectation.identity(before.clone());
    } else if let Some(staged) = expected.staged {
        expectation = expectation.device(staged.device);
    }
    let check = observation.check(&expectation);
    if !expected.must_be_mount && check == MountCheck::NotMounted(PathState::Directory) {
        return Ok(Verified::default());
    }
    verify_upward(&check)?;
    Ok(Verified { mount: observation.table.at(path).map(MountIdentity::of), ..Verified::default() })
}

fn verify_upward(check: &MountCheck) -> Result<(), CheckFailure> {
    let failure = match check {
        MountCheck::AsExpected => return Ok(()),
        MountCheck::NotMounted(_)
        | MountCheck::MissingPath
        | MountCheck::RegularFileAtTarget { .. }
        | MountCheck::InvalidTarget(_) => Failure::Contradicted(Mismatch::Missing),
        // A mount below another one is not lost, and the upper one is foreign and must not be undone.
        MountCheck::Unreachable
        | MountCheck::NotInspected
        | MountCheck::Overmounted { .. }
        | MountCheck::Shadowed { .. } => Failure::Unchecked,
        _ => Failure::Contradicted(Mismatch::Wrong),
    };
    Err(CheckFailure::new(failure, description(check)))
}

/// Verifies NodeUnpublishVolume and NodeUnstageVolume.
pub(super) fn verify_unmounted(path: &Path, observation: &Observation) -> Result<Verified, CheckFailure> {
    let failure = match observation.check(&Expectation::nothing(path)) {
        MountCheck::AsExpected => return Ok(Verified::default()),
        // The path is not a mount, so nothing of the volume remains. Foreign content is not deleted.
        MountCheck::StaleMountPoint(leftover) => {
            return Ok(Verified { leftover: Some(leftover), ..Verified::default() });
        }
        check @ (MountCheck::Unreachable | MountCheck::NotInspected) => {
            return Err(CheckFailure::new(Failure::Unchecked, description(&check)));
        }
        check => description(&check),
    };
    Err(CheckFailure::new(Failure::Contradicted(Mismatch::StillThere), failure))
}

/// Checks before NodeUnstageVolume that no foreign mount uses the staging path.
pub(super) fn verify_not_in_use(
    staging: &Path,
    before: Option<&MountIdentity>,
    known: impl Fn(&Path) -> bool,
    table: &MountTable,
) -> Result<(), CheckFailure> {
    let found = match check_unused(staging, before, table, known) {
        MountCheck::AsExpected => return Ok(()),
        MountCheck::ForeignBind { mount_points } => {
            let places: Vec<_> = mount_points.iter().take(3).map(|at| at.display().to_string()).collect();
            format!("the staging path is bind mounted at {}; unmount it there", places.join(", "))
        }
        // An unmount would remove the upper mount.
        check => description(&check),
    };
    Err(CheckFailure::new(Failure::InUse, found))
}

/// Returns whether an earlier mount is missing or replaced. A mount that is only covered or read-only is not lost.
pub(super) fn is_lost(path: &Path, before: &MountIdentity, table: &MountTable) -> bool {
    let expectation = Expectation::file_system(path).identity(before.clone());
    matches!(
        check_mount(&expectation, table, None),
        MountCheck::NotInspected
            | MountCheck::NotMounted(_)
            | MountCheck::MissingPath
            | MountCheck::WrongDevice { .. }
            | MountCheck::WrongRoot { .. }
            | MountCheck::WrongFsType { .. }
    )
}

/// Returns whether the server of an earlier mount is dead. A dead mount above it does not count.
pub(super) fn is_dead(path: &Path, before: &MountIdentity, observation: &Observation) -> bool {
    let expectation = Expectation::file_system(path).identity(before.clone());
    matches!(observation.check(&expectation), MountCheck::DeadMount { .. })
}

impl Observation {
    fn check(&self, expectation: &Expectation) -> MountCheck {
        check_mount(expectation, &self.table, self.inspection.as_ref())
    }
}

fn description(check: &MountCheck) -> String {
    match check {
        MountCheck::NotMounted(state) => format!("nothing is mounted on {state}"),
        MountCheck::MissingPath => "the path is missing".to_owned(),
        MountCheck::Unreachable => "the path does not respond".to_owned(),
        MountCheck::NotInspected => "the path was not inspected".to_owned(),
        MountCheck::Overmounted { by, .. } => format!("overmounted by mount {by}; unmount it"),
        MountCheck::Shadowed { .. } => "hidden by a mount on a parent directory; unmount it".to_owned(),
        MountCheck::StaleDevice(device) => format!("block device {device} still exists"),
        MountCheck::WrongDevice { expected, found } => format!("found device {found}, expected {expected}"),
        MountCheck::WrongRoot { expected, found } => {
            format!("found directory {} of the file system, expected {}", found.display(), expected.display())
        }
        MountCheck::WrongFsType { expected, found } => {
            format!("found file system {found}, expected {expected}")
        }
        MountCheck::OptionsDiffer { read_only: true } => {
            "the mount is read-only, expected a writable mount".to_owned()
        }
        MountCheck::OptionsDiffer { read_only: false } => {
            "the mount is writable, expected a read-only mount".to_owned()
        }
        MountCheck::StackedMounts { count } => format!("{count} mounts are stacked, expected one"),
        MountCheck::StillMounted { .. } => "the path is still mounted".to_owned(),
        MountCheck::RegularFileAtTarget { size } => {
            format!("found a file of {size} bytes, expected the volume")
        }
        MountCheck::InvalidTarget(state) | MountCheck::StaleMountPoint(state) => format!("found {state}"),
        MountCheck::DeadMount { .. } => "the mount is dead; its server has exited".to_owned(),
        check => format!("{check:?}"),
    }
}

//! The mount table, with lookups.

mod holders;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{DeviceNumber, Mount, MountId};

/// A snapshot of `/proc/self/mountinfo`. Its paths are the kernel's: without symbolic links, and relative to the root directory
/// of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
    by_id: HashMap<MountId, usize>,
    by_point: HashMap<PathBuf, Vec<usize>>,
    by_device: HashMap<DeviceNumber, Vec<usize>>,
    /// For each mount, whether another one is mounted directly on top of it.
    covered: Vec<bool>,
}

/// Why bytes are not a valid mount table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMountTable {
    /// The text is too long.
    #[error("the mount table has more than {} bytes; check what mounts continuously", MountTable::MAX_BYTES)]
    TooLong,
    /// There are too many mounts.
    #[error(
        "the mount table has more than {} mounts; check what mounts continuously",
        MountTable::MAX_MOUNTS
    )]
    TooMany,
    /// A line is too long.
    #[error(
        "line {line} of the mount table has {found} bytes; at most {} are allowed",
        Mount::MAX_LINE_BYTES
    )]
    LongLine {
        /// The line, from 1.
        line: usize,
        /// The number of bytes.
        found: usize,
    },
    /// A field is missing or invalid.
    #[error(
        "line {line} of the mount table: the field `{field}` is missing or invalid; see proc(5) for the format"
    )]
    Field {
        /// The line, from 1.
        line: usize,
        /// The field.
        field: &'static str,
    },
    /// Two lines have the same id.
    #[error("line {line} of the mount table: duplicate mount id {id}")]
    DuplicateId {
        /// The line, from 1.
        line: usize,
        /// The id.
        id: MountId,
    },
}

impl MountTable {
    /// The maximum size of a table: 64 MiB.
    pub const MAX_BYTES: usize = 64 * 1024 * 1024;

    /// The maximum number of mounts: the kernel's default limit per mount namespace (`fs.mount-max`).
    pub const MAX_MOUNTS: usize = 100_000;

    /// Parses the text of a `mountinfo` file.
    ///
    /// # Errors
    /// If the text is too long, or a line does not have the format of proc(5). Invalid lines are not skipped: a missing line
    /// would appear as an unmounted volume.
    pub fn parse(text: &[u8]) -> Result<Self, InvalidMountTable> {
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidMountTable::TooLong);
        }
        let mut mounts = Vec::new();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let number = index + 1;
            if line.len() > Mount::MAX_LINE_BYTES {
                return Err(InvalidMountTable::LongLine { line: number, found: line.len() });
            }
            if mounts.len() == Self::MAX_MOUNTS {
                return Err(InvalidMountTable::TooMany);
            }
            let mount = Mount::parse(line);
            mounts.push((number, mount.map_err(|field| InvalidMountTable::Field { line: number, field })?));
        }
        let mut by_id = HashMap::with_capacity(mounts.len());
        for (index, (line, mount)) in mounts.iter().enumerate() {
            if by_id.insert(mount.id, index).is_some() {
                return Err(InvalidMountTable::DuplicateId { line: *line, id: mount.id });
            }
        }
        Ok(Self::indexed(mounts.into_iter().map(|(_, mount)| mount).collect(), by_id))
    }

    /// Builds a table of mounts with distinct ids.
    #[cfg(feature = "testing")]
    pub(super) fn of(mounts: Vec<Mount>) -> Self {
        let by_id = mounts.iter().enumerate().map(|(index, mount)| (mount.id, index)).collect();
        Self::indexed(mounts, by_id)
    }

    fn indexed(mounts: Vec<Mount>, by_id: HashMap<MountId, usize>) -> Self {
        let mut by_point: HashMap<PathBuf, Vec<usize>> = HashMap::with_capacity(mounts.len());
        let mut by_device: HashMap<DeviceNumber, Vec<usize>> = HashMap::new();
        let mut covered = vec![false; mounts.len()];
        for (index, mount) in mounts.iter().enumerate() {
            by_device.entry(mount.device).or_default().push(index);
            match by_point.get_mut(&mount.mount_point) {
                Some(at) => at.push(index),
                None => {
                    by_point.insert(mount.mount_point.clone(), vec![index]);
                }
            }
            if mount.parent != mount.id
                && let Some(&below) = by_id.get(&mount.parent)
                && mounts[below].mount_point == mount.mount_point
            {
                covered[below] = true;
            }
        }
        Self { mounts, by_id, by_point, by_device, covered }
    }

    /// Every mount, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// The number of mounts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mounts.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    /// The mount with an id.
    #[must_use]
    pub fn by_id(&self, id: MountId) -> Option<&Mount> {
        self.by_id.get(&id).map(|&index| &self.mounts[index])
    }

    /// The mount that an open of the path reaches: the topmost one at exactly this path that no mount on a parent directory
    /// hides.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.by_point
            .get(path)?
            .iter()
            .rev()
            .filter(|&&index| !self.covered[index])
            .map(|&index| &self.mounts[index])
            .find(|mount| self.is_reachable(mount))
    }

    /// The mounts stacked at exactly this path, from the topmost down. More than one is usually the result of a driver that
    /// mounts again on each call.
    #[must_use]
    pub fn stack(&self, path: &Path) -> Vec<&Mount> {
        let mut stack: Vec<&Mount> = self.at(path).into_iter().collect();
        while let Some(below) = stack.last().and_then(|mount| self.below(mount)) {
            if below.mount_point != path || stack.len() == self.len() {
                break;
            }
            stack.push(below);
        }
        stack
    }

    /// All mounts at or below a path, including hidden ones.
    pub fn within<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |mount| mount.mount_point.starts_with(path))
    }

    /// All mounts of a file system or of a part of it.
    pub fn of_device(&self, device: DeviceNumber) -> impl Iterator<Item = &Mount> {
        self.by_device.get(&device).into_iter().flatten().map(|&index| &self.mounts[index])
    }

    /// All mounts at exactly this path, including hidden ones, in the order of the table.
    pub(super) fn exactly_at(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        self.by_point.get(path).into_iter().flatten().map(|&index| &self.mounts[index])
    }

    /// The mount that contains a path, whether the path exists or not: the one at the path, or at its nearest parent directory.
    #[must_use]
    pub fn covering(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|path| self.at(path))
    }

    /// The parent of a mount.
    fn below(&self, mount: &Mount) -> Option<&Mount> {
        if mount.parent == mount.id { None } else { self.by_id(mount.parent) }
    }

    /// Whether no mount on a parent directory hides the mount.
    fn is_reachable(&self, mount: &Mount) -> bool {
        let mut upper = mount;
        // A corrupt table could contain a cycle.
        for _ in 0..=self.len() {
            let Some(lower) = self.below(upper) else { return true };
            let parents = upper.mount_point.ancestors().skip(1);
            let parents = parents.take_while(|path| path.starts_with(&lower.mount_point));
            for path in parents {
                let here = self.by_point.get(path).into_iter().flatten();
                if here.map(|&index| &self.mounts[index]).any(|m| m.parent == lower.id && m.id != lower.id) {
                    return false;
                }
            }
            upper = lower;
        }
        false
    }
}

//! All mounts, and what can be asked of them.

mod holders;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{DeviceNumber, Mount, MountId};

/// The mounts of one moment, as `/proc/self/mountinfo` has them. Paths are as the kernel knows them: without symbolic
/// links, and seen from the root directory of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
    by_id: HashMap<MountId, usize>,
    by_point: HashMap<PathBuf, Vec<usize>>,
    by_device: HashMap<DeviceNumber, Vec<usize>>,
    /// Whether another mount lies on exactly the same place, for each of the mounts.
    covered: Vec<bool>,
}

/// Why bytes are no mount table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMountTable {
    /// The text is too long.
    #[error("the mount table has more than {} bytes; find what mounts without end", MountTable::MAX_BYTES)]
    TooLong,
    /// There are too many mounts.
    #[error("the mount table has more than {} mounts; find what mounts without end", MountTable::MAX_MOUNTS)]
    TooMany,
    /// A line is too long.
    #[error(
        "line {line} of the mount table has {found} bytes; at most {} are allowed",
        Mount::MAX_LINE_BYTES
    )]
    LongLine {
        /// The line, from 1.
        line: usize,
        /// How many bytes it has.
        found: usize,
    },
    /// A line has no such field, or one that cannot be read.
    #[error(
        "line {line} of the mount table: the field `{field}` is missing or cannot be read; proc(5) has the form"
    )]
    Field {
        /// The line, from 1.
        line: usize,
        /// The field.
        field: &'static str,
    },
    /// Two lines have one id.
    #[error("line {line} of the mount table: the mount id {id} was there before")]
    DoubledId {
        /// The line, from 1.
        line: usize,
        /// The id.
        id: MountId,
    },
}

impl MountTable {
    /// The most bytes that are read as a table: 64 MiB.
    pub const MAX_BYTES: usize = 64 * 1024 * 1024;

    /// The most mounts: what the kernel allows in a namespace unless it is told otherwise (`fs.mount-max`).
    pub const MAX_MOUNTS: usize = 100_000;

    /// Reads the text of a `mountinfo` file.
    ///
    /// # Errors
    /// If it is too long, or a line is not as proc(5) has it. Nothing is guessed: a mount that was left out would look
    /// like one that is gone.
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
                return Err(InvalidMountTable::DoubledId { line: *line, id: mount.id });
            }
        }
        Ok(Self::indexed(mounts.into_iter().map(|(_, mount)| mount).collect(), by_id))
    }

    /// Of mounts whose ids differ.
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

    /// How many mounts there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mounts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    /// The mount with an id.
    #[must_use]
    pub fn by_id(&self, id: MountId) -> Option<&Mount> {
        self.by_id.get(&id).map(|&index| &self.mounts[index])
    }

    /// The mount that who opens the path gets: the topmost one that is exactly there and that nothing above hides.
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

    /// The mounts stacked exactly at a path, from the one seen first down. One or none is right; more come of a driver
    /// that mounts again on each call.
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

    /// Every mount of a path and of all below it, also those that another hides.
    pub fn within<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |mount| mount.mount_point.starts_with(path))
    }

    /// Every mount of a file system, wherever and of whatever part.
    pub fn of_device(&self, device: DeviceNumber) -> impl Iterator<Item = &Mount> {
        self.by_device.get(&device).into_iter().flatten().map(|&index| &self.mounts[index])
    }

    /// Every mount exactly at a path, also those that others cover or hide, in the order of the table.
    pub(super) fn exactly_at(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        self.by_point.get(path).into_iter().flatten().map(|&index| &self.mounts[index])
    }

    /// The mount that a path is in, whether it is there or not: the one at it, or at the nearest directory above.
    #[must_use]
    pub fn covering(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|path| self.at(path))
    }

    /// The mount that another is mounted on.
    fn below(&self, mount: &Mount) -> Option<&Mount> {
        if mount.parent == mount.id { None } else { self.by_id(mount.parent) }
    }

    /// Whether the way to the mount is not covered by a mount above it.
    fn is_reachable(&self, mount: &Mount) -> bool {
        let mut upper = mount;
        // A table that was tampered with could lead round in a circle.
        for _ in 0..=self.len() {
            let Some(lower) = self.below(upper) else { return true };
            let on_the_way = upper.mount_point.ancestors().skip(1);
            let on_the_way = on_the_way.take_while(|path| path.starts_with(&lower.mount_point));
            for path in on_the_way {
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

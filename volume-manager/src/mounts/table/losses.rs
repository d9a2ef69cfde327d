//! What two tables say was lost between them.

use std::path::{Path, PathBuf};

use super::super::{Mount, MountIdentity};
use super::MountTable;

/// What became of a mount.
#[allow(
    clippy::exhaustive_enums,
    reason = "what was seen at a path is there, not there, or behind something"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LossKind {
    /// Nothing is mounted there any more, or a mount of a directory above hides it.
    Gone,
    /// Another mount is there.
    Replaced,
    /// It is there, and another mount lies on it.
    Covered,
    /// It is the same file system, which now can be only read. A file system turns itself so when its disk fails.
    TurnedReadOnly,
}

/// A mount that was at a path and is not seen there any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Loss {
    /// Where.
    pub path: PathBuf,
    /// What became of it.
    pub kind: LossKind,
    /// What was there.
    pub was: Mount,
    /// What is there now.
    pub now: Option<Mount>,
}

/// Which of the watched paths had a mount before and have it no more.
///
/// A mount of the same part of the same file system in its place, under another id or of a source that is worded otherwise,
/// is no loss: somebody healed it.
pub fn losses<'a>(
    before: &MountTable,
    after: &MountTable,
    watched: impl IntoIterator<Item = &'a Path>,
) -> Vec<Loss> {
    let lost = |path: &Path| {
        let was = before.at(path)?;
        let now = after.at(path);
        let kind = match now {
            None => LossKind::Gone,
            Some(now) if now.id != was.id && after.stack(path).iter().any(|mount| mount.id == was.id) => {
                LossKind::Covered
            }
            Some(now) if !MountIdentity::of(was).is_of(now) => LossKind::Replaced,
            Some(now) if now.is_read_only() && !was.is_read_only() => LossKind::TurnedReadOnly,
            Some(_) => return None,
        };
        Some(Loss { path: path.to_owned(), kind, was: was.clone(), now: now.cloned() })
    };
    watched.into_iter().filter_map(lost).collect()
}

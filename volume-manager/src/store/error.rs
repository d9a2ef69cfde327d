//! What can go wrong with a store.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Defect, QuarantineId, RecordKey};

/// What the disk's trouble is, as far as it matters for what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trouble {
    /// ENOSPC or EDQUOT: it ends when space is made.
    NoSpace,
    /// EROFS: the filesystem is read-only, often since the kernel found it damaged.
    ReadOnly,
    /// EIO: the device fails.
    Device,
    /// EMFILE or ENFILE: no file can be opened for now.
    TooManyFiles,
    /// EACCES or EPERM.
    Denied,
    /// Anything else.
    Other,
}

impl Trouble {
    /// The class of an error of the system.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        /// These have no kind of their own, and the same number on every Unix.
        const EIO: i32 = 5;
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, _) => Self::NoSpace,
            (io::ErrorKind::ReadOnlyFilesystem, _) => Self::ReadOnly,
            (io::ErrorKind::PermissionDenied, _) => Self::Denied,
            (_, Some(EIO)) => Self::Device,
            (_, Some(EMFILE | ENFILE)) => Self::TooManyFiles,
            _ => Self::Other,
        }
    }

    /// What helps.
    const fn remedy(self) -> &'static str {
        match self {
            Self::NoSpace => "free some space, then reopen the store",
            Self::ReadOnly => {
                "see the kernel's log, check the filesystem and mount it read-write, then reopen the store"
            }
            Self::Device => "see the kernel's log and check the device, then reopen the store",
            Self::TooManyFiles => "raise the limit of open files, or try again later",
            Self::Denied => "let this process read and write the file and its directory",
            Self::Other => "mend the cause, then reopen the store",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSpace => "no space is left",
            Self::ReadOnly => "the filesystem is read-only",
            Self::Device => "the device failed",
            Self::TooManyFiles => "too many files are open",
            Self::Denied => "it is not allowed",
            Self::Other => "the system refused",
        })
    }
}

/// Why a store did not do what it was asked for.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A bound would be exceeded. Nothing was written.
    #[error(
        "{key} is refused: there would be {found} {what}, and at most {most} are allowed; leave it out, or remove or discard \
         some that are not needed"
    )]
    Refused {
        /// The record that is to be left out.
        key: RecordKey,
        /// Of what there would be too much.
        what: &'static str,
        /// How much there would be.
        found: u64,
        /// How much is allowed.
        most: u64,
    },
    /// The store holds more than is loaded, which no store of this version writes.
    #[error(
        "the store has {found} {what} or more, and at most {bound} can be loaded; use the version that wrote it"
    )]
    TooLarge {
        /// Of what it has too much.
        what: &'static str,
        /// How much was seen.
        found: u64,
        /// How much is allowed.
        bound: u64,
    },
    /// There is no such quarantined record.
    #[error("no quarantined record is {id}; load the store again to see which there are")]
    NotQuarantined {
        /// What was asked for.
        id: QuarantineId,
    },
    /// A quarantined record cannot be a live one.
    #[error("the quarantined record {id} cannot be released: {reason}; keep it, or discard it")]
    NotReadable {
        /// What was asked for.
        id: QuarantineId,
        /// What is wrong with it.
        reason: Defect,
    },
    /// The key of a quarantined record has been written anew.
    #[error(
        "the quarantined record {id} cannot be released, since {key} has a record by now; remove that first"
    )]
    Occupied {
        /// What was asked for.
        id: QuarantineId,
        /// The key.
        key: RecordKey,
    },
    /// The disk failed while something was read or written. The store is stopped.
    #[error("{action} failed: {}; {}", Trouble::of(source), Trouble::of(source).remedy())]
    Disk {
        /// What was under way.
        action: &'static str,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The file's own structure is damaged, so that its records cannot be found. The store is stopped.
    #[error("{action} failed, since the file is damaged: {what}; {DAMAGE_REMEDY}")]
    Damaged {
        /// What was under way.
        action: &'static str,
        /// What was found.
        what: String,
    },
    /// An earlier failure has stopped the store. Nothing was read or written.
    #[error(
        "the store has stopped since an earlier failure; mend that, then reopen the store and load it again"
    )]
    Stopped {
        /// The earlier failure, with what helps.
        #[source]
        since: Box<Self>,
    },
    /// The store could not be opened again. It is stopped.
    #[error(transparent)]
    NotReopened(#[from] OpenError),
}

/// What helps when the structure of a file is damaged.
pub(super) const DAMAGE_REMEDY: &str =
    "keep the file, and start over with a new one, taking what can be salvaged of this one";

impl StoreError {
    /// An error of the system.
    pub(super) fn disk(action: &'static str, source: io::Error) -> Self {
        Self::Disk { action, source: Arc::new(source) }
    }

    /// What the disk's trouble is, if this is about the disk.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        match self {
            Self::Disk { source, .. } => Some(Trouble::of(source)),
            Self::Stopped { since } => since.trouble(),
            Self::NotReopened(error) => error.trouble(),
            _ => None,
        }
    }

    /// The record for which a commit was refused, though the disk is fine. Nothing was written; without the changes
    /// to this record the same commit succeeds, or names the next.
    #[must_use]
    pub const fn refused(&self) -> Option<&RecordKey> {
        match self {
            Self::Refused { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Whether the store accepts nothing until it is reopened.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self, Self::Disk { .. } | Self::Damaged { .. } | Self::Stopped { .. } | Self::NotReopened(_))
    }

    /// What every later call answers after this failure.
    pub(super) fn stopped(&self) -> Self {
        match self {
            Self::Stopped { .. } => self.clone(),
            other => Self::Stopped { since: Box::new(other.clone()) },
        }
    }
}

/// Why a store cannot be opened. Whatever records are on the disk are left as they are.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused.
    #[error("the store {} cannot be opened: {}; {}", path.display(), Trouble::of(source), Trouble::of(source).remedy())]
    Disk {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Another process has the store open.
    #[error("the store {} is in use; end the other process first, or use another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is a store, but its structure is damaged.
    #[error("the store {} is damaged: {what}; {DAMAGE_REMEDY}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// The file is not a store.
    #[error("{} is not a store of volumes: {what}; use another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// The file was laid out by a newer version.
    #[error("the store {} has layout {found}, and this version knows up to {supported}; use the newer version", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: u64,
        /// The newest layout that is known.
        supported: u64,
    },
    /// The file is a redb database of a format that this version cannot read. It may be a store of another version.
    #[error(
        "{} has redb's format {found}, and this version reads format {supported}; use the version that wrote it, or \
         another file",
        path.display()
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u8,
        /// The one that is known.
        supported: u8,
    },
}

impl OpenError {
    /// Names the file to an error of the system.
    pub(super) fn disk(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Disk { path: path.into(), source: Arc::new(source) }
    }

    /// What the disk's trouble is, if this is about the disk.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        match self {
            Self::Disk { source, .. } => Some(Trouble::of(source)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_of_the_disk_has_a_class_and_a_remedy_of_its_own() {
        let classes = [
            (28, Trouble::NoSpace),
            (30, Trouble::ReadOnly),
            (5, Trouble::Device),
            (24, Trouble::TooManyFiles),
            (23, Trouble::TooManyFiles),
            (13, Trouble::Denied),
            (22, Trouble::Other),
        ];
        for (number, trouble) in classes {
            let error = StoreError::disk("the commit", io::Error::from_raw_os_error(number));
            assert_eq!(error.trouble(), Some(trouble), "{number}");
            let text = error.to_string();
            assert!(text.contains(&trouble.to_string()) && text.contains(trouble.remedy()), "{text}");
            assert!(error.is_stopped());
            let later = error.stopped();
            assert_eq!(later.trouble(), Some(trouble));
            assert!(later.to_string().contains("reopen"), "{later}");
        }
    }
}

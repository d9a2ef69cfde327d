//! Errors of stores.

use std::fmt;
use std::io;
#[cfg(any(feature = "redb", feature = "testing"))]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Defect, QuarantineId, RecordKey};

/// The kind of a disk error, as far as the remedy depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DiskErrorKind {
    /// ENOSPC or EDQUOT: the disk or the quota is full.
    NoSpace,
    /// EROFS: the filesystem is read-only, often since the kernel found it corrupt.
    ReadOnly,
    /// EIO: the device failed.
    Device,
    /// EMFILE or ENFILE: too many files are open.
    TooManyFiles,
    /// EACCES or EPERM.
    Denied,
    /// Anything else.
    Other,
}

impl DiskErrorKind {
    /// Classifies a system error.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        /// Errors without an `ErrorKind`, with the same number on every Unix.
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

    /// The remedy, as a part of error messages.
    const fn remedy(self) -> &'static str {
        match self {
            Self::NoSpace => "free some space, then reopen the store",
            Self::ReadOnly => {
                "check the kernel log, repair the filesystem and mount it read-write, then reopen the store"
            }
            Self::Device => "check the kernel log and the device, then reopen the store",
            Self::TooManyFiles => "raise the limit of open files, or retry later",
            Self::Denied => "allow this process to read and write the file and its directory",
            Self::Other => "fix the cause, then reopen the store",
        }
    }
}

impl fmt::Display for DiskErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSpace => "no space is left",
            Self::ReadOnly => "the filesystem is read-only",
            Self::Device => "the device failed",
            Self::TooManyFiles => "too many files are open",
            Self::Denied => "permission denied",
            Self::Other => "a system call failed",
        })
    }
}

/// Why an operation of a store failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A limit would be exceeded. Nothing was written.
    #[error(
        "{key} is rejected: it would make {found} {what}, at most {most} are allowed; omit it, or remove or discard \
         records that are not needed"
    )]
    LimitExceeded {
        /// The rejected record.
        key: RecordKey,
        /// The limited resource.
        what: &'static str,
        /// The amount after the commit.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// The store has more records or bytes than can be loaded. Stores of this version never write that much.
    #[error(
        "the store has {found} {what} or more; at most {bound} can be loaded; use the version that wrote it"
    )]
    TooLarge {
        /// The limited resource.
        what: &'static str,
        /// The amount that was counted.
        found: u64,
        /// The limit.
        bound: u64,
    },
    /// The quarantined record does not exist.
    #[error("quarantined record {id} not found; load the store again for the current list")]
    NotQuarantined {
        /// The requested record.
        id: QuarantineId,
    },
    /// The quarantined record cannot be released, since it cannot be read.
    #[error("the quarantined record {id} cannot be released: {reason}; keep it, or discard it")]
    NotReadable {
        /// The requested record.
        id: QuarantineId,
        /// The defect.
        reason: Defect,
    },
    /// The key of the quarantined record has a newer record.
    #[error("the quarantined record {id} cannot be released: {key} has a newer record; remove that first")]
    Occupied {
        /// The requested record.
        id: QuarantineId,
        /// The key.
        key: RecordKey,
    },
    /// The disk failed during a read or write. The store is stopped.
    #[error("{action} failed: {}; {}", DiskErrorKind::of(source), DiskErrorKind::of(source).remedy())]
    Disk {
        /// The failed action.
        action: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The structure of the file is corrupt, so that its records cannot be found. The store is stopped.
    #[error("{action} failed: the file is corrupt: {what}; {DAMAGE_REMEDY}")]
    Damaged {
        /// The failed action.
        action: &'static str,
        /// The corruption found.
        what: String,
    },
    /// The store was stopped by an earlier failure. Nothing was read or written.
    #[error(
        "the store is stopped after an earlier failure; fix that, then reopen the store and load it again"
    )]
    Stopped {
        /// The earlier failure, with its remedy.
        #[source]
        since: Box<Self>,
    },
    /// The store could not be reopened. It is stopped.
    #[error(transparent)]
    NotReopened(#[from] OpenStoreError),
}

/// The remedy for a corrupt file.
pub(super) const DAMAGE_REMEDY: &str =
    "keep the file, and create a new one with the records salvaged from it";

impl StoreError {
    /// Wraps a system error, for an implementation of [`Rows`](super::Rows). `action` is what failed, such as `the commit`.
    #[must_use]
    pub fn disk(action: &'static str, source: io::Error) -> Self {
        Self::Disk { action, source: Arc::new(source) }
    }

    /// The kind of the disk error, if this is one.
    #[must_use]
    pub fn disk_error_kind(&self) -> Option<DiskErrorKind> {
        match self {
            Self::Disk { source, .. } => Some(DiskErrorKind::of(source)),
            Self::Stopped { since } => since.disk_error_kind(),
            Self::NotReopened(error) => error.disk_error_kind(),
            _ => None,
        }
    }

    /// The record whose limit was exceeded. Nothing was written. Without the changes to this record the same commit succeeds, or
    /// reports the next rejected record.
    #[must_use]
    pub const fn rejected_record(&self) -> Option<&RecordKey> {
        match self {
            Self::LimitExceeded { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Whether the store is stopped until it is reopened.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self, Self::Disk { .. } | Self::Damaged { .. } | Self::Stopped { .. } | Self::NotReopened(_))
    }

    /// The error of every later call after this failure.
    pub(super) fn stopped(&self) -> Self {
        match self {
            Self::Stopped { .. } => self.clone(),
            other => Self::Stopped { since: Box::new(other.clone()) },
        }
    }
}

/// Why a store could not be opened. The records on the disk are unchanged.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// A system call failed.
    #[error("the store {} cannot be opened: {}; {}", path.display(), DiskErrorKind::of(source), DiskErrorKind::of(source).remedy())]
    Disk {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Another process has the store open.
    #[error("the store {} is open in another process; stop that process, or use another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is a store, but its structure is corrupt.
    #[error("the store {} is corrupt: {what}; {DAMAGE_REMEDY}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The corruption found.
        what: String,
    },
    /// The file is not a store.
    #[error("{} is not a store of volumes: {what}; use another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The content found.
        what: String,
    },
    /// The file was written by a newer version.
    #[error("the store {} has layout {found}; this version supports up to {supported}; use the newer version", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The layout version.
        found: u64,
        /// The newest supported layout version.
        supported: u64,
    },
    /// The file is a redb database of an unsupported file format. It may be a store of another version.
    #[error(
        "{} has redb's file format {found}; this version supports {supported}; use the version that wrote it, or another file",
        path.display()
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The file format.
        found: u8,
        /// The supported file format.
        supported: u8,
    },
}

impl From<io::Error> for StoreError {
    /// Wraps a system error, for an implementation of [`Rows`](super::Rows). [`StoreError::disk`] also says what failed.
    fn from(source: io::Error) -> Self {
        Self::disk("an access to the rows", source)
    }
}

impl OpenStoreError {
    /// Wraps a system error with the path.
    #[cfg(any(feature = "redb", feature = "testing"))]
    pub(super) fn disk(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Disk { path: path.into(), source: Arc::new(source) }
    }

    /// The kind of the disk error, if this is one.
    #[must_use]
    pub fn disk_error_kind(&self) -> Option<DiskErrorKind> {
        match self {
            Self::Disk { source, .. } => Some(DiskErrorKind::of(source)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_error_has_a_kind_and_a_remedy() {
        let classes = [
            (28, DiskErrorKind::NoSpace),
            (30, DiskErrorKind::ReadOnly),
            (5, DiskErrorKind::Device),
            (24, DiskErrorKind::TooManyFiles),
            (23, DiskErrorKind::TooManyFiles),
            (13, DiskErrorKind::Denied),
            (22, DiskErrorKind::Other),
        ];
        for (number, kind) in classes {
            let error = StoreError::disk("the commit", io::Error::from_raw_os_error(number));
            assert_eq!(error.disk_error_kind(), Some(kind), "{number}");
            let text = error.to_string();
            assert!(text.contains(&kind.to_string()) && text.contains(kind.remedy()), "{text}");
            assert!(error.is_stopped());
            let later = error.stopped();
            assert_eq!(later.disk_error_kind(), Some(kind));
            assert!(later.to_string().contains("reopen"), "{later}");
        }
    }
}

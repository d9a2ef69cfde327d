//! Why the tree in memory refuses, in the numbers of Linux.

use std::io;
use std::path::Path;

use super::super::{Presence, Trouble};

/// The numbers of the errors that are told, as on Linux on all its architectures but MIPS, Alpha, PA-RISC and SPARC.
pub(super) mod errno {
    pub(in super::super) const ENOENT: i32 = 2;
    pub(in super::super) const EBUSY: i32 = 16;
    pub(in super::super) const EEXIST: i32 = 17;
    pub(in super::super) const ENOTDIR: i32 = 20;
    pub(in super::super) const EINVAL: i32 = 22;
    pub(in super::super) const EROFS: i32 = 30;
    pub(in super::super) const ETIMEDOUT: i32 = 110;

    /// Those by which a mount counts as dead: ENOTCONN, ESTALE, ECONNABORTED, ESHUTDOWN.
    pub(in super::super) const DEAD: [i32; 4] = [107, 116, 103, 108];
}

/// Why the tree refuses.
#[derive(Debug)]
pub(super) enum Refusal {
    /// As the system says it.
    Errno(i32),
    /// The way hangs.
    Hung,
    /// Something else is there.
    Found(Presence),
    /// No mount is there.
    NotMounted,
}

impl Refusal {
    pub(super) fn into_io(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Self::Errno(errno) => errno,
            Self::Hung => errno::ETIMEDOUT,
            Self::Found(Presence::Dead { errno }) => errno,
            Self::Found(_) => errno::EEXIST,
            Self::NotMounted => errno::EINVAL,
        })
    }

    pub(super) fn at(self, path: &Path) -> Trouble {
        match self {
            Self::Hung => Trouble::Hung { path: path.to_owned() },
            other => Trouble::Io { path: path.to_owned(), source: other.into_io() },
        }
    }
}

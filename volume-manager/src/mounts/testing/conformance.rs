//! What every implementation of [`Mounts`] must do, as a suite that any implementation can be put to.
//!
//! It runs on our own implementations, and is public for those of others:
//!
//! ```
//! use std::path::Path;
//! use volume_manager::mounts::conformance::{self, Ground};
//! use volume_manager::mounts::MemoryMounts;
//!
//! struct Memory(MemoryMounts);
//!
//! impl Ground for Memory {
//!     fn directory(&self) -> &Path { Path::new("/ground") }
//!     fn mount(&self, path: &Path) -> std::io::Result<()> {
//!         let fs = self.0.file_system("tmpfs", "tmpfs", true);
//!         self.0.mount(fs, path, false).map(|_| ())
//!     }
//!     fn bind(&self, source: &Path, target: &Path, read_only: bool) -> std::io::Result<()> {
//!         self.0.bind_over(source, target, read_only).map(|_| ())
//!     }
//!     fn unmount(&self, path: &Path) -> std::io::Result<()> {
//!         if self.0.detach(path) { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
//!     }
//!     fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> { self.0.write(path, bytes) }
//!     fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> { self.0.read(path) }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let mounts = MemoryMounts::new();
//! mounts.make_directory(Path::new("/ground"))?;
//! conformance::check(&mounts, &Memory(mounts.clone())).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};

use crate::mounts::{
    CreateError, Expectation, Inspection, InvalidMountPath, MountPath, Mounts, Presence, RemoveError,
    Removed, SafeRemoval, Verdict, verdict,
};

/// Where the suite runs, and what it needs besides the trait.
pub trait Ground: Send + Sync {
    /// An empty directory whose path has no link in it. The suite leaves it empty if all is well.
    fn directory(&self) -> &Path;

    /// Mounts a new, empty file system on a directory, also on top of another mount.
    ///
    /// # Errors
    /// If it cannot.
    fn mount(&self, path: &Path) -> io::Result<()>;

    /// Makes a bind mount of a directory on a directory, or of a file on a file.
    ///
    /// # Errors
    /// If it cannot.
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()>;

    /// Takes the topmost mount from a path.
    ///
    /// # Errors
    /// If it cannot, or nothing is mounted there.
    fn unmount(&self, path: &Path) -> io::Result<()>;

    /// Makes or overwrites a file.
    ///
    /// # Errors
    /// If it cannot; in a read-only mount it must not.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Reads a file.
    ///
    /// # Errors
    /// If it is not there.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

/// A rule that was broken.
#[derive(Debug, thiserror::Error)]
#[error("{rule}: {found}")]
#[non_exhaustive]
pub struct Violation {
    /// The rule, in a sentence.
    pub rule: &'static str,
    /// What was found instead.
    pub found: String,
}

type Outcome = Result<(), Violation>;

/// Puts an implementation to all rules, one after another, until one is broken.
///
/// # Errors
/// With the first rule that is broken. What the suite has made up to there is left where it is, to be looked at.
pub async fn check(mounts: &dyn Mounts, ground: &dyn Ground) -> Outcome {
    let suite = Suite { mounts, ground };
    suite.places_are_made_once().await?;
    suite.an_ordinary_entry_is_inspected().await?;
    suite.what_is_mounted_is_in_the_table_and_seen().await?;
    suite.a_stack_is_counted_from_the_top().await?;
    suite.a_bind_is_known_as_a_part_of_its_source().await?;
    suite.a_read_only_bind_is_seen_as_one().await?;
    suite.a_bound_file_is_no_device().await?;
    suite.only_what_is_empty_is_removed().await?;
    suite.a_removal_does_not_cross_a_mount().await?;
    suite.a_change_is_told().await
}

struct Suite<'a> {
    mounts: &'a dyn Mounts,
    ground: &'a dyn Ground,
}

fn broken(rule: &'static str, found: impl Debug) -> Violation {
    Violation { rule, found: format!("{found:?}") }
}

/// The value, or the rule that its absence breaks.
fn fine<T, E: Debug>(rule: &'static str, result: Result<T, E>) -> Result<T, Violation> {
    result.map_err(|error| broken(rule, error))
}

fn same<T: PartialEq + Debug>(rule: &'static str, found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(broken(rule, found)) }
}

fn path<T>(request: Result<T, InvalidMountPath>) -> Result<T, Violation> {
    fine("the directory of the ground is an absolute path in its shortest form", request)
}

impl Suite<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.ground.directory().join(name)
    }

    async fn make(&self, at: &Path) -> Outcome {
        let made = self.mounts.create_directory(&path(MountPath::new(at))?).await;
        fine("a directory is made", made)?;
        same("a directory that was made is there", self.inspect(at).await?.presence, Presence::Directory)
    }

    async fn place(&self, name: &str) -> Result<PathBuf, Violation> {
        let place = self.at(name);
        self.make(&place).await?;
        Ok(place)
    }

    async fn inspect(&self, at: &Path) -> Result<Inspection, Violation> {
        fine("a path is inspected", self.mounts.inspect(at).await)
    }

    fn mount(&self, at: &Path) -> Outcome {
        fine("the ground mounts", self.ground.mount(at))
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Outcome {
        fine("the ground binds", self.ground.bind(source, target, read_only))
    }

    fn unmount(&self, at: &Path) -> Outcome {
        fine("the ground unmounts", self.ground.unmount(at))
    }

    fn write(&self, at: &Path, bytes: &[u8]) -> Outcome {
        fine("the ground writes", self.ground.write(at, bytes))
    }

    async fn clear(&self, at: &Path) -> Outcome {
        let removed = self.mounts.remove(&path(SafeRemoval::new(at))?).await;
        same("an empty place is removed", fine("an empty place is removed", removed)?, Removed::Removed)
    }

    async fn is(&self, rule: &'static str, expected: Expectation, wanted: Verdict) -> Outcome {
        let table = fine("the table is read", self.mounts.table().await)?;
        let inspection = self.inspect(&expected.path).await?;
        same(rule, verdict(&expected, &table, Some(&inspection)), wanted)
    }

    async fn places_are_made_once(&self) -> Outcome {
        let rule = "a directory is made with those on the way, the second time it is left as it is, and a file is in the way";
        let deep = self.at("a/b/c");
        self.make(&deep).await?;
        let file = deep.join("file");
        self.write(&file, b"12345")?;
        self.make(&deep).await?;
        match self.mounts.create_directory(&path(MountPath::new(&file))?).await {
            Err(CreateError::Occupied { found: Presence::RegularFile { size: 5 }, .. }) => {}
            other => return Err(broken(rule, other)),
        }
        same(rule, fine(rule, self.ground.read(&file))?, b"12345".to_vec())?;
        self.write(&file, b"")?;
        for name in ["a/b/c/file", "a/b/c", "a/b", "a"] {
            self.clear(&self.at(name)).await?;
        }
        Ok(())
    }

    async fn an_ordinary_entry_is_inspected(&self) -> Outcome {
        let rule = "what is at a path is told, and that it is no mount";
        let directory = self.place("plain").await?;
        same(rule, self.inspect(&directory).await?, Inspection::of(Presence::Directory))?;
        let file = self.at("plain/file");
        same(rule, self.inspect(&file).await?, Inspection::of(Presence::Missing))?;
        self.write(&file, b"12345")?;
        same(rule, self.inspect(&file).await?, Inspection::of(Presence::RegularFile { size: 5 }))?;
        self.write(&file, b"")?;
        self.clear(&file).await?;
        self.clear(&directory).await
    }

    async fn what_is_mounted_is_in_the_table_and_seen(&self) -> Outcome {
        let rule = "a mount is in the table and in what is inspected, under one id, at once; and then gone from both";
        let place = self.place("mounted").await?;
        let left = || (Expectation::nothing(&place), Verdict::Leftover(Presence::Directory));
        let (expected, found) = left();
        self.is(rule, expected, found).await?;
        self.mount(&place)?;
        let table = fine(rule, self.mounts.table().await)?;
        let in_table = table.at(&place).map(|mount| mount.id);
        let seen = self.inspect(&place).await?;
        if in_table.is_none() || seen.presence != Presence::Directory || seen.mount != in_table {
            return Err(broken(rule, (in_table, seen)));
        }
        self.unmount(&place)?;
        let (expected, found) = left();
        self.is(rule, expected, found).await?;
        self.clear(&place).await
    }

    async fn a_stack_is_counted_from_the_top(&self) -> Outcome {
        let rule = "mounts on one place are counted, and the topmost is the one that is seen";
        let place = self.place("stacked").await?;
        for _ in 0..3 {
            self.mount(&place)?;
        }
        self.is(rule, Expectation::file_system(&place), Verdict::StackedMounts { count: 3 }).await?;
        for left in [2, 1, 0] {
            self.unmount(&place)?;
            let table = fine(rule, self.mounts.table().await)?;
            same(rule, table.stack(&place).len(), left)?;
            same(rule, self.inspect(&place).await?.mount, table.at(&place).map(|mount| mount.id))?;
        }
        self.clear(&place).await
    }

    async fn a_bind_is_known_as_a_part_of_its_source(&self) -> Outcome {
        let rule = "a bind is known as a part of the same file system, and holds it";
        let (source, target) = (self.place("source").await?, self.place("target").await?);
        self.mount(&source)?;
        let part = self.place("source/part").await?;
        self.bind(&part, &target, false)?;
        let table = fine(rule, self.mounts.table().await)?;
        match (table.at(&source), table.at(&target)) {
            (Some(a), Some(b)) if a.device == b.device && a.root != b.root && b.root.starts_with(&a.root) => {
                same(rule, table.holders(a, |_| false).len(), 1)?;
                same(rule, table.holders(a, |known| known == target).len(), 0)?;
            }
            other => return Err(broken(rule, other)),
        }
        self.is(rule, Expectation::file_system(&target), Verdict::AsExpected).await?;
        self.unmount(&target)?;
        self.unmount(&source)?;
        self.clear(&source).await?;
        self.clear(&target).await
    }

    async fn a_read_only_bind_is_seen_as_one(&self) -> Outcome {
        let rule = "a bind that can be only read is told as one, and its source is not";
        let (source, target) = (self.place("source").await?, self.place("target").await?);
        self.mount(&source)?;
        self.bind(&source, &target, true)?;
        for (at, read_only) in [(&target, true), (&source, false)] {
            self.is(rule, Expectation::file_system(at).read_only(read_only), Verdict::AsExpected).await?;
            let other = Expectation::file_system(at).read_only(!read_only);
            self.is(rule, other, Verdict::OptionsDiffer { read_only }).await?;
        }
        self.unmount(&target)?;
        self.unmount(&source)?;
        self.clear(&target).await?;
        self.clear(&source).await
    }

    async fn a_bound_file_is_no_device(&self) -> Outcome {
        let rule =
            "a file that is bound over a target is not taken for a device, and the target is not removed";
        let directory = self.place("files").await?;
        let (source, target) = (directory.join("source"), directory.join("target"));
        self.write(&source, b"canary")?;
        self.write(&target, b"")?;
        self.bind(&source, &target, false)?;
        let over = Expectation::block_device(&target);
        self.is(rule, over, Verdict::RegularFileAtTarget { size: 6 }).await?;
        match self.mounts.remove(&path(SafeRemoval::new(&target))?).await {
            Err(RemoveError::Mounted { .. }) => {}
            other => return Err(broken(rule, other)),
        }
        self.unmount(&target)?;
        self.write(&source, b"")?;
        for path in [&source, &target, &directory] {
            self.clear(path).await?;
        }
        Ok(())
    }

    async fn only_what_is_empty_is_removed(&self) -> Outcome {
        let rule = "only what is empty is removed, and what is not stays as it was";
        let directory = self.place("full").await?;
        let canary = directory.join("canary");
        self.write(&canary, b"bytes")?;
        match self.mounts.remove(&path(SafeRemoval::new(&directory))?).await {
            Err(RemoveError::NotEmpty { count: 1, first, .. }) if first == "canary" => {}
            other => return Err(broken(rule, other)),
        }
        match self.mounts.remove(&path(SafeRemoval::new(&canary))?).await {
            Err(RemoveError::HasBytes { size: 5, .. }) => {}
            other => return Err(broken(rule, other)),
        }
        same(rule, fine(rule, self.ground.read(&canary))?, b"bytes".to_vec())?;
        self.write(&canary, b"")?;
        self.clear(&canary).await?;
        self.clear(&directory).await?;
        let again = self.mounts.remove(&path(SafeRemoval::new(&directory))?).await;
        same("what is missing is told so", fine(rule, again)?, Removed::WasMissing)
    }

    async fn a_removal_does_not_cross_a_mount(&self) -> Outcome {
        let rule = "a place with a mount on it is not removed, empty or not";
        let place = self.place("crossing").await?;
        self.mount(&place)?;
        for canary in [None, Some(place.join("canary"))] {
            if let Some(canary) = &canary {
                self.write(canary, b"bytes")?;
            }
            match self.mounts.remove(&path(SafeRemoval::new(&place))?).await {
                Err(RemoveError::Mounted { .. }) => {}
                other => return Err(broken(rule, other)),
            }
            if let Some(canary) = canary {
                same(rule, fine(rule, self.ground.read(&canary))?, b"bytes".to_vec())?;
            }
        }
        self.unmount(&place)?;
        self.clear(&place).await
    }

    async fn a_change_is_told(&self) -> Outcome {
        let rule = "a change of the table is told to who asked before it";
        let place = self.place("told").await?;
        let mut changes = fine(rule, self.mounts.changes())?;
        self.mount(&place)?;
        fine(rule, changes.changed().await)?;
        self.unmount(&place)?;
        fine(rule, changes.changed().await)?;
        self.clear(&place).await
    }
}

//! A conformance suite for implementations of [`Mounts`].
//!
//! It is public, for implementations outside of this crate:
//!
//! ```
//! use std::path::Path;
//! use volume_manager::mounts::conformance::{self, Fixture};
//! use volume_manager::mounts::MemoryMounts;
//!
//! struct Memory(MemoryMounts);
//!
//! impl Fixture for Memory {
//!     fn directory(&self) -> &Path { Path::new("/fixture") }
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
//! mounts.make_directory(Path::new("/fixture"))?;
//! conformance::check(&mounts, &Memory(mounts.clone())).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};

use crate::driver::{InvalidMountPath, MountPath};
use crate::mounts::{
    CreateError, Expectation, Inspection, MountCheck, Mounts, PathState, RemoveError, Removed, SafeRemoval,
    check_mount,
};

/// The environment of the suite: a directory, and operations besides the trait.
pub trait Fixture: Send + Sync {
    /// An empty directory whose path has no symbolic link. The suite leaves it empty if all rules hold.
    fn directory(&self) -> &Path;

    /// Mounts a new, empty file system on a directory, also on top of another mount.
    ///
    /// # Errors
    /// If mounting fails.
    fn mount(&self, path: &Path) -> io::Result<()>;

    /// Bind-mounts a directory on a directory, or a file on a file.
    ///
    /// # Errors
    /// If mounting fails.
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()>;

    /// Unmounts the topmost mount of a path.
    ///
    /// # Errors
    /// If unmounting fails, or nothing is mounted there.
    fn unmount(&self, path: &Path) -> io::Result<()>;

    /// Creates or overwrites a file.
    ///
    /// # Errors
    /// If writing fails; it must fail on a read-only mount.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Reads a file.
    ///
    /// # Errors
    /// If the file does not exist.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

/// A violated rule.
#[derive(Debug, thiserror::Error)]
#[error("{rule}: {found}")]
#[non_exhaustive]
pub struct Violation {
    /// The rule, in a sentence.
    pub rule: &'static str,
    /// The actual result.
    pub found: String,
}

type Outcome = Result<(), Violation>;

/// Checks all rules in order, and stops at the first violation.
///
/// # Errors
/// The first violated rule. The suite's files and mounts are left for inspection.
pub async fn check(mounts: &dyn Mounts, fixture: &dyn Fixture) -> Outcome {
    let suite = Suite { mounts, fixture };
    suite.directories_are_created_once().await?;
    suite.ordinary_entries_are_inspected().await?;
    suite.mounts_are_in_the_table_and_inspected().await?;
    suite.stacks_are_counted_from_the_top().await?;
    suite.binds_are_parts_of_their_source().await?;
    suite.read_only_binds_are_reported().await?;
    suite.bound_files_are_not_devices().await?;
    suite.only_empty_entries_are_removed().await?;
    suite.removals_do_not_cross_mounts().await?;
    suite.changes_are_reported().await
}

struct Suite<'a> {
    mounts: &'a dyn Mounts,
    fixture: &'a dyn Fixture,
}

fn violation(rule: &'static str, found: impl Debug) -> Violation {
    Violation { rule, found: format!("{found:?}") }
}

/// The value, or the rule that the error violates.
fn ok<T, E: Debug>(rule: &'static str, result: Result<T, E>) -> Result<T, Violation> {
    result.map_err(|error| violation(rule, error))
}

fn equal<T: PartialEq + Debug>(rule: &'static str, found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(violation(rule, found)) }
}

fn path<T>(request: Result<T, InvalidMountPath>) -> Result<T, Violation> {
    ok("the directory of the fixture is an absolute, normalized path", request)
}

impl Suite<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.fixture.directory().join(name)
    }

    async fn make(&self, at: &Path) -> Outcome {
        let created = self.mounts.create_directory(&path(MountPath::new(at))?).await;
        ok("a directory is created", created)?;
        equal("a created directory exists", self.inspect(at).await?.state, PathState::Directory)
    }

    async fn directory(&self, name: &str) -> Result<PathBuf, Violation> {
        let directory = self.at(name);
        self.make(&directory).await?;
        Ok(directory)
    }

    async fn inspect(&self, at: &Path) -> Result<Inspection, Violation> {
        ok("a path is inspected", self.mounts.inspect(at).await)
    }

    fn mount(&self, at: &Path) -> Outcome {
        ok("the fixture mounts", self.fixture.mount(at))
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Outcome {
        ok("the fixture binds", self.fixture.bind(source, target, read_only))
    }

    fn unmount(&self, at: &Path) -> Outcome {
        ok("the fixture unmounts", self.fixture.unmount(at))
    }

    fn write(&self, at: &Path, bytes: &[u8]) -> Outcome {
        ok("the fixture writes", self.fixture.write(at, bytes))
    }

    async fn clear(&self, at: &Path) -> Outcome {
        let removed = self.mounts.remove(&path(SafeRemoval::new(at))?).await;
        equal("an empty entry is removed", ok("an empty entry is removed", removed)?, Removed::Removed)
    }

    async fn expect(&self, rule: &'static str, expected: Expectation, wanted: MountCheck) -> Outcome {
        let table = ok("the table is read", self.mounts.table().await)?;
        let inspection = self.inspect(&expected.path).await?;
        equal(rule, check_mount(&expected, &table, Some(&inspection)), wanted)
    }

    async fn directories_are_created_once(&self) -> Outcome {
        let rule =
            "a directory is created with its parents, an existing one is unchanged, and a file is an error";
        let nested = self.at("a/b/c");
        self.make(&nested).await?;
        let file = nested.join("file");
        self.write(&file, b"12345")?;
        self.make(&nested).await?;
        match self.mounts.create_directory(&path(MountPath::new(&file))?).await {
            Err(CreateError::Occupied { found: PathState::RegularFile { size: 5 }, .. }) => {}
            other => return Err(violation(rule, other)),
        }
        equal(rule, ok(rule, self.fixture.read(&file))?, b"12345".to_vec())?;
        self.write(&file, b"")?;
        for name in ["a/b/c/file", "a/b/c", "a/b", "a"] {
            self.clear(&self.at(name)).await?;
        }
        Ok(())
    }

    async fn ordinary_entries_are_inspected(&self) -> Outcome {
        let rule = "an inspection reports the state of a path that is not a mount point";
        let directory = self.directory("plain").await?;
        equal(rule, self.inspect(&directory).await?, Inspection::of(PathState::Directory))?;
        let file = self.at("plain/file");
        equal(rule, self.inspect(&file).await?, Inspection::of(PathState::Missing))?;
        self.write(&file, b"12345")?;
        equal(rule, self.inspect(&file).await?, Inspection::of(PathState::RegularFile { size: 5 }))?;
        self.write(&file, b"")?;
        self.clear(&file).await?;
        self.clear(&directory).await
    }

    async fn mounts_are_in_the_table_and_inspected(&self) -> Outcome {
        let rule = "a mount is in the table and in the inspection under one id, and absent from both after its unmount";
        let directory = self.directory("mounted").await?;
        let left = || (Expectation::nothing(&directory), MountCheck::StaleMountPoint(PathState::Directory));
        let (expected, found) = left();
        self.expect(rule, expected, found).await?;
        self.mount(&directory)?;
        let table = ok(rule, self.mounts.table().await)?;
        let in_table = table.at(&directory).map(|mount| mount.id);
        let seen = self.inspect(&directory).await?;
        if in_table.is_none() || seen.state != PathState::Directory || seen.mount != in_table {
            return Err(violation(rule, (in_table, seen)));
        }
        self.unmount(&directory)?;
        let (expected, found) = left();
        self.expect(rule, expected, found).await?;
        self.clear(&directory).await
    }

    async fn stacks_are_counted_from_the_top(&self) -> Outcome {
        let rule = "stacked mounts are counted, and the topmost is reported";
        let directory = self.directory("stacked").await?;
        for _ in 0..3 {
            self.mount(&directory)?;
        }
        self.expect(rule, Expectation::file_system(&directory), MountCheck::StackedMounts { count: 3 })
            .await?;
        for left in [2, 1, 0] {
            self.unmount(&directory)?;
            let table = ok(rule, self.mounts.table().await)?;
            equal(rule, table.stack(&directory).len(), left)?;
            equal(rule, self.inspect(&directory).await?.mount, table.at(&directory).map(|mount| mount.id))?;
        }
        self.clear(&directory).await
    }

    async fn binds_are_parts_of_their_source(&self) -> Outcome {
        let rule = "a bind mount is a part of the same file system, and a holder of it";
        let (source, target) = (self.directory("source").await?, self.directory("target").await?);
        self.mount(&source)?;
        let part = self.directory("source/part").await?;
        self.bind(&part, &target, false)?;
        let table = ok(rule, self.mounts.table().await)?;
        match (table.at(&source), table.at(&target)) {
            (Some(a), Some(b)) if a.device == b.device && a.root != b.root && b.root.starts_with(&a.root) => {
                equal(rule, table.holders(a, |_| false).len(), 1)?;
                equal(rule, table.holders(a, |known| known == target).len(), 0)?;
            }
            other => return Err(violation(rule, other)),
        }
        self.expect(rule, Expectation::file_system(&target), MountCheck::AsExpected).await?;
        self.unmount(&target)?;
        self.unmount(&source)?;
        self.clear(&source).await?;
        self.clear(&target).await
    }

    async fn read_only_binds_are_reported(&self) -> Outcome {
        let rule = "a read-only bind mount is reported as read-only, and its source is not";
        let (source, target) = (self.directory("source").await?, self.directory("target").await?);
        self.mount(&source)?;
        self.bind(&source, &target, true)?;
        for (at, read_only) in [(&target, true), (&source, false)] {
            self.expect(rule, Expectation::file_system(at).read_only(read_only), MountCheck::AsExpected)
                .await?;
            let other = Expectation::file_system(at).read_only(!read_only);
            self.expect(rule, other, MountCheck::OptionsDiffer { read_only }).await?;
        }
        self.unmount(&target)?;
        self.unmount(&source)?;
        self.clear(&target).await?;
        self.clear(&source).await
    }

    async fn bound_files_are_not_devices(&self) -> Outcome {
        let rule =
            "a file that is bound over a target is not reported as a device, and the target is not removed";
        let directory = self.directory("files").await?;
        let (source, target) = (directory.join("source"), directory.join("target"));
        self.write(&source, b"canary")?;
        self.write(&target, b"")?;
        self.bind(&source, &target, false)?;
        let over = Expectation::block_device(&target);
        self.expect(rule, over, MountCheck::RegularFileAtTarget { size: 6 }).await?;
        match self.mounts.remove(&path(SafeRemoval::new(&target))?).await {
            Err(RemoveError::Mounted { .. }) => {}
            other => return Err(violation(rule, other)),
        }
        self.unmount(&target)?;
        self.write(&source, b"")?;
        for path in [&source, &target, &directory] {
            self.clear(path).await?;
        }
        Ok(())
    }

    async fn only_empty_entries_are_removed(&self) -> Outcome {
        let rule = "only empty entries are removed, and others are unchanged";
        let directory = self.directory("full").await?;
        let canary = directory.join("canary");
        self.write(&canary, b"bytes")?;
        match self.mounts.remove(&path(SafeRemoval::new(&directory))?).await {
            Err(RemoveError::NotEmpty { count: 1, first, .. }) if first == "canary" => {}
            other => return Err(violation(rule, other)),
        }
        match self.mounts.remove(&path(SafeRemoval::new(&canary))?).await {
            Err(RemoveError::HasData { size: 5, .. }) => {}
            other => return Err(violation(rule, other)),
        }
        equal(rule, ok(rule, self.fixture.read(&canary))?, b"bytes".to_vec())?;
        self.write(&canary, b"")?;
        self.clear(&canary).await?;
        self.clear(&directory).await?;
        let again = self.mounts.remove(&path(SafeRemoval::new(&directory))?).await;
        equal("a missing entry is reported as absent", ok(rule, again)?, Removed::AlreadyAbsent)
    }

    async fn removals_do_not_cross_mounts(&self) -> Outcome {
        let rule = "a mount point is not removed, empty or not";
        let directory = self.directory("crossing").await?;
        self.mount(&directory)?;
        for canary in [None, Some(directory.join("canary"))] {
            if let Some(canary) = &canary {
                self.write(canary, b"bytes")?;
            }
            match self.mounts.remove(&path(SafeRemoval::new(&directory))?).await {
                Err(RemoveError::Mounted { .. }) => {}
                other => return Err(violation(rule, other)),
            }
            if let Some(canary) = canary {
                equal(rule, ok(rule, self.fixture.read(&canary))?, b"bytes".to_vec())?;
            }
        }
        self.unmount(&directory)?;
        self.clear(&directory).await
    }

    async fn changes_are_reported(&self) -> Outcome {
        let rule = "a change of the table is reported to earlier subscriptions";
        let directory = self.directory("changes").await?;
        let mut changes = ok(rule, self.mounts.changes())?;
        self.mount(&directory)?;
        ok(rule, changes.changed().await)?;
        self.unmount(&directory)?;
        ok(rule, changes.changed().await)?;
        self.clear(&directory).await
    }
}

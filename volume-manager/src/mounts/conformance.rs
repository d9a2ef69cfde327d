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

use super::{
    Bind, BindError, CreateError, Created, Creation, Expectation, Inspection, InvalidPath, Mounts, Presence,
    RemoveError, Removed, SafeRemoval, Unmount, UnmountError, Unmounted, Verdict, verdict,
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
    suite.a_stack_is_counted_and_taken_from_the_top().await?;
    suite.a_bind_shows_a_part_and_is_never_stacked().await?;
    suite.a_read_only_bind_takes_no_byte().await?;
    suite.a_file_is_bound_over_a_placeholder_only().await?;
    suite.an_unmount_keeps_to_the_mount_it_was_given().await?;
    suite.a_mount_with_a_mount_below_is_busy().await?;
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

fn path<T>(request: Result<T, InvalidPath>) -> Result<T, Violation> {
    fine("the directory of the ground is an absolute path in its shortest form", request)
}

impl Suite<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.ground.directory().join(name)
    }

    async fn place(&self, name: &str) -> Result<PathBuf, Violation> {
        let place = self.at(name);
        fine("a directory is made", self.mounts.create(&path(Creation::directory(&place))?).await)?;
        Ok(place)
    }

    async fn inspect(&self, at: &Path) -> Result<Inspection, Violation> {
        fine("a path is inspected", self.mounts.inspect(at).await)
    }

    async fn unmount(&self, at: &Path) -> Result<Unmounted, Violation> {
        fine("an unused mount is unmounted", self.mounts.unmount(&path(Unmount::new(at))?).await)
    }

    async fn clear(&self, at: &Path) -> Outcome {
        let removed = self.mounts.remove(&path(SafeRemoval::target(at))?).await;
        same("an empty place is removed", fine("an empty place is removed", removed)?, Removed::Removed)
    }

    async fn is(&self, rule: &'static str, expected: Expectation, wanted: Verdict) -> Outcome {
        let table = fine("the table is read", self.mounts.table().await)?;
        let inspection = self.inspect(&expected.path).await?;
        same(rule, verdict(&expected, &table, Some(&inspection)), wanted)
    }

    async fn places_are_made_once(&self) -> Outcome {
        let rule = "a directory is made with those on the way, and the second time it was there";
        let deep = self.at("a/b/c");
        let creation = path(Creation::directory(&deep))?;
        same(rule, fine(rule, self.mounts.create(&creation).await)?, Created::Made)?;
        same(rule, fine(rule, self.mounts.create(&creation).await)?, Created::WasThere)?;
        let rule = "a placeholder is not made where a directory is";
        match self.mounts.create(&path(Creation::placeholder(&deep))?).await {
            Err(CreateError::Occupied { found: Presence::Directory, .. }) => {}
            other => return Err(broken(rule, other)),
        }
        for name in ["a/b/c", "a/b", "a"] {
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
        fine("the ground writes a file", self.ground.write(&file, b"12345"))?;
        same(rule, self.inspect(&file).await?, Inspection::of(Presence::RegularFile { size: 5 }))?;
        fine("the ground writes a file", self.ground.write(&file, b""))?;
        self.clear(&file).await?;
        self.clear(&directory).await
    }

    async fn what_is_mounted_is_in_the_table_and_seen(&self) -> Outcome {
        let rule = "a mount is in the table and in what is inspected, under one id, at once; and then gone from both";
        let place = self.place("mounted").await?;
        self.is(rule, Expectation::empty_place(&place), Verdict::AsExpected).await?;
        fine("the ground mounts", self.ground.mount(&place))?;
        let table = fine(rule, self.mounts.table().await)?;
        let in_table = table.at(&place).map(|mount| mount.id);
        let seen = self.inspect(&place).await?;
        if in_table.is_none() || seen.presence != Presence::Directory || seen.mount != in_table {
            return Err(broken(rule, (in_table, seen)));
        }
        same(rule, self.unmount(&place).await?, Unmounted::Unmounted)?;
        self.is(rule, Expectation::empty_place(&place), Verdict::AsExpected).await?;
        same("what is not mounted is told so", self.unmount(&place).await?, Unmounted::WasNotMounted)?;
        self.clear(&place).await?;
        same(
            "what is not there is told as not mounted",
            self.unmount(&place).await?,
            Unmounted::WasNotMounted,
        )
    }

    async fn a_stack_is_counted_and_taken_from_the_top(&self) -> Outcome {
        let rule = "mounts on one place are counted, and each unmount takes the topmost";
        let place = self.place("stacked").await?;
        for mounts in ["one", "two", "three"] {
            fine("the ground mounts", self.ground.mount(&place))?;
            fine("the ground writes", self.ground.write(&place.join(mounts), b"x"))?;
        }
        self.is(rule, Expectation::file_system(&place), Verdict::StackedMounts { count: 3 }).await?;
        for (left, name) in [(2, "two"), (1, "one")] {
            self.unmount(&place).await?;
            fine(rule, self.ground.read(&place.join(name)))?;
            let table = fine(rule, self.mounts.table().await)?;
            same(rule, table.stack(&place).len(), left)?;
        }
        self.unmount(&place).await?;
        self.clear(&place).await
    }

    async fn a_bind_shows_a_part_and_is_never_stacked(&self) -> Outcome {
        let rule = "a bind shows its source, is known as a part of the same file system, and is made once";
        let (source, target) = (self.place("source").await?, self.place("target").await?);
        fine("the ground mounts", self.ground.mount(&source))?;
        let part = self.place("source/part").await?;
        fine("the ground writes", self.ground.write(&part.join("file"), b"canary"))?;
        let bind = path(Bind::new(&part, &target))?;
        fine(rule, self.mounts.bind(&bind).await)?;
        same(rule, fine(rule, self.ground.read(&target.join("file")))?, b"canary".to_vec())?;
        let table = fine(rule, self.mounts.table().await)?;
        match (table.at(&source), table.at(&target)) {
            (Some(a), Some(b)) if a.device == b.device && a.root != b.root && b.root.starts_with(&a.root) => {
                same(rule, table.holders(a, |_| false).len(), 1)?;
                same(rule, table.holders(a, |known| known == target).len(), 0)?;
            }
            other => return Err(broken(rule, other)),
        }
        match self.mounts.bind(&bind).await {
            Err(BindError::TargetMounted { .. }) => {}
            other => return Err(broken(rule, other)),
        }
        self.is(rule, Expectation::file_system(&target), Verdict::AsExpected).await?;
        self.unmount(&target).await?;
        let rule = "a missing source or target is told as such";
        match self.mounts.bind(&path(Bind::new(self.at("nothing"), &target))?).await {
            Err(BindError::SourceMissing { .. }) => {}
            other => return Err(broken(rule, other)),
        }
        match self.mounts.bind(&path(Bind::new(&part, self.at("nothing")))?).await {
            Err(BindError::TargetMissing { .. }) => {}
            other => return Err(broken(rule, other)),
        }
        self.unmount(&source).await?;
        self.clear(&source).await?;
        self.clear(&target).await
    }

    async fn a_read_only_bind_takes_no_byte(&self) -> Outcome {
        let rule = "a read-only bind is told as one and cannot be written, and its source can";
        let (source, target) = (self.place("source").await?, self.place("target").await?);
        fine("the ground mounts", self.ground.mount(&source))?;
        fine(rule, self.mounts.bind(&path(Bind::new(&source, &target))?.read_only()).await)?;
        let read_only = Expectation::file_system(&target).read_only(true);
        self.is(rule, read_only, Verdict::AsExpected).await?;
        let writable = Expectation::file_system(&target).read_only(false);
        self.is(rule, writable, Verdict::OptionsDiffer { read_only: true }).await?;
        if self.ground.write(&target.join("file"), b"x").is_ok() {
            return Err(broken(rule, "a byte was written"));
        }
        fine(rule, self.ground.write(&source.join("file"), b"x"))?;
        self.unmount(&target).await?;
        self.unmount(&source).await?;
        self.clear(&target).await?;
        self.clear(&source).await
    }

    async fn a_file_is_bound_over_a_placeholder_only(&self) -> Outcome {
        let rule = "a file is bound over an empty file, and over nothing else";
        let directory = self.place("files").await?;
        let (source, target) = (directory.join("source"), directory.join("target"));
        fine("the ground writes", self.ground.write(&source, b"canary"))?;
        fine("the ground writes", self.ground.write(&target, b"bytes"))?;
        let bind = path(Bind::new(&source, &target))?;
        match self.mounts.bind(&bind).await {
            Err(BindError::TargetUnfit { found: Presence::RegularFile { size: 5 }, .. }) => {}
            other => return Err(broken(rule, other)),
        }
        match self.mounts.bind(&path(Bind::new(&source, &directory))?).await {
            Err(BindError::TargetUnfit { found: Presence::Directory, .. }) => {}
            other => return Err(broken(rule, other)),
        }
        fine("the ground writes", self.ground.write(&target, b""))?;
        fine(rule, self.mounts.bind(&bind).await)?;
        same(rule, fine(rule, self.ground.read(&target))?, b"canary".to_vec())?;
        let over = Expectation::block_device(&target);
        let refused = Verdict::RegularFileAtTarget { size: 6 };
        self.is("a file is not taken for a device", over, refused).await?;
        self.unmount(&target).await?;
        fine("the ground writes", self.ground.write(&source, b""))?;
        for path in [&source, &target, &directory] {
            self.clear(path).await?;
        }
        Ok(())
    }

    async fn an_unmount_keeps_to_the_mount_it_was_given(&self) -> Outcome {
        let rule = "an unmount that names a mount leaves every other one alone";
        let place = self.place("named").await?;
        fine("the ground mounts", self.ground.mount(&place))?;
        let first = fine(rule, self.mounts.table().await)?.at(&place).map(|mount| mount.id);
        let Some(first) = first else { return Err(broken(rule, "no mount")) };
        fine("the ground mounts", self.ground.mount(&place))?;
        let named = path(Unmount::new(&place))?.only(first);
        match self.mounts.unmount(&named).await {
            Err(UnmountError::AnotherMount { expected, .. }) if expected == first => {}
            other => return Err(broken(rule, other)),
        }
        self.unmount(&place).await?;
        same(rule, fine(rule, self.mounts.unmount(&named).await)?, Unmounted::Unmounted)?;
        self.clear(&place).await
    }

    async fn a_mount_with_a_mount_below_is_busy(&self) -> Outcome {
        let rule = "a mount with a mount below it is busy";
        let upper = self.place("busy").await?;
        fine("the ground mounts", self.ground.mount(&upper))?;
        let lower = self.place("busy/lower").await?;
        fine("the ground mounts", self.ground.mount(&lower))?;
        match self.mounts.unmount(&path(Unmount::new(&upper))?).await {
            Err(UnmountError::Busy { .. }) => {}
            other => return Err(broken(rule, other)),
        }
        self.unmount(&lower).await?;
        self.unmount(&upper).await?;
        self.clear(&upper).await
    }

    async fn only_what_is_empty_is_removed(&self) -> Outcome {
        let rule = "only what is empty is removed, and what is not stays as it was";
        let directory = self.place("full").await?;
        let canary = directory.join("canary");
        fine("the ground writes", self.ground.write(&canary, b"bytes"))?;
        match self.mounts.remove(&path(SafeRemoval::target(&directory))?).await {
            Err(RemoveError::NotEmpty { count: 1, first, .. }) if first == "canary" => {}
            other => return Err(broken(rule, other)),
        }
        match self.mounts.remove(&path(SafeRemoval::target(&canary))?).await {
            Err(RemoveError::HasBytes { size: 5, .. }) => {}
            other => return Err(broken(rule, other)),
        }
        match self.mounts.remove(&path(SafeRemoval::empty_directory(&canary))?).await {
            Err(RemoveError::Unfit { found: Presence::RegularFile { size: 5 }, .. }) => {}
            other => return Err(broken(rule, other)),
        }
        same(rule, fine(rule, self.ground.read(&canary))?, b"bytes".to_vec())?;
        fine("the ground writes", self.ground.write(&canary, b""))?;
        match self.mounts.remove(&path(SafeRemoval::placeholder(&directory))?).await {
            Err(RemoveError::Unfit { found: Presence::Directory, .. }) => {}
            other => return Err(broken(rule, other)),
        }
        self.clear(&canary).await?;
        self.clear(&directory).await?;
        let again = self.mounts.remove(&path(SafeRemoval::target(&directory))?).await;
        same("what is missing is told so", fine(rule, again)?, Removed::WasMissing)
    }

    async fn a_removal_does_not_cross_a_mount(&self) -> Outcome {
        let rule = "a place with a mount on it is not removed, empty or not";
        let place = self.place("crossing").await?;
        fine("the ground mounts", self.ground.mount(&place))?;
        for canary in [None, Some(place.join("canary"))] {
            if let Some(canary) = &canary {
                fine("the ground writes", self.ground.write(canary, b"bytes"))?;
            }
            match self.mounts.remove(&path(SafeRemoval::target(&place))?).await {
                Err(RemoveError::Mounted { .. }) => {}
                other => return Err(broken(rule, other)),
            }
            if let Some(canary) = canary {
                same(rule, fine(rule, self.ground.read(&canary))?, b"bytes".to_vec())?;
            }
        }
        self.unmount(&place).await?;
        self.clear(&place).await
    }

    async fn a_change_is_told(&self) -> Outcome {
        let rule = "a change of the table is told to who asked before it";
        let place = self.place("told").await?;
        let mut changes = fine(rule, self.mounts.changes())?;
        fine("the ground mounts", self.ground.mount(&place))?;
        fine(rule, changes.changed().await)?;
        self.unmount(&place).await?;
        fine(rule, changes.changed().await)?;
        self.clear(&place).await
    }
}

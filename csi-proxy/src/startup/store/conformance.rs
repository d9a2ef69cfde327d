//! What every [`FactsStore`] must do, for a store of your own.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use csi_proto::DriverName;

use super::{FactsStore, KeepError, Kept};
use crate::call::NodeId;
use crate::startup::{Fact, Facts, Subject};

/// Checks a store that is empty. `reopen` gives the same store as a process that starts anew would find it.
///
/// # Errors
/// What it does otherwise than it must, in words.
pub fn check<S: FactsStore>(mut reopen: impl FnMut() -> S) -> Result<(), String> {
    let ours = subject("vendor.csi", Some("edge-1"))?;
    let others = [
        subject("vendor.csi", Some("edge-2"))?,
        subject("vendor.csi", None)?,
        subject("other.csi", Some("edge-1"))?,
        // As long as names can be, and equal for most of it.
        subject("vendor.csi", Some(&format!("{}1", "n".repeat(252))))?,
        subject("vendor.csi", Some(&format!("{}2", "n".repeat(252))))?,
        subject(&"d".repeat(63), Some(&format!("{}1", "n.-".repeat(80))))?,
    ];
    let store = reopen();
    expect(&store, &ours, None, "a store that is empty")?;
    keep(&store, &ours, &kept(1))?;
    expect(&store, &ours, Some(kept(1)), "a record that was kept")?;
    for (number, other) in (10..).zip(&others) {
        expect(&store, other, None, "a driver of which nothing was kept")?;
        keep(&store, other, &kept(number))?;
    }
    keep(&store, &ours, &kept(2))?;
    drop(store);
    let store = reopen();
    expect(&store, &ours, Some(kept(2)), "a record that was replaced, after a restart")?;
    for (number, other) in (10..).zip(&others) {
        expect(&store, other, Some(kept(number)), "another driver's record, after a restart")?;
    }
    let mut large = kept(3);
    large.facts.info = Some(vec![0; super::MAX_RECORD].into());
    match store.keep(&ours, &large) {
        Err(KeepError::TooLarge { .. }) => {}
        other => {
            return Err(format!("a record beyond the bound must be refused as too large, not: {other:?}"));
        }
    }
    expect(&store, &ours, Some(kept(2)), "the record before one that was refused")
}

fn subject(driver: &str, node: Option<&str>) -> Result<Subject, String> {
    let driver = DriverName::new(driver).map_err(|error| error.to_string())?;
    let node = node.map(NodeId::new).transpose().map_err(|error| error.to_string())?;
    Ok(Subject { driver, node })
}

/// Records that differ in everything.
fn kept(number: u64) -> Kept {
    let answer = |name: &str| Bytes::from(format!("{name} {number}"));
    let facts = Facts {
        node: Some(Fact::Answer(Bytes::from(vec![b'n'; 300]))),
        node_service: Some(Fact::NotOffered(format!("no node {number}"))),
        info: Some(answer("info")),
        plugin: number.is_multiple_of(2).then(|| answer("plugin")),
        controller: Some(Fact::Answer(answer("controller"))),
        group: Some(Fact::NotOffered(format!("none {number}"))),
    };
    Kept { facts, as_of: UNIX_EPOCH + Duration::from_secs(1_700_000_000 + number) }
}

fn keep(store: &impl FactsStore, subject: &Subject, kept: &Kept) -> Result<(), String> {
    store.keep(subject, kept).map_err(|error| format!("a record of {subject} is not kept: {error}"))
}

fn expect(
    store: &impl FactsStore,
    subject: &Subject,
    expected: Option<Kept>,
    what: &str,
) -> Result<(), String> {
    match store.load(subject) {
        Ok(found) if found == expected => Ok(()),
        found => Err(format!("{what} ({subject}): expected {expected:?}, found {found:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DirectoryFacts, FaultyFacts, MemoryFacts};
    use super::*;

    #[test]
    fn the_stores_conform() {
        let directory = tempfile::tempdir().unwrap();
        check(|| DirectoryFacts::new(directory.path())).unwrap();
        let memory = MemoryFacts::default();
        check(|| memory.clone()).unwrap();
        let faulty = FaultyFacts::new(MemoryFacts::default());
        check(|| faulty.clone()).unwrap();
    }
}

//! Salvaged records, live again.

use std::collections::{BTreeMap, BTreeSet};

use super::{Defect, Loaded, Store, StoreError};

/// What became of the salvaged records of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TakenBack {
    /// How many are live again.
    pub released: usize,
    /// How many are still aside: several were found under their key and none can be told to be the last, or the key has a
    /// newer record by now.
    pub left: usize,
}

/// Makes the records live again that were [salvaged](Defect::Salvaged) from a damaged file, each of which may be out of date.
///
/// For who compares them afterwards with something that was not damaged, such as a desired set of their own: a volume that
/// was removed shortly before the damage may be among them. To be called at every start with what was loaded, since one
/// that is cut off leaves the rest aside. Costs nothing if there is nothing to take back, else a commit for each record;
/// load again after it.
///
/// # Errors
/// As [`Store::release`]. What was released before stays so.
pub fn take_back_salvaged(
    store: &mut (impl Store + ?Sized),
    loaded: &Loaded,
) -> Result<TakenBack, StoreError> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for record in loaded.quarantined.iter().filter(|record| record.reason == Defect::Salvaged) {
        found.entry(record.key.as_ref()).or_default().push(&record.id);
    }
    let mut taken = TakenBack::default();
    if found.is_empty() {
        return Ok(taken);
    }
    let live: BTreeSet<_> = loaded.records.iter().map(|(key, _)| key).collect();
    for (key, ids) in found {
        let live = key.is_some_and(|key| live.contains(key));
        match (&ids[..], live) {
            ([only], false) => {
                store.release(only)?;
                taken.released += 1;
            }
            (several, _) => taken.left += several.len(),
        }
    }
    Ok(taken)
}

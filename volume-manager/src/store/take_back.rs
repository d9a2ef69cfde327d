//! Salvaged records, live again.

use std::collections::BTreeMap;

use super::{Defect, Store, StoreError};

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
/// was removed shortly before the damage may be among them. To be called at every start, since one that is cut off leaves
/// the rest aside. Costs a commit for each record.
///
/// # Errors
/// As [`Store::load`] and [`Store::release`]. What was released before stays so.
pub fn take_back_salvaged(store: &mut (impl Store + ?Sized)) -> Result<TakenBack, StoreError> {
    let loaded = store.load()?;
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for record in loaded.quarantined.into_iter().filter(|record| record.reason == Defect::Salvaged) {
        found.entry(record.key).or_default().push(record.id);
    }
    let mut taken = TakenBack::default();
    for (key, ids) in found {
        let live = loaded.records.iter().any(|(other, _)| Some(other) == key.as_ref());
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

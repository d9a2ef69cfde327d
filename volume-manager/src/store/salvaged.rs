//! The release of salvaged records.

use std::collections::{BTreeMap, BTreeSet};

use super::{Defect, Loaded, Store, StoreError};

/// The result of [`release_salvaged`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageReleased {
    /// The number of released records.
    pub released: usize,
    /// The number of records that remain in quarantine, since several of their key were found and the latest is unknown, or the
    /// key has a newer record.
    pub left: usize,
}

/// Releases the records that were [salvaged](Defect::Salvaged) from a corrupt file. Each of them may be outdated.
///
/// Intended for callers that then compare the records with an intact source, such as a desired set: a volume that
/// was removed shortly before the corruption may be among them. Call it at every start with the loaded records,
/// since an interrupted call leaves the rest in quarantine. It makes one commit per released record; load the
/// store again afterwards.
///
/// # Errors
/// As [`Store::release`]. Records that were already released remain so.
pub fn release_salvaged(store: &mut Store, loaded: &Loaded) -> Result<SalvageReleased, StoreError> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for record in loaded.quarantined.iter().filter(|record| record.reason == Defect::Salvaged) {
        found.entry(record.key.as_ref()).or_default().push(&record.id);
    }
    let mut taken = SalvageReleased::default();
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

//! The order of a node's statuses, as an annotation of the objects that they are written to.
//!
//! A node that changes its hub may leave a status behind that its old hub still writes: it waits for the API server, or repeats
//! after a conflict. The node knows that this status had no answer, and has its next one write the annotation first. From then on
//! the old hub's write fails: its `resourceVersion` is old, and when it reads again, it finds the annotation.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use edge_csi_common::kubernetes::message::StatusNumber;

/// The annotation, with a value such as `1f5c03a2-2-17`: instance, start and number.
pub(super) const ANNOTATION: &str = "edge-csi.io/status-number";

/// A later status of the node was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "status {number} of this node is older than {found}, which was written; a node in a restored --state-dir sends its next with a new instance"
)]
pub(in super::super) struct Superseded {
    number: Mark,
    found: Mark,
}

/// The value of the annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    instance: u64,
    /// The start and the number, which order the statuses of an instance.
    place: (u64, u64),
}

impl From<&StatusNumber> for Mark {
    fn from(number: &StatusNumber) -> Self {
        Self { instance: number.instance, place: (number.start, number.number) }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}-{}", self.instance, self.place.0, self.place.1)
    }
}

impl FromStr for Mark {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().unwrap_or_default();
        let instance = u64::from_str_radix(next(), 16)?;
        Ok(Self { instance, place: (next().parse()?, next().parse()?) })
    }
}

/// Returns the annotation to write before anything else of the status; `None` if none is needed.
///
/// # Errors
/// If the object has the mark of a later status. An unreadable mark, or that of another instance, does not count.
pub(super) fn mark(
    annotations: Option<&BTreeMap<String, String>>,
    number: Option<&StatusNumber>,
) -> Result<Option<String>, Superseded> {
    let Some(number) = number else { return Ok(None) };
    let mark = Mark::from(number);
    let found = annotations.and_then(|all| all.get(ANNOTATION)).and_then(|text| text.parse::<Mark>().ok());
    match found.filter(|found| found.instance == mark.instance) {
        Some(found) if found.place > mark.place => Err(Superseded { number: mark, found }),
        Some(found) if found.place == mark.place => Ok(None),
        _ => Ok(number.unanswered.then(|| mark.to_string())),
    }
}

/// Returns the annotations of a new object.
pub(super) fn created(number: Option<&StatusNumber>) -> Option<BTreeMap<String, String>> {
    number.map(|number| [(ANNOTATION.to_owned(), Mark::from(number).to_string())].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn number(instance: u64, start: u64, number: u64, unanswered: bool) -> StatusNumber {
        StatusNumber { instance, start, number, unanswered }
    }

    #[test]
    fn earlier_status_of_the_same_instance_is_not_written() {
        let found = created(Some(&number(0xab, 2, 7, false)));
        assert_eq!(found.as_ref().unwrap()[ANNOTATION], "ab-2-7");
        let mark = |number: StatusNumber| mark(found.as_ref(), Some(&number));
        for (start, earlier) in [(2, 6), (1, 9)] {
            let text = mark(number(0xab, start, earlier, true)).unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("status ab-{start}-{earlier} of this node is older than ab-2-7"))
            );
        }
        assert_eq!(mark(number(0xab, 2, 7, true)), Ok(None), "it was marked before");
        assert_eq!(mark(number(0xab, 2, 8, false)), Ok(None));
        assert_eq!(mark(number(0xab, 3, 1, true)), Ok(Some("ab-3-1".to_owned())));
        assert_eq!(mark(number(0xcd, 1, 1, true)), Ok(Some("cd-1-1".to_owned())), "no order");
    }

    #[test]
    fn unreadable_or_missing_mark_and_older_agent_are_accepted() {
        for text in ["", "x-1-1", "ab", "ab-1", "ab-1-1-1", "ab-1--1", "ab-99999999999999999999-1"] {
            let found = BTreeMap::from([(ANNOTATION.to_owned(), text.to_owned())]);
            assert_eq!(
                mark(Some(&found), Some(&number(0xab, 1, 0, true))),
                Ok(Some("ab-1-0".to_owned())),
                "{text}"
            );
            assert_eq!(mark(Some(&found), None), Ok(None));
        }
        assert_eq!(mark(None, Some(&number(1, 1, 1, false))), Ok(None));
        assert_eq!(created(None), None);
    }
}

//! How much a status may hold. A node is not trusted with more.

use crate::kubernetes::message::NodeStatus;

/// The most of each list of a status.
const LISTS: [(&str, usize); 4] =
    [("drivers", 64), ("volumes_in_use", 4096), ("expanded", 1024), ("pod_volumes", 8192)];

/// The most bytes of a text.
const TEXT: usize = 1024;

/// The most topology segments of a driver.
const SEGMENTS: usize = 32;

/// A status holds more than it may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(in super::super) enum OutOfBounds {
    /// A list is too long.
    #[error("{field} has {found} entries; at most {most} are taken")]
    List {
        /// Its name.
        field: &'static str,
        /// Its entries.
        found: usize,
        /// The most.
        most: usize,
    },
    /// A text is too long, or empty where it names something.
    #[error("{field} has {found} bytes; 1 to {TEXT} are taken")]
    Text {
        /// The field.
        field: &'static str,
        /// Its bytes.
        found: usize,
    },
    /// Two drivers of one name.
    #[error("drivers names {0:?} more than once")]
    Twice(String),
}

/// Whether a status is within its bounds.
pub(super) fn check(status: &NodeStatus) -> Result<(), OutOfBounds> {
    let found =
        [status.drivers.len(), status.volumes_in_use.len(), status.expanded.len(), status.pod_volumes.len()];
    for ((field, most), found) in LISTS.into_iter().zip(found) {
        if found > most {
            return Err(OutOfBounds::List { field, found, most });
        }
    }
    for driver in &status.drivers {
        text("drivers.name", &driver.name)?;
        text("drivers.node_id", &driver.node_id)?;
        if driver.segments.len() > SEGMENTS {
            let found = driver.segments.len();
            return Err(OutOfBounds::List { field: "drivers.segments", found, most: SEGMENTS });
        }
    }
    status.volumes_in_use.iter().try_for_each(|volume| text("volumes_in_use", volume))?;
    let mut names: Vec<_> = status.drivers.iter().map(|driver| &driver.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(OutOfBounds::Twice(pair[0].clone())),
        None => Ok(()),
    }
}

fn text(field: &'static str, value: &str) -> Result<(), OutOfBounds> {
    let found = value.len();
    if (1..=TEXT).contains(&found) { Ok(()) } else { Err(OutOfBounds::Text { field, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::message::NodeDriver;

    fn driver(name: &str, node_id: &str) -> NodeDriver {
        NodeDriver { name: name.to_owned(), node_id: node_id.to_owned(), ..NodeDriver::default() }
    }

    #[test]
    fn a_status_that_holds_too_much_is_refused_by_the_name_of_the_field() {
        let good = NodeStatus { drivers: vec![driver("a", "n"), driver("b", "n")], ..NodeStatus::default() };
        assert_eq!(check(&good), Ok(()));
        for (wrong, expected) in [
            (
                NodeStatus { volumes_in_use: vec!["v".to_owned(); 4097], ..good.clone() },
                "volumes_in_use has 4097",
            ),
            (
                NodeStatus { volumes_in_use: vec![String::new()], ..good.clone() },
                "volumes_in_use has 0 bytes",
            ),
            (NodeStatus { drivers: vec![driver("a", "n"); 2], ..good.clone() }, "\"a\" more than once"),
            (NodeStatus { drivers: vec![driver("a", "")], ..good.clone() }, "drivers.node_id has 0"),
            (NodeStatus { drivers: vec![driver(&"a".repeat(1025), "n")], ..good }, "drivers.name has 1025"),
        ] {
            let text = check(&wrong).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }
}

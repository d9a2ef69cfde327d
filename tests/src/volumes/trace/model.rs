//! The steps of a trace, and the expected state after each step.

use std::collections::BTreeMap;
use std::fmt;

use crate::volumes::rounds::Rounds;

/// The volumes of a trace, by name.
pub const VOLUMES: [&str; 3] = ["one", "two", "three"];

/// The consumers, by name; each consumer may hold each volume.
pub const CONSUMERS: [&str; 3] = ["a", "b", "c"];

const MEBIBYTE: u64 = 1 << 20;

/// The upper bound, inclusive, of the step before which a node's process is killed.
const MAX_KILL_STEP: u64 = 24;

/// An order to a node. A volume is an index in [`VOLUMES`], a consumer is an index in [`CONSUMERS`].
#[allow(clippy::exhaustive_enums, reason = "these are the orders of a trace")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Publishes a volume at a consumer's target, read-only if `true`.
    Publish(usize, usize, bool),
    /// Unpublishes a volume from a consumer's target, and waits for the end.
    Unpublish(usize, usize),
    /// Unpublishes a volume from a consumer's target without a wait.
    Release(usize, usize),
    /// Expands a volume to this size in bytes.
    Expand(usize, u64),
}

/// A step of a trace.
#[allow(clippy::exhaustive_enums, reason = "these are the steps of a trace")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The node gets an order.
    Order(Order),
    /// The node's process gets an order and is killed before the step of this number. A new process gets the order
    /// again.
    Killed(u64, Order),
    /// The node's process is killed and started again.
    RestartNode,
    /// The driver is killed and started again.
    RestartDriver,
    /// The driver is killed, a consumer is released, and the driver is started again.
    ReleaseWithoutDriver(usize, usize),
    /// The node and the driver are killed, every mount is removed, and both start in another boot.
    Reboot,
}

/// The expected answer of the node to an order.
#[allow(clippy::exhaustive_enums, reason = "there are only two")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The order succeeded.
    Done,
    /// The order succeeded, and the volume has this size in bytes.
    Bytes(u64),
    /// The order failed.
    Refused,
}

/// The expected state of a node's volumes.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// Volume and consumer of each publication, and whether it is read-only.
    held: BTreeMap<(usize, usize), bool>,
    /// The size in bytes of the last expansion, by volume.
    largest: [u64; VOLUMES.len()],
    /// The size in bytes that the node has recorded; `None` once the node does not manage the volume.
    known: [Option<u64>; VOLUMES.len()],
}

impl Model {
    /// Returns the volume and consumer of each publication, and whether it is read-only.
    #[must_use]
    pub fn held(&self) -> &BTreeMap<(usize, usize), bool> {
        &self.held
    }

    /// Returns whether any consumer holds the volume.
    #[must_use]
    pub fn is_held(&self, volume: usize) -> bool {
        self.held.keys().any(|(held, _)| *held == volume)
    }

    /// Returns a random next step. Kinds of steps with more failure modes are more frequent.
    pub fn next(&self, rounds: &mut Rounds) -> Step {
        let below = |rounds: &mut Rounds, bound: usize| {
            usize::try_from(rounds.below(bound as u64)).unwrap_or_default()
        };
        let (volume, consumer) = (below(rounds, VOLUMES.len()), below(rounds, CONSUMERS.len()));
        let read_only = self.held.get(&(volume, consumer)).copied().unwrap_or_else(|| rounds.below(3) == 0);
        let publish = Order::Publish(volume, consumer, read_only);
        // One of the holders, so that there is something to unpublish.
        let holders: Vec<_> = self.held.keys().copied().collect();
        let (from, owner) = match holders.get(below(rounds, holders.len())) {
            Some(holder) => *holder,
            None => (volume, consumer),
        };
        match rounds.below(32) {
            0..9 => Step::Order(publish),
            9..14 => Step::Order(Order::Unpublish(from, owner)),
            // Perhaps a consumer that does not hold the volume.
            14 => Step::Order(Order::Unpublish(volume, consumer)),
            15..17 => Step::Order(Order::Release(from, owner)),
            17..20 => {
                let bytes = self.largest.get(from).copied().unwrap_or_default().max(MEBIBYTE) + MEBIBYTE;
                Step::Order(Order::Expand(from, bytes))
            }
            20 => match self.known.get(from).copied().flatten() {
                Some(bytes) => Step::Order(Order::Expand(from, bytes - MEBIBYTE)),
                None => Step::Order(publish),
            },
            21..24 => Step::Killed(1 + rounds.below(MAX_KILL_STEP), publish),
            24..26 => Step::Killed(1 + rounds.below(MAX_KILL_STEP), Order::Unpublish(from, owner)),
            26..28 => Step::RestartNode,
            28..30 => Step::RestartDriver,
            30 => Step::ReleaseWithoutDriver(from, owner),
            _ => Step::Reboot,
        }
    }

    /// Applies a step, and returns the expected answer to its order.
    pub fn step(&mut self, step: Step) -> Answer {
        match step {
            Step::Order(order) | Step::Killed(_, order) => self.order(order),
            Step::ReleaseWithoutDriver(volume, consumer) => self.order(Order::Release(volume, consumer)),
            Step::RestartNode | Step::RestartDriver | Step::Reboot => Answer::Done,
        }
    }

    fn order(&mut self, order: Order) -> Answer {
        match order {
            Order::Publish(volume, consumer, read_only) => {
                self.held.insert((volume, consumer), read_only);
                Answer::Done
            }
            Order::Unpublish(volume, consumer) | Order::Release(volume, consumer) => {
                self.held.remove(&(volume, consumer));
                if !self.is_held(volume) {
                    self.known[volume] = None;
                }
                Answer::Done
            }
            Order::Expand(volume, _) if !self.is_held(volume) => Answer::Refused,
            Order::Expand(volume, bytes) => match self.known[volume] {
                Some(known) if bytes < known => Answer::Refused,
                _ => {
                    self.known[volume] = Some(bytes);
                    self.largest[volume] = bytes;
                    Answer::Bytes(bytes)
                }
            },
        }
    }
}

fn name<'a>(names: &[&'a str], number: usize) -> &'a str {
    names.get(number).copied().unwrap_or("?")
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (volume, consumer) = (|of| name(&VOLUMES, of), |of| name(&CONSUMERS, of));
        match *self {
            Self::Publish(of, to, read_only) => {
                let path = if read_only { "ro" } else { "rw" };
                write!(f, "publish {} {} {path}", volume(of), consumer(to))
            }
            Self::Unpublish(of, from) => write!(f, "unpublish {} {}", volume(of), consumer(from)),
            Self::Release(of, from) => write!(f, "release {} {}", volume(of), consumer(from)),
            Self::Expand(of, bytes) => write!(f, "expand {} to {} MiB", volume(of), bytes / MEBIBYTE),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Order(order) => write!(f, "{order}"),
            Self::Killed(at, order) => write!(f, "{order}, killed at effect {at}"),
            Self::RestartNode => write!(f, "restart the node"),
            Self::RestartDriver => write!(f, "restart the driver"),
            Self::ReleaseWithoutDriver(of, from) => {
                write!(f, "release {} {} without a driver", name(&VOLUMES, of), name(&CONSUMERS, from))
            }
            Self::Reboot => write!(f, "reboot"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "done"),
            Self::Bytes(bytes) => write!(f, "{} MiB", bytes / MEBIBYTE),
            Self::Refused => write!(f, "refused"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_never_shrinks_and_an_unpublished_one_has_no_size() {
        let mut model = Model::default();
        let expand = |bytes| Step::Order(Order::Expand(0, bytes));
        assert_eq!(model.step(expand(2)), Answer::Refused, "no consumer holds the volume");
        model.step(Step::Order(Order::Publish(0, 1, false)));
        assert_eq!(model.step(expand(5)), Answer::Bytes(5));
        assert_eq!(model.step(expand(4)), Answer::Refused);
        model.step(Step::ReleaseWithoutDriver(0, 1));
        assert!(!model.is_held(0) && model.known[0].is_none());
        assert_eq!(model.largest[0], 5);
    }
}

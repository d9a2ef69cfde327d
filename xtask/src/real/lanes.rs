//! Which legs and errands are run side by side: most of the time of many is spent on waiting, since their links are slow or are
//! cut, and none shares a port, a socket or a folder with another.

use std::fmt;

use super::errand::Errand;
use super::leg::{Leg, Way};
use super::weather::Weather;

/// One row of the table, but for those of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Leg(Leg),
    Errand(Errand),
}

/// What is done one after the other, beside the other lanes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) tasks: Vec<Task>,
    /// Whether it begins when the sidecars are built.
    pub(crate) behind_sidecars: bool,
}

/// What a task has in common with those that it follows in one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It uses the host: two of them at once would take as long.
    Busy,
    /// It waits for cut links, some seconds long.
    Cuts,
    /// It waits for minutes.
    Slow,
    /// It works with the code of the sidecars.
    Sidecars,
}

impl Task {
    /// All of a run, in the order of its table.
    pub(crate) fn all(legs: &[Leg], errands: &[Errand]) -> Vec<Self> {
        let legs = legs.iter().copied().map(Self::Leg);
        legs.chain(errands.iter().copied().map(Self::Errand)).collect()
    }

    /// Whether it mounts.
    pub(crate) const fn needs_root(self) -> bool {
        match self {
            Self::Leg(leg) => leg.subject.needs_root(),
            Self::Errand(errand) => errand.needs_root(),
        }
    }

    /// Whether others are compared with it, so that it has to come first.
    pub(crate) fn is_baseline(self) -> bool {
        matches!(self, Self::Leg(leg) if leg.way == Way::Direct)
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Leg(leg) => match leg.way {
                Way::Relayed(_, Weather::Far) => Kind::Slow,
                Way::Relayed(_, Weather::Cuts | Weather::FastCuts) => Kind::Cuts,
                Way::Direct | Way::Shim | Way::Relayed(_, Weather::Fair) => Kind::Busy,
            },
            Self::Errand(Errand::Offline) => Kind::Slow,
            Self::Errand(errand) if errand.needs_sidecars() => Kind::Sidecars,
            Self::Errand(_) => Kind::Busy,
        }
    }

    const fn needs_sidecars(self) -> bool {
        matches!(self, Self::Errand(errand) if errand.needs_sidecars())
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leg(leg) => leg.fmt(f),
            Self::Errand(errand) => errand.fmt(f),
        }
    }
}

/// The lanes of these tasks; a single one if they are to be run one at a time, when all is built.
pub(crate) fn lanes(tasks: &[Task], one_at_a_time: bool) -> Vec<Lane> {
    if one_at_a_time {
        return vec![Lane { tasks: tasks.to_vec(), behind_sidecars: false }];
    }
    let mut lanes: Vec<Lane> = Vec::new();
    for &task in tasks {
        let kind = task.kind();
        let same = |lane: &&mut Lane| lane.tasks.iter().any(|other| other.kind() == kind);
        match lanes.iter_mut().find(same).filter(|_| kind != Kind::Slow) {
            Some(lane) => lane.tasks.push(task),
            None => lanes.push(Lane { tasks: vec![task], behind_sidecars: task.needs_sidecars() }),
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(lane: &Lane) -> Vec<String> {
        lane.tasks.iter().map(Task::to_string).collect()
    }

    fn everything() -> Vec<Task> {
        Task::all(&Leg::matching(None), &Errand::matching(None))
    }

    #[test]
    fn every_task_is_in_one_lane_and_what_waits_long_has_one_of_its_own() {
        let lanes = lanes(&everything(), false);
        let alone: Vec<_> = lanes.iter().filter(|lane| lane.tasks.len() == 1).flat_map(names).collect();
        let slow =
            ["hostpath-ws-far", "hostpath-quic-far", "mock-ws-far", "mock-quic-far", "sidecars-offline"];
        assert_eq!(alone, slow);
        let mut all: Vec<_> = lanes.iter().flat_map(names).collect();
        let mut wanted: Vec<_> = everything().iter().map(Task::to_string).collect();
        all.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(all, wanted);
    }

    #[test]
    fn only_lanes_with_the_code_of_the_sidecars_wait_until_it_is_built() {
        for lane in lanes(&everything(), false) {
            let sidecars = names(&lane).iter().all(|name| name.starts_with("sidecars"));
            assert_eq!(lane.behind_sidecars, sidecars, "{lane:?}");
        }
    }

    #[test]
    fn one_at_a_time_is_the_order_of_the_table() {
        let tasks = everything();
        assert_eq!(lanes(&tasks, true), [Lane { tasks, behind_sidecars: false }]);
    }
}

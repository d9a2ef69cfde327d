//! A run of csi-sanity: a driver, and the route to it.

use std::fmt;

use edge_csi_tests::link::LinkKind;

use super::embedded::Embedded;
use super::link_condition::LinkCondition;

/// The driver at the end of the route, and the kind of volume that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// hostpath-driver, mounted volumes.
    Hostpath,
    /// hostpath-driver, raw block volumes.
    HostpathBlock,
    /// The mock driver of Kubernetes' end-to-end tests.
    Mock,
}

/// The route of csi-sanity to the driver's controller. Node calls use the driver's own socket, as a kubelet's do, or the socket
/// that the agent puts in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// The driver's socket.
    Direct,
    /// Through edge-csi-driver, edge-hub and edge-agent.
    Relayed(LinkKind, LinkCondition),
    /// The socket that the agent puts in front of the driver's, for all calls.
    Shim,
    /// Through an example of a relay in a program of an embedder.
    Embedded(Embedded),
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TestRun {
    pub(crate) subject: Subject,
    pub(crate) route: Route,
}

const SUBJECTS: [Subject; 3] = [Subject::Hostpath, Subject::HostpathBlock, Subject::Mock];

const ROUTES: [Route; 15] = [
    Route::Direct,
    Route::Shim,
    Route::Relayed(LinkKind::Uds, LinkCondition::Clean),
    Route::Relayed(LinkKind::Ws, LinkCondition::Clean),
    Route::Relayed(LinkKind::Wss, LinkCondition::Clean),
    Route::Relayed(LinkKind::Quic, LinkCondition::Clean),
    Route::Relayed(LinkKind::Ws, LinkCondition::Cuts),
    Route::Relayed(LinkKind::Quic, LinkCondition::Cuts),
    Route::Relayed(LinkKind::Ws, LinkCondition::FastCuts),
    Route::Relayed(LinkKind::Quic, LinkCondition::FastCuts),
    Route::Relayed(LinkKind::Ws, LinkCondition::Far),
    Route::Relayed(LinkKind::Quic, LinkCondition::Far),
    Route::Embedded(Embedded::Nats),
    Route::Embedded(Embedded::Mqtt),
    Route::Embedded(Embedded::AllInOne),
];

impl Subject {
    pub(crate) const fn needs_root(self) -> bool {
        matches!(self, Self::Hostpath | Self::HostpathBlock)
    }

    /// Returns the cases that fail on the driver itself. These cases also run through the relay, and must fail there.
    pub(crate) const fn known_failures(self) -> &'static [&'static str] {
        match self {
            Self::Hostpath | Self::HostpathBlock => &[],
            // The mock accepts any mutable parameter, so every case that expects an error fails.
            Self::Mock => &[
                "ModifyVolume [Controller Server] should fail if no volume id is given",
                "ModifyVolume [Controller Server] should fail if volume does not exist",
                "ModifyVolume [Controller Server] should fail if specified mutable parameters are not supported by the volume",
                "ModifyVolume [Controller Server] should fail to modify a volume created with a volume attribute class \
                 if new mutable parameters are not supported by volume",
                "Controller Service [Controller Server] CreateVolume should not create volume with an invalid volume \
                 attribute class",
            ],
        }
    }
}

impl TestRun {
    /// Returns the processes of this workspace, whose logs must contain no secret. The mock prints every request.
    pub(crate) fn own_processes(self) -> Vec<&'static str> {
        let route: &[&str] = match self.route {
            Route::Direct => &[],
            Route::Shim => &["hub", "agent"],
            Route::Relayed(..) => &["hub", "agent", "proxy"],
            Route::Embedded(example) => example.own_processes(),
        };
        let driver: &[&str] = match self.subject {
            Subject::Hostpath | Subject::HostpathBlock => &["driver"],
            Subject::Mock => &[],
        };
        [route, driver].concat()
    }

    /// Returns every test run, the direct run of a subject first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        SUBJECTS
            .into_iter()
            .flat_map(|subject| ROUTES.into_iter().map(move |route| Self { subject, route }))
            .filter(Self::is_worth_its_time)
    }

    /// Returns true unless the run adds little: links are independent of the kind of volume, and runs over bad links take
    /// minutes.
    fn is_worth_its_time(&self) -> bool {
        !matches!(
            (self.subject, self.route),
            (
                Subject::HostpathBlock,
                Route::Relayed(_, LinkCondition::Cuts | LinkCondition::FastCuts | LinkCondition::Far)
            ) | (Subject::HostpathBlock | Subject::Mock, Route::Embedded(_))
        )
    }
}

impl fmt::Display for TestRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject {
            Subject::Hostpath => "hostpath",
            Subject::HostpathBlock => "block",
            Subject::Mock => "mock",
        };
        let (kind, condition) = match self.route {
            Route::Direct => return write!(f, "{subject}-direct"),
            Route::Shim => return write!(f, "{subject}-shim"),
            Route::Embedded(Embedded::Nats) => return write!(f, "{subject}-nats"),
            Route::Embedded(Embedded::Mqtt) => return write!(f, "{subject}-mqtt"),
            Route::Embedded(Embedded::AllInOne) => return write!(f, "{subject}-all-in-one"),
            Route::Relayed(kind, condition) => (kind, condition),
        };
        write!(f, "{subject}-{kind}{}", condition.suffix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_run_has_its_own_name() {
        let mut names: Vec<String> = TestRun::all().map(|test_run| test_run.to_string()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 33, "{names:?}");
    }
}

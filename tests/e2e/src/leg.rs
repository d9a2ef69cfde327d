//! What is run: a driver, and the way to it.

use std::fmt;

use edge_csi_tests::link::LinkKind;

use super::weather::Weather;

/// The driver at the end of the way, and the kind of volume that is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Our own driver, mounted volumes.
    Hostpath,
    /// Our own driver, raw block volumes.
    HostpathBlock,
    /// The mock driver of Kubernetes' end-to-end tests.
    Mock,
}

/// How csi-sanity reaches the driver's controller. Node calls go to the driver's own socket, as a kubelet's do, or to the one
/// that the agent puts before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// On the driver's socket.
    Direct,
    /// Through edge-csi-driver, edge-hub and edge-agent.
    Relayed(LinkKind, Weather),
    /// On the socket that the agent puts before the driver's, for everything.
    Shim,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) subject: Subject,
    pub(crate) way: Way,
}

const SUBJECTS: [Subject; 3] = [Subject::Hostpath, Subject::HostpathBlock, Subject::Mock];

const WAYS: [Way; 12] = [
    Way::Direct,
    Way::Shim,
    Way::Relayed(LinkKind::Uds, Weather::Fair),
    Way::Relayed(LinkKind::Ws, Weather::Fair),
    Way::Relayed(LinkKind::Wss, Weather::Fair),
    Way::Relayed(LinkKind::Quic, Weather::Fair),
    Way::Relayed(LinkKind::Ws, Weather::Cuts),
    Way::Relayed(LinkKind::Quic, Weather::Cuts),
    Way::Relayed(LinkKind::Ws, Weather::FastCuts),
    Way::Relayed(LinkKind::Quic, Weather::FastCuts),
    Way::Relayed(LinkKind::Ws, Weather::Far),
    Way::Relayed(LinkKind::Quic, Weather::Far),
];

impl Subject {
    pub(crate) const fn needs_root(self) -> bool {
        matches!(self, Self::Hostpath | Self::HostpathBlock)
    }

    /// Cases that fail on the driver itself. They are run all the same: through the relay they must fail too.
    pub(crate) const fn known_failures(self) -> &'static [&'static str] {
        match self {
            Self::Hostpath | Self::HostpathBlock => &[],
            // The mock takes whatever mutable parameter it is given, so every case that expects a refusal fails.
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

impl Leg {
    /// The processes that are ours, whose logs must show no secret. The mock prints every request whole.
    pub(crate) fn own_processes(self) -> Vec<&'static str> {
        let way: &[&str] = match self.way {
            Way::Direct => &[],
            Way::Shim => &["hub", "agent"],
            Way::Relayed(..) => &["hub", "agent", "endpoint"],
        };
        let driver: &[&str] = match self.subject {
            Subject::Hostpath | Subject::HostpathBlock => &["driver"],
            Subject::Mock => &[],
        };
        [way, driver].concat()
    }

    /// Every leg, a subject's direct one first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        SUBJECTS
            .into_iter()
            .flat_map(|subject| WAYS.into_iter().map(move |way| Self { subject, way }))
            .filter(Self::is_worth_its_time)
    }

    /// The links do not know what kind of volume a call is about, and legs over bad links take minutes.
    fn is_worth_its_time(&self) -> bool {
        !matches!(
            (self.subject, self.way),
            (Subject::HostpathBlock, Way::Relayed(_, Weather::Cuts | Weather::FastCuts | Weather::Far))
        )
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject {
            Subject::Hostpath => "hostpath",
            Subject::HostpathBlock => "block",
            Subject::Mock => "mock",
        };
        let (kind, weather) = match self.way {
            Way::Direct => return write!(f, "{subject}-direct"),
            Way::Shim => return write!(f, "{subject}-shim"),
            Way::Relayed(kind, weather) => (kind, weather),
        };
        write!(f, "{subject}-{kind}{}", weather.suffix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leg_has_a_name_of_its_own() {
        let mut names: Vec<String> = Leg::all().map(|leg| leg.to_string()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 30, "{names:?}");
    }
}

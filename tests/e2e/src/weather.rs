//! What happens to the links of a leg.

use edge_csi_tests::link::LinkKind;

/// What the cable between hub, agent and edge-csi-driver does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// There is none: the links are the host's own.
    Fair,
    /// All links are cut every two seconds, a little earlier or later, for 300 ms. Sidecars try again after 2, 4, 8 and at last 30 s: with
    /// cuts that keep step, one that has met a cut would meet one each time.
    Cuts,
    /// All links are cut every half second, a little earlier or later, for 100 ms: hardly a link lives longer than a call.
    FastCuts,
    /// 200 ms for the way there and back over both links, and 1 % loss.
    Far,
}

/// A kind of link, and what happens to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wiring {
    pub(crate) kind: LinkKind,
    pub(crate) weather: Weather,
}

impl From<LinkKind> for Wiring {
    fn from(kind: LinkKind) -> Self {
        Self { kind, weather: Weather::Fair }
    }
}

impl Weather {
    /// What the name of a leg ends with.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Fair => "",
            Self::Cuts => "-cut",
            Self::FastCuts => "-fastcut",
            Self::Far => "-far",
        }
    }

    /// The options of the cable; none if there is no cable.
    pub(crate) const fn cable(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Fair => None,
            Self::Cuts => Some(&["--cut-every", "2s", "--cut-jitter", "300ms", "--cut-for", "300ms"]),
            Self::FastCuts => Some(&["--cut-every", "500ms", "--cut-jitter", "100ms", "--cut-for", "100ms"]),
            Self::Far => Some(&["--delay", "50ms", "--loss", "1%"]),
        }
    }
}

/// What the cable forwards.
pub(crate) const fn cable_option(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Quic | LinkKind::QuicInsecure => "--udp",
        LinkKind::Uds | LinkKind::Ws | LinkKind::Wss => "--tcp",
    }
}

//! The condition of the links in a test run.

/// The behaviour of the cable, a forwarder that injects link faults, between the hub and its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkCondition {
    /// No faults: the links are the host's own, without a cable.
    Clean,
    /// All links are cut about every two seconds, with jitter, for 300 ms. Sidecars retry after 2, 4, 8 and finally 30 s: with
    /// cuts in lockstep, a call hit by one cut would be hit by each.
    Cuts,
    /// All links are cut about every half second, with jitter, for 100 ms: hardly any link lasts longer than a call.
    FastCuts,
    /// A round trip of 200 ms over both links, and 1 % loss.
    Far,
}

impl LinkCondition {
    /// Returns the suffix of a test run's name.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Clean => "",
            Self::Cuts => "-cut",
            Self::FastCuts => "-fastcut",
            Self::Far => "-far",
        }
    }

    /// Returns the options of the cable; `None` without a cable.
    pub(crate) const fn cable(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Clean => None,
            // Not a divisor of 30 s, at which sidecars try again: each attempt of a claim would meet the same part of a cut.
            Self::Cuts => Some(&["--cut-every", "2100ms", "--cut-jitter", "300ms", "--cut-for", "300ms"]),
            Self::FastCuts => Some(&["--cut-every", "500ms", "--cut-jitter", "100ms", "--cut-for", "100ms"]),
            Self::Far => Some(&["--delay", "50ms", "--loss", "1%"]),
        }
    }
}

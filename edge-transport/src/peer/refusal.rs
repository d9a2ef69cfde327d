//! Why a peer is not connected, as far as it decides what to do.

use std::time::Duration;

use crate::link::LinkError;
use crate::session::CloseReason;

/// Who refuses the connection of a peer, and why. The peer tries again in any case, since a hub or a file can be corrected
/// while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// Another process with the peer's name is connected to the hub and alive. Give each process its own name; see
    /// [`PeerId::of_this_process`](crate::PeerId::of_this_process).
    NameInUse,
    /// The hub accepts no credentials of this peer for its name.
    Unauthenticated,
    /// Peer and hub have no common protocol version.
    Version,
    /// The hub is busy, is shutting down, or cannot check the credentials now.
    Unavailable,
    /// The address cannot be used as this peer is configured; nothing was sent.
    Address,
}

impl Refusal {
    /// Whether the same attempt is refused again until the configuration of the peer or the hub changes. Another process
    /// of the same name may end by itself.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        matches!(self, Self::Unauthenticated | Self::Version | Self::Address)
    }

    /// The refusal in the reason of a close; `None` for a link that was lost.
    pub(crate) fn of_close(reason: &CloseReason) -> Option<Self> {
        match reason {
            CloseReason::Refused { reason } => Some(Self::of_text(reason)),
            CloseReason::Version { .. } => Some(Self::Version),
            _ => None,
        }
    }

    /// The refusal in an error of a dialer.
    pub(crate) const fn of_dial(error: &LinkError) -> Option<Self> {
        if matches!(error, LinkError::Address { .. }) { Some(Self::Address) } else { None }
    }

    /// Reads the text of a refusal, which is the only part of it in the protocol: the text of a [`CloseReason`].
    fn of_text(text: &str) -> Self {
        let of_peer = text.strip_prefix("peer ").and_then(|rest| rest.split_once(' ')).map(|(_, rest)| rest);
        match of_peer {
            _ if text.starts_with("no common protocol version") => Self::Version,
            Some(rest) if rest.starts_with("is not authenticated: ") && !rest.contains("try again later") => {
                Self::Unauthenticated
            }
            Some(rest) if rest.starts_with("is connected with session ") => Self::NameInUse,
            _ => Self::Unavailable,
        }
    }
}

/// Why a peer did not connect in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The last attempt was refused. A permanent refusal ends the wait at once.
    #[error("refused: {cause}{}", advice(*refusal))]
    Refused {
        /// What was refused.
        refusal: Refusal,
        /// The words of the hub or the dialer, with the address.
        cause: String,
    },
    /// No hub was reached.
    #[error("no hub reached within {after:?}{}", last_error.as_ref().map_or_else(String::new, |error| format!("; last attempt: {error}")))]
    Unreachable {
        /// The longest wait.
        after: Duration,
        /// The error of the last attempt; `None` if it is not complete.
        last_error: Option<String>,
    },
    /// The peer drains or is closed.
    #[error("this peer is closed")]
    Closed,
}

const fn advice(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NameInUse => ": give each process its own name, for example with `PeerId::of_this_process`",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{PeerId, SessionId};

    /// Every reason with which a hub refuses a hello is read back from its text, whatever the peer's cause contains.
    #[test]
    fn reads_refusals_from_the_text_of_a_hub() {
        let peer = PeerId::new("edge-1").unwrap();
        let [found, current] = [1, 2].map(|instance| SessionId { instance, number: 1 });
        let unauthenticated =
            |cause: &str| CloseReason::Unauthenticated { claimed: peer.clone(), cause: cause.to_owned() };
        for (reason, expected) in [
            (CloseReason::OtherInstance { peer: peer.clone(), found, current }, Refusal::NameInUse),
            (unauthenticated("its certificate is for [x]"), Refusal::Unauthenticated),
            (unauthenticated("peer x is connected with session 1"), Refusal::Unauthenticated),
            (unauthenticated("its token cannot be verified now, try again later: x"), Refusal::Unavailable),
            (CloseReason::Version { local: 1..=1, remote: 2..=3 }, Refusal::Version),
            (CloseReason::Overloaded { resource: "sessions", max: 5 }, Refusal::Unavailable),
            (CloseReason::OlderSession { peer: peer.clone(), found, current }, Refusal::Unavailable),
            (CloseReason::Drained { reason: "roll-out".to_owned() }, Refusal::Unavailable),
        ] {
            let refused = CloseReason::Refused { reason: reason.to_string() };
            assert_eq!(Refusal::of_close(&refused), Some(expected), "{reason}");
        }
        assert_eq!(Refusal::of_close(&CloseReason::Closed), None);
    }
}

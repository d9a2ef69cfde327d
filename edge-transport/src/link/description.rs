//! What a link says about itself: its kind, what protects its frames, and what the other end has proven.

use std::fmt;
use std::time::SystemTime;

use super::PeerCertificate;
use crate::name::PeerId;

/// What the other end of a link has proven about itself before the first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credentials {
    /// Nothing: the name in the hello is only a claim.
    None,
    /// A verified certificate.
    Certificate(PeerCertificate),
    /// A process on this host.
    Process {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
}

/// The cause of a failed handshake with credentials that [have expired](Credentials::have_expired).
#[cfg(any(feature = "ws", feature = "quic"))]
pub(super) const EXPIRED: &str = "the certificate that the TLS session began with has expired: renew it";

impl Credentials {
    /// When they end, if they are a certificate and that is readable.
    pub(crate) const fn end(&self) -> Option<SystemTime> {
        match self {
            Self::Certificate(own) => own.expires,
            _ => None,
        }
    }

    /// Whether they are a certificate that has expired. TLS verifies it when a session begins, which may be resumed later.
    pub(crate) fn have_expired(&self, now: SystemTime) -> bool {
        self.end().is_some_and(|end| end <= now)
    }
}

/// The kind of a link, a name for logs and metrics. It decides nothing; see [`Protection`].
///
/// ```
/// use edge_transport::link::LinkKind;
///
/// const SERIAL: LinkKind = LinkKind::custom("serial");
/// assert_eq!(SERIAL.to_string(), "serial");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkKind(&'static str);

/// Longest name of a [`LinkKind`] in bytes.
const MAX_KIND: usize = 32;

impl LinkKind {
    /// Inside the process.
    pub const MEMORY: Self = Self("memory");
    /// Unix socket.
    pub const UDS: Self = Self("uds");
    /// Websocket over plain TCP.
    pub const WS: Self = Self("ws");
    /// Websocket over TLS.
    pub const WSS: Self = Self("wss");
    /// QUIC.
    pub const QUIC: Self = Self("quic");

    /// Names the kind of an own link, with 1 to 32 lower-case letters, digits and hyphens. Use it in a constant: a bad name
    /// then fails to compile.
    ///
    /// # Panics
    /// If the name has another length or another character.
    #[must_use]
    pub const fn custom(name: &'static str) -> Self {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty() && bytes.len() <= MAX_KIND, "the kind of a link has 1 to 32 bytes");
        let mut at = 0;
        while at < bytes.len() {
            let allowed = bytes[at].is_ascii_lowercase() || bytes[at].is_ascii_digit() || bytes[at] == b'-';
            assert!(allowed, "the kind of a link has lower-case letters, digits and hyphens only");
            at += 1;
        }
        Self(name)
    }

    /// The name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// What protects the frames of a link, as stated by the code that builds it. Peers and hubs decide by it, never by the
/// [kind](LinkKind): a token is sent only on [`Private`](Self::Private) and [`Verified`](Self::Verified) links, and a hub
/// accepts neither a token nor credentials on a link with no protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protection {
    /// None: others on the network can read or change the frames.
    None,
    /// Encrypted, but the other end may be anyone: TLS without a verified certificate of the other end.
    Encrypted,
    /// Encrypted, and this end has verified the other.
    Verified,
    /// The frames stay on this host, between processes that its kernel identifies.
    Private,
}

impl Protection {
    /// The protection of a TLS connection whose other end has these credentials.
    #[cfg(any(feature = "ws", feature = "quic"))]
    pub(crate) const fn of_tls(other: &Credentials) -> Self {
        match other {
            Credentials::Certificate(_) => Self::Verified,
            Credentials::None | Credentials::Process { .. } => Self::Encrypted,
        }
    }

    /// Whether only the intended other end can read what this end sends.
    pub(crate) const fn is_confidential(self) -> bool {
        matches!(self, Self::Verified | Self::Private)
    }
}

/// Names a peer with this certificate name, as for links that verify certificates themselves.
impl From<PeerId> for Credentials {
    fn from(name: PeerId) -> Self {
        Self::Certificate(vec![name].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_counts_until_its_end() {
        let end = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        let of = |expires| {
            let mut own = PeerCertificate::from(Vec::new());
            own.expires = expires;
            Credentials::Certificate(own)
        };
        assert!(of(Some(end)).have_expired(end));
        assert!(!of(Some(end)).have_expired(end - std::time::Duration::from_secs(1)));
        assert!(!of(None).have_expired(end) && !Credentials::None.have_expired(end));
    }

    #[test]
    fn custom_kinds_have_bounded_names() {
        assert_eq!(LinkKind::custom("my-tcp2").as_str(), "my-tcp2");
        for bad in ["", "My-tcp", "my tcp", "a=b", "123456789012345678901234567890123"] {
            assert!(std::panic::catch_unwind(|| LinkKind::custom(bad)).is_err(), "{bad}");
        }
    }
}

//! What has proven the name of a peer.

use crate::name::PeerId;

/// An [`Identity`] as the sender of queued frames: its hash with a key of this hub, which is cheap to compare and the same for
/// all sessions of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sender(pub(crate) u64);

/// What has proven the name of a peer. One certificate or token may prove several names: its own and those below
/// it. Their links share the limits of one identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    /// The name of the certificate that covers the claimed name. Without a certificate or token, the claimed name
    /// itself.
    Name(PeerId),
    /// A keyed hash of the token. A verifier does not return the name of a token.
    #[cfg(feature = "runtime")]
    Token(u64),
}

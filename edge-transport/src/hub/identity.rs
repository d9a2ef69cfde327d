//! What has proven the name of a peer.

use crate::name::PeerId;

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

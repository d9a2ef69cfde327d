//! Why a hub or a peer cannot start.

use crate::frame::MAX_SERVICES;

/// Why a hub or a peer cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The hub has no listener.
    #[error("the hub has no listener; add one with `listen`")]
    NoListener,
    /// The peer has no dialer.
    #[error("the peer has no hub address; add one with `dial`")]
    NoDialer,
    /// The peer has too many services.
    #[error("{found} services; at most {MAX_SERVICES} are allowed")]
    TooManyServices {
        /// Number of services.
        found: usize,
    },
    /// The names of the peer's services are too long together. A hub reads a small first frame, and the token must fit too.
    #[error("a hello of {found} bytes; at most {max} are allowed: use fewer services or shorter names")]
    HelloTooLarge {
        /// Bytes of the hello without a token.
        found: usize,
        /// Largest allowed number of bytes.
        max: usize,
    },
    /// A limit is too low.
    #[error("setting {setting} is {found}; it must be at least {min}")]
    TooLow {
        /// The setting.
        setting: &'static str,
        /// Value of the setting.
        found: usize,
        /// Lowest allowed value.
        min: usize,
    },
    /// The deny list has the hub's own name, and would end the hub's own services.
    #[error("{cause}")]
    DeniesHub {
        /// The file and the entry.
        cause: String,
    },
    /// The peer of the hub's own services cannot start.
    #[error("cannot start the hub's own services: {0}")]
    LocalServices(#[source] Box<Self>),
    /// No tokio runtime is running.
    #[error("no tokio runtime; call `start` inside one")]
    NoRuntime,
}

//! Options of dialing and listening.

use std::path::PathBuf;
use std::time::Duration;

#[cfg(any(feature = "ws", feature = "quic"))]
use super::{Address, LinkError};
use super::{Dialer, Limits};
#[cfg(feature = "tls")]
use crate::tls::{ClientTls, ServerTls};
use crate::token::{Token, TokenDialer, TokenSource};

/// Options of dialing.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct DialOptions {
    pub(super) limits: Limits,
    #[cfg(feature = "tls")]
    tls: Option<ClientTls>,
    #[cfg(feature = "tls")]
    insecure: bool,
    token: Option<TokenSource>,
}

impl DialOptions {
    /// Sets the authorities to trust and the certificate to present on `wss` and `quic`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: impl Into<Option<ClientTls>>) -> Self {
        self.tls = tls.into();
        self
    }

    /// Whether to encrypt without verifying the server if there is no TLS configuration (see [`ClientTls::insecure`]), and to
    /// send the token on any link, also to an unverified hub: for experiments on one host only. Default: no.
    #[cfg(feature = "tls")]
    pub const fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// Sets the token that proves the peer's name. The token is sent only on confidential links to a verified hub: `wss` and
    /// QUIC with verification, unix sockets and memory, unless [`insecure`](Self::insecure) is set. Dialing fails on other links.
    pub fn token(mut self, token: impl Into<Option<Token>>) -> Self {
        self.token = token.into().map(TokenSource::Fixed);
        self
    }

    /// Sets the file with only the [token](Self::token), read for each link, so that a new token is used at once.
    pub fn token_file(mut self, path: impl Into<Option<PathBuf>>) -> Self {
        self.token = path.into().map(TokenSource::File);
        self
    }

    /// Sets the largest frame in bytes, both ways. Default [`DEFAULT_MAX_FRAME`](super::DEFAULT_MAX_FRAME); at most
    /// [`MAX_FRAME_CEILING`](super::MAX_FRAME_CEILING).
    pub const fn max_frame(mut self, bytes: usize) -> Self {
        self.limits.set_max_frame(bytes);
        self
    }

    /// Sets the timeout of everything before the first frame (TCP, TLS, websocket, QUIC). Default 10 s.
    pub const fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.limits.handshake_timeout = timeout;
        self
    }

    /// Sets how often websockets are pinged while no call waits, from 1 s to 10 minutes. Default 50 s, below the 60 s after which
    /// many reverse proxies and load balancers close an idle websocket. QUIC is pinged every 25 s, because address translators
    /// forget UDP after 30 s.
    #[cfg(feature = "ws")]
    pub const fn idle_ping(mut self, every: Duration) -> Self {
        self.limits.idle_ping = every;
        self
    }

    /// Makes the links of an own dialer carry the token of these options, if there is one.
    #[must_use]
    pub fn with_token(&self, dialer: Box<dyn Dialer>) -> Box<dyn Dialer> {
        let Some(token) = &self.token else { return dialer };
        let dialer = TokenDialer::new(dialer, token.clone());
        #[cfg(feature = "tls")]
        let dialer = if self.insecure { dialer.insecure() } else { dialer };
        Box::new(dialer)
    }

    #[cfg(any(feature = "ws", feature = "quic"))]
    pub(super) fn client_tls(&self, address: &Address) -> Result<ClientTls, LinkError> {
        match &self.tls {
            Some(tls) => Ok(tls.clone()),
            None if self.insecure => {
                ClientTls::insecure(None).map_err(|error| address.unusable(error.to_string()))
            }
            None => Err(address.unusable("no TLS identity was given: give one, or choose insecure")),
        }
    }
}

/// Trusts the authorities of this configuration and presents its certificate.
#[cfg(feature = "tls")]
impl From<&ClientTls> for DialOptions {
    fn from(tls: &ClientTls) -> Self {
        Self::default().tls(tls.clone())
    }
}

/// Clones the options.
impl From<&Self> for DialOptions {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}

/// Options of listening.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct ListenOptions {
    pub(super) limits: Limits,
    #[cfg(feature = "tls")]
    tls: Option<ServerTls>,
    #[cfg(feature = "tls")]
    insecure: bool,
}

impl ListenOptions {
    /// Sets the certificate to present and the authorities of the clients on `wss` and `quic`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: impl Into<Option<ServerTls>>) -> Self {
        self.tls = tls.into();
        self
    }

    /// Whether to encrypt without a verifiable certificate if there is no TLS configuration (see [`ServerTls::insecure`]): for
    /// experiments on one host only. Default: no.
    #[cfg(feature = "tls")]
    pub const fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// Sets the largest frame in bytes, both ways. Default [`DEFAULT_MAX_FRAME`](super::DEFAULT_MAX_FRAME); at most
    /// [`MAX_FRAME_CEILING`](super::MAX_FRAME_CEILING).
    pub const fn max_frame(mut self, bytes: usize) -> Self {
        self.limits.set_max_frame(bytes);
        self
    }

    /// Sets the timeout of everything before the first frame (TLS, websocket, QUIC). Default 10 s.
    pub const fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.limits.handshake_timeout = timeout;
        self
    }

    #[cfg(any(feature = "ws", feature = "quic"))]
    pub(super) fn server_tls(&self, address: &Address) -> Result<ServerTls, LinkError> {
        match &self.tls {
            Some(tls) => Ok(tls.clone()),
            None if self.insecure => {
                ServerTls::insecure().map_err(|error| address.unusable(error.to_string()))
            }
            None => Err(address.unusable("no TLS certificate was given: give one, or choose insecure")),
        }
    }
}

/// Presents the certificate of this configuration.
#[cfg(feature = "tls")]
impl From<&ServerTls> for ListenOptions {
    fn from(tls: &ServerTls) -> Self {
        Self::default().tls(tls.clone())
    }
}

/// Clones the options.
impl From<&Self> for ListenOptions {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}

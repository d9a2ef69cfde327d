//! The transport configuration of both ends: windows, streams, timers.

use std::ops::RangeInclusive;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, ServerConfig, TransportConfig, VarInt};

use super::{ALPN, STREAMS};
use crate::link::LinkError;

/// Maximum number of unread bytes of one stream at a dialing end, and at an accepting one. The other streams have the rest of the
/// window for all.
pub(super) const STREAM_WINDOW: (u32, u32) = (1 << 20, 768 << 10);

/// Maximum number of unread bytes of all streams at a dialing end.
const RECEIVE_WINDOW: u32 = 4 << 20;

/// Maximum number of unread bytes of all streams at an accepting end, which has many links: as many as it may have of
/// unfinished frames, within these bounds.
pub(super) const ADMITTED_WINDOW: RangeInclusive<u32> = 256 << 10..=1 << 20;

/// Maximum number of unread bytes at an accepting end whose peer is not admitted. The link holds at most as much
/// again above 20 KiB of unfinished frames. A larger hello takes one more round trip.
const UNADMITTED_WINDOW: u32 = 12 << 10;

/// Maximum number of unacknowledged bytes of a dialing end, and of an accepting one, which has many links. They are in no budget:
/// the link has taken them.
const SEND_WINDOW: (u64, u64) = (4 << 20, 1 << 20);

/// Maximum number of connections that wait to be accepted; further ones are refused.
const BACKLOG: usize = 1024;

/// Bytes buffered for one waiting connection, and for all of them.
const BACKLOG_BYTES: (u64, u64) = (64 << 10, 8 << 20);

fn transport(stream_window: u32, window: u32, send_window: u64) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS + 2))
        .stream_receive_window(VarInt::from_u32(stream_window))
        .receive_window(VarInt::from_u32(window))
        .send_window(send_window)
        .datagram_receive_buffer_size(None)
        // Its probes take 10 kB for each connection, more than all else of it, and save a fifth of the packets of large bodies.
        .mtu_discovery_config(None)
        // The session pings, and ends a link that is silent for too long.
        .max_idle_timeout(None);
    transport
}

pub(super) fn server(tls: &rustls::ServerConfig) -> Result<ServerConfig, LinkError> {
    let mut config = ServerConfig::with_crypto(crypto(tls)?);
    config
        .max_incoming(BACKLOG)
        .incoming_buffer_size(BACKLOG_BYTES.0)
        .incoming_buffer_size_total(BACKLOG_BYTES.1)
        .transport_config(Arc::new(transport(STREAM_WINDOW.1, UNADMITTED_WINDOW, SEND_WINDOW.1)));
    Ok(config)
}

/// Returns the configuration with other certificates. The keys of address validation tokens stay the same.
pub(super) fn renewed(old: &ServerConfig, tls: &rustls::ServerConfig) -> Result<ServerConfig, LinkError> {
    let mut config = old.clone();
    config.crypto = crypto(tls)?;
    Ok(config)
}

fn crypto(tls: &rustls::ServerConfig) -> Result<Arc<QuicServerConfig>, LinkError> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = 0;
    QuicServerConfig::try_from(tls).map(Arc::new).map_err(|error| unusable(&error))
}

pub(super) fn client(tls: &rustls::ClientConfig) -> Result<ClientConfig, LinkError> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.enable_early_data = false;
    let crypto = QuicClientConfig::try_from(tls).map_err(|error| unusable(&error))?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport(STREAM_WINDOW.0, RECEIVE_WINDOW, SEND_WINDOW.0)));
    Ok(config)
}

fn unusable(error: &dyn std::fmt::Display) -> LinkError {
    super::handshake_failed(
        "any peer",
        format!("the TLS configuration cannot serve QUIC, which needs TLS 1.3: {error}"),
    )
}

//! As much gRPC as CSI uses, straight on HTTP/2: one request message, some response messages, a status.
//!
//! Written on `h2` and not on tonic for two reasons: tonic makes up codes out of transport faults, and it costs twice as much.

pub(crate) mod body;
pub(crate) mod fields;
pub(crate) mod io;
pub(crate) mod message;
pub(crate) mod status;
pub(crate) mod timeout;

/// Bytes that one stream may send before it is read.
pub(crate) const STREAM_WINDOW: u32 = 1024 * 1024;

/// Bytes that all streams of a connection together may send before they are read.
pub(crate) const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// The same for a stream of a driver that is read only as fast as its caller reads.
pub(crate) const SLOW_STREAM_WINDOW: u32 = 256 * 1024;

/// The same for all such streams of a driver together: as many as this holds may stall without holding up the others.
pub(crate) const SLOW_CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Largest HTTP/2 frame that is accepted, in bytes: large messages over a unix socket need few system calls.
pub(crate) const FRAME: u32 = 256 * 1024;

/// Most bytes of headers or trailers that are accepted: a status message may be long.
pub(crate) const HEADER_LIST: u32 = 1024 * 1024;

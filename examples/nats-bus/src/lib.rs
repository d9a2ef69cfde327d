//! CSI calls over a NATS server: an example of a message bus of your own.

#[cfg(feature = "nats")]
mod relay;
mod seal;

#[cfg(feature = "nats")]
pub use self::relay::{Connection, NatsRelay, serve};
pub use self::seal::{KEY_LEN, Seal};

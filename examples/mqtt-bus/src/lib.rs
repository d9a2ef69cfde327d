//! CSI calls over an MQTT broker: an example of a message bus of your own.

#[cfg(feature = "mqtt")]
mod broker;
#[cfg(feature = "mqtt")]
mod relay;

pub use nats_bus::{KEY_LEN, Seal};

#[cfg(feature = "mqtt")]
pub use self::broker::Broker;
#[cfg(feature = "mqtt")]
pub use self::relay::{MqttRelay, serve};

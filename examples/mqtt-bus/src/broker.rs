//! A connection to a broker that is opened again whenever it is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nats_bus::Seal;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};
use rumqttc::v5::{Event, EventLoop, MqttOptions};

/// The largest packet: a message of 16 MiB with its overhead.
const MAX_PACKET: u32 = 17 << 20;

/// A lost connection is noticed after one and a half times as long.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

const RECONNECT: Duration = Duration::from_millis(200);

/// Address and account of a broker.
#[derive(Clone)]
pub struct Broker {
    host: String,
    port: u16,
    login: Option<(String, String)>,
    pub(crate) seal: Arc<Seal>,
}

impl Broker {
    /// A broker at this address.
    pub fn new(host: impl Into<String>, port: u16, seal: Seal) -> Self {
        Self { host: host.into(), port, login: None, seal: Arc::new(seal) }
    }

    /// Connects with this account. Permissions of the broker need one.
    #[must_use]
    pub fn with_login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((user.into(), password.into()));
        self
    }

    pub(crate) fn options(&self, client: String) -> MqttOptions {
        let mut options = MqttOptions::new(client, &self.host, self.port);
        options.set_keep_alive(KEEP_ALIVE).set_max_packet_size(Some(MAX_PACKET));
        if let Some((user, password)) = &self.login {
            options.set_credentials(user, password);
        }
        options
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// What a connection reports.
pub(crate) enum Change {
    Connected,
    /// With the reason.
    Lost(String),
    Message(Publish),
}

/// Returns the next change. Not cancel-safe.
pub(crate) async fn next(events: &mut EventLoop) -> Change {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => return Change::Connected,
            Ok(Event::Incoming(Packet::Publish(message))) => return Change::Message(message),
            Ok(_) => {}
            Err(error) => {
                // Nothing is sent later: by then the callers have their faults.
                events.clean();
                events.pending.clear();
                events.state.events.clear();
                return Change::Lost(error.to_string());
            }
        }
    }
}

/// Waits before the next attempt to connect.
pub(crate) async fn pause() {
    tokio::time::sleep(RECONNECT).await;
}

//! The client side: sends calls as gRPC to the socket of a driver.

mod large_answers;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
#[cfg(feature = "testing")]
pub use csi_proto::grpc::Connector;
use csi_proto::grpc::{
    CallError, Client, ConnectError, InvalidRequest, MessageError, Part, Request, Response, Windows,
};
use csi_proto::{Delivery, DriverName, Method};
use futures_util::stream;
use tokio::time::{Instant, timeout_at};

use self::large_answers::{LargeAnswers, Limit, keep_for};
use crate::address::SocketAddress;
use crate::call::{Call, Fault, Replies, Reply};
use crate::grpc::{read_outcome, write_metadata};
use crate::relay::Relay;

/// The maximum durations of calls: of each method, and of those without their own.
#[derive(Debug, Clone)]
struct Timeouts {
    default: Duration,
    methods: BTreeMap<Method, Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { default: Duration::from_secs(15 * 60), methods: BTreeMap::new() }
    }
}

impl Timeouts {
    /// The timeout of a method; `None` is an unknown one.
    fn of(&self, method: Option<Method>) -> Duration {
        let own = method.and_then(|method| self.methods.get(&method));
        (*own.unwrap_or(&self.default)).min(MAX_TIMEOUT)
    }
}

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size of a response message in bytes.
const MAX_REPLY: usize = 16 * 1024 * 1024;

/// The same for the answer to a call of another host that changes something, which is read in any case. It has one volume or
/// snapshot, or the snapshots of a group.
const MAX_REMOTE_CHANGE: usize = 256 * 1024;

/// The maximum of [`Timeouts`].
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A driver behind a unix socket. Cheap to clone; all clones share three connections, each opened at its first call and
/// reopened after a loss:
///
/// - for unary calls made on the node;
/// - for unary calls of [other hosts](Call::remote): a driver may limit the open calls of a connection;
/// - for streams and unknown methods. Streams are read only as fast as their callers read, and may stall each other
///   but not unary calls.
///
/// As a [`Relay`] a driver ignores the node of a call, and cancels the RPC when the answer is dropped; a
/// [`Dispatcher`](crate::Dispatcher) in front runs every call to completion.
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
    timeouts: Arc<Timeouts>,
}

struct Shared {
    name: DriverName,
    address: SocketAddress,
    unary: Client,
    remote_unary: Client,
    streams: Client,
    large_answers: LargeAnswers,
}

impl Driver {
    /// Creates a driver. Opens no connection yet.
    #[must_use]
    pub fn new(name: DriverName, address: SocketAddress) -> Self {
        Self::with_clients(name, address, |client| client)
    }

    /// Sets the maximum duration of a call; default 15 minutes, at most a year. The driver sees this deadline and not
    /// that of the caller, which limits the wait only: some operations take longer than sidecars wait. Applies to this
    /// clone and to later clones of it.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        Arc::make_mut(&mut self.timeouts).default = timeout;
        self
    }

    /// Sets the maximum duration of a call of one method, in place of [that of all](Self::with_timeout). Applies to this
    /// clone and to later clones of it.
    #[must_use]
    pub fn with_method_timeout(mut self, method: Method, timeout: Duration) -> Self {
        Arc::make_mut(&mut self.timeouts).methods.insert(method, timeout);
        self
    }

    fn with_clients(name: DriverName, address: SocketAddress, configure: impl Fn(Client) -> Client) -> Self {
        let client = |windows| configure(Client::new(address.path(), windows, CONNECT_TIMEOUT));
        let [unary, remote_unary] = [Windows::UNARY, Windows::UNARY].map(client);
        let streams = client(Windows::STREAMING);
        let large_answers = LargeAnswers::new();
        let shared = Arc::new(Shared { name, address, unary, remote_unary, streams, large_answers });
        Self { shared, timeouts: Arc::default() }
    }

    /// The name of the driver.
    #[must_use]
    pub fn name(&self) -> &DriverName {
        &self.shared.name
    }

    /// The address of the driver's socket.
    #[must_use]
    pub fn address(&self) -> &SocketAddress {
        &self.shared.address
    }
}

/// Returns the parts of a stream. `limited` is the memory for large ones, if it is limited.
fn stream_replies(
    response: Response,
    limited: Option<Limit>,
    name: DriverName,
    end: Instant,
    expired: Fault,
) -> Replies {
    Replies::stream(stream::unfold(Some((response, limited, name, expired)), move |state| async move {
        let (mut response, limited, name, expired) = state?;
        let part = async {
            let counted = match &limited {
                Some(limited) => limited.count(&name, &mut response).await?,
                None => None,
            };
            let part = response.next().await.map_err(|error| fault_of(&name, error))?;
            Ok::<_, Fault>(match (part, counted) {
                (Part::Message(message), counted) => Reply::Message(keep_for(message, counted)),
                (Part::End(status), _) => Reply::End(read_outcome(status)),
            })
        };
        let part = match timeout_at(end, part).await {
            Ok(part) => part.unwrap_or_else(|fault| Reply::End(fault.into())),
            Err(_) => Reply::End(expired.clone().into()),
        };
        let ends = matches!(part, Reply::End(_));
        Some((part, (!ends).then_some((response, limited, name, expired))))
    }))
}

#[async_trait]
impl Relay for Driver {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let name = self.name();
        let method = Method::from_path(call.method.as_str());
        let timeout = self.timeouts.of(method);
        let end = Instant::now() + timeout;
        let expired = Fault::Deadline { waited: timeout };
        let unary = method.is_some_and(|method| !method.is_server_streaming());
        // The answer to a call that changes something is not refused because of others: that would leave the caller in doubt.
        let changes = method.is_some_and(Method::is_mutating);
        let max = if call.remote && changes { MAX_REMOTE_CHANGE } else { MAX_REPLY };
        // An unknown method may change something.
        let limit = || Limit { answers: self.shared.large_answers.clone(), is_read_only: method.is_some() };
        let limited = (call.remote && !changes).then(limit);
        let client = match (unary, call.remote) {
            (false, _) => &self.shared.streams,
            (true, true) => &self.shared.remote_unary,
            (true, false) => &self.shared.unary,
        };
        let request = Request::new(call.method.as_str(), call.body, max);
        let invalid = |error: InvalidRequest| Fault::Protocol { reason: error.to_string() };
        let mut request = request.map_err(invalid)?.with_timeout(timeout);
        write_metadata(&call.metadata, request.metadata_mut());
        let late = expired.clone();
        let answer = async {
            let failed = |error| fault_of(name, error);
            let mut response = client.send(request).await.map_err(failed)?;
            if !unary {
                return Ok(stream_replies(response, limited, name.clone(), end, expired));
            }
            let counted = match &limited {
                Some(limited) => limited.count(name, &mut response).await?,
                None => None,
            };
            let (message, status) = response.whole().await.map_err(failed)?;
            let message = message.map(|message| keep_for(message, counted));
            Ok(Replies::whole(message, read_outcome(status)))
        };
        timeout_at(end, answer).await.unwrap_or(Err(late))
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("name", self.name())
            .field("address", self.address())
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "testing")]
mod testing {
    use super::{Connector, Driver, DriverName, SocketAddress};

    impl Driver {
        /// Creates a driver inside this process. The address is used in logs only.
        #[must_use]
        pub fn with_connector(name: DriverName, address: SocketAddress, connector: &Connector) -> Self {
            Self::with_clients(name, address, |client| client.with_connector(connector.clone()))
        }
    }
}
/// Maps an error of the client to a fault. A status of the driver is not an error.
fn fault_of(driver: &DriverName, error: CallError) -> Fault {
    let driver = driver.clone();
    match error {
        CallError::Connect(ConnectError::Missing { path, .. }) => {
            Fault::DriverSocketMissing { driver, path: path.display().to_string() }
        }
        // Only the client can prove that the driver did not receive the request.
        error if error.delivery() == Delivery::NotSent => {
            Fault::DriverRefused { driver, reason: error.to_string() }
        }
        CallError::Lost(error) => Fault::DriverLost { driver, reason: error.to_string() },
        CallError::Message(MessageError::TooLarge { found, max }) => {
            Fault::ReplyTooLarge { found: found as u64, max: max as u64 }
        }
        error => Fault::DriverProtocol { driver, reason: error.to_string() },
    }
}

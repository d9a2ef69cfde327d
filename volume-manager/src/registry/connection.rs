//! One gRPC call on a connection of its own.
//!
//! A registrar is called twice in its life, so there is no pool and no reconnect: the connection ends with the call.

use std::path::Path;
use std::time::Duration;

use csi_proto::grpc::{ConnectError, Connection, UnaryError, Windows};
use csi_proto::pluginregistration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use prost::Message;
use tokio::time::timeout;

/// How long a dial may take.
const DIAL: Duration = Duration::from_secs(10);

/// How long GetInfo may take.
const GET_INFO: Duration = Duration::from_secs(1);

/// How long NotifyRegistrationStatus may take.
const NOTIFY: Duration = Duration::from_secs(5);

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// Why a registrar gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Not in time.
    #[error("{call} took longer than {} s", bound.as_secs())]
    Late { call: &'static str, bound: Duration },
    /// Answered with an error, or not.
    #[error("{call}: {source}")]
    Call { call: &'static str, source: UnaryError },
}

/// Asks the registrar on a socket for its driver.
pub(super) async fn get_info(path: &Path) -> Result<PluginInfo, CallError> {
    call(path, "GetInfo", GET_INFO, InfoRequest {}).await
}

/// Tells the registrar on a socket what became of its driver.
pub(super) async fn notify(path: &Path, status: RegistrationStatus) -> Result<(), CallError> {
    let RegistrationStatusResponse {} = call(path, "NotifyRegistrationStatus", NOTIFY, status).await?;
    Ok(())
}

async fn call<Q: Message, A: Message + Default>(
    path: &Path,
    call: &'static str,
    bound: Duration,
    request: Q,
) -> Result<A, CallError> {
    let connection = Connection::open(path, Windows::AT_ONCE, DIAL).await?;
    let method = format!("/pluginregistration.Registration/{call}");
    let answer = timeout(bound, connection.unary(&method, request, bound, MAX_ANSWER)).await;
    answer.map_err(|_| CallError::Late { call, bound })?.map_err(|source| CallError::Call { call, source })
}

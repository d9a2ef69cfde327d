//! A connection to a driver, and the calls over it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::Method;
use csi_proto::csi::v1::{
    ControllerExpandVolumeResponse, ControllerPublishVolumeResponse, NodeExpandVolumeResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use csi_proto::grpc::Connection;
use prost::Message;
use tokio::time::timeout;

use super::bounds::MAX_CONTEXT_BYTES;
use super::call_error::{CallError, SecretError};
use super::channel::{self, CALL_TIMEOUT, Stripper};
use super::facts::DriverFacts;
use super::operation::Operation;
use super::outcome::CallOutcome;
use super::policy::DriverPolicy;
use super::process::PreviousProcesses;
use super::request::Requests;
use super::secret_reference::SecretReference;
use super::secrets::{SecretValues, Secrets, ServiceAccountToken, tokens_json};
use super::stats::{self, StatsAnswer};
use super::volume_spec::VolumeSpec;

/// The timeout for resolving the secrets of a call.
const SECRETS_TIMEOUT: Duration = Duration::from_secs(30);

/// One connection to a driver, with the facts that the driver reported in the handshake. The facts of a connection
/// never change.
///
/// Any number of calls may run at once. The caller serializes the calls of one volume.
pub struct DriverConnection {
    pub(super) facts: DriverFacts,
    pub(super) earlier: PreviousProcesses,
    pub(super) grpc: Connection,
    pub(super) policy: DriverPolicy,
    pub(super) secrets: Arc<dyn Secrets>,
}

impl fmt::Debug for DriverConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverConnection").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl DriverConnection {
    /// The driver's name, version, capabilities and node id.
    #[must_use]
    pub fn facts(&self) -> &DriverFacts {
        &self.facts
    }

    /// Whether every process that served an earlier connection has certainly exited, so that no call over an earlier
    /// connection still runs. False for the first connection, since the processes before it are unknown, such as those
    /// before this process was restarted.
    ///
    /// A connection can break while the driver keeps running, so a new connection alone proves nothing. Processes
    /// are identified by the socket's credentials and by `/proc`; where these are not visible, such as from
    /// another PID namespace, the result is false. Every call checks `/proc` again, since a process may exit some
    /// time after its successor has started. Child processes that the driver left behind are not checked.
    #[must_use]
    pub fn earlier_processes_ended(&self) -> bool {
        self.earlier.have_exited()
    }

    /// Whether the connection was lost, or the driver accepts no more calls over it (GOAWAY). In the latter case the running
    /// calls may still succeed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.grpc.is_closed()
    }

    /// Waits until the connection is lost or accepts no more calls. Cancel safe.
    pub async fn closed(&self) {
        self.grpc.closed().await;
    }

    /// Makes a call, and waits for its answer until its deadline.
    ///
    /// Secrets are resolved first, and their resolution does not count against the deadline. If the future is dropped, the call
    /// may continue in the driver.
    ///
    /// # Errors
    /// If the call was not sent, or failed. [`CallError`] has the driver's code, and reports whether the call was
    /// sent.
    pub async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        let method = operation.method();
        let rejected = |reason| CallError::Request { method, reason };
        let requests = Requests { volume, facts: &self.facts, policy: &self.policy };
        requests.check(operation).map_err(rejected)?;
        let resolved = timeout(SECRETS_TIMEOUT, self.resolve(&requests, operation)).await;
        let late = SecretError::Timeout { bound: SECRETS_TIMEOUT };
        let (secrets, issued) =
            resolved.unwrap_or(Err(late)).map_err(|reason| CallError::Secret { method, reason })?;
        let sensitive = secrets.values().chain(issued.iter().flatten().map(ServiceAccountToken::token));
        let flags = volume.access().mount_flags().iter().flat_map(|flags| sensitive_parts(flags));
        let stripper = Stripper::new(sensitive.chain(flags));
        let call = Call { connection: self, method, stripper: &stripper };
        match operation {
            Operation::ControllerPublish => {
                let request = requests.controller_publish(&secrets).map_err(rejected)?;
                attached(call.send(request).await?)
            }
            Operation::ControllerUnpublish { node_id } => {
                let request = requests.controller_unpublish(node_id.as_ref(), &secrets).map_err(rejected)?;
                call.send_expecting_empty(request).await
            }
            Operation::NodeStage { staging_path } => {
                call.send_expecting_empty(requests.node_stage(staging_path, &secrets)).await
            }
            Operation::NodeUnstage { staging_path } => {
                let request = NodeUnstageVolumeRequest {
                    volume_id: requests.volume_id(),
                    staging_target_path: staging_path.as_str().to_owned(),
                };
                call.send_expecting_empty(request).await
            }
            Operation::NodePublish { consumer, staging_path } => {
                let tokens = issued.as_deref().map(tokens_json);
                let request = requests.node_publish(consumer, staging_path, tokens, &secrets);
                call.send_expecting_empty(request).await
            }
            Operation::NodeUnpublish { target_path } => {
                let request = NodeUnpublishVolumeRequest {
                    volume_id: requests.volume_id(),
                    target_path: target_path.as_str().to_owned(),
                };
                call.send_expecting_empty(request).await
            }
            Operation::ControllerExpand { required_bytes } => {
                let request = requests.controller_expand(*required_bytes, &secrets);
                controller_expanded(&call.send(request).await?, *required_bytes)
            }
            Operation::NodeExpand { required_bytes, volume_path, staging_path } => {
                let request = requests.node_expand(*required_bytes, volume_path, staging_path, &secrets);
                node_expanded(&call.send(request).await?, *required_bytes)
            }
            Operation::Stats { volume_path, staging_path } => {
                let request = NodeGetVolumeStatsRequest {
                    volume_id: requests.volume_id(),
                    volume_path: volume_path.as_str().to_owned(),
                    staging_target_path: requests.staging(staging_path),
                };
                let answer: StatsAnswer = call.send(request).await?;
                let has_condition = self.facts.capabilities.node.volume_condition;
                Ok(CallOutcome::Stats(stats::stats(answer, has_condition)))
            }
            Operation::Health { volume_path, staging_path } => {
                let request = NodeGetVolumeHealthRequest {
                    volume_id: requests.volume_id(),
                    volume_publish_path: volume_path.as_ref().map(ToString::to_string).unwrap_or_default(),
                    staging_target_path: requests.staging(staging_path),
                };
                let answer: NodeGetVolumeHealthResponse = call.send(request).await?;
                Ok(CallOutcome::Health(stats::health(answer)))
            }
        }
    }

    /// Resolves the secret of a call, and its service-account tokens if the driver requests some.
    async fn resolve(
        &self,
        requests: &Requests<'_>,
        operation: &Operation,
    ) -> Result<(SecretValues, Option<Vec<ServiceAccountToken>>), SecretError> {
        let Self { policy, secrets, .. } = self;
        let values = match requests.secret(operation) {
            None => SecretValues::default(),
            Some(reference) => {
                let values = secrets.secret(reference).await?;
                let found = values.bytes();
                if found > SecretReference::MAX_VALUE_BYTES {
                    return Err(SecretError::TooLarge { reference: reference.clone(), found });
                }
                values
            }
        };
        let pod = match operation {
            Operation::NodePublish { consumer, .. } if !policy.token_requests.is_empty() => {
                consumer.pod_info()
            }
            _ => None,
        };
        let issued = match pod {
            Some(pod) => {
                let (driver, wanted) = (&self.facts.name, &policy.token_requests);
                Some(secrets.service_account_tokens(driver, pod, wanted).await?)
            }
            None => None,
        };
        Ok((values, issued))
    }
}

/// A call before its request is sent.
struct Call<'a> {
    connection: &'a DriverConnection,
    method: Method,
    stripper: &'a Stripper<'a>,
}

impl Call<'_> {
    /// Sends a request whose answer is empty.
    async fn send_expecting_empty(&self, request: impl Message) -> Result<CallOutcome, CallError> {
        let () = self.send(request).await?;
        Ok(CallOutcome::Done)
    }

    async fn send<Q: Message, A: Message + Default>(&self, request: Q) -> Result<A, CallError> {
        channel::call(&self.connection.grpc, self.method, request, CALL_TIMEOUT, self.stripper).await
    }
}

/// Returns the parts of a comma-separated mount flag that may be secret: the whole flag, each option with a value, and each
/// value. A driver may print any of them.
fn sensitive_parts(flags: &str) -> impl Iterator<Item = &str> {
    let options = flags.split(',').filter(|option| option.contains('='));
    let values = options.clone().filter_map(|option| Some(option.split_once('=')?.1));
    [flags].into_iter().filter(|flags| flags.contains('=')).chain(options).chain(values)
}

fn attached(answer: ControllerPublishVolumeResponse) -> Result<CallOutcome, CallError> {
    let publish_context = answer.publish_context;
    let found: usize = publish_context.iter().map(|(key, value)| key.len() + value.len()).sum();
    if found > MAX_CONTEXT_BYTES {
        let reason = format!("publish_context has {found} bytes; at most {MAX_CONTEXT_BYTES} are allowed");
        return Err(CallError::Answer { method: Method::ControllerPublishVolume, reason });
    }
    Ok(CallOutcome::Attached { publish_context })
}

fn controller_expanded(
    answer: &ControllerExpandVolumeResponse,
    required_bytes: u64,
) -> Result<CallOutcome, CallError> {
    let found = answer.capacity_bytes;
    let node_expansion_required = answer.node_expansion_required;
    // A size below the required one is a valid answer, which the lifecycle of the volume handles.
    match u64::try_from(found) {
        Ok(capacity_bytes @ 1..) => Ok(CallOutcome::Expanded { capacity_bytes, node_expansion_required }),
        _ => Err(invalid_size(Method::ControllerExpandVolume, found, required_bytes)),
    }
}

fn node_expanded(answer: &NodeExpandVolumeResponse, required_bytes: u64) -> Result<CallOutcome, CallError> {
    let found = answer.capacity_bytes;
    // A file system uses a part of its device for metadata, so less than required is valid here.
    match u64::try_from(found) {
        Ok(capacity_bytes) => Ok(CallOutcome::Expanded { capacity_bytes, node_expansion_required: false }),
        Err(_) => Err(invalid_size(Method::NodeExpandVolume, found, required_bytes)),
    }
}

fn invalid_size(method: Method, found: i64, required_bytes: u64) -> CallError {
    let reason = format!("invalid capacity_bytes {found}; {required_bytes} were required");
    CallError::Answer { method, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_options_and_values_of_mount_flags() {
        let stripper = Stripper::new(sensitive_parts("rw,user=alice,password=hunter2"));
        let printed = stripper.strip("mount failed: password=hunter2 (hunter2), user: alice, rw", 200);
        assert!(!printed.contains("hunter2") && !printed.contains("alice"), "{printed}");
        assert!(printed.ends_with("rw"));
        assert_eq!(sensitive_parts("ro,noexec").count(), 0);
    }
}

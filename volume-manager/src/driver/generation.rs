//! A driver from one connection to the next.

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
use super::channel::{self, BOUND, Stripper};
use super::facts::DriverFacts;
use super::operation::Operation;
use super::outcome::CallOutcome;
use super::policy::DriverPolicy;
use super::process::Earlier;
use super::request::Requests;
use super::secret_reference::SecretReference;
use super::secrets::{SecretValues, Secrets, ServiceAccountToken, tokens_json};
use super::stats::{self, StatsAnswer};
use super::volume_spec::VolumeSpec;

/// How long the secrets of a call may take to be resolved.
const SECRETS_WITHIN: Duration = Duration::from_secs(30);

/// One connection to a driver, and what the driver said when it was made. Facts never change within a generation.
///
/// Any number of calls may be under way at once; that of one volume follow each other is the caller's business.
pub struct Generation {
    pub(super) facts: DriverFacts,
    pub(super) earlier: Earlier,
    pub(super) connection: Connection,
    pub(super) policy: DriverPolicy,
    pub(super) secrets: Arc<dyn Secrets>,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Generation {
    /// What the driver is and can do.
    #[must_use]
    pub fn facts(&self) -> &DriverFacts {
        &self.facts
    }

    /// Whether every process that served an earlier generation is certain to have ended, so that no call of theirs still
    /// runs in it. False for the first generation: nothing is known of what was before, such as before this side was
    /// started anew.
    ///
    /// A connection can break while the driver lives on, so a new generation alone proves nothing. Processes are told by
    /// the socket's credentials and by `/proc`; where these cannot be seen, such as from another PID namespace, this is
    /// false. It is asked of the system each time, since a process may end some time after its successor has begun. One that
    /// the driver has started and left behind is not looked for.
    #[must_use]
    pub fn earlier_processes_ended(&self) -> bool {
        self.earlier.have_ended()
    }

    /// Whether the connection is gone, or the driver takes no more calls over it. Calls that are under way may still end
    /// well in the latter case.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Waits until the connection is known to be gone, or to take no more calls. Safe to be dropped.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }

    /// Makes a call, and waits for its end until its deadline.
    ///
    /// Secrets are resolved first, outside of the deadline. If the future is dropped the call may go on in the driver.
    ///
    /// # Errors
    /// Says whether the driver answered with a code, and whether the call was sent.
    pub async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        let method = operation.method();
        let refused = |reason| CallError::Request { method, reason };
        let requests = Requests { volume, facts: &self.facts, policy: &self.policy };
        requests.check(operation).map_err(refused)?;
        let resolved = timeout(SECRETS_WITHIN, self.resolve(&requests, operation)).await;
        let late = SecretError::Late { bound: SECRETS_WITHIN };
        let (secrets, issued) =
            resolved.unwrap_or(Err(late)).map_err(|reason| CallError::Secret { method, reason })?;
        let sensitive = secrets.values().chain(issued.iter().flatten().map(ServiceAccountToken::token));
        let flags = volume.access().mount_flags().iter().flat_map(|flags| sensitive_parts(flags));
        let stripper = Stripper::new(sensitive.chain(flags));
        let to = Call { generation: self, method, stripper: &stripper };
        match operation {
            Operation::ControllerPublish => {
                let request = requests.controller_publish(&secrets).map_err(refused)?;
                attached(to.send(request).await?)
            }
            Operation::ControllerUnpublish { node_id } => {
                let request = requests.controller_unpublish(node_id.as_ref(), &secrets).map_err(refused)?;
                to.done(request).await
            }
            Operation::NodeStage { staging_path } => {
                to.done(requests.node_stage(staging_path, &secrets)).await
            }
            Operation::NodeUnstage { staging_path } => {
                let request = NodeUnstageVolumeRequest {
                    volume_id: requests.volume_id(),
                    staging_target_path: staging_path.as_str().to_owned(),
                };
                to.done(request).await
            }
            Operation::NodePublish { consumer, staging_path } => {
                let tokens = issued.as_deref().map(tokens_json);
                let request = requests.node_publish(consumer, staging_path, tokens, &secrets);
                to.done(request).await
            }
            Operation::NodeUnpublish { target_path } => {
                let request = NodeUnpublishVolumeRequest {
                    volume_id: requests.volume_id(),
                    target_path: target_path.as_str().to_owned(),
                };
                to.done(request).await
            }
            Operation::ControllerExpand { required_bytes } => {
                let request = requests.controller_expand(*required_bytes, &secrets);
                controller_expanded(&to.send(request).await?, *required_bytes)
            }
            Operation::NodeExpand { required_bytes, volume_path, staging_path } => {
                let request = requests.node_expand(*required_bytes, volume_path, staging_path, &secrets);
                node_expanded(&to.send(request).await?, *required_bytes)
            }
            Operation::Stats { volume_path, staging_path } => {
                let request = NodeGetVolumeStatsRequest {
                    volume_id: requests.volume_id(),
                    volume_path: volume_path.as_str().to_owned(),
                    staging_target_path: requests.staging(staging_path),
                };
                let answer: StatsAnswer = to.send(request).await?;
                let has_condition = self.facts.capabilities.node.volume_condition;
                Ok(CallOutcome::Stats(stats::stats(answer, has_condition)))
            }
            Operation::Health { volume_path, staging_path } => {
                let request = NodeGetVolumeHealthRequest {
                    volume_id: requests.volume_id(),
                    volume_publish_path: volume_path.as_ref().map(ToString::to_string).unwrap_or_default(),
                    staging_target_path: requests.staging(staging_path),
                };
                let answer: NodeGetVolumeHealthResponse = to.send(request).await?;
                Ok(CallOutcome::Health(stats::health(answer)))
            }
        }
    }

    /// The secret of a call, and its tokens if the driver wants some.
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

/// One call that is about to be made.
struct Call<'a> {
    generation: &'a Generation,
    method: Method,
    stripper: &'a Stripper<'a>,
}

impl Call<'_> {
    /// Makes a call whose answer says nothing.
    async fn done(&self, request: impl Message) -> Result<CallOutcome, CallError> {
        let () = self.send(request).await?;
        Ok(CallOutcome::Done)
    }

    async fn send<Q: Message, A: Message + Default>(&self, request: Q) -> Result<A, CallError> {
        channel::call(&self.generation.connection, self.method, request, BOUND, self.stripper).await
    }
}

/// What may be secret of mount flags that are written as one: the whole, and each option that has a value. A driver may
/// print them as a whole, one by one, or only the value.
fn sensitive_parts(flags: &str) -> impl Iterator<Item = &str> {
    let options = flags.split(',').filter(|option| option.contains('='));
    let values = options.clone().filter_map(|option| Some(option.split_once('=')?.1));
    [flags].into_iter().filter(|flags| flags.contains('=')).chain(options).chain(values)
}

fn attached(answer: ControllerPublishVolumeResponse) -> Result<CallOutcome, CallError> {
    let publish_context = answer.publish_context;
    let found: usize = publish_context.iter().map(|(key, value)| key.len() + value.len()).sum();
    if found > MAX_CONTEXT_BYTES {
        let reason = format!("publish_context has {found} bytes; at most {MAX_CONTEXT_BYTES} are kept");
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
    // Too few bytes are an end that is known; what follows from it is for the volume to say.
    match u64::try_from(found) {
        Ok(capacity_bytes @ 1..) => Ok(CallOutcome::Expanded { capacity_bytes, node_expansion_required }),
        _ => Err(no_size(Method::ControllerExpandVolume, found, required_bytes)),
    }
}

fn node_expanded(answer: &NodeExpandVolumeResponse, required_bytes: u64) -> Result<CallOutcome, CallError> {
    let found = answer.capacity_bytes;
    // A file system takes some of its device for itself, so less than required is no contradiction here.
    match u64::try_from(found) {
        Ok(capacity_bytes) => Ok(CallOutcome::Expanded { capacity_bytes, node_expansion_required: false }),
        Err(_) => Err(no_size(Method::NodeExpandVolume, found, required_bytes)),
    }
}

fn no_size(method: Method, found: i64, required_bytes: u64) -> CallError {
    let reason = format!("capacity_bytes is {found}, and {required_bytes} were required");
    CallError::Answer { method, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_of_a_mount_flag_and_each_value_is_kept_out_of_texts() {
        let stripper = Stripper::new(sensitive_parts("rw,user=somebody,password=hunter2"));
        let printed = stripper.strip("mount failed: password=hunter2 (hunter2), user: somebody, rw", 200);
        assert!(!printed.contains("hunter2") && !printed.contains("somebody"), "{printed}");
        assert!(printed.ends_with("rw"));
        assert_eq!(sensitive_parts("ro,noexec").count(), 0);
    }
}

//! Fetches secrets and tokens at the request of a node, and stores none of them. The client's own decoding is not
//! used, since it logs data that it cannot decode.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{GetParams, PostParams};
use kube::{Client, Resource};
use serde::Deserialize;
use serde_json::{Value, json};

use super::api_error::ApiError;
use super::node_feed::NodeFeed;
use super::node_name::NodeName;
use edge_csi_common::excerpt::excerpt;
use edge_csi_common::kubernetes::message::{
    Fetched, SecretName, SecretQuery, TokenQuery, TokenRequest as Wanted,
};

/// The time limit of one request to the API server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The result and the reason of a failed fetch.
#[derive(Debug)]
pub(super) struct FetchFailure {
    pub(super) fetched: Fetched,
    pub(super) reason: String,
}

impl FetchFailure {
    fn new(fetched: Fetched, reason: impl Into<String>) -> Self {
        Self { fetched, reason: reason.into() }
    }
}

impl From<ApiError> for FetchFailure {
    fn from(failure: ApiError) -> Self {
        let fetched = match failure {
            ApiError::NotFound(_) => Fetched::NotFound,
            _ => Fetched::Unavailable,
        };
        Self::new(fetched, failure.to_string())
    }
}

/// The part of a Secret that is read.
#[derive(Deserialize)]
struct SecretData {
    #[serde(default)]
    data: Option<BTreeMap<String, ByteString>>,
}

/// Fetches the values of a secret that an object of the node names.
pub(super) async fn secret(
    client: &Client,
    feed: &NodeFeed,
    node: &NodeName,
    query: SecretQuery,
) -> Result<BTreeMap<String, String>, FetchFailure> {
    let secret = query.secret.unwrap_or_default();
    let SecretName { namespace, name } = &secret;
    check_names([namespace, name])?;
    if !feed.read(|core| core.names_secret(node, &secret)) {
        let reason = format!("no object of this node names secret {namespace}/{name}");
        return Err(FetchFailure::new(Fetched::Forbidden, reason));
    }
    let request = kube::core::Request::new(Secret::url_path(&(), Some(namespace)));
    let request = request.get(name, &GetParams::default());
    let text = send(client, request.map_err(kube::Error::BuildRequest)).await?;
    let read: Result<SecretData, _> = serde_json::from_str(&text);
    let Ok(SecretData { data }) = read else {
        return Err(FetchFailure::new(
            Fetched::Unavailable,
            format!("secret {namespace}/{name} cannot be read"),
        ));
    };
    let values = data.unwrap_or_default().into_iter().map(|(key, value)| match String::from_utf8(value.0) {
        Ok(value) => Ok((key, value)),
        Err(_) => {
            let reason =
                format!("secret {namespace}/{name}: the value of {key} is not UTF-8, which CSI requires");
            Err(FetchFailure::new(Fetched::Unavailable, reason))
        }
    });
    values.collect()
}

/// Creates the tokens of a pod's service account that the driver of one of its volumes requests.
pub(super) async fn tokens(
    client: &Client,
    feed: &NodeFeed,
    node: &NodeName,
    query: TokenQuery,
) -> Result<String, FetchFailure> {
    let TokenQuery { namespace, pod, uid, driver } = &query;
    let found = feed.read(|core| core.token_requests(node, (namespace, pod, uid), driver));
    let Some((account, wanted)) = found else {
        let reason = format!(
            "pod {namespace}/{pod} with UID {uid} is not on this node, or none of its volumes is of driver {driver}, or there is \
             no such CSIDriver"
        );
        return Err(FetchFailure::new(Fetched::Forbidden, reason));
    };
    check_names([namespace, &account])?;
    let mut tokens = BTreeMap::new();
    for Wanted { audience, expiration_seconds } in wanted {
        let audiences = if audience.is_empty() { Vec::new() } else { vec![audience.clone()] };
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(audiences),
                expiration_seconds: expiration_seconds.and_then(|seconds| seconds.try_into().ok()),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(pod.clone()),
                    uid: Some(uid.clone()),
                }),
            }),
            ..TokenRequest::default()
        };
        let cannot = || {
            FetchFailure::new(
                Fetched::Unavailable,
                format!("cannot create a token for audience {audience:?}"),
            )
        };
        let body = serde_json::to_vec(&request).map_err(|_| cannot())?;
        let request = kube::core::Request::new(ServiceAccount::url_path(&(), Some(namespace)));
        let request = request.create_subresource("token", &account, &PostParams::default(), body);
        let text = send(client, request.map_err(kube::Error::BuildRequest)).await?;
        let made: Value = serde_json::from_str(&text).map_err(|_| cannot())?;
        let status = &made["status"];
        let (Some(token), Some(until)) = (status["token"].as_str(), status["expirationTimestamp"].as_str())
        else {
            return Err(cannot());
        };
        tokens.insert(audience, json!({ "token": token, "expirationTimestamp": until }));
    }
    Ok(json!(tokens).to_string())
}

async fn send(
    client: &Client,
    request: Result<hyper::Request<Vec<u8>>, kube::Error>,
) -> Result<String, ApiError> {
    match tokio::time::timeout(TIMEOUT, client.request_text(request?)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ApiError::Unavailable(format!(
            "the API server did not answer within {} s",
            TIMEOUT.as_secs()
        ))),
    }
}

/// Checks that names are valid as parts of a URL path.
fn check_names(names: [&str; 2]) -> Result<(), FetchFailure> {
    match names.into_iter().find(|name| NodeName::new(name).is_err()) {
        None => Ok(()),
        Some(wrong) => {
            let shown = excerpt(wrong, 100);
            Err(FetchFailure::new(
                Fetched::NotFound,
                format!("{shown:?} is not a valid object name; expected a DNS subdomain"),
            ))
        }
    }
}

//! Fetches secrets and tokens of the API server through the hub, for each call of a driver. They are not stored.

use std::collections::BTreeMap;

use async_trait::async_trait;
use csi_proto::DriverName;
use serde::Deserialize;
use volume_manager::driver::{
    PodInfo, SecretError, SecretReference, SecretValues, Secrets, ServiceAccountToken, TokenRequest,
};

use super::hub::Hub;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{
    Fetched, SecretAnswer, SecretName, SecretQuery, TokenAnswer, TokenQuery,
};

/// Fetches secrets and tokens through the hub.
pub(super) struct HubSecrets(pub(super) Hub);

#[async_trait]
impl Secrets for HubSecrets {
    async fn secret(&self, reference: &SecretReference) -> Result<SecretValues, SecretError> {
        let unavailable = |reason: String| SecretError::Unavailable { reference: reference.clone(), reason };
        let name =
            SecretName { namespace: reference.namespace().to_owned(), name: reference.name().to_owned() };
        let request = Kind::Secret(SecretQuery { secret: Some(name) });
        let answer: SecretAnswer =
            self.0.request(request).await.map_err(|error| unavailable(error.to_string()))?;
        match answer.fetched() {
            Fetched::Found => Ok(answer.values.into_iter().collect()),
            Fetched::NotFound => Err(SecretError::NotFound { reference: reference.clone() }),
            Fetched::Forbidden => {
                Err(unavailable(format!("the hub refuses access to it: {}", answer.reason)))
            }
            Fetched::Unspecified | Fetched::Unavailable => Err(unavailable(answer.reason)),
        }
    }

    async fn service_account_tokens(
        &self,
        driver: &DriverName,
        pod: &PodInfo,
        requests: &[TokenRequest],
    ) -> Result<Vec<ServiceAccountToken>, SecretError> {
        let unavailable = |reason: String| SecretError::TokensUnavailable { reason };
        let request = Kind::Token(TokenQuery {
            namespace: pod.namespace().to_owned(),
            pod: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            driver: driver.to_string(),
        });
        let answer: TokenAnswer =
            self.0.request(request).await.map_err(|error| unavailable(error.to_string()))?;
        match answer.fetched() {
            Fetched::Found => tokens(&answer.tokens, requests).map_err(unavailable),
            _ => Err(unavailable(answer.reason)),
        }
    }
}

/// A token in the JSON format for CSI drivers.
#[derive(Deserialize)]
struct Token {
    token: String,
    #[serde(rename = "expirationTimestamp")]
    expires: String,
}

/// Returns the requested tokens. Errors contain no part of the JSON, which is secret.
fn tokens(json: &str, requests: &[TokenRequest]) -> Result<Vec<ServiceAccountToken>, String> {
    let mut tokens: BTreeMap<String, Token> = serde_json::from_str(json)
        .map_err(|_| "cannot decode the hub's tokens; expected the JSON format for CSI drivers".to_owned())?;
    let requested = requests.iter().map(|request| {
        let token = tokens.remove(&request.audience);
        let token =
            token.ok_or_else(|| format!("the hub sent no token for audience {:?}", request.audience))?;
        Ok(ServiceAccountToken::new(request.audience.clone(), token.token, token.expires))
    });
    requested.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_requested_tokens_and_no_token_in_errors() {
        let json = r#"{"":{"token":"hunter1","expirationTimestamp":"2026-01-31T12:00:00Z"},
            "vault":{"token":"hunter2","expirationTimestamp":"2026-01-31T13:00:00Z"}}"#;
        let request = |audience: &str| TokenRequest { audience: audience.into(), expiration_seconds: None };
        let found = tokens(json, &[request("vault"), request("")]).unwrap();
        let expected = [
            ServiceAccountToken::new("vault", "hunter2", "2026-01-31T13:00:00Z"),
            ServiceAccountToken::new("", "hunter1", "2026-01-31T12:00:00Z"),
        ];
        assert!(found == expected);
        for (json, requests) in [(json, [request("other")]), (r#"{"":"hunter2"}"#, [request("")])] {
            let error = tokens(json, &requests).unwrap_err();
            assert!(!error.contains("hunter"), "{error}");
        }
    }
}

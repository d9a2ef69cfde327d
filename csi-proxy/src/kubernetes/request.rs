//! One request to the API server: its time limit, and what its failure means.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use kube::core::Status;

use crate::routing::store::StoreError;

/// The maximum length in bytes of an API server's message in an error.
const MAX_MESSAGE: usize = 400;

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The object has changed, or exists already.
    #[error("the object has changed: {message}")]
    Conflict { message: String },
    /// The API server has no object of this name.
    #[error("the object does not exist: {message}")]
    Absent { message: String },
    /// A list cannot be continued.
    #[error("the list has expired: {message}")]
    Expired { message: String },
    /// The API server answered with another error.
    #[error("the API server answered {code} {reason}: {message}")]
    Refused { code: u16, reason: String, message: String },
    /// No answer. The request may have been executed.
    #[error("no answer of the API server: {0}")]
    NoAnswer(#[source] kube::Error),
    /// No answer in time. The request may be executed later.
    #[error("the API server did not answer within {limit:?}")]
    Late { limit: Duration },
}

impl From<RequestError> for StoreError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Late { .. } => Self::Late,
            error => Self::Failed(Arc::new(io::Error::other(error))),
        }
    }
}

/// Waits for the answer to a request about the object of this name; for a list, the name is empty.
pub(super) async fn within<T>(
    limit: Duration,
    name: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestError> {
    match tokio::time::timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(refused(name, &status)),
        Ok(Err(error)) => Err(RequestError::NoAnswer(error)),
        Err(_) => Err(RequestError::Late { limit }),
    }
}

fn refused(name: &str, status: &Status) -> RequestError {
    let message = excerpt(&status.message);
    // A missing custom resource definition is a 404 too, but without the name of the object.
    let is_object = status.details.as_ref().is_some_and(|details| details.name == name);
    match status.code {
        409 => RequestError::Conflict { message },
        404 if is_object && !name.is_empty() => RequestError::Absent { message },
        410 => RequestError::Expired { message },
        code => RequestError::Refused { code, reason: excerpt(&status.reason), message },
    }
}

fn excerpt(text: &str) -> String {
    let end = (0..=text.len().min(MAX_MESSAGE)).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or_default()].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_object_itself_can_be_absent() {
        let named = |name: &str| {
            let status =
                serde_json::json!({ "code": 404, "reason": "NotFound", "details": { "name": name } });
            serde_json::from_value::<Status>(status).unwrap()
        };
        assert!(matches!(refused("a", &named("a")), RequestError::Absent { .. }));
        assert!(matches!(refused("a", &named("")), RequestError::Refused { code: 404, .. }));
        assert!(matches!(refused("", &named("")), RequestError::Refused { code: 404, .. }));
        let without = Status::failure("404 page not found", "").with_code(404);
        assert!(matches!(refused("a", &without), RequestError::Refused { code: 404, .. }));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(excerpt(&"ä".repeat(300)).len(), MAX_MESSAGE);
        assert_eq!(excerpt(&format!("a{}", "ä".repeat(300))).len(), MAX_MESSAGE - 1);
    }
}

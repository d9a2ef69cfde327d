//! Errors of calls to the API server. The text of an error that may contain response data is left out.

use kube::runtime::watcher;

use edge_csi_common::excerpt::excerpt;
use edge_csi_common::process::chain;

/// The maximum length in bytes of an API server's message in an error.
const MAX_MESSAGE_BYTES: usize = 400;

/// A failed request to the API server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApiError {
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The object has changed since it was read.
    #[error("{0}")]
    Conflict(String),
    /// The API server refused the request, and a retry cannot succeed.
    #[error("{0}")]
    Refused(String),
    /// The request failed, and a retry may succeed.
    #[error("{0}")]
    Unavailable(String),
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        let text = text(&error);
        match error {
            kube::Error::Api(status) => match status.code {
                404 => Self::NotFound(text),
                409 => Self::Conflict(text),
                429 | 500.. => Self::Unavailable(text),
                _ => Self::Refused(text),
            },
            _ => Self::Unavailable(text),
        }
    }
}

/// Returns the text of a watch error.
pub(super) fn watch_error_text(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(cause) => format!("cannot list: {}", text(cause)),
        watcher::Error::WatchStartFailed(cause) | watcher::Error::WatchFailed(cause) => {
            format!("cannot watch: {}", text(cause))
        }
        watcher::Error::WatchError(status) => {
            format!("cannot watch: {}", excerpt(&status.message, MAX_MESSAGE_BYTES))
        }
        _ => "cannot watch: the API server sent a list without a resourceVersion".to_owned(),
    }
}

/// Whether a watch error is routine: the resource version has expired, and the watch has to list again.
pub(super) fn is_routine(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchError(status) if status.code == 410)
}

fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("the API server returned {} {}", status.code, status.reason)
        }
        kube::Error::Api(status) => excerpt(&status.message, MAX_MESSAGE_BYTES).to_owned(),
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => {
            let cause = std::error::Error::source(error).map(chain).unwrap_or_default();
            excerpt(&format!("no connection to the API server: {cause}"), MAX_MESSAGE_BYTES).to_owned()
        }
        kube::Error::Auth(_) => {
            "no credentials for the API server; check the user of --kubeconfig".to_owned()
        }
        // The error's own text quotes response data.
        kube::Error::SerdeError(_) => "the API server's response is not the requested object".to_owned(),
        _ => "the request to the API server failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn what_was_read_is_in_no_failure() {
        let error = serde_json::from_str::<u8>("\"s3cret\"").unwrap_err();
        assert!(error.to_string().contains("s3cret"), "the error quotes the data");
        let failure = ApiError::from(kube::Error::SerdeError(error));
        assert!(!failure.to_string().contains("s3cret") && !format!("{failure:?}").contains("s3cret"));
    }

    #[test]
    fn a_failure_says_whether_to_try_again() {
        for (code, expected) in [
            (404, ApiError::NotFound("m".to_owned())),
            (409, ApiError::Conflict("m".to_owned())),
            (403, ApiError::Refused("m".to_owned())),
            (422, ApiError::Refused("m".to_owned())),
            (429, ApiError::Unavailable("m".to_owned())),
            (503, ApiError::Unavailable("m".to_owned())),
        ] {
            let status = Status::failure("m", "Reason").with_code(code);
            assert_eq!(ApiError::from(kube::Error::Api(Box::new(status))), expected, "{code}");
        }
    }
}

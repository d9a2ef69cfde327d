//! The Lease object, and its requests.

use std::fmt;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;

use super::core::{Record, Write};
use crate::call::Term;
use crate::kubernetes::request::{RequestError, within};

/// The annotation with the term.
pub(super) const TERM_ANNOTATION: &str = "edge-csi.io/term";

/// One Lease, and its version that was read or written last.
#[derive(Clone)]
pub(super) struct LeaseObject {
    api: Api<Lease>,
    namespace: String,
    name: String,
    last: Option<Lease>,
}

impl LeaseObject {
    pub(super) fn new(client: Client, namespace: &str, name: &str) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, namespace: namespace.to_owned(), name: name.to_owned(), last: None }
    }

    /// Reads the Lease and its version, consistently: not from the cache of an API server.
    pub(super) async fn read(&mut self, limit: Duration) -> Result<Option<(String, Record)>, RequestError> {
        self.last = match within(limit, &self.name, self.api.get(&self.name)).await {
            Ok(lease) => Some(lease),
            Err(RequestError::Absent { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(self.last.as_ref().map(|lease| (version(lease), record(lease))))
    }

    /// Creates the Lease, or replaces the last version. Returns whether it was written; not if there is another version.
    pub(super) async fn write(&mut self, write: &Write, limit: Duration) -> Result<bool, RequestError> {
        let (parameters, name) = (PostParams::default(), self.name.clone());
        let written = match &self.last {
            Some(last) => {
                let lease = changed(last.clone(), write);
                within(limit, &name, self.api.replace(&name, &parameters, &lease)).await
            }
            None => {
                let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
                let lease = changed(Lease { metadata, spec: None }, write);
                within(limit, &name, self.api.create(&parameters, &lease)).await
            }
        };
        match written {
            Ok(lease) => {
                self.last = Some(lease);
                Ok(true)
            }
            Err(RequestError::Conflict { .. } | RequestError::Absent { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for LeaseObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for LeaseObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The UID too: a Lease that was created again may have a version of the old one, after an API server was restored.
fn version(lease: &Lease) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&lease.metadata.resource_version), text(&lease.metadata.uid))
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let annotations = lease.metadata.annotations.as_ref();
    let term = annotations.and_then(|annotations| annotations.get(TERM_ANNOTATION)?.parse().ok());
    let seconds = spec.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok());
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        transitions: spec.lease_transitions.unwrap_or_default(),
        term: term.and_then(Term::new),
    }
}

/// The Lease with this content. Its labels and other annotations stay.
fn changed(mut lease: Lease, write: &Write) -> Lease {
    let Write { record, acquired, renewed } = write;
    let annotations = lease.metadata.annotations.get_or_insert_default();
    if let Some(term) = record.term {
        annotations.insert(TERM_ANNOTATION.to_owned(), term.to_string());
    }
    let spec = lease.spec.take().unwrap_or_default();
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(record.holder.clone()).filter(|holder| !holder.is_empty()),
        lease_duration_seconds: record.duration.as_secs().try_into().ok(),
        lease_transitions: Some(record.transitions),
        acquire_time: time(*acquired),
        renew_time: time(*renewed),
        ..spec
    });
    lease
}

fn time(time: SystemTime) -> Option<MicroTime> {
    Timestamp::try_from(time).ok().map(MicroTime)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn lease_round_trips_and_keeps_what_others_wrote() {
        let labels = Some([("app".to_owned(), "a".to_owned())].into());
        let annotations = Some([("note".to_owned(), "b".to_owned())].into());
        let metadata = ObjectMeta { labels, annotations, ..ObjectMeta::default() };
        let time = UNIX_EPOCH + Duration::from_micros(1_800_000_000_000_001);
        let term = Term::new(1_800_000_000_000);
        let record =
            Record { holder: "a_1".to_owned(), duration: Duration::from_secs(15), transitions: 3, term };
        let mut write = Write { record, acquired: time, renewed: time };
        let lease = changed(Lease { metadata, spec: None }, &write);
        let text = serde_json::to_value(&lease).unwrap();
        assert_eq!(text["metadata"]["labels"]["app"], "a");
        assert_eq!(text["metadata"]["annotations"]["note"], "b");
        assert_eq!(text["metadata"]["annotations"]["edge-csi.io/term"], "1800000000000");
        assert_eq!(text["spec"]["renewTime"], "2027-01-15T08:00:00.000001Z");
        assert_eq!(super::record(&lease), write.record);
        write.record.holder.clear();
        let released = changed(lease, &write);
        assert_eq!(serde_json::to_value(&released).unwrap()["spec"].get("holderIdentity"), None);
        assert_eq!(super::record(&released), write.record);
    }

    #[test]
    fn invalid_fields_count_as_missing() {
        let mut lease = Lease::default();
        let empty = Record { holder: String::new(), duration: Duration::ZERO, transitions: 0, term: None };
        assert_eq!(record(&lease), empty);
        for term in ["", "0", "-1", "a", "281474976710657"] {
            let annotations = [(TERM_ANNOTATION.to_owned(), term.to_owned())].into();
            lease.metadata.annotations = Some(annotations);
            lease.spec = Some(LeaseSpec { lease_duration_seconds: Some(-1), ..LeaseSpec::default() });
            assert_eq!(record(&lease), empty, "{term}");
        }
    }
}

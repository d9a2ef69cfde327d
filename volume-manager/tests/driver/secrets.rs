//! Secrets: the calls that contain them, and the places that must not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csi_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use csi_proto::{DriverName, Method};
use volume_manager::ConsumerId;
use volume_manager::advanced::driver::{CallError, CallOutcome, Operation};
use volume_manager::driver::{
    Access, AccessMode, ConsumerSpec, DriverPolicy, MemorySecrets, PodInfo, SecretError, SecretReference,
    SecretReferences, SecretValues, Secrets, ServiceAccountToken, TokenRequest, VolumeSpec,
};

use super::scripted::Reply;
use super::{Place, path, publish, stage, volume};

fn reference(name: &str) -> SecretReference {
    SecretReference::new("storage", name).expect("a reference")
}

fn with_secrets() -> VolumeSpec {
    let secrets = SecretReferences {
        node_stage: Some(reference("stage")),
        node_publish: Some(reference("publish")),
        ..Default::default()
    };
    volume("v").to_builder().secrets(secrets).build().expect("a volume")
}

fn values(entries: &[(&str, &str)]) -> SecretValues {
    entries.iter().copied().collect()
}

#[tokio::test(start_paused = true)]
async fn each_call_gets_its_own_secret_and_an_error_gives_none_away() {
    let secrets = MemorySecrets::default()
        .with(reference("stage"), values(&[("user", "admin"), ("key", "hunter2 100%")]))
        .with(reference("publish"), values(&[("key", "correct-horse")]));
    let place = Place::with(DriverPolicy::default(), Arc::new(secrets));
    let scripted = place.start();
    let access = Access::Filesystem {
        fs_type: "cifs".into(),
        mount_flags: vec!["noatime".into(), "password=battery".into()],
    };
    let volume = VolumeSpec::builder(volume("v").key().clone(), access, AccessMode::SingleNodeWriter)
        .secrets(with_secrets().secrets().clone())
        .build()
        .expect("a volume");
    scripted.once(
        Method::NodeStageVolume,
        Reply::Status(13, "mount -o noatime,password=battery,key=hunter2%20100%25,user=admin: bad%0A"),
    );
    let error = place.driver.call(&volume, &stage()).await.expect_err("an error");
    for shown in [
        error.to_string(),
        format!("{error:?}"),
        format!("{volume:?}"),
        format!("{:?}", place.driver.present()),
    ] {
        for secret in ["hunter2", "admin", "battery", "correct-horse"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    assert!(error.to_string().contains("mount -o noatime,***stripped***"), "{error}");
    let request: NodeStageVolumeRequest = scripted.last(Method::NodeStageVolume);
    assert_eq!(request.secrets["key"], "hunter2 100%");
    assert_eq!(place.driver.call(&volume, &publish()).await, Ok(CallOutcome::Done));
    let request: NodePublishVolumeRequest = scripted.last(Method::NodePublishVolume);
    assert_eq!(request.secrets.into_iter().collect::<Vec<_>>(), [("key".into(), "correct-horse".into())]);
}

#[tokio::test(start_paused = true)]
async fn missing_secret_blocks_the_call_but_not_the_teardown() {
    let place = Place::new();
    let scripted = place.start();
    let volume = with_secrets();
    let error = place.driver.call(&volume, &stage()).await.expect_err("no secret");
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(!error.was_sent() && cause.contains("storage/stage"), "{error}: {cause}");
    assert!(!scripted.calls().contains(&Method::NodeStageVolume));
    for down in [
        Operation::NodeUnpublish { target_path: path("/target/1") },
        Operation::NodeUnstage { staging_path: path("/staging/1") },
    ] {
        assert_eq!(place.driver.call(&volume, &down).await, Ok(CallOutcome::Done));
    }
}

/// A source of secrets that counts its requests. It returns another value each time, too much, or nothing.
#[derive(Default)]
struct Changing {
    asked: AtomicUsize,
}

#[tonic::async_trait]
impl Secrets for Changing {
    async fn secret(&self, _: &SecretReference) -> Result<SecretValues, SecretError> {
        match self.asked.fetch_add(1, Ordering::Relaxed) {
            2 => Ok(values(&[("key", &"x".repeat(1024 * 1024))])),
            3 => std::future::pending().await,
            asked => Ok(values(&[("key", &format!("value-{asked}"))])),
        }
    }
}

/// A republish uses the current secrets.
#[tokio::test(start_paused = true)]
async fn secrets_are_resolved_anew_for_each_call_and_within_bounds() {
    let secrets = Arc::new(Changing::default());
    let place = Place::with(DriverPolicy::default(), secrets.clone());
    let scripted = place.start();
    let volume = with_secrets();
    for asked in 0..2 {
        assert_eq!(place.driver.call(&volume, &publish()).await, Ok(CallOutcome::Done));
        let request: NodePublishVolumeRequest = scripted.last(Method::NodePublishVolume);
        assert_eq!(request.secrets["key"], format!("value-{asked}"));
    }
    scripted.forget_calls();
    let error = place.driver.call(&volume, &publish()).await.expect_err("too large");
    assert!(matches!(error, CallError::Secret { reason: SecretError::TooLarge { .. }, .. }), "{error}");
    let error = place.driver.call(&volume, &publish()).await.expect_err("late");
    assert!(matches!(error, CallError::Secret { reason: SecretError::Timeout { .. }, .. }), "{error}");
    assert_eq!(scripted.calls(), []);
    // The secret is not kept: the next call resolves it again.
    assert_eq!(place.driver.call(&volume, &publish()).await, Ok(CallOutcome::Done));
    assert_eq!(secrets.asked.load(Ordering::Relaxed), 5);
}

struct Tokens;

#[tonic::async_trait]
impl Secrets for Tokens {
    async fn secret(&self, reference: &SecretReference) -> Result<SecretValues, SecretError> {
        Err(SecretError::NotFound { reference: reference.clone() })
    }

    async fn service_account_tokens(
        &self,
        _: &DriverName,
        pod: &PodInfo,
        requests: &[TokenRequest],
    ) -> Result<Vec<ServiceAccountToken>, SecretError> {
        let token = |request: &TokenRequest| {
            let token = format!("token-of-{}", pod.name());
            ServiceAccountToken::new(request.audience.clone(), token, "2026-01-31T12:00:00Z")
        };
        Ok(requests.iter().map(token).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_go_where_the_policy_says_and_nowhere_else() {
    const KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";
    const JSON: &str = r#"{"vault":{"token":"token-of-web-0","expirationTimestamp":"2026-01-31T12:00:00Z"}}"#;
    let pod = PodInfo::new("web-0", "default", "9f0c", "web").expect("a pod");
    let consumer = ConsumerSpec::new(ConsumerId::new("9f0c").expect("an id"), path("/target/1")).pod(pod);
    let of_pod = Operation::NodePublish { consumer: Arc::new(consumer), staging_path: path("/staging/1") };
    for in_secrets in [false, true] {
        let mut policy = DriverPolicy::default();
        policy.token_requests = vec![TokenRequest { audience: "vault".into(), expiration_seconds: None }];
        policy.token_in_secrets = in_secrets;
        let place = Place::with(policy, Arc::new(Tokens));
        let scripted = place.start();
        scripted.once(Method::NodePublishVolume, Reply::Status(16, "bad token token-of-web-0"));
        let error = place.driver.call(&volume("v"), &of_pod).await.expect_err("an error");
        assert!(!error.to_string().contains("token-of-web-0"), "{error}");
        let request: NodePublishVolumeRequest = scripted.last(Method::NodePublishVolume);
        let (with, without) = match in_secrets {
            true => (request.secrets, request.volume_context),
            false => (request.volume_context, request.secrets),
        };
        assert_eq!((with.get(KEY).map(String::as_str), without.len()), (Some(JSON), 0));

        scripted.forget_calls();
        let error = place.driver.call(&volume("v"), &publish()).await.expect_err("no pod");
        assert!(!error.was_sent() && scripted.calls().is_empty(), "{error}");
        assert_eq!(place.driver.call(&volume("v"), &stage()).await, Ok(CallOutcome::Done));
    }
}

//! The Lease at an API server in this process, in paused time.

use http::Method;
use tokio::time::Instant;

use super::super::*;
use crate::kubernetes::fake_api::{FakeApi, Fault};

fn builder(api: &FakeApi, identity: &str) -> LeaseBuilder {
    Lease::builder(api.client(), "edge-csi", "csi-hostpath", identity)
}

fn holder(api: &FakeApi) -> String {
    api.objects("leases")[0]["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// Waits this long, and returns whether the Lease is held afterwards.
async fn held_after(lease: &Lease, seconds: u64) -> bool {
    tokio::time::advance(Duration::ZERO).await;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    lease.is_held()
}

#[test]
fn duration_has_bounds() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let api = FakeApi::default();
        for seconds in [6, 15, 300] {
            assert!(builder(&api, "a").with_duration(Duration::from_secs(seconds)).is_ok());
        }
        for millis in [0, 5999, 6500, 301_000] {
            let found = Duration::from_millis(millis);
            assert_eq!(builder(&api, "a").with_duration(found).err(), Some(InvalidLeaseDuration { found }));
        }
    });
}

#[tokio::test(start_paused = true)]
async fn lease_is_acquired_renewed_and_released() {
    let api = FakeApi::default();
    let lease = builder(&api, "a").acquire().await.unwrap();
    assert!(lease.is_held() && holder(&api).starts_with("a_"));
    let mut standby = tokio::spawn(builder(&api, "b").acquire());
    assert!(held_after(&lease, 300).await);
    assert!(!standby.is_finished());
    let object = &api.objects("leases")[0];
    assert_eq!(object["metadata"]["annotations"]["edge-csi.io/term"], lease.term().to_string());
    assert_eq!(object["spec"]["leaseDurationSeconds"], 15);

    let before = Instant::now();
    lease.release().await;
    assert!(!lease.is_held());
    assert_eq!(holder(&api), "");
    let next = (&mut standby).await.unwrap().unwrap();
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert!(next.term() > lease.term() && next.is_held());
    assert!(matches!(lease.raise().await, Err(TermError::Store(_))), "a released lease has no term");
}

/// The loss is reported before another process may acquire the Lease.
#[tokio::test(start_paused = true)]
async fn loss_is_reported_before_another_acquires() {
    let api = FakeApi::default();
    let lease = builder(&api, "a").acquire().await.unwrap();
    let standby = tokio::spawn(builder(&api, "b").acquire());
    assert!(held_after(&lease, 30).await);
    // Only the holder writes.
    for _ in 0..20 {
        api.fail(Method::PUT, Fault::Unsent);
    }
    let lost = lease.lost().await;
    assert_eq!(lost, LeaseLost::NotRenewed { deadline: Duration::from_secs(10) });
    assert!(!lease.is_held() && !standby.is_finished());
    api.clear_faults();
    let next = standby.await.unwrap().unwrap();
    assert!(next.term() > lease.term());
    assert_eq!(lease.lost().await, lost);
}

/// An API server that hangs is as one that is away.
#[tokio::test(start_paused = true)]
async fn hanging_renewals_lose_in_time() {
    let api = FakeApi::default();
    let lease = builder(&api, "a").acquire().await.unwrap();
    for _ in 0..20 {
        api.fail(Method::PUT, Fault::Stalled);
        api.fail(Method::GET, Fault::Stalled);
    }
    let before = Instant::now();
    assert!(matches!(lease.lost().await, LeaseLost::NotRenewed { .. }));
    assert!(before.elapsed() <= Duration::from_secs(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lost_answers_do_not_lose_the_lease() {
    let api = FakeApi::default();
    api.fail(Method::POST, Fault::AnswerLost);
    let lease = builder(&api, "a").acquire().await.unwrap();
    for _ in 0..20 {
        api.fail(Method::PUT, Fault::AnswerLost);
        assert!(held_after(&lease, 7).await);
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_or_taken_lease_is_lost() {
    let api = FakeApi::default();
    let lease = builder(&api, "a").acquire().await.unwrap();
    api.remove("leases");
    assert_eq!(lease.lost().await, LeaseLost::Deleted);
    let lease = builder(&api, "a").acquire().await.unwrap();
    api.edit("leases", "csi-hostpath", |lease| lease["spec"]["holderIdentity"] = "b".into());
    assert_eq!(lease.lost().await, LeaseLost::Taken { holder: "b".to_owned() });
    assert_eq!(holder(&api), "b");
}

/// Without its handle the process does not hold the Lease any more, and another one gets it after the duration.
#[tokio::test(start_paused = true)]
async fn dropped_lease_expires() {
    let api = FakeApi::default();
    let lease = builder(&api, "a").acquire().await.unwrap();
    let term = lease.term();
    drop(lease.clone());
    assert!(held_after(&lease, 60).await, "a clone holds it");
    drop(lease);
    let before = Instant::now();
    let next = builder(&api, "b").acquire().await.unwrap();
    assert!(next.term() > term && before.elapsed() >= Duration::from_secs(15));
}

#[tokio::test(start_paused = true)]
async fn lease_has_one_term() {
    let api = FakeApi::default();
    let lease = builder(&api, "a").acquire().await.unwrap();
    assert_eq!(lease.raise().await.unwrap(), lease.term());
    let error = lease.raise().await.unwrap_err();
    assert!(matches!(error, TermError::Store(_)), "{error}");
    drop(lease);
    api.edit("leases", "csi-hostpath", |lease| {
        lease["metadata"]["annotations"]["edge-csi.io/term"] = Term::MAX.to_string().into();
    });
    let error = builder(&api, "b").acquire().await.unwrap_err();
    assert!(matches!(error, LeaseError::Term(TermError::Exhausted { .. })), "{error}");
}

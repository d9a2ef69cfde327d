//! The log of calls whose caller stopped waiting.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::log::Log;
use common::{Act, Script, Stage, framed, raw_call};

const CREATE: &str = "/csi.v1.Controller/CreateVolume";

/// The logged results of failed calls at the endpoint.
fn failed(log: &Log) -> Vec<String> {
    let text = log.text();
    let lines = text.lines().filter(|line| line.contains("stage=\"endpoint\"") && line.contains("origin="));
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_deadline_is_one_warning_that_names_the_call() {
    let (log, _logging) = Log::start(tracing::Level::DEBUG);
    let stage = Stage::start(Script { acts: vec![Act::Wait(Arc::default())] }).await;
    let seen = raw_call(&stage.socket(), CREATE, &[("grpc-timeout", "50m")], framed(&[])).await.unwrap();
    assert_eq!(seen.code(), Some(4), "{seen:?}");
    let failed = failed(&log);
    assert_eq!(failed.len(), 1, "{failed:?}");
    for part in ["WARN", CREATE, "edge-1", "csi-hostpath", "origin=\"deadline\""] {
        assert!(failed[0].contains(part), "{part} is not in {failed:?}");
    }
}

#[tokio::test]
async fn cancelled_call_is_logged_at_debug() {
    let (log, _logging) = Log::start(tracing::Level::DEBUG);
    let stage = Stage::start(Script { acts: vec![Act::Wait(Arc::default())] }).await;
    let socket = stage.socket();
    let call = tokio::spawn(async move { raw_call(&socket, CREATE, &[], framed(&[])).await });
    stage.seen_at_least(1).await;
    call.abort();
    let logged = tokio::time::timeout(Duration::from_secs(20), async {
        while failed(&log).is_empty() {
            tokio::task::yield_now().await;
        }
    });
    logged.await.expect("nothing logged");
    let failed = failed(&log);
    assert!(
        failed.len() == 1 && failed[0].contains("DEBUG") && failed[0].contains("cancelled"),
        "{failed:?}"
    );
}

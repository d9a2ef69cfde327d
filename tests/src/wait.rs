//! Waits for a condition, never for a time.

use std::time::{Duration, Instant};

/// Longest wait for something that should happen at once. Generous, since test machines are slow and shared.
pub const SOON: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(10);

/// Asks until there is an answer.
///
/// # Panics
/// If there is none within [`SOON`], naming `what` was waited for.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(since.elapsed() < SOON, "waited {SOON:?} for this: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Bounds a future that must end by itself.
///
/// # Panics
/// If it has not ended after [`SOON`], naming `what` was waited for.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {SOON:?} for this: {what}"),
    }
}

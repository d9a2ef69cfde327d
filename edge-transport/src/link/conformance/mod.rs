//! A conformance suite for implementations of links.
//!
//! ```
//! use edge_transport::link::{conformance, memory};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! conformance::run(1 << 20, || async { Ok(memory::pair(1 << 20)) }).await.unwrap();
//! # });
//! ```

mod cases;
mod traffic;

use std::time::Duration;

use super::{Link, LinkError};

/// Timeout of one case.
const CASE_LIMIT: Duration = Duration::from_secs(30);

/// A guarantee that the link violates.
#[derive(Debug, thiserror::Error)]
#[error("{case}: {observed}")]
#[non_exhaustive]
pub struct Violation {
    /// The guarantee.
    pub case: &'static str,
    /// The observed behavior.
    pub observed: String,
}

/// Runs every case on a new pair: two ends of one link that carries frames of up to `max_frame` bytes, which must be at least
/// 64 KiB. Needs a tokio runtime with time. Takes a few seconds.
///
/// # Errors
/// The first [`Violation`].
pub async fn run<M, F>(max_frame: usize, make: M) -> Result<(), Violation>
where
    M: Fn() -> F,
    F: Future<Output = Result<(Link, Link), LinkError>>,
{
    /// One line per case.
    macro_rules! cases {
        ($($promise:literal => $case:path,)*) => {$(
            let outcome = tokio::time::timeout(CASE_LIMIT, async {
                let (left, right) = make().await.map_err(|error| format!("no link: {error}"))?;
                $case(left, right, max_frame).await
            });
            outcome
                .await
                .unwrap_or_else(|_| Err(format!("timed out after {CASE_LIMIT:?}")))
                .map_err(|observed| Violation { case: $promise, observed })?;
        )*};
    }
    cases! {
        "both ends report the kind of the link and the other end's address" => cases::both_ends_are_described,
        "frames of every size arrive whole" => cases::every_size_arrives,
        "frames of a lane keep their order among many lanes" => cases::lanes_keep_order,
        "more lanes than streams lose no frame and delay no control frame" => cases::many_lanes_stay_open,
        "a frame that is too large is refused and affects no other" => cases::too_large_is_refused,
        "both directions carry full load at once" => cases::full_load_both_ways,
        "a receiver that does not read stops the sender" => cases::back_pressure,
        "an orderly end follows every frame" => cases::closing_loses_nothing,
        "a dropped end is noticed" => cases::a_cut_is_noticed,
    }
    Ok(())
}

//! What every link promises, as a suite that any implementation can run.
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

/// A case that takes longer than this has hung.
const CASE_LIMIT: Duration = Duration::from_secs(30);

/// A promise that the link does not keep.
#[derive(Debug, thiserror::Error)]
#[error("{case}: {what}")]
#[non_exhaustive]
pub struct Violation {
    /// The promise.
    pub case: &'static str,
    /// What was seen instead.
    pub what: String,
}

/// Runs every case, each on a pair of its own: two ends of one link that carries frames of up to `max_frame` bytes, which
/// must be at least 64 KiB. Needs a tokio runtime with time. Takes a few seconds.
///
/// # Errors
/// The first [`Violation`].
pub async fn run<M, F>(max_frame: usize, make: M) -> Result<(), Violation>
where
    M: Fn() -> F,
    F: Future<Output = Result<(Link, Link), LinkError>>,
{
    /// One line a case, so that none is forgotten.
    macro_rules! cases {
        ($($promise:literal => $case:path,)*) => {$(
            let outcome = tokio::time::timeout(CASE_LIMIT, async {
                let (left, right) = make().await.map_err(|error| format!("no link: {error}"))?;
                $case(left, right, max_frame).await
            });
            outcome
                .await
                .unwrap_or_else(|_| Err(format!("not done within {CASE_LIMIT:?}")))
                .map_err(|what| Violation { case: $promise, what })?;
        )*};
    }
    cases! {
        "both ends know the kind, and say where the other is" => cases::both_ends_are_described,
        "frames of every size arrive whole" => cases::every_size_arrives,
        "frames of a lane keep their order, among many lanes" => cases::lanes_keep_order,
        "more lanes than a link has streams for lose nothing and hold up no control frame" => cases::many_lanes_stay_open,
        "a frame that is too large is refused and harms no other" => cases::too_large_is_refused,
        "both directions carry full load at once" => cases::full_load_both_ways,
        "a receiver that does not read bounds the sender" => cases::back_pressure,
        "an end in good order comes after every frame" => cases::closing_loses_nothing,
        "a dropped end is noticed" => cases::a_cut_is_noticed,
    }
    Ok(())
}

//! Conformance suites for implementations of links, listeners and dialers.
//!
//! ```
//! use edge_transport::link::{conformance, memory};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! conformance::run(1 << 20, || async { Ok(memory::pair(1 << 20)) }).await.unwrap();
//! let ends = || async {
//!     let (listener, dialer) = memory::listen("hub", 1 << 20);
//!     Ok((listener, Box::new(dialer) as _))
//! };
//! conformance::run_listener(ends).await.unwrap();
//! conformance::run_dialer(ends).await.unwrap();
//! # });
//! ```

mod cases;
mod ends;
mod traffic;

use std::time::Duration;

use super::{Dialer, Link, LinkError, Listener};

/// The result of a case: a description of the violation, if any.
type Outcome = Result<(), String>;

/// Timeout of one case.
const CASE_LIMIT: Duration = Duration::from_secs(30);

/// Runs each case on what `make` returns; one line per case.
macro_rules! cases {
    ($make:ident, $($promise:literal => $case:path,)*) => {$(
        let outcome = tokio::time::timeout(CASE_LIMIT, async {
            let made = $make().await.map_err(|error| format!("no link: {error}"))?;
            $case(made).await
        });
        outcome
            .await
            .unwrap_or_else(|_| Err(format!("timed out after {CASE_LIMIT:?}")))
            .map_err(|observed| Violation { case: $promise, observed })?;
    )*};
}

/// A guarantee that the implementation violates.
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
    let pair = || async { Ok::<_, LinkError>((make().await?, max_frame)) };
    cases! { pair,
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

/// Runs every case for listeners. Each case gets a new listener, and a dialer that conforms and reaches it. Needs a tokio
/// runtime with time. Takes a few seconds, and over networks up to the handshake timeout.
///
/// # Errors
/// The first [`Violation`].
pub async fn run_listener<M, F>(make: M) -> Result<(), Violation>
where
    M: Fn() -> F,
    F: Future<Output = Result<(Box<dyn Listener>, Box<dyn Dialer>), LinkError>>,
{
    cases! { make,
        "the listener states its address and the kind of its links" => ends::everything_is_stated,
        "an accept that is dropped loses no connection" => ends::cancelled_accepts_lose_nothing,
        "a silent connection delays no other" => ends::silent_connections_delay_no_other,
        "many connections at once are all accepted" => ends::many_at_once,
        "a connection that is dropped before its handshake is refused" => ends::dropping_refuses,
        "a dropped listener is noticed" => ends::a_dropped_listener_is_noticed,
    }
    Ok(())
}

/// Runs every case for dialers. Each case gets a new dialer, and a listener that conforms and is reached by it. Needs a tokio
/// runtime with time. Takes a few seconds, and over networks up to the handshake timeout.
///
/// # Errors
/// The first [`Violation`].
pub async fn run_dialer<M, F>(make: M) -> Result<(), Violation>
where
    M: Fn() -> F,
    F: Future<Output = Result<(Box<dyn Listener>, Box<dyn Dialer>), LinkError>>,
{
    cases! { make,
        "the dialer states its address and the kind of its links" => ends::everything_is_stated,
        "each dial makes a new link" => ends::each_dial_is_a_new_link,
        "many dials at once make a link each" => ends::many_at_once,
        "a dial that stops delays no other" => ends::a_stopped_dial_delays_no_other,
        "a dial that is dropped leaves no link" => ends::dropped_dials_leave_no_link,
        "a refused dial ends" => ends::dropping_refuses,
        "a dial without a listener fails" => ends::a_dropped_listener_is_noticed,
    }
    Ok(())
}

//! What must hold, whatever goes wrong. One file a property; each is told what happens and knows nothing else of the run.

mod bounds;
mod fence;
mod healing;
mod once;
mod outlives;
mod own_answer;
mod turn;
mod void;

use std::time::Duration;

pub(crate) use bounds::Bounds;
pub(crate) use fence::Fence;
pub(crate) use healing::{Healing, Leftovers};
pub(crate) use once::Once;
pub(crate) use outlives::{Failed, Outlives};
pub(crate) use own_answer::OwnAnswer;
pub(crate) use turn::Turn;
pub(crate) use void::Void;

/// A property was broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{property}, at {:.6} s: {what}", at.as_secs_f64())]
#[non_exhaustive]
pub struct Violation {
    /// Which property.
    pub property: &'static str,
    /// When, since the start of the run.
    pub at: Duration,
    /// What was seen.
    pub what: String,
}

/// The first violation that a property saw.
#[derive(Debug, Default)]
struct Verdict(Option<Violation>);

impl Verdict {
    fn broken(&mut self, property: &'static str, at: Duration, what: impl FnOnce() -> String) {
        if self.0.is_none() {
            self.0 = Some(Violation { property, at, what: what() });
        }
    }
}

/// All properties.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) once: Once,
    pub(crate) outlives: Outlives,
    pub(crate) own_answer: OwnAnswer,
    pub(crate) void: Void,
    pub(crate) turn: Turn,
    pub(crate) fence: Fence,
    pub(crate) bounds: Bounds,
    pub(crate) healing: Healing,
}

impl Oracle {
    /// With `whole`, what arrives is what was sent: where bits are twisted on the way, nobody can tell whose answer it is.
    /// `window` is how long calls wait for their way, where nothing else may end them; `keeps` that no
    /// bound makes an agent forget an answer; `acknowledges` that callers say which answers they have; `wait` how long a call waits for its turn.
    pub(crate) fn new(
        whole: bool,
        window: Option<Duration>,
        keeps: bool,
        acknowledges: bool,
        wait: Duration,
    ) -> Self {
        Self {
            once: Once::new(whole, keeps, acknowledges),
            outlives: Outlives::new(window),
            own_answer: OwnAnswer::new(whole),
            void: Void::default(),
            turn: Turn::new(wait),
            fence: Fence::new(whole),
            bounds: Bounds::new(whole),
            healing: Healing::default(),
        }
    }

    /// The first violation that was seen.
    pub(crate) fn violation(&mut self) -> Option<Violation> {
        let Self { once, outlives, own_answer, void, turn, fence, bounds, healing } = self;
        [
            once.verdict(),
            own_answer.verdict(),
            outlives.verdict(),
            void.verdict(),
            turn.verdict(),
            fence.verdict(),
            bounds.verdict(),
            healing.verdict(),
        ]
        .into_iter()
        .find_map(|verdict| verdict.0.take())
    }
}

//! Seeds: which rounds of a test are run, and how to run one of them again.

use crate::random::Random;

/// The variable that holds a seed.
pub const SEED: &str = "EDGE_CSI_SEED";

/// The variable that holds the seed where the time would be one. Other than [`SEED`] it makes no test run fewer seeds.
pub const DEFAULT_SEED: &str = "EDGE_CSI_TEST_SEED";

/// The variable that holds how many rounds are run, or `all`.
pub const ROUNDS: &str = "EDGE_CSI_ROUNDS";

/// Pseudo-random numbers of a seed.
#[derive(Debug, Clone)]
pub struct Rounds {
    seed: u64,
    random: Random,
}

impl Rounds {
    /// From a seed in the environment, or from the time. It says how to have the same again.
    ///
    /// # Panics
    /// If a variable is set, and no number.
    #[must_use]
    pub fn begin(target: &str, test: &str) -> Self {
        let seed = seed();
        eprintln!(
            "{test}: seed {seed}; again with {SEED}={seed} cargo test -p edge-csi-tests --test {target} {test}"
        );
        Self::new(seed)
    }

    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, random: Random::new(seed) }
    }

    /// How many of `all` rounds to run: `few`, unless the environment says otherwise.
    #[must_use]
    pub fn how_many(all: u64, few: u64) -> u64 {
        match std::env::var(ROUNDS) {
            Ok(text) if text == "all" => all,
            Ok(text) => text.parse().unwrap_or(few).min(all),
            Err(_) => few.min(all),
        }
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next number, below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// `few` different numbers from `1..=all`, in no order, spread over all of it.
    pub fn some(&mut self, few: u64, all: u64) -> Vec<u64> {
        let offset = self.below(all);
        (0..few).map(|turn| (offset + turn * all / few.max(1)) % all.max(1) + 1).collect()
    }
}

/// A seed from the environment, or from the time.
///
/// # Panics
/// If a variable is set, and no number.
#[must_use]
pub fn seed() -> u64 {
    chosen(|variable| std::env::var(variable).ok())
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()))
}

/// The seed that is asked for.
fn chosen(variable: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let (name, text) = [SEED, DEFAULT_SEED].into_iter().find_map(|name| Some((name, variable(name)?)))?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, and no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_seed_overrides_the_default_one() {
        let both = |name: &str| Some(if name == SEED { "7" } else { "1" }.to_owned());
        assert_eq!(chosen(both), Some(7));
        assert_eq!(chosen(|name| (name == DEFAULT_SEED).then(|| "1".to_owned())), Some(1));
        assert_eq!(chosen(|_| None), None);
    }
}

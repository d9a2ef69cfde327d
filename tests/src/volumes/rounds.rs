//! Seeds and numbers of rounds of randomized tests, and how to repeat a run.

use crate::random::Random;

/// The variable that holds a seed.
pub const SEED: &str = "EDGE_CSI_SEED";

/// The variable with the seed that replaces the time as the default. Unlike [`SEED`] it makes no test run fewer seeds.
pub const DEFAULT_SEED: &str = "EDGE_CSI_TEST_SEED";

/// The variable that holds the number of rounds, or `all`.
pub const ROUNDS: &str = "EDGE_CSI_ROUNDS";

/// Pseudo-random numbers of a seed.
#[derive(Debug, Clone)]
pub struct Rounds {
    seed: u64,
    random: Random,
}

impl Rounds {
    /// Begins with a seed from the environment, or from the time, and logs the command that repeats the run.
    ///
    /// # Panics
    /// If a variable is set to something other than a number.
    #[must_use]
    pub fn begin(target: &str, test: &str) -> Self {
        let seed = seed();
        eprintln!(
            "{test}: seed {seed}; repeat with {SEED}={seed} cargo test -p edge-csi-tests --test {target} {test}"
        );
        Self::new(seed)
    }

    /// Begins with a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, random: Random::new(seed) }
    }

    /// Returns how many of `all` rounds to run: `few`, unless [`ROUNDS`] is set.
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

    /// Returns the next number, below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Returns `few` different numbers from `1..=all`, spread evenly over the range, in no order.
    pub fn sample(&mut self, few: u64, all: u64) -> Vec<u64> {
        let offset = self.below(all);
        (0..few).map(|turn| (offset + turn * all / few.max(1)) % all.max(1) + 1).collect()
    }
}

/// Returns a seed from the environment, or from the time.
///
/// # Panics
/// If a variable is set to something other than a number.
#[must_use]
pub fn seed() -> u64 {
    chosen(|variable| std::env::var(variable).ok())
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()))
}

/// Returns the seed in the environment.
fn chosen(variable: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let (name, text) = [SEED, DEFAULT_SEED].into_iter().find_map(|name| Some((name, variable(name)?)))?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; expected a number")))
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

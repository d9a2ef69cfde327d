//! The median and the quartiles of the figures of many rounds.

/// Returns the median, or NaN for an empty list.
pub(super) fn median(values: Vec<f64>) -> f64 {
    Spread::of(values).median
}

/// The median and the quartiles of some figures.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    /// The lower quartile.
    pub(super) low: f64,
    pub(super) median: f64,
    /// The upper quartile.
    pub(super) high: f64,
}

impl Spread {
    /// Computes the spread, which is NaN for an empty list.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarters: usize| {
            let last = values.len().saturating_sub(1);
            values.get((quarters * last + 2) / 4).copied().unwrap_or(f64::NAN)
        };
        Self { low: at(1), median: at(2), high: at(3) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}-{:.2})", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::{Spread, median};

    #[test]
    fn the_median_is_the_middle_one() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn a_spread_leaves_a_quarter_out_at_each_end() {
        assert_eq!(Spread::of(vec![5.0, 3.0, 1.0, 4.0, 2.0]).to_string(), "3.00 (2.00-4.00)");
        assert_eq!(Spread::of(vec![1.5]).to_string(), "1.50 (1.50-1.50)");
    }
}

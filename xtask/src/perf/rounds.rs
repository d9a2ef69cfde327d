//! The median, the quartiles and the confidence interval of the figures of many rounds.

use super::PerfError;

/// Returns the median, or NaN for an empty list.
pub(super) fn median(values: Vec<f64>) -> f64 {
    Spread::of(values).median
}

/// The median of some figures, and their quartiles or extremes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    /// The lower quartile, or the minimum.
    pub(super) low: f64,
    pub(super) median: f64,
    /// The upper quartile, or the maximum.
    pub(super) high: f64,
}

impl Spread {
    /// Computes the median and the quartiles, which are NaN for an empty list.
    pub(super) fn of(values: Vec<f64>) -> Self {
        Self::at(values, 1)
    }

    /// Computes the median and the extremes, which are NaN for an empty list.
    pub(super) fn extremes(values: Vec<f64>) -> Self {
        Self::at(values, 0)
    }

    fn at(mut values: Vec<f64>, low: usize) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarters: usize| {
            let last = values.len().saturating_sub(1);
            values.get((quarters * last + 2) / 4).copied().unwrap_or(f64::NAN)
        };
        Self { low: at(low), median: at(2), high: at(4 - low) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}-{:.2})", self.median, self.low, self.high)
    }
}

/// The geometric mean of some ratios, and its 95 % confidence interval by Student's t distribution of their logarithms.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeanRatio {
    pub(super) low: f64,
    pub(super) mean: f64,
    pub(super) high: f64,
}

impl std::fmt::Display for MeanRatio {
    /// Two cells of a table: the mean, and the interval.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} | {:.3}-{:.3}", self.mean, self.low, self.high)
    }
}

/// Checks the option `--pairs`: fewer than five give no useful interval.
pub(super) fn check_pairs(pairs: usize) -> Result<(), PerfError> {
    let found = || PerfError::Option { option: "--pairs", found: pairs.to_string(), expected: "at least 5" };
    (pairs >= 5).then_some(()).ok_or_else(found)
}

impl MeanRatio {
    /// Computes the mean and its interval, which need at least two ratios and are NaN or infinite otherwise.
    pub(super) fn of(ratios: &[f64]) -> Self {
        let count = ratios.len() as f64;
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count;
        let variance = ratios.iter().map(|ratio| (ratio.ln() - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let half = student_t(count - 1.0) * (variance / count).sqrt();
        Self { low: (mean - half).exp(), mean: mean.exp(), high: (mean + half).exp() }
    }
}

/// Returns the 97.5 % quantile of Student's t distribution, by its expansion in the degrees of freedom (Abramowitz and
/// Stegun 26.7.5); 0.3 % too low at 4 degrees, less above.
fn student_t(degrees: f64) -> f64 {
    let z: f64 = 1.959_964;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    terms.iter().rev().fold(0.0, |sum, term| (sum + term) / degrees) + z
}

#[cfg(test)]
mod tests {
    use super::{MeanRatio, Spread, median, student_t};

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

    #[test]
    fn extremes_leave_nothing_out() {
        assert_eq!(Spread::extremes(vec![5.0, 3.0, 1.0, 4.0, 2.0]).to_string(), "3.00 (1.00-5.00)");
    }

    /// The quantiles as tables have them.
    #[test]
    fn quantiles_of_the_t_distribution() {
        for (degrees, expected) in [(4.0, 2.776), (9.0, 2.262), (19.0, 2.093), (1e6, 1.960)] {
            let found = student_t(degrees);
            assert!((found / expected - 1.0_f64).abs() < 0.004, "{degrees}: {found}");
        }
    }

    #[test]
    fn interval_of_ratios_is_symmetric_in_the_logarithm() {
        let ratios = [0.5, 2.0].repeat(5);
        let of = MeanRatio::of(&ratios);
        assert!((of.mean - 1.0).abs() < 1e-9 && (of.low * of.high - 1.0).abs() < 1e-9, "{of:?}");
        // ln 2 * sqrt(10/9) * 2.262 / sqrt(10) = 0.5227.
        assert!((of.high.ln() - 0.5227).abs() < 0.002, "{of:?}");
    }
}

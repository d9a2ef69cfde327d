//! Sizes as Kubernetes writes them.

/// Parses a quantity such as `10Gi`, `1.5G` or `1e9` into bytes, rounded up; `None` if it is invalid, negative, or exceeds 64
/// bits.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || number.len() > 40 {
        return None;
    }
    let (factor, divisor) = scale(suffix)?;
    let (mut value, mut below) = (0u128, 1u128);
    for digit in whole.chars().chain(fraction.chars().take(18)) {
        value = value.checked_mul(10)?.checked_add(u128::from(digit.to_digit(10)?))?;
    }
    for _ in fraction.chars().take(18) {
        below = below.checked_mul(10)?;
    }
    let scaled = value.checked_mul(factor)?;
    u64::try_from(scaled.div_ceil(below.checked_mul(divisor)?)).ok()
}

/// The binary suffixes, each 1024 times the one before.
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The decimal suffixes, each 1000 times the one before; the first is 10^-9.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// Returns the factor and the divisor of a suffix.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    if let Some((power, _)) = (1..).zip(BINARY).find(|(_, known)| *known == suffix) {
        return Some((1024_u128.checked_pow(power)?, 1));
    }
    let exponent: i32 = match (-9..).step_by(3).zip(DECIMAL).find(|(_, known)| *known == suffix) {
        Some((exponent, _)) => exponent,
        None => suffix.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, power) } else { (power, 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_read_in_every_spelling() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1073741824", Some(1 << 30)),
            ("10Gi", Some(10 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("1.5G", Some(1_500_000_000)),
            ("5e3", Some(5_000)),
            ("5E3", Some(5_000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("1500m", Some(2)),
            (".5Ki", Some(512)),
            ("16Ei", None),
            ("", None),
            (".", None),
            ("-1", None),
            ("1.2.3", None),
            ("1Zi", None),
            ("1e99", None),
            ("99999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}

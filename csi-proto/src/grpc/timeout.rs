//! The `grpc-timeout` header: up to eight digits and a unit.

use std::time::Duration;

/// The error of an invalid `grpc-timeout` value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("grpc-timeout is not 1 to 8 digits and a unit of H, M, S, m, u or n")]
#[non_exhaustive]
pub struct InvalidTimeout;

/// Parses a `grpc-timeout` value.
///
/// # Errors
/// If the value is not 1 to 8 digits and a unit.
pub fn parse(value: &[u8]) -> Result<Duration, InvalidTimeout> {
    let (unit, digits) = value.split_last().ok_or(InvalidTimeout)?;
    if digits.is_empty() || digits.len() > 8 {
        return Err(InvalidTimeout);
    }
    let mut number = 0_u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(InvalidTimeout);
        }
        number = number * 10 + u64::from(digit - b'0');
    }
    match unit {
        b'H' => Ok(Duration::from_secs(number * 3600)),
        b'M' => Ok(Duration::from_secs(number * 60)),
        b'S' => Ok(Duration::from_secs(number)),
        b'm' => Ok(Duration::from_millis(number)),
        b'u' => Ok(Duration::from_micros(number)),
        b'n' => Ok(Duration::from_nanos(number)),
        _ => Err(InvalidTimeout),
    }
}

/// Formats `time` as a `grpc-timeout` value, rounded down in the finest unit that fits.
#[must_use]
pub fn format(time: Duration) -> String {
    const LIMIT: u128 = 100_000_000;
    let units = [(time.as_nanos(), 'n'), (time.as_micros(), 'u'), (time.as_millis(), 'm')];
    let fits = units.into_iter().find(|(number, _)| *number < LIMIT);
    let (number, unit) = fits.unwrap_or_else(|| (u128::from(time.as_secs()).min(LIMIT - 1), 'S'));
    format!("{number}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_unit_and_rejects_other_forms() {
        let good = [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("15S", Duration::from_secs(15)),
            ("9999973u", Duration::from_micros(9_999_973)),
            ("250m", Duration::from_millis(250)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("0n", Duration::ZERO),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ];
        for (text, expected) in good {
            assert_eq!(parse(text.as_bytes()), Ok(expected), "{text}");
        }
        for bad in ["", "S", "5", "5s", "123456789S", "-1S", "+1S", "1.5S", " 1S", "1 S", "1SS"] {
            assert_eq!(parse(bad.as_bytes()), Err(InvalidTimeout), "{bad:?}");
        }
    }

    #[test]
    fn formatted_timeouts_parse_and_are_never_longer() {
        let times =
            [0, 1, 999, 99_999_999, 100_000_000, 1_500_000_000, 900_000_000_000, 90_000_000_000_000_000];
        for time in times.map(Duration::from_nanos) {
            let back = parse(format(time).as_bytes()).unwrap();
            assert!(back <= time && time - back < Duration::from_secs(1), "{time:?} {back:?}");
        }
        assert_eq!(format(Duration::from_secs(900)), "900000m");
    }
}

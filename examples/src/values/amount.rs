//! Sizes and durations with units.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::InvalidValue;

const SIZE_UNITS: &[(&str, u64)] =
    &[("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1), ("", 1)];

// Milliseconds a unit.
const TIME_UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// A whole number before one of the units, times that unit.
fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// A number of bytes: `8388608`, `8192KiB` or `8MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        amount(text, SIZE_UNITS).map(Self).ok_or_else(|| InvalidValue::Size { found: text.to_owned() })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = SIZE_UNITS
            .iter()
            .find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor))
            .unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

/// Longest [`TimeSpan`] in milliseconds: a year.
const LONGEST: u64 = 365 * 24 * 3_600_000;

/// A span of time: `500ms`, `10s`, `15m` or `1h`, at most 8760h. A unit is required, since people differ on what none means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(Duration);

impl TimeSpan {
    /// The span.
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for TimeSpan {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        amount(text, TIME_UNITS)
            .filter(|milliseconds| *milliseconds <= LONGEST)
            .map(|milliseconds| Self(Duration::from_millis(milliseconds)))
            .ok_or_else(|| InvalidValue::Duration { found: text.to_owned() })
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_millis() {
            0 => write!(f, "{}s", self.0.as_secs()),
            _ => write!(f, "{}ms", self.0.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_number_and_may_have_a_unit() {
        for (given, expected) in [
            ("0", Some(0)),
            ("17", Some(17)),
            ("17B", Some(17)),
            ("8MiB", Some(8 << 20)),
            ("10GiB", Some(10 << 30)),
            ("18446744073709551616", None),
            ("99999999TiB", None),
            ("8MB", None),
            ("8 MiB", None),
            ("-1", None),
            ("MiB", None),
            ("", None),
        ] {
            assert_eq!(given.parse::<ByteSize>().ok().map(ByteSize::bytes), expected, "{given}");
        }
        assert_eq!(ByteSize(8 << 20).to_string(), "8MiB");
        assert_eq!(ByteSize(1025).to_string(), "1025B");
        assert_eq!(ByteSize(0).to_string(), "0B");
    }

    #[test]
    fn durations_need_a_number_and_a_unit() {
        for (given, expected) in [
            ("10s", Some(10_000)),
            ("250ms", Some(250)),
            ("15m", Some(900_000)),
            ("1h", Some(3_600_000)),
            ("8760h", Some(31_536_000_000)),
            ("8761h", None),
            ("10", None),
            ("s", None),
            ("1d", None),
            ("1.5s", None),
            ("", None),
        ] {
            let parsed = given.parse::<TimeSpan>().ok().map(|span| span.duration().as_millis());
            assert_eq!(parsed, expected, "{given}");
        }
        assert_eq!("15m".parse::<TimeSpan>().unwrap().to_string(), "900s");
    }
}

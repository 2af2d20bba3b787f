//! Durations as Go writes them (`1h30m`, `500ms`, `-5s`), which is how Kubernetes
//! configuration files spell them.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// A signed number of nanoseconds. Negative values parse, so that validation can name
/// the field that carries one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(i64);

/// What is wrong with the text of a duration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DurationError {
    /// No number, or a number without a unit.
    #[error("{0:?} is not a duration such as 30s or 1h30m")]
    Syntax(String),
    /// More than about 292 years.
    #[error("{0:?} is too long")]
    TooLong(String),
}

impl GoDuration {
    /// Whole seconds.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs * 1_000_000_000)
    }

    /// True below zero.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// True for `0s`, which Kubernetes often reads as "not set".
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The duration, with negative ones cut to zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

fn unit_nanos(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let syntax = || DurationError::Syntax(text.to_owned());
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        let mut total = 0.0;
        loop {
            let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(syntax)?;
            let (number, tail) = rest.split_at(unit_at);
            let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(end);
            let number: f64 = number.parse().map_err(|_| syntax())?;
            total += number * unit_nanos(unit).ok_or_else(syntax)?;
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        if total >= i64::MAX as f64 {
            return Err(DurationError::TooLong(text.to_owned()));
        }
        Ok(Self((sign * total).round() as i64))
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 % 1_000_000_000 == 0 {
            write!(f, "{}s", self.0 / 1_000_000_000)
        } else {
            write!(f, "{}ns", self.0)
        }
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_writes() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("30s", 30_000_000_000),
            ("24h0m0s", 86_400_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            ("500ms", 500_000_000),
            ("-5s", -5_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration(nanos)), "{text}");
        }
        for text in ["", "5", "s", "5x", "1h5", "--1s", "1..5s"] {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
        assert_eq!("9999999h".parse::<GoDuration>(), Err(DurationError::TooLong("9999999h".into())));
        assert_eq!(GoDuration::from_secs(-5).to_std(), Duration::ZERO);
        assert_eq!(GoDuration(1_500_000_000).to_string().parse(), Ok(GoDuration(1_500_000_000)));
    }
}

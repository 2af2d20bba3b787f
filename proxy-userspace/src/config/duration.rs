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

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
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
    /// As Go writes it: `15m0s`, `1.5s`, `500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND: u64 = 1_000_000_000;
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let (hours, minutes) = (nanos / (3600 * SECOND), nanos / (60 * SECOND) % 60);
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}µs", nanos as f64 / 1e3),
            1_000_000..SECOND => write!(f, "{}ms", nanos as f64 / 1e6),
            _ => {
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if nanos >= 60 * SECOND {
                    write!(f, "{minutes}m")?;
                }
                write!(f, "{}", nanos / SECOND % 60)?;
                match nanos % SECOND {
                    0 => f.write_str("s"),
                    rest => write!(f, ".{}s", format!("{rest:09}").trim_end_matches('0')),
                }
            }
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
        for text in [
            "0s",
            "30s",
            "1m0s",
            "15m0s",
            "24h0m0s",
            "1h0m1.5s",
            "1.000000001s",
            "500ms",
            "1.5ms",
            "7ns",
            "-5s",
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap().to_string(), text);
        }
    }
}

//! How long the disks take for a command, and how that is written.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Nanoseconds, as a length of time or since the start of the device.
pub(crate) type Nanos = u64;

/// The distribution of the time from taking a command to its completion.
///
/// As text: `80us`; `uniform:60us:100us`; `tail:80us:5ms:1000`, where one
/// command in 1,000 takes 5 ms. Units are ns, us, ms and s; `0` needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Latency {
    Fixed(Nanos),
    /// Any time from `low` to `high`.
    Uniform {
        low: Nanos,
        high: Nanos,
    },
    /// `usual`, but `rare` for one command in `one_in`, drawn at random.
    Tail {
        usual: Nanos,
        rare: Nanos,
        one_in: u32,
    },
}

/// Longer latencies than a minute are no disk's.
const MAX: Nanos = 60_000_000_000;

impl Default for Latency {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

impl Latency {
    pub(crate) fn sample(self, random: &mut fastrand::Rng) -> Nanos {
        match self {
            Self::Fixed(time) => time,
            Self::Uniform { low, high } => random.u64(low..=high),
            Self::Tail {
                usual,
                rare,
                one_in,
            } => {
                if random.u32(0..one_in) == 0 {
                    rare
                } else {
                    usual
                }
            }
        }
    }
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        match *parts {
            [time] => Ok(Self::Fixed(parse_time(time)?)),
            ["uniform", low, high] => {
                let (low, high) = (parse_time(low)?, parse_time(high)?);
                if low > high {
                    return Err(format!("{text}: the first time must not be the longer one"));
                }
                Ok(Self::Uniform { low, high })
            }
            ["tail", usual, rare, one_in] => match one_in.parse() {
                Ok(one_in) if one_in > 0 => Ok(Self::Tail {
                    usual: parse_time(usual)?,
                    rare: parse_time(rare)?,
                    one_in,
                }),
                _ => Err(format!(
                    "{one_in}: one in how many commands? A number from 1 on"
                )),
            },
            _ => Err(format!(
                "{text}: write 80us, uniform:60us:100us or tail:80us:5ms:1000"
            )),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fixed(time) => f.write_str(&time_text(time)),
            Self::Uniform { low, high } => {
                write!(f, "uniform:{}:{}", time_text(low), time_text(high))
            }
            Self::Tail {
                usual,
                rare,
                one_in,
            } => write!(f, "tail:{}:{}:{one_in}", time_text(usual), time_text(rare)),
        }
    }
}

impl TryFrom<String> for Latency {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Latency> for String {
    fn from(latency: Latency) -> Self {
        latency.to_string()
    }
}

const UNITS: [(&str, Nanos); 4] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

pub(crate) fn parse_time(text: &str) -> Result<Nanos, String> {
    if text == "0" {
        return Ok(0);
    }
    UNITS
        .iter()
        .find_map(|(unit, nanos)| {
            let number: Nanos = text.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(*nanos)
        })
        .filter(|time| *time <= MAX)
        .ok_or_else(|| format!("{text}: not a time from 0 to 60s, such as 80us"))
}

/// In the largest unit that needs no fraction.
pub(crate) fn time_text(time: Nanos) -> String {
    let fitting = UNITS
        .iter()
        .rev()
        .find(|(_, nanos)| time > 0 && time.is_multiple_of(*nanos));
    match fitting {
        Some((unit, nanos)) => format!("{}{unit}", time / nanos),
        None => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_and_back() {
        for (text, latency) in [
            ("0", Latency::Fixed(0)),
            ("80us", Latency::Fixed(80_000)),
            (
                "uniform:1500ns:2ms",
                Latency::Uniform {
                    low: 1500,
                    high: 2_000_000,
                },
            ),
            (
                "tail:80us:1s:1000",
                Latency::Tail {
                    usual: 80_000,
                    rare: 1_000_000_000,
                    one_in: 1000,
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(latency));
            assert_eq!(latency.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_latency_is_refused() {
        for text in [
            "",
            "80",
            "-1us",
            "61s",
            "99999999999999999999s",
            "18446744073709551615s",
            "uniform:2us:1us",
            "uniform:2us",
            "tail:1us:2us:0",
            "tail:1us:2us:x",
            "normal:1us:2us",
        ] {
            assert!(text.parse::<Latency>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn samples_lie_where_the_distribution_says(
            low in 0..1_000_000_u64, width in 0..1_000_000_u64, one_in in 1..5_u32, seed: u64,
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let high = low + width;
            for _ in 0..20 {
                let uniform = Latency::Uniform { low, high }.sample(&mut random);
                prop_assert!((low..=high).contains(&uniform));
                let tail = Latency::Tail { usual: low, rare: high, one_in }.sample(&mut random);
                prop_assert!(tail == high || tail == low && one_in > 1);
            }
        }
    }
}

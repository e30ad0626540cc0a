//! Every number a verdict hangs on, with its reason. None was fitted to an
//! emulated server.

/// Declares the thresholds once: field, default, unit, reason.
macro_rules! thresholds {
    ($($name:ident = $default:literal, $unit:literal, $reason:literal;)*) => {
        /// Where verdicts turn. Units and reasons: [`ALL`].
        #[derive(Clone, Debug, PartialEq)]
        pub struct Thresholds {
            $(#[doc = $reason] pub $name: f64,)*
        }

        impl Default for Thresholds {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// All of them, as docs/diagnosis.md shows them.
        pub const ALL: &[Threshold] = &[
            $(Threshold {
                name: stringify!($name),
                default: $default,
                unit: $unit,
                reason: $reason,
            },)*
        ];

        impl Thresholds {
            fn field(&mut self, name: &str) -> Option<&mut f64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

/// What a threshold is.
#[derive(Clone, Copy, Debug)]
pub struct Threshold {
    pub name: &'static str,
    pub default: f64,
    pub unit: &'static str,
    pub reason: &'static str,
}

thresholds! {
    least_iops = 100.0, "I/Os per second", "Below this a controller counts as idle: rates of so few events are noise within ten seconds.";
    busy_disk_share = 0.25, "of the busiest disk's IOPS", "A disk below this share takes no part in the load that is looked at.";
    cpu_full = 0.90, "busy share of a CPU", "Queueing theory: beyond nine tenths requests wait for nine service times and more (M/M/1).";
    cpu_free = 0.70, "busy share of a CPU", "Below this a CPU has time to spare in every period of a few milliseconds; between the two nothing is claimed.";
    interrupt_part = 0.50, "of a CPU's busy time", "Handlers and softirqs are the largest part for certain only when they are half.";
    deep_in_flight = 32.0, "requests in flight per disk", "A Gen4 disk of 1 million IOPS at 80 us has 80 in flight (Little); with half of that it is near its limit, and less than 32 does not get there.";
    same_in_flight = 0.80, "of the faster window's requests in flight", "Loads of a fixed depth differ by a few per cent between runs; a fifth is another load.";
    latency_grew = 1.25, "times the faster window's latency", "A halving of IOPS at equal depth doubles the latency (Little); a quarter is beyond the spread of runs, which is a few per cent.";
    latency_same = 1.10, "times the faster window's latency", "Within the spread of runs. Between this and latency_grew nothing is claimed.";
    one_per_interrupt = 1.50, "completions per hardware interrupt", "Less than every other interrupt takes a second completion along: no batching to speak of.";
    batching_differs = 1.50, "times", "One completion against one and a half: below this the cost of an interrupt is not shared differently enough to matter.";
    remote_high = 0.50, "of completions", "Most completions are sent to another CPU or finished far from their submitter.";
    remote_low = 0.20, "of completions", "So few are remote that placement is local.";
    handling_part = 0.20, "of the latency", "From completion to the end of the request takes below a microsecond where it is local; a fifth of an 80 us latency is 16 us.";
    concentrated = 0.50, "of the CPUs interrupts could use", "Effective number of CPUs (1 / sum of squared shares) against the smaller of online CPUs and effective interrupt lines: at half, every CPU in use does the work of two.";
    many_disks = 4.0, "busy disks of one PCI domain", "The first report saw the drop with four Gen4 disks of one domain and none with one or two per port.";
    nothing_per_completion = 4.0, "runs for nothing per completion", "Each costs about 0.12 us (a call, a lock, one read of a queue entry; our estimate), so four cost half a microsecond: a fifth of the 2.5 us of CPU time that an I/O takes. 4 disks x 64 queues on 63 vectors are four queues per vector.";
    nothing_few = 1.0, "runs for nothing per completion", "At one the cost is about a twentieth of an I/O's CPU time.";
    calls_children = 100.0, "interrupts of a vector", "Each calls every child on the vector's list (`vmd_irq` in drivers/pci/controller/vmd.c): one that was enabled while the window lasted missed some of them, not a hundred.";
    deep_idle_exit_us = 20.0, "microseconds to leave an idle state", "C1 and C1E of server parts are left within 10 us or less, C6 takes 40 us and more (tables of drivers/idle/intel_idle.c).";
    deep_idle_often = 0.50, "entries into deep idle per interrupt", "Every other interrupt has to wake its CPU.";
    deep_idle_seldom = 0.10, "entries into deep idle per interrupt", "At most a tenth of the latency's samples has an exit in it.";
    deep_idle_part = 0.25, "of the latency", "An exit time below a quarter of the latency cannot have made it grow by latency_grew.";
    cpu_time_grew = 1.20, "times the CPU time per I/O", "Published costs of mitigations and schedulers begin at some ten per cent; runs differ by a few.";
    other_node_high = 0.81, "of the interrupt time", "Even over two nodes it is a half, over four three quarters: beyond that most of it was put there.";
    config_read_ns = 800.0, "ns per child", "A read over PCI Express takes about a microsecond, the loop over children without one some ten nanoseconds (our estimate).";
    bio_hits = 0.50, "of eligible bios", "A load that fills its own cache hits nearly always.";
    bio_softirq = 0.50, "of freed bios with a cache", "What is freed in a softirq, or where the cache is full, goes to the slab (`bio_put_percpu_cache` in block/bio.c), so at half the cache cannot be refilled.";
    rate_changed = 1.25, "times the smaller rate", "As latency_grew, which it is the other side of (Little).";
    change_floor = 0.05, "of the smaller number", "Runs of the same load differ by up to a few per cent even where the spread inside each is smaller.";
    cpu_time_same = 1.10, "times the CPU time per I/O", "Within the spread of runs. Between this and cpu_time_grew nothing is claimed.";
}

/// Why a file of thresholds is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    #[error("line {line}: {text:?} is not of the form `name = number`")]
    Form { line: usize, text: String },
    #[error("line {line}: there is no threshold {name:?}; docs/diagnosis.md lists all")]
    Unknown { line: usize, name: String },
    #[error("line {line}: {name} is given a second time")]
    Twice { line: usize, name: String },
    #[error("line {line}: {name} must be a number from 0 on, not {value:?}")]
    Number {
        line: usize,
        name: String,
        value: String,
    },
    #[error(
        "line {line}: {low} ({low_value}) must not be above {high} ({high_value}), since between \
         them nothing is claimed: change the other one, too"
    )]
    Order {
        line: usize,
        low: &'static str,
        low_value: String,
        high: &'static str,
        high_value: String,
    },
}

impl Thresholds {
    /// The defaults with what a file overrides: `name = number` lines; `#`
    /// begins a comment.
    ///
    /// # Errors
    /// At the first line that is not understood, with its number.
    pub fn parse(text: &str) -> Result<Self, ThresholdError> {
        let mut thresholds = Self::default();
        let mut seen = std::collections::BTreeMap::new();
        for (index, raw) in text.lines().enumerate() {
            let line = index + 1;
            let content = raw.split_once('#').map_or(raw, |(before, _)| before).trim();
            if content.is_empty() {
                continue;
            }
            let Some((name, value)) = content.split_once('=') else {
                return Err(ThresholdError::Form {
                    line,
                    text: content.to_owned(),
                });
            };
            let (name, value) = (name.trim(), value.trim());
            let Some(field) = thresholds.field(name) else {
                return Err(ThresholdError::Unknown {
                    line,
                    name: name.to_owned(),
                });
            };
            if seen.insert(name, line).is_some() {
                return Err(ThresholdError::Twice {
                    line,
                    name: name.to_owned(),
                });
            }
            match value.parse::<f64>() {
                Ok(number) if number.is_finite() && number >= 0.0 => *field = number,
                _ => {
                    return Err(ThresholdError::Number {
                        line,
                        name: name.to_owned(),
                        value: value.to_owned(),
                    });
                }
            }
        }
        let line_of = |name: &str| seen.get(name).copied();
        thresholds.ordered(line_of)
    }

    /// `line_of` is where a threshold was given, if it was.
    fn ordered(self, line_of: impl Fn(&str) -> Option<usize>) -> Result<Self, ThresholdError> {
        for (low, low_value, high, high_value) in [
            ("cpu_free", self.cpu_free, "cpu_full", self.cpu_full),
            (
                "latency_same",
                self.latency_same,
                "latency_grew",
                self.latency_grew,
            ),
            (
                "remote_low",
                self.remote_low,
                "remote_high",
                self.remote_high,
            ),
            (
                "nothing_few",
                self.nothing_few,
                "nothing_per_completion",
                self.nothing_per_completion,
            ),
            (
                "deep_idle_seldom",
                self.deep_idle_seldom,
                "deep_idle_often",
                self.deep_idle_often,
            ),
            (
                "cpu_time_same",
                self.cpu_time_same,
                "cpu_time_grew",
                self.cpu_time_grew,
            ),
        ] {
            if low_value > high_value {
                return Err(ThresholdError::Order {
                    // The defaults are in order, so one of them was given.
                    line: line_of(low).max(line_of(high)).unwrap_or_default(),
                    low,
                    low_value: low_value.to_string(),
                    high,
                    high_value: high_value.to_string(),
                });
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_overrides() {
        let text = "# ours\n\ncpu_full = 0.95 # they are large\nmany_disks=2\n";
        let thresholds = Thresholds::parse(text).unwrap();
        let expected = Thresholds {
            cpu_full: 0.95,
            many_disks: 2.0,
            ..Thresholds::default()
        };
        assert_eq!(thresholds, expected);
        assert_eq!(Thresholds::parse("").unwrap(), Thresholds::default());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, message) in [
            ("\ncpu_ful = 1", "line 2: there is no threshold \"cpu_ful\""),
            ("cpu_full 1", "line 1: \"cpu_full 1\" is not of the form"),
            (
                "cpu_full = no",
                "line 1: cpu_full must be a number from 0 on",
            ),
            (
                "cpu_full = -1",
                "line 1: cpu_full must be a number from 0 on",
            ),
            (
                "cpu_full = inf",
                "line 1: cpu_full must be a number from 0 on",
            ),
            (
                "cpu_full = 1\ncpu_full = 1",
                "line 2: cpu_full is given a second time",
            ),
            (
                "cpu_free = 0.95",
                "line 1: cpu_free (0.95) must not be above cpu_full (0.9), since",
            ),
            (
                "cpu_full = 0.6\n#\ncpu_free = 0.65",
                "line 3: cpu_free (0.65) must not be above cpu_full (0.6), since",
            ),
            (
                "latency_grew = 1.05",
                "line 1: latency_same (1.1) must not be above latency_grew (1.05), since",
            ),
        ] {
            let error = Thresholds::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn defaults_are_in_order() {
        assert!(Thresholds::default().ordered(|_| None).is_ok());
        assert!(ALL.iter().all(|it| !it.reason.is_empty()));
    }
}

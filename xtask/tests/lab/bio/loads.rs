//! The ways of reading, and what each has to do with the bio cache of a kernel.

use std::fmt;

use xtask_lab::Engine;

/// Who may use the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Regime {
    /// There is none.
    Absent,
    /// Polled requests.
    PolledOnly,
    /// Requests with a flag, which io_uring sets.
    OptIn,
    /// All that fit.
    DefaultOn,
}

impl Regime {
    /// As Debian's kernels of these series have it.
    pub(crate) fn of(series: &str) -> Self {
        match series {
            "5.10" => Self::Absent,
            "6.1" => Self::PolledOnly,
            "6.12" | "6.18" => Self::OptIn,
            _ => Self::DefaultOn,
        }
    }

    /// Whether a bio from the cache differs in its vectors from another: not in 5.10,
    /// nor since all are initialised alike.
    pub(crate) fn tells_hits_by_vectors(self) -> bool {
        matches!(self, Self::PolledOnly | Self::OptIn)
    }
}

/// What reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) engine: Engine,
    pub(crate) target: Target,
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Block,
    /// A file of ext4.
    File,
    /// The namespace's character device.
    Character,
}

pub(crate) const WAYS: [Way; 6] = [
    Way {
        name: "io_uring",
        engine: Engine::IoUring { polled: false },
        target: Target::Block,
    },
    Way {
        name: "libaio",
        engine: Engine::Libaio,
        target: Target::Block,
    },
    Way {
        name: "ext4 direct",
        engine: Engine::IoUring { polled: false },
        target: Target::File,
    },
    Way {
        name: "io_uring polled",
        engine: Engine::IoUring { polled: true },
        target: Target::Block,
    },
    Way {
        name: "io_uring_cmd",
        engine: Engine::Passthrough { polled: false },
        target: Target::Character,
    },
    Way {
        name: "io_uring_cmd polled",
        engine: Engine::Passthrough { polled: true },
        target: Target::Character,
    },
];

/// What nearly all reads of a load meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The kernel cannot do it.
    Unavailable,
    /// Allocated from a set that has no cache.
    NoCache,
    /// The set has a cache, but the request does not ask for it.
    NoFlag,
    /// Allocated by bio_kmalloc, past all sets.
    Kmalloc,
    Hits,
    /// It could hit, but nothing comes back to the cache.
    Starved,
}

impl fmt::Display for Expected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Unavailable => "unavailable",
            Self::NoCache => "no cache",
            Self::NoFlag => "no flag",
            Self::Kmalloc => "kmalloc",
            Self::Hits => "hits",
            Self::Starved => "starved",
        })
    }
}

impl Way {
    pub(crate) fn expected(&self, regime: Regime) -> Expected {
        use Expected::{Hits, Kmalloc, NoCache, NoFlag, Unavailable};
        let polled = matches!(
            self.engine,
            Engine::IoUring { polled: true } | Engine::Passthrough { polled: true }
        );
        let passthrough = self.target == Target::Character;
        match regime {
            Regime::Absent if passthrough => Unavailable,
            Regime::Absent => NoCache,
            Regime::PolledOnly if polled => Hits,
            Regime::PolledOnly if passthrough => Kmalloc,
            Regime::PolledOnly => NoFlag,
            Regime::OptIn if self.name == "libaio" || self.target == Target::File => NoFlag,
            Regime::OptIn | Regime::DefaultOn => Hits,
        }
    }
}

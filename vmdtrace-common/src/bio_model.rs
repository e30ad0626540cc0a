//! A naive model of the kernel's cache of bios, for tests: what block/bio.c does
//! with lists that are vectors, and what came in between a call's start and its
//! end. It knows where each bio really came from; the classes are right where
//! they agree with that.

use proptest::prelude::*;

use crate::bio::{Allocation, Start, class, destination};

/// When a kernel uses the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// 5.10.
    None,
    /// 6.1: for what asks, and no list for interrupts.
    PolledOnly,
    /// 6.2 to 6.18: for what asks.
    OptIn,
    /// 6.19 on.
    DefaultOn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    Task,
    Softirq,
    Hardirq,
}

/// A bio in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bio {
    pub address: u64,
    pub marked: bool,
}

/// One CPU's cache. The last of a list is its first to go.
#[derive(Clone, Debug, Default)]
struct Cache {
    own: Vec<u64>,
    irq: Vec<u64>,
}

/// What an allocation asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub has_cache: bool,
    pub vectors: u32,
    pub asked: bool,
    /// How much memory there is: plenty, the reserve only, or none at all.
    pub memory: Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Plenty,
    Reserve,
    None,
}

/// What may happen on the CPU between the program's look and the kernel's.
#[derive(Clone, Copy, Debug)]
pub enum Between {
    /// An interrupt frees a bio.
    Interrupt,
    /// A softirq frees one.
    Softirq,
    /// Another task runs and takes one.
    TaskTakes,
    /// Another task runs and frees one.
    TaskFrees,
    /// This task goes on on another CPU.
    Moves,
}

impl Between {
    /// Another task may have run.
    #[must_use]
    pub fn is_preemption(self) -> bool {
        matches!(self, Self::TaskTakes | Self::TaskFrees | Self::Moves)
    }
}

/// A call as the programs see it, and the truth.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seen: Allocation,
    pub truth: u64,
    pub bio: Option<Bio>,
}

#[derive(Clone, Debug)]
pub struct Kernel {
    regime: Regime,
    cpus: [Cache; 2],
    /// Where the task runs.
    cpu: usize,
    made: u64,
}

impl Kernel {
    #[must_use]
    pub fn new(regime: Regime) -> Self {
        Self {
            regime,
            cpus: Default::default(),
            cpu: 0,
            made: 0,
        }
    }

    fn has_irq_list(&self) -> bool {
        matches!(self.regime, Regime::OptIn | Regime::DefaultOn)
    }

    /// A bio straight from the slab.
    fn fresh(&mut self) -> u64 {
        self.made += 1;
        0x1000 + self.made * 0x100
    }

    /// Takes from the cache of the CPU the task is on.
    fn take(&mut self) -> Option<(u64, u64)> {
        let irq_list = self.has_irq_list();
        let cache = &mut self.cpus[self.cpu];
        if let Some(bio) = cache.own.pop() {
            return Some((bio, class::HIT_OWN));
        }
        if irq_list && cache.irq.len() >= 16 {
            std::mem::swap(&mut cache.own, &mut cache.irq);
            return cache.own.pop().map(|bio| (bio, class::HIT_SPLICE));
        }
        None
    }

    /// Frees a bio of the cache; where it went.
    pub fn put_marked(&mut self, address: u64, context: Context, polled: bool) -> u64 {
        let irq_list = self.has_irq_list();
        let cache = &mut self.cpus[self.cpu];
        let full = cache.own.len() + cache.irq.len() > 256;
        match context {
            Context::Softirq => destination::SLAB_SOFTIRQ,
            Context::Task if !irq_list && polled => {
                cache.own.push(address);
                destination::OWN_LIST
            }
            _ if !irq_list => destination::NOT_CACHED,
            _ if full => destination::SLAB_OVERFLOW,
            Context::Hardirq => {
                cache.irq.push(address);
                destination::IRQ_LIST
            }
            Context::Task => {
                cache.own.push(address);
                destination::OWN_LIST
            }
        }
    }

    /// Bios in both lists of the CPU the task is on.
    #[must_use]
    pub fn cached(&self) -> u32 {
        let cache = &self.cpus[self.cpu];
        (cache.own.len() + cache.irq.len()) as u32
    }

    fn happen(&mut self, between: Between) {
        match between {
            Between::Interrupt => {
                let bio = self.fresh();
                self.put_marked(bio, Context::Hardirq, false);
            }
            Between::Softirq => {
                let bio = self.fresh();
                self.put_marked(bio, Context::Softirq, false);
            }
            Between::TaskTakes => {
                let _another_tasks = self.take();
            }
            Between::TaskFrees => {
                let bio = self.fresh();
                self.put_marked(bio, Context::Task, true);
            }
            Between::Moves => self.cpu ^= 1,
        }
    }

    /// One call of `bio_alloc_bioset`, with what happens after its start is seen
    /// and before its end is.
    pub fn allocate(
        &mut self,
        request: Request,
        before: &[Between],
        after: &[Between],
        default_on_is_known: bool,
    ) -> Outcome {
        let has_cache = request.has_cache && self.regime != Regime::None;
        let small = request.vectors <= 4;
        let wanted = request.asked || self.regime == Regime::DefaultOn;
        let served = has_cache && small && wanted;

        let start_cpu = self.cpu;
        let cache = &self.cpus[start_cpu];
        let mut start = Start {
            free_list: cache.own.last().copied().unwrap_or_default(),
            free_list_irq: cache.irq.last().copied().unwrap_or_default(),
            nr_irq: cache.irq.len() as u32,
            spliced: false,
        };
        for between in before {
            self.happen(*between);
        }
        let waiting = self.cpus[self.cpu].irq.len();
        let taken = if served { self.take() } else { None };
        let (bio, truth) = match (taken, request.memory) {
            (Some((address, truth)), _) => {
                start.spliced = truth == class::HIT_SPLICE;
                let bio = Bio {
                    address,
                    marked: true,
                };
                (Some(bio), truth)
            }
            (None, Memory::None) => (None, class::FAILED),
            (None, memory) => {
                let reserve = memory == Memory::Reserve && self.has_irq_list();
                let truth = match () {
                    () if !has_cache => class::NO_CACHE,
                    () if !small => class::VECTORS,
                    () if !wanted => class::NO_FLAG,
                    () if reserve => class::MISS_RESERVE,
                    () if waiting == 0 => class::MISS_EMPTY,
                    () => class::MISS_BELOW_THRESHOLD,
                };
                let bio = Bio {
                    address: self.fresh(),
                    marked: served && !reserve,
                };
                (Some(bio), truth)
            }
        };
        for between in after {
            self.happen(*between);
        }
        let seen = Allocation {
            returned: bio.map_or(0, |bio| bio.address),
            marked: bio.is_some_and(|bio| bio.marked),
            has_cache,
            vectors: request.vectors,
            asked: request.asked,
            default_on: default_on_is_known,
            start: (self.cpu == start_cpu).then_some(start),
            free_list: self.cpus[self.cpu].own.last().copied().unwrap_or_default(),
        };
        Outcome { seen, truth, bio }
    }
}

/// A step of a stream.
#[derive(Clone, Debug)]
pub enum Step {
    Allocate {
        request: Request,
        before: Vec<Between>,
        after: Vec<Between>,
    },
    /// The oldest bio in use is freed.
    Free { context: Context, polled: bool },
    /// So many bios that nobody here allocated come back.
    Burst { context: Context, bios: u16 },
}

fn any_context() -> impl Strategy<Value = Context> {
    prop_oneof![
        Just(Context::Task),
        Just(Context::Softirq),
        Just(Context::Hardirq)
    ]
}

/// Streams of steps; with `preemption`, other tasks may come in between.
pub fn any_stream(preemption: bool) -> impl Strategy<Value = Vec<Step>> {
    let between = move || {
        let quiet = prop_oneof![6 => Just(Between::Interrupt), 1 => Just(Between::Softirq)];
        let any = prop_oneof![
            3 => Just(Between::Interrupt),
            1 => Just(Between::TaskTakes),
            1 => Just(Between::TaskFrees),
            1 => Just(Between::Moves),
        ];
        let one = if preemption {
            any.boxed()
        } else {
            quiet.boxed()
        };
        prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(one, 1..3)]
    };
    let memory = prop_oneof![
        20 => Just(Memory::Plenty),
        1 => Just(Memory::Reserve),
        1 => Just(Memory::None),
    ];
    let request = (any::<bool>(), any::<bool>(), 0u32..6, memory).prop_map(
        |(without_cache, asked, vectors, memory)| Request {
            has_cache: !(without_cache && vectors == 0),
            vectors,
            asked,
            memory,
        },
    );
    let allocate =
        (request, between(), between()).prop_map(|(request, before, after)| Step::Allocate {
            request,
            before,
            after,
        });
    let free =
        (any_context(), any::<bool>()).prop_map(|(context, polled)| Step::Free { context, polled });
    let burst = (any_context(), prop_oneof![8 => 1u16..20, 1 => 250u16..260])
        .prop_map(|(context, bios)| Step::Burst { context, bios });
    let step = prop_oneof![8 => allocate, 4 => free, 1 => burst];
    prop::collection::vec(step, 0..200)
}

//! The list of injections, and what each has to be called.
//!
//! Latencies are longer than any disk's, so that the emulated CPUs have time to
//! spare, whatever else runs on this machine, unless a cause needs it otherwise.

use vmd_device::control::Request;
use vmd_device::{Latency, Link, LinkSpeed, LinkWidth, MsiFault, Service, SharedService};

use super::{Action, Answer, InjectedLoad, Injection, Server, Window};
use crate::fio::Engine;

const MILLISECOND: u64 = 1_000_000;

/// What a disk of these servers takes for a read. Not always the same, so that
/// what was sent together does not complete together.
pub(super) const USUAL: Latency = Latency::Uniform {
    low: 10 * MILLISECOND,
    high: 30 * MILLISECOND,
};
const SLOW: Latency = Latency::Fixed(80 * MILLISECOND);
/// The read is done inside the doorbell write.
const NONE: Latency = Latency::Fixed(0);

/// All of them. Of one server, each runs after those above it.
pub static ALL: &[Injection] = &[
    Injection {
        name: "one-disk-remap",
        what: "nothing: one disk alone behind a controller that remaps",
        server: Server::Spread,
        windows: &[Window {
            before: &[],
            load: load("R", 1, "0-3", 4),
            after: &[],
            answer: Answer::NOTHING,
        }],
        compared: None,
    },
    Injection {
        name: "one-disk-bypass",
        what: "nothing: one disk alone behind a controller that is bypassed",
        server: Server::Spread,
        windows: &[Window {
            before: &[],
            load: cached(load("B", 1, "0-3", 4)),
            after: &[],
            answer: Answer::NOTHING,
        }],
        compared: None,
    },
    Injection {
        name: "twelve-disks",
        what: "nothing: 12 disks well spread, whose own interrupts read 0 as they do in remap",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Shell(SPREAD)],
            load: load("R", 12, "0-3", 2),
            after: &[],
            answer: Answer::NOTHING,
        }],
        compared: None,
    },
    Injection {
        name: "half-load",
        what: "half of the requests in flight",
        server: Server::Spread,
        windows: &[
            Window {
                before: &[Action::Device("R", slow)],
                load: load("R", 2, "0-3", 16),
                after: &[],
                answer: Answer::NOTHING,
            },
            Window {
                before: &[],
                load: load("R", 2, "0-3", 8),
                after: &[Action::Device("R", usual)],
                answer: Answer::allows(&["h0-load"]),
            },
        ],
        compared: Some(Answer::supports(&["h0-load"])),
    },
    Injection {
        name: "capped",
        what: "a limit of all disks together, in force while four or more are busy",
        server: Server::Spread,
        windows: &[
            Window {
                before: &[Action::Device("R", slow), Action::Device("R", cap)],
                load: load("R", 1, "0-3", 64),
                after: &[],
                answer: Answer::NOTHING,
            },
            Window {
                before: &[],
                load: load("R", 4, "0-3", 64),
                after: &[Action::Device("R", no_cap), Action::Device("R", usual)],
                answer: Answer::allows(&["h4-device"]),
            },
        ],
        compared: Some(Answer::supports(&["h4-device"])),
    },
    Injection {
        name: "few-vectors",
        what: "10 queues of eight disks on each vector",
        server: Server::Spread,
        windows: &[Window {
            before: &[],
            load: load("F", 2, "0-3", 2),
            after: &[],
            // The first is what was made, the second what it does.
            answer: Answer::supports(&["h5-queues", "runs-for-nothing"]),
        }],
        compared: None,
    },
    Injection {
        name: "reduced-link",
        what: "a disk's link at 8 of 16 GT/s and two of four lanes",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Device("R", reduce_link)],
            load: load("R", 2, "0-3", 4),
            after: &[Action::Device("R", restore_link)],
            answer: Answer::supports(&["h9-link"]),
        }],
        compared: None,
    },
    Injection {
        name: "starved-cache",
        what: "all vectors on CPU 0 and requests of other CPUs, at a latency that hides it: bios end \
               where the interrupt is, then in a softirq where the request came from",
        server: Server::Spread,
        windows: &[
            Window {
                before: &[Action::Shell(PIN)],
                load: cached(load("R", 4, "1-3", 2)),
                after: &[],
                answer: Answer::supports(&["bio-cache-starved"]),
            },
            Window {
                before: &[Action::Shell(END_WHERE_SENT)],
                load: cached(load("R", 4, "1-3", 2)),
                after: &[],
                answer: Answer::supports(&["bio-cache-starved"]),
            },
        ],
        compared: None,
    },
    Injection {
        name: "pinned",
        what: "all vectors on CPU 0, which is full, and requests of other CPUs, which are not",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Shell(PIN), Action::Shell(BURN_CPU_0)],
            load: load("R", 4, "1-3", 8),
            after: &[Action::Shell(SPREAD), Action::Shell(END_BURNING)],
            answer: Answer::supports(&["h3-placement"]),
        }],
        compared: None,
    },
    Injection {
        name: "dropped-msis",
        what: "interrupts of a disk that get lost, and are found when their commands time out",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Shell(SHORT_TIMEOUT), Action::Device("R", drop_msis)],
            // One after the other, so that there are enough of them: each takes a
            // time-out.
            load: load("R", 3, "0-3", 1),
            after: &[],
            answer: Answer::supports(&["lost-interrupts"]),
        }],
        compared: None,
    },
    Injection {
        name: "stalled-disk",
        what: "a disk that takes requests and ends none",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Device("B", stall)],
            load: load("B", 2, "0-3", 4),
            after: &[Action::Device("B", resume)],
            answer: Answer::supports(&["stalled-disk"]),
        }],
        compared: None,
    },
    Injection {
        name: "cpu-time",
        what: "all interrupts on one of two CPUs, while the other has no time for them",
        server: Server::TwoCpus,
        windows: &[Window {
            before: &[
                Action::Shell(PIN),
                Action::Shell(END_WHERE_FOUND),
                Action::Shell(BURN_CPU_1),
                Action::Device("R", none),
            ],
            load: load("R", 4, "1", 16),
            after: &[Action::Shell(END_BURNING)],
            // Every completion comes to the other CPU.
            answer: Answer {
                made_as_well: &["h3-placement"],
                ..Answer::NOTHING
            },
        }],
        compared: None,
    },
    Injection {
        name: "forced-remap",
        what: "a controller that could bypass, passed on by a hypervisor",
        server: Server::Translated,
        windows: &[Window {
            before: &[],
            load: load("S", 2, "0-1", 4),
            after: &[],
            answer: Answer::supports(&["forced-remap"]),
        }],
        compared: None,
    },
    Injection {
        name: "translating-iommu",
        what: "an IOMMU that translates, strictly",
        server: Server::Iommu,
        windows: &[Window {
            before: &[],
            load: load("R", 2, "0-1", 4),
            after: &[],
            answer: Answer::supports(&["h7-iommu"]),
        }],
        compared: None,
    },
    Injection {
        name: "never-enabled",
        what: "a driver that does not enable the interrupts of a controller's children",
        server: Server::NeverEnabled,
        windows: &[Window {
            // Many, and each at a moment of its own: that a child is not called tells
            // something only where its vector is interrupted often.
            before: &[Action::Device("N", scattered)],
            load: load("N", 1, "0", 256),
            after: &[],
            answer: Answer::supports(&["child-never-enabled"]),
        }],
        compared: None,
    },
    Injection {
        name: "config-reads",
        what: "a part with an erratum, for which each interrupt reads configuration space",
        server: Server::Erratum,
        windows: &[Window {
            before: &[],
            load: load("Q", 2, "0-1", 4),
            after: &[],
            answer: Answer::supports(&["config-read-per-interrupt"]),
        }],
        compared: None,
    },
];

/// By a way that asks for no bio of the CPU's cache (block/fops.c). With io_uring an
/// empty cache would be a second finding, and a true one, wherever requests end on
/// another CPU: in remap a queue's vector is on any CPU.
const fn load(tag: &'static str, disks: usize, cpus: &'static str, depth: u32) -> InjectedLoad {
    InjectedLoad {
        tag,
        disks,
        cpus,
        depth,
        engine: Engine::Libaio,
    }
}

/// By a way that does ask for it.
const fn cached(load: InjectedLoad) -> InjectedLoad {
    InjectedLoad {
        engine: Engine::IoUring { polled: false },
        ..load
    }
}

/// Every vector of the controllers on CPU 0. It moves with its next interrupt.
const PIN: &str = "for it in /proc/irq/*/vmd*; do echo 0 > ${it%/*}/smp_affinity_list; done";
/// One after the other on each CPU.
const SPREAD: &str = "cpus=$(nproc); next=0; for it in /proc/irq/*/vmd*; do \
                      echo $((next % cpus)) > ${it%/*}/smp_affinity_list; \
                      next=$((next + 1)); done";
/// Completions end where their interrupt is, not where their request came from.
const END_WHERE_FOUND: &str =
    "for it in $disks; do echo 0 > /sys/block/$it/queue/rq_affinity; done";
/// Completions end on the very CPU their request came from, in a softirq there.
const END_WHERE_SENT: &str = "for it in $disks; do echo 2 > /sys/block/$it/queue/rq_affinity; done";
/// The CPU has no time to spare: a program takes it that yields to any other.
const BURN_CPU_0: &str = "fio --name=burn --ioengine=cpuio --cpuload=100 --cpus_allowed=0 \
                          --nice=19 --time_based=1 --runtime=600 > /dev/null 2>&1 & \
                          echo $! > /tmp/burning";
const BURN_CPU_1: &str = "fio --name=burn --ioengine=cpuio --cpuload=100 --cpus_allowed=1 \
                          --nice=19 --time_based=1 --runtime=600 > /dev/null 2>&1 & \
                          echo $! > /tmp/burning";
const END_BURNING: &str = "kill $(cat /tmp/burning)";
/// In milliseconds; 30 s otherwise.
const SHORT_TIMEOUT: &str =
    "for it in $disks; do echo 2000 > /sys/block/$it/queue/io_timeout; done";

fn service(latency: Latency) -> Vec<Request> {
    let service = Service {
        latency,
        ..Service::default()
    };
    vec![Request::Service {
        disk: None,
        service,
    }]
}

fn usual() -> Vec<Request> {
    service(USUAL)
}

fn slow() -> Vec<Request> {
    service(SLOW)
}

fn scattered() -> Vec<Request> {
    service(Latency::Uniform {
        low: 10 * MILLISECOND,
        high: 300 * MILLISECOND,
    })
}

fn none() -> Vec<Request> {
    service(NONE)
}

/// An eighth of what four disks at [`SLOW`] do at the depth that is used.
fn cap() -> Vec<Request> {
    let service = SharedService {
        iops: Some(400),
        from_disks: 4,
        ..SharedService::default()
    };
    vec![Request::SharedService { service }]
}

fn no_cap() -> Vec<Request> {
    let service = SharedService::default();
    vec![Request::SharedService { service }]
}

fn link(link: Link) -> Vec<Request> {
    vec![Request::Link { disk: 0, link }]
}

fn reduce_link() -> Vec<Request> {
    link(Link {
        speed: LinkSpeed::Gt8,
        width: LinkWidth::X2,
    })
}

fn restore_link() -> Vec<Request> {
    link(Link::default())
}

/// As many as can be told at once, of the queues for I/O of four CPUs: more than the
/// window has, since what waits for an interrupt sends nothing.
fn drop_msis() -> Vec<Request> {
    let drops = (1..=4).flat_map(|vector| {
        (1..=16).map(move |nth| Request::MsiFault {
            disk: 0,
            vector: Some(vector),
            nth,
            fault: MsiFault::Drop,
        })
    });
    drops.collect()
}

fn resume() -> Vec<Request> {
    vec![Request::Resume { disk: 0 }]
}

fn stall() -> Vec<Request> {
    vec![Request::Stall { disk: 0 }]
}

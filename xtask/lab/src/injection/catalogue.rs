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
const SLOW: Latency = Latency::Fixed(40 * MILLISECOND);
/// The read is done inside the doorbell write.
const NONE: Latency = Latency::Fixed(0);

const IO_URING: Engine = Engine::IoUring { polled: false };

/// All of them. Of one server, each runs after those above it.
pub static ALL: [Injection; 15] = [
    Injection {
        name: "one-disk-remap",
        what: "nothing: one disk alone behind a controller that remaps",
        server: Server::Spread,
        windows: &[Window {
            before: &[],
            load: load("R", 1, "0-3", 8),
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
            load: load("B", 1, "0-3", 8),
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
            load: load("R", 12, "0-3", 4),
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
                load: load("R", 4, "0-3", 16),
                after: &[],
                answer: Answer::NOTHING,
            },
            Window {
                before: &[],
                load: load("R", 4, "0-3", 8),
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
        what: "20 interrupts of four disks on one vector, which aggregates",
        server: Server::Spread,
        windows: &[Window {
            before: &[],
            // By libaio, as in "pinned": one vector is one CPU, where the requests
            // of the others end remotely.
            load: InjectedLoad {
                engine: Engine::Libaio,
                ..load("F", 4, "0-3", 4)
            },
            after: &[],
            answer: Answer::supports(&["h5-queues"]),
        }],
        compared: None,
    },
    Injection {
        name: "reduced-link",
        what: "a disk's link at 8 of 16 GT/s and two of four lanes",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Device("R", reduce_link)],
            load: load("R", 2, "0-3", 8),
            after: &[Action::Device("R", restore_link)],
            answer: Answer::supports(&["h9-link"]),
        }],
        compared: None,
    },
    Injection {
        name: "starved-cache",
        what: "all vectors on CPU 0 and requests of other CPUs, at a latency that hides it",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Shell(PIN)],
            load: load("R", 4, "1-3", 8),
            after: &[],
            answer: Answer::supports(&["bio-cache-starved"]),
        }],
        compared: None,
    },
    Injection {
        name: "pinned",
        what: "all vectors on CPU 0 and requests of CPU 1, at no latency",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Shell(PIN), Action::Device("R", none)],
            // By a way that asks for no bio of the cache (block/fops.c): its
            // emptiness would be another finding, which "starved-cache" has.
            load: InjectedLoad {
                engine: Engine::Libaio,
                ..load("R", 4, "1", 16)
            },
            after: &[Action::Shell(SPREAD), Action::Device("R", usual)],
            answer: Answer::supports(&["h3-placement"]),
        }],
        compared: None,
    },
    Injection {
        name: "dropped-msis",
        what: "interrupts of a disk that get lost, and are found when their commands time out",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Shell(SHORT_TIMEOUT), Action::Device("R", drop_of_0)],
            load: load("R", 1, "0-3", 4),
            after: &[],
            answer: Answer::NOTHING,
        }],
        compared: None,
    },
    Injection {
        name: "never-enabled",
        what: "a disk of which no interrupt arrives",
        server: Server::Spread,
        windows: &[Window {
            before: &[Action::Device("R", drop_of_1)],
            load: InjectedLoad {
                hangs: true,
                ..load("R", 3, "0-3", 8)
            },
            after: &[],
            answer: Answer::supports(&["stalled-disk"]),
        }],
        compared: None,
    },
    Injection {
        name: "cpu-time",
        what: "all interrupts on one of two CPUs, which ends the other's requests, at no latency",
        server: Server::TwoCpus,
        windows: &[Window {
            before: &[
                Action::Shell(PIN),
                Action::Shell(END_WHERE_FOUND),
                Action::Device("R", none),
            ],
            load: InjectedLoad {
                engine: Engine::Libaio,
                ..load("R", 4, "1", 16)
            },
            after: &[],
            answer: Answer::NOTHING,
        }],
        compared: None,
    },
    Injection {
        name: "forced-remap",
        what: "a controller that could bypass, passed on by a hypervisor",
        server: Server::Translated,
        windows: &[Window {
            before: &[],
            load: load("S", 2, "0-1", 8),
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
            load: load("R", 2, "0-1", 8),
            after: &[],
            answer: Answer::supports(&["h7-iommu"]),
        }],
        compared: None,
    },
    Injection {
        name: "config-reads",
        what: "a part with an erratum, for which each interrupt reads configuration space",
        server: Server::Erratum,
        windows: &[Window {
            before: &[],
            load: load("Q", 2, "0-1", 8),
            after: &[],
            answer: Answer::supports(&["config-read-per-interrupt"]),
        }],
        compared: None,
    },
];

const fn load(tag: &'static str, disks: usize, cpus: &'static str, depth: u32) -> InjectedLoad {
    InjectedLoad {
        tag,
        disks,
        cpus,
        depth,
        engine: IO_URING,
        hangs: false,
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

fn none() -> Vec<Request> {
    service(NONE)
}

/// A fifth of what four disks at [`SLOW`] do at the depth that is used.
fn cap() -> Vec<Request> {
    let service = SharedService {
        iops: Some(1200),
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

/// As many as can be told at once, of the queues for I/O of four CPUs: more than a
/// window has, since what waits for an interrupt sends nothing.
fn drop_all(disk: usize) -> Vec<Request> {
    let queues = 1..=4;
    let drops = queues.flat_map(|queue| {
        (1..=16).map(move |nth| Request::MsiFault {
            disk,
            vector: Some(queue),
            nth,
            fault: MsiFault::Drop,
        })
    });
    drops.collect()
}

fn drop_of_0() -> Vec<Request> {
    drop_all(0)
}

fn drop_of_1() -> Vec<Request> {
    drop_all(1)
}

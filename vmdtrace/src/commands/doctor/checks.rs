//! Facts of kernel, host and process, each judged by whether it is in the way.

use std::fmt::Display;

use super::facts::{Facts, names};
use super::report::{Check, CheckState};
use crate::host::topology::Topology;
use crate::host::{Capability, Fact, Lockdown, TracingFiles, printable};
use crate::snapshot::ProbeState;

/// All checks, in the order they are shown. Their ids are listed in
/// docs/doctor.md.
pub(super) fn checks(facts: &Facts, topology: &Topology) -> Vec<Check> {
    let mut checks = of_kernel(facts);
    checks.extend(of_process(facts));
    checks.extend(of_files(facts));
    checks.push(problems(topology));
    checks
}

fn of_kernel(facts: &Facts) -> Vec<Check> {
    let settings = &facts.settings;
    vec![
        judged("kernel.release", &settings.release, |release| good(release)),
        match &facts.layout.action_name {
            Ok(_) => good("types of the kernel are known").of("kernel.btf"),
            Err(reason) => blocking(reason)
                .remedy("boot a kernel built with CONFIG_DEBUG_INFO_BTF")
                .of("kernel.btf"),
        },
        match &facts.layout.interrupt_count {
            Ok(_) => good("addresses of kstat and __per_cpu_offset are known"),
            Err(missing) => limiting(format!(
                "{}; repeated handler runs cannot be told",
                missing.reason
            ))
            .remedy(match missing.state {
                ProbeState::Blocked => HIDDEN_SYMBOLS,
                _ => "boot a kernel built with CONFIG_KALLSYMS_ALL",
            }),
        }
        .of("kernel.kallsyms"),
        judged(
            "kernel.lockdown",
            &facts.security.lockdown,
            |mode| match mode {
                Lockdown::Confidentiality => {
                    blocking("confidentiality: eBPF programs may not read kernel memory")
                        .remedy("boot with lockdown=integrity or lockdown=none")
                }
                Lockdown::None | Lockdown::Integrity => good(mode.as_str()),
            },
        ),
        judged("kernel.kptr_restrict", &settings.kptr_restrict, |level| {
            if *level >= 2 {
                limiting(format!(
                    "{level}: kernel addresses are hidden from everybody"
                ))
                .remedy("sysctl kernel.kptr_restrict=1")
            } else {
                good(level)
            }
        }),
        judged(
            "kernel.perf_event_paranoid",
            &settings.perf_event_paranoid,
            |level| {
                let needed = facts.for_kprobes();
                let lacking = facts.lacks(&needed).unwrap_or_default();
                if needed.contains(&Capability::SysAdmin) && lacking.contains(&Capability::SysAdmin)
                {
                    limiting(format!(
                        "{level}: kprobes need CAP_SYS_ADMIN, which this process lacks"
                    ))
                    .remedy("sysctl kernel.perf_event_paranoid=2, or run as root")
                } else {
                    good(level)
                }
            },
        ),
        judged(
            "kernel.unprivileged_bpf_disabled",
            &settings.unprivileged_bpf_disabled,
            |level| good(level),
        ),
        match &settings.ftrace_enabled {
            Ok(None) => limiting(
                "this kernel is built without function tracing: no probe on a function's entry \
                 or exit",
            )
            .remedy("boot a kernel built with CONFIG_FUNCTION_TRACER")
            .of("kernel.function_tracing"),
            found => judged("kernel.function_tracing", found, |enabled| {
                if *enabled == 0 {
                    limiting("switched off: probes on a function's entry or exit see nothing")
                        .remedy("sysctl kernel.ftrace_enabled=1")
                } else {
                    good("available")
                }
            }),
        },
    ]
}

/// What to do where /proc/kallsyms shows no addresses (kernel/kallsyms.c,
/// kallsyms_show_value).
pub(super) const HIDDEN_SYMBOLS: &str =
    "give the program CAP_SYSLOG, and see that kernel.kptr_restrict is below 2";

fn of_process(facts: &Facts) -> Vec<Check> {
    let security = &facts.security;
    let containment = &facts.containment;
    let object = if facts.has_object {
        good("inside the program")
    } else {
        blocking("this program was built without its eBPF object")
            .remedy("build it with `cargo xtask build`")
    };
    vec![
        object.of("program.ebpf_object"),
        capability_check(facts),
        judged(
            "process.user_namespace",
            &containment.in_initial_user_namespace,
            |initial| {
                if *initial {
                    good("the host's")
                } else {
                    blocking("a container's own: its capabilities do not count for eBPF")
                        .remedy("run in the host's user namespace")
                }
            },
        ),
        judged(
            "process.pid_namespace",
            &containment.in_initial_pid_namespace,
            |initial| {
                good(if *initial {
                    "the host's"
                } else {
                    "a container's own; counts are of the whole host all the same"
                })
            },
        ),
        judged("process.cgroup", &containment.control_group, |path| {
            good(printable(path))
        }),
        judged(
            "process.seccomp",
            &security.filters_system_calls,
            |filtered| {
                good(if *filtered {
                    "a filter is active; where it refuses, the probes below say so"
                } else {
                    "no filter"
                })
            },
        ),
        judged("security.modules", &security.modules, |modules| {
            good(printable(modules))
        }),
        judged(
            "security.selinux",
            &security.selinux_enforcing,
            |enforcing| {
                good(if *enforcing {
                    "enforcing"
                } else {
                    "permissive"
                })
            },
        ),
        judged("security.label", &security.label, |label| {
            good(printable(label))
        }),
    ]
}

fn capability_check(facts: &Facts) -> Check {
    const ID: &str = "process.capabilities";
    let ours = match &facts.capabilities {
        Ok(ours) => *ours,
        Err(error) => return unknown(error).of(ID),
    };
    let needed = facts.for_programs();
    let lacking = ours.missing(&needed);
    if !lacking.is_empty() {
        return blocking(format!("missing {}", names(&lacking).join(" and ")))
            .remedy("run as root, or give the program what is missing")
            .of(ID);
    }
    let known = [
        Capability::Bpf,
        Capability::Perfmon,
        Capability::SysAdmin,
        Capability::Syslog,
        Capability::SysResource,
    ];
    let held: Vec<_> = known.into_iter().filter(|one| ours.has(*one)).collect();
    good(names(&held).join(" ")).of(ID)
}

fn of_files(facts: &Facts) -> Vec<Check> {
    let tracing = match &facts.tracing_files {
        TracingFiles::Reachable(path) => good(path.display()),
        TracingFiles::NotMounted => {
            good("not mounted; tracepoints and function probes do without it")
        }
        TracingFiles::Refused(error) => unknown(error),
    };
    let sysfs = match &facts.containment.sysfs_is_read_only {
        Ok(true) => good("mounted read-only; nothing is written there"),
        Ok(false) => good("mounted"),
        Err(error) => unknown(error),
    };
    vec![tracing.of("files.tracefs"), sysfs.of("files.sysfs")]
}

fn problems(topology: &Topology) -> Check {
    const ID: &str = "topology.problems";
    match topology.problems.as_slice() {
        [] => good("none").of(ID),
        [first, rest @ ..] => {
            let more = match rest.len() {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            limiting(format!("{first}{more}"))
                .remedy("`vmdtrace topology` lists them all")
                .of(ID)
        }
    }
}

/// A check that has no name yet.
struct Judgement {
    state: CheckState,
    found: String,
    remedy: Option<&'static str>,
}

impl Judgement {
    fn remedy(mut self, remedy: &'static str) -> Self {
        self.remedy = Some(remedy);
        self
    }

    fn of(self, id: &'static str) -> Check {
        Check {
            id,
            state: self.state,
            found: self.found,
            remedy: self.remedy.map(str::to_owned),
        }
    }
}

fn judgement(state: CheckState, found: impl Display) -> Judgement {
    Judgement {
        state,
        found: found.to_string(),
        remedy: None,
    }
}

fn good(found: impl Display) -> Judgement {
    judgement(CheckState::Good, found)
}

fn limiting(found: impl Display) -> Judgement {
    judgement(CheckState::Limiting, found)
}

fn blocking(found: impl Display) -> Judgement {
    judgement(CheckState::Blocking, found)
}

fn unknown(found: impl Display) -> Judgement {
    judgement(CheckState::Unknown, found)
}

/// Judges what a file says; without one nothing is in the way.
fn judged<T>(id: &'static str, fact: &Fact<T>, judge: impl FnOnce(&T) -> Judgement) -> Check {
    match fact {
        Ok(Some(value)) => judge(value),
        Ok(None) => good("not there: this kernel has none, or does not show it"),
        Err(error) => unknown(error),
    }
    .of(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Roots;

    const PAGE: &str = include_str!("../../../../docs/doctor.md");

    fn here() -> Vec<Check> {
        checks(&Facts::read(&Roots::default()), &Topology::default())
    }

    #[test]
    fn the_page_lists_every_check_and_no_other() {
        let ids: Vec<_> = here().iter().map(|check| check.id).collect();
        let (_, section) = PAGE.split_once("## Checks").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let listed: Vec<_> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        assert_eq!(ids, listed);
    }

    #[test]
    fn what_cannot_be_read_is_unknown_not_good() {
        let dir = tempfile::tempdir().unwrap();
        // A folder where a file should be: any error but absence.
        std::fs::create_dir_all(dir.path().join("sys/kernel/kptr_restrict")).unwrap();
        let facts = Facts::read(&Roots {
            sysfs: dir.path().to_owned(),
            procfs: dir.path().to_owned(),
        });
        let found = checks(&facts, &Topology::default());
        let state = |id| found.iter().find(|it| it.id == id).unwrap().state;
        assert_eq!(state("kernel.kptr_restrict"), CheckState::Unknown);
        assert_eq!(state("process.capabilities"), CheckState::Unknown);
        assert_eq!(state("kernel.btf"), CheckState::Blocking);
        assert_eq!(state("kernel.lockdown"), CheckState::Good);
    }

    #[test]
    fn problems_of_the_topology_are_counted() {
        let topology = Topology {
            problems: vec!["/a: b".to_owned(), "/c: d".to_owned()],
            ..Topology::default()
        };
        let check = problems(&topology);
        assert_eq!(check.state, CheckState::Limiting);
        assert_eq!(check.found, "/a: b (and 1 more)");
    }

    #[test]
    fn whatever_is_in_the_way_has_a_remedy() {
        for check in here() {
            let in_the_way = matches!(check.state, CheckState::Limiting | CheckState::Blocking);
            assert_eq!(check.remedy.is_some(), in_the_way, "{check:?}");
        }
    }
}

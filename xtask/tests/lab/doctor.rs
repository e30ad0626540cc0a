//! `vmdtrace doctor` on every kernel: beside a running daemon and under load it
//! finds nothing wrong, each probe is in the state that docs/kernels.md says, and
//! what is taken away it misses, with the remedy.

use std::collections::BTreeMap;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use vmd_device::{Config, DeviceId};
use xtask_lab::{
    Artifacts, Background, Bound, CpuList, Exit, Guest, GuestCommand, GuestConfig, Load, Root,
    VMDTRACE,
};
use xtask_setup::{DEFAULT_KERNEL, KERNELS, Setup};

use crate::exact::Table;
use crate::kernel_test;
use crate::server::{PATIENCE, Server};

const KERNELS_PAGE: &str = include_str!("../../../docs/kernels.md");
/// Heading of the page's table of probes.
const TABLE: &str = "## Which probe is in which state";

/// One, since doctor hooks and unhooks functions while the load runs: with two, an
/// emulated 7.3 once died of it (docs/kernels.md, "Hooking functions under load").
const CPUS: u32 = 1;

/// What doctor said.
struct Said {
    exit: Exit,
    report: Value,
}

impl Said {
    /// From the output of a command that ran `vmdtrace doctor --output json`.
    fn by(guest: &Guest, command: &GuestCommand) -> Self {
        let output = guest
            .run(command, PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"));
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "`{command}` ({}): {error}\n{}\n{}",
                output.exit,
                output.stdout_text(),
                output.stderr_text()
            )
        });
        Self {
            exit: output.exit,
            report,
        }
    }

    fn as_root(guest: &Guest, arguments: &[&str]) -> Self {
        let command = GuestCommand::new(VMDTRACE)
            .args(["doctor", "--output", "json"])
            .args(arguments.iter().copied());
        Self::by(guest, &command)
    }

    fn expect_exit(&self, code: i32) {
        assert_eq!(self.exit, Exit::Code(code), "{:#}", self.report);
        assert_eq!(self.report["exit_status"], code);
    }

    fn list(&self, of: &Value) -> Vec<Value> {
        of.as_array()
            .unwrap_or_else(|| panic!("no list: {:#}", self.report))
            .clone()
    }

    fn named(&self, of: &Value, key: &str, name: &str) -> Value {
        let found = self.list(of).into_iter().find(|it| it[key] == name);
        found.unwrap_or_else(|| panic!("no {name}: {:#}", self.report))
    }

    fn check(&self, id: &str) -> Value {
        self.named(&self.report["checks"], "id", id)
    }

    fn probe(&self, name: &str) -> Value {
        self.named(&self.report["probes"], "name", name)
    }

    fn test(&self, id: &str) -> Value {
        self.named(&self.report["self_test"]["checks"], "id", id)
    }

    /// The self-test's check passed, and compared something that happened.
    fn expect_passed(&self, id: &str) -> Value {
        let test = self.test(id);
        assert_eq!(test["outcome"], "passed", "{:#}", self.report);
        assert!(test["lines"].as_u64() > Some(0), "{test:#}");
        test
    }

    /// State and mechanism by probe.
    fn probes(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.list(&self.report["probes"])
            .iter()
            .map(|probe| {
                let state = format!("{}, {}", text(&probe["state"]), text(&probe["mechanism"]));
                (text(&probe["name"]), state)
            })
            .collect()
    }
}

/// Names a remedy with this text in it.
fn expect_remedy(of: &Value, part: &str) {
    let remedy = of["remedy"].as_str().unwrap_or_default();
    assert!(remedy.contains(part), "{part} is in no remedy of {of:#}");
}

/// State and mechanism by probe, as the page has them for a series.
fn page(series: &str) -> BTreeMap<String, String> {
    let (_, section) = KERNELS_PAGE
        .split_once(TABLE)
        .unwrap_or_else(|| panic!("docs/kernels.md has no section {TABLE}"));
    let section = section.split("\n## ").next().unwrap();
    let mut rows = section
        .lines()
        .filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'))
        .map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let title = rows.next().unwrap();
    let column = title
        .iter()
        .position(|it| *it == series)
        .unwrap_or_else(|| panic!("docs/kernels.md has no column {series}: {title:?}"));
    let rows = rows.skip(1).inspect(|row| {
        assert_eq!(row.len(), title.len(), "docs/kernels.md: {row:?}");
    });
    // Where it has none the probe is not in the list.
    rows.filter(|row| row[column] != "-")
        .map(|row| (row[0].trim_matches('`').to_owned(), row[column].to_owned()))
        .collect()
}

fn config() -> GuestConfig {
    let controller = |id, tag: &str| Config {
        id,
        disks: 2,
        vectors: 3,
        tag: tag.to_owned(),
        ..Config::default()
    };
    GuestConfig {
        cpus: CPUS,
        // The kernel counts for CPUs that are not there.
        absent_cpus: 3,
        native_disks: 1,
        controllers: vec![
            controller(DeviceId::Remap201d, "R"),
            controller(DeviceId::Bypass28c0, "B"),
        ],
        ..GuestConfig::default()
    }
}

/// Reads all disks until it is stopped.
fn load(guest: &Guest) -> Background {
    let disks = guest
        .await_disks(PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    let load = Load {
        disks: disks.iter().map(|it| it.namespaces[0].clone()).collect(),
        cpus: CpuList::first(CPUS),
        depth: 4,
        bound: Bound::Time(Duration::from_secs(3600)),
    };
    guest
        .spawn(&load.command())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The same where there is no fio.
fn plain_load(guest: &Guest) -> Background {
    guest
        .await_disks(PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    let script = "while :; do
            for disk in /dev/nvme*n1; do
                dd if=$disk of=/dev/null bs=4k count=100 iflag=direct 2> /dev/null || exit 1
            done
        done";
    guest
        .spawn(&GuestCommand::shell(script))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn stop(load: Background) {
    load.check_running()
        .unwrap_or_else(|error| panic!("{error}"));
    load.stop(PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
}

fn nothing_is_wrong_under_load(guest: &Guest, series: &str) {
    let said = Said::as_root(guest, &["--self-test", "--for", "3"]);
    said.expect_exit(0);
    assert_eq!(
        said.check("kernel.release")["found"],
        guest.kernel_release()
    );
    let found = said.list(&said.report["controllers"]);
    let mut modes: Vec<_> = found
        .iter()
        .map(|it| it["mode"].as_str().unwrap())
        .collect();
    modes.sort_unstable();
    // The driver of 5.10 remaps in any case.
    let second = if series == "5.10" { "remap" } else { "bypass" };
    let mut expected = [second, "remap"];
    expected.sort_unstable();
    assert_eq!(modes, expected);
    assert_eq!(said.report["disks"], 5);

    said.expect_passed("self_test.children_uncounted");
    for id in [
        "self_test.lines_equal_kernel",
        "self_test.vectors_equal_kprobe",
    ] {
        let totals = &said.expect_passed(id)["totals"];
        assert!(totals["ours"].as_u64() >= Some(20), "{id}: {totals}");
        assert!(totals["at_least"].as_u64() > Some(0), "{id}: {totals}");
        assert!(totals["at_most"].is_u64(), "{id}: {totals}");
    }
    assert_eq!(
        said.probes(),
        page(series),
        "docs/kernels.md (right) is wrong about {series}"
    );
}

fn hidden_addresses_are_missed(guest: &Guest) {
    const PATH: &str = "/proc/sys/kernel/kptr_restrict";
    let write = |level: &[u8]| {
        guest
            .write_file(PATH, 0o644, level)
            .unwrap_or_else(|error| panic!("{error}"));
    };
    let before = guest
        .read_file(PATH)
        .unwrap_or_else(|error| panic!("{error}"));
    write(b"2");
    let said = Said::as_root(guest, &["--self-test", "--for", "2"]);
    write(&before);
    said.expect_exit(1);
    let repeated = said.probe("repeated_runs");
    assert_eq!(repeated["state"], "blocked");
    expect_remedy(&repeated, "kernel.kptr_restrict");
    assert_eq!(said.check("kernel.kptr_restrict")["state"], "limiting");
    // Only too few would be seen.
    let test = said.expect_passed("self_test.lines_equal_kernel");
    assert!(test["totals"]["at_most"].is_null(), "{test:#}");
}

/// Nothing can be loaded: every probe says why, and one of its remedies is `remedy`.
pub(crate) fn sees_nothing(guest: &Guest, as_user: Option<&str>, remedy: &str) {
    let line = format!("{VMDTRACE} doctor --output json --self-test");
    let command = match as_user {
        None => GuestCommand::shell(line),
        Some(user) => GuestCommand::shell(format!(
            "mkdir -p /etc && echo '{user}:x:65534:65534::/:/bin/sh' > /etc/passwd &&
             exec su -s /bin/sh {user} -c '{line}'"
        )),
    };
    let said = Said::by(guest, &command);
    said.expect_exit(2);
    for probe in said.list(&said.report["probes"]) {
        assert_eq!(probe["state"], "blocked", "{probe:#}");
        assert!(probe["reason"].is_string(), "{probe:#}");
        expect_remedy(&probe, remedy);
    }
    let blocking = said
        .list(&said.report["checks"])
        .into_iter()
        .filter(|check| check["state"] == "blocking")
        .collect::<Vec<_>>();
    assert_eq!(blocking.len(), 1, "{blocking:#?}");
    for test in said.list(&said.report["self_test"]["checks"]) {
        assert_eq!(test["outcome"], "not-measured", "{test:#}");
    }
    // What needs no privilege is told all the same.
    assert_eq!(
        said.list(&said.report["controllers"]).len(),
        guest.controllers().len()
    );
}

fn people_can_read_it(guest: &Guest) {
    let command = GuestCommand::new(VMDTRACE).args(["doctor"]);
    let text = guest
        .check(&command, PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"))
        .stdout_text();
    for part in ["irq_handler_entry", "attached", "Nothing is blocked"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(!text.contains("self-test"), "{text}");
}

fn beside_the_daemon(artifacts: &Artifacts, series: &str) {
    let (server, ready) = Server::start(artifacts, &config());
    ready.unwrap_or_else(|error| panic!("{error}"));
    let guest = &server.guest;
    let load = load(guest);
    nothing_is_wrong_under_load(guest, series);
    hidden_addresses_are_missed(guest);
    stop(load);
    sees_nothing(guest, Some("nobody"), "CAP_BPF");
    people_can_read_it(guest);
    server.end();
}

/// All else is attached.
fn kprobes_alone_are_blocked(said: &Said) {
    let mut blocked = 0;
    for probe in said.list(&said.report["probes"]) {
        let by_kprobe = probe["mechanism"].as_str().unwrap().contains("kprobe");
        // Functions that this kernel's driver does not have.
        if by_kprobe && probe["state"] == "unsupported" {
            continue;
        }
        let expected = if by_kprobe { "blocked" } else { "attached" };
        assert_eq!(probe["state"], expected, "{probe:#}");
        if by_kprobe {
            expect_remedy(&probe, "CAP_SYS_ADMIN");
            blocked += 1;
        }
    }
    assert!(blocked >= 2, "{:#}", said.report);
}

/// Root without some capabilities, and a kernel that asks for them.
fn missing_capabilities_are_named(artifacts: &Artifacts) {
    let artifacts = Artifacts {
        debian: Some(Setup::new().unwrap().debian_root().unwrap()),
        ..artifacts.clone()
    };
    let config = GuestConfig {
        root: Root::Debian,
        memory_mib: 2048,
        ..config()
    };
    let guest = Guest::boot(&artifacts, &config).unwrap_or_else(|error| panic!("{error}"));
    guest
        .write_file("/proc/sys/kernel/perf_event_paranoid", 0o644, *b"3")
        .unwrap_or_else(|error| panic!("{error}"));
    let with = |capabilities: &str| {
        let command = GuestCommand::new("setpriv")
            .args([
                format!("--bounding-set=-all{capabilities}"),
                "--inh-caps=-all".to_owned(),
                VMDTRACE.to_owned(),
            ])
            .args("doctor --output json --self-test --for 1".split(' '));
        Said::by(&guest, &command)
    };
    let load = plain_load(&guest);

    // What the daemon needs, and no more: a kprobe needs more.
    let said = with(",+bpf,+perfmon,+syslog");
    said.expect_exit(1);
    let attached = said.probe("repeated_runs");
    assert_eq!(attached["state"], "attached", "{:#}", said.report);
    said.expect_passed("self_test.lines_equal_kernel");
    kprobes_alone_are_blocked(&said);
    let kprobe = said.test("self_test.vectors_equal_kprobe");
    assert_eq!(kprobe["outcome"], "blocked", "{:#}", said.report);
    expect_remedy(&kprobe, "CAP_SYS_ADMIN");
    let paranoid = said.check("kernel.perf_event_paranoid");
    assert_eq!(paranoid["state"], "limiting");
    expect_remedy(&paranoid, "kernel.perf_event_paranoid=2");

    let said = with(",+bpf,+perfmon");
    said.expect_exit(1);
    let repeated = said.probe("repeated_runs");
    assert_eq!(repeated["state"], "blocked", "{:#}", said.report);
    assert_eq!(repeated["lacks"], serde_json::json!(["CAP_SYSLOG"]));
    expect_remedy(&repeated, "CAP_SYSLOG");

    let said = with(",+bpf");
    said.expect_exit(2);
    assert_eq!(said.check("process.capabilities")["state"], "blocking");
    expect_remedy(&said.probe("irq_handler_entry"), "CAP_PERFMON");
    stop(load);
    guest.power_off().unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn trials(table: &Table) -> Vec<Trial> {
    let table = table.clone();
    let mut trials: Vec<Trial> = KERNELS
        .into_iter()
        .map(|series| {
            let name = format!("doctor::{series}::beside_the_daemon");
            kernel_test(series, name, move |artifacts| {
                beside_the_daemon(artifacts, series);
                Ok(())
            })
        })
        .collect();
    trials.push(kernel_test(
        DEFAULT_KERNEL,
        "doctor::missing_capabilities_are_named",
        move |artifacts| {
            missing_capabilities_are_named(artifacts);
            let result = "kprobes blocked, all else attached".to_owned();
            table.tell(artifacts, "paranoid-no-sys-admin", result);
            Ok(())
        },
    ));
    trials
}

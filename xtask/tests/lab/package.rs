//! The Debian package: what is in it, and its life in a Debian with systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Completion, Trial};
use xtask_lab::{Guest, GuestCommand, GuestFile, interrupt};

use crate::server::PATIENCE;
use crate::systemd::{await_ready, boot, log, shell};
use crate::{XTASK, check_with_promtool, lab_test, scheduled};

/// Any moment; without it the packages would be of the last commit's.
const EPOCH: &str = "1700000000";
const OLD: &str = "0.0.1";
const NEW: &str = "0.0.2";
const CONFIG: &str = "/etc/vmdtrace/vmdtrace.yaml";
/// Tenths: exposure has to stay below 2.5.
const MOST_EXPOSURE: &str = "24";
/// CAP_DAC_OVERRIDE, CAP_SYS_ADMIN, CAP_PERFMON and CAP_BPF
/// (include/uapi/linux/capability.h).
const BOUNDING_SET: u64 = 1 << 1 | 1 << 21 | 1 << 38 | 1 << 39;

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("package/vmdtrace.service")
}

/// This machine's systemd judges the unit. In the guest a newer one does.
fn exposure_is_low() -> Result<(), String> {
    let mut analyze = Command::new("systemd-analyze");
    analyze
        .args(["security", "--offline=true", "--no-pager", "--threshold"])
        .arg(MOST_EXPOSURE)
        .arg(unit())
        .stdin(Stdio::null());
    let output = match analyze.output() {
        Ok(output) => output,
        Err(error) => return Err(format!("systemd-analyze: {error}")),
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if said.contains("unrecognized option") {
        return Err("this systemd-analyze is older than 250".to_owned());
    }
    assert!(said.contains("Overall exposure level"), "{said}");
    assert!(output.status.success(), "{said}");
    Ok(())
}

/// A package of this version.
fn package(folder: &Path, version: &str) -> PathBuf {
    let output = Command::new(XTASK)
        .args(["package", "--version", version, "--output"])
        .arg(folder)
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", output.status);
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// What dpkg-deb says of a package.
fn ask(option: &str, package: &Path) -> String {
    let output = Command::new("dpkg-deb")
        .arg(option)
        .arg(package)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn the_same_sources_make_the_same_bytes() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = folders.each_ref().map(|folder| package(folder.path(), NEW));
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap());

    let files = ask("--contents", &first);
    for line in files.lines() {
        assert!(line.contains(" root/root "), "{line}");
        assert!(line.contains(" 2023-11-14 22:13 "), "{line}");
        let mode = line.split(' ').next().unwrap();
        assert!(
            ["drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"].contains(&mode),
            "{line}"
        );
    }
    let paths: Vec<&str> = files
        .lines()
        .filter_map(|line| line.split_once(" ./").map(|(_, path)| path))
        .collect();
    for path in [
        "usr/bin/vmdtrace",
        "usr/lib/systemd/system/vmdtrace.service",
        "etc/vmdtrace/vmdtrace.yaml",
        "usr/share/man/man1/vmdtrace.1.gz",
        "usr/share/man/man1/vmdtrace-serve.1.gz",
        "usr/share/bash-completion/completions/vmdtrace",
        "usr/share/zsh/vendor-completions/_vmdtrace",
        "usr/share/fish/vendor_completions.d/vmdtrace.fish",
        "usr/share/vmdtrace/dashboards/overview.json",
        "usr/share/vmdtrace/rules/alerts.yml",
        "usr/share/doc/vmdtrace/install.md",
        "usr/share/doc/vmdtrace/copyright",
        "usr/share/doc/vmdtrace/changelog.gz",
        "usr/share/doc/vmdtrace/crates.gz",
        "usr/share/doc/vmdtrace/examples/prometheus.yaml",
    ] {
        assert!(paths.contains(&path), "{path} is missing:\n{files}");
    }
    let control = ask("--field", &first);
    assert!(control.contains(&format!("Version: {NEW}\n")), "{control}");
    let size = control
        .lines()
        .find_map(|line| line.strip_prefix("Installed-Size: "));
    let kibibytes = size.and_then(|it| it.parse::<u32>().ok());
    assert!(kibibytes.is_some_and(|it| it > 1024), "{control}");
}

/// As ps shows them.
const SERVER: &str = "vmdtrace";
const HELPER: &str = "vmdtrace-helper";

/// A field of the status of all these threads, in which it has to be the same.
fn of_all(threads: &str, field: &str) -> String {
    let mut values: Vec<&str> = threads
        .lines()
        .filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(str::trim)
        .collect();
    values.dedup();
    let [value] = values[..] else {
        panic!("{field} is {values:?}");
    };
    value.to_owned()
}

/// What systemd knows of the service.
struct Service<'a>(&'a Guest);

impl Service<'_> {
    fn property(&self, name: &str) -> String {
        let line = format!("systemctl show --value -p {name} vmdtrace");
        shell(self.0, &line).stdout_text().trim().to_owned()
    }

    /// Its process; "0" while there is none.
    fn pid(&self) -> String {
        self.property("MainPID")
    }

    /// Does something to its processes of this name: `$it` is the number of one.
    fn for_each(&self, process: &str, what: &str) -> String {
        self.ok(&format!(
            "for it in $(cat /sys/fs/cgroup{}/cgroup.procs); do \
             if [ \"$(cat /proc/$it/comm)\" = {process} ]; then {what}; fi; done",
            self.property("ControlGroup")
        ))
    }

    /// What the kernel says of each thread of a process.
    fn threads(&self, process: &str) -> String {
        self.for_each(process, "cat /proc/$it/task/*/status")
    }

    fn is_active(&self) -> bool {
        self.property("ActiveState") == "active"
    }

    /// Does something, and waits until systemd has started another process instead of
    /// this one.
    fn replaced_by(&self, what: &str) {
        let before = self.pid();
        assert_ne!(before, "0", "{}", log(self.0));
        self.ok(what);
        interrupt::until("another process to be active", PATIENCE, || {
            let now = self.pid();
            Ok((now != before && now != "0" && self.is_active()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{what}: {error}\n{}", log(self.0)));
        await_ready(self.0);
    }

    /// Runs a line of shell that has to succeed.
    fn ok(&self, line: &str) -> String {
        let output = shell(self.0, line);
        assert!(
            output.success(),
            "{line}: {}{}\n{}",
            output.stdout_text(),
            output.stderr_text(),
            log(self.0)
        );
        output.stdout_text()
    }
}

/// All files of the guest but those of dpkg's own and what comes and goes at any time.
/// In /run, where every service of the system has some, those named after us.
fn files(guest: &Guest) -> Vec<String> {
    let line = "find / -xdev -path /var/lib/dpkg -prune -o -path /var/log -prune \
                -o -path /var/lib/systemd/timers -prune -o -path /tmp -prune -o -path /var/tmp -prune \
                -o -print; find /run -name '*vmdtrace*'; ls -d /run/systemd/dynamic-uid/*; \
                ls /sys/kernel/tracing/kprobe_events /etc/systemd/system";
    let text = shell(guest, line).stdout_text();
    let mut files: Vec<_> = text.lines().map(str::to_owned).collect();
    files.sort();
    files
}

/// Probes that are neither attached nor without anything to attach to.
fn hindered(guest: &Guest) -> Vec<String> {
    let scrape = guest.scrape().unwrap();
    let probes = scrape.series("vmdtrace_probe_info");
    probes
        .filter(|it| ["blocked", "broken"].contains(&it.label("state")))
        .map(|it| format!("{}: {}", it.label("probe"), it.label("reason")))
        .collect()
}

fn install_use_upgrade_and_purge() {
    let folder = tempfile::tempdir().unwrap();
    let in_guest = |version: &str| GuestFile {
        on_host: package(folder.path(), version),
        in_guest: format!("/opt/{version}.deb"),
        mode: 0o644,
    };
    let guest = boot(None, vec![in_guest(OLD), in_guest(NEW)]);
    let service = Service(&guest);
    let install = |version: &str| format!("dpkg -i /opt/{version}.deb");
    let before = files(&guest);
    assert!(before.iter().any(|it| it == "/usr/bin/dpkg"), "{before:?}");

    // Installed, it runs, as nobody else may and with what it was given alone.
    service.ok(&install(OLD));
    assert!(service.is_active(), "{}", log(&guest));
    assert_eq!(service.ok("systemctl is-enabled vmdtrace"), "enabled\n");
    service.ok(&format!(
        "systemd-analyze security --offline=true --no-pager --threshold={MOST_EXPOSURE} \
         /usr/lib/systemd/system/vmdtrace.service"
    ));
    service.ok("systemd-analyze verify --man=no vmdtrace.service");

    // Not where it listens, but everything else is told by its settings at once.
    service.ok(&format!(
        "printf '%s\\n' \"web.listen-address: ':10973'\" >> {CONFIG} && systemctl reload vmdtrace"
    ));
    interrupt::until("the reload to be told", PATIENCE, || {
        Ok(log(&guest)
            .contains("web.listen-address changed, too: restart")
            .then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", log(&guest)));
    service.replaced_by("systemctl restart vmdtrace");
    check_with_promtool(&guest.http_get("/metrics").unwrap().ok("/metrics").unwrap());
    assert_eq!(hindered(&guest), Vec::<String>::new(), "{}", log(&guest));

    // What the unit gives is the helper's; the server has kept nothing of it.
    for (process, kept) in [(SERVER, 0), (HELPER, BOUNDING_SET)] {
        let threads = service.threads(process);
        for (field, expected) in [
            ("CapEff", kept),
            ("CapPrm", kept),
            ("CapInh", 0),
            ("CapAmb", 0),
            ("CapBnd", BOUNDING_SET),
        ] {
            assert_eq!(
                of_all(&threads, field),
                format!("{expected:016x}"),
                "{process}: {field}"
            );
        }
        assert_eq!(of_all(&threads, "NoNewPrivs"), "1");
        assert_eq!(of_all(&threads, "Seccomp"), "2");
        let ids = of_all(&threads, "Uid");
        assert!(!ids.split_whitespace().any(|id| id == "0"), "{ids}");
    }

    // Settings that can change do, and wrong ones do not.
    let pid = service.pid();
    let family = "# TYPE vmdtrace_disk_timeouts_total ";
    let shows_disks = || guest.http_get("/metrics").unwrap().body.contains(family);
    assert!(!shows_disks());
    service.ok(&format!(
        "printf '%s\\n' 'metrics.disks: true' >> {CONFIG} && systemctl reload vmdtrace"
    ));
    interrupt::until("the settings to be in force", PATIENCE, || {
        Ok(shows_disks().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", log(&guest)));
    let good = service.ok(&format!("cat {CONFIG}"));
    service.ok(&format!("printf '%s\\n' 'metrics.disk: true' >> {CONFIG}"));
    let line = good.lines().count() + 1;
    assert!(!shell(&guest, "systemctl reload vmdtrace").success());
    service.ok("systemctl kill --kill-whom=main -s HUP vmdtrace");
    let told = format!("the settings stay as they were: {CONFIG}:{line}: there is no setting");
    interrupt::until("the daemon to refuse them", PATIENCE, || {
        Ok(log(&guest).contains(&told).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", log(&guest)));
    assert!(service.is_active() && shows_disks());
    assert_eq!(service.pid(), pid, "it went on all the while");
    service.ok(&format!("sed -i '$d' {CONFIG}"));
    service.ok("systemctl reload vmdtrace");

    restarts(&guest, &service);

    // An upgrade keeps the changed settings, and runs the new version.
    service.replaced_by(&install(NEW));
    assert_eq!(
        service.ok("dpkg-query -W -f '${Version} ${db:Status-Status}' vmdtrace"),
        format!("{NEW} installed")
    );
    assert_eq!(service.ok(&format!("cat {CONFIG}")), good);
    assert!(shows_disks());

    // Removed, its settings stay; purged, nothing does.
    service.ok("dpkg -r vmdtrace");
    assert!(!service.is_active());
    assert_eq!(service.ok(&format!("cat {CONFIG}")), good);
    assert!(!shell(&guest, "test -e /usr/bin/vmdtrace").success());
    service.ok("dpkg -P vmdtrace");
    let left = |after: Vec<String>| -> Vec<String> {
        after
            .into_iter()
            .filter(|it| !before.contains(it))
            .collect()
    };
    assert_eq!(left(files(&guest)), Vec::<String>::new());
    assert_eq!(
        service.ok("systemctl list-unit-files --no-legend 'vmdtrace*'; systemctl --failed --no-legend; cat /sys/kernel/tracing/kprobe_events"),
        ""
    );

    // Whoever does not want services started says so to policy-rc.d.
    let policy = "/usr/sbin/policy-rc.d";
    guest
        .write_file(policy, 0o755, "#!/bin/sh\nexit 101\n")
        .unwrap();
    service.ok(&install(NEW));
    assert!(!service.is_active());
    assert_eq!(service.ok("systemctl is-enabled vmdtrace"), "enabled\n");
    service.ok(&format!("dpkg -P vmdtrace && rm {policy}"));
    assert_eq!(left(files(&guest)), Vec::<String>::new());
    guest.power_off().unwrap_or_else(|error| panic!("{error}"));
}

/// Under load, killed, and stopped dead: each time another process takes over.
fn restarts(guest: &Guest, service: &Service<'_>) {
    let disk = guest.disks().unwrap()[0].clone();
    let load = guest
        .spawn(&GuestCommand::shell(format!(
            "while true; do dd if=/dev/{} of=/dev/null bs=4k count=256 iflag=direct; done",
            disk.namespaces[0]
        )))
        .unwrap();
    service.replaced_by("systemctl restart vmdtrace");
    let completions = || {
        let scrape = guest.scrape().unwrap();
        scrape.sum("vmdtrace_completions_total", |it| {
            it.label("disk") == disk.name
        })
    };
    interrupt::until("completions to be counted", PATIENCE, || {
        Ok(completions().is_some_and(|count| count > 0.0).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", log(guest)));
    assert_eq!(service.property("NRestarts"), "0", "{}", log(guest));

    let kprobes = || service.ok("wc -l < /sys/kernel/tracing/kprobe_events");
    let with_one_daemon = kprobes();
    assert_ne!(with_one_daemon.trim(), "0");
    service.replaced_by("systemctl kill --kill-whom=main -s KILL vmdtrace");
    assert_eq!(service.property("NRestarts"), "1", "{}", log(guest));
    assert_eq!(
        kprobes(),
        with_one_daemon,
        "what the killed one left is removed"
    );

    // Without its helper the daemon would count nothing.
    let before = service.pid();
    service.for_each(HELPER, "kill -KILL $it");
    interrupt::until("the daemon to be started again", PATIENCE, || {
        let now = service.pid();
        Ok((now != before && now != "0" && service.is_active()).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", log(guest)));
    await_ready(guest);
    assert_eq!(service.property("NRestarts"), "2", "{}", log(guest));
    assert_eq!(kprobes(), with_one_daemon);

    // The load must not decide how soon the watchdog is fed.
    load.stop(PATIENCE).unwrap();
    let folder = "/run/systemd/system/vmdtrace.service.d";
    service.ok(&format!(
        "mkdir -p {folder} && printf '[Service]\\nWatchdogSec=10s\\n' > {folder}/watchdog.conf && \
         systemctl daemon-reload"
    ));
    service.replaced_by("systemctl restart vmdtrace");
    service.replaced_by("systemctl kill --kill-whom=main -s STOP vmdtrace");
    assert_eq!(service.property("NRestarts"), "1", "{}", log(guest));
    assert!(log(guest).contains("Watchdog timeout"), "{}", log(guest));
    service.ok(&format!("rm -r {folder} && systemctl daemon-reload"));
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        scheduled("package::exposure_is_low", || {
            Ok(match exposure_is_low() {
                Ok(()) => Completion::Completed,
                Err(reason) => Completion::ignored_with(reason),
            })
        }),
        lab_test("package::the_same_sources_make_the_same_bytes", || {
            the_same_sources_make_the_same_bytes();
            Ok(())
        }),
        lab_test("package::install_use_upgrade_and_purge", || {
            install_use_upgrade_and_purge();
            Ok(())
        }),
    ]
}

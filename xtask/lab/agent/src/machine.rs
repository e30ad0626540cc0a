//! What an init has to do with the machine itself. Whatever fails is said on
//! the console, where the host shows it, and the boot goes on: the host notices
//! what is missing.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use lab_agent::BOOT_MODULES;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

/// Where programs are in the initramfs.
pub(crate) const PATH: &str = "/bin:/sbin:/usr/bin:/usr/sbin";

const FILE_SYSTEMS: [(&str, &str); 8] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
    ("securityfs", "/sys/kernel/security"),
];

pub(crate) fn set_up() {
    for (kind, target) in FILE_SYSTEMS {
        report(target, fs::create_dir_all(target));
        let nothing: Option<&str> = None;
        report(
            target,
            mount(Some(kind), target, Some(kind), MsFlags::empty(), nothing),
        );
    }
    let busybox = Command::new("/bin/busybox")
        .args(["--install", "-s", "/bin"])
        .status();
    report("busybox --install", busybox);
    load_boot_modules();
}

/// Loads what the channel to the host needs.
pub(crate) fn load_boot_modules() {
    match fs::read_to_string(BOOT_MODULES) {
        Ok(modules) => {
            for module in modules.lines() {
                report(module, load_module(Path::new(module), ""));
            }
        }
        Err(error) => eprintln!("lab-agent: {BOOT_MODULES}: {error}"),
    }
}

/// Loads a module; one that is there already is fine.
pub(crate) fn load_module(path: &Path, parameters: &str) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| format!("load {}: {error}", path.display());
    let file = File::open(path).map_err(|error| text(&error))?;
    let parameters = std::ffi::CString::new(parameters).map_err(|error| text(&error))?;
    match finit_module(file, &parameters, ModuleInitFlags::empty()) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(text(&error)),
    }
}

/// Opens the port of this name, which appears when its driver has found it.
pub(crate) fn open_port(name: &str) -> Result<File, String> {
    const ATTEMPTS: u32 = 600;
    for _ in 0..ATTEMPTS {
        let ports = fs::read_dir("/sys/class/virtio-ports")
            .into_iter()
            .flatten()
            .flatten();
        for port in ports {
            let found = fs::read_to_string(port.path().join("name")).unwrap_or_default();
            if found.trim_end() == name {
                let device = Path::new("/dev").join(port.file_name());
                return OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(&device)
                    .map_err(|error| format!("{}: {error}", device.display()));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!("no virtio-serial port is called {name}"))
}

/// Switches the machine off. Only PID 1 gets here; should the kernel refuse,
/// ending makes it panic, which switches it off too.
pub(crate) fn power_off() -> ExitCode {
    let Err(error) = reboot(RebootMode::RB_POWER_OFF);
    eprintln!("lab-agent: cannot switch off: {error}");
    ExitCode::FAILURE
}

fn report<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) {
    if let Err(error) = result {
        eprintln!("lab-agent: {what}: {error}");
    }
}

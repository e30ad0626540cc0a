//! A virtual server from its boot to its end.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lab_agent::{Answer, Request};
use xtask_setup::Program;

use crate::artifacts::{Artifacts, VMDTRACE, module_path};
use crate::channel::Channel;
use crate::child::Guarded;
use crate::command::{Background, GuestCommand, Output, PROMPT, unexpected};
use crate::controller::Controller;
use crate::disks::{self, GuestDisk};
use crate::error::{LabError, Log, Result};
use crate::http::{self, HttpResponse};
use crate::initramfs::{self, Archive};
use crate::interrupt;
use crate::interrupts::{self, KernelCounts};
use crate::qemu::{GUEST_ADDRESS, Iommu, Machine};
use crate::scrape::Scrape;
use crate::systemd;
use crate::temporary::Folder;

/// The daemon answers in milliseconds, once it gets one of the guest's CPUs.
const HTTP_LIMIT: Duration = Duration::from_secs(30);

const NATIVE_DISK_BYTES: u64 = 256 << 20;

/// A file that is put in the guest before it boots.
#[derive(Clone, Debug)]
pub struct GuestFile {
    pub on_host: PathBuf,
    /// Absolute path in the guest.
    pub in_guest: String,
    pub mode: u32,
}

impl GuestFile {
    /// A program, to be called by its name, and its libraries.
    #[must_use]
    pub fn of_program(program: &Program) -> Vec<Self> {
        let name = program.path.file_name().unwrap_or_default();
        let itself = (
            program.path.clone(),
            format!("/bin/{}", name.to_string_lossy()),
        );
        let files = program.loader_and_libraries.iter().cloned();
        files
            .chain([itself])
            .map(|(on_host, in_guest)| Self {
                on_host,
                in_guest,
                mode: 0o755,
            })
            .collect()
    }
}

/// What a guest runs beside the agent. It is in memory, and new at each boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Root {
    /// busybox and fio; the agent is PID 1.
    #[default]
    Tools,
    /// Debian with systemd, and the agent a service of it. `artifacts.debian` has
    /// to be there, and 2 GiB of memory.
    Debian,
}

/// What kind of server to boot.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// CPUs that are there from the start.
    pub cpus: u32,
    /// CPUs beyond these that the kernel has to be ready for, as on a server
    /// with empty sockets.
    pub absent_cpus: u32,
    /// CPUs, absent ones too, and memory are dealt out equally.
    pub numa_nodes: u32,
    pub memory_mib: u32,
    pub iommu: Iommu,
    /// Whether the guest's clock counts instructions, one for a nanosecond, and
    /// all CPUs run in one thread. It is exact only for what does not wait for an
    /// emulated device: the clock moves meanwhile.
    pub counts_instructions: bool,
    pub root: Root,
    /// NVMe disks that QEMU itself emulates, beside the controllers.
    pub native_disks: u8,
    pub controllers: Vec<vmd_device::Config>,
    /// Modules to load, with what they need, before [`Guest::boot`] returns.
    /// `vmd` and `nvme` are in every guest and can be loaded later.
    pub modules: Vec<String>,
    pub kernel_arguments: Vec<String>,
    pub files: Vec<GuestFile>,
    /// Whether it has a console for [`Guest::shell`].
    pub terminal: bool,
    /// A port of the guest that is reached through a loopback port of the host.
    pub guest_port: u16,
    /// How long a boot may take, from QEMU's start until all modules are loaded.
    pub boot_limit: Duration,
    /// If the guest is not switched off in order, its logs are kept and named.
    pub keep_logs: bool,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            cpus: 2,
            absent_cpus: 0,
            numa_nodes: 1,
            memory_mib: 1024,
            iommu: Iommu::Absent,
            counts_instructions: false,
            root: Root::Tools,
            native_disks: 0,
            controllers: Vec::new(),
            modules: vec!["vmd".to_owned(), "nvme".to_owned()],
            kernel_arguments: Vec::new(),
            files: Vec::new(),
            terminal: false,
            guest_port: 10973,
            boot_limit: Duration::from_secs(90),
            keep_logs: false,
        }
    }
}

impl GuestConfig {
    fn check(&self) -> Result<()> {
        let possible = self.cpus.saturating_add(self.absent_cpus);
        for (what, number) in [
            ("CPUs, absent ones too", possible),
            ("MiB of memory", self.memory_mib),
        ] {
            let nodes = self.numa_nodes;
            if nodes == 0 || number == 0 || !number.is_multiple_of(nodes) {
                return Err(LabError::Invalid(format!(
                    "{number} {what} cannot be dealt out equally to {nodes} NUMA nodes"
                )));
            }
        }
        Ok(())
    }
}

/// A running virtual server. Dropping it ends it at once and removes its files.
#[derive(Debug)]
pub struct Guest {
    // Fields are dropped in this order.
    channel: Arc<Channel>,
    qemu: Mutex<Guarded>,
    controllers: Vec<Controller>,
    logs: Vec<Log>,
    host_port: u16,
    kernel_release: String,
    artifacts: Artifacts,
    native_disks: u8,
    terminal: Option<PathBuf>,
    folder: Folder,
}

impl Guest {
    /// Boots a server and loads its modules.
    ///
    /// # Errors
    /// When a part is missing or does not start, or the guest does not come up in
    /// time: with the ends of the console's, QEMU's and the devices' logs.
    pub fn boot(artifacts: &Artifacts, config: &GuestConfig) -> Result<Self> {
        config.check()?;
        interrupt::listen()?;
        let mut folder = Folder::new("lab")?;
        folder.keep(config.keep_logs);
        let initramfs = folder.path().join("initramfs");
        let (base, root_arguments) = match config.root {
            Root::Tools => (artifacts.base()?, None),
            Root::Debian => (artifacts.debian_base()?, Some(systemd::KERNEL_ARGUMENTS)),
        };
        let base = base.cached(&artifacts.cache)?;
        let kernel_arguments: Vec<_> = root_arguments
            .into_iter()
            .map(str::to_owned)
            .chain(config.kernel_arguments.iter().cloned())
            .collect();
        initramfs::join(&base, &overlay(artifacts, config)?, &initramfs)?;

        let mut controllers = Vec::new();
        for (index, controller) in config.controllers.iter().enumerate() {
            let server = &artifacts.device_server;
            controllers.push(Controller::start(server, index, controller, folder.path())?);
        }
        let console = folder.path().join("console.log");
        let socket = folder.path().join("channel.socket");
        let terminal = config
            .terminal
            .then(|| folder.path().join("terminal.socket"));
        let native_disks = (0..config.native_disks)
            .map(|index| {
                // Sparse: it costs what is written.
                let path = folder.path().join(format!("native{index}.disk"));
                File::create_new(&path)
                    .and_then(|file| file.set_len(NATIVE_DISK_BYTES))
                    .map_err(LabError::path(&path))?;
                Ok(path)
            })
            .collect::<Result<Vec<_>>>()?;
        let host_port = free_port()?;
        let mut command = artifacts.qemu.command();
        Machine {
            cpus: config.cpus,
            absent_cpus: config.absent_cpus,
            numa_nodes: config.numa_nodes,
            memory_mib: config.memory_mib,
            iommu: config.iommu,
            counts_instructions: config.counts_instructions,
            native_disks: &native_disks,
            kernel: &artifacts.kernel.vmlinuz,
            initramfs: &initramfs,
            kernel_arguments: &kernel_arguments,
            console: &console,
            channel: &socket,
            terminal: terminal.as_deref(),
            devices: controllers
                .iter()
                .map(|it| it.socket().to_owned())
                .collect(),
            forward: (host_port, config.guest_port),
        }
        .add_to(&mut command);
        let end = Instant::now() + config.boot_limit;
        let mut qemu = Guarded::spawn("QEMU", command, &folder.path().join("qemu.log"))?;

        let mut logs = vec![Log {
            of: "the guest's console".to_owned(),
            path: console,
        }];
        logs.push(qemu.log());
        logs.extend(controllers.iter().map(Controller::log));
        let channel = connect(&mut qemu, &socket).map_err(|error| error.with_logs(&logs))?;
        let limit = end.saturating_duration_since(Instant::now());
        let hello = channel
            .hello("booting the guest", limit)
            .map_err(|error| error.with_note(&pace(&qemu)).with_logs(&logs))?;
        let guest = Self {
            channel: Arc::new(channel),
            qemu: Mutex::new(qemu),
            controllers,
            logs,
            host_port,
            kernel_release: hello.kernel_release,
            artifacts: artifacts.clone(),
            native_disks: config.native_disks,
            terminal,
            folder,
        };
        // The kernel has unpacked it: its pages are better used otherwise.
        std::fs::remove_file(&initramfs).map_err(LabError::path(&initramfs))?;
        guest.start_network(end)?;
        for module in &config.modules {
            guest.load_module_until(end, module, "")?;
        }
        Ok(guest)
    }

    fn start_network(&self, end: Instant) -> Result<()> {
        self.load_module_until(end, "virtio_net", "")?;
        let script = format!(
            "ip link set lo up && ip addr add {GUEST_ADDRESS}/24 dev eth0 && ip link set eth0 up"
        );
        self.check(&GuestCommand::shell(script), PROMPT).map(drop)
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// When it cannot be started, or does not end in time (it is then killed),
    /// or the guest does not answer. How it ended is for the caller to judge.
    pub fn run(&self, command: &GuestCommand, limit: Duration) -> Result<Output> {
        self.spawn(command)?.wait(limit)
    }

    /// Runs a program that has to succeed.
    ///
    /// # Errors
    /// As [`Guest::run`]; and when it does not end with status 0, with what it
    /// wrote.
    pub fn check(&self, command: &GuestCommand, limit: Duration) -> Result<Output> {
        let output = self.run(command, limit)?;
        if output.success() {
            return Ok(output);
        }
        let problem = format!("failed ({})", output.exit);
        Err(output.error(command, &problem).with_logs(&self.logs))
    }

    /// Starts a program in the background.
    ///
    /// # Errors
    /// When it cannot be started, or the guest does not answer.
    pub fn spawn(&self, command: &GuestCommand) -> Result<Background> {
        Background::start(&self.channel, &self.logs, command)
    }

    /// The content of a file of the guest.
    ///
    /// # Errors
    /// When it cannot be read, or the guest does not answer.
    pub fn read_file(&self, path: &str) -> Result<Vec<u8>> {
        let what = format!("reading {path}");
        let request = Request::ReadFile {
            path: path.to_owned(),
        };
        match self.request(&what, request, Vec::new(), PROMPT)? {
            (Answer::Content, content) => Ok(content),
            (answer, _) => Err(unexpected(&what, &answer)),
        }
    }

    /// Writes a file in the guest; folders above it are made.
    ///
    /// # Errors
    /// When it cannot be written, or the guest does not answer.
    pub fn write_file(&self, path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Result<()> {
        let request = Request::WriteFile {
            path: path.to_owned(),
            mode,
        };
        self.expect_done(&format!("writing {path}"), request, content.into(), PROMPT)
    }

    /// Sets a feature of an NVMe controller (`nvme0`, ...) with an admin command from
    /// the guest, past its driver.
    ///
    /// # Errors
    /// When there is no such controller, it refuses, or the guest does not answer.
    pub fn set_nvme_feature(&self, controller: &str, feature: u8, value: u32) -> Result<()> {
        let request = Request::SetNvmeFeature {
            path: format!("/dev/{controller}"),
            feature,
            value,
        };
        let what = format!("setting feature {feature:#04x} of {controller}");
        self.expect_done(&what, request, Vec::new(), PROMPT)
    }

    /// Makes bytes of a block device (`nvme0n1`, ...) zero without sending zeroes.
    ///
    /// # Errors
    /// When the device cannot, or the guest does not answer.
    pub fn write_zeroes(&self, disk: &str, offset: u64, length: u64) -> Result<()> {
        let request = Request::WriteZeroes {
            path: format!("/dev/{disk}"),
            offset,
            length,
        };
        self.expect_done(&format!("zeroing {disk}"), request, Vec::new(), PROMPT)
    }

    /// The eBPF programs, maps and links that the guest's kernel holds, whoever made
    /// them, each as `KIND ID`.
    ///
    /// # Errors
    /// When the guest does not answer, or its kernel refuses.
    pub fn bpf_objects(&self) -> Result<BTreeSet<String>> {
        let what = "listing eBPF objects";
        match self.request(what, Request::BpfObjects, Vec::new(), PROMPT)? {
            (Answer::Content, list) => {
                let list = String::from_utf8_lossy(&list);
                Ok(list.lines().map(str::to_owned).collect())
            }
            (answer, _) => Err(unexpected(what, &answer)),
        }
    }

    /// Loads a kernel module after those it needs; what is loaded stays.
    ///
    /// # Errors
    /// When there is no such module, the kernel refuses it, or the guest does
    /// not answer.
    pub fn load_module(&self, name: &str, parameters: &str) -> Result<()> {
        self.load_module_until(Instant::now() + PROMPT, name, parameters)
    }

    fn load_module_until(&self, end: Instant, name: &str, parameters: &str) -> Result<()> {
        let modules = self.artifacts.modules(&[name.to_owned()])?;
        for module in modules {
            let of_this = module.name == name.replace('-', "_");
            let request = Request::LoadModule {
                path: module_path(&module.name),
                parameters: if of_this {
                    parameters.to_owned()
                } else {
                    String::new()
                },
            };
            let what = format!("loading {}", module.name);
            let limit = end.saturating_duration_since(Instant::now());
            self.expect_done(&what, request, Vec::new(), limit)?;
        }
        Ok(())
    }

    /// Asks the daemon in the guest for a page.
    ///
    /// # Errors
    /// When there is no answer; an answer of any status is returned.
    pub fn http_get(&self, path: &str) -> Result<HttpResponse> {
        let url = format!("http://{}{path}", self.address());
        http::get(&url, &[], HTTP_LIMIT).map_err(|error| {
            LabError::failed(format!("GET {path} from the guest: {error}")).with_logs(&self.logs)
        })
    }

    /// Reads the daemon's /metrics.
    ///
    /// # Errors
    /// When there is no answer or it is not understood.
    pub fn scrape(&self) -> Result<Scrape> {
        Scrape::parse(&self.http_get("/metrics")?.ok("/metrics")?)
    }

    /// Where the guest's port is reached on the host.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.host_port)
    }

    /// `uname -r` of the running kernel.
    #[must_use]
    pub fn kernel_release(&self) -> &str {
        &self.kernel_release
    }

    /// The socket of its console for a person.
    pub(crate) fn terminal(&self) -> Option<&Path> {
        self.terminal.as_deref()
    }

    /// The emulated controllers, in the order of the configuration.
    #[must_use]
    pub fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// The kernel's own count of every interrupt line.
    ///
    /// # Errors
    /// When the guest does not answer, or says what is not understood.
    pub fn kernel_counts(&self) -> Result<KernelCounts> {
        let output = self.check(&GuestCommand::shell(interrupts::SCRIPT), PROMPT)?;
        KernelCounts::parse(&output.stdout_text())
    }

    /// The guest's NVMe disks, whatever they are behind, by serial number.
    ///
    /// # Errors
    /// When the guest does not answer, or says what is not understood.
    pub fn disks(&self) -> Result<Vec<GuestDisk>> {
        disks::parse(
            &self
                .check(&GuestCommand::shell(disks::SCRIPT), PROMPT)?
                .stdout_text(),
        )
    }

    /// Waits until every disk can be read, behind a controller or not.
    ///
    /// # Errors
    /// When that does not come in time: the text says which disks are there.
    pub fn await_disks(&self, limit: Duration) -> Result<Vec<GuestDisk>> {
        let expected: usize = self
            .controllers
            .iter()
            .map(|it| usize::from(it.config().disks))
            .sum::<usize>()
            + usize::from(self.native_disks);
        let mut seen = Vec::new();
        let what = format!("waiting for {expected} disks");
        interrupt::until(&what, limit, || {
            seen = self.disks()?;
            let ready = seen
                .iter()
                .filter(|it| it.state == "live" && !it.namespaces.is_empty());
            Ok((ready.count() >= expected).then(|| seen.clone()))
        })
        .map_err(|error| error.with_logs(&self.logs))
    }

    /// What the guest's kernel and agent wrote to the serial console.
    #[must_use]
    pub fn console(&self) -> String {
        let console = self
            .logs
            .first()
            .map(|log| std::fs::read(&log.path).unwrap_or_default());
        String::from_utf8_lossy(&console.unwrap_or_default()).into_owned()
    }

    /// Switches the guest off and waits until it, and the devices, have ended.
    ///
    /// # Errors
    /// When it does not end in time or a part of it ends with an error. Whatever
    /// is left is ended all the same.
    pub fn power_off(mut self) -> Result<()> {
        const LIMIT: Duration = Duration::from_secs(60);
        self.expect_done(
            "switching the guest off",
            Request::PowerOff,
            Vec::new(),
            PROMPT,
        )?;
        let qemu = self.qemu.get_mut().unwrap_or_else(PoisonError::into_inner);
        let status = qemu
            .await_end(LIMIT)
            .map_err(|error| error.with_logs(&self.logs))?;
        if !status.success() {
            return Err(LabError::failed(format!("QEMU ended with {status}")).with_logs(&self.logs));
        }
        for controller in &mut self.controllers {
            controller.await_end(LIMIT)?;
        }
        self.folder.keep(false);
        Ok(())
    }

    fn expect_done(
        &self,
        what: &str,
        request: Request,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<()> {
        match self.request(what, request, payload, limit)? {
            (Answer::Done, _) => Ok(()),
            (answer, _) => Err(unexpected(what, &answer)),
        }
    }

    fn request(
        &self,
        what: &str,
        request: Request,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<(Answer, Vec<u8>)> {
        self.channel
            .request(what, request, payload, limit)
            .map_err(|error| error.with_logs(&self.logs))
    }
}

/// What differs from boot to boot, or while vmdtrace is worked on.
fn overlay(artifacts: &Artifacts, config: &GuestConfig) -> Result<Archive> {
    let mut archive = Archive::default();
    artifacts.add_modules_beyond_base(&config.modules, &mut archive)?;
    let agent = match config.root {
        Root::Tools => "/init",
        Root::Debian => systemd::AGENT,
    };
    archive.file(agent, 0o755, &artifacts.agent);
    if let Some(vmdtrace) = &artifacts.vmdtrace {
        archive.file(VMDTRACE, 0o755, vmdtrace);
    }
    for GuestFile {
        on_host,
        in_guest,
        mode,
    } in &config.files
    {
        archive.file(in_guest, *mode, on_host);
    }
    Ok(archive)
}

/// Tells a guest that hangs from one that a busy host did not let run: that one's
/// threads waited for a CPU most of the time.
fn pace(qemu: &Guarded) -> String {
    qemu.pace().map_or_else(String::new, |(ran, waited)| {
        format!(" (QEMU's threads ran for {ran:.1} s and waited {waited:.1} s for a CPU)")
    })
}

/// Waits for QEMU to make its socket.
fn connect(qemu: &mut Guarded, socket: &Path) -> Result<Channel> {
    const LIMIT: Duration = Duration::from_secs(30);
    interrupt::until("connecting to QEMU", LIMIT, || {
        qemu.check()?;
        Ok(Channel::connect(socket).ok())
    })
}

/// How many guests this machine can run side by side: each has two CPUs or more
/// that it emulates, and the time limits are for a machine that keeps up.
#[must_use]
pub fn guests_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

/// A port of the loopback that is free now. A program takes it a moment later; should
/// another be faster, the program says so and does not start.
pub(crate) fn free_port() -> Result<u16> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(port
        .map_err(LabError::io("cannot find a free port"))?
        .port())
}

//! QEMU's arguments.

use std::path::{Path, PathBuf};
use std::process::Command;

use lab_agent::PORT_NAME;

/// The address QEMU's user-mode network gives to a guest by convention.
pub(crate) const GUEST_ADDRESS: &str = "10.0.2.15";

/// The machine's IOMMU, and what the guest's kernel does with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iommu {
    #[default]
    Absent,
    /// It remaps interrupts and leaves the devices' addresses alone.
    InterruptsOnly,
    /// As above, and devices are attached to identity mappings.
    Identity,
    /// As above, and devices see addresses of their own. Slow under emulation.
    Translating,
}

impl Iommu {
    /// QEMU's device. Caching mode makes the kernel announce each mapping, by
    /// which a device in another process learns of it.
    fn device(self) -> Option<&'static str> {
        match self {
            Self::Absent => None,
            Self::InterruptsOnly => Some("intel-iommu,intremap=on"),
            Self::Identity | Self::Translating => Some("intel-iommu,intremap=on,caching-mode=on"),
        }
    }

    fn kernel_arguments(self) -> &'static str {
        match self {
            Self::Absent => "",
            Self::InterruptsOnly => " intel_iommu=off",
            Self::Identity => " intel_iommu=on iommu=pt",
            Self::Translating => " intel_iommu=on iommu=nopt",
        }
    }
}

/// What one machine is made of.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) cpus: u32,
    /// CPUs that could be plugged in later.
    pub(crate) absent_cpus: u32,
    /// CPUs, absent ones too, and memory are dealt out equally.
    pub(crate) numa_nodes: u32,
    pub(crate) memory_mib: u32,
    pub(crate) iommu: Iommu,
    /// See [`crate::GuestConfig::counts_instructions`].
    pub(crate) counts_instructions: bool,
    /// Files that hold the data of NVMe disks of QEMU's own, not behind a VMD.
    pub(crate) native_disks: &'a [PathBuf],
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) kernel_arguments: &'a [String],
    /// Where the serial console is written.
    pub(crate) console: &'a Path,
    /// The socket of the command channel, made by QEMU.
    pub(crate) channel: &'a Path,
    /// The socket of a console for a person, made by QEMU; /dev/hvc0 in the guest.
    pub(crate) terminal: Option<&'a Path>,
    /// The sockets of the emulated devices, which must listen already.
    pub(crate) devices: Vec<PathBuf>,
    /// A port of the host's loopback and the guest's port it leads to.
    pub(crate) forward: (u16, u16),
}

/// Characters that separate options in QEMU's own argument syntax are doubled.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

impl Machine<'_> {
    pub(crate) fn add_to(&self, qemu: &mut Command) {
        let (host_port, guest_port) = self.forward;
        // What the machine needs to be quick under emulation and to end instead
        // of waiting for a person: no mitigations, no reboot after a panic. The
        // kernel panics ("IO-APIC + timer doesn't work!") if too few timer
        // interrupts come while it waits for ten of them (`check_timer` and
        // `timer_irq_works` in arch/x86/kernel/apic/io_apic.c), which happens on a
        // host with more to do than CPUs; there is no timer here to be tested.
        // The kernel says all it has to say, which costs nothing that can be measured, so
        // that a hang before the agent shows where; systemd keeps quiet.
        let mut append =
            "console=ttyS0 quiet loglevel=7 panic=-1 mitigations=off no_timer_check".to_owned();
        append.push_str(self.iommu.kernel_arguments());
        for argument in self.kernel_arguments {
            append.push(' ');
            append.push_str(argument);
        }
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-machine", "q35"])
            .args(["-cpu", "max"])
            .args(["-m", &format!("{}M", self.memory_mib)]);
        self.add_nodes(qemu);
        if self.counts_instructions {
            // A nanosecond for each instruction; idle time is skipped.
            qemu.args(["-accel", "tcg,thread=single"])
                .args(["-icount", "shift=0,sleep=off"]);
        } else {
            qemu.args(["-accel", "tcg,thread=multi"]);
        }
        qemu.args([
            "-chardev",
            &format!("file,id=console,path={}", escaped(self.console)),
        ])
        .args(["-serial", "chardev:console"])
        .arg("-kernel")
        .arg(self.kernel)
        .arg("-initrd")
        .arg(self.initramfs)
        .args(["-append", &append])
        .args(["-device", "virtio-serial-pci"])
        .args([
            "-chardev",
            &format!(
                "socket,id=agent,path={},server=on,wait=off",
                escaped(self.channel)
            ),
        ])
        .args([
            "-device",
            &format!("virtserialport,chardev=agent,name={PORT_NAME}"),
        ])
        // Restricted: the guest reaches nothing but who connects to its port.
        .args([
            "-netdev",
            &format!("user,id=network,restrict=on,hostfwd=tcp:127.0.0.1:{host_port}-:{guest_port}"),
        ])
        .args(["-device", "virtio-net-pci,netdev=network,romfile="]);
        if let Some(terminal) = self.terminal {
            let socket = escaped(terminal);
            qemu.args([
                "-chardev",
                &format!("socket,id=terminal,path={socket},server=on,wait=off"),
                "-device",
                "virtconsole,chardev=terminal",
            ]);
        }
        // Before the devices that it is to serve.
        if let Some(iommu) = self.iommu.device() {
            qemu.args(["-device", iommu]);
        }
        self.add_native_disks(qemu);
        for socket in &self.devices {
            let device = serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": socket },
            });
            qemu.args(["-device", &device.to_string()]);
        }
    }

    /// CPUs and memory. A node's CPUs are a socket of their own: Linux does not
    /// believe in a socket that reaches over two nodes.
    fn add_nodes(&self, qemu: &mut Command) {
        let nodes = self.numa_nodes.max(1);
        let possible = self.cpus + self.absent_cpus;
        let (cpus, memory_mib) = (possible / nodes, self.memory_mib / nodes);
        qemu.args([
            "-smp",
            &format!(
                "cpus={},maxcpus={possible},sockets={nodes},cores={cpus},threads=1",
                self.cpus
            ),
        ]);
        for node in 0..nodes {
            // The device server maps the guest's memory: it has to be shareable.
            qemu.args([
                "-object",
                &format!("memory-backend-memfd,id=memory{node},size={memory_mib}M,share=on"),
                "-numa",
                &format!(
                    "node,nodeid={node},memdev=memory{node},cpus={}-{}",
                    node * cpus,
                    (node + 1) * cpus - 1
                ),
            ]);
        }
    }

    fn add_native_disks(&self, qemu: &mut Command) {
        for (index, file) in (0..).zip(self.native_disks) {
            let node = format!("native{index}");
            let back_end = serde_json::json!({
                "driver": "file",
                "node-name": node,
                "filename": file,
                // Nothing has to outlive the machine.
                "cache": { "no-flush": true },
            });
            let serial = native_serial(index);
            qemu.args(["-blockdev", &back_end.to_string()])
                .args(["-device", &format!("nvme,drive={node},serial={serial}")]);
        }
    }
}

/// The serial number of one of QEMU's own disks.
#[must_use]
pub fn native_serial(index: u8) -> String {
    format!("NATIVE{index:04}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine<'static> {
        Machine {
            cpus: 6,
            absent_cpus: 0,
            numa_nodes: 1,
            memory_mib: 1024,
            iommu: Iommu::Absent,
            counts_instructions: false,
            native_disks: &[],
            kernel: Path::new("/k"),
            initramfs: Path::new("/i"),
            kernel_arguments: &[],
            console: Path::new("/tmp/a,b/console"),
            channel: Path::new("/tmp/a,b/channel"),
            terminal: None,
            devices: Vec::new(),
            forward: (40000, 10973),
        }
    }

    fn arguments(machine: &Machine<'_>) -> Vec<String> {
        let mut command = Command::new("qemu");
        machine.add_to(&mut command);
        let arguments = command.get_args();
        arguments
            .map(|it| it.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn nodes_share_cpus_and_memory() {
        let all = arguments(&Machine {
            cpus: 4,
            absent_cpus: 2,
            numa_nodes: 2,
            ..machine()
        })
        .join(" ");
        for expected in [
            "-smp cpus=4,maxcpus=6,sockets=2,cores=3,threads=1",
            "memory-backend-memfd,id=memory1,size=512M,share=on",
            "node,nodeid=0,memdev=memory0,cpus=0-2",
            "node,nodeid=1,memdev=memory1,cpus=3-5",
        ] {
            assert!(all.contains(expected), "{expected} in {all}");
        }
    }

    #[test]
    fn one_thread_runs_a_guest_that_counts_instructions() {
        let all = |counts_instructions| {
            arguments(&Machine {
                counts_instructions,
                ..machine()
            })
            .join(" ")
        };
        assert!(all(true).contains("-accel tcg,thread=single -icount shift=0,sleep=off"));
        assert!(all(false).contains("-accel tcg,thread=multi"));
        assert!(!all(false).contains("icount"));
    }

    #[test]
    fn the_iommu_comes_before_what_it_serves() {
        let all = arguments(&Machine {
            iommu: Iommu::Translating,
            native_disks: &["/tmp/one.disk".into(), "/tmp/two.disk".into()],
            devices: vec!["/tmp/one".into()],
            ..machine()
        });
        let place = |part: &str| all.iter().position(|it| it.contains(part)).unwrap();
        assert!(place("intel-iommu") < place("nvme,drive=native0,serial=NATIVE0000"));
        assert!(place("serial=NATIVE0001") < place("vfio-user-pci"));
        assert!(all[place("console=ttyS0")].ends_with("no_timer_check intel_iommu=on iommu=nopt"));
    }

    #[test]
    fn the_guest_is_reached_on_the_loopback_only_and_reaches_nothing() {
        let arguments = arguments(&Machine {
            kernel_arguments: &["nvme.poll_queues=1".to_owned()],
            devices: vec!["/tmp/one".into(), "/tmp/a,\"two".into()],
            ..machine()
        });
        let has = |argument: &str| arguments.iter().any(|it| it == argument);
        assert!(has(
            "user,id=network,restrict=on,hostfwd=tcp:127.0.0.1:40000-:10973"
        ));
        assert!(has("file,id=console,path=/tmp/a,,b/console"));
        assert!(has(
            "console=ttyS0 quiet loglevel=7 panic=-1 mitigations=off no_timer_check nvme.poll_queues=1"
        ));
        let devices: Vec<serde_json::Value> = arguments
            .iter()
            .filter(|argument| argument.starts_with('{'))
            .map(|argument| serde_json::from_str(argument).unwrap())
            .collect();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices[1]["socket"]["path"], "/tmp/a,\"two");
    }
}

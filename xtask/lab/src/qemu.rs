//! QEMU's arguments.

use std::path::{Path, PathBuf};
use std::process::Command;

use lab_agent::PORT_NAME;

/// The address QEMU's user-mode network gives to a guest by convention.
pub(crate) const GUEST_ADDRESS: &str = "10.0.2.15";

/// What one machine is made of.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) kernel_arguments: &'a [String],
    /// Where the serial console is written.
    pub(crate) console: &'a Path,
    /// The socket of the command channel, made by QEMU.
    pub(crate) channel: &'a Path,
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
        let memory = format!("{}M", self.memory_mib);
        let (host_port, guest_port) = self.forward;
        // What the machine needs to be quick under emulation and to end instead
        // of waiting for a person: no mitigations, no reboot after a panic. The
        // kernel panics ("IO-APIC + timer doesn't work!") if too few timer
        // interrupts come while it waits for ten of them (`check_timer` and
        // `timer_irq_works` in arch/x86/kernel/apic/io_apic.c), which happens on a
        // host with more to do than CPUs; there is no timer here to be tested.
        let mut append = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check".to_owned();
        for argument in self.kernel_arguments {
            append.push(' ');
            append.push_str(argument);
        }
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-machine", "q35"])
            .args(["-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", &self.cpus.to_string(), "-m", &memory])
            // The device server maps the guest's memory: it has to be shareable.
            .args([
                "-object",
                &format!("memory-backend-memfd,id=memory,size={memory},share=on"),
            ])
            .args(["-numa", "node,memdev=memory"])
            .args([
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
                &format!(
                    "user,id=network,restrict=on,hostfwd=tcp:127.0.0.1:{host_port}-:{guest_port}"
                ),
            ])
            .args(["-device", "virtio-net-pci,netdev=network,romfile="]);
        for socket in &self.devices {
            let device = serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": socket },
            });
            qemu.args(["-device", &device.to_string()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_is_reached_on_the_loopback_only_and_reaches_nothing() {
        let machine = Machine {
            cpus: 6,
            memory_mib: 1024,
            kernel: Path::new("/k"),
            initramfs: Path::new("/i"),
            kernel_arguments: &["nvme.poll_queues=1".to_owned()],
            console: Path::new("/tmp/a,b/console"),
            channel: Path::new("/tmp/a,b/channel"),
            devices: vec!["/tmp/one".into(), "/tmp/a,\"two".into()],
            forward: (40000, 10973),
        };
        let mut command = Command::new("qemu");
        machine.add_to(&mut command);
        let arguments: Vec<_> = command.get_args().filter_map(|it| it.to_str()).collect();
        let has = |argument: &str| arguments.contains(&argument);
        assert!(has(
            "user,id=network,restrict=on,hostfwd=tcp:127.0.0.1:40000-:10973"
        ));
        assert!(has("file,id=console,path=/tmp/a,,b/console"));
        assert!(has(
            "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check nvme.poll_queues=1"
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

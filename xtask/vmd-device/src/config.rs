//! What the device looks like, and the arguments it is started with.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::service::{Service, SharedService};

/// Which VMD is emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceId {
    /// Skylake server: always remaps its children's MSIs.
    #[value(name = "201d")]
    Remap201d,
    /// Ice Lake server and later: can let its children's MSIs bypass remapping.
    #[value(name = "28c0")]
    Bypass28c0,
    /// Tiger Lake client: the driver leaves its first vector alone, as on all client parts.
    #[value(name = "9a0b")]
    Client9a0b,
    /// Alder Lake client.
    #[value(name = "a77f")]
    ClientA77f,
    /// Meteor Lake client: from Linux 7.3 on the driver reads from the disk before it
    /// calls its handlers.
    #[value(name = "7d0b")]
    Client7d0b,
}

impl DeviceId {
    /// The PCI device id.
    #[must_use]
    pub fn pci_id(self) -> u16 {
        match self {
            Self::Remap201d => 0x201d,
            Self::Bypass28c0 => 0x28c0,
            Self::Client9a0b => 0x9a0b,
            Self::ClientA77f => 0xa77f,
            Self::Client7d0b => 0x7d0b,
        }
    }

    /// Whether the driver may switch MSI remapping off.
    #[must_use]
    pub fn can_bypass(self) -> bool {
        self == Self::Bypass28c0
    }

    /// Whether QEMU has a pass-through quirk for this id (`vfio_pci_vmd_quirk`
    /// in hw/vfio/pci-quirks.c) that reads a host file a vfio-user device does
    /// not have. Such an id must not be seen before the first reset.
    #[must_use]
    pub fn has_qemu_quirk(self) -> bool {
        matches!(self, Self::Remap201d | Self::Client9a0b)
    }

    /// Whether the driver asks where the buses start (`VMD_FEAT_HAS_BUS_RESTRICTIONS`).
    #[must_use]
    pub fn has_bus_restrictions(self) -> bool {
        self != Self::Remap201d
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Remap201d => "201d",
            Self::Bypass28c0 => "28c0",
            Self::Client9a0b => "9a0b",
            Self::ClientA77f => "a77f",
            Self::Client7d0b => "7d0b",
        }
    }
}

/// Bytes of a disk's logical block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BlockSize {
    #[default]
    #[value(name = "512")]
    B512,
    #[value(name = "4096")]
    B4096,
}

impl BlockSize {
    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

/// The number of the first bus behind a VMD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum FirstBus {
    #[default]
    #[value(name = "0")]
    Bus0,
    #[value(name = "128")]
    Bus128,
    #[value(name = "224")]
    Bus224,
}

impl FirstBus {
    /// The bus number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Bus0 => 0,
            Self::Bus128 => 128,
            Self::Bus224 => 224,
        }
    }
}

/// A device that does not exist in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "the driver does not ask a VMD {id} for its first bus: leave --first-bus, or take another --id"
    )]
    FirstBus { id: &'static str },
    #[error(
        "the driver does not ask a VMD {id} for shadow registers: leave --shadow, or take --id 28c0"
    )]
    Shadow { id: &'static str },
}

/// Most namespaces of one disk.
pub const MAX_NAMESPACES: u8 = 16;

/// Most disks behind one VMD: Linux gives each root port two windows of 1 MiB in
/// the 32 MiB MEMBAR1, so that disks beyond the sixteenth get no memory.
pub const MAX_DISKS: usize = 16;

/// The shape of one VMD and its disks.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Config {
    /// Which VMD to emulate.
    #[arg(long, value_enum, default_value = "28c0")]
    pub id: DeviceId,
    /// Number of NVMe disks behind it.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u8).range(1..=MAX_DISKS as i64))]
    pub disks: u8,
    /// Present the VMD as a hypervisor passes it through: with the addresses that
    /// the real machine has behind it. The driver then always remaps.
    #[arg(long)]
    pub shadow: bool,
    /// Number of the first bus behind the VMD.
    #[arg(long, value_enum, default_value = "0")]
    pub first_bus: FirstBus,
    /// MSI-X vectors of the VMD itself; the driver keeps the first one for ports.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub vectors: u16,
    /// Size of each namespace in bytes, a multiple of 4096. It costs memory only where written.
    #[arg(long, default_value_t = 256 << 20, value_parser = parse_disk_bytes)]
    pub disk_bytes: u64,
    /// Size of a logical block in bytes.
    #[arg(long, value_enum, default_value = "512")]
    pub block_size: BlockSize,
    /// Namespaces of each disk.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_NAMESPACES)))]
    pub namespaces: u8,
    /// Say that the disks have a volatile write cache, so that the driver flushes it.
    #[arg(long)]
    pub write_cache: bool,
    /// MSI-X vectors of each disk: one for the admin queue and each I/O queue.
    #[arg(long, default_value_t = 65, value_parser = clap::value_parser!(u16).range(2..=256))]
    pub queue_vectors: u16,
    /// Part of serial numbers and NQNs; must differ between the VMDs of one guest.
    #[arg(long, default_value = "A", value_parser = parse_tag)]
    pub tag: String,
    /// How fast each disk is.
    #[command(flatten)]
    pub service: Service,
    /// How fast what they share is.
    #[command(flatten)]
    pub shared: SharedService,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            id: DeviceId::Bypass28c0,
            disks: 12,
            shadow: false,
            first_bus: FirstBus::default(),
            vectors: 8,
            disk_bytes: 256 << 20,
            block_size: BlockSize::default(),
            namespaces: 1,
            write_cache: false,
            queue_vectors: 65,
            tag: "A".to_owned(),
            service: Service::default(),
            shared: SharedService::default(),
        }
    }
}

impl Config {
    /// Whether there can be such a device.
    ///
    /// # Errors
    /// When options contradict each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        let id = self.id.name();
        if self.first_bus != FirstBus::Bus0 && !self.id.has_bus_restrictions() {
            return Err(ConfigError::FirstBus { id });
        }
        // `VMD_FEAT_HAS_MEMBAR_SHADOW`; the other ids have a capability for it, which
        // is not made here.
        if self.shadow && self.id != DeviceId::Bypass28c0 {
            return Err(ConfigError::Shadow { id });
        }
        Ok(())
    }

    /// The serial number of disk `index`: `VMDLAB<tag><index, four digits>`. The
    /// disk is behind the root port at device number `index` on the first bus.
    #[must_use]
    pub fn serial(&self, index: usize) -> String {
        format!("VMDLAB{}{index:04}", self.tag)
    }
}

/// Arguments of the device server.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Args {
    /// UNIX socket to which QEMU's vfio-user-pci device connects.
    #[arg(long)]
    pub socket: PathBuf,
    /// UNIX socket on which counters are read and events requested: one JSON request a line.
    #[arg(long)]
    pub control: PathBuf,
    #[command(flatten)]
    pub config: Config,
    /// Log every configuration space access.
    #[arg(long)]
    pub verbose: bool,
}

impl Args {
    /// The same arguments as a command line, for a program that starts the
    /// server by executing itself.
    #[must_use]
    pub fn command_line(&self) -> Vec<OsString> {
        let config = &self.config;
        let mut line: Vec<OsString> = vec![
            "--socket".into(),
            self.socket.clone().into(),
            "--control".into(),
            self.control.clone().into(),
        ];
        let options = [
            ("--id", config.id.name().to_owned()),
            ("--disks", config.disks.to_string()),
            ("--vectors", config.vectors.to_string()),
            ("--disk-bytes", config.disk_bytes.to_string()),
            ("--first-bus", config.first_bus.number().to_string()),
            ("--block-size", config.block_size.bytes().to_string()),
            ("--namespaces", config.namespaces.to_string()),
            ("--queue-vectors", config.queue_vectors.to_string()),
            ("--tag", config.tag.clone()),
            ("--latency", config.service.latency.to_string()),
            ("--parallelism", config.service.parallelism.to_string()),
            ("--shared-latency", config.shared.latency.to_string()),
            ("--shared-from-disks", config.shared.from_disks.to_string()),
        ];
        let limits = [
            ("--iops", config.service.iops),
            ("--shared-parallelism", config.shared.parallelism),
            ("--shared-iops", config.shared.iops),
        ];
        let limits = limits
            .into_iter()
            .filter_map(|(name, limit)| Some((name, limit?.to_string())));
        for (name, value) in options.into_iter().chain(limits) {
            line.push(name.into());
            line.push(value.into());
        }
        let flags = [
            ("--shadow", config.shadow),
            ("--write-cache", config.write_cache),
            ("--verbose", self.verbose),
        ];
        line.extend(flags.iter().filter(|it| it.1).map(|it| it.0.into()));
        line
    }
}

fn parse_disk_bytes(text: &str) -> Result<u64, String> {
    const MAX: u64 = 1 << 40;
    let bytes: u64 = text
        .parse()
        .map_err(|_| "not a number of bytes".to_owned())?;
    if bytes == 0 || !bytes.is_multiple_of(4096) || bytes > MAX {
        return Err(format!("must be a multiple of 4096 from 4096 to {MAX}"));
    }
    Ok(bytes)
}

/// A serial number has 20 bytes: six of prefix and four digits leave ten.
fn parse_tag(text: &str) -> Result<String, String> {
    if text.len() > 10 || !text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err("must be at most 10 letters and digits".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn parse(options: &[&str]) -> Result<Args, clap::Error> {
        let base = ["device", "--socket", "/run/s", "--control", "/run/c"];
        Program::try_parse_from(base.iter().chain(options)).map(|program| program.args)
    }

    #[test]
    fn defaults_are_those_of_the_type() {
        assert_eq!(parse(&[]).unwrap().config, Config::default());
    }

    #[test]
    fn a_command_line_parses_to_the_same_arguments() {
        let args = parse(&[
            "--id",
            "201d",
            "--disks",
            "16",
            "--tag",
            "B7",
            "--verbose",
            "--shadow",
            "--write-cache",
            "--first-bus",
            "224",
            "--block-size",
            "4096",
            "--namespaces",
            "3",
            "--latency",
            "tail:80us:5ms:1000",
            "--parallelism",
            "32",
            "--iops",
            "350",
            "--shared-latency",
            "uniform:1us:2us",
            "--shared-parallelism",
            "64",
            "--shared-iops",
            "1000",
            "--shared-from-disks",
            "4",
        ])
        .unwrap();
        assert_eq!(args.config.id, DeviceId::Remap201d);
        assert_eq!(args.config.service.iops, Some(350));
        assert_eq!(args.config.shared.iops, Some(1000));
        let line = std::iter::once(OsString::from("device")).chain(args.command_line());
        assert_eq!(Program::try_parse_from(line).unwrap().args, args);
    }

    #[test]
    fn what_no_driver_would_look_at_is_refused() {
        let check = |options: &[&str]| parse(options).unwrap().config.check();
        assert_eq!(check(&["--id", "28c0", "--shadow"]), Ok(()));
        assert_eq!(check(&["--id", "a77f", "--first-bus", "128"]), Ok(()));
        assert!(check(&["--id", "a77f", "--shadow"]).is_err());
        assert!(check(&["--id", "201d", "--first-bus", "128"]).is_err());
    }

    #[test]
    fn the_help_is_written_for_the_command_line() {
        use clap::CommandFactory as _;
        let help = Program::command().render_long_help().to_string();
        for markup in ["`", "[crate", "::"] {
            assert!(!help.contains(markup), "{markup} in:\n{help}");
        }
    }

    #[test]
    fn out_of_range_arguments_are_refused() {
        for bad in [
            ["--disks", "0"],
            ["--disks", "17"],
            ["--vectors", "0"],
            ["--vectors", "257"],
            ["--disk-bytes", "0"],
            ["--disk-bytes", "5000"],
            ["--block-size", "1024"],
            ["--namespaces", "0"],
            ["--namespaces", "17"],
            ["--queue-vectors", "1"],
            ["--tag", "much-too-long"],
            ["--tag", "a b"],
            ["--id", "467f"],
            ["--latency", "fast"],
            ["--parallelism", "4097"],
            ["--iops", "0"],
            ["--shared-from-disks", "0"],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?} was accepted");
        }
    }
}

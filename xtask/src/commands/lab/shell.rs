//! `cargo xtask lab shell`.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use vmd_device::{Config, DeviceId};
use xtask_lab::{
    Artifacts, Guest, GuestCommand, GuestConfig, GuestFile, Iommu, Left, NULL_BLOCK, VMDTRACE,
};
use xtask_setup::{DEFAULT_KERNEL, Profile, Program, Setup};

const MODULES: [&str; 2] = ["vmd", "nvme"];
const PATIENCE: Duration = Duration::from_secs(90);
/// The daemon's port in the guest.
const PORT: u16 = 10973;

/// Boot a guest and open a shell in it
///
/// The daemon runs in it; fio and bpftrace are there. The guest ends with the
/// shell (exit, Ctrl-D), or at once by Ctrl-A X. Ctrl-C and all else go to the
/// guest.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Series of Debian's kernel to boot
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// VMD to emulate; repeated, each is a controller with disks of its own
    #[arg(long = "id", value_enum, default_value = "28c0")]
    ids: Vec<DeviceId>,
    /// NVMe disks behind each VMD
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    disks: u8,
    /// MSI-X vectors of each VMD
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    vectors: u16,
    /// NVMe disks that are not behind a VMD
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=16))]
    native_disks: u8,
    /// CPUs
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// CPUs that the kernel is to expect and that are not there
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=64))]
    absent_cpus: u32,
    /// NUMA nodes that CPUs and memory are dealt out to
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    numa_nodes: u32,
    /// Memory in MiB; bpftrace's libraries take 400 of them
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(256..=65536))]
    memory: u32,
    /// The machine's IOMMU, and whether it remaps interrupts alone, or devices'
    /// addresses too, to the same or to others
    #[arg(long, value_enum, default_value_t = IommuName::None)]
    iommu: IommuName,
    /// One more argument for the guest's kernel, such as threadirqs; can be repeated
    #[arg(long = "kernel-argument", value_name = "ARGUMENT")]
    kernel_arguments: Vec<String>,
    /// Let the guest's clock count instructions, one for a nanosecond, and give it
    /// /dev/nullb0, which waits for nothing; see docs/lab.md for what that is worth
    #[arg(long)]
    icount: bool,
    /// Leave bpftrace out: less to fetch, a quicker boot
    #[arg(long)]
    no_bpftrace: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum IommuName {
    None,
    Interrupts,
    Identity,
    Translating,
}

impl Args {
    fn config(&self, bpftrace: Option<&Program>) -> GuestConfig {
        let controller = |(index, id): (usize, &DeviceId)| Config {
            id: *id,
            disks: self.disks,
            vectors: self.vectors,
            // Serial numbers have to differ.
            tag: format!("C{index}"),
            ..Config::default()
        };
        GuestConfig {
            cpus: self.cpus,
            absent_cpus: self.absent_cpus,
            numa_nodes: self.numa_nodes,
            memory_mib: self.memory,
            iommu: match self.iommu {
                IommuName::None => Iommu::Absent,
                IommuName::Interrupts => Iommu::InterruptsOnly,
                IommuName::Identity => Iommu::Identity,
                IommuName::Translating => Iommu::Translating,
            },
            native_disks: self.native_disks,
            controllers: self.ids.iter().enumerate().map(controller).collect(),
            kernel_arguments: self.kernel_arguments.clone(),
            files: bpftrace.map(GuestFile::of_program).unwrap_or_default(),
            counts_instructions: self.icount,
            modules: MODULES
                .into_iter()
                .chain(self.icount.then_some(NULL_BLOCK))
                .map(str::to_owned)
                .collect(),
            terminal: true,
            guest_port: PORT,
            ..GuestConfig::default()
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.ids.len() <= 4,
        "--id is given {} times: at most 4 controllers fit into a guest",
        args.ids.len()
    );
    let setup = Setup::new()?;
    let built = setup.build(Profile::Release)?;
    let this_program = std::env::current_exe().context("cannot tell which program this is")?;
    let artifacts = Artifacts::prepare(&setup, &args.kernel, Some(built.vmdtrace), this_program)?;
    let bpftrace = (!args.no_bpftrace)
        .then(|| setup.guest_bpftrace())
        .transpose()?;

    eprintln!("lab: booting kernel {}", artifacts.kernel.package_version);
    let guest = Guest::boot(&artifacts, &args.config(bpftrace.as_ref()))?;
    guest.await_disks(PATIENCE)?;
    let listen = format!("0.0.0.0:{PORT}");
    let daemon = guest.spawn(&GuestCommand::new(VMDTRACE).args([
        "serve",
        "--web.listen-address",
        listen.as_str(),
    ]))?;
    let ready = xtask_lab::interrupt::until("waiting for the daemon", PATIENCE, || {
        daemon.check_running()?;
        let ready = guest.http_get("/readyz").is_ok_and(|it| it.status == 200);
        Ok(ready.then_some(()))
    });
    match ready {
        Ok(()) => eprintln!(
            "lab: the daemon's metrics: http://{}/metrics (in the guest: port {PORT})",
            guest.address()
        ),
        // Whoever tries a kernel that forbids it wants to look all the same.
        Err(xtask_lab::LabError::Interrupted) => {
            return Err(xtask_lab::LabError::Interrupted.into());
        }
        Err(error) => eprintln!("lab: the daemon does not run: {error}"),
    }
    eprintln!("lab: `exit` or Ctrl-A X ends the guest");
    match guest.shell()? {
        Left::Guest => guest.power_off()?,
        Left::Escape => eprintln!("\r\nlab: the guest is ended"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn each_id_is_a_controller_whose_disks_have_names_of_their_own() {
        let line = "shell --id 201d --id 28c0 --disks 3 --iommu identity --kernel-argument a=b";
        let args = Cli::try_parse_from(line.split(' ')).unwrap().args;
        let config = args.config(None);
        let serials: Vec<_> = config.controllers.iter().map(|it| it.serial(0)).collect();
        assert_eq!(serials, ["VMDLABC00000", "VMDLABC10000"]);
        assert_eq!(config.iommu, Iommu::Identity);
        assert_eq!(config.kernel_arguments, ["a=b"]);
        let args = Cli::try_parse_from(["shell"]).unwrap().args;
        assert_eq!(args.config(None).controllers.len(), 1);
    }
}

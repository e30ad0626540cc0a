//! `cargo xtask setup`: fetches everything that the other commands need.

use xtask_setup::{Check, DEFAULT_KERNEL, Entry, Setup};

/// Fetch everything that building, the demo and the tests need, into the cache
///
/// The other commands fetch what they need by themselves; this does it ahead,
/// and checks every file of the cache against its SHA-256.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only show what the cache holds
    #[arg(long)]
    list: bool,
    /// Kernel series to fetch; can be repeated
    #[arg(long = "kernel", value_name = "SERIES", default_value = DEFAULT_KERNEL)]
    kernels: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let setup = Setup::new()?;
    if args.list {
        return list(&setup);
    }
    let damaged = setup.remove_damaged()?;
    for (name, why) in damaged {
        eprintln!("setup: {name} in the cache was damaged ({why}) and is fetched again");
    }
    let toolchain = setup.ebpf_toolchain()?;
    eprintln!(
        "rustc {}: library sources {}, linker {}",
        toolchain.rustc_version,
        toolchain.rust_src.display(),
        toolchain.bpf_linker.display()
    );
    let qemu = setup.qemu()?;
    eprintln!("QEMU {}", qemu.version);
    for series in &args.kernels {
        let kernel = setup.kernel(series)?;
        eprintln!(
            "kernel {series}: {} ({})",
            kernel.release, kernel.package_version
        );
    }
    let guest = setup.guest_programs()?;
    eprintln!("fio {} for the guest", guest.fio_version);
    let prometheus = setup.prometheus()?;
    eprintln!("Prometheus {}", prometheus.version);
    eprintln!("everything is in {}", setup.cache().root().display());
    Ok(())
}

fn list(setup: &Setup) -> anyhow::Result<()> {
    println!("{}", setup.cache().root().display());
    for name in setup.entries()? {
        let state = match setup.cache().look_up(&name, Check::Contents)? {
            Entry::Absent => "not in the cache".to_owned(),
            Entry::Damaged(why) => format!("damaged: {why}"),
            Entry::Complete(contents) => contents.version,
        };
        println!("  {name:20} {state}");
    }
    Ok(())
}

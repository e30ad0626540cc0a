//! `cargo xtask build`: builds only.

use xtask_setup::{Profile, Setup};

/// Build vmdtrace: one static program with the eBPF object inside
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compile user space without optimisation
    #[arg(long)]
    debug: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let profile = if args.debug {
        Profile::Debug
    } else {
        Profile::Release
    };
    let built = Setup::new()?.build(profile)?;
    eprintln!(
        "built, with the eBPF object {}:",
        built.ebpf_object.display()
    );
    println!("{}", built.vmdtrace.display());
    Ok(())
}

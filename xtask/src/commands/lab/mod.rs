//! `cargo xtask lab`: the virtual server for a person.

mod instructions;
mod shell;
mod soak;

/// A virtual server with emulated Intel VMD controllers
///
/// Boots an unmodified Debian kernel in QEMU, without KVM, with NVMe disks
/// behind emulated VMDs: each controller is a process of its own that speaks
/// vfio-user. Nothing is installed: QEMU, kernels and programs come from Debian's
/// archive into a cache. docs/lab.md says how it works, and what such a
/// machine shows and what it does not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask lab shell                          2 CPUs, 4 disks behind a VMD that is bypassed
  cargo xtask lab shell --id 201d --vectors 3    remapped, on few vectors
  cargo xtask lab shell --id 201d --id 28c0 --native-disks 1 --kernel 7.3
  cargo xtask lab soak --boots 20 --kernels 6.12,7.3")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Shell(shell::Args),
    Soak(soak::Args),
    Instructions(instructions::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Shell(args) => shell::run(args),
        Command::Soak(args) => soak::run(args),
        Command::Instructions(args) => instructions::run(args),
    }
}

//! `cargo xtask lab instructions`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use xtask_lab::{Artifacts, Guest, GuestCommand, GuestConfig, NULL_BLOCK, VMDTRACE, interrupt};
use xtask_setup::{DEFAULT_KERNEL, Profile, Setup};

const PATIENCE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 5;

/// Count the guest's instructions for a read that waits for no device
///
/// Reads a null block device (null_blk) in a guest whose clock counts
/// instructions, without the daemon and with it, and prints instructions per
/// read: the median of five rounds, and the smallest and largest. It shows what
/// the daemon costs on the path of every request; I/O of an emulated device
/// cannot be measured this way.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Series of Debian's kernel to boot
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Reads in each round, of 4 KiB
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    reads: u32,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let setup = Setup::new()?;
    let built = setup.build(Profile::Release)?;
    let this_program = std::env::current_exe().context("cannot tell which program this is")?;
    let artifacts = Artifacts::prepare(&setup, &args.kernel, Some(built.vmdtrace), this_program)?;
    let config = GuestConfig {
        // One CPU: what another one does would be counted, too.
        cpus: 1,
        counts_instructions: true,
        modules: ["nvme", NULL_BLOCK].map(str::to_owned).into(),
        ..GuestConfig::default()
    };
    eprintln!("lab: booting kernel {}", artifacts.kernel.package_version);
    let guest = Guest::boot(&artifacts, &config)?;
    println!("instructions per 4 KiB read of a null block device:");
    println!("{:<20} {:>8} {:>8} {:>8}", "", "median", "least", "most");
    measure(&guest, args.reads, "without the daemon")?;
    let command =
        GuestCommand::new(VMDTRACE).args(["serve", "--web.listen-address", "0.0.0.0:10973"]);
    let daemon = guest.spawn(&command)?;
    interrupt::until("waiting for the daemon", PATIENCE, || {
        daemon.check_running()?;
        let ready = guest.http_get("/readyz").is_ok_and(|it| it.status == 200);
        Ok(ready.then_some(()))
    })?;
    measure(&guest, args.reads, "with the daemon")?;
    guest.power_off()?;
    Ok(())
}

fn measure(guest: &Guest, reads: u32, title: &str) -> anyhow::Result<()> {
    // The kernel's own clock, to the nanosecond.
    let script = format!(
        "now() {{ sed -n 's/^now at \\([0-9]*\\) nsecs/\\1/p' /proc/timer_list; }}
         read_all() {{ dd if=/dev/nullb0 of=/dev/null iflag=direct bs=4k count=$1 2>/dev/null; }}
         read_all 1000
         for round in $(seq {ROUNDS}); do
             before=$(now); read_all {reads}; after=$(now)
             echo $((after - before))
         done"
    );
    let output = guest.check(&GuestCommand::shell(script), PATIENCE)?;
    let [least, median, most] = summary(&output.stdout_text(), reads)?;
    println!("{title:<20} {median:>8} {least:>8} {most:>8}");
    Ok(())
}

/// Least, median and most instructions per read.
fn summary(text: &str, reads: u32) -> anyhow::Result<[u64; 3]> {
    let mut rounds = Vec::new();
    for line in text.lines() {
        let instructions: u64 = line
            .parse()
            .with_context(|| format!("the guest's clock: not understood: {line}"))?;
        rounds.push(instructions / u64::from(reads));
    }
    rounds.sort_unstable();
    let [least, _, median, _, most] = rounds[..] else {
        bail!("the guest measured {} rounds of {ROUNDS}", rounds.len());
    };
    Ok([least, median, most])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_put_in_order() {
        let text = "5000\n1000\n4000\n2000\n3999\n";
        assert_eq!(summary(text, 1000).unwrap(), [1, 3, 5]);
        assert!(summary("5000\n", 1000).is_err());
        assert!(summary("5000\nx\n1\n1\n1\n", 1000).is_err());
    }
}

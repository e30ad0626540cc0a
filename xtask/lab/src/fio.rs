//! fio in the guest: its arguments and its results.

use std::time::Duration;

use serde::Deserialize;

use crate::command::GuestCommand;
use crate::error::{LabError, Result};

/// Bytes of one read.
const BLOCK: u64 = 4096;

/// When fio stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Time(Duration),
    /// So many reads on each disk.
    Reads(u64),
}

/// By which way of the kernel fio reads. Polled needs the driver's poll queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Block devices or files by io_uring.
    IoUring {
        polled: bool,
    },
    Libaio,
    /// NVMe commands through io_uring to a namespace's character device, such as
    /// `ng3n1`.
    Passthrough {
        polled: bool,
    },
}

impl Engine {
    fn arguments(self) -> Vec<&'static str> {
        let (mut arguments, polled) = match self {
            Self::IoUring { polled } => (vec!["--ioengine=io_uring"], polled),
            Self::Libaio => (vec!["--ioengine=libaio"], false),
            Self::Passthrough { polled } => {
                (vec!["--ioengine=io_uring_cmd", "--cmd_type=nvme"], polled)
            }
        };
        if polled {
            arguments.push("--hipri=1");
        }
        if !matches!(self, Self::Passthrough { .. }) {
            // A character device refuses it (O_DIRECT), and has no cache to pass by.
            arguments.push("--direct=1");
        }
        arguments
    }
}

/// A load of random 4 KiB reads, one fio thread for each disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Devices, such as `nvme3n1`, or absolute paths.
    pub disks: Vec<String>,
    /// The CPUs that the threads are spread over, one CPU for each thread, in
    /// turn.
    pub cpus: CpuList,
    /// Reads in flight on each disk.
    pub depth: u32,
    pub bound: Bound,
}

impl Load {
    /// The command that runs it through io_uring, driven by interrupts.
    #[must_use]
    pub fn command(&self) -> GuestCommand {
        self.command_by(Engine::IoUring { polled: false })
    }

    /// The command that runs it in this way.
    #[must_use]
    pub fn command_by(&self, engine: Engine) -> GuestCommand {
        let mut arguments = vec!["--output-format=json".to_owned()];
        arguments.extend(engine.arguments().into_iter().map(str::to_owned));
        arguments.extend([
            "--rw=randread".to_owned(),
            format!("--bs={BLOCK}"),
            format!("--iodepth={}", self.depth),
            "--thread=1".to_owned(),
            format!("--cpus_allowed={}", self.cpus),
            "--cpus_allowed_policy=split".to_owned(),
            // Nothing but the reads themselves: no clock for each of them, no map
            // of blocks read, no flush of the page cache.
            "--gtod_reduce=1".to_owned(),
            "--norandommap=1".to_owned(),
            "--invalidate=0".to_owned(),
            // The daemon is to be scraped while every CPU is busy with this.
            "--nice=10".to_owned(),
        ]);
        match self.bound {
            Bound::Time(time) => {
                arguments.push("--time_based=1".to_owned());
                arguments.push(format!("--runtime={}ms", time.as_millis()));
            }
            Bound::Reads(reads) => {
                arguments.push(format!("--io_size={}", reads * BLOCK));
            }
        }
        for disk in &self.disks {
            arguments.push(format!("--name={disk}"));
            let path = std::path::Path::new("/dev").join(disk);
            arguments.push(format!("--filename={}", path.display()));
        }
        GuestCommand::new("fio").args(arguments)
    }
}

/// Random 4 KiB writes over the beginning of each disk, one fio job for each, all of
/// which are then read and compared with what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verify {
    /// Block devices, such as `nvme3n1`.
    pub disks: Vec<String>,
    /// Of each disk, a multiple of 4096.
    pub bytes: u64,
    /// Writes between one fsync and the next; 0 is none. With any, each disk gets one
    /// request at a time: of several flushes that wait for a disk the kernel makes
    /// one (block/blk-flush.c), and fio's count would not be the disk's.
    pub writes_per_sync: u32,
}

impl Verify {
    /// The command that runs it. It fails if what is read is not what was written.
    #[must_use]
    pub fn command(&self) -> GuestCommand {
        let depth = if self.writes_per_sync == 0 { 8 } else { 1 };
        let mut arguments = vec![
            "--output-format=json".to_owned(),
            "--name=global".to_owned(),
            "--rw=randwrite".to_owned(),
            format!("--bs={BLOCK}"),
            format!("--size={}", self.bytes),
            "--direct=1".to_owned(),
            "--ioengine=io_uring".to_owned(),
            format!("--iodepth={depth}"),
            "--thread=1".to_owned(),
            "--verify=crc32c".to_owned(),
            format!("--fsync={}", self.writes_per_sync),
        ];
        for disk in &self.disks {
            arguments.push(format!("--name={disk}"));
            arguments.push(format!("--filename=/dev/{disk}"));
        }
        GuestCommand::new("fio").args(arguments)
    }

    /// Writes of each disk, which are as many as the reads.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.bytes / BLOCK
    }
}

/// What fio says it did.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Reads, by disk in the order of the load. fio counts a read when it is
    /// queued, and waits at the end for all that are in flight (`td_io_queue` in
    /// ioengines.c, `cleanup_pending_aio` in backend.c): the count is exact.
    pub reads: Vec<u64>,
    /// From the first to the last read of the slowest thread.
    pub time: Duration,
}

impl Done {
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reads.iter().sum()
    }

    /// Reads per second over the whole time.
    #[must_use]
    pub fn iops(&self) -> f64 {
        if self.time.is_zero() {
            0.0
        } else {
            self.total() as f64 / self.time.as_secs_f64()
        }
    }

    /// Reads fio's JSON. It prints warnings before it, on the same stream.
    ///
    /// # Errors
    /// When the text is something else, or fio reports an error or another
    /// number of jobs than the load has.
    pub fn parse(text: &str, load: &Load) -> Result<Self> {
        let jobs = parse_jobs(text, &load.disks)?;
        let slowest = jobs.iter().map(|job| job.read.runtime).max();
        Ok(Self {
            reads: jobs.iter().map(|job| job.read.total_ios).collect(),
            time: Duration::from_millis(slowest.unwrap_or_default()),
        })
    }
}

/// What fio says a [`Verify`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub writes: u64,
    /// Reads of what was written, to compare it.
    pub reads: u64,
    pub syncs: u64,
}

impl Verified {
    /// Requests of any kind.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.writes + self.reads + self.syncs
    }

    /// Reads fio's JSON, as [`Done::parse`] does.
    ///
    /// # Errors
    /// As there.
    pub fn parse(text: &str, verify: &Verify) -> Result<Self> {
        let jobs = parse_jobs(text, &verify.disks)?;
        let sum = |of: fn(&Job) -> u64| jobs.iter().map(of).sum();
        Ok(Self {
            writes: sum(|job| job.write.total_ios),
            reads: sum(|job| job.read.total_ios),
            syncs: sum(|job| job.sync.total_ios),
        })
    }
}

#[derive(Deserialize)]
struct Report {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    error: i64,
    read: Requests,
    write: Requests,
    sync: Syncs,
}

#[derive(Deserialize)]
struct Requests {
    total_ios: u64,
    runtime: u64,
}

#[derive(Deserialize)]
struct Syncs {
    total_ios: u64,
}

/// Reads fio's JSON, which has to be about one job for each of these names, in
/// this order, without an error.
fn parse_jobs(text: &str, names: &[String]) -> Result<Vec<Job>> {
    let bad = |problem: &str| LabError::failed(format!("fio's report: {problem}"));
    let start = text.find('{').ok_or_else(|| bad("no JSON"))?;
    let report: Report =
        serde_json::from_str(&text[start..]).map_err(|error| bad(&error.to_string()))?;
    let found: Vec<_> = report.jobs.iter().map(|job| &job.jobname).collect();
    if found != names.iter().collect::<Vec<_>>() {
        return Err(bad(&format!("jobs are {found:?}, expected {names:?}")));
    }
    if let Some(job) = report.jobs.iter().find(|job| job.error != 0) {
        return Err(bad(&format!("error {} on {}", job.error, job.jobname)));
    }
    Ok(report.jobs)
}

/// A list of CPUs, written as the kernel writes one: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(into = "String")]
pub struct CpuList(Vec<u32>);

impl CpuList {
    /// The first CPUs of a machine.
    #[must_use]
    pub fn first(count: u32) -> Self {
        Self((0..count).collect())
    }

    /// The first CPU of the list alone.
    #[must_use]
    pub fn only_first(&self) -> Self {
        Self(self.0.first().copied().into_iter().collect())
    }

    #[must_use]
    pub fn cpus(&self) -> &[u32] {
        &self.0
    }
}

impl std::str::FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        const MAX: u32 = 4096;
        let number = |part: &str| {
            part.parse::<u32>()
                .ok()
                .filter(|cpu| *cpu < MAX)
                .ok_or_else(|| format!("`{part}` in `{text}` is no CPU number: write `0-3,5`"))
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("`{part}` in `{text}` runs backwards"));
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl std::fmt::Display for CpuList {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        let mut rest = self.0.as_slice();
        while let [first, ..] = rest {
            let run = rest
                .iter()
                .zip(*first..)
                .take_while(|(cpu, next)| *cpu == next)
                .count();
            match run {
                1 => write!(formatter, "{separator}{first}")?,
                _ => write!(formatter, "{separator}{first}-{}", rest[run - 1])?,
            }
            separator = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

impl From<CpuList> for String {
    fn from(list: CpuList) -> Self {
        list.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load {
            disks: vec!["nvme0n1".to_owned(), "nvme4n1".to_owned()],
            cpus: "0-2,5".parse().unwrap(),
            depth: 16,
            bound: Bound::Time(Duration::from_millis(1500)),
        }
    }

    #[test]
    fn each_disk_is_a_job_of_its_own() {
        let text = load().command().to_string();
        assert!(
            text.starts_with("fio --output-format=json --ioengine=io_uring"),
            "{text}"
        );
        assert!(
            text.contains("--runtime=1500ms --name=nvme0n1 --filename=/dev/nvme0n1 --name=nvme4n1"),
            "{text}"
        );
        assert!(
            text.contains("--cpus_allowed=0-2,5 --cpus_allowed_policy=split"),
            "{text}"
        );
    }

    #[test]
    fn the_way_of_reading_and_files_are_named() {
        let load = Load {
            disks: vec!["ng2n1".to_owned(), "/mnt/file".to_owned()],
            ..load()
        };
        let text = load
            .command_by(Engine::Passthrough { polled: true })
            .to_string();
        assert!(
            text.contains("--ioengine=io_uring_cmd --cmd_type=nvme --hipri=1 --rw=randread"),
            "{text}"
        );
        assert!(text.contains("--filename=/dev/ng2n1"), "{text}");
        assert!(text.ends_with("--filename=/mnt/file"), "{text}");
        let text = load.command_by(Engine::Libaio).to_string();
        assert!(text.contains("--ioengine=libaio --direct=1"), "{text}");
    }

    #[test]
    fn what_is_synced_is_written_one_by_one() {
        let verify = |writes_per_sync| Verify {
            disks: load().disks,
            bytes: 1 << 20,
            writes_per_sync,
        };
        assert_eq!(verify(0).writes(), 256);
        let [plain, synced] = [0, 16].map(|it| verify(it).command().to_string());
        assert!(plain.contains("--iodepth=8"), "{plain}");
        assert!(plain.contains("--fsync=0 --name=nvme0n1"), "{plain}");
        assert!(synced.contains("--iodepth=1 "), "{synced}");
        assert!(synced.contains("--fsync=16 --name=nvme0n1"), "{synced}");
    }

    #[test]
    fn the_report_is_read_past_warnings() {
        let text = r#"fio: a warning
            {"fio version":"fio-3.39","jobs":[
            {"jobname":"nvme0n1","error":0,"read":{"total_ios":1200,"runtime":1500,"iops":800.0},
             "write":{"total_ios":0,"runtime":0},"sync":{"total_ios":0}},
            {"jobname":"nvme4n1","error":0,"read":{"total_ios":600,"runtime":2000,"iops":300.0},
             "write":{"total_ios":7,"runtime":9},"sync":{"total_ios":2}}]}"#;
        let done = Done::parse(text, &load()).unwrap();
        assert_eq!(done.reads, [1200, 600]);
        let verify = Verify {
            disks: load().disks,
            bytes: 1 << 20,
            writes_per_sync: 0,
        };
        let verified = Verified::parse(text, &verify).unwrap();
        assert_eq!(
            (verified.writes, verified.reads, verified.syncs),
            (7, 1800, 2)
        );
        assert_eq!(verified.total(), 1809);
        assert!((done.iops() - 900.0).abs() < 1e-9);
        let other = Load {
            disks: vec!["nvme0n1".to_owned()],
            ..load()
        };
        assert!(Done::parse(text, &other).is_err());
        let failed = text.replacen("\"error\":0", "\"error\":5", 1);
        let error = Done::parse(&failed, &load()).unwrap_err().to_string();
        assert!(error.contains("error 5 on nvme0n1"), "{error}");
        assert!(Done::parse("fio: no such engine", &load()).is_err());
    }

    #[test]
    fn cpu_lists_are_read_and_written() {
        for (text, cpus, shown) in [
            ("0", vec![0], "0"),
            ("0-3,8", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("5,1,0,5", vec![0, 1, 5], "0-1,5"),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!(list.cpus(), cpus);
            assert_eq!(list.to_string(), shown);
        }
        for text in ["", "a", "3-1", "1-", "-1", "0,,1", "99999"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
    }
}

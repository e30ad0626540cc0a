//! Allocations and frees of bios: what attaches on each kernel, and that the
//! counts of known reads are whole.

use std::collections::BTreeMap;

use libtest_mimic::Trial;
use vmd_device::{Config, DeviceId};
use xtask_lab::{Artifacts, GuestCommand, GuestConfig, Scrape};
use xtask_setup::KERNELS;

use crate::kernel_test;
use crate::server::{PATIENCE, Server};

const DISKS: u8 = 2;
const READS: u64 = 2_000;
const ALLOCATIONS: &str = "vmdtrace_bio_allocations_total";

/// The programs that have to be attached.
fn expected_probes(kernel: &str) -> Vec<&'static str> {
    if kernel.starts_with("5.10.") {
        return vec!["bio_alloc_bioset_exit_3_args", "bio_put", "bio_context"];
    }
    let mut probes = vec![
        "bio_alloc_bioset_entry",
        "bio_alloc_bioset_exit",
        "bio_kmalloc",
        "blk_rq_unmap_user",
        "bio_put",
        "bio_context",
    ];
    if !kernel.starts_with("6.1.") {
        probes.push("bio_alloc_irq_cache_splice");
    }
    probes
}

/// In which family and with which label most of an engine's reads have to be,
/// and what the regime is called once they are done.
fn expected_class(kernel: &str, engine: &str) -> (&'static str, &'static str, &'static str) {
    const HITS: &str = "vmdtrace_bio_cache_hits_total";
    const INELIGIBLE: &str = "vmdtrace_bio_cache_ineligible_total";
    let series = kernel.split('.').take(2).collect::<Vec<_>>().join(".");
    match (series.as_str(), engine) {
        ("5.10", _) => (INELIGIBLE, "no_cache", "none"),
        ("6.1", _) => (INELIGIBLE, "no_flag", "polled_only"),
        ("6.12" | "6.18", "libaio") => (INELIGIBLE, "no_flag", "opt_in"),
        ("6.12" | "6.18", _) => (HITS, "", "opt_in"),
        _ => (HITS, "", "default_on"),
    }
}

/// Counts of one set by family and cause or source.
fn of_set(scrape: &Scrape, set: &str) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    for sample in &scrape.samples {
        if sample.label("bio_set") == set {
            let part = [sample.label("cause"), sample.label("source")].concat();
            *counts.entry((sample.name.clone(), part)).or_default() += sample.value as u64;
        }
    }
    counts
}

fn rise<K: Ord + Clone>(before: &BTreeMap<K, u64>, after: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    let earlier = |key| before.get(key).copied().unwrap_or_default();
    after
        .iter()
        .map(|(key, count)| (key.clone(), count - earlier(key)))
        .filter(|(_, rise)| *rise != 0)
        .collect()
}

/// For every series of allocations: it is the sum of its classes.
fn classes_add_up(scrape: &Scrape) {
    let mut left: BTreeMap<[String; 3], i64> = BTreeMap::new();
    for sample in &scrape.samples {
        let sign = match sample.name.as_str() {
            ALLOCATIONS => 1,
            "vmdtrace_bio_cache_hits_total"
            | "vmdtrace_bio_cache_misses_total"
            | "vmdtrace_bio_cache_ineligible_total"
            | "vmdtrace_bio_allocations_failed_total"
            | "vmdtrace_bio_allocations_ambiguous_total"
            | "vmdtrace_bio_allocations_unpaired_total" => -1,
            _ => continue,
        };
        let key = ["bio_set", "kind", "polled"].map(|name| sample.label(name).to_owned());
        *left.entry(key).or_default() += sign * sample.value as i64;
    }
    assert!(left.values().all(|left| *left == 0), "{left:?}");
}

fn read_through(server: &Server, engine: &str) {
    let mut arguments: Vec<String> = [
        "--rw=randread",
        "--bs=4k",
        "--direct=1",
        "--iodepth=16",
        "--thread=1",
        "--norandommap=1",
        "--invalidate=0",
    ]
    .map(str::to_owned)
    .into();
    arguments.push(format!("--ioengine={engine}"));
    arguments.push(format!("--io_size={}", READS * 4096));
    for disk in server.disks() {
        arguments.push(format!("--name={}", disk.name));
        arguments.push(format!("--filename=/dev/{}", disk.namespaces[0]));
    }
    server
        .guest
        .check(&GuestCommand::new("fio").args(arguments), PATIENCE)
        .unwrap_or_else(|error| panic!("{engine}: {error}"));
}

fn reads_are_told_apart(artifacts: &Artifacts) {
    let kernel = &artifacts.kernel.package_version;
    let config = GuestConfig {
        cpus: 2,
        controllers: vec![Config {
            id: DeviceId::Bypass28c0,
            disks: DISKS,
            vectors: 3,
            ..Config::default()
        }],
        ..GuestConfig::default()
    };
    let (server, ready) = Server::start(artifacts, &config);
    ready.unwrap_or_else(|error| panic!("{error}"));

    let probes = server.at_rest().daemon;
    let states: BTreeMap<&str, String> = probes
        .series("vmdtrace_probe_info")
        .map(|sample| {
            let state = format!("{} {}", sample.label("state"), sample.label("reason"));
            (sample.label("probe"), state)
        })
        .filter(|(probe, _)| probe.starts_with("bio_"))
        .collect();
    println!("{kernel}: {states:?}");
    let expected: BTreeMap<&str, String> = expected_probes(kernel)
        .into_iter()
        .map(|probe| (probe, "attached ".to_owned()))
        .collect();
    assert_eq!(states, expected);

    for engine in ["io_uring", "libaio"] {
        let before = server.at_rest().daemon;
        read_through(&server, engine);
        let after = server.at_rest().daemon;
        classes_add_up(&before);
        classes_add_up(&after);

        // Every read is one bio of this set, and nothing else is.
        let set = "blkdev_dio_pool";
        let counts = rise(&of_set(&before, set), &of_set(&after, set));
        println!("{kernel} {engine}: {counts:?}");
        let of = |family: &str, part: &str| -> u64 {
            let matches = |key: &&(String, String)| key.0 == family && key.1.contains(part);
            counts.keys().filter(matches).map(|key| counts[key]).sum()
        };
        let reads = READS * u64::from(DISKS);
        assert_eq!(of(ALLOCATIONS, ""), reads, "{counts:?}");
        let (family, part, regime) = expected_class(kernel, engine);
        let right = of(family, part);
        if family.contains("hits") {
            // The first ones find an empty cache.
            assert!(right * 10 > reads * 9, "{counts:?}");
        } else {
            assert_eq!(right, reads, "{counts:?}");
        }
        let found = after.series("vmdtrace_bio_cache_regime_info").next();
        let found = found.map_or("", |sample| sample.label("regime"));
        // Whoever asks for the cache does not tell whether one has to.
        let silent = regime == "opt_in" && engine == "io_uring";
        assert!(found == regime || silent && found == "unknown", "{found}");

        // What was allocated was freed.
        let total = |scrape: &Scrape, family| scrape.sum(family, |_| true).unwrap_or_default();
        let rise_of = |family| (total(&after, family) - total(&before, family)) as u64;
        let allocated = rise_of(ALLOCATIONS) - rise_of("vmdtrace_bio_allocations_failed_total");
        let frees = |scrape: &Scrape| -> BTreeMap<String, u64> {
            let samples = scrape.series("vmdtrace_bio_frees_total");
            let of = |one: &xtask_lab::Sample| {
                format!("{} {}", one.label("destination"), one.label("context"))
            };
            samples.map(|one| (of(one), one.value as u64)).collect()
        };
        let freed = rise(&frees(&before), &frees(&after));
        println!("{kernel} {engine}: {freed:?}");
        let of_sets = freed.iter().filter(|(to, _)| !to.starts_with("kfree"));
        assert_eq!(of_sets.map(|(_, count)| count).sum::<u64>(), allocated);
        assert!(freed.keys().all(|to| !to.contains("unknown")), "{freed:?}");
    }
    let missed = server.at_rest().daemon;
    let of_bios = missed.sum("vmdtrace_probe_missed_total", |sample| {
        sample.label("probe").starts_with("bio_")
    });
    assert_eq!(of_bios.unwrap_or_default(), 0.0);
    server.end();
}

pub(crate) fn trials() -> Vec<Trial> {
    KERNELS
        .into_iter()
        .map(|series| {
            kernel_test(series, format!("bio_counts::{series}"), |artifacts| {
                reads_are_told_apart(artifacts);
                Ok(())
            })
        })
        .collect()
}

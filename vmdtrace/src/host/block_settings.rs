//! How the block layer treats a disk's requests: `/sys/block/*/queue`.

use std::path::Path;

use super::files::{Files, quoted};
use super::number_list::number;
use super::topology::BlockSettings;

/// Reads the settings in a `queue` directory.
pub(super) fn read(files: &mut Files, dir: &Path) -> BlockSettings {
    let mut setting = |name: &str| files.parsed(&dir.join(name), "a number", number);
    let rq_affinity = setting("rq_affinity");
    let nr_requests = setting("nr_requests");
    let nomerges = setting("nomerges");
    let io_poll = setting("io_poll").map(|value| value != 0);
    BlockSettings {
        scheduler: files.parsed(&dir.join("scheduler"), "a choice such as [none]", |text| {
            chosen(text).map(str::to_owned)
        }),
        rq_affinity,
        wbt_lat_usec: wbt_lat_usec(files, dir),
        nr_requests,
        nomerges,
        io_poll,
    }
}

/// `none` of `[none] mq-deadline`, and of a lone `none` (`elv_iosched_show`).
fn chosen(text: &str) -> Option<&str> {
    match text.split_once('[') {
        Some((_, rest)) => rest.split_once(']').map(|(name, _)| name),
        None => (text == "none").then_some(text),
    }
}

/// Reading it is an invalid argument where throttling is not built in or not
/// set up for this disk (`queue_wb_lat_show` in block/blk-sysfs.c).
fn wbt_lat_usec(files: &mut Files, dir: &Path) -> Option<u64> {
    let path = dir.join("wbt_lat_usec");
    let text = files.text_unless_invalid(&path)?;
    let value = text.parse().ok();
    if value.is_none() {
        files.problem(
            &path,
            format_args!("{} is not a number of microseconds", quoted(&text)),
        );
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fixture::Tree;

    fn settings(content: &[(&str, &str)]) -> (BlockSettings, Vec<String>) {
        let tree = Tree::new();
        for (name, text) in content {
            tree.file(&format!("sys/queue/{name}"), text);
        }
        let mut files = Files::default();
        let settings = read(&mut files, &tree.path("sys/queue"));
        (settings, files.into_problems())
    }

    #[test]
    fn all_settings() {
        let (settings, problems) = settings(&[
            ("scheduler", "none [mq-deadline] kyber\n"),
            ("rq_affinity", "2\n"),
            ("wbt_lat_usec", "2000\n"),
            ("nr_requests", "1023\n"),
            ("nomerges", "0\n"),
            ("io_poll", "1\n"),
        ]);
        assert_eq!(
            settings,
            BlockSettings {
                scheduler: Some("mq-deadline".to_owned()),
                rq_affinity: Some(2),
                wbt_lat_usec: Some(2000),
                nr_requests: Some(1023),
                nomerges: Some(0),
                io_poll: Some(true),
            }
        );
        assert_eq!(problems, [""; 0]);
    }

    #[test]
    fn missing_files_and_nonsense() {
        let (nothing, problems) = settings(&[]);
        assert_eq!(nothing, BlockSettings::default());
        assert_eq!(problems, [""; 0]);
        let (nothing, problems) = settings(&[
            ("scheduler", "[none mq-deadline\n"),
            ("rq_affinity", "-1\n"),
            ("wbt_lat_usec", "fast\n"),
            ("nr_requests", ""),
        ]);
        assert_eq!(nothing, BlockSettings::default());
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert_eq!(chosen("none"), Some("none"));
        assert_eq!(chosen("a [b] c"), Some("b"));
        assert_eq!(chosen("noop"), None);
    }
}

//! The topology as text for people, at most 100 columns wide.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::host::topology::{Controller, Disk, Line, Mode, Topology, Vector, VectorUse};
use crate::host::{NumberList, printable, vmd_id};

const WIDTH: usize = 100;
/// Where the values of a controller's facts begin.
const VALUES: usize = 18;
/// Where what is said of a disk begins, below its name.
const DISK_FACTS: usize = 10;

/// Everything: controllers with their disks, the other disks, the problems.
pub(super) fn render(topology: &Topology) -> String {
    let mut page = Page::default();
    if topology.controllers.is_empty() {
        page.line("no VMD controller found");
    }
    for controller in &topology.controllers {
        page.separate();
        controller_facts(&mut page, controller);
        let behind = |disk: &&Disk| disk.controller.as_ref() == Some(&controller.address);
        let disks: Vec<&Disk> = topology.disks.iter().filter(behind).collect();
        page.fact("disks", &disks.len().to_string());
        if !disks.is_empty() {
            page.separate();
        }
        for disk in disks {
            disk_facts(&mut page, disk);
        }
    }
    let direct: Vec<&Disk> = topology
        .disks
        .iter()
        .filter(|disk| disk.controller.is_none())
        .collect();
    if !direct.is_empty() {
        page.separate();
        page.line(&format!("NVMe disks not behind a VMD: {}", direct.len()));
        for disk in direct {
            disk_facts(&mut page, disk);
        }
    } else if topology.disks.is_empty() {
        page.separate();
        page.line("no NVMe disk found");
    }
    if !topology.problems.is_empty() {
        page.separate();
        page.line(&format!("problems: {}", topology.problems.len()));
        for problem in &topology.problems {
            page.wrapped("  ", 4, &printable(problem));
        }
    }
    page.text
}

fn controller_facts(page: &mut Page, controller: &Controller) {
    let mut title = format!("VMD controller {}", controller.address);
    if let Some(id) = controller.device_id {
        let platform = vmd_id(id).map_or("not a VMD known here", |id| id.platform);
        let _ = write!(title, "  8086:{id:04x} ({platform})");
    }
    page.line(&title);
    if let Some(domain) = &controller.domain {
        page.fact("domain", domain);
    }
    if let Some(node) = controller.numa_node {
        page.fact("NUMA node", &node.to_string());
    }
    page.fact("mode", controller.mode.as_str());
    for evidence in &controller.mode_evidence {
        let speaks_for = match evidence.mode {
            Mode::Unknown => "says nothing".to_owned(),
            mode => format!("says {}", mode.as_str()),
        };
        page.fact(
            "",
            &format!(
                "{} {speaks_for}: {}",
                evidence.source,
                printable(&evidence.observed)
            ),
        );
    }
    let action = controller.action.as_deref().map_or(String::new(), |name| {
        format!(", action {}", printable(name))
    });
    if !controller.vectors.is_empty() {
        page.fact("vectors", &format!("{}{action}", controller.vectors.len()));
    }
    for (used_for, name) in [
        (VectorUse::Nvme, "NVMe"),
        (VectorUse::Other, "all else"),
        (VectorUse::All, "everything"),
        (VectorUse::Reserved, "not used"),
    ] {
        let vectors: Vec<&Vector> = controller
            .vectors
            .iter()
            .filter(|v| v.used_for == used_for)
            .collect();
        if !vectors.is_empty() {
            let irqs = NumberList::from_numbers(vectors.iter().map(|v| v.irq));
            let cpus = cpus(vectors.iter().map(|v| v.effective_affinity.as_deref()));
            page.fact("", &format!("for {name}: irq {irqs}{cpus}"));
        }
    }
    if let Some(factor) = controller.sharing_factor {
        let vectors = controller
            .vectors
            .iter()
            .filter(|v| v.used_for.serves_nvme())
            .count();
        let value = format!(
            "{factor:.2} NVMe child interrupts per vector ({} / {vectors})",
            controller.child_interrupts
        );
        page.fact("sharing factor", &value);
    } else if controller.mode == Mode::Bypass {
        page.fact(
            "sharing factor",
            &format!(
                "none: each of {} NVMe child interrupts is its own vector",
                controller.child_interrupts
            ),
        );
    }
    other_lines(page, &controller.other_lines);
}

/// Lines of ports and the like: those with the same actions together.
fn other_lines(page: &mut Page, lines: &[Line]) {
    let mut by_actions: BTreeMap<&[String], Vec<&Line>> = BTreeMap::new();
    for line in lines {
        by_actions.entry(&line.actions).or_default().push(line);
    }
    let mut label = "other lines";
    for (actions, lines) in by_actions {
        let actions = if actions.is_empty() {
            "no action".to_owned()
        } else {
            actions.join(", ")
        };
        page.fact(
            label,
            &format!("{}: {}", printable(&actions), line_list(&lines)),
        );
        label = "";
    }
}

fn disk_facts(page: &mut Page, disk: &Disk) {
    let mut title = format!("  {:<7} {}", disk.name, disk.address);
    if let Some(node) = disk.numa_node {
        let _ = write!(title, "  NUMA node {node}");
    }
    for namespace in &disk.namespaces {
        let size = namespace
            .size_bytes
            .map_or(String::new(), |bytes| format!(" {}", size(bytes)));
        let _ = write!(title, "  {}{size}", namespace.name);
    }
    if let Some(model) = &disk.model {
        let _ = write!(title, "  {}", printable(model));
    }
    page.wrapped("", DISK_FACTS, &title);

    let indent = " ".repeat(DISK_FACTS);
    let with_irq =
        NumberList::from_numbers(disk.queues.iter().filter(|q| q.irq.is_some()).map(|q| q.id));
    let without =
        NumberList::from_numbers(disk.queues.iter().filter(|q| q.irq.is_none()).map(|q| q.id));
    let lines: Vec<&Line> = disk.lines.iter().collect();
    let lines = line_list(&lines);
    let queues = match with_irq.count() {
        0 => lines,
        count => format!("queue{} {with_irq}: {lines}", plural(count)),
    };
    page.wrapped(&indent, DISK_FACTS + 2, &queues);
    if without.count() > 0 {
        let queues = format!(
            "queue{} {without}: without interrupt (polled)",
            plural(without.count())
        );
        page.wrapped(&indent, DISK_FACTS + 2, &queues);
    }
    if let Some(submit) = submit_cpus(disk) {
        page.wrapped(&indent, DISK_FACTS + 2, &submit);
    }
}

/// `irq 32-38 in vectors 25-31 on CPUs 0-5`.
fn line_list(lines: &[&Line]) -> String {
    if lines.is_empty() {
        return "no interrupt line".to_owned();
    }
    let mut shown = format!(
        "irq {}",
        NumberList::from_numbers(lines.iter().map(|line| line.irq))
    );
    let parents = NumberList::from_numbers(lines.iter().filter_map(|line| line.parent_irq));
    if parents.count() > 0 {
        let _ = write!(shown, " in vector{} {parents}", plural(parents.count()));
    }
    shown + &cpus(lines.iter().map(|line| line.effective_affinity.as_deref()))
}

/// ` on CPUs 0-5`, or nothing where no affinity is known.
fn cpus<'a>(lists: impl Iterator<Item = Option<&'a str>>) -> String {
    let all = NumberList::union(
        lists
            .flatten()
            .filter_map(|list| NumberList::parse(list).ok()),
    );
    if all.count() == 0 {
        String::new()
    } else {
        format!(" on CPU{} {all}", plural(all.count()))
    }
}

/// Which CPUs submit, and how many share a queue.
fn submit_cpus(disk: &Disk) -> Option<String> {
    let lists: Vec<NumberList> = disk
        .queues
        .iter()
        .filter_map(|queue| NumberList::parse(queue.submit_cpus.as_deref()?).ok())
        .collect();
    let fewest = lists.iter().map(NumberList::count).min()?;
    let most = lists.iter().map(NumberList::count).max()?;
    let per_queue = if fewest == most {
        most.to_string()
    } else {
        format!("{fewest} to {most}")
    };
    let queues = lists.len() as u64;
    let all = NumberList::union(lists);
    Some(format!(
        "submission from CPU{} {all} to {queues} queue{}, {per_queue} CPU{} each",
        plural(all.count()),
        plural(queues),
        plural(most)
    ))
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// In powers of ten, as disks are sold.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"].into_iter();
    let mut unit = units.next();
    while value >= 999.95 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1000.0, Some(next));
    }
    let decimals = usize::from(bytes >= 1000);
    format!("{value:.decimals$} {}", unit.unwrap_or_default())
}

/// Lines of text.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// An empty line, unless nothing or one stands before.
    fn separate(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    fn fact(&mut self, name: &str, value: &str) {
        self.wrapped(&format!("  {name:<0$}", VALUES - 2), VALUES, value);
    }

    /// `start` and `text`, continued at column `indent` where it is too long.
    /// Breaks after spaces and commas only.
    fn wrapped(&mut self, start: &str, indent: usize, text: &str) {
        let mut line = start.to_owned();
        let mut has_word = false;
        for word in text.split_inclusive([' ', ',']) {
            if has_word && line.chars().count() + word.trim_end().chars().count() > WIDTH {
                self.line(line.trim_end());
                line = " ".repeat(indent);
            }
            line.push_str(word);
            has_word = true;
        }
        self.line(line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fixture::{CAPTURED_BYPASS, CAPTURED_REMAP, Server, Tree, disk_place};

    fn is_fit(text: &str) -> bool {
        text.lines().all(|line| {
            line.chars().count() <= WIDTH && line == line.trim_end() && printable(line) == line
        })
    }

    #[test]
    fn captured_remap() {
        let text = render(&Tree::unpack(CAPTURED_REMAP).read());
        assert!(is_fit(&text), "{text}");
        let expected = "\
VMD controller 0000:00:03.0  8086:201d (Skylake server)
  domain          10000
  mode            remap
                  msi_irqs says remap: 8 vectors
                  actions says remap: vmd0 on 8 of 8 vectors
                  chip_name says remap: VMD-MSI on 96 child lines
  vectors         8, action vmd0
                  for NVMe: irq 30-36 on CPUs 0-5
                  for all else: irq 29 on CPU 5
  sharing factor  12.00 NVMe child interrupts per vector (84 / 7)
  other lines     PCIe PME: irq 37-48 in vector 29 on CPU 5
  disks           12

  nvme0   10000:01:00.0  nvme0n1 268.4 MB  VMD Lab NVMe
          queues 0-6: irq 69-75 in vectors 30-36 on CPUs 0-5
          submission from CPUs 0-5 to 6 queues, 1 CPU each
";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(text.lines().count(), 13 + 12 * 3);
    }

    #[test]
    fn captured_bypass() {
        let text = render(&Tree::unpack(CAPTURED_BYPASS).read());
        assert!(is_fit(&text), "{text}");
        assert!(text.contains("\n  mode            bypass\n"), "{text}");
        assert!(
            text.contains("absent: the controller has no vectors\n"),
            "{text}"
        );
        assert!(
            text.contains("none: each of 84 NVMe child interrupts is its own vector\n"),
            "{text}"
        );
        assert!(!text.contains("\n  vectors "), "{text}");
    }

    #[test]
    fn nothing_found() {
        assert_eq!(
            render(&Topology::default()),
            "no VMD controller found\n\nno NVMe disk found\n"
        );
    }

    #[test]
    fn disks_without_a_vmd_polled_queues_and_hostile_text() {
        let tree = Tree::new();
        let place = "pci0000:00/0000:00:04.0";
        tree.pci(place, "0x1b36", "0x0010", "0x010802", Some("nvme"));
        tree.nvme(place, 0, 2);
        tree.irq(
            place,
            30,
            "nvme0q0,nvme0q1",
            "IR-PCI-MSIX-0000:00:04.0",
            0,
            "3",
        );
        tree.file(
            &format!("sys/devices/{place}/nvme/nvme0/model"),
            "evil\x1b[2J\nmodel\n",
        );
        tree.file(
            &format!("sys/devices/{place}/nvme/nvme0/nvme0n1/size"),
            "many\x07\n",
        );
        let text = render(&tree.read());
        assert!(is_fit(&text), "{text}");
        let expected = "\
no VMD controller found

NVMe disks not behind a VMD: 1
  nvme0   0000:00:04.0  NUMA node 1  nvme0n1  evil\\u{1b}[2J\\nmodel
          queues 0-1: irq 30 on CPU 3
          queue 2: without interrupt (polled)
          submission from CPUs 0-1 to 2 queues, 1 CPU each

problems: 1
";
        assert!(text.starts_with(expected), "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let problem = "nvme0n1/size: \"many\\u{7}\" is not a number of sectors";
        assert!(words.join(" ").ends_with(problem), "{text}");
    }

    #[test]
    fn disagreement_and_a_missing_driver_are_shown() {
        let tree = Server::default().build();
        tree.remove("sys/devices/pci0000:97/0000:97:00.5/msi_irqs");
        tree.pci(
            "pci0000:17/0000:17:00.5",
            "0x8086",
            "0x28c0",
            "0x010400",
            None,
        );
        tree.remove(&format!("sys/devices/{}/nvme/nvme0/nvme0n1", disk_place(0)));
        let text = render(&tree.read());
        assert!(
            text.contains("driver says nothing: none: the module vmd is not loaded"),
            "{text}"
        );
        assert!(text.contains("mode            unknown\n"), "{text}");
        assert!(text.contains("msi_irqs says bypass: absent"), "{text}");
        assert!(
            text.contains("chip_name says remap: VMD-MSI on 4 child lines"),
            "{text}"
        );
    }

    #[test]
    fn sizes() {
        for (bytes, shown) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_999, "1.0 MB"),
            (4_000_787_030_016, "4.0 TB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(size(bytes), shown);
        }
    }

    #[test]
    fn long_lists_wrap() {
        let mut page = Page::default();
        let numbers: Vec<String> = (1000..1100).step_by(2).map(|n| n.to_string()).collect();
        page.fact("vectors", &numbers.join(","));
        let lines: Vec<&str> = page.text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(
            lines.iter().all(|line| line.chars().count() <= WIDTH),
            "{lines:#?}"
        );
        assert!(lines[0].starts_with("  vectors         1000,1002,"));
        assert!(
            lines[1..]
                .iter()
                .all(|line| line.starts_with("                  1"))
        );
    }
}

//! Causes that are made on purpose: `vmdtrace diagnose` names them, live and from a
//! recording of the same time, and nothing else.
//!
//! What is asserted are verdicts. A table of all that was said is printed last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::Trial;
use xtask_lab::Artifacts;
use xtask_lab::injection::{ALL, Observed, Server, Site};

use crate::kernel_test;

/// What was said, letter by letter.
#[derive(Clone, Default)]
pub(crate) struct Table(Arc<Mutex<Vec<Row>>>);

struct Row {
    name: String,
    by: &'static str,
    /// By finding.
    letters: BTreeMap<String, char>,
}

impl Table {
    fn add(&self, observed: &Observed) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for view in observed.views() {
            let verdicts = view.found.verdicts().into_iter();
            rows.push(Row {
                name: view.row,
                by: view.by,
                letters: verdicts
                    .map(|(id, verdict)| (id.to_owned(), verdict.letter()))
                    .collect(),
            });
        }
    }

    /// Prints it, if there is anything in it.
    pub(crate) fn print(&self) {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !rows.is_empty() {
            println!("{}", render(&rows));
        }
    }
}

/// A row is a diagnosis, a column a finding; names of columns are below.
fn render(rows: &[Row]) -> String {
    let mut ids: Vec<&String> = rows.iter().flat_map(|row| row.letters.keys()).collect();
    ids.sort();
    ids.dedup();
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = "\nDiagnoses of injected causes (S supported, p possible, - contradicted, \
                    ? not measured):\n"
        .to_owned();
    for (index, id) in ids.iter().enumerate() {
        text.push_str(&format!("  {:>2} {id}\n", index + 1));
    }
    text.push_str(&format!("{:width$}  {:10}", "", ""));
    text.extend((1..=ids.len()).map(|number| format!(" {number:>2}")));
    for row in rows {
        text.push_str(&format!("\n{:width$}  {:10}", row.name, row.by));
        for id in &ids {
            let letter = row.letters.get(*id).copied().unwrap_or(' ');
            text.push_str(&format!("  {letter}"));
        }
    }
    text
}

fn causes_are_named(artifacts: &Artifacts, server: Server, table: &Table) {
    let site = Site::boot(artifacts, server).unwrap_or_else(|error| panic!("{error}"));
    let mut wrong = String::new();
    for injection in ALL.iter().filter(|it| it.server == server) {
        let observed = site
            .observe(injection)
            .unwrap_or_else(|error| panic!("{error}"));
        table.add(&observed);
        for view in observed.views() {
            println!("{} ({}): {}", view.row, view.by, view.found);
            for difference in &view.wrong {
                wrong.push_str(&format!("\n  {} ({}): {difference}", view.row, view.by));
            }
        }
    }
    site.end().unwrap_or_else(|error| panic!("{error}"));
    assert!(wrong.is_empty(), "wrong diagnoses:{wrong}");
}

pub(crate) fn trials() -> (Table, Vec<Trial>) {
    let table = Table::default();
    let trials = Server::ALL.map(|server| {
        let table = table.clone();
        kernel_test(
            server.kernel(),
            format!("inject::{}", server.name()),
            move |artifacts| {
                causes_are_named(artifacts, server, &table);
                Ok(())
            },
        )
    });
    (table, trials.into())
}

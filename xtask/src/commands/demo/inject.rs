//! `cargo xtask demo --inject NAME`: a cause that is made on purpose, and what
//! vmdtrace calls it.

use std::path::Path;

use anyhow::ensure;
use xtask_lab::injection::{ALL, Answer, Injection, Observed, Site};
use xtask_setup::Setup;

use super::{Teller, artifacts};

pub(super) fn run(name: &str, verbose: bool) -> anyhow::Result<()> {
    if name == "list" {
        print!("{}", list());
        return Ok(());
    }
    // Better now than after all is built.
    let injection = Injection::named(name)?;
    let setup = Setup::new()?;
    let artifacts = artifacts(&setup, injection.server.kernel())?;
    let teller = Teller::new(verbose);
    teller.step(&format!(
        "booting kernel {} for the injection {name}",
        artifacts.kernel.package_version
    ));
    let site = Site::boot(&artifacts, injection.server)?;
    teller.step("making it, and looking at it twice: live, and into a recording");
    let observed = site.observe(injection)?;
    println!("{}", title(injection));
    for (index, recording) in observed.recordings.iter().enumerate() {
        let said = artifacts.vmdtrace_says(&["diagnose", "--from"], &[recording])?;
        let number = index + 1;
        println!("== INJECTED: diagnosis of window {number} ==\n\n{said}");
    }
    if injection.compared.is_some()
        && let [.., one, other] = &observed.recordings[..]
    {
        let files: [&Path; 2] = [one, other];
        let said = artifacts.vmdtrace_says(&["compare"], &files)?;
        println!("== INJECTED: comparison of the windows ==\n\n{said}");
    }
    println!("{}", summary(&observed));
    teller.step("switching the guest off");
    site.end()?;
    let wrong: Vec<_> = observed
        .views()
        .into_iter()
        .flat_map(|it| it.wrong)
        .collect();
    ensure!(
        wrong.is_empty(),
        "not what was injected:\n  {}",
        wrong.join("\n  ")
    );
    Ok(())
}

fn list() -> String {
    let width = ALL.iter().map(|it| it.name.len()).max().unwrap_or(0);
    ALL.iter()
        .map(|it| format!("{:width$}  {}\n", it.name, it.what))
        .collect()
}

fn title(injection: &Injection) -> String {
    format!(
        "\nINJECTED on purpose, on an emulated device: {}\n({})\n",
        injection.what, injection.name
    )
}

/// What was said by whom, and what had to be.
fn summary(observed: &Observed) -> String {
    let mut text = format!("INJECTED: {}\n", observed.injection.what);
    for view in observed.views() {
        text.push_str(&format!(
            "  {} ({}): {}\n    {}\n",
            view.row,
            view.by,
            view.found,
            if view.wrong.is_empty() {
                "as it should be".to_owned()
            } else {
                format!("WRONG: {} expected", expected(view.answer))
            }
        ));
    }
    text
}

fn expected(answer: Answer) -> String {
    let names = |ids: &[&str]| {
        if ids.is_empty() {
            "nothing".to_owned()
        } else {
            ids.join(", ")
        }
    };
    format!(
        "supported: {}; possible, at least: {}",
        names(answer.supported),
        names(answer.possible)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_listed() {
        let list = list();
        assert_eq!(list.lines().count(), ALL.len());
        assert!(list.contains("pinned"), "{list}");
    }

    #[test]
    fn it_is_marked_as_injected() {
        assert!(title(&ALL[0]).contains("INJECTED"));
    }

    #[test]
    fn an_unknown_name_is_refused_before_anything_is_built() {
        let error = run("nothing-such", false).unwrap_err().to_string();
        assert!(
            error.contains("`nothing-such`; there are one-disk-remap"),
            "{error}"
        );
    }
}

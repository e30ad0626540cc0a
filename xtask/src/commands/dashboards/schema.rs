//! Grafana's own types for the files: its npm package `@grafana/schema` has them for
//! TypeScript only, so the JSON becomes constants that TypeScript's compiler checks.
//! Not part of the tests: npm's registry is needed, and 35 MB.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

const PACKAGES: [&str; 2] = ["@grafana/schema@13.2.3", "typescript@7.0.2"];

/// Grafana's enumerations are strings in JSON; whatever has a default may be left out.
const TYPES: &str = "\
type Json<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
  : T extends Array<infer U> ? Json<U>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Part<T> = Json<Partial<T>>;
";
const SCHEMA: &str = "./node_modules/@grafana/schema/dist/types/raw";
/// Plugins, and whether fields have options of their own.
const PLUGINS: [(&str, &str, bool); 5] = [
    ("timeseries", "timeseries", true),
    ("stat", "stat", false),
    ("table", "table", true),
    ("status-history", "statushistory", true),
    ("heatmap", "heatmap", true),
];

/// Checks the files in `dashboards`; what npm brings goes to `scratch`.
pub(super) fn check(dashboards: &Path, scratch: &Path) -> anyhow::Result<()> {
    let made = format!("cannot make {}", scratch.display());
    std::fs::create_dir_all(scratch).context(made)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--ignore-scripts", "--no-save", "--prefix"]);
    succeeds(npm.arg(scratch).args(PACKAGES))?;
    let mut constants = 0;
    let mut text = beginning()?;
    for dashboard in xtask_dashboards::all() {
        let path = dashboards.join(format!("{}.json", dashboard.name));
        let file = std::fs::read_to_string(&path);
        let file = file.with_context(|| format!("cannot read {}", path.display()))?;
        add_file(&mut text, &mut constants, serde_json::from_str(&file)?)?;
    }
    // Nothing is exported, but that makes it a module of its own.
    text.push_str("export {};\n");
    let program = scratch.join("check.ts");
    std::fs::write(&program, text)
        .with_context(|| format!("cannot write {}", program.display()))?;
    let mut tsc = Command::new(scratch.join("node_modules/.bin/tsc"));
    tsc.args(["--noEmit", "--strict", "--skipLibCheck"]);
    tsc.args(["--module", "esnext", "--moduleResolution", "bundler"]);
    succeeds(tsc.arg("check.ts").current_dir(scratch))?;
    println!("{constants} parts are as {} has them", PACKAGES[0]);
    Ok(())
}

fn beginning() -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "import type {{ Dashboard, Panel, RowPanel }} from '{SCHEMA}/dashboard/x/types.gen';"
    )?;
    for (_, folder, _) in PLUGINS {
        writeln!(
            text,
            "import type * as {folder} from '{SCHEMA}/composable/{folder}/panelcfg/x/types.gen';"
        )?;
    }
    text.push_str(TYPES);
    Ok(text)
}

fn add_file(text: &mut String, constants: &mut u32, mut dashboard: Value) -> anyhow::Result<()> {
    let mut add = |kind: &str, value: &Value| {
        *constants += 1;
        writeln!(text, "const part{constants}: Part<{kind}> = {value};")
    };
    let panels = dashboard["panels"].take();
    if let Some(fields) = dashboard.as_object_mut() {
        fields.remove("panels");
    }
    add("Dashboard", &dashboard)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for mut panel in list(&panels) {
        let inside = list(&panel["panels"]);
        if panel["type"] == "row" {
            panel["panels"] = json!([]);
            add("RowPanel", &panel)?;
        }
        let itself = (panel["type"] != "row").then_some(panel);
        for panel in itself.into_iter().chain(inside) {
            let plugin = PLUGINS.iter().find(|(name, _, _)| panel["type"] == *name);
            let Some((_, folder, has_fields)) = plugin else {
                bail!("a panel of a type that is not checked: {}", panel["type"]);
            };
            add("Panel", &panel)?;
            add(&format!("{folder}.Options"), &panel["options"])?;
            if *has_fields {
                let fields = &panel["fieldConfig"]["defaults"]["custom"];
                add(&format!("{folder}.FieldConfig"), fields)?;
            }
        }
    }
    Ok(())
}

fn succeeds(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{} ended with {status}", command.get_program().display());
    }
    Ok(())
}

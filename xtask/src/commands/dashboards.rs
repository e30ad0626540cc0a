//! `cargo xtask dashboards`: writes what is generated.

mod preview;
mod schema;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Write the Grafana dashboards in dashboards/ from xtask/dashboards
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Draw the pictures in docs/previews, too: boots a virtual server twice
    #[arg(long)]
    previews: bool,

    /// Check them against Grafana's own types, too: needs npm and its registry
    #[arg(long)]
    check_schema: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let folder = root().join("dashboards");
    for dashboard in xtask_dashboards::all() {
        let path = folder.join(format!("{}.json", dashboard.name));
        let text = dashboard.to_json()?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    if args.check_schema {
        schema::check(&folder, &root().join("target/grafana-schema"))?;
    }
    if args.previews {
        preview::draw_all(&root().join("docs/previews"))?;
    }
    Ok(())
}

/// Of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

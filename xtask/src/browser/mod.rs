//! `cargo xtask browser`: builds the npm package `foreword-browser` and the demo page, each as a folder to publish.
//!
//! ```text
//! cargo ──▶ foreword_browser.wasm ──bindgen──▶ JavaScript, types ─┬▶ target/browser/foreword-browser   npm package
//!           examples/browser-demo, the handbook, uPlot ───────────┴▶ target/browser/page               any static server
//! ```

mod module;
mod package;
mod page;
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::build::Built as Programs;
use crate::setup;
use crate::workspace::Workspace;

/// What to do besides building.
#[derive(Args)]
pub(crate) struct Options {
    /// Measure orders in headless Chromium
    #[arg(long)]
    bench: bool,
    /// Test the package and the page, as `cargo xtask test` does
    #[arg(long, conflicts_with = "bench")]
    test: bool,
}

/// The results of a build.
pub(crate) struct Built {
    /// Folder of the npm package.
    pub(crate) package: PathBuf,
    /// Folder of the demo page.
    pub(crate) page: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.test {
        return check(workspace, None);
    }
    setup::for_browser(workspace)?;
    let built = build(workspace)?;
    if options.bench {
        return tests::bench(workspace, &built);
    }
    println!("{}", built.package.display());
    println!("{}", built.page.display());
    eprintln!(
        "look at the page: python3 -m http.server --directory {}",
        built.page.display()
    );
    Ok(())
}

/// Builds and tests the package and the page. `programs` are the filter and the host; if absent, the tests build them.
pub(crate) fn check(workspace: &Workspace, programs: Option<&Programs>) -> Result<()> {
    setup::for_browser_tests(workspace)?;
    tests::run(workspace, &build(workspace)?, programs)
}

fn build(workspace: &Workspace) -> Result<Built> {
    let folder = workspace.target().join("browser");
    let glue = folder.join("glue");
    module::build(workspace, &glue)?;
    let built = Built {
        package: folder.join("foreword-browser"),
        page: folder.join("page"),
    };
    package::write(workspace, &glue, &built.package)?;
    page::write(workspace, &glue, &built.page)?;
    Ok(built)
}

/// Copies a file, or a folder with its content, to the new path `to`.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("copying {} to {}", from.display(), to.display());
    if !from.is_dir() {
        return fs::copy(from, to).map(drop).with_context(failed);
    }
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let name = entry.with_context(failed)?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

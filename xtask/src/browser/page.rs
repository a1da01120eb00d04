//! Builds the demo page as a folder of static files: its sources, the module, the corpus and the chart library.

use std::path::Path;

use anyhow::Result;

use super::copy;
use crate::setup;
use crate::workspace::{Workspace, empty_folder};

pub(super) fn write(workspace: &Workspace, glue: &Path, folder: &Path) -> Result<()> {
    empty_folder(folder)?;
    let sources = workspace.root().join("examples/browser-demo");
    for name in SOURCES {
        copy(&sources.join(name), &folder.join(name))?;
    }
    copy(&glue.join("web"), &folder.join("foreword"))?;

    let handbook = folder.join("handbook");
    empty_folder(&handbook)?;
    for name in ["documents.jsonl", "questions.jsonl"] {
        let corpus = workspace.root().join("examples/handbook");
        copy(&corpus.join(name), &handbook.join(name))?;
    }

    let vendor = folder.join("vendor");
    empty_folder(&vendor)?;
    let uplot = setup::npm_folder(workspace).join("node_modules/uplot");
    for (from, to) in [
        ("dist/uPlot.esm.js", "uplot.js"),
        ("dist/uPlot.min.css", "uplot.css"),
        ("LICENSE", "uplot.LICENSE.txt"),
    ] {
        copy(&uplot.join(from), &vendor.join(to))?;
    }
    Ok(())
}

/// The page's source files, without its README and picture, which are only for the repository.
const SOURCES: [&str; 10] = [
    "index.html",
    "style.css",
    "icon.svg",
    "app.js",
    "dom.js",
    "engine.js",
    "gateway.js",
    "policy.js",
    "views",
    "worker",
];

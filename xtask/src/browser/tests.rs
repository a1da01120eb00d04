//! Tests the package in Node and the page in headless Chromium, once through Envoy and the host.

use std::path::Path;

use anyhow::{Context, Result};
use foreword_tests::{Gateway, GatewayOptions, Host};

use super::Built;
use crate::build::Built as Programs;
use crate::setup;
use crate::step::Step;
use crate::workspace::Workspace;

/// Runs all tests. `programs` serve the page; if absent, the tests build them.
pub(super) fn run(workspace: &Workspace, built: &Built, programs: Option<&Programs>) -> Result<()> {
    let model = workspace.root().join("host/engine/fixtures/qwen2");
    let host = match programs {
        Some(programs) => Host::start_binary(&programs.host, &model, &[])?,
        None => Host::start(&model, &[])?,
    };
    let gateway = Gateway::start(&GatewayOptions {
        module: programs.map(|programs| programs.filter.clone()),
        pages: Some(PAGES.to_owned()),
        ..GatewayOptions::new(host.address())
    })?;
    let gateway = format!("http://{}", gateway.address());
    node(workspace, "browser tests", built, "--test")?
        .args(files(workspace)?)
        .env("FOREWORD_GATEWAY", &gateway)
        .run()
}

/// Measures orders in Chromium and prints the results.
pub(super) fn bench(workspace: &Workspace, built: &Built) -> Result<()> {
    node(workspace, "browser bench", built, "tests/browser/bench.mjs")?.run()
}

/// Origins of pages that the gateway accepts: a regular expression for the tests' server, which has any port.
const PAGES: &str = r"http://127\.0\.0\.1:\d+";

/// Returns the test files by name, because not every Node.js supports patterns.
fn files(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = setup::npm_folder(workspace);
    let entries = std::fs::read_dir(&folder)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("reading {}", folder.display()))?;
    let names = entries.iter().map(std::fs::DirEntry::file_name);
    let names = names.filter_map(|name| name.into_string().ok());
    let tests = names.filter(|name| name.ends_with(".test.mjs"));
    let mut files: Vec<String> = tests.map(|name| format!("tests/browser/{name}")).collect();
    files.sort();
    Ok(files)
}

fn node(workspace: &Workspace, name: &str, built: &Built, arguments: &str) -> Result<Step> {
    let path = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.with_context(|| format!("{} is not UTF-8", path.display()))
    };
    Ok(Step::program(name, workspace.root(), "node", arguments)
        .env("FOREWORD_PACKAGE", &path(&built.package)?)
        .env("FOREWORD_PAGE", &path(&built.page)?)
        .env("FOREWORD_CHROMIUM", &path(&setup::chromium())?))
}

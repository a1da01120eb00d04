//! `cargo xtask test`: everything CI needs, in order; stops at the first step that fails.
//!
//! The steps share build profiles. Clippy's metadata serves rustdoc; the tests, the benches' compile check and the
//! demo share the dev profile's artifacts (dependencies and the engine are optimised in it).

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::step::{Step, seconds};
use crate::workspace::Workspace;
use crate::{build, corpus, demo, setup};

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let started = Instant::now();
    let mut plan = Plan::default();
    plan.task("setup", || setup::everything(workspace))?;

    let cargo = |name: &str, line: &str| {
        Step::cargo(
            name,
            workspace.root(),
            &line.split_ascii_whitespace().collect::<Vec<_>>(),
        )
    };
    plan.step("format", cargo("format", "fmt --all -- --check"))?;
    plan.step(
        "clippy",
        cargo(
            "clippy",
            "clippy --locked --workspace --all-targets -- -D warnings",
        ),
    )?;
    plan.step("clippy, filter", cargo("clippy", &format!("clippy --locked -p foreword-ordering -p foreword-filter --target {} -- -D warnings", build::FILTER_TARGET)))?;
    plan.step(
        "clippy, core in a browser",
        cargo(
            "clippy",
            "clippy --locked -p foreword-ordering --target wasm32-unknown-unknown -- -D warnings",
        ),
    )?;
    let rustdoc =
        cargo("rustdoc", "doc --locked --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings");
    plan.step("rustdoc", rustdoc)?;

    plan.task("filter", || build::filter(workspace).map(drop))?;
    plan.step("tests", cargo("tests", "test --locked --workspace"))?;
    plan.step(
        "benches compile",
        cargo(
            "benches compile",
            "build --locked -p foreword-benches --benches",
        ),
    )?;
    plan.task("corpus", || corpus::check(workspace))?;

    let deny = |line: &str| {
        let arguments: Vec<&str> = line.split_ascii_whitespace().collect();
        Step::program(
            "dependencies",
            workspace.root(),
            &setup::deny_program(workspace),
            &arguments,
        )
    };
    plan.step(
        "dependencies",
        deny("--offline check licenses bans sources"),
    )?;
    if let Err(reason) = fetch_advisories(workspace) {
        plan.skip(
            "advisories",
            &format!("the RustSec database is out of reach: {reason}"),
        );
    } else {
        plan.step("advisories", deny("check --disable-fetch advisories"))?;
    }

    plan.task("demo", || demo::check(workspace))?;
    plan.print(started.elapsed());
    Ok(())
}

/// What ran so far, for the table at the end.
#[derive(Default)]
struct Plan {
    lines: Vec<(String, String)>,
    skipped: usize,
}

impl Plan {
    fn step(&mut self, name: &str, step: Step) -> Result<()> {
        let taken = step.run()?;
        self.passed(name, taken);
        Ok(())
    }

    /// A step made of several; its own errors say what to repeat.
    fn task(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        work().with_context(|| format!("`{name}` failed"))?;
        self.passed(name, started.elapsed());
        Ok(())
    }

    fn passed(&mut self, name: &str, taken: Duration) {
        self.lines.push((name.to_owned(), seconds(taken)));
    }

    fn skip(&mut self, name: &str, reason: &str) {
        eprintln!("! {name}: skipped, {reason}");
        self.lines
            .push((name.to_owned(), format!("skipped, {reason}")));
        self.skipped += 1;
    }

    fn print(&self, total: Duration) {
        for (name, outcome) in &self.lines {
            println!("{name:26}{outcome}");
        }
        let passed = self.lines.len() - self.skipped;
        println!(
            "{passed} steps passed, 0 failed, {} skipped in {}",
            self.skipped,
            seconds(total)
        );
    }
}

/// Brings the advisory database up to date; the error is the reason in one line.
fn fetch_advisories(workspace: &Workspace) -> Result<(), String> {
    let output = Command::new(setup::deny_program(workspace))
        .args(["--color", "never", "fetch", "db"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .current_dir(workspace.root())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = errors
        .lines()
        .find(|line| line.starts_with("fatal:"))
        .or_else(|| errors.lines().next());
    Err(reason.unwrap_or("no reason given").to_owned())
}

//! `cargo xtask test`: runs everything that CI needs, in order; stops at the first failed step.
//!
//! The workspace is compiled once, in the dev profile: clippy's compiler builds the tests and benches, rustdoc reads the
//! libraries of that build, and the demo starts its programs.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::build::{self, Built, DENIED, LINTED};
use crate::kernels::Lines;
use crate::step::{Step, seconds};
use crate::workspace::Workspace;
use crate::{browser, circles, config_docs, corpus, demo, gpu_bundle, kernels, setup};

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut plan = Plan::begin(workspace);
    plan.task("set-up", || setup::everything(workspace))?;

    // This precedes all builds, since they embed the kernels.
    plan.task("kernels", || kernels::check(workspace, Lines::Dropped))?;

    plan.cargo("format", "fmt --all -- --check")?;
    plan.task("no circles of files", || circles::check(workspace))?;
    plan.task("configuration's documents", || {
        config_docs::run(workspace, &config_docs::Options { check: true })
    })?;
    plan.cargo("clippy, filter", CLIPPY_FILTER)?;
    plan.cargo("clippy, browser", CLIPPY_BROWSER)?;
    // What is only built for tests would not miss its users.
    let mut filter = PathBuf::new();
    plan.task("build, with clippy; filter", || {
        let build = linted("build, with clippy", workspace, "build");
        (filter, ()) = build::filter_beside(workspace, || build.run())?;
        Ok(())
    })?;
    let tests_and_benches = "test --all-targets --no-run";
    let name = "tests and benches, built with clippy";
    plan.step(linted(name, workspace, tests_and_benches))?;
    plan.step(rustdoc(workspace)?)?;

    let built = Built {
        filter,
        // Built with the tests, before they run.
        host: workspace.artifacts("dev").join("foreword"),
        workspace: Some(workspace.artifacts("dev")),
    };
    let tests = linted("tests", workspace, "test").env(CASES, "1");
    plan.step(built.given_to(tests))?;
    plan.task("gpu.sh", || gpu_bundle::check(workspace))?;
    plan.step(built.given_to(gateway_as(workspace, "dynamic module", "dynamic")))?;
    plan.step(built.given_to(gateway_as(workspace, "external processor", "ext-proc")))?;
    plan.step(core_as_wasm(workspace))?;
    plan.task("npm package and page", || {
        browser::check(workspace, Some(&built))
    })?;
    plan.task("corpus is as ranked", || corpus::check(workspace))?;

    let dependencies = "--offline check licenses bans sources";
    plan.step(deny(workspace, "dependencies", dependencies))?;
    match fetch_advisories(workspace) {
        Ok(()) => {
            let advisories = "check --disable-fetch advisories";
            plan.step(deny(workspace, "advisories", advisories))?;
        }
        Err(reason) => plan.skip("advisories", &format!("no RustSec database: {reason}")),
    }

    plan.task("demo", || demo::check(workspace, &built))?;
    plan.print();
    Ok(())
}

/// Seed of the property tests, so that a run's result depends only on the commit. Without it, `cargo test` draws other
/// cases each time.
const CASES: &str = "PROPTEST_RNG_SEED";

const CLIPPY_FILTER: &str = "clippy --locked -p foreword-ordering -p foreword-similarity -p foreword-filter --target wasm32-wasip1 -- -D warnings";
const CLIPPY_BROWSER: &str = "clippy --locked -p foreword-ordering -p foreword-similarity -p foreword-simulation -p foreword-browser --target wasm32-unknown-unknown -- -D warnings";

/// Runs cargo's `command` on the workspace with clippy's compiler, which compiles as rustc does and lints: `cargo clippy` would
/// check all dependencies first, which the tests then build again. The compiler is named by an option and not by a
/// variable, which the builds that tests begin would inherit.
fn linted(name: &str, workspace: &Workspace, command: &str) -> Step {
    let (command, options) = command.split_once(' ').unwrap_or((command, ""));
    let all = format!("{command} --locked --workspace --config {LINTED} {options}");
    Step::cargo(name, workspace.root(), &all).env(DENIED.0, DENIED.1)
}

/// Writes the libraries' documentation from the tests' build: `cargo doc` would check all dependencies. Cargo gives the
/// test's libraries to the documentation's tests alone, so that [`document`] stands in for rustdoc there. It leaves out what
/// is no library: programs and modules for Envoy.
fn rustdoc(workspace: &Workspace) -> Result<Step> {
    let program = env::current_exe().context("this program's path")?;
    let instead = format!("build.rustdoc='{}'", program.display());
    let step = linted("rustdoc", workspace, "test --doc").args(["--config", &instead]);
    Ok(step.env(DOCUMENT, &workspace.artifacts("doc").to_string_lossy()))
}

/// The folder of the documentation, if this program stands in for rustdoc.
const DOCUMENT: &str = "FOREWORD_RUSTDOC";

/// Runs rustdoc to document a library where cargo asks for its tests, if `cargo xtask test` started this program through
/// cargo; a warning is an error.
pub(crate) fn document() -> Option<ExitCode> {
    let folder = env::var_os(DOCUMENT)?;
    let mut given = env::args_os().skip(1);
    let mut rustdoc = Command::new("rustdoc");
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("--test") => {}
            Some("--test-run-directory" | "--test-args" | "--test-runtool") => drop(given.next()),
            _ => drop(rustdoc.arg(argument)),
        }
    }
    rustdoc.args(["-D", "warnings", "-o"]).arg(folder);
    Some(match rustdoc.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rustdoc: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Runs the gateway's tests with another shell of the filter; they have run with the Wasm filter. The package is named
/// within the workspace, so that the tests keep the features of their build.
fn gateway_as(workspace: &Workspace, name: &str, shell: &str) -> Step {
    let name = format!("gateway, {name}");
    linted(&name, workspace, "test --test gateway").env("FOREWORD_SHELL", shell)
}

/// Runs the core's unit tests as 32-bit Wasm, in Node's V8: the Wasm modules of Envoy and of pages have other integer
/// widths than this machine. The filter's own tests would need a proxy; `tests/tests/artefact.rs` runs its module
/// instead.
fn core_as_wasm(workspace: &Workspace) -> Step {
    let tests = "test --locked --target wasm32-wasip1 \
        -p foreword-ordering -p foreword-similarity -p foreword-simulation --lib";
    let script = workspace.root().join("tests/node/wasi.mjs");
    let runner = format!("node --no-warnings {}", script.display());
    Step::cargo("core as Wasm", workspace.root(), tests)
        .env(CASES, "1")
        .env("CARGO_TARGET_WASM32_WASIP1_RUNNER", &runner)
        // Unoptimised, they run for a minute.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
}

fn deny(workspace: &Workspace, name: &str, arguments: &str) -> Step {
    let program = setup::deny_program(workspace);
    Step::program(name, workspace.root(), program, arguments)
}

/// Updates the advisory database; the error is the reason in one line.
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
    let fatal = errors.lines().find(|line| line.starts_with("fatal:"));
    Err(fatal
        .or_else(|| errors.lines().next())
        .unwrap_or("no reason given")
        .to_owned())
}

/// Runs steps and records their results for the table at the end.
struct Plan<'a> {
    workspace: &'a Workspace,
    started: Instant,
    passed: usize,
    skipped: usize,
    lines: Vec<(String, String)>,
}

impl<'a> Plan<'a> {
    fn begin(workspace: &'a Workspace) -> Self {
        Self {
            workspace,
            started: Instant::now(),
            passed: 0,
            skipped: 0,
            lines: Vec::new(),
        }
    }

    /// Runs a cargo command, with its arguments separated by spaces.
    fn cargo(&mut self, name: &str, line: &str) -> Result<()> {
        self.step(Step::cargo(name, self.workspace.root(), line))
    }

    fn step(&mut self, step: Step) -> Result<()> {
        let (name, started) = (step.name().to_owned(), Instant::now());
        step.run()?;
        self.pass(&name, started.elapsed());
        Ok(())
    }

    /// Runs another command of xtask.
    fn task(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        work().with_context(|| format!("`{name}` failed"))?;
        self.pass(name, started.elapsed());
        Ok(())
    }

    fn pass(&mut self, name: &str, taken: Duration) {
        self.passed += 1;
        self.lines.push((name.to_owned(), seconds(taken)));
    }

    fn skip(&mut self, name: &str, reason: &str) {
        eprintln!("! {name}: skipped, {reason}");
        self.skipped += 1;
        self.lines
            .push((name.to_owned(), format!("SKIPPED, {reason}")));
    }

    fn print(&self) {
        for (name, outcome) in &self.lines {
            println!("{name:28}{outcome}");
        }
        let taken = seconds(self.started.elapsed());
        println!(
            "{} steps passed, 0 failed, {} skipped in {taken}",
            self.passed, self.skipped
        );
    }
}

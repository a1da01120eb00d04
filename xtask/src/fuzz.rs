//! `cargo xtask fuzz`: runs the fuzz targets under libFuzzer, one after another.
//!
//! Coverage is a pass of the stable compiler, and libFuzzer is a crate compiled by a C++ compiler, so neither nightly
//! nor cargo-fuzz is needed. AddressSanitizer needs nightly and is omitted, because the fuzzed code has no unsafe code
//! of the project. Assertions and overflow checks are on.
//!
//! ```text
//!   target/fuzz/corpus/TARGET   inputs that lead to new code; the next run continues from them
//!   target/fuzz/TARGET.log      libFuzzer's own output
//!   fuzz/corpus/TARGET          a small, minimised selection kept in the repository; the ordinary tests replay it
//!   fuzz/found/TARGET           inputs that violate an assertion; the ordinary tests include them
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::build::host_triple;
use crate::step::Step;
use crate::workspace::{Workspace, output};

/// What to fuzz, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// These targets only; without any, all of them
    targets: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = build(workspace)?;
    let mut found = Vec::new();
    for target in chosen(&program, &options.targets)? {
        let outcome = fuzz(workspace, &program, &target, options.seconds)?;
        println!("{target:16}{}", outcome.line);
        if !outcome.is_good {
            found.push(target);
        }
    }
    ensure!(
        found.is_empty(),
        "something does not hold in {}; the inputs are in fuzz/found, `cargo test -p foreword-fuzz` repeats it",
        found.join(", ")
    );
    Ok(())
}

/// Builds the program with all targets and libFuzzer, and returns its path.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    ensure!(
        Command::new("c++").arg("--version").output().is_ok(),
        "libFuzzer needs a C++ compiler, and `c++` is not there (Debian: g++)"
    );
    // Without an explicit target, build scripts and macros would get the flags, too.
    let machine = host_triple()?;
    let build = "build --locked -p foreword-fuzz --features libfuzzer";
    Step::cargo("fuzz targets", workspace.root(), build)
        .args(["--profile", PROFILE, "--target", &machine])
        .env("RUSTFLAGS", COVERAGE)
        .run()?;
    let built = workspace.artifacts_for(&machine, PROFILE);
    Ok(built.join("foreword-fuzz"))
}

/// Returns the requested targets; if none, all of the program's.
fn chosen(program: &Path, asked: &[String]) -> Result<Vec<String>> {
    let known = output(Command::new(program).env_remove("FOREWORD_FUZZ"))?;
    let known: Vec<String> = known.lines().map(str::to_owned).collect();
    if let Some(unknown) = asked.iter().find(|name| !known.contains(name)) {
        bail!("{unknown} is no target, they are {}", known.join(", "));
    }
    Ok(match asked {
        [] => known,
        asked => asked.to_vec(),
    })
}

/// The outcome of one target.
struct TargetOutcome {
    is_good: bool,
    line: String,
}

fn fuzz(
    workspace: &Workspace,
    program: &Path,
    target: &str,
    seconds: u32,
) -> Result<TargetOutcome> {
    let folder = workspace.target().join("fuzz");
    let corpus = folder.join("corpus").join(target);
    let found = workspace.root().join("fuzz/found").join(target);
    // The minimised inputs of earlier runs. libFuzzer writes only to the first folder.
    let kept = workspace.root().join("fuzz/corpus").join(target);
    for folder in [&corpus, &found, &kept] {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let log = folder.join(format!("{target}.log"));
    eprintln!("▸ {target}: {seconds} s, {}", log.display());
    let status = Command::new(program)
        .env("FOREWORD_FUZZ", target)
        .args([&corpus, &found, &kept])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!(
            "-dict={}",
            workspace.root().join("fuzz/words.dict").display()
        ))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args(LIBFUZZER)
        .stderr(File::create(&log)?)
        .status()
        .with_context(|| format!("{} cannot be started", program.display()))?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    Ok(TargetOutcome {
        is_good: status.success(),
        line: summary(&said),
    })
}

/// Returns the statistics in libFuzzer's output, and the failed assertion.
fn summary(said: &str) -> String {
    let figure = |name: &str| {
        let mut lines = said.lines().rev();
        lines.find_map(|line| Some(line.strip_prefix("stat::")?.strip_prefix(name)?.trim()))
    };
    let mut lines = said.lines().rev();
    let edges = lines.find_map(|line| line.split_once(" cov: ")?.1.split(' ').next());
    let parts = [
        (figure("number_of_executed_units:"), "inputs"),
        (figure("average_exec_per_sec:"), "a second"),
        (edges, "edges"),
    ];
    let parts = parts.map(|(value, unit)| format!("{:>12} {unit}", value.unwrap_or("?")));
    let mut summary = parts.concat();
    let mut lines = said.lines();
    if lines.any(|line| line.contains("panicked at"))
        && let Some(message) = lines.next()
    {
        summary += &format!("  FOUND: {message}");
    }
    summary
}

const PROFILE: &str = "fuzz";

/// The compiler flags of cargo-fuzz, except for its sanitizer.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Limits for libFuzzer: an input should take milliseconds and megabytes. The first input of `instructions` also
/// compiles the module.
const LIBFUZZER: [&str; 4] = [
    "-max_len=65536",
    "-timeout=60",
    "-rss_limit_mb=2048",
    "-print_final_stats=1",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_findings_are_picked_out() {
        let said = "#8\tNEW    cov: 52 ft: 9 corp: 1/1b\n\nthread 'x' panicked at a.rs:1:2:\nit does not hold\n\
            stat::number_of_executed_units: 1200\nstat::average_exec_per_sec:     600\n";
        let summary = summary(said);
        for part in [
            "1200 inputs",
            "600 a second",
            "52 edges",
            "FOUND: it does not hold",
        ] {
            assert!(summary.contains(part), "{summary}");
        }
        assert!(!super::summary("").contains("FOUND"));
    }
}

//! `cargo xtask gpu-bundle`: packs what `host/engine/tests/gpu.sh` needs on a machine with a GPU, to be carried there.
//!
//! ```text
//! OUTPUT/1/gpu.sh                  runs everything and reports
//! OUTPUT/1/foreword-gpu.tar.gz     the host, the engine's tests as a program, fixtures, scripts, configurations of models
//! OUTPUT/1/smollm2.1, 2/smollm2.2  SmolLM2 in pieces, so that no folder exceeds `--most-mib`
//! ```
//!
//! The programs have no symbols. Their kernels name source lines, for compute-sanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::build::{self, DENIED, LINTED};
use crate::kernels::Lines;
use crate::oci::{self, Entry};
use crate::step::Step;
use crate::workspace::{Workspace, cargo, empty_folder};
use crate::{kernels, setup};

/// Options of `cargo xtask gpu-bundle`.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder to write; a bundle that is there already is replaced
    #[arg(long, default_value = "target/gpu-bundle")]
    output: PathBuf,
    /// Most MiB in one of the folders
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(40..))]
    most_mib: u32,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    kernels::check(workspace, Lines::Kept)?;
    let foreword = build::host(workspace, "release")?;
    let engine = "--profile release --package foreword-engine --lib";
    let tests = tests(workspace, &engine.split(' ').collect::<Vec<_>>())?;
    let model = fs::read(setup::smollm2(workspace)?)?;
    let output = workspace.root().join(&options.output);
    empty_folder(&output)?;
    let first = output.join("1");
    pack(workspace, &foreword, &tests, &model, &first)?;
    let most = (options.most_mib as usize) << 20;
    let size = |name| fs::metadata(first.join(name)).map(|about| about.len() as usize);
    let taken = size(ARCHIVE)? + size("gpu.sh")?;
    ensure!(taken < most, "the programs alone take {} MiB", taken >> 20);
    let (head, rest) = model.split_at(model.len().min(most - taken));
    for (number, piece) in [head].into_iter().chain(rest.chunks(most)).enumerate() {
        let folder = output.join((number + 1).to_string());
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("smollm2.{}", number + 1)), piece)?;
        println!("{}", folder.display());
    }
    Ok(())
}

/// Runs the script on a bundle of the dev profile, on small models and on the stand-in for CUDA's driver, which the
/// engine's tests have compiled: once with a kernel that fails, and once with all stages that need no more than that.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    // As `cargo xtask test` has built them; for other targets cargo would build some crates again.
    let built = ["--workspace", "--all-targets", "--config", LINTED];
    let tests = tests(workspace, &built)?;
    let Some(driver) = stand_in(&tests) else {
        eprintln!("! gpu.sh: not run, there is no stand-in for CUDA's driver");
        return Ok(());
    };
    let foreword = workspace.artifacts("dev").join("foreword");
    let folder = workspace.target().join("gpu-bundle-check");
    pack(workspace, &foreword, &tests, b"no model", &folder)?;
    let report = folder.join("report");
    let script = |stages: &str, variable: (&str, &str)| -> Result<(bool, String)> {
        let status = Command::new(folder.join("gpu.sh"))
            .args(["--tiny", "--limit", "120", "--stages", stages, "--out"])
            .arg(&report)
            .env("LD_LIBRARY_PATH", &driver)
            .env(variable.0, variable.1)
            .stdout(Stdio::null())
            .status()?;
        Ok((status.success(), fs::read_to_string(report.join("log"))?))
    };
    let (good, log) = script("probe,tests", ("FOREWORD_BREAKS", "copy_pages:1"))?;
    ensure!(
        !good
            && outcome(&log, "probe", "FAILED")
            && log.contains("passed in")
            && outcome(&log, "tests", "FAILED"),
        "a failure is not reported, or stops what comes after it:\n{log}"
    );
    let stages = "probe,tests,answers,steps,orders";
    let (good, log) = script(stages, ("FOREWORD_LATE", "first"))?;
    ensure!(good, "gpu.sh failed:\n{log}");
    for stage in stages.split(',') {
        let passed = outcome(&log, stage, "passed");
        ensure!(passed, "{stage} has not passed:\n{log}");
    }
    let figures = [
        "prefill of 64",
        "5 rows, logprobs",
        "greedy tokens",
        "RAGCache++",
    ];
    for figure in figures {
        ensure!(log.contains(figure), "the table lacks {figure:?}:\n{log}");
    }
    Ok(())
}

/// Returns whether a log, which ends with a line for each stage, says that this became of `stage`.
fn outcome(log: &str, stage: &str, wanted: &str) -> bool {
    log.lines()
        .filter_map(|line| line.strip_prefix(stage))
        .any(|rest| rest.trim_start().starts_with(wanted))
}

/// Builds the engine's unit tests as a program and returns its path.
fn tests(workspace: &Workspace, options: &[&str]) -> Result<PathBuf> {
    let output = cargo()
        .args(["test", "--locked", "--no-run", "--message-format", "json"])
        .args(options)
        .env(DENIED.0, DENIED.1)
        .current_dir(workspace.root())
        .stderr(Stdio::inherit())
        .output()
        .context("cargo cannot be started")?;
    ensure!(output.status.success(), "the engine's tests do not build");
    let messages = String::from_utf8_lossy(&output.stdout);
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line)?;
        if message["target"]["name"] == "foreword_engine"
            && message["profile"]["test"] == true
            && let Some(program) = message["executable"].as_str()
        {
            return Ok(program.into());
        }
    }
    bail!("cargo names no program with the engine's tests")
}

/// Returns the folder in which the newest stand-in for CUDA's driver has the driver's names.
fn stand_in(tests: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(tests.parent()?)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()));
    let made = folders.filter(|path| path.join("libcuda.so").exists());
    made.max_by_key(|path| fs::metadata(path).and_then(|about| about.modified()).ok())
}

const ARCHIVE: &str = "foreword-gpu.tar.gz";

/// A model of which a CPU computes a thousand tokens in seconds.
const SMALL: &str = r#"{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64,
 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 512,
 "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;

/// Writes the script and the archive to `folder`.
fn pack(
    workspace: &Workspace,
    foreword: &Path,
    tests: &Path,
    model: &[u8],
    folder: &Path,
) -> Result<()> {
    let root = workspace.root();
    let scripts = root.join("host/engine/tests");
    fs::create_dir_all(folder)?;
    fs::copy(scripts.join("gpu.sh"), folder.join("gpu.sh"))?;
    let sum = format!("{}  smollm2.gguf\n", oci::sha256(model));
    let shape = fs::read_to_string(root.join("examples/shapes/7b/config.json"))?;
    // Two layers, for a profiler.
    let mut slice: Value = serde_json::from_str(&shape)?;
    slice["num_hidden_layers"] = 2.into();
    let mut entries = vec![
        Entry::new("smollm2.sum", sum.into_bytes(), 0o644),
        Entry::new("small/config.json", SMALL.as_bytes().to_vec(), 0o644),
        Entry::new("shape/config.json", shape.clone().into_bytes(), 0o644),
        Entry::new("slice/config.json", slice.to_string().into_bytes(), 0o644),
    ];
    for (name, program) in [("foreword", foreword), ("tests", tests)] {
        let stripped = folder.join(name);
        Step::program("strip", root, "strip", "-o")
            .args([&stripped, program])
            .run()?;
        entries.push(Entry::new(name, fs::read(&stripped)?, 0o755));
        fs::remove_file(&stripped)?;
    }
    for name in ["gpu_answers.py", "gpu_peer.py", "gpu_table.py"] {
        entries.push(Entry::new(name, fs::read(scripts.join(name))?, 0o644));
    }
    let fixtures = root.join("host/engine/fixtures");
    for family in fs::read_dir(&fixtures)? {
        let family = family?.path();
        if !family.is_dir() {
            continue;
        }
        for file in fs::read_dir(&family)? {
            let file = file?.path();
            let name = Path::new("fixtures").join(file.strip_prefix(&fixtures)?);
            entries.push(Entry::new(&name.to_string_lossy(), fs::read(&file)?, 0o644));
        }
    }
    fs::write(
        folder.join(ARCHIVE),
        oci::compressed(&oci::archive(&entries)?)?,
    )?;
    Ok(())
}

//! The programs and modules that the harness starts: their locations and builds.
//!
//! Cargo itself reports where it put a build's result, so profiles and target folders need no guessing. Environment
//! variables name existing builds: `FOREWORD_ENVOY`, `FOREWORD_FILTER`, `FOREWORD_HOST`, `FOREWORD_EXT_PROC` and
//! `FOREWORD_DYNAMIC` (of the dev profile), and `FOREWORD_RELEASE_HOST` (for benches). `cargo xtask test` sets all of the
//! dev profile: a package built alone has other features than in the workspace, so cargo would rebuild what it shares with
//! others, and again for the next step.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// Returns the repository's root.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// Returns the path of Envoy, which `cargo xtask setup` installs.
pub fn envoy_binary() -> Result<PathBuf> {
    if let Some(path) = given("FOREWORD_ENVOY")? {
        return Ok(path);
    }
    let path = repository().join(".tools/envoy/envoy/_bin/envoy");
    if !path.is_file() {
        bail!(
            "Envoy is not installed ({} is missing): run `cargo xtask setup`",
            path.display()
        );
    }
    Ok(path)
}

/// Returns the path of SmolLM2's GGUF file, which `cargo xtask setup` installs.
pub fn smollm2() -> Result<PathBuf> {
    let path = repository().join(".tools/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    ensure!(
        path.is_file(),
        "SmolLM2 is not installed ({} is missing): run `cargo xtask setup`",
        path.display()
    );
    Ok(path)
}

/// Returns the filter's module, built once per process.
pub fn filter_module() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let built = given("FOREWORD_FILTER")
            .and_then(|given| given.map_or_else(|| wasm_module("foreword-filter"), Ok));
        built.map_err(|error| format!("{error:#}"))
    };
    BUILT.get_or_init(build).clone().map_err(anyhow::Error::msg)
}

/// Returns a package's module for Envoy's Wasm VM.
pub fn wasm_module(package: &str) -> Result<PathBuf> {
    let target = ["--profile", "wasm", "--target", "wasm32-wasip1"];
    build(&[&target[..], &["-p", package]].concat(), "wasm")
}

/// Returns the filter as a dynamic module, built in the given cargo profile (`dev`, `release`).
pub fn dynamic_module(profile: &str) -> Result<PathBuf> {
    if let ("dev", Some(path)) = (profile, given("FOREWORD_DYNAMIC")?) {
        return Ok(path);
    }
    let arguments = ["--profile", profile, "-p", "foreword-dynamic", "--lib"];
    build(&arguments, "so")
}

/// Returns the `foreword` binary, built in the given cargo profile (`dev`, `release`).
pub fn host_binary(profile: &str) -> Result<PathBuf> {
    let variable = match profile {
        "dev" => Some("FOREWORD_HOST"),
        "release" => Some("FOREWORD_RELEASE_HOST"),
        _ => None,
    };
    if let Some(path) = variable.map(given).transpose()?.flatten() {
        return Ok(path);
    }
    build(
        &["--profile", profile, "-p", "foreword", "--bin", "foreword"],
        "",
    )
}

/// Returns the `foreword-gateway` binary, which `foreword ext-proc` runs, built in the given cargo profile (`dev`,
/// `release`).
pub fn ext_proc_binary(profile: &str) -> Result<PathBuf> {
    if let ("dev", Some(path)) = (profile, given("FOREWORD_EXT_PROC")?) {
        return Ok(path);
    }
    let package = ["-p", "foreword-gateway", "--bin", "foreword-gateway"];
    build(&[&["--profile", profile], &package[..]].concat(), "")
}

/// Returns the path in an environment variable; `None` if it is not set.
fn given(variable: &str) -> Result<Option<PathBuf>> {
    let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
        return Ok(None);
    };
    ensure!(path.is_file(), "{variable}: no file {}", path.display());
    Ok(Some(path))
}

/// Runs cargo, and returns the produced file with this extension.
fn build(arguments: &[&str], extension: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let output = Command::new(cargo)
        .arg("build")
        .args(arguments)
        .args(["--quiet", "--message-format", "json-render-diagnostics"])
        .current_dir(repository())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    let command = format!("cargo build {}", arguments.join(" "));
    if !output.status.success() {
        bail!("`{command}` failed ({})", output.status);
    }
    // Cargo prints one JSON message per line. The requested package is built last, so its files come last.
    let text = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter_map(|message| message["filenames"].as_array().cloned())
        .flatten()
        .filter_map(|name| name.as_str().map(PathBuf::from))
        .rfind(|path| path.extension().unwrap_or_default() == extension)
        .with_context(|| format!("`{command}` named no such file"))
}

//! `cargo xtask build`: builds the filter (as a Wasm module, a dynamic module and an external processor), and the host
//! with its programs.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, thread};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;

use crate::setup;
use crate::step::Step;
use crate::workspace::{Workspace, output};

/// The programs that `foreword` runs for some subcommands, each a package of the same name: the external processor,
/// then the rehearsal.
pub(crate) const PROGRAMS: [Program; 2] = [
    Program {
        name: "foreword-gateway",
        folder: "host/gateway",
    },
    Program {
        name: "foreword-rehearse",
        folder: "host/rehearse",
    },
];

/// A program that `foreword` runs.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) folder: &'static str,
}

/// The target triple that the Proxy-Wasm filter is compiled for.
pub(crate) const FILTER_TARGET: &str = "wasm32-wasip1";

/// Cargo's option that makes clippy's compiler build the workspace; its artifacts are others than rustc's.
pub(crate) const LINTED: &str = "build.rustc-workspace-wrapper='clippy-driver'";

/// The variable that makes its warnings errors; with another value, it compiles everything again.
pub(crate) const DENIED: (&str, &str) = ("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");

/// Options of `cargo xtask build`.
#[derive(Args)]
pub(crate) struct Options {
    /// Cargo profile of the host and of the dynamic module
    #[arg(long, default_value = "release")]
    profile: String,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    setup::for_demo(workspace)?;
    println!("{}", filter(workspace)?.display());
    println!("{}", dynamic(workspace, &options.profile)?.display());
    println!("{}", host(workspace, &options.profile)?.display());
    for program in PROGRAMS {
        println!(
            "{}",
            native_program(workspace, &options.profile, program)?.display()
        );
    }
    Ok(())
}

/// The results of a build, for the tests and the demo.
pub(crate) struct Built {
    /// Path of the filter's Wasm module.
    pub(crate) filter: PathBuf,
    /// Path of the `foreword` binary.
    pub(crate) host: PathBuf,
    /// Folder of a build of the whole workspace, with `foreword-gateway` and the dynamic module; `None` if there is none.
    pub(crate) workspace: Option<PathBuf>,
}

impl Built {
    /// Passes the paths to the tests in a step, which would otherwise build everything themselves.
    pub(crate) fn given_to(&self, step: Step) -> Step {
        let step = step
            .env("FOREWORD_FILTER", &self.filter.to_string_lossy())
            .env("FOREWORD_HOST", &self.host.to_string_lossy());
        let Some(folder) = &self.workspace else {
            return step;
        };
        let path = |name| folder.join(name).to_string_lossy().into_owned();
        step.env("FOREWORD_EXT_PROC", &path("foreword-gateway"))
            .env("FOREWORD_DYNAMIC", &path("libforeword_dynamic.so"))
    }
}

/// Builds the filter and returns its path.
pub(crate) fn filter(workspace: &Workspace) -> Result<PathBuf> {
    let package = "foreword-filter";
    module(workspace, "filter", package, FILTER_TARGET, "wasm")
}

/// Builds the filter while `other` builds something in another folder of artifacts, and returns the filter's path and
/// the other's result. The filter is optimised as a whole, by one thread, so both together take little longer than the
/// longer one.
pub(crate) fn filter_beside<T>(
    workspace: &Workspace,
    other: impl FnOnce() -> Result<T>,
) -> Result<(PathBuf, T)> {
    thread::scope(|scope| {
        let filter = scope.spawn(|| filter(workspace));
        let other = other();
        let filter = filter
            .join()
            .map_err(|_| anyhow!("the filter's build panicked"))?;
        Ok((filter?, other?))
    })
}

/// Builds a package as a Wasm module, and returns its path. The same source gives the same bytes on every machine: the
/// builder's paths, which panics would contain, are replaced.
pub(crate) fn module(
    workspace: &Workspace,
    name: &str,
    package: &str,
    target: &str,
    profile: &str,
) -> Result<PathBuf> {
    let inlined = match profile {
        "wasm-small" => SMALLEST,
        _ => &[],
    };
    let remap = remapped(target, &sources()?, inlined);
    let build = format!("build --locked --profile {profile} --target {target} --package {package}");
    Step::cargo(name, workspace.root(), &build)
        .args(["--config", &remap])
        .without_rustflags()
        .run()?;
    let file = package.replace('-', "_") + ".wasm";
    built(workspace.artifacts_for(target, profile).join(file))
}

/// Returns the folders into which cargo unpacked the dependencies, one per registry.
fn sources() -> Result<Vec<PathBuf>> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let registries = home.context("no home folder")?.join("registry/src");
    let mut found = Vec::new();
    // There is none if all dependencies are vendored, in paths unknown here.
    for registry in fs::read_dir(&registries).into_iter().flatten() {
        found.push(registry?.path());
    }
    found.sort();
    Ok(found)
}

/// The flags with which a module is smallest when gzipped: by 0.3 %, and larger with 0 or 35.
const SMALLEST: &[&str] = &["-Cllvm-args=--inline-threshold=15"];

/// Returns the cargo setting that makes the compiler write `/` in place of each of these folders, with `more` flags.
fn remapped(target: &str, folders: &[PathBuf], more: &[&str]) -> String {
    let flags = folders.iter().map(|folder| {
        let folder = folder.display();
        format!("{:?}", format!("--remap-path-prefix={folder}=/"))
    });
    let more = more.iter().map(|flag| format!("{flag:?}"));
    let flags: Vec<String> = flags.chain(more).collect();
    format!("target.{target}.rustflags=[{}]", flags.join(","))
}

/// Builds the filter as a dynamic module and returns its path.
fn dynamic(workspace: &Workspace, profile: &str) -> Result<PathBuf> {
    let target = "--package foreword-dynamic --lib";
    native(workspace, "dynamic module", profile, target)?;
    built(workspace.artifacts(profile).join("libforeword_dynamic.so"))
}

/// Builds the host and returns its path.
pub(crate) fn host(workspace: &Workspace, profile: &str) -> Result<PathBuf> {
    let target = "--package foreword --bin foreword";
    native(workspace, "host", profile, target)?;
    built(workspace.artifacts(profile).join("foreword"))
}

/// Builds the external processor, which `foreword ext-proc` runs, and returns its path.
pub(crate) fn ext_proc(workspace: &Workspace, profile: &str) -> Result<PathBuf> {
    native_program(workspace, profile, PROGRAMS[0])
}

/// Builds a program that `foreword` runs, and returns its path.
fn native_program(workspace: &Workspace, profile: &str, program: Program) -> Result<PathBuf> {
    let name = program.name;
    let target = format!("--package {name} --bin {name}");
    native(workspace, name, profile, &target)?;
    built(workspace.artifacts(profile).join(name))
}

/// Builds for this machine.
fn native(workspace: &Workspace, name: &str, profile: &str, target: &str) -> Result<()> {
    let build = format!("build --locked --profile {profile} {target}");
    Step::cargo(name, workspace.root(), &build).run()
}

/// The native programs of a release.
pub(crate) struct Shipped {
    pub(crate) dynamic: PathBuf,
    pub(crate) host: PathBuf,
    /// In the order of [`PROGRAMS`].
    pub(crate) programs: [PathBuf; PROGRAMS.len()],
}

/// Builds the dynamic module, the host and its programs for a release, without the builder's paths.
///
/// They have their own profile, and so their own folder: with different flags, cargo would rebuild everything each
/// time.
pub(crate) fn for_release(workspace: &Workspace) -> Result<Shipped> {
    const PROFILE: &str = "dist";
    let mut folders = sources()?;
    folders.push(workspace.root().to_owned());
    folders.push(workspace.target().to_owned());
    let remap = remapped(&host_triple()?, &folders, &[]);
    // The C compiler writes paths as well.
    let flags: Vec<String> = folders
        .iter()
        .map(|folder| format!("-ffile-prefix-map={}=/", folder.display()))
        .collect();
    let programs = PROGRAMS.map(|program| program.name);
    for package in ["foreword-dynamic", "foreword"].into_iter().chain(programs) {
        let build = format!("build --locked --profile {PROFILE} --package {package}");
        Step::cargo(package, workspace.root(), &build)
            .args(["--config", &remap])
            .env("CFLAGS", &flags.join(" "))
            .without_rustflags()
            .run()?;
    }
    let folder = workspace.artifacts(PROFILE);
    let [gateway, rehearse] = programs.map(|name| built(folder.join(name)));
    Ok(Shipped {
        dynamic: built(folder.join("libforeword_dynamic.so"))?,
        host: built(folder.join("foreword"))?,
        programs: [gateway?, rehearse?],
    })
}

/// The target that this machine's compiler builds for.
pub(crate) fn host_triple() -> Result<String> {
    let text = output(Command::new("rustc").arg("-vV"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc -vV names no host")?.to_owned())
}

fn built(path: PathBuf) -> Result<PathBuf> {
    ensure!(path.is_file(), "cargo built no {}", path.display());
    Ok(path)
}

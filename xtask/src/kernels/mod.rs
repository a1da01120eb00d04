//! `cargo xtask kernels`: compiles the engine's CUDA kernels to machine code, for all known architectures, and to PTX for
//! later ones.
//!
//! The code is written to `host/engine/kernels/built`, which git ignores, and embedded by the host's next build. The
//! compiler's report on each kernel (registers, and spilled bytes) is tracked by git, so that changes appear in review.
//! Attention kernels that spill are an error, and so are those whose asynchronous multiplications the assembler
//! serialises (its warnings about `wgmma`).

mod compiler;
mod resources;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::setup;
use crate::workspace::Workspace;
use compiler::Compiler;
pub(crate) use compiler::Lines;
use resources::Resources;

include!("../../../host/engine/kernels/sources.rs");

/// The kernels' folder, relative to the repository's root.
const FOLDER: &str = "host/engine/kernels";

/// The table of resources, which git tracks.
const TABLE: &str = "resources.txt";

/// Options of `cargo xtask kernels`.
#[derive(Args)]
pub(crate) struct Options {
    /// Rewrite the table of registers instead of comparing it
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let table = compile(workspace, Lines::Dropped)?;
    let path = workspace.root().join(FOLDER).join(TABLE);
    if options.update {
        fs::write(&path, &table).with_context(|| format!("writing {}", path.display()))?;
    } else {
        compare(&path, &table)?;
    }
    print!("{table}");
    Ok(())
}

/// Compiles and compares, before a build that embeds the code.
pub(crate) fn check(workspace: &Workspace, lines: Lines) -> Result<()> {
    let table = compile(workspace, lines)?;
    compare(&workspace.root().join(FOLDER).join(TABLE), &table)
}

/// Compiles for a build that ships. Where the compiler is not pinned for this machine, the host compiles its kernels when
/// it first uses a device.
pub(crate) fn embed(workspace: &Workspace) -> Result<()> {
    if !setup::HAS_WHEELS {
        eprintln!("! kernels: not embedded, the compiler is pinned for x86-64 Linux alone");
        return Ok(());
    }
    check(workspace, Lines::Dropped)
}

/// Compiles for all architectures and returns the table.
fn compile(workspace: &Workspace, lines: Lines) -> Result<String> {
    let compiler = Compiler::open(&setup::nvrtc(workspace)?)?;
    let folder = workspace.root().join(FOLDER);
    let sources = sources(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let hash = hash(&sources);
    let mut modules = BTreeMap::new();
    let mut table = String::new();
    for architecture in ARCHITECTURES {
        let (code, log) = compiler.compile(ROOT, &sources, architecture, lines)?;
        eprintln!("✓ kernels: {architecture}, {} KiB", code.len() >> 10);
        modules.insert(module_name(architecture, hash), code);
        if architecture.starts_with("compute") {
            continue;
        }
        ensure!(
            !log.contains("wgmma"),
            "{architecture}: the assembler does not let multiplications of warpgroups run on:\n{log}"
        );
        let kernels = Resources::read(&log)?;
        for kernel in &kernels {
            let attends = ["prefill", "decode"]
                .iter()
                .any(|name| kernel.name.starts_with(name));
            ensure!(
                !attends || kernel.spilled() == 0,
                "{architecture}: {} spills {} bytes of registers",
                kernel.name,
                kernel.spilled()
            );
        }
        table += &resources::table(architecture, &kernels);
    }
    keep(&folder.join("built"), &modules)?;
    Ok(table)
}

/// Makes `modules` the only files of a folder. An unchanged file is not written, so that cargo does not build again.
fn keep(folder: &Path, modules: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Code from other sources is useless.
        if !modules.contains_key(&*entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    for (name, code) in modules {
        let path = folder.join(name);
        if fs::read(&path).ok().as_ref() != Some(code) {
            fs::write(&path, code).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

fn compare(path: &Path, table: &str) -> Result<()> {
    let held = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    ensure!(
        held == table,
        "{} is not what the compiler says now; `cargo xtask kernels --update` rewrites it. It says:\n{table}",
        path.display()
    );
    Ok(())
}

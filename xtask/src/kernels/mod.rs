//! `cargo xtask kernels`: compiles the engine's CUDA kernels to machine code, for all known architectures.
//!
//! The code is written to `host/engine/kernels/built`, which git ignores, and embedded by the host's next build. The
//! compiler's report on each kernel (registers, and spilled bytes) is tracked by git, so that changes appear in review.
//! Attention kernels that spill are an error, and so are those whose asynchronous multiplications the assembler
//! serialises (its warnings about `wgmma`).

mod compiler;
mod resources;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::setup;
use crate::workspace::Workspace;
use compiler::Compiler;
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
    let table = compile(workspace)?;
    let path = workspace.root().join(FOLDER).join(TABLE);
    if options.update {
        fs::write(&path, &table).with_context(|| format!("writing {}", path.display()))?;
    } else {
        compare(&path, &table)?;
    }
    print!("{table}");
    Ok(())
}

/// Compiles and compares, for CI.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let table = compile(workspace)?;
    compare(&workspace.root().join(FOLDER).join(TABLE), &table)
}

/// Compiles for all architectures and returns the table.
fn compile(workspace: &Workspace) -> Result<String> {
    let compiler = Compiler::open(&setup::nvrtc(workspace)?)?;
    let folder = workspace.root().join(FOLDER);
    let sources = sources(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let hash = hash(&sources);
    let built = folder.join("built");
    // Code from other sources is useless.
    let _ = fs::remove_dir_all(&built);
    fs::create_dir_all(&built)?;
    let mut table = String::new();
    for architecture in ARCHITECTURES {
        let (code, log) = compiler.compile(ROOT, &sources, architecture)?;
        let path = built.join(cubin_name(architecture, hash));
        fs::write(&path, &code).with_context(|| format!("writing {}", path.display()))?;
        eprintln!("✓ kernels: {architecture}, {} KiB", code.len() >> 10);
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
    Ok(table)
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

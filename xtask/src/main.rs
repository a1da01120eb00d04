//! `cargo xtask …`: the repository's maintenance commands, each of which sets up what it needs.
//!
//! ```text
//! setup    targets, Envoy, cargo-deny      ← test, demo call what they need of it
//! setup-embedder  the weights of the embedding model
//! build    the Wasm filter and the host
//! kernels  the engine's CUDA kernels as machine code; needs no device
//! gpu-bundle  what measures and tests the engine on a machine with a GPU, to be carried there
//! image    the Wasm filter, or the host, as an OCI image
//! release  tarball, images, lists of components and checksums, reproducible
//! config-docs  the tables and types of configuration fields, from the schema
//! test     everything CI needs, step by step
//! circles  whether files of a crate use each other in a circle
//! browser  the npm package and the demo page
//! demo     host + Envoy, the handbook's questions in three orders, figures and a report
//! corpus   rank the handbook's documents for its questions
//! fuzz     the fuzz targets under libFuzzer
//! vllm     reuse in a real vLLM, by order, and with the bridge (6.5 GB)
//! ```
//!
//! There is one file per command. A child's output goes to stderr, so that stdout has only results.

mod browser;
mod build;
mod circles;
mod config_docs;
mod corpus;
mod demo;
mod fuzz;
mod gpu_bundle;
mod handbook;
mod image;
mod kernels;
mod oci;
mod release;
mod setup;
mod step;
mod test;
mod vllm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Set-up, demo, tests and other chores"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetch what the other commands need: Rust targets, Envoy, npm packages, Chromium, cargo-deny (offline once done)
    Setup,
    /// Fetch all-MiniLM-L6-v2 (83 MB), which embeds documents and questions by their meaning
    SetupEmbedder,
    /// Build the Wasm filter and the host
    Build(build::Options),
    /// Build the Wasm filter or the host and pack it as an OCI image, without Docker
    Image(image::Options),
    /// Make a release: tarball, OCI images, CycloneDX lists of components, checksums; the same bytes every time
    Release(release::Options),
    /// Compile the engine's CUDA kernels with NVRTC (90 MB, once), for the next build of the host to embed
    Kernels(kernels::Options),
    /// Pack the host, the engine's tests and scripts for a machine with a GPU
    GpuBundle(gpu_bundle::Options),
    /// Build the npm package and the demo page
    Browser(browser::Options),
    /// Write the tables and types of configuration fields from the schema
    ConfigDocs(config_docs::Options),
    /// Run every check and every test, as CI does
    Test,
    /// Check that no files of a crate use each other in a circle
    Circles,
    /// Run the fuzz targets under libFuzzer, which takes a C++ compiler
    Fuzz(fuzz::Options),
    /// Ask a small language model the handbook's questions through Envoy, in three orders
    Demo(demo::Options),
    /// Rank the handbook's documents for its questions by BM25 and write retrieved.jsonl
    Corpus(corpus::Options),
    /// Measure reuse in a real vLLM on XQuAD; installs vLLM's CPU build, 6.5 GB, unless one is named
    Vllm(vllm::Options),
}

fn main() -> ExitCode {
    if let Some(documented) = test::document() {
        return documented;
    }
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match task {
        Task::Setup => setup::everything(&workspace),
        Task::SetupEmbedder => setup::for_embedding(&workspace),
        Task::Build(options) => build::run(&workspace, &options),
        Task::Image(options) => image::run(&workspace, &options),
        Task::Release(options) => release::run(&workspace, &options),
        Task::Kernels(options) => kernels::run(&workspace, &options),
        Task::GpuBundle(options) => gpu_bundle::run(&workspace, &options),
        Task::Browser(options) => browser::run(&workspace, &options),
        Task::ConfigDocs(options) => config_docs::run(&workspace, &options),
        Task::Test => test::run(&workspace),
        Task::Circles => circles::check(&workspace),
        Task::Fuzz(options) => fuzz::run(&workspace, &options),
        Task::Demo(options) => demo::run(&workspace, &options),
        Task::Corpus(options) => corpus::run(&workspace, &options),
        Task::Vllm(options) => vllm::run(&workspace, &options),
    }
}

//! The arguments of `foreword compile-order`.

use clap::ValueEnum;
use foreword_ordering::order_table::Identity;
use foreword_simulation::Capacity;
use foreword_tools::{EmptyLog, compile_order};
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) const HELP: &str = "Lines of a log, in JSON: chat bodies with documents, or rankings (with --by id); see
`foreword replay --help`.

The module keeps documents' hashes, no text. It holds for documents that the log has; others stand behind them, in one
order of their own. Learn anew when many documents are new: the figures name the share that was known.

Exit codes: 0 done, 1 a file cannot be read or written, or a bad line with --strict, 2 bad arguments or an empty trace.";

/// What loads the module.
#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// A component for the middleware of smg and vllm-router
    Router,
    /// A proxy-wasm filter without shared data, calls and timers
    Proxy,
}

/// By what a document is known again.
#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// Its text, with title and id, as the engine's cache knows it
    Text,
    /// Its id, so that an edited document keeps its place
    Id,
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Logs of requests, one JSON object per line; several make one trace, in the order given
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File for the module
    #[arg(
        long,
        short,
        value_name = "FILE",
        default_value = "foreword-order.wasm"
    )]
    output: PathBuf,
    /// What loads the module
    #[arg(long, value_name = "TARGET", default_value = "router")]
    target: Target,
    /// The module without an order [default: foreword_order_component.wasm or foreword_order_filter.wasm beside this
    /// program]
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    module: Option<PathBuf>,
    /// By what a document is known again
    #[arg(long, value_name = "WHAT", default_value = "text")]
    by: By,
    /// The gateway's configuration of documents: its plugin configuration, or the `ordering` in it, in JSON. The module
    /// keeps it, without `head`
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Most documents in the module, the commonest of the log; each takes 12 bytes
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u32).range(1..=349_000))]
    max_documents: u32,
    /// Looks at documents while learning, in millions, twice; a thousand take 20 to 30 seconds on one core
    #[arg(long, value_name = "MILLIONS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    max_work: u64,
    /// Document tokens that the engine's cache holds, for the figures; 0: any number
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    cache_tokens: u64,
    /// Tokens in a page of the cache, for the figures; 1: exact
    #[arg(long, value_name = "TOKENS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    page_tokens: u32,
    /// Stop at the first bad line instead of skipping it
    #[arg(long)]
    strict: bool,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. A trace without requests counts as a wrong argument rather than a failure.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let module = arguments.module.unwrap_or_else(|| beside(arguments.target));
    let options = compile_order::Options {
        files: arguments.files,
        module,
        output: arguments.output,
        identity: match arguments.by {
            By::Text => Identity::Text,
            By::Id => Identity::Id,
        },
        ordering: arguments.ordering,
        max_documents: usize::try_from(arguments.max_documents).unwrap_or(usize::MAX),
        max_work: arguments.max_work.saturating_mul(1_000_000),
        capacity: Capacity {
            tokens: (arguments.cache_tokens > 0).then_some(arguments.cache_tokens),
            page_tokens: arguments.page_tokens,
        },
        strict: arguments.strict,
        json: arguments.json,
    };
    match compile_order::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::failed(&error, if error.is::<EmptyLog>() { 2 } else { 1 }),
    }
}

/// Returns the path of the target's module beside this program.
fn beside(target: Target) -> PathBuf {
    let name = match target {
        Target::Router => "foreword_order_component.wasm",
        Target::Proxy => "foreword_order_filter.wasm",
    };
    let program = std::env::current_exe().unwrap_or_default();
    program.with_file_name(name)
}

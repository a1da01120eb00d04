//! The binary `foreword`: arguments, logging, signals and exit codes. Everything else is in the libraries.
//!
//! Exit codes: 0 after a graceful stop, 1 for a failure, 2 for bad arguments or an empty trace, and 128 + n when a
//! second signal n cut the stop short.

mod cli;

use clap::{Parser, Subcommand};
use cli::{ended, failed, ingest, kv_bridge, measure, program, serve};
use foreword_tools::check::{self, Verdict};
use foreword_tools::{batch, doctor, evaluate, explain, index, ledger, replay};
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;

/// Foreword's host, which serves a language model and reuses what its prompts have in common, and the gateway's tools.
#[derive(Parser)]
#[command(name = "foreword", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model over HTTP, OpenAI-compatible
    #[command(after_help = cli::LOG_HELP)]
    Serve(Box<serve::Arguments>),
    /// Follow vLLM's KV events and tell gateways which documents the engine holds
    KvBridge(Box<kv_bridge::Arguments>),
    /// Report what ordering documents would save on a log of requests
    Replay(Box<replay::Options>),
    /// Report why the prompts of a log could not begin like earlier ones, and what would mend it
    Explain(explain::Options),
    /// Ask a model questions with documents in several orders, compare the answers, and write a report
    Evaluate(Box<evaluate::Options>),
    /// Ask an endpoint the requests of a file, in the order in which their prompts share most
    Batch(Box<batch::Options>),
    /// Make a context index of a log, for a gateway that orders by `context-index`
    Index(index::Options),
    /// Make an index of a folder's texts, or bring one up to date
    Ingest(ingest::Arguments),
    /// Measure what a device takes for prefill, decode and cached prefixes, without a server
    Measure(Box<measure::Arguments>),
    /// Report what was saved in tokens and money, from the gateway's access log
    Ledger(ledger::Options),
    /// Check whether the gateway's filter would accept a configuration
    CheckConfig(check::Options),
    /// Examine a running engine and gateway, and report what keeps prefixes from being reused
    Doctor(Box<doctor::Options>),
    /// Play a log of requests through the filter's module under wasmtime, and tell what it would do
    Rehearse(program::Arguments),
    /// Serve the gateway's filter over Envoy's external-processing protocol
    ExtProc(program::Arguments),
}

fn main() -> ExitCode {
    foreword_ordering::hash::set_key(RandomState::new().hash_one(0));
    match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(*arguments),
        Command::KvBridge(arguments) => {
            foreword_process::run::<Arguments>(arguments.log_format, kv_bridge::run(*arguments))
        }
        Command::Replay(options) => done(replay::run(&options)),
        Command::Explain(options) => done(explain::run(&options)),
        Command::Evaluate(options) => done(evaluate::run(&options)),
        Command::Batch(options) => {
            ended(batch::run(&options).map(|summary| match summary.failed {
                0 => ExitCode::SUCCESS,
                _ => ExitCode::from(3),
            }))
        }
        Command::Index(options) => done(index::run(&options)),
        Command::Ingest(arguments) => ingest::run(&arguments),
        Command::Measure(arguments) => measure::run(&arguments),
        Command::Ledger(options) => done(ledger::run(&options)),
        Command::CheckConfig(options) => match check::run(&options) {
            Ok(Verdict::Accepted) => ExitCode::SUCCESS,
            Ok(Verdict::Refused) => ExitCode::FAILURE,
            Err(error) => failed(&error, 2),
        },
        Command::Doctor(options) => {
            ended(
                doctor::run(&options).map(|examination| match examination.has_failure() {
                    true => ExitCode::from(3),
                    false => ExitCode::SUCCESS,
                }),
            )
        }
        Command::Rehearse(arguments) => program::REHEARSE.run(arguments),
        Command::ExtProc(arguments) => program::EXT_PROC.run(arguments),
    }
}

/// Returns the exit code of a command that only succeeds or fails.
fn done(result: anyhow::Result<()>) -> ExitCode {
    ended(result.map(|()| ExitCode::SUCCESS))
}

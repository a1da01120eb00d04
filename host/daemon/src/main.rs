//! The `foreword` binary: arguments, logging, signals and exit codes. Everything else is in the libraries.
//!
//! Exit codes: 0 after a graceful stop, 1 for a failure, 2 for bad arguments or an empty trace, and 128 + n when a
//! second signal n cut the stop short.

mod cli;

use clap::{Parser, Subcommand};
use cli::{
    batch, check_config, doctor, evaluate, explain, index, ingest, kv_bridge, ledger, measure,
    program, replay, serve,
};
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
    #[command(after_help = replay::HELP)]
    Replay(replay::Arguments),
    /// Report why the prompts of a log could not begin like earlier ones, and what would mend it
    #[command(after_help = explain::HELP)]
    Explain(explain::Arguments),
    /// Ask a model questions with documents in several orders, compare the answers, and write a report
    #[command(after_help = evaluate::HELP)]
    Evaluate(Box<evaluate::Arguments>),
    /// Ask an endpoint the requests of a file, in the order in which their prompts share most
    #[command(after_help = batch::HELP)]
    Batch(Box<batch::Arguments>),
    /// Make a context index of a log, for a gateway that orders by `context-index`
    #[command(after_help = index::HELP)]
    Index(index::Arguments),
    /// Make an index of a folder's texts, or bring one up to date
    Ingest(ingest::Arguments),
    /// Measure what a device takes for prefill, decode and cached prefixes, without a server
    Measure(Box<measure::Arguments>),
    /// Report what was saved in tokens and money, from the gateway's access log
    #[command(after_help = ledger::HELP)]
    Ledger(ledger::Arguments),
    /// Check whether the gateway's filter would accept a configuration
    #[command(after_help = check_config::HELP)]
    CheckConfig(check_config::Arguments),
    /// Examine a running engine and gateway, and report what keeps prefixes from being reused
    #[command(after_help = doctor::HELP)]
    Doctor(Box<doctor::Arguments>),
    /// Play a log of requests through the filter's module under wasmtime, and tell what it would do
    Rehearse(program::Arguments),
    /// Serve the gateway's filter over Envoy's external-processing protocol
    ExtProc(program::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(*arguments),
        Command::KvBridge(arguments) => {
            cli::until_signal(arguments.log_format, kv_bridge::run(*arguments))
        }
        Command::Replay(arguments) => replay::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Evaluate(arguments) => evaluate::run(*arguments),
        Command::Batch(arguments) => batch::run(*arguments),
        Command::Index(arguments) => index::run(arguments),
        Command::Ingest(arguments) => ingest::run(&arguments),
        Command::Measure(arguments) => measure::run(&arguments),
        Command::Ledger(arguments) => ledger::run(arguments),
        Command::CheckConfig(arguments) => check_config::run(&arguments),
        Command::Doctor(arguments) => doctor::run(*arguments),
        Command::Rehearse(arguments) => program::REHEARSE.run(arguments),
        Command::ExtProc(arguments) => program::EXT_PROC.run(arguments),
    }
}

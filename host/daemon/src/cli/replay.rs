//! The arguments of `foreword replay`.

use foreword_ordering::cuts::CacheKind;
use foreword_ordering::policy::{Place, Placement, PolicyKind};
use foreword_simulation::Capacity;
use foreword_tools::EmptyLog;
use foreword_tools::replay;
use foreword_tools::replay::BoundaryOptions;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) const HELP: &str = "Lines of a log, in JSON:
  an OpenAI chat body with documents, in `documents` or in tags, as the gateway finds them; or
  {\"query_id\": …, \"docs\": [ids, best first], \"tokens\": [of each document] or one number for each, or absent}; or
  {\"request\": either of these, \"tenant\": …, \"engine\": …}: see `foreword explain --help`

Exit codes: 0 done, 1 a file cannot be read or written, or a bad line with --strict, 2 bad arguments or an empty trace.
An unbounded cache takes up to 300 bytes of memory for every document of every request.";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Logs of requests, one JSON object per line; several make one trace, in the order given
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Document tokens that the engine's cache holds; 0: any number
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    cache_tokens: u64,
    /// Tokens in a page of the cache: matches are cut to whole pages; 1: exact
    #[arg(long, value_name = "TOKENS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    page_tokens: u32,
    /// Policies to compare, with commas between: retrieval, random, sorted, recency, greedy, context-index, longest,
    /// foresight [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = policy)]
    policies: Vec<PolicyKind>,
    /// Where the retriever's best documents stand: free, or last, first, ends or auto with their number, as in last:1
    /// [default: the configuration's]
    #[arg(long, value_name = "PLACE[:N]", value_parser = placement)]
    rank: Option<Placement>,
    /// Also weigh places for the retriever's best documents: what each brings in reuse, and what answers are expected to lose
    /// by a model's profile, which `foreword evaluate --profile` writes
    #[arg(long, value_name = "FILE")]
    rank_profile: Option<PathBuf>,
    /// Also plan every N requests together, as an offline batch: order of documents and of requests
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroU32>,
    /// Tokens of a document whose line does not state them
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    document_tokens: u32,
    /// The gateway's configuration of documents: its plugin configuration, or the `ordering` in it, in JSON. Bodies
    /// are stabilised by its `head` and `conversation`, with `report` counting as `apply` [default: every safe part]
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Also say what the prompts would have cost at an upstream with that kind of cache: anthropic, openai (from
    /// GPT-5.6 on) and bedrock match up to marked boundaries, units whole units of --page-tokens, prefix any prefix
    #[arg(long, value_name = "KIND", value_parser = cache_kind)]
    cache_kind: Option<CacheKind>,
    /// Prices by model, in JSON, as examples/cache-prices.json has them [default: published factors of a plain token's
    /// price]
    #[arg(long, value_name = "FILE", requires = "cache_kind")]
    prices: Option<PathBuf>,
    /// The model whose rules and prices count for every line [default: the one that the line names]
    #[arg(long, value_name = "NAME", requires = "cache_kind")]
    cache_model: Option<String>,
    /// Requests a minute where lines state no `time`
    #[arg(long, value_name = "N", requires = "cache_kind", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    cache_rate: u32,
    /// Seed of the random policy and of samples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stop at the first bad line instead of skipping it
    #[arg(long)]
    strict: bool,
    /// File for the report in HTML
    #[arg(long, value_name = "FILE", default_value = "replay-report.html")]
    report: PathBuf,
    /// Write no report
    #[arg(long, conflicts_with = "report")]
    no_report: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. A trace without requests counts as a bad argument, not as a failure.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let mut policies = arguments.policies;
    if policies.is_empty() {
        policies = PolicyKind::ALL.to_vec();
    }
    if arguments.cache_kind == Some(CacheKind::Units) && arguments.page_tokens == 1 {
        let error = anyhow::anyhow!("--cache-kind units needs the unit's size: --page-tokens");
        return super::failed(&error, 2);
    }
    let boundary = arguments.cache_kind.map(|kind| BoundaryOptions {
        kind,
        prices: arguments.prices,
        model: arguments.cache_model,
        per_minute: arguments.cache_rate,
    });
    let options = replay::Options {
        files: arguments.files,
        capacity: Capacity {
            tokens: (arguments.cache_tokens > 0).then_some(arguments.cache_tokens),
            page_tokens: arguments.page_tokens,
        },
        policies,
        rank: arguments.rank,
        rank_profile: arguments.rank_profile,
        batch: arguments.batch,
        seed: arguments.seed,
        document_tokens: arguments.document_tokens,
        strict: arguments.strict,
        ordering: arguments.ordering,
        boundary,
        report: (!arguments.no_report).then_some(arguments.report),
        json: arguments.json,
    };
    match replay::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::failed(&error, if error.is::<EmptyLog>() { 2 } else { 1 }),
    }
}

fn cache_kind(name: &str) -> Result<CacheKind, String> {
    let names = CacheKind::ALL.map(CacheKind::name).join(", ");
    CacheKind::by_name(name).ok_or(format!("it must be one of {names}"))
}

fn placement(text: &str) -> Result<Placement, String> {
    let (place, documents) = text.split_once(':').unwrap_or((text, "1"));
    let names = Place::ALL.map(Place::name).join(", ");
    Ok(Placement {
        place: Place::by_name(place).ok_or(format!("the place must be one of {names}"))?,
        documents: (documents.parse().ok())
            .filter(|documents| *documents > 0)
            .ok_or("the number of documents must be 1 to 65535")?,
    })
}

fn policy(name: &str) -> Result<PolicyKind, String> {
    let names = PolicyKind::ALL.map(PolicyKind::name).join(", ");
    PolicyKind::by_name(name).ok_or(format!("it must be one of {names}"))
}

//! `foreword replay`: reports what ordering would save on a log of requests, before anything is deployed.
//!
//! ```text
//!  FILE… ──lines──▶ read ──▶ trace ──┬─▶ bound                    ┌─▶ table or JSON
//!            │                       ├─▶ simulate, per policy ────┼─▶ report (plots)
//!            │                       └─▶ frontier, if requested ──┤
//!            ├──bodies─▶ whole prompts, per policy, and causes ───┤
//!            └──bodies─▶ caches with boundaries, if requested ────┘
//! ```
//!
//! Decisions are those of the gateway, since [`foreword_simulation`] uses the ordering core; it also simulates the
//! engine's cache. Only documents' ids, fingerprints and token counts are stored, and the output contains no document's
//! text. Whole prompts are replayed by reading the log again for each policy (`whole`). No model or engine is needed.

mod boundary;
mod figures;
mod frontier;
mod plots;
pub(crate) mod prices;
mod read;
mod report;
pub(crate) mod simulate;
pub(crate) mod whole;

use crate::evaluate::RankProfile;
use crate::options::named;
use anyhow::Result;
use figures::Figures;
use foreword_ordering::config::RawPolicyOptions;
use foreword_ordering::cuts::CacheKind;
use foreword_ordering::policy::{Place, Placement, PolicyKind};
use foreword_ordering::{Config, RawConfig};
use foreword_report::{files, log, progress};
use foreword_simulation::{Bound, Capacity};
use frontier::Frontier;
use serde_json::json;
use std::num::NonZeroU32;
use std::path::PathBuf;

const HELP: &str = "Lines of a log, in JSON:
  an OpenAI chat body with documents, in `documents` or in tags, as the gateway finds them; or
  {\"query_id\": …, \"docs\": [ids, best first], \"tokens\": [of each document] or one number for each, or absent}; or
  {\"request\": either of these, \"tenant\": …, \"engine\": …}: see `foreword explain --help`

Exit codes: 0 done, 1 a file cannot be read or written, or a bad line with --strict, 2 bad arguments or an empty trace.
An unbounded cache takes up to 300 bytes of memory for every document of every request.";

/// The command-line options of `foreword replay`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
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
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = named(PolicyKind::ALL, PolicyKind::name))]
    policies: Vec<PolicyKind>,
    /// Where the retriever's best documents stand: free, or last, first, ends or auto with their number, as in last:1
    /// [default: the configuration's]
    #[arg(long, value_name = "PLACE[:N]", value_parser = placement)]
    rank: Option<Placement>,
    /// Also weigh places for the retriever's best documents: what each brings in reuse, and what answers are expected
    /// to lose by a model's profile, which `foreword evaluate --profile` writes
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
    #[arg(long, value_name = "KIND", value_parser = named(CacheKind::ALL, CacheKind::name))]
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

impl Options {
    /// Returns the size of the engine's cache that is simulated.
    fn capacity(&self) -> Capacity {
        Capacity::stated(self.cache_tokens, self.page_tokens)
    }

    /// Returns the policies to compare, in the order of the results' table.
    fn policies(&self) -> &[PolicyKind] {
        match &*self.policies {
            [] => &PolicyKind::ALL,
            policies => policies,
        }
    }
}

/// Simulates the log's requests under each ordering policy (nothing is sent), prints the results to standard output,
/// and writes the HTML report.
///
/// # Errors
/// Returns an error if a file cannot be read or written, for a bad line with `--strict`, and
/// [`BadInput`](log::BadInput) for unsuitable options or a log without documents.
pub fn run(options: &Options) -> Result<()> {
    if options.cache_kind == Some(CacheKind::Units) && options.page_tokens == 1 {
        let wrong = "--cache-kind units needs the unit's size: --page-tokens";
        return Err(log::BadInput(wrong.to_owned()).into());
    }
    log::check_rereadable(&options.files)?;
    let names = log::names(&options.files);
    let ordering = whole::Ordered::of(options)?;
    let read = read::read(options, Config::try_from(ordering.as_came()?)?)?;
    read.tell();
    if read.trace.requests() == 0 {
        let empty = read.counts.without_documents("trace", &options.files);
        return Err(empty.into());
    }
    let trace = read.trace;
    let bar = progress::bar("upper bound", trace.parts().count())?;
    let (page_tokens, capacity) = (options.page_tokens, options.capacity());
    let bound = Bound::of(&trace, options.seed, page_tokens, |done| {
        if done % progress::STRIDE == 0 {
            bar.set_position(done as u64);
        }
    });
    bar.finish_and_clear();
    let configured = ordering.raw(&json!({}))?;
    let config = |kind: PolicyKind| -> Result<_> {
        let raw = RawConfig {
            policy: kind.name().into(),
            policy_options: RawPolicyOptions {
                seed: options.seed,
                block_tokens: page_tokens,
                window: RawPolicyOptions::default().window,
                max_displacement: None,
                ..configured.policy_options.clone()
            },
            rank: configured.rank.clone(),
            ..RawConfig::default()
        };
        Ok(Config::try_from(raw)?)
    };
    let profile = options.rank_profile.as_deref().map(RankProfile::read);
    let frontier = match profile.transpose()? {
        Some(profile) => Some(Frontier::new(&trace, capacity, &profile, config)?),
        None => None,
    };
    let policy = |kind| Ok::<_, anyhow::Error>(config(kind)?.policy());
    let policies = options.policies().iter();
    let outcomes = policies.map(|&kind| simulate::replay(&trace, kind, policy(kind)?, capacity));
    let mut outcomes = outcomes.collect::<Result<Vec<_>>>()?;
    let whole = whole::replay(options)?;
    for (outcome, prompts) in outcomes.iter_mut().zip(whole.came) {
        outcome.prompts = Some(prompts);
    }
    let boundary = (options.cache_kind).map(|kind| boundary::replay(options, kind));
    let boundary = boundary.transpose()?;
    if let Some(window) = options.batch {
        let window = usize::try_from(window.get())?;
        let placement = config(PolicyKind::Longest)?.policy_options().placement;
        let batches = simulate::replay_batches(&trace, window, capacity, placement);
        outcomes.push(batches?);
    }
    let figures = Figures {
        trace: names,
        requests: trace.requests(),
        documents: trace.documents(),
        skipped: read.counts.bad,
        capacity,
        bound,
        outcomes,
        stabilised: whole.stabilised,
        causes: whole.causes,
        boundary,
        frontier,
    };
    if !options.no_report {
        files::write_report(&options.report, &report::page(&figures)?)?;
    }
    files::show(options.json, || figures.to_json(), || figures.to_table())
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

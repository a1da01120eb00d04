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
//! [`foreword_simulation`] determines the meaning of lines, the orders and the engine's cache, so decisions here equal
//! those at the gateway. Texts are dropped after each line: only documents' ids, fingerprints and token counts are stored,
//! and the output contains no document's text. Whole prompts read the log once more for each policy (`whole`). No model,
//! engine or network is involved.

mod boundary;
mod figures;
mod frontier;
mod plots;
pub(crate) mod prices;
mod read;
mod report;
pub(crate) mod simulate;
pub(crate) mod whole;

pub use boundary::BoundaryOptions;

use crate::evaluate::RankProfile;
use crate::{files, log};
use anyhow::Result;
use figures::Figures;
use foreword_ordering::config::RawPolicyOptions;
use foreword_ordering::policy::{Placement, PolicyKind};
use foreword_ordering::{Config, RawConfig};
use foreword_report::progress;
use foreword_simulation::{Bound, Capacity};
use frontier::Frontier;
use serde_json::json;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The options of a replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// Logs, which are read one after another.
    pub files: Vec<PathBuf>,
    /// Capacity of the simulated engine's cache.
    pub capacity: Capacity,
    /// Policies, in the order of the table.
    pub policies: Vec<PolicyKind>,
    /// The placement of the best documents; `None` for the configuration's.
    pub rank: Option<Placement>,
    /// File with a model's rank profile, for the expected loss of each placement.
    pub rank_profile: Option<PathBuf>,
    /// Window of requests that are also planned together, as an offline batch; `None` for no batches.
    pub batch: Option<NonZeroU32>,
    /// Seed of the `random` policy and of the upper bound's sample.
    pub seed: u64,
    /// Tokens of a document whose line does not state them.
    pub document_tokens: u32,
    /// Whether the first bad line ends the replay.
    pub strict: bool,
    /// File with the gateway's `ordering`, for stabilised prompts.
    pub ordering: Option<PathBuf>,
    /// The cache with boundaries that the log is also replayed against, if any.
    pub boundary: Option<BoundaryOptions>,
    /// File for the report.
    pub report: Option<PathBuf>,
    /// Whether standard output gets JSON instead of a table.
    pub json: bool,
}

/// Replays, prints the results to standard output and writes the report.
///
/// # Errors
/// Returns an error if a file cannot be read or written, for a bad line when strict, or [`EmptyLog`](crate::EmptyLog).
pub fn run(options: &Options) -> Result<()> {
    let names = log::names(&options.files);
    let read = read::read(options)?;
    read.tell();
    if read.trace.requests() == 0 {
        return Err(read.counts.empty("trace", &options.files).into());
    }
    let trace = read.trace;
    let bar = progress::bar("upper bound", trace.parts().count())?;
    let page_tokens = options.capacity.page_tokens;
    let bound = Bound::in_pages(&trace, options.seed, page_tokens, |done| {
        if done % progress::STRIDE == 0 {
            bar.set_position(done as u64);
        }
    });
    bar.finish_and_clear();
    let configured = whole::Ordered::of(options)?.raw(&json!({}))?;
    let config = |kind: PolicyKind| -> Result<_> {
        let configured_options = &configured.policy_options;
        let raw = RawConfig {
            policy: kind.name().into(),
            policy_options: RawPolicyOptions {
                seed: options.seed,
                block_tokens: page_tokens,
                max_contexts: configured_options.max_contexts,
                history: configured_options.history.clone(),
                forget_evicted: configured_options.forget_evicted,
                ..RawPolicyOptions::default()
            },
            rank: configured.rank.clone(),
            ..RawConfig::default()
        };
        Ok(Config::try_from(raw)?)
    };
    let profile = options.rank_profile.as_deref().map(RankProfile::read);
    let frontier = match profile.transpose()? {
        Some(profile) => Some(Frontier::new(&trace, options.capacity, &profile, config)?),
        None => None,
    };
    let policy = |kind| Ok::<_, anyhow::Error>(config(kind)?.policy());
    let mut outcomes = options
        .policies
        .iter()
        .map(|&kind| simulate::replay(&trace, kind, policy(kind)?, options.capacity))
        .collect::<Result<Vec<_>>>()?;
    let whole = whole::replay(options)?;
    for (outcome, prompts) in outcomes.iter_mut().zip(whole.came) {
        outcome.prompts = Some(prompts);
    }
    let boundary = options.boundary.as_ref();
    let boundary = boundary.map(|boundary| boundary::replay(options, boundary));
    let boundary = boundary.transpose()?;
    if let Some(window) = options.batch {
        let window = usize::try_from(window.get())?;
        let placement = config(PolicyKind::Longest)?.policy_options().placement;
        outcomes.push(simulate::replay_batches(
            &trace,
            window,
            options.capacity,
            placement,
        )?);
    }
    let figures = Figures {
        trace: names,
        requests: trace.requests(),
        documents: trace.documents(),
        skipped: read.counts.bad,
        capacity: options.capacity,
        bound,
        outcomes,
        stabilised: whole.stabilised,
        causes: whole.causes,
        boundary,
        frontier,
    };
    let printed = if options.json {
        figures.to_json() + "\n"
    } else {
        figures.to_table()
    };
    if let Some(path) = &options.report {
        files::write_report(path, &report::page(&figures)?)?;
    }
    files::print(&printed)
}

//! Replays whole prompts under each policy, with original and with stabilised heads (system text and tools), and
//! diagnoses lost reuse.
//!
//! ```text
//!   line ──▶ orderer (policy, head, conversation) ──▶ prompt ──▶ engine's cache      once for each policy
//!     └────▶ index ──▶ cause                                                         once
//! ```
//!
//! The log is read again for each policy, so a thread needs memory for only one ordering core and one simulated cache.

use super::Options;
use super::simulate::{self, PolicyOutcome, nanos};
use crate::explain::causes::Causes;
use crate::explain::lines::Explaining;
use crate::options::gateway_configuration;
use anyhow::{Context, Result};

use foreword_ordering::head::Limits;
use foreword_ordering::policy::{Placement, PolicyKind};
use foreword_ordering::{Config, RawConfig, Skip};
use foreword_report::log::{self, OnBad};
use foreword_simulation::{
    BadLine, Capacity, LogReader, Logged, LoggedKind, PromptReplay, PromptReuse,
};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The results of simulating the whole prompts of a log, not only their documents.
pub(super) struct Whole {
    /// Reuse (prompt tokens found in the simulated cache) under the configuration of [`Ordered::as_came`]: heads
    /// (system text and tools) stay as clients send them. One entry for each policy, in the order of the results'
    /// table.
    pub(super) came: Vec<PromptReuse>,
    /// Results for the same prompts under the configuration of [`Ordered::stabilised`]: texts in heads (system text and
    /// tools) that change between requests are moved, kept at their first value or removed. One entry for each policy,
    /// in the order of the results' table.
    pub(super) stabilised: Vec<PolicyOutcome>,
    /// The causes of lost reuse among the prompts as the clients sent them, such as a changed tool list, each with the
    /// number of tokens that had to be computed again.
    pub(super) causes: Causes,
}

/// Simulates the whole prompts (not only the documents) of the log of `options` under each ordering policy: with heads
/// (system text and tools) as clients send them, and with stabilised heads. Also finds the causes of lost reuse.
/// Nothing is sent.
///
/// # Errors
/// Returns an error if a file cannot be read, or the configuration is not valid.
pub(super) fn replay(options: &Options) -> Result<Whole> {
    let ordering = Ordered::of(options)?;
    let (came, stabilised) = (ordering.as_came()?, ordering.stabilised()?);
    let of = |raw| options.policies().iter().map(move |&kind| (kind, raw));
    let jobs: Vec<(PolicyKind, &RawConfig)> = of(&came).chain(of(&stabilised)).collect();
    let input = Input {
        files: &options.files,
        capacity: options.capacity(),
        document_tokens: options.document_tokens,
    };
    let policies = options.policies().len();
    let replayed = || {
        let outcomes = jobs.par_iter().enumerate().map(|(at, (kind, raw))| {
            let is_stabilised = at >= policies;
            prompts(&input, *kind, raw, is_stabilised)
        });
        outcomes.collect::<Result<Vec<PolicyOutcome>>>()
    };
    let (causes, outcomes) = rayon::join(|| causes(options, &came), replayed);
    let (causes, mut outcomes) = (causes?, outcomes?);
    let stabilised = outcomes.split_off(policies);
    let came = outcomes.into_iter().filter_map(|outcome| outcome.prompts);
    Ok(Whole {
        came: came.collect(),
        stabilised,
        causes,
    })
}

/// A log to simulate, and the size of the simulated cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'i> {
    pub(crate) files: &'i [PathBuf],
    pub(crate) capacity: Capacity,
    /// Number of tokens assumed for a document for which the log's line states none.
    pub(crate) document_tokens: u32,
}

/// Simulates the log's whole prompts under the policy `kind` and the configuration `raw`. `is_stabilised` must be true
/// if the configuration stabilises prompts' heads (system text and tools): then bodies are rewritten even under the
/// policy that keeps the retriever's order.
///
/// # Errors
/// Returns an error if a file cannot be read, or the configuration is not valid.
pub(crate) fn prompts(
    input: &Input<'_>,
    kind: PolicyKind,
    raw: &RawConfig,
    is_stabilised: bool,
) -> Result<PolicyOutcome> {
    let reader = LogReader::new(input.document_tokens);
    let mut replay = PromptReplay::new(raw.clone(), kind, input.capacity)?;
    if is_stabilised {
        replay.order_all();
    }
    let mut nanoseconds = Vec::new();
    let name = match is_stabilised {
        true => "stabilised",
        false => "prompts",
    };
    log::read(input.files, name, OnBad::Count, |_, line| {
        Ok(served(&mut replay, &reader, line, &mut nanoseconds)?)
    })?;
    let reuse = replay.reuse();
    Ok(simulate::whole(kind.name(), reuse, nanoseconds))
}

/// Simulates one line of the log: orders its documents as the gateway would, looks the resulting prompt up in the
/// simulated cache and adds it, and adds the time of the decision to `nanoseconds`.
fn served(
    replay: &mut PromptReplay,
    reader: &LogReader,
    line: &[u8],
    nanoseconds: &mut Vec<u32>,
) -> Result<(), BadLine> {
    let logged = Logged::read(line)?;
    if logged.kind()? == LoggedKind::Ranking {
        for part in reader.parts(&logged)? {
            let began = Instant::now();
            let order = replay.decide_ranking(&part);
            nanoseconds.push(nanos(began.elapsed()));
            replay.serve_ranking(&part, &order);
        }
        return Ok(());
    }
    let began = Instant::now();
    let sent = match replay.decide(&logged) {
        // The gateway forwards such a body as it came.
        Err(Skip::TooManyDocuments { .. }) => None,
        sent => sent.map_err(BadLine::Body)?,
    };
    nanoseconds.push(nanos(began.elapsed()));
    (replay.serve(&logged, sent.as_deref())).map_err(BadLine::Body)
}

/// Returns, summed over the log, the reasons why prompts as clients sent them did not reuse the prefix of an earlier
/// prompt, with the tokens that had to be computed again. `came` is the configuration that says how documents are found
/// in a body.
fn causes(options: &Options, came: &RawConfig) -> Result<Causes> {
    let mut explaining = Explaining::new(
        Limits::LOG.requests,
        options.page_tokens,
        options.document_tokens,
        Config::try_from(came.clone())?.with_most_documents(),
    );
    let mut causes = Causes::default();
    log::read(&options.files, "causes", OnBad::Count, |_, line| {
        let diagnosis = explaining.line(line)?;
        causes.add(&diagnosis);
        Ok(())
    })?;
    Ok(causes)
}

/// The gateway's `ordering` configuration as JSON. The configurations of a simulation are derived from it.
pub(crate) struct Ordered {
    value: Value,
    /// True if the configuration comes from a file.
    is_given: bool,
}

impl Ordered {
    /// Reads `file`, which contains the gateway's `ordering` or a whole plugin configuration with it. If `file` is
    /// `None`, the configuration is empty.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not such a configuration.
    pub(crate) fn read(file: Option<&Path>) -> Result<Self> {
        let Some(file) = file else {
            return Ok(Self {
                value: json!({}),
                is_given: false,
            });
        };
        let context = || gateway_configuration(file);
        let text = std::fs::read(file).with_context(context)?;
        let mut value: Value = if text.trim_ascii().is_empty() {
            json!({})
        } else {
            serde_json::from_slice(&text).with_context(context)?
        };
        if let Some(ordering) = value.get_mut("ordering") {
            value = ordering.take();
        }
        let found = Self {
            value,
            is_given: true,
        };
        let raw = found.raw(&json!({})).with_context(context)?;
        Config::try_from(raw).with_context(context)?;
        Ok(found)
    }

    /// Reads the gateway's `ordering` from the file of `--ordering`, with the placement of `--rank` if that is given.
    ///
    /// # Errors
    /// Returns the errors of [`Ordered::read`].
    pub(super) fn of(options: &Options) -> Result<Self> {
        let mut found = Self::read(options.ordering.as_deref())?;
        if let Some(Placement { place, documents }) = options.rank {
            let rank = json!({"rank": {"place": place.name(), "documents": documents.max(1)}});
            merge(&mut found.value, &rank);
        }
        Ok(found)
    }

    /// Returns whether the configuration comes from a file.
    pub(crate) fn is_given(&self) -> bool {
        self.is_given
    }

    /// Returns the ordering policy that the configuration names, or else the default.
    ///
    /// # Errors
    /// Returns the errors of [`Ordered::raw`], or an error if there is no such policy.
    pub(crate) fn policy(&self) -> Result<PolicyKind> {
        let raw = self.raw(&json!({}))?;
        PolicyKind::by_name(&raw.policy).context("there is no such policy")
    }

    /// Returns the configuration with the fields of `changes` merged into it.
    ///
    /// # Errors
    /// Returns an error if the result is not a valid configuration.
    pub(crate) fn raw(&self, changes: &Value) -> Result<RawConfig> {
        let mut value = self.value.clone();
        merge(&mut value, changes);
        Ok(RawConfig::from_json(value.to_string().as_bytes())?)
    }

    /// Returns the configuration with two changes: prompts' heads (system text and tools) stay as clients send them,
    /// and documents that a client no longer sends are not repeated in later requests of the chat ("pinned").
    ///
    /// # Errors
    /// Returns the errors of [`Ordered::raw`].
    pub(crate) fn as_came(&self) -> Result<RawConfig> {
        self.raw(&json!({"head": {"mode": "off"}, "conversation": {"pin": false}}))
    }

    /// Returns the configuration, changed so that it stabilises prompts' heads (system text and tools):
    /// (1) Without a file, `head.mode` becomes `apply`, and documents are pinned (kept in the turn of the chat in which
    /// they were first sent).
    /// (2) With a file, `head.mode` becomes `apply` unless the file says `off`.
    ///
    /// # Errors
    /// Returns the errors of [`Ordered::raw`].
    pub(crate) fn stabilised(&self) -> Result<RawConfig> {
        let is_off = self.value["head"]["mode"] == "off";
        self.raw(&match (self.is_given, is_off) {
            (false, _) => json!({"head": {"mode": "apply"}, "conversation": {"pin": true}}),
            (true, true) => json!({}),
            (true, false) => json!({"head": {"mode": "apply"}}),
        })
    }
}

/// Merges the fields of `changes` into `value`, recursively for objects; any other value replaces the one in `value`.
fn merge(value: &mut Value, changes: &Value) {
    match (value, changes) {
        (Value::Object(value), Value::Object(changes)) => {
            for (name, change) in changes {
                merge(value.entry(name.clone()).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change.clone(),
    }
}

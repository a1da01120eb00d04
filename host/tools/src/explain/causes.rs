//! Sums up, over a log, the causes for which requests could not reuse an earlier prompt's prefix.

use foreword_ordering::head::{Cause, Diagnosis, SegmentKind, Volatile};
use foreword_report::words::{grouped, percent, section};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The sum of many requests' diagnoses: for each cause of cache misses, the number of requests and of tokens lost
/// (computed although an earlier prompt contained them).
#[derive(Clone, Debug, Default)]
pub(crate) struct Causes {
    /// Number of requests whose diagnoses were added.
    pub(crate) requests: u64,
    /// Estimated tokens of all prompts together.
    pub(crate) prompt_tokens: u64,
    /// Estimated tokens, over all requests, of the prefixes that prompts share with earlier prompts and so can reuse.
    pub(crate) reused_tokens: u64,
    by_cause: BTreeMap<Key, Sum>,
}

/// A cause of cache misses, the name of the part of the prompt (system text, tools, a document, …) in which it is, and
/// for a changing value its kind, such as a date or an id.
type Key = (Cause, &'static str, Option<Volatile>);

/// The cost of a cause of cache misses: the number of requests that it affected, and their lost tokens (computed
/// although an earlier prompt contained them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) requests: u64,
    /// Number of prompt tokens, over these requests, that the engine had to compute although an earlier prompt
    /// contained them.
    pub(crate) tokens: u64,
}

/// A cause of cache misses, the part of the prompt in which it is, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) cause: Cause,
    /// Name of the part of the prompt (system text, tools, a document, …) in which the cause is; `request` for a
    /// difference outside the prompt, such as the model.
    pub(crate) segment: &'static str,
    pub(crate) volatile: Option<Volatile>,
    pub(crate) sum: Sum,
}

impl Causes {
    /// Adds the diagnosis of one request to the sums.
    pub(crate) fn add(&mut self, diagnosis: &Diagnosis) {
        self.requests += 1;
        self.prompt_tokens += diagnosis.prompt_tokens;
        self.reused_tokens += diagnosis.reused_tokens;
        let segment = segment_name(diagnosis.segment);
        let key = (diagnosis.cause, segment, diagnosis.volatile);
        let sum = self.by_cause.entry(key).or_default();
        sum.requests += 1;
        sum.tokens += diagnosis.lost_tokens;
    }

    /// Returns the number of prompt tokens, over all causes, that had to be computed although an earlier prompt
    /// contained them.
    pub(crate) fn lost_tokens(&self) -> u64 {
        self.by_cause.values().map(|sum| sum.tokens).sum()
    }

    /// Returns each cause of cache misses with its number of requests and lost tokens, the costliest first.
    /// [`Cause::None`] and [`Cause::FirstSeen`], which lose no tokens, are left out.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let rows = self.by_cause.iter();
        let rows = rows.map(|(&(cause, segment, volatile), &sum)| Row {
            cause,
            segment,
            volatile,
            sum,
        });
        let mut rows: Vec<Row> = rows.filter(|row| !row.cause.is_none()).collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.sum.tokens, row.sum.requests)));
        rows
    }

    /// Returns the number of requests that were diagnosed with `cause`. This method is meant for [`Cause::None`] and
    /// [`Cause::FirstSeen`], which cost nothing and are not in [`Causes::rows`].
    pub(crate) fn quiet(&self, cause: Cause) -> u64 {
        let all = self.by_cause.iter();
        let alike = all.filter(|((known, ..), _)| *known == cause);
        alike.map(|(_, sum)| sum.requests).sum()
    }

    /// Returns [`Causes::rows`] as JSON objects: `{"segment", "cause", "requests", "tokens"}`, and `volatile` with the
    /// kind of a changing value.
    pub(crate) fn to_json(&self) -> Vec<Value> {
        self.rows().into_iter().map(Row::to_json).collect()
    }

    /// Returns [`Causes::rows`] as lines for a terminal, with a heading; empty if there are none.
    pub(crate) fn to_table(&self) -> String {
        let lines = self.rows().into_iter().map(|row| {
            let (name, segment) = (row.name(), row.segment);
            let (requests, tokens) = (grouped(row.sum.requests), grouped(row.sum.tokens));
            let share = percent(self.share(row.sum.tokens));
            format!("{name:<26}{segment:<11}{requests:>9}{tokens:>15}{share:>9}")
        });
        let heading = "why prefixes broke        segment     requests    tokens lost   of all";
        section(heading, lines)
    }

    /// Returns `tokens` as a fraction (0 to 1) of the tokens of all prompts.
    pub(crate) fn share(&self, tokens: u64) -> f64 {
        match self.prompt_tokens {
            0 => 0.0,
            all => tokens as f64 / all as f64,
        }
    }
}

impl Row {
    /// Returns the cause's name, followed by the kind of a changing value in brackets, if there is one.
    pub(crate) fn name(&self) -> String {
        match self.volatile {
            Some(kind) => format!("{} ({})", self.cause.name(), kind.name()),
            None => self.cause.name().to_owned(),
        }
    }

    pub(crate) fn to_json(self) -> Value {
        let mut row = json!({
            "segment": self.segment,
            "cause": self.cause.name(),
            "requests": self.sum.requests,
            "tokens": self.sum.tokens,
        });
        if let Some(kind) = self.volatile {
            row["volatile"] = kind.name().into();
        }
        row
    }
}

/// Returns the name of a part of the prompt; `request` for `None`, a difference outside the prompt.
pub(crate) fn segment_name(segment: Option<SegmentKind>) -> &'static str {
    segment.map_or("request", SegmentKind::name)
}

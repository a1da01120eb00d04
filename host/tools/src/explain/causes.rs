//! Sums up the causes of cache misses over a log.

use foreword_ordering::head::{Cause, Diagnosis, SegmentKind, Volatile};
use foreword_report::words::{grouped, percent, section};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The summed diagnoses of many requests: for each cause of a cache miss, the number of requests and the tokens lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Causes {
    /// Number of diagnosed requests.
    pub(crate) requests: u64,
    /// Estimated tokens of all prompts together.
    pub(crate) prompt_tokens: u64,
    /// Number of prompt tokens that were reused: the prefixes that the prompts share with earlier ones.
    pub(crate) reused_tokens: u64,
    by_cause: BTreeMap<Key, Sum>,
}

/// A cause, the segment of the prompt in which it is, and for a changing value its kind, such as a date or an id.
type Key = (Cause, &'static str, Option<Volatile>);

/// The cost of a cause of cache misses: requests, and lost tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) requests: u64,
    /// Tokens that were computed although an earlier prompt contained them.
    pub(crate) tokens: u64,
}

/// A cause of cache misses, the segment of the prompt in which it is, and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) cause: Cause,
    /// Name of the segment; `request` for a difference outside the prompt, such as the model.
    pub(crate) segment: &'static str,
    pub(crate) volatile: Option<Volatile>,
    pub(crate) sum: Sum,
}

impl Causes {
    /// Adds a request's diagnosis.
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

    /// Returns the lost tokens of all causes.
    pub(crate) fn lost_tokens(&self) -> u64 {
        self.by_cause.values().map(|sum| sum.tokens).sum()
    }

    /// Returns the causes by which requests lost tokens, the costliest first.
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

    /// Returns the number of requests that were diagnosed with `cause`: [`Cause::None`] or [`Cause::FirstSeen`], which
    /// cost nothing and have no row.
    pub(crate) fn quiet(&self, cause: Cause) -> u64 {
        let all = self.by_cause.iter();
        let alike = all.filter(|((known, ..), _)| *known == cause);
        alike.map(|(_, sum)| sum.requests).sum()
    }

    /// Returns the rows as JSON: `{"segment", "cause", "requests", "tokens"}`, and `volatile` if there is a kind.
    pub(crate) fn to_json(&self) -> Vec<Value> {
        self.rows().into_iter().map(Row::to_json).collect()
    }

    /// Returns the rows as lines for a terminal; empty if there are none.
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

    /// Returns `tokens` as a fraction (0 to 1) of all prompts' tokens.
    pub(crate) fn share(&self, tokens: u64) -> f64 {
        match self.prompt_tokens {
            0 => 0.0,
            all => tokens as f64 / all as f64,
        }
    }
}

impl Row {
    /// Returns the cause's name, followed by the kind of value in brackets.
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

/// Returns the segment's name; `request` for a difference outside the prompt.
pub(crate) fn segment_name(segment: Option<SegmentKind>) -> &'static str {
    segment.map_or("request", SegmentKind::name)
}

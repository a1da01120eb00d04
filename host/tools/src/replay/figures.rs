//! The results of `foreword replay`, as JSON and as a table.

use super::boundary::Boundary;
use super::frontier::Frontier;
use super::simulate::PolicyOutcome;
use crate::explain::causes::Causes;
use foreword_ordering::policy::PolicyKind;
use foreword_report::words::{grouped, percent, rounded, section};
use foreword_simulation::{Bound, Capacity};
use serde_json::{Value, json};
use std::fmt::Write;

/// The results of `foreword replay`.
#[derive(Debug)]
pub(super) struct Figures {
    /// Names of the log's files, joined with commas.
    pub(super) trace: String,
    pub(super) requests: usize,
    /// Number of distinct documents in the log.
    pub(super) documents: usize,
    /// Number of bad lines, which were left out.
    pub(super) skipped: u64,
    pub(super) capacity: Capacity,
    pub(super) bound: Bound,
    /// Results of simulating the requests under each ordering policy, counting only their documents; at least one. With
    /// `--batch`, also the results of batches planned together.
    pub(super) outcomes: Vec<PolicyOutcome>,
    /// Results of simulating whole prompts, not only their documents, for each policy, with stabilised heads: texts in
    /// system text and tools that change between requests are moved, kept at their first value or removed.
    pub(super) stabilised: Vec<PolicyOutcome>,
    /// The causes of lost reuse among the prompts as the clients sent them, such as a changed tool list, each with the
    /// number of tokens that had to be computed again.
    pub(super) causes: Causes,
    /// The cost of the prompts at an upstream whose cache matches only up to boundaries (cache markers, or units of
    /// tokens); `None` without `--cache-kind`.
    pub(super) boundary: Option<Boundary>,
    /// Reuse and expected loss of answer quality for each way to place the retriever's best documents; `None` without
    /// `--rank-profile`.
    pub(super) frontier: Option<Frontier>,
}

impl Figures {
    /// Returns the results in retrieval order (the documents as the client sends them), which is without Foreword;
    /// `None` if the policy `retrieval` was not requested.
    pub(super) fn baseline(&self) -> Option<&PolicyOutcome> {
        let name = PolicyKind::Retrieval.name();
        self.outcomes.iter().find(|outcome| outcome.name == name)
    }

    /// Returns the results of the policy with the most document tokens reused; the first one if several have equally
    /// many.
    pub(super) fn best(&self) -> Option<&PolicyOutcome> {
        let reused = |outcome: &&PolicyOutcome| outcome.reuse.reused_tokens;
        self.outcomes.iter().rev().max_by_key(reused)
    }

    /// Returns the results as one JSON object.
    pub(super) fn to_json(&self) -> String {
        let mut figures = json!({
            "trace": self.trace,
            "requests": self.requests,
            "documents": self.documents,
            "skipped": self.skipped,
            "cache_tokens": self.capacity.tokens.unwrap_or(0),
            "page_tokens": self.capacity.page_tokens,
            "upper_bound": rounded(self.bound.share, 1e6),
            "upper_bound_sampled": self.bound.sampled,
            "policies": entries(&self.outcomes),
            "causes": self.causes.to_json(),
            "stabilised": {"policies": entries(&self.stabilised)},
        });
        if let Some(boundary) = &self.boundary {
            figures["boundary"] = boundary.to_json();
        }
        if let Some(frontier) = &self.frontier {
            figures["frontier"] = frontier.to_json();
        }
        figures.to_string()
    }

    /// Returns the results as lines for a terminal.
    pub(super) fn to_table(&self) -> String {
        let mut table = format!(
            "{} requests, {} documents; {}\n\n\
             policy          reused    tokens reused  tokens computed      mean       p99\n",
            grouped(self.requests as u64),
            grouped(self.documents as u64),
            self.cache(),
        );
        for outcome in &self.outcomes {
            let [share, reused, computed, mean, p99] = cells(outcome);
            let name = outcome.name;
            let _ = writeln!(
                table,
                "{name:<14}{share:>8}{reused:>17}{computed:>17}{mean:>10}{p99:>10}"
            );
        }
        let sampled = match self.bound.sampled {
            true => "  (estimated from a sample of the requests)",
            false => "",
        };
        let bound = percent(self.bound.share);
        let _ = writeln!(table, "{:<14}{bound:>8}{sampled}", "upper bound");
        table.extend(self.frontier.as_ref().map(Frontier::to_table));
        table.push_str(&self.prompts_table());
        table.push_str(&self.causes.to_table());
        table.extend(self.boundary.as_ref().map(Boundary::to_table));
        table
    }

    /// Returns lines about the reuse of whole prompts under each policy: with heads (system text and tools) as clients
    /// send them, and with stabilised heads. Empty if no whole prompts were simulated.
    fn prompts_table(&self) -> String {
        let lines = self.outcomes.iter().filter_map(|outcome| {
            let (name, came) = (outcome.name, outcome.prompts?);
            let mut stabilised = self.stabilised.iter();
            let stabilised = stabilised.find(|other| other.name == name)?.prompts?;
            let [share, better] = [came, stabilised].map(|reuse| percent(reuse.share()));
            let [computed, left] = [came, stabilised].map(|reuse| grouped(reuse.computed_tokens()));
            Some(format!(
                "{name:<14}{share:>8}{computed:>17}{better:>12}{left:>17}"
            ))
        });
        let heading = "whole prompts   reused  tokens computed  stabilised  tokens computed";
        section(heading, lines)
    }

    /// Describes the size of the simulated cache in words.
    pub(super) fn cache(&self) -> String {
        let size = match self.capacity.tokens {
            Some(tokens) => format!("cache of {} tokens", grouped(tokens)),
            None => "unbounded cache".to_owned(),
        };
        match self.capacity.page_tokens {
            0 | 1 => size,
            page => format!("{size} in pages of {page}"),
        }
    }
}

/// Returns the results of policies as JSON objects.
fn entries(outcomes: &[PolicyOutcome]) -> Vec<Value> {
    let entry = |outcome: &PolicyOutcome| {
        let mut entry = json!({
            "name": outcome.name,
            "reuse": rounded(outcome.reuse.share(), 1e6),
            "mean_us": rounded(outcome.mean_us, 1e3),
            "p99_us": rounded(outcome.p99_us, 1e3),
            "document_tokens": outcome.reuse.document_tokens,
            "reused_tokens": outcome.reuse.reused_tokens,
        });
        if let Some(prompts) = outcome.prompts {
            entry["prompt_reuse"] = rounded(prompts.share(), 1e6).into();
            entry["prompt_tokens"] = prompts.prompt_tokens.into();
            entry["computed_tokens"] = prompts.computed_tokens().into();
        }
        entry
    };
    outcomes.iter().map(entry).collect()
}

/// Returns the results of a policy as table cells: share of document tokens reused, tokens reused, tokens computed, and
/// the mean and 99th percentile of the time to decide on an order.
pub(super) fn cells(outcome: &PolicyOutcome) -> [String; 5] {
    let reuse = outcome.reuse;
    [
        percent(reuse.share()),
        grouped(reuse.reused_tokens),
        grouped(outcome.computed()),
        microseconds(outcome.mean_us),
        microseconds(outcome.p99_us),
    ]
}

pub(super) fn microseconds(value: f64) -> String {
    format!("{value:.1} µs")
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::simulate;
    use super::*;
    use foreword_ordering::policy::PolicyOptions;

    /// Returns the results of a real replay of a generated trace.
    pub(in crate::replay) fn example(requests: usize, policies: &[PolicyKind]) -> Figures {
        let (trace, list) = simulate::tests::generated(requests);
        let capacity = Capacity::of_prompts(40, &list);
        let options = PolicyOptions::default();
        Figures {
            trace: "some <log>.jsonl".into(),
            requests: trace.requests(),
            documents: trace.documents(),
            skipped: 0,
            capacity,
            bound: Bound::of(&trace, 0, 1, |_| ()),
            outcomes: policies
                .iter()
                .map(|&kind| {
                    simulate::replay(&trace, kind, kind.build(&options), capacity).unwrap()
                })
                .collect(),
            stabilised: Vec::new(),
            causes: Causes::default(),
            boundary: None,
            frontier: None,
        }
    }

    #[test]
    fn the_best_is_the_one_that_reused_most_and_the_first_of_equals() {
        let figures = example(300, &PolicyKind::ALL);
        let most = figures.outcomes.iter().map(|o| o.reuse.reused_tokens).max();
        assert_eq!(figures.best().map(|o| o.reuse.reused_tokens), most);
        assert_eq!(figures.baseline().unwrap().name, "retrieval");
        let one = example(1, &[PolicyKind::Greedy, PolicyKind::Longest]);
        assert_eq!(one.best().unwrap().name, "greedy");
        assert!(one.baseline().is_none());
    }

    #[test]
    fn the_table_names_every_policy_and_the_cache() {
        let mut figures = example(30, &PolicyKind::ALL);
        figures.capacity = Capacity {
            tokens: Some(65_536),
            page_tokens: 16,
        };
        figures.bound.sampled = true;
        let table = figures.to_table();
        assert!(table.starts_with("30 requests, "));
        assert!(table.contains("cache of 65,536 tokens in pages of 16"));
        assert!(table.contains("estimated from a sample"));
        for kind in PolicyKind::ALL {
            assert!(table.contains(&format!("\n{} ", kind.name())));
        }
    }
}

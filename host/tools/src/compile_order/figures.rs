//! The figures of a compilation, as lines and as JSON.

use foreword_report::words::{grouped, percent, rounded};
use foreword_simulation::{Capacity, Reuse, TotalOrder};
use serde_json::json;
use std::fmt::Write as _;

/// What was learned and written.
pub(super) struct Figures {
    pub(super) requests: usize,
    /// Number of distinct documents.
    pub(super) documents: usize,
    /// Number of these in the table.
    pub(super) kept: usize,
    pub(super) order: TotalOrder,
    /// `None`: the log has a single request.
    pub(super) check: Option<Check>,
    pub(super) capacity: Capacity,
    pub(super) output: String,
    pub(super) bytes: usize,
}

/// What an order of the log's first half reuses in the second.
pub(super) struct Check {
    /// Requests of the second half.
    pub(super) requests: usize,
    /// Share of its documents that the first half has.
    pub(super) known: f64,
    /// In the client's order.
    pub(super) came: Reuse,
    pub(super) sifted: Reuse,
    pub(super) commonest_first: Reuse,
    /// Under the gateway's own policy, which has a memory.
    pub(super) foresight: Reuse,
}

impl Check {
    /// Returns whether sifting reused at least as much as the commonest documents first.
    pub(super) fn prefers_sifted(&self) -> bool {
        self.sifted.reused_tokens >= self.commonest_first.reused_tokens
    }

    /// Returns the reuse of the better order.
    fn table(&self) -> Reuse {
        if self.prefers_sifted() {
            self.sifted
        } else {
            self.commonest_first
        }
    }

    /// Returns the table's reuse over `foresight`'s; `None`: there is nothing to reuse.
    fn over_foresight(&self) -> Option<f64> {
        let foresight = self.foresight.share();
        (foresight > 0.0).then(|| self.table().share() / foresight)
    }
}

impl Figures {
    /// Returns the figures as one JSON object.
    pub(super) fn to_json(&self) -> String {
        let check = self.check.as_ref().map(|check| {
            json!({
                "requests": check.requests,
                "known": rounded(check.known, 1e6),
                "reuse_as_it_came": rounded(check.came.share(), 1e6),
                "reuse": rounded(check.table().share(), 1e6),
                "reuse_sifted": rounded(check.sifted.share(), 1e6),
                "reuse_commonest_first": rounded(check.commonest_first.share(), 1e6),
                "reuse_foresight": rounded(check.foresight.share(), 1e6),
                "over_foresight": check.over_foresight().map(|over| rounded(over, 1e4)),
            })
        });
        json!({
            "requests": self.requests,
            "documents": self.documents,
            "kept": self.kept,
            "tree_tokens": self.order.tree_tokens,
            "tree_tokens_by_frequency": self.order.first_tree_tokens,
            "work": self.order.work,
            "settled": self.order.settled,
            "cache_tokens": self.capacity.tokens.unwrap_or(0),
            "page_tokens": self.capacity.page_tokens,
            "check": check,
            "output": self.output,
            "bytes": self.bytes,
        })
        .to_string()
    }

    /// Returns the figures as lines for a terminal.
    pub(super) fn to_lines(&self) -> String {
        let mut lines = format!(
            "{} requests, {} documents",
            grouped(self.requests as u64),
            grouped(self.documents as u64)
        );
        if self.kept < self.documents {
            let _ = write!(lines, ", the {} commonest kept", grouped(self.kept as u64));
        }
        let _ = writeln!(
            lines,
            "\ntree of the log's prompts: {} tokens, {} with the commonest documents first",
            grouped(self.order.tree_tokens),
            grouped(self.order.first_tree_tokens)
        );
        let is_sifted = self.check.as_ref().is_none_or(Check::prefers_sifted);
        if !is_sifted {
            lines.push_str(
                "the commonest documents stand first, since that reused more in the second half\n",
            );
        } else if !self.order.settled {
            let work = grouped(self.order.work);
            let _ = writeln!(
                lines,
                "learning ended after {work} steps (--max-work); more might gain more"
            );
        }
        if let Some(check) = &self.check {
            let _ = writeln!(
                lines,
                "learned from the first half, the second ({} requests, {} of the documents known) reuses:\n\
                 {:<22}{:>8}\n{:<22}{:>8}\n{:<22}{:>8}",
                grouped(check.requests as u64),
                percent(check.known),
                "  as it came",
                percent(check.came.share()),
                "  in this order",
                percent(check.table().share()),
                "  with a memory",
                percent(check.foresight.share()),
            );
            if let Some(over) = check.over_foresight() {
                let _ = writeln!(
                    lines,
                    "  this order over the gateway's policy `foresight`: {over:.2}"
                );
            }
        }
        let _ = writeln!(
            lines,
            "{}: {} bytes",
            self.output,
            grouped(self.bytes as u64)
        );
        lines
    }
}

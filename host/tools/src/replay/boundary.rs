//! The cost of a log's prompts at an upstream whose cache matches only up to marked or stored boundaries.
//!
//! The boundaries are cache markers in the body, or the ends of units that the upstream stores. [`foreword_simulation`]
//! simulates the caches and the arms, which are ways to order and mark prompts. Lines without a time are taken as sent
//! at an even rate.

use super::Options;
use super::prices;
use super::whole::{self, Input, Ordered};
use anyhow::{Result, ensure};
use foreword_ordering::Skip;
use foreword_ordering::cuts::CacheKind;
use foreword_ordering::policy::PolicyKind;
use foreword_report::log::{self, OnBad};
use foreword_report::words::{escaped, grouped, percent, rounded};
use foreword_simulation::{
    BadLine, BoundaryArm, BoundaryOutcome, BoundaryReplay, BoundaryUsage, CachePrices, Capacity,
    Logged, LoggedKind,
};
use serde_json::{Value, json};
use std::fmt::Write;

/// The cost of a log's prompts at an upstream whose cache matches only up to boundaries: cache markers in the body, or
/// the ends of units that the cache stores.
#[derive(Debug)]
pub(super) struct Boundary {
    kind: CacheKind,
    model: Option<String>,
    currency: String,
    /// Number of the log's requests that were simulated.
    requests: u64,
    /// Number of lines that only list ranked documents and were left out, since they have no body for cache markers; 0
    /// for caches without markers, whose simulation includes such lines.
    rankings: u64,
    /// The cost of the prompts under each arm (a way to order and mark them, see [`BoundaryArm`]); the first is that
    /// without caching.
    outcomes: Vec<BoundaryOutcome>,
}

/// Simulates the prompts of the log of `options` at an upstream with a cache of this kind, and returns their cost under
/// each way to order and mark them.
///
/// # Errors
/// Returns an error if a file cannot be read or is invalid.
pub(super) fn replay(options: &Options, kind: CacheKind) -> Result<Boundary> {
    let prices = prices::read(options.prices.as_deref())?;
    let ordering = Ordered::of(options)?;
    let policy = match ordering.is_given() {
        true => ordering.policy()?,
        false => PolicyKind::Foresight,
    };
    let found = Boundary {
        kind,
        model: options.cache_model.clone(),
        currency: prices.currency.clone(),
        requests: 0,
        rankings: 0,
        outcomes: Vec::new(),
    };
    if kind.has_markers() {
        marked(options, kind, &ordering, policy, prices, found)
    } else {
        stored(options, kind, &ordering, policy, &prices, found)
    }
}

/// Simulates the log's prompts with a cache that matches up to cache markers in the body. Returns `found` with the
/// counts and costs filled in.
fn marked(
    options: &Options,
    kind: CacheKind,
    ordering: &Ordered,
    policy: PolicyKind,
    prices: CachePrices,
    mut found: Boundary,
) -> Result<Boundary> {
    let model = options.cache_model.clone();
    let mut replay = BoundaryReplay::new(ordering.as_came()?, policy, kind, prices, model)?;
    let step = 60_000 / u64::from(options.cache_rate.max(1));
    let mut now_ms = 0_u64;
    let (mut unread_times, mut unread) = (0_u64, 0_u64);
    log::read(&options.files, "boundaries", OnBad::Count, |_, line| {
        let logged = Logged::read(line)?;
        if logged.kind()? == LoggedKind::Ranking {
            found.rankings += 1;
            return Ok(());
        }
        unread_times += u64::from(logged.has_unread_time);
        now_ms = logged.at_ms.unwrap_or(now_ms + step);
        match replay.serve(&logged, now_ms) {
            Ok(()) => found.requests += 1,
            Err(Skip::NoUserMessage) => {}
            Err(Skip::TooManyDocuments { .. }) => unread += 1,
            Err(skip) => return Err(BadLine::Body(skip).into()),
        }
        Ok(())
    })?;
    if unread_times > 0 {
        eprintln!(
            "{unread_times} lines have a time that is not understood; they count as sent at an even rate"
        );
    }
    if unread > 0 {
        eprintln!(
            "{unread} requests have more than documents.max documents; their cost is left out"
        );
    }
    if replay.unpriced() > 0 {
        eprintln!(
            "{} requests are for models that --prices does not name: they cost 1 {} a million tokens here",
            replay.unpriced(),
            found.currency
        );
    }
    found.outcomes = replay.outcomes();
    Ok(found)
}

/// Simulates the log's prompts, in the client's order and in Foreword's, with a cache that matches whole units of
/// tokens or any prefix. Returns `found` with the counts and costs filled in.
fn stored(
    options: &Options,
    kind: CacheKind,
    ordering: &Ordered,
    policy: PolicyKind,
    prices: &CachePrices,
    mut found: Boundary,
) -> Result<Boundary> {
    let model = options.cache_model.as_deref().unwrap_or_default();
    ensure!(
        options.prices.is_none() || prices.listed(Some(kind), model).is_some(),
        "--prices: with --cache-kind {}, --cache-model must be a model of that kind in the file, got {model:?}",
        kind.name()
    );
    let price = prices.of(kind, model);
    let page_tokens = match kind {
        CacheKind::Units => options.page_tokens,
        _ => 1,
    };
    let input = Input {
        files: &options.files,
        capacity: Capacity {
            page_tokens,
            ..options.capacity()
        },
        document_tokens: options.document_tokens,
    };
    let raw = ordering.as_came()?;
    let mut arms = Vec::new();
    for (arm, policy) in [
        (BoundaryArm::Client, PolicyKind::Retrieval),
        (BoundaryArm::Foreword, policy),
    ] {
        let outcome = whole::prompts(&input, policy, &raw, false)?;
        found.requests = outcome.requests;
        let reuse = outcome.prompts.unwrap_or_default();
        let usage = BoundaryUsage {
            read: reuse.reused_tokens,
            plain: reuse.computed_tokens(),
            ..BoundaryUsage::default()
        };
        if arms.is_empty() {
            let plain = BoundaryUsage {
                plain: usage.tokens(),
                ..BoundaryUsage::default()
            };
            arms.push((BoundaryArm::NoCaching, plain));
        }
        arms.push((arm, usage));
    }
    let outcomes = arms.into_iter().map(|(arm, usage)| BoundaryOutcome {
        arm,
        usage,
        cost: usage.plain_tokens_worth(&price.rules) * price.input / 1e6,
        markers: 0,
        refused: 0,
        held: 0,
    });
    found.outcomes = outcomes.collect();
    Ok(found)
}

impl Boundary {
    fn plain_cost(&self) -> f64 {
        self.outcomes.first().map_or(0.0, |outcome| outcome.cost)
    }

    fn share(&self, outcome: &BoundaryOutcome) -> f64 {
        match self.plain_cost() {
            0.0 => 0.0,
            plain => outcome.cost / plain,
        }
    }

    /// Returns the results as a JSON object.
    pub(super) fn to_json(&self) -> Value {
        let arms = self.outcomes.iter().map(|outcome| {
            json!({
                "name": outcome.arm.name(),
                "read_tokens": outcome.usage.read,
                "written_tokens": outcome.usage.written,
                "written_long_tokens": outcome.usage.written_long,
                "plain_tokens": outcome.usage.plain,
                "markers": outcome.markers,
                "refused": outcome.refused,
                "held": outcome.held,
                "cost": rounded(outcome.cost, 1e9),
                "of_no_caching": rounded(self.share(outcome), 1e6),
            })
        });
        json!({
            "kind": self.kind.name(),
            "model": self.model,
            "currency": self.currency,
            "requests": self.requests,
            "rankings_left_out": self.rankings,
            "arms": arms.collect::<Vec<_>>(),
        })
    }

    /// Returns the results as lines for a terminal.
    pub(super) fn to_table(&self) -> String {
        let kind = format!("{} cache", self.kind.name());
        let mut table = format!(
            "\n{kind:<14}    tokens read        written          plain  markers{:>16}  of no caching\n",
            self.currency
        );
        for outcome in &self.outcomes {
            let [name, read, written, plain, markers, cost, share] = self.cells(outcome);
            let _ = writeln!(
                table,
                "{name:<14}{read:>15}{written:>15}{plain:>15}{markers:>9}{cost:>16}{share:>15}"
            );
            if outcome.refused > 0 {
                let refused = grouped(outcome.refused) + " with too many markers";
                let _ = writeln!(table, "  {refused}, which it would refuse");
            }
            if outcome.held > 0 {
                let held = grouped(outcome.held);
                let _ = writeln!(table, "  {held} waited for another request's response");
            }
        }
        if self.rankings > 0 {
            let rankings = grouped(self.rankings) + " rankings have no body";
            let _ = writeln!(table, "{rankings} and do not count here");
        }
        table
    }

    /// Returns the results as a card (a table with a heading) of the HTML report.
    pub(super) fn to_html(&self) -> String {
        let mut card = format!(
            "<div class=\"card\">\n<h2>What prompts cost with the cache kind <code>{}</code></h2>\n<table>\n<thead><tr>\
             <th>who marks</th><th class=\"wide\">tokens read</th><th class=\"wide\">written</th>\
             <th class=\"wide\">plain</th><th>{}</th><th>of no caching</th></tr></thead>\n<tbody>\n",
            self.kind.name(),
            escaped(&self.currency)
        );
        for outcome in &self.outcomes {
            let [name, read, written, plain, _, cost, share] = self.cells(outcome);
            let _ = writeln!(
                card,
                "<tr><th>{name}</th><td class=\"wide\">{read}</td><td class=\"wide\">{written}</td>\
                 <td class=\"wide\">{plain}</td><td>{cost}</td><td>{share}</td></tr>"
            );
        }
        card.push_str("</tbody>\n</table>\n</div>\n");
        card
    }

    fn cells(&self, outcome: &BoundaryOutcome) -> [String; 7] {
        let usage = outcome.usage;
        [
            outcome.arm.name().to_owned(),
            grouped(usage.read),
            grouped(usage.written + usage.written_long),
            grouped(usage.plain),
            grouped(outcome.markers),
            format!("{:.4}", outcome.cost),
            percent(self.share(outcome)),
        ]
    }
}

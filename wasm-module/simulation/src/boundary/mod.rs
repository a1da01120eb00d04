//! Computes what a log's prompts cost with caches that match only up to markers, for several ways to set these.
//!
//! ```text
//!   logged body ──┬─ original ───────────────▶ layout ── no markers / the client's / automatic / fixed ─▶ a cache each
//!                 ├─ original, our markers ──▶ layout ───────────────────────────────────────────────▶ cache
//!                 └─ our order, our markers ─▶ layout ───────────────────────────────────────────────▶ cache
//! ```
//!
//! Foreword's bodies are those that the gateway would send, parsed again as the provider parses them. Each arm has a
//! [cache of its own](cache::BoundaryCache) with the provider's rules. Tokens are the core's estimates; responses cost
//! the same in every arm and are left out.

mod cache;
mod held;
mod prices;

pub use cache::{BoundaryCache, BoundaryUsage, FIRST_TOKEN_MS};
pub use prices::{CachePrice, CachePrices};

use self::held::{Flights, Forwarded};
use crate::logged::realm_hash;
use crate::{Logged, PromptReplay};
use foreword_ordering::cuts::layout::Blocks;
use foreword_ordering::cuts::{CacheKind, CutOptions, Cutter, Layout, MarkTtl, Part, Position};
use foreword_ordering::policy::PolicyKind;
use foreword_ordering::{Config, ConfigError, EngineId, Opening, RawConfig, Skip, Tenant};
use std::rc::Rc;

foreword_ordering::named! {
    /// An arm of the simulation: a way to order a prompt and to set its cache markers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BoundaryArm {
        /// Original bodies without caching.
        NoCaching = "no-caching",
        /// Original bodies with the client's markers.
        Client = "client",
        /// Original bodies in the provider's automatic mode, without other markers.
        Automatic = "automatic",
        /// Original bodies, with markers at the end of the tools, the system text, and the last two user messages.
        Fixed = "fixed",
        /// Original bodies with a block for each document, marked by Foreword.
        Markers = "markers",
        /// Bodies ordered and marked by Foreword.
        Foreword = "foreword",
        /// Like `Foreword`, but requests wait for one that computes their documents, as with the gateway's `bursts`.
        Held = "foreword-held",
    }
}

/// The result of an arm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundaryOutcome {
    /// The arm that has this result.
    pub arm: BoundaryArm,
    /// The prompts' tokens, by price.
    pub usage: BoundaryUsage,
    /// Cost in the currency of the prices.
    pub cost: f64,
    /// Number of markers in all requests.
    pub markers: u64,
    /// Number of requests that the provider would refuse because of too many markers. They are served without caching.
    pub refused: u64,
    /// Number of requests that waited for another one's response.
    pub held: u64,
}

/// A replay of bodies against caches of one kind.
pub struct BoundaryReplay {
    kind: CacheKind,
    prices: CachePrices,
    /// The model whose rules and prices apply; `None` for each body's own.
    model: Option<String>,
    orderer: PromptReplay,
    /// One for each order of documents: the client's and Foreword's.
    cutters: [Cutter; 2],
    arms: Vec<(BoundaryOutcome, BoundaryCache)>,
    flights: Flights,
    unpriced: u64,
}

impl BoundaryReplay {
    /// Returns a replay with empty caches and no history. `model` determines rules and prices for all bodies; `None`
    /// for each body's own.
    ///
    /// # Errors
    /// Returns an error if the configuration is not valid.
    pub fn new(
        raw: RawConfig,
        policy: PolicyKind,
        kind: CacheKind,
        prices: CachePrices,
        model: Option<String>,
    ) -> Result<Self, ConfigError> {
        let arms = (BoundaryArm::ALL.into_iter())
            // Bedrock has no automatic mode.
            .filter(|arm| !(*arm == BoundaryArm::Automatic && kind == CacheKind::Bedrock))
            .map(|arm| {
                let outcome = BoundaryOutcome {
                    arm,
                    usage: BoundaryUsage::default(),
                    cost: 0.0,
                    markers: 0,
                    refused: 0,
                    held: 0,
                };
                (outcome, BoundaryCache::new(FIRST_TOKEN_MS))
            });
        Ok(Self {
            kind,
            prices,
            model,
            orderer: PromptReplay::new(raw, policy, crate::Capacity::UNBOUNDED)?,
            cutters: [Cutter::new(), Cutter::new()],
            arms: arms.collect(),
            flights: Flights::new(),
            unpriced: 0,
        })
    }

    /// Returns the number of requests whose models have no price, although others have: they are counted at 1 per
    /// million tokens.
    #[must_use]
    pub fn unpriced(&self) -> u64 {
        self.unpriced
    }

    /// Serves a logged body that arrives at `now_ms`, in every arm.
    ///
    /// # Errors
    /// Returns the reason why the body cannot be read.
    pub fn serve(&mut self, logged: &Logged<'_>, now_ms: u64) -> Result<(), Skip> {
        let came = logged.body.as_bytes();
        let config = self.orderer.config().clone();
        let parsed = foreword_ordering::parse(came, &config)?;
        let model = self.model.as_deref().unwrap_or(parsed.model());
        let listed = self.prices.listed(Some(self.kind), model);
        self.unpriced += u64::from(listed.is_none() && !self.prices.models.is_empty());
        let price = listed.unwrap_or_else(|| CachePrice::published(self.kind, model));
        let realm = realm_hash(&[&*logged.tenant, &*logged.engine], 0);
        let as_came = Layout::of(&parsed, self.kind, Blocks::AsWritten, realm)?;
        let rewrite = self.orderer.rewrite(logged)?;
        let ordered = rewrite.as_ref().and_then(|rewrite| rewrite.body.as_deref());
        let ordered = ordered.unwrap_or(came);
        let tenant = format!("{}\n{}", logged.tenant, logged.engine);
        let options = CutOptions {
            rules: price.rules,
            tenant: Tenant::named(&tenant),
            model: "",
            engine: EngineId(0),
            now_ms,
        };
        let [marked, ours] = {
            let [clients, ours] = &mut self.cutters;
            let cut = |cutter: &mut Cutter, body: &[u8]| -> Result<Layout, Skip> {
                let cut = cutter.cut(&options, &config, body)?;
                let body = cut.body.as_deref().unwrap_or(body);
                read(body, self.kind, &config, realm)
            };
            [cut(clients, came)?, cut(ours, ordered)?]
        };
        let [as_came, marked, ours] = [as_came, marked, ours].map(Rc::new);
        for (outcome, cache) in &mut self.arms {
            let (layout, marks) = match outcome.arm {
                BoundaryArm::NoCaching => (&as_came, Vec::new()),
                BoundaryArm::Client => (&as_came, as_came.marks(self.kind)),
                BoundaryArm::Automatic => (&as_came, automatic(&as_came)),
                BoundaryArm::Fixed => (&as_came, fixed(&as_came)),
                BoundaryArm::Markers => (&marked, marked.marks(self.kind)),
                BoundaryArm::Foreword | BoundaryArm::Held => (&ours, ours.marks(self.kind)),
            };
            let is_refused =
                self.kind != CacheKind::OpenAi && marks.len() > price.rules.markers as usize;
            outcome.refused += u64::from(is_refused);
            let marks = if is_refused { Vec::new() } else { marks };
            outcome.markers += marks.len() as u64;
            let forwarded = Forwarded {
                layout: Rc::clone(layout),
                marks,
                rules: price.rules,
                input: price.input,
            };
            if outcome.arm == BoundaryArm::Held {
                let opening = (rewrite.as_ref()).map(|rewrite| Opening::of(&rewrite.record));
                let bill = |forwarded: &Forwarded, usage| outcome.bill(forwarded, usage);
                let is_held = (self.flights).arrive(now_ms, opening, forwarded, cache, bill);
                outcome.held += u64::from(is_held);
            } else {
                outcome.bill(&forwarded, forwarded.served(cache, now_ms));
            }
        }
        Ok(())
    }

    /// Lets all responses begin, so that no request is held any longer, and returns the results.
    pub fn outcomes(&mut self) -> Vec<BoundaryOutcome> {
        let mut arms = self.arms.iter_mut();
        if let Some((outcome, cache)) = arms.find(|(outcome, _)| outcome.arm == BoundaryArm::Held) {
            let bill = |forwarded: &Forwarded, usage| outcome.bill(forwarded, usage);
            self.flights.advance(u64::MAX, cache, bill);
        }
        self.arms.iter().map(|(outcome, _)| *outcome).collect()
    }
}

impl BoundaryOutcome {
    fn bill(&mut self, forwarded: &Forwarded, usage: BoundaryUsage) {
        self.usage += usage;
        self.cost += usage.plain_tokens_worth(&forwarded.rules) * forwarded.input / 1e6;
    }
}

fn read(body: &[u8], kind: CacheKind, config: &Config, realm: u64) -> Result<Layout, Skip> {
    let parsed = foreword_ordering::parse(body, config)?;
    Layout::of(&parsed, kind, Blocks::AsWritten, realm)
}

/// Returns the marker of the automatic mode: the end of the last message that can be marked.
fn automatic(layout: &Layout) -> Vec<(usize, MarkTtl)> {
    let last = layout
        .positions
        .iter()
        .rposition(|position| position.ends_message);
    last.map(|at| (at, MarkTtl::Default)).into_iter().collect()
}

/// Returns the markers that LiteLLM, Plano and coding agents set: the ends of the tools, of the system text, and of the
/// last two messages from a user or a tool.
fn fixed(layout: &Layout) -> Vec<(usize, MarkTtl)> {
    let positions = || layout.positions.iter();
    let last_of = |part: Part| positions().rposition(|position| position.part == part);
    let ends = positions().enumerate().rev().filter(|(_, position)| {
        position.ends_message
            && matches!(position.part, Part::Message | Part::Last | Part::Document)
    });
    let mut marks: Vec<usize> = ends.take(2).map(|(at, _)| at).collect();
    marks.extend([Part::Tools, Part::System].into_iter().filter_map(last_of));
    marks.retain(|&at| {
        layout
            .positions
            .get(at)
            .is_some_and(Position::may_be_marked)
    });
    marks.sort_unstable();
    marks.into_iter().map(|at| (at, MarkTtl::Default)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(kind: CacheKind, model: &str) -> BoundaryReplay {
        let prices = CachePrices::published();
        let raw = crate::placing_freely();
        let model = Some(model.to_owned());
        BoundaryReplay::new(raw, PolicyKind::Foresight, kind, prices, model).unwrap()
    }

    fn document(name: &str) -> String {
        format!(
            "<document id=\\\"{name}\\\">{}</document>\\n",
            format!("{name} says. ").repeat(200)
        )
    }

    fn body(documents: &[&str], question: &str) -> String {
        let system = "Be brief. ".repeat(160);
        let documents: String = documents.iter().map(|name| document(name)).collect();
        format!(
            r#"{{"model":"m","system":"{system}","messages":[{{"role":"user","content":"{documents}{question}"}}]}}"#
        )
    }

    fn outcome(replay: &mut BoundaryReplay, arm: BoundaryArm) -> BoundaryOutcome {
        let outcomes = replay.outcomes();
        outcomes
            .into_iter()
            .find(|outcome| outcome.arm == arm)
            .unwrap()
    }

    #[test]
    fn documents_that_come_again_in_another_order_are_read_where_we_order_and_mark() {
        let mut replay = replay(CacheKind::Anthropic, "claude-sonnet-5");
        let orders = [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]];
        for at in 0..60_u64 {
            let body = body(&orders[at as usize % 3], &format!("Question {at}?"));
            let logged = Logged::read(body.as_bytes()).unwrap();
            replay.serve(&logged, at * 5_000).unwrap();
        }
        let mut cost = |arm| outcome(&mut replay, arm).cost;
        let plain = cost(BoundaryArm::NoCaching);
        assert!(cost(BoundaryArm::Foreword) < 0.4 * plain);
        assert!(cost(BoundaryArm::Foreword) < cost(BoundaryArm::Markers));
        // A whole prompt is written each time and never read.
        let automatic = outcome(&mut replay, BoundaryArm::Automatic);
        assert_eq!(automatic.usage.read, 0);
        assert!((automatic.cost / plain - 1.25).abs() < 1e-9);
        assert_eq!(outcome(&mut replay, BoundaryArm::Client).cost, plain);
        assert_eq!(outcome(&mut replay, BoundaryArm::Foreword).refused, 0);
    }

    #[test]
    fn nothing_is_marked_where_nothing_comes_again() {
        for kind in [CacheKind::Anthropic, CacheKind::OpenAi] {
            let mut replay = replay(kind, "claude-opus-5-5");
            for at in 0..60_u64 {
                let names = [0, 1, 2, 3, 4].map(|n| format!("d{}", at * 5 + n));
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let mut text = body(&names, &format!("Question {at}?"));
                text = text.replacen("Be brief.", &format!("Be {at}."), 1);
                let logged = Logged::read(text.as_bytes()).unwrap();
                replay.serve(&logged, at * 1_000).unwrap();
            }
            let plain = outcome(&mut replay, BoundaryArm::NoCaching).cost;
            assert_eq!(
                outcome(&mut replay, BoundaryArm::Foreword).cost,
                plain,
                "{kind:?}"
            );
            assert!(outcome(&mut replay, BoundaryArm::Automatic).cost > 1.2 * plain);
        }
    }

    #[test]
    fn who_waits_for_the_first_response_reads_what_it_wrote() {
        let mut replay = replay(CacheKind::Anthropic, "claude-sonnet-5");
        // As two logs of one day, one after the other.
        for at in (0..400_u64).step_by(2).chain((1..400).step_by(2)) {
            let (burst, of_burst) = (at / 16 * 2 + at % 2, at / 2 % 8);
            let names = [0, 1, 2, 3].map(|n| format!("d{}", burst * 4 + n));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let body = body(&names, &format!("Question {at}?"));
            let logged = Logged::read(body.as_bytes()).unwrap();
            replay.serve(&logged, burst * 30_000 + of_burst).unwrap();
        }
        let [together, held] =
            [BoundaryArm::Foreword, BoundaryArm::Held].map(|arm| outcome(&mut replay, arm));
        assert_eq!((together.held, held.held), (0, 50 * 7));
        assert_eq!(held.usage.tokens(), together.usage.tokens());
        // What is written at once is written eight times.
        assert_eq!(together.usage.read, 0);
        assert!(held.usage.read * 5 > held.usage.tokens() * 4, "{held:?}");
        assert!(held.cost < 0.3 * together.cost);
    }
}

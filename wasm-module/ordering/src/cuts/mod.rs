//! Cut points: where a prompt is marked for an upstream that caches only up to markers.
//!
//! ```text
//!   body as ordered ──▶ layout ──▶ ledger: seen before? live? ──▶ choice ──▶ edits: blocks and markers ──▶ body
//!
//!   tools   system  │  "Read:"  │ <doc a> │ <doc b> │ <doc c> │  hint, "Why?"        positions, one a block
//!                   ▲                     ▲         ▲                                 markers, four at most
//! ```
//!
//! Anthropic, OpenAI from GPT-5.6 on, and Bedrock match a prompt only up to a boundary that an earlier request marked,
//! and a boundary is the end of a block. So an order of documents is worth nothing there unless each document is a block
//! of its own and a marker stands where sharing ends. A marker costs money (1.25 of a token's price to write it, or 2,
//! against .1 to read it), so it is written only where later requests are expected to share what precedes it.
//!
//! - [`rules`]: what each kind of cache asks and charges, by model.
//! - [`layout`]: a body's prompt as positions: what a provider sees as a block, and which of them may be marked.
//! - `ledger`: which positions came again so far, and which are believed to be cached.
//! - `choice`: at most four markers of the greatest expected saving.
//! - `write`: the edits.
//!
//! This works on the body that is to be sent, after everything else was decided: without the markers it is that body.

mod choice;
pub mod layout;
mod ledger;
pub mod rules;
mod write;

pub use layout::{Layout, MarkTtl, Part, Position};
pub use rules::{CacheKind, CacheRules};

use crate::body::{self, Parsed, Skip};
use crate::config::Config;
use crate::engines::EngineId;
use crate::tenant::Tenant;
use fxhash::FxHashMap;
use ledger::Ledger;

/// Marks prompts; it remembers, for each tenant and model, which positions came again.
///
/// A tenant's markers depend on its own requests alone, as long as no more than `tree.max_trees` tenants and models are
/// in use. Memory is bounded by that number times [`MAX_POSITIONS`] positions of some 60 bytes.
#[derive(Debug, Default)]
pub struct Cutter {
    ledgers: FxHashMap<String, Known>,
    /// Number of requests so far.
    now: u64,
}

#[derive(Debug)]
struct Known {
    ledger: Ledger,
    last_used: u64,
}

/// Most positions that are remembered for a tenant and a model.
pub const MAX_POSITIONS: u32 = 32_768;

/// Whose request is marked, for which cache, and when.
#[derive(Clone, Copy, Debug)]
pub struct CutOptions<'a> {
    /// The rules of the upstream's cache.
    pub rules: CacheRules,
    /// The tenant that sends the request.
    pub tenant: Tenant<'a>,
    /// The model that the request's path names; empty: the body names it.
    pub model: &'a str,
    /// The engine that the request goes to.
    pub engine: EngineId,
    /// Time in milliseconds, on any clock that does not stop.
    pub now_ms: u64,
}

/// What was done with one body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The body to send; `None`: the one that came.
    pub body: Option<Vec<u8>>,
    /// Number of markers that were written.
    pub markers: u32,
    /// Number of markers that the client had set.
    pub client_markers: u32,
    /// Number of blocks that texts were split into, beyond one each.
    pub splits: u32,
    /// 1 if the prompt has too many blocks to be marked; its body stays as it is.
    pub unread: u32,
    /// Estimated tokens of the prompt's beginning that the upstream is believed to hold.
    pub read_tokens: u64,
    /// Estimated tokens that the markers have the upstream write.
    pub written_tokens: u64,
}

impl Cutter {
    /// Returns a cutter that knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses markers for `body`, a chat request as it is to be sent, and writes them.
    ///
    /// A body that no cache of that kind understands, or that is shorter than the least that one keeps, stays as it is.
    ///
    /// # Errors
    /// Returns the reason why the body cannot be read; it must be sent as it is then.
    pub fn cut(
        &mut self,
        options: &CutOptions<'_>,
        config: &Config,
        body: &[u8],
    ) -> Result<Cut, Skip> {
        if !options.rules.kind.has_markers() {
            return Ok(Cut::default());
        }
        let mut parsed = body::parse(body, config)?;
        parsed.for_model(options.model)?;
        self.cut_parsed(options, config, &parsed)
    }

    /// Does the same as [`Cutter::cut`] for a body that was parsed already, for the model of the options.
    ///
    /// # Errors
    /// As [`Cutter::cut`].
    pub fn cut_parsed(
        &mut self,
        options: &CutOptions<'_>,
        config: &Config,
        parsed: &Parsed<'_>,
    ) -> Result<Cut, Skip> {
        let rules = &options.rules;
        if !rules.kind.has_markers() {
            return Ok(Cut::default());
        }
        let realm = u64::from(options.engine.0);
        let layout = Layout::of(parsed, rules.kind, layout::Blocks::Split, realm)?;
        if layout.is_cut_short {
            return Ok(Cut {
                unread: 1,
                ..Cut::default()
            });
        }
        let ledger = self.ledger(config, options, &parsed.model);
        let chosen = choice::choose(&layout, rules, ledger, options.now_ms);
        let cut = write::write(parsed, &layout, rules, &chosen);
        ledger.take(&layout, &chosen.all, chosen.read, rules, options.now_ms);
        Ok(cut)
    }

    fn ledger(&mut self, config: &Config, options: &CutOptions<'_>, model: &str) -> &mut Ledger {
        self.now += 1;
        let Tenant { name, key } = options.tenant;
        let key = format!("{}:{name}{key};{model}", name.len());
        if !self.ledgers.contains_key(&key)
            && self.ledgers.len() >= config.max_trees as usize
            && let Some(oldest) = (self.ledgers.iter())
                .min_by_key(|(_, known)| known.last_used)
                .map(|(key, _)| key.clone())
        {
            self.ledgers.remove(&oldest);
        }
        let known = self.ledgers.entry(key).or_insert_with(|| Known {
            ledger: Ledger::new(MAX_POSITIONS),
            last_used: 0,
        });
        known.last_used = self.now;
        &mut known.ledger
    }
}

//! Sets cache markers in prompts for an upstream that caches a prompt only up to markers.
//!
//! ```text
//!   body as ordered ──▶ layout ──▶ ledger: recurs? cached? ──▶ choice ──▶ edits: blocks and markers ──▶ body
//!
//!   tools   system  │  "Read:"  │ <doc a> │ <doc b> │ <doc c> │  hint, "Why?"        positions, one a block
//!                   ▲                     ▲         ▲                                 markers, four at most
//! ```
//!
//! Anthropic, OpenAI from GPT-5.6 on, and Bedrock match a prompt only up to a boundary that an earlier request marked
//! by a field such as `cache_control`, and a boundary is the end of a block. So ordering documents helps there only if
//! each document is a block of its own and a marker is set where sharing ends. Writing a marker costs money (1.25 or 2
//! of a token's price, against .1 to read), so one is set only where later requests are expected to share the prefix
//! before it.
//!
//! - [`rules`]: the requirements and prices of each kind of cache, by model.
//! - [`layout`]: a body's prompt as positions: the provider's blocks, and which of them may be marked.
//! - `ledger`: which positions recurred so far, and which are believed to be cached.
//! - `choice`: at most four markers with the greatest expected saving.
//! - `write`: the edits.
//!
//! This step works on the final body, after all other decisions, and changes nothing but blocks and caching fields.

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
use crate::lru::Lru;
use crate::tenant::{Tenant, key_of};
use ledger::Ledger;

/// Sets cache markers in prompts, which tell a provider up to where to cache a prompt. For each tenant and model, it
/// tracks which positions of prompts (ends of blocks) recur in later prompts.
///
/// A tenant's markers depend only on its own requests while at most `tree.max_trees` pairs of tenant and model are in
/// use. Memory is bounded by that number times [`MAX_POSITIONS`] positions of 120 to 180 bytes each.
#[derive(Debug, Default)]
pub struct Cutter {
    ledgers: Lru<String, Ledger>,
}

/// The maximum number of positions (ends of blocks) in prompts that are tracked for one tenant and model.
pub const MAX_POSITIONS: u32 = 32_768;

/// The input of [`Cutter::cut`] apart from the body: the upstream's cache, the tenant, model and engine, and the time.
#[derive(Clone, Copy, Debug)]
pub struct CutOptions<'a> {
    /// The rules and prices of the upstream's cache.
    pub rules: CacheRules,
    /// The tenant of the request. The prompt positions (ends of blocks) that recur are tracked for each tenant
    /// separately.
    pub tenant: Tenant<'a>,
    /// The model named in the request's path; empty if the body names it.
    pub model: &'a str,
    /// The engine that receives the request.
    pub engine: EngineId,
    /// The current time in milliseconds, on any clock that does not stop. If the clock was set back, recorded times
    /// later than this one are lowered to it.
    pub now_ms: u64,
}

/// The body with its cache markers, as [`Cutter::cut`] returns it, and the markers' number and expected effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The body to forward; `None` if the original body is to be forwarded.
    pub body: Option<Vec<u8>>,
    /// Number of cache markers that the gateway set in the prompt.
    pub markers: u32,
    /// Number of cache markers in effect that the gateway did not set: the client's, and the provider's automatic one.
    pub client_markers: u32,
    /// Number of blocks that were added to the prompt by dividing texts.
    pub splits: u32,
    /// 1 if the prompt has more positions (ends of blocks) than the gateway reads, so that the body is unchanged;
    /// otherwise 0.
    pub unread: u32,
    /// Estimated tokens of the prompt's beginning that the upstream is believed to read from its cache.
    pub read_tokens: u64,
    /// Estimated tokens of the prompt that the upstream is believed to write newly to its cache, up to the last marker.
    pub written_tokens: u64,
}

impl Cutter {
    /// Returns a [`Cutter`], which sets cache markers in prompts, that has recorded no prompt yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses cache markers for `body`, a chat request that is otherwise ready to forward, and returns the body with
    /// them. Records the prompt's positions (ends of blocks) as forwarded.
    ///
    /// The body is not changed if (1) this kind of cache has no markers, (2) the prompt is shorter than the minimum
    /// that the provider caches, or (3) it has more positions than the gateway reads.
    ///
    /// # Errors
    /// Returns [`Skip`], the reason why the body cannot be parsed; it must then be forwarded unchanged.
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

    /// Chooses cache markers for a chat request that was parsed already and is otherwise ready to forward, and returns
    /// the body with them. Records the prompt's positions (ends of blocks) as forwarded. [`CutOptions::model`] is
    /// ignored.
    ///
    /// The body is not changed if (1) this kind of cache has no markers, (2) the prompt is shorter than the minimum
    /// that the provider caches, or (3) it has more positions than the gateway reads.
    ///
    /// # Errors
    /// Returns [`Skip::NoDocuments`] if the body is not a JSON object.
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
        let Some(ledger) = self.ledger(config, options, &parsed.model) else {
            return Ok(Cut::default());
        };
        ledger.set_back(options.now_ms);
        let chosen = choice::choose(&layout, rules, ledger, options.now_ms);
        let cut = write::write(parsed, &layout, rules, &chosen);
        ledger.take(&layout, &chosen.all, chosen.read, rules, options.now_ms);
        Ok(cut)
    }

    fn ledger(
        &mut self,
        config: &Config,
        options: &CutOptions<'_>,
        model: &str,
    ) -> Option<&mut Ledger> {
        let key = key_of(options.tenant, model);
        if self.ledgers.get(&key).is_none() {
            let ledger = Ledger::new(MAX_POSITIONS);
            self.ledgers
                .insert(key.clone(), ledger, config.max_trees as usize);
        }
        self.ledgers.get(&key)
    }
}

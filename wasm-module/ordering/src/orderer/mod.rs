//! The entry point of the core: from a request's body to the forwarded body, with the state of every tenant and model.
//!
//! ```text
//!   body ─▶ parse ─▶ state: trees · policy · memory of chats ─▶ rewriting ─▶ body, report, record
//!                      ▲                                                                │
//!                      └──────────────── learning ◀─── other orderers, engines ◀────────┘
//! ```

mod heads;
mod learning;
mod options;
mod rewriting;
mod tenants;

pub use self::options::{Remembered, Rewrite, RewriteOptions, Trial};

use self::heads::HeadKeep;
use self::rewriting::Rewriting;
use self::tenants::{TenantStore, hash_of};
use crate::body::{self, Parsed, Role, Skip};
use crate::config::Config;
use crate::conversation::memory::Memory;
use crate::engines::EngineId;
use crate::experiment::Arm;
use crate::feed::TenantKey;
use crate::head::HeadReport;
use crate::head::config::HeadMode;
use crate::head::contexts::{self, BareQuestions, ContextMemory, Newest, Plan};
use crate::head::decision::Decision;
use crate::head::stabilise::Heads;
use crate::standalone::{self, StandaloneDocument, StandaloneOrder};
use crate::tenant::Tenant;
use crate::tree::ViewedNode;

/// Orders the documents of requests. For every pair of tenant and model it has a policy, a memory of chats and a
/// knowledge tree (documents believed to be cached) for each engine.
///
/// A tenant's decisions depend only on its own requests while at most `tree.max_trees` pairs of tenant and model are in
/// use. Beyond that, states are evicted, so decisions also depend on how many other tenants there are. Memory is
/// bounded by the configuration: for each of `tree.max_trees` pairs, twice `conversation.max_bytes` (the chats, and the
/// contexts that clients leave out), up to three times `tree.max_nodes` for each engine (its tree, and what it would
/// hold in the client's order), and what the heads of prompts have taught.
pub struct Orderer {
    config: Config,
    tenants: TenantStore,
    /// The state learnt from the heads of prompts (tools, system text), by tenant and model, so that the heads of later
    /// prompts can be made alike.
    heads: HeadKeep,
    /// Hashes of recent questions that clients of any tenant sent without contexts (retrieved documents), as a Bloom
    /// filter, which may wrongly contain further questions.
    bare: BareQuestions,
    /// The report on the changes to the prompt's head (tools, system text) of the last request; see
    /// [`Orderer::last_head`].
    head: HeadReport,
    /// Number of requests so far, including those learnt from other workers' orderers. The last use of each tenant's
    /// and model's state is recorded as such a number, for eviction.
    now: u64,
}

impl Orderer {
    /// Returns an orderer without any recorded state: no knowledge trees (documents believed to be cached), chats or
    /// policies of any tenant.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            tenants: TenantStore::default(),
            heads: HeadKeep::default(),
            bare: BareQuestions::default(),
            head: HeadReport::default(),
            now: 0,
        }
    }

    /// Orders the documents of `body`, a chat request of `tenant`, for a gateway with one engine.
    ///
    /// Messages of a chat that are recorded are forwarded as before: their documents get the same order and location
    /// hints (references to earlier copies).
    ///
    /// # Errors
    /// Returns [`Skip`], the reason why the original body must be forwarded. Nothing is recorded then, except with
    /// [`Skip::NoDocuments`]: the chat's new messages, and what was learnt from the prompt's head (tools, system text).
    pub fn rewrite(&mut self, tenant: Tenant<'_>, body: &[u8]) -> Result<Rewrite, Skip> {
        self.rewrite_on(&RewriteOptions::default(), tenant, body)
    }

    /// Orders the documents of `body`, a chat request of `tenant`, with options for this request, such as the engines
    /// to choose from. If the options have a salt, [`Tenant::key`] must be the key of that salt. With neither salt nor
    /// key, `key_of` (if given) derives the key from the client's salt.
    ///
    /// # Errors
    /// Returns [`Skip`] as [`Orderer::rewrite`] does. The original body, which must be forwarded, then lacks the
    /// gateway's salt; use [`salted`](crate::salted).
    pub fn rewrite_on(
        &mut self,
        options: &RewriteOptions<'_>,
        tenant: Tenant<'_>,
        body: &[u8],
    ) -> Result<Rewrite, Skip> {
        let mut parsed = body::parse(body, &self.config)?;
        self.rewrite_parsed(options, tenant, &mut parsed)
    }

    /// Orders the documents of a chat request of `tenant`, with options for this request, in a body that was already
    /// parsed with this orderer's configuration. May recompute the hashes of messages in `parsed`.
    ///
    /// # Errors
    /// Returns [`Skip::NoDocuments`] if the body has no documents and its head (tools, system text) is not changed.
    pub fn rewrite_parsed(
        &mut self,
        options: &RewriteOptions<'_>,
        mut tenant: Tenant<'_>,
        parsed: &mut Parsed<'_>,
    ) -> Result<Rewrite, Skip> {
        self.head = HeadReport::default();
        if let (None, Some(key_of)) = (options.salt, options.key_of)
            && tenant.key == TenantKey::default()
        {
            tenant.key = parsed.salt.key(key_of);
        }
        self.now += 1;
        let mut decision = self.decide(tenant, parsed);
        let Some(mut plan) = self.plan(options, tenant, parsed, &decision) else {
            let arm = self.settle(options, tenant, parsed, &decision);
            return self.rewrite_as(options, tenant, parsed, decision, arm);
        };
        // If the plan is neither applied nor recorded, the body that it would make is not parsed.
        let is_read = self.config.head.mode() == HeadMode::Apply || self.config.pin.is_some();
        let read_on = (is_read && !plan.is_empty()).then(|| plan.body(parsed.text));
        let read = read_on.as_ref();
        let read = read.map(|text| {
            let mut read = body::parse(text.as_bytes(), &self.config)?;
            // The model may have come from the request's path instead of its body.
            read.for_model(&parsed.model)?;
            Ok::<_, Skip>(read)
        });
        // The rebuilt body may exceed the limit of documents, or hold text that no longer parses as a document after
        // the move. Then the plan is dropped.
        let read = read.transpose().ok();
        let read = read.filter(|read| read.as_ref().is_none_or(|read| plan.is_whole(read)));
        let Some(mut read) = read else {
            let arm = self.settle(options, tenant, parsed, &decision);
            return self.rewrite_as(options, tenant, parsed, decision, arm);
        };
        let report = &mut decision.report;
        report.restored = u32::try_from(plan.claims.len()).unwrap_or(u32::MAX);
        report.relocated = plan.moved;
        report.doubtful = plan.doubtful;
        (report.numbered, report.scored) = (plan.numbered, plan.scored);
        report.changes.extend(plan.changes());
        let newest = plan.newest(&self.config, read.as_ref().unwrap_or(parsed));
        let mut rewrite = match &mut read {
            None => {
                let arm = self.settle(options, tenant, parsed, &decision);
                self.rewrite_as(options, tenant, parsed, decision, arm)
            }
            Some(read) => {
                plan.shift(&mut decision);
                // The chat's beginning in the rebuilt body is the same at every turn.
                match self.settle(options, tenant, read, &decision) {
                    (arm, true) => self.rewrite_as(options, tenant, read, decision, (arm, true)),
                    settled => self.rewrite_as(options, tenant, parsed, decision, settled),
                }
            }
        };
        if let (Ok(rewrite), true) = (&mut rewrite, read.is_some())
            && rewrite.head.applied
        {
            rewrite.ordered = true;
            rewrite.body = rewrite.body.take().or(read_on.map(String::into_bytes));
        }
        let state = self.tenants.get_mut(tenant, &parsed.model);
        if let Newest::Bare(keys) = &newest {
            let owner = hash_of(tenant, &parsed.model);
            let keys = keys.iter().flatten();
            keys.for_each(|key| self.bare.add(owner, *key));
        }
        if let Some(state) = state {
            let message = match newest {
                Newest::Contexts(message) if rewrite.is_ok() => {
                    state.record_contexts(&self.bare, message.clone());
                    Some(message)
                }
                Newest::Contexts(_) | Newest::Known => None,
                Newest::Bare(keys) => {
                    let keys = keys.into_iter().flatten();
                    keys.for_each(|key| state.contexts.contest(key));
                    None
                }
            };
            // In reverse, so that the chat's first messages are evicted last.
            for claim in plan.claims.iter().rev() {
                state.contexts.claim(claim.key, claim.next);
            }
            let claims = std::mem::take(&mut plan.claims);
            if let Ok(rewrite) = &mut rewrite {
                rewrite.record.tell_contexts(claims, message.as_ref());
            }
        }
        rewrite
    }

    /// Returns two decisions: the arm of an experiment (an A/B test) to which the chat belongs (`None` outside one),
    /// and whether the changes in `decision` to the prompt's head (tools, system text) are applied. If they are,
    /// recomputes the hashes in `parsed` without the removed bytes.
    fn settle(
        &self,
        options: &RewriteOptions<'_>,
        tenant: Tenant<'_>,
        parsed: &mut Parsed<'_>,
        decision: &Decision<'_>,
    ) -> (Option<Arm>, bool) {
        // In a dry run the original body is forwarded, and recorded as such.
        let is_dry = matches!(options.trial, Trial::DryRun);
        let mut applies = self.config.head.mode() == HeadMode::Apply && !is_dry;
        if applies {
            parsed.rebase(
                decision.tools_field(parsed).as_deref(),
                &decision.unhashed_ranges(),
            );
        }
        let arm = Rewriting::arm(options, tenant, parsed);
        if applies && arm == Some(Arm::Control) {
            // The client's order includes the order of its tools.
            parsed.rebase(None, &[]);
            applies = false;
        }
        (arm, applies)
    }

    /// Rewrites the body `parsed`: orders its documents and applies `decision`, the changes to the prompt's head
    /// (tools, system text), whose offsets are offsets in this body. The last argument has the arm of the A/B test, and
    /// whether the changes to the head are applied. Returns [`Skip::NoDocuments`] if there is nothing to order or
    /// change.
    fn rewrite_as(
        &mut self,
        options: &RewriteOptions<'_>,
        tenant: Tenant<'_>,
        parsed: &Parsed<'_>,
        mut decision: Decision<'_>,
        (arm, applies): (Option<Arm>, bool),
    ) -> Result<Rewrite, Skip> {
        let mut report = std::mem::take(&mut decision.report);
        report.applied = applies && !report.changes.is_empty();
        self.head.clone_from(&report);
        let writes = applies && decision.writes();
        if !parsed.has_groups() && !writes && self.tenants.get(tenant, &parsed.model).is_none() {
            // A request without documents creates no state, which might evict another tenant's.
            return Err(Skip::NoDocuments);
        }
        let state = (self.tenants).of(&self.config, self.now, tenant, &parsed.model);
        let rewriting = Rewriting {
            config: &self.config,
            options,
            tenant,
            parsed,
            head: applies.then_some(&decision),
            arm,
        };
        let mut rewrite = rewriting.run(state)?;
        rewrite.head = report;
        if applies {
            let heads = self.heads.get_mut(tenant, &parsed.model);
            rewrite.record.forms = heads.map(Heads::take_unpublished).unwrap_or_default();
        }
        Ok(rewrite)
    }

    /// Returns the plan for rebuilding the body so that it has again the contexts (retrieved documents) that the client
    /// sent in earlier turns of the chat and omits now; `None` in a dry run (report only), or if the configuration
    /// enables no such change.
    fn plan<'a>(
        &self,
        options: &RewriteOptions<'_>,
        tenant: Tenant<'_>,
        parsed: &Parsed<'a>,
        decision: &Decision<'a>,
    ) -> Option<Plan<'a>> {
        if matches!(options.trial, Trial::DryRun) {
            return None;
        }
        let state = self.tenants.get(tenant, &parsed.model);
        contexts::plan(
            &self.config,
            parsed,
            decision,
            state.map(|state| &state.contexts),
        )
    }

    /// Returns the report on the prompt's head (tools, system text) of the last request: the changes made or, in the
    /// mode `report` of the configuration, those that would have been made. It is set even if the request was skipped.
    #[must_use]
    pub fn last_head(&self) -> &HeadReport {
        &self.head
    }

    /// Returns the changes to make to the head of a request's prompt (tools, system text), and records this head for
    /// later requests. A request with neither tools nor a leading system message creates no state and gets no changes.
    fn decide<'a>(&mut self, tenant: Tenant<'_>, parsed: &Parsed<'a>) -> Decision<'a> {
        let config = &self.config.head;
        let opens = (parsed.messages.first()).is_some_and(|first| first.role == Role::System);
        if config.mode() == HeadMode::Off || parsed.tools.is_empty() && !opens {
            return Decision::default();
        }
        let heads = self.heads.of(&self.config, self.now, tenant, &parsed.model);
        heads.decide(config, parsed)
    }

    /// Orders documents without a body, for a caller that writes its own prompts. The caller must send them in the
    /// returned order after the text `before`. Requests that are chats, or need location hints (references to earlier
    /// copies), must be ordered by [`Orderer::rewrite`] instead.
    ///
    /// # Errors
    /// Returns [`Skip::TooManyDocuments`], [`Skip::LongModelName`] or [`Skip::NoDocuments`]; nothing is recorded then.
    pub fn order(
        &mut self,
        tenant: Tenant<'_>,
        model: &str,
        before: &str,
        documents: &[StandaloneDocument<'_>],
    ) -> Result<StandaloneOrder, Skip> {
        standalone::check(&self.config, model, documents)?;
        self.now += 1;
        let state = (self.tenants).of(&self.config, self.now, tenant, model);
        Ok(standalone::order(
            &self.config,
            state.trees.of(EngineId::default()),
            state.policy.as_mut(),
            before,
            documents,
        ))
    }

    /// Returns the `limit` most recently used nodes of the first engine's knowledge tree of a tenant and model, as
    /// [`view`](crate::tree::KnowledgeTree::view) does; empty if there is no tree.
    #[must_use]
    pub fn view(&self, tenant: Tenant<'_>, model: &str, limit: usize) -> Vec<ViewedNode> {
        let state = self.tenants.any(tenant, model);
        state.map_or_else(Vec::new, |state| state.trees.first().view(limit))
    }

    /// Returns the configuration with which this orderer was built.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Drops the state of all tenants and models. Call it after the engine restarts with an empty cache.
    pub fn clear(&mut self) {
        self.tenants = TenantStore::default();
        self.heads = HeadKeep::default();
        self.bare = BareQuestions::default();
    }

    /// Returns the number of pairs of tenant and model that have state. Each pair has one knowledge tree (documents
    /// believed to be cached) for each engine.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.tenants.len()
    }

    /// Returns the number of nodes in the knowledge trees (documents believed to be cached) of all tenants, models and
    /// engines together.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.tenants.iter().map(|state| state.trees.nodes()).sum()
    }

    /// Returns the number of recorded messages of chats and the memory that they take, over all tenants and models.
    #[must_use]
    pub fn remembered(&self) -> Remembered {
        let memories = || self.tenants.iter().map(|state| &state.memory);
        let contexts = || self.tenants.iter().map(|state| &state.contexts);
        Remembered {
            messages: memories().map(|memory| memory.len() as u64).sum(),
            bytes: memories().map(Memory::bytes).sum(),
            contexts: contexts().map(|known| known.len() as u64).sum(),
            context_bytes: contexts().map(ContextMemory::bytes).sum(),
        }
    }
}

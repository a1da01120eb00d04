//! What is kept for every tenant and model, and the one call that uses it: a request, from body to body.

use crate::arrangement::Listed;
use crate::body::{self, Retrieved, Skip, edit};
use crate::config::Config;
use crate::conversation::memory::{Memory, Path};
use crate::document::estimate_tokens;
use crate::engines::{self, Choice, EngineId};
use crate::experiment::{Arm, Experiment};
use crate::feed::{Change, Event, TenantKey};
use crate::path::SentPath;
use crate::plain::{self, Ordered, Plain};
use crate::policy::Policy;
use crate::request::{self, Manner};
use crate::tenant::Tenant;
use crate::told::{Continued, Deed, SentRun, Told};
use crate::tree::{ResidencyEvent, ViewedNode};
use crate::trees::Trees;
use fxhash::FxHashMap;

/// Orders requests; holds a policy, a memory of chats and a knowledge tree for each engine, for every tenant and model.
///
/// A tenant's decisions depend on its own requests alone, as long as no more than `tree.max_trees` tenants and models
/// are in use; beyond that, on how many tenants there are: each keeps its share of the trees. Memory is bounded by the
/// configuration: at most `tree.max_trees` times `conversation.max_bytes`, and `tree.max_nodes` for each engine.
pub struct Orderer {
    config: Config,
    /// By tenant and model (see [`tree_key`]).
    trees: FxHashMap<String, Kept>,
    /// Requests so far: the trees' time.
    now: u64,
}

struct Kept {
    /// The tenant's name; empty where tenants are not told apart.
    tenant: Box<str>,
    key: TenantKey,
    model: Box<str>,
    trees: Trees,
    policy: Box<dyn Policy>,
    memory: Memory,
    last_used: u64,
}

/// How one request is to be sent, beside what the configuration says of all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms<'a> {
    /// Written as the body's `cache_salt`, whatever the client sent; `None`: what it sent stays.
    pub salt: Option<&'a str>,
    /// Makes a tenant's key of the salt that the client sent: [`TenantKey::of`]. `None`: the client's salt tells nobody
    /// apart. A function, so that a module for pages, which know no tenants, holds no SHA-256.
    pub key_of: Option<fn(&str) -> TenantKey>,
    /// Whether the order is put to the test.
    pub trial: Trial<'a>,
    /// The engines that it may go to: see [`Choice`]. Those above [`MAX_ENGINES`](crate::MAX_ENGINES) do not
    /// count; without any it goes to the first engine.
    pub choices: &'a [Choice],
    /// Documents that a retriever found for a body without any.
    pub retrieved: Option<&'a Retrieved<'a>>,
}

/// Whether the order is put to the test.
#[derive(Clone, Copy, Debug, Default)]
pub enum Trial<'a> {
    /// It is not.
    #[default]
    None,
    /// The order is decided and reported, the body goes on as it came, and that is what is learnt. An array that would
    /// have been rendered is learnt as if it had been rendered in the client's order.
    DryRun,
    /// Some chats go on in the client's order.
    Experiment(&'a Experiment),
}

/// What became of a request.
#[derive(Debug)]
pub struct Rewrite {
    /// The body to send; `None`: the one that came.
    pub body: Option<Vec<u8>>,
    /// Whether more than the salt was written: documents changed places, or words were added.
    pub ordered: bool,
    /// What was done; in a dry run, what would have been.
    pub report: Report,
    /// The documents that are sent, as the tree knows them.
    pub path: SentPath,
    /// The chat's arm in an experiment.
    pub arm: Option<Arm>,
    /// In a dry run: what was done, which is nothing, and what it matched.
    pub as_sent: Option<Report>,
    /// All that other orderers of the same requests need to know of this one.
    pub deed: Deed,
}

/// What was done with a request's documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The policy's name.
    pub policy: &'static str,
    /// Documents found in the body.
    pub documents: u32,
    /// Documents at the prompt's beginning whose KV state the engine is believed to hold.
    pub matched: u32,
    /// Documents that stand elsewhere than the client put them.
    pub moved: u32,
    /// Repeats that were left out: they equal a document beside them byte for byte.
    pub dropped: u32,
    /// Documents that a location hint stands for, because an earlier turn of the chat holds them byte for byte.
    pub deduplicated: u32,
    /// Documents of earlier requests that were written again where they first stood.
    pub pinned: u32,
    /// Messages with documents that were sent as they are remembered.
    pub replayed: u32,
    /// Whether an order hint was written.
    pub hinted: bool,
    /// Estimated tokens of the documents sent, pinned ones included.
    pub document_tokens: u64,
    /// Estimated tokens of the matched ones.
    pub matched_tokens: u64,
}

/// What is remembered of chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Messages of chats; without pinning, only those that documents stand in or that a request ended with.
    pub messages: u64,
    /// Estimated bytes that this takes.
    pub bytes: u64,
}

impl Orderer {
    /// An orderer that knows nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            trees: FxHashMap::default(),
            now: 0,
        }
    }

    /// Orders the documents of `body`, an OpenAI chat request of `tenant`, and expects it to be sent to the one engine
    /// there is.
    ///
    /// Messages that the tenant's chats are known by are sent as they were sent before.
    ///
    /// # Errors
    /// [`Skip`] says why the body is to be sent as it came. Nothing was remembered then, but for
    /// [`Skip::NoDocuments`]: that a chat went on without documents.
    pub fn rewrite(&mut self, tenant: Tenant<'_>, body: &[u8]) -> Result<Rewrite, Skip> {
        self.rewrite_on(&Terms::default(), tenant, body)
    }

    /// The same on terms of its own. With a salt, [`Tenant::key`] is that salt's; without one, and without a key, it is
    /// the key of the salt that the client sent, if the terms say how to make it.
    ///
    /// # Errors
    /// As [`Orderer::rewrite`]. Nothing is salted then: [`salted`](crate::salted) does that.
    pub fn rewrite_on(
        &mut self,
        terms: &Terms<'_>,
        mut tenant: Tenant<'_>,
        body: &[u8],
    ) -> Result<Rewrite, Skip> {
        let parsed = body::parse_with(body, terms.retrieved, &self.config)?;
        if let (None, Some(key_of)) = (terms.salt, terms.key_of)
            && tenant.key == TenantKey::default()
        {
            tenant.key = parsed.salt.key(key_of);
        }
        let arm = match terms.trial {
            Trial::Experiment(experiment) => Some(experiment.arm(tenant.name, parsed.start())),
            Trial::None | Trial::DryRun => None,
        };
        self.now += 1;
        let key = tree_key(tenant, &parsed.model);
        let has_documents = parsed.has_documents();
        if !has_documents && !self.trees.contains_key(&key) {
            // A tenant that never sends documents takes no other one's place.
            return Err(Skip::NoDocuments);
        }
        let model = parsed.model.as_ref();
        let kept = kept_of(&mut self.trees, &self.config, key, self.now, tenant, model);
        let written = parsed.rendered.as_ref().and_then(|(message, group)| {
            Some((
                u32::try_from(*message).ok()?,
                Listed::of(group).fingerprint(),
            ))
        });
        let chains = parsed.messages.iter().map(|message| message.chain);
        let is_trial = matches!(terms.trial, Trial::DryRun) || arm == Some(Arm::Control);
        let path = if is_trial {
            // What earlier turns were sent as is not what the client's order is.
            Path::default()
        } else {
            kept.memory.find(chains, written)
        };
        // The same question asked again is no chat that goes on.
        let last = u32::try_from(parsed.messages.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let home = kept.memory.engine(&path, last);
        let choices = engines::choices(terms.choices, home);
        let Kept {
            trees,
            policy,
            memory,
            ..
        } = kept;
        let mut send = |engine, manner| {
            request::send(
                &self.config,
                &parsed,
                trees.of(engine),
                policy.as_mut(),
                memory,
                &path,
                manner,
            )
        };
        let manner = if is_trial {
            Manner::AsRanked
        } else {
            Manner::Ordered
        };
        let mut best: Option<(u64, EngineId, request::Outcome<'_>)> = None;
        for choice in &choices {
            let sent = send(choice.engine, manner);
            let cost = (sent.report.document_tokens)
                .saturating_sub(sent.report.matched_tokens)
                .saturating_add(choice.outstanding);
            if (best.as_ref()).is_none_or(|(lowest, ..)| cost < *lowest) {
                best = Some((cost, choice.engine, sent));
            }
        }
        let Some((_, engine, sent)) = best else {
            return Err(Skip::NoDocuments);
        };
        let tried = matches!(terms.trial, Trial::DryRun).then(|| {
            let tried = send(engine, Manner::Tried);
            (tried.report, tried.runs)
        });
        let request::Outcome {
            mut edits,
            report,
            runs,
            mut added,
        } = sent;
        let mut path_sent = SentPath {
            runs: runs.iter().map(SentRun::path).collect(),
        };
        if tried.is_some() {
            edits.clear();
            path_sent.runs.clear();
        }
        let ordered = !edits.is_empty();
        let new = if has_documents || ordered {
            edits.extend(terms.salt.map(|salt| parsed.salt.write(parsed.text, salt)));
            (!edits.is_empty()).then(|| edit::apply(parsed.text, edits))
        } else {
            None
        };
        if is_trial {
            added.clear();
        }
        let chat = Continued::told(memory.place(&path), &added);
        // A chat without documents is remembered where chats that open alike may have some pinned in them: the one must
        // not be taken for the other.
        if !has_documents && !self.config.pins() {
            added.clear();
        }
        memory.record(&path, added, engine);
        // What was only weighed is in no path.
        for other in choices.iter().filter(|other| other.engine != engine) {
            trees
                .of(other.engine)
                .discard(runs.iter().flat_map(|run| &run.documents));
        }
        kept.take(engine, &runs);
        if let Some((_, runs)) = &tried {
            (kept.trees.of(engine)).discard(runs.iter().flat_map(|run| &run.documents));
        }
        if !has_documents && !ordered {
            return Err(Skip::NoDocuments);
        }
        Ok(Rewrite {
            ordered,
            report: tried.as_ref().map_or(report, |(report, _)| *report),
            path: path_sent,
            arm,
            as_sent: tried.map(|_| report),
            deed: Deed {
                tenant: tenant.name.into(),
                key: tenant.key,
                model: parsed.model.as_ref().into(),
                engine,
                tokens: estimate_tokens(new.as_ref().map_or(body.len(), Vec::len)),
                runs,
                chat,
            },
            body: new,
        })
    }

    /// Takes into account what another orderer did, or learnt of an engine, as if this one had done and learnt it
    /// itself.
    ///
    /// What is known of a chat stays as it is, and of what continues a turn that is not known nothing is taken.
    pub fn learn(&mut self, told: &Told) {
        match told {
            Told::Deed(deed) => self.learn_deed(deed),
            Told::Residency(residency) => {
                for event in &residency.events {
                    self.learn_event(residency.engine, &residency.model, event);
                }
            }
            Told::Correction(correction) => {
                let key = tree_key(correction.tenant(), &correction.model);
                if let Some(kept) = self.trees.get_mut(&key) {
                    for run in &correction.runs {
                        kept.trees.of(correction.engine).apply(run.event());
                    }
                }
            }
        }
    }

    fn learn_deed(&mut self, deed: &Deed) {
        self.now += 1;
        let key = tree_key(deed.tenant(), &deed.model);
        let kept = kept_of(
            &mut self.trees,
            &self.config,
            key,
            self.now,
            deed.tenant(),
            &deed.model,
        );
        kept.take(deed.engine, &deed.runs);
        if let Some(Continued { after, added }) = &deed.chat
            && let Some(path) = after.map_or(Some(Path::new()), |place| kept.memory.path_to(place))
        {
            kept.memory.record(&path, added.clone(), deed.engine);
        }
    }

    /// A feed names tenants by their keys, and a model by the engine's name for it, which a request need not use that
    /// leaves the model to the engine.
    ///
    /// What is stored without a key may be anybody's: where tenants have names, none of them learns of it.
    fn learn_event(&mut self, engine: EngineId, model: &str, event: &Event) {
        let change = match event.change() {
            Change::Forget => ResidencyEvent::Cleared,
            Change::Tenant(_, change) => change,
        };
        let is_stored = matches!(change, ResidencyEvent::Stored { .. });
        if is_stored && event.tenant() == Some(TenantKey::default()) {
            let key = tree_key(Tenant::default(), model);
            let nobody = Tenant::default();
            kept_of(&mut self.trees, &self.config, key, self.now, nobody, model);
        }
        for kept in self.trees.values_mut() {
            let concerns = (*kept.model == *model || kept.model.is_empty())
                && event.tenant().is_none_or(|key| key == kept.key);
            let is_known = kept.tenant.is_empty() || kept.key != TenantKey::default();
            if concerns && (is_known || !is_stored) {
                kept.trees.of(engine).apply(change);
            }
        }
    }

    /// Orders documents that stand in no body, for a caller that writes its prompts itself, and expects them to be sent
    /// in that order behind `before`. Chats, location hints and bodies are [`Orderer::rewrite`]'s.
    ///
    /// # Errors
    /// [`Skip::TooManyDocuments`], [`Skip::LongModelName`], [`Skip::NoDocuments`]; nothing was remembered then.
    pub fn order(
        &mut self,
        tenant: Tenant<'_>,
        model: &str,
        before: &str,
        documents: &[Plain<'_>],
    ) -> Result<Ordered, Skip> {
        plain::check(&self.config, model, documents)?;
        self.now += 1;
        let key = tree_key(tenant, model);
        let kept = kept_of(&mut self.trees, &self.config, key, self.now, tenant, model);
        Ok(plain::order(
            &self.config,
            kept.trees.of(EngineId::default()),
            kept.policy.as_mut(),
            before,
            documents,
        ))
    }

    /// The `limit` most recently used nodes of a tenant's tree for a model and the first engine: see [`view`](crate::tree::KnowledgeTree::view).
    #[must_use]
    pub fn view(&self, tenant: Tenant<'_>, model: &str, limit: usize) -> Vec<ViewedNode> {
        let kept = self.trees.get(&tree_key(tenant, model));
        kept.map_or_else(Vec::new, |kept| kept.trees.first().view(limit))
    }

    /// How it was told to order.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Forgets everything, as after the engine was restarted.
    pub fn clear(&mut self) {
        self.trees.clear();
    }

    /// Trees kept.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.trees.len()
    }

    /// Nodes in all trees.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.trees.values().map(|kept| kept.trees.nodes()).sum()
    }

    /// What is remembered of all chats.
    #[must_use]
    pub fn remembered(&self) -> Remembered {
        let memories = || self.trees.values().map(|kept| &kept.memory);
        Remembered {
            messages: memories().map(|memory| memory.len() as u64).sum(),
            bytes: memories().map(Memory::bytes).sum(),
        }
    }
}

impl Kept {
    /// These documents were sent: the engine is expected to hold them, and the policy learns their order.
    fn take(&mut self, engine: EngineId, runs: &[SentRun]) {
        for run in runs {
            if let Some(order) = &run.order {
                self.policy.remember(&run.ranked(order), order);
            }
            self.trees.of(engine).hold(run.scope, &run.documents);
        }
    }
}

impl Report {
    /// Nothing was done yet.
    pub(crate) fn new(policy: &'static str) -> Self {
        Self {
            policy,
            documents: 0,
            matched: 0,
            moved: 0,
            dropped: 0,
            deduplicated: 0,
            pinned: 0,
            replayed: 0,
            hinted: false,
            document_tokens: 0,
            matched_tokens: 0,
        }
    }
}

/// The key of a tenant's tree for a model, framed so that no two of them share one.
fn tree_key(tenant: Tenant<'_>, model: &str) -> String {
    let Tenant { name, key } = tenant;
    format!("{}:{name}{key};{model}", name.len())
}

/// What is kept under that key; if nothing is, something new, in place of another one when there are too many.
fn kept_of<'t>(
    trees: &'t mut FxHashMap<String, Kept>,
    config: &Config,
    key: String,
    now: u64,
    tenant: Tenant<'_>,
    model: &str,
) -> &'t mut Kept {
    if !trees.contains_key(&key)
        && trees.len() >= config.max_trees as usize
        && let Some(key) = given_up(trees, tenant.name)
    {
        trees.remove(&key);
    }
    let kept = trees.entry(key).or_insert_with(|| Kept {
        tenant: tenant.name.into(),
        key: tenant.key,
        model: model.into(),
        trees: Trees::new(config.tree),
        policy: config.policy.build(&config.policy_options),
        memory: Memory::new(config.memory),
        last_used: now,
    });
    kept.last_used = now;
    kept
}

/// The tree that makes room for another one of `tenant`: the least recently used one of the tenant that has most, and
/// of its own where no other has more than it would have then. So with n tenants in use each keeps its share, an n-th of
/// `tree.max_trees`, however many models another names. O(trees), once for each new tree.
fn given_up(trees: &FxHashMap<String, Kept>, tenant: &str) -> Option<String> {
    let mut counts: FxHashMap<&str, u32> = FxHashMap::default();
    for kept in trees.values() {
        *counts.entry(&kept.tenant).or_default() += 1;
    }
    let own = counts.get(tenant).copied().unwrap_or_default();
    let most = counts.values().copied().max().unwrap_or_default();
    let gives = |kept: &Kept| {
        if own > 0 && most <= own + 1 {
            *kept.tenant == *tenant
        } else {
            counts.get(&*kept.tenant) == Some(&most)
        }
    };
    let candidates = trees.iter().filter(|(_, kept)| gives(kept));
    candidates
        .min_by_key(|(_, kept)| kept.last_used)
        .map(|(key, _)| key.clone())
}

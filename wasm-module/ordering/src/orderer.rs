//! One request, from body to body: find its documents, drop repeats, order them, remember the order.

use crate::body::{self, Found, Group, Place, Skip, edit};
use crate::config::Config;
use crate::document::Candidate;
use crate::policy::{Order, Policy, match_of};
use crate::tree::KnowledgeTree;
use fxhash::FxHashMap;
use smallvec::SmallVec;

/// Orders requests; holds a knowledge tree for every tenant and model.
///
/// A tenant's decisions depend on its own requests alone. Memory is bounded by the configuration: at most
/// `max_trees` trees of `max_nodes` nodes.
pub struct Orderer {
    config: Config,
    /// By tenant and model (see [`tree_key`]).
    trees: FxHashMap<String, Kept>,
    /// Requests ordered so far: the trees' time.
    now: u64,
}

struct Kept {
    tree: KnowledgeTree,
    policy: Box<dyn Policy>,
    last_used: u64,
}

/// What became of a request.
#[derive(Debug)]
pub struct Rewrite {
    /// The body to send; `None`: the one that came.
    pub body: Option<Vec<u8>>,
    /// What was done.
    pub report: Report,
}

/// What was done with a request's documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The policy's name.
    pub policy: &'static str,
    /// Documents found.
    pub documents: u32,
    /// Documents at the prompt's beginning whose KV state the engine is believed to hold.
    pub matched: u32,
    /// Documents that stand elsewhere than the client put them.
    pub moved: u32,
    /// Repeats within the request that were left out.
    pub dropped: u32,
    /// Whether an order hint was written.
    pub hinted: bool,
    /// Estimated tokens of the documents sent.
    pub document_tokens: u64,
    /// Estimated tokens of the matched ones.
    pub matched_tokens: u64,
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

    /// Orders the documents of `body`, an OpenAI chat request of `tenant`, and expects it to be sent.
    ///
    /// # Errors
    /// [`Skip`] says why the body is to be sent as it came; nothing was remembered then.
    pub fn rewrite(&mut self, tenant: &str, body: &[u8]) -> Result<Rewrite, Skip> {
        let parsed = body::parse(body, &self.config)?;
        self.now += 1;
        let kept = kept_of(
            &mut self.trees,
            &self.config,
            tree_key(tenant, &parsed.model),
            self.now,
        );
        let mut report = Report {
            policy: self.config.policy.name(),
            documents: 0,
            matched: 0,
            moved: 0,
            dropped: 0,
            hinted: false,
            document_tokens: 0,
            matched_tokens: 0,
        };
        let mut edits = Vec::new();
        for group in &parsed.groups {
            edits.extend(order_group(&self.config, kept, group, &mut report));
        }
        // Only a body that was read as UTF-8 gets here.
        let body = if edits.is_empty() {
            None
        } else {
            std::str::from_utf8(body).ok()
        };
        Ok(Rewrite {
            body: body.map(|body| edit::apply(body, edits)),
            report,
        })
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
        self.trees.values().map(|kept| kept.tree.len()).sum()
    }
}

/// Orders one group; the edits that it takes, none if the group stays as it is.
fn order_group<'a>(
    config: &Config,
    kept: &mut Kept,
    group: &Group<'a>,
    report: &mut Report,
) -> Vec<edit::Edit<'a>> {
    let Kept { tree, policy, .. } = kept;
    let (distinct, repeats) = without_repeats(&group.found);
    let candidates: SmallVec<[Candidate<'_>; 16]> = distinct
        .iter()
        .map(|found| Candidate {
            id: tree.intern(found.fingerprint),
            fingerprint: found.fingerprint,
            label: found.label,
            tokens: found.tokens,
        })
        .collect();
    let order = policy.order(&candidates, tree, group.scope);
    let found = match_of(&candidates, &order, tree, group.scope);
    policy.remember(&candidates, &order);
    let path = order
        .iter()
        .filter_map(|&rank| candidates.get(usize::from(rank)));
    tree.insert(
        group.scope,
        path.map(|candidate| (candidate.id, candidate.tokens)),
    );

    let moved = moved(&order);
    let hint = config
        .hint
        .as_ref()
        .filter(|_| moved > 0 && group.hint.is_some())
        .and_then(|template| {
            let labels: SmallVec<[&str; 16]> = distinct.iter().map(|found| found.label).collect();
            template.render(&labels)
        });
    let mut kept: Vec<&Found<'a>> = order
        .iter()
        .filter_map(|&rank| distinct.get(usize::from(rank)).copied())
        .collect();
    let keeps_repeats = matches!(
        group.place,
        Place::Slots {
            all_filled: true,
            ..
        }
    );
    if keeps_repeats {
        kept.extend(&repeats);
    } else {
        report.dropped += count(repeats.len());
    }
    report.documents += count(group.found.len());
    report.matched += found.documents;
    report.matched_tokens += found.tokens;
    report.moved += moved;
    report.hinted |= hint.is_some();
    report.document_tokens += kept
        .iter()
        .map(|found| u64::from(found.tokens))
        .sum::<u64>();

    let unchanged = moved == 0 && repeats.is_empty() && matches!(group.place, Place::Slots { .. });
    if unchanged {
        Vec::new()
    } else {
        edit::edits(&group.place, group.hint, &kept, hint)
    }
}

/// The documents without those that another one before them equals byte for byte, and those.
fn without_repeats<'f, 'a>(found: &'f [Found<'a>]) -> (Vec<&'f Found<'a>>, Vec<&'f Found<'a>>) {
    let mut seen = fxhash::FxHashSet::default();
    found
        .iter()
        .partition(|found| seen.insert(found.fingerprint))
}

/// Documents that do not stand at their rank.
fn moved(order: &Order) -> u32 {
    count(
        (0_u16..)
            .zip(order)
            .filter(|(place, rank)| place != *rank)
            .count(),
    )
}

fn count(documents: usize) -> u32 {
    u32::try_from(documents).unwrap_or(u32::MAX)
}

/// The key of a tenant's tree for a model, framed so that no two pairs share one.
fn tree_key(tenant: &str, model: &str) -> String {
    format!("{}:{tenant}{model}", tenant.len())
}

/// The tree and policy of that key; a new one, in place of the least recently used one when there are too many.
fn kept_of<'t>(
    trees: &'t mut FxHashMap<String, Kept>,
    config: &Config,
    key: String,
    now: u64,
) -> &'t mut Kept {
    if !trees.contains_key(&key)
        && trees.len() >= config.max_trees as usize
        && let Some(oldest) = trees
            .iter()
            .min_by_key(|(_, kept)| kept.last_used)
            .map(|(key, _)| key.clone())
    {
        trees.remove(&oldest);
    }
    let kept = trees.entry(key).or_insert_with(|| Kept {
        tree: KnowledgeTree::new(config.tree),
        policy: config.policy.build(&config.policy_options),
        last_used: now,
    });
    kept.last_used = now;
    kept
}

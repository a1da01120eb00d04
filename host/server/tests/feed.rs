//! What the feed says is what the cache holds: a gateway's tree that follows the feed, at its own pace, against the
//! cache itself, over random traffic.
//!
//! ```text
//!   random requests ──▶ PrefixCache ── events ──▶ Feed ──▶ wire ──▶ Follower ──▶ KnowledgeTree per tenant
//!                            │                                                        │
//!                            └──────── lookup of every path ever sent ═══ must agree ─┘
//! ```

use foreword_engine::TokenId;
use foreword_engine::cache::{
    CacheConfig, CacheUse, DocumentPath, DocumentSpan, EvictionPolicy, Lease, Pages, PrefixCache,
};
use foreword_engine::engine::feed::{Feed, Position};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Batch, Follower, TenantKey};
use foreword_ordering::random::Random;
use foreword_ordering::tree::{Bounds, KnowledgeTree, Scope};
use foreword_server::kv::wire;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

const PAGE: u32 = 4;
const SALTS: [&str; 2] = ["", "a tenant's"];

/// A path with whose it is: salt, scope, documents.
type Path = (&'static str, u64, Vec<u64>);

/// An engine's cache and its feed, driven as an engine drives them.
struct Host {
    random: Random,
    cache: PrefixCache,
    feed: Feed,
    pages: Pages,
    config: CacheConfig,
    running: Vec<Running>,
    /// For every path sent: where its last document ends, and tokens that begin with it.
    sent: BTreeMap<Path, (u32, Vec<TokenId>)>,
}

struct Running {
    lease: Lease,
    tokens: Vec<TokenId>,
    computed: u32,
}

impl Host {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let pages = Pages {
            device: 30 + random.below(40) as u32,
            host: random.below(3) as u32 * 20,
            tokens: PAGE,
        };
        let policies = EvictionPolicy::ALL;
        let config = CacheConfig {
            policy: policies[random.below(policies.len() as u64) as usize],
            ..CacheConfig::default()
        };
        Self {
            cache: PrefixCache::new(pages, &config),
            feed: Feed::new(),
            random,
            pages,
            config,
            running: Vec::new(),
            sent: BTreeMap::new(),
        }
    }

    /// One thing that an engine may do; what came of it is published.
    fn step(&mut self) {
        match self.random.below(40) {
            0..20 => self.open(),
            20..30 => self.compute(),
            30..36 => self.close(),
            36 => {
                if let Some(running) = self.running.pop() {
                    self.cache.abandon(running.lease);
                }
            }
            37 => {
                if let Some(running) = self.running.pop() {
                    self.cache.forget(running.lease);
                }
            }
            38 if self.random.below(8) == 0 => {
                self.cache.clear();
            }
            39 if self.random.below(8) == 0 => self.restart(),
            _ => {}
        }
        self.cache.take_transfers();
        self.cache.landed();
        self.feed.publish(self.cache.take_events());
    }

    /// Documents have at least a page of tokens, so that each ends on a page of its own.
    fn open(&mut self) {
        let salt = SALTS[self.random.below(2) as usize];
        let scope = self.random.below(3);
        let mut tokens: Vec<TokenId> = (0..3 + 2 * scope as TokenId).map(|at| 1000 + at).collect();
        let start = tokens.len() as u32;
        let mut documents: Vec<u64> = (0..7).collect();
        self.random.shuffle(&mut documents);
        documents.truncate(1 + self.random.below(4) as usize);
        // Few openings, or nothing would ever be found again.
        documents[0] %= 3;
        let mut seen = BTreeSet::new();
        documents.retain(|document| seen.insert(*document));
        let mut spans = Vec::new();
        for &document in &documents {
            tokens.extend((0..4 + document as u32 * 2).map(|at| 100 * (document as u32 + 1) + at));
            spans.push(DocumentSpan {
                fingerprint: document,
                end: tokens.len() as u32,
            });
        }
        let question = 1 + self.random.below(6);
        tokens.extend((0..question).map(|_| 2000 + self.random.below(500) as TokenId));
        for (depth, span) in (1..).zip(&spans) {
            let path = (salt, scope, documents[..depth].to_vec());
            let known = self.sent.insert(path, (span.end, tokens.clone()));
            assert!(known.is_none_or(|(end, _)| end == span.end));
        }
        let path = DocumentPath {
            scope,
            start,
            documents: spans,
        };
        let salt: Arc<str> = salt.into();
        if let Some(opening) = self
            .cache
            .open(&salt, &tokens, Some(&path), CacheUse::default())
        {
            let copied = opening.copy.map_or(0, |copy| copy.tokens);
            self.running.push(Running {
                lease: opening.lease,
                tokens,
                computed: opening.cached_tokens + copied,
            });
        } else {
            self.close();
        }
    }

    fn compute(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.random.below(self.running.len() as u64) as usize;
        let share = 1 + self.random.below(20) as u32;
        let running = &mut self.running[at];
        running.computed = (running.computed + share).min(running.tokens.len() as u32);
        self.cache
            .commit(&mut running.lease, &running.tokens, running.computed);
    }

    fn close(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.random.below(self.running.len() as u64) as usize;
        let Running {
            lease,
            tokens,
            mut computed,
        } = self.running.swap_remove(at);
        if self.random.below(3) > 0 {
            computed = tokens.len() as u32;
        }
        self.cache.close(lease, &tokens, computed);
    }

    fn restart(&mut self) {
        self.running.clear();
        self.cache = PrefixCache::new(self.pages, &self.config);
        self.feed.restart();
    }

    /// The paths whose documents are held, as the cache itself finds them.
    fn held(&self) -> BTreeSet<Path> {
        let mut held = BTreeSet::new();
        for ((salt, scope, documents), (end, tokens)) in &self.sent {
            let pages = end / PAGE;
            // One token more than is asked for: the last is never found.
            let found = self.cache.lookup(salt, &tokens[..*end as usize + 1]);
            if pages > 0 && found.tokens >= pages * PAGE {
                let depths = 1..=documents.len();
                held.extend(depths.map(|depth| (*salt, *scope, documents[..depth].to_vec())));
            }
        }
        held
    }
}

/// A gateway: asks, and believes what it is told.
#[derive(Default)]
struct Gateway {
    follower: Follower,
    trees: HashMap<TenantKey, KnowledgeTree>,
    /// Batches that said to begin anew.
    resets: u32,
}

impl Gateway {
    /// Reads at most `limit` events; whether there may be more.
    fn read(&mut self, feed: &Feed, limit: usize) -> bool {
        let since = query(&self.follower.query());
        let news = feed.documents_since(since, limit);
        // Over the wire and back.
        let json = serde_json::to_vec(&wire::batch(&news, "m", None).wire(None)).unwrap();
        let batch = Batch::read(&json, None).unwrap();
        self.resets += u32::from(news.reset);
        for event in self.follower.follow(&batch) {
            let Some(tenant) = event.tenant() else {
                self.trees.clear();
                continue;
            };
            let bounds = Bounds {
                max_nodes: 100_000,
                max_tokens: None,
            };
            let tree = self.trees.entry(tenant);
            tree.or_insert_with(|| KnowledgeTree::new(bounds))
                .apply(event.residency());
        }
        news.reset || news.events.len() == limit
    }

    fn believes(&mut self, (salt, scope, documents): &Path) -> bool {
        let Some(tree) = self.trees.get_mut(&TenantKey::of(salt)) else {
            return false;
        };
        let mut at = tree.root(Scope(*scope));
        for &document in documents {
            let id = tree.intern(Fingerprint(document));
            at = at.and_then(|node| tree.child(node, id));
        }
        at.is_some()
    }

    /// Documents in all trees.
    fn documents(&self) -> usize {
        let trees = self.trees.values();
        trees
            .map(|tree| {
                let scopes = (0..3).filter(|&scope| tree.root(Scope(scope)).is_some());
                tree.len() - scopes.count()
            })
            .sum()
    }
}

/// The position in a follower's query, as the server reads it.
fn query(query: &str) -> Option<Position> {
    let (epoch, since) = query.strip_prefix("epoch=")?.split_once("&since=")?;
    Some(wire::position(epoch.parse().ok()?, since.parse().ok()?))
}

#[test]
fn a_gateway_that_follows_the_feed_knows_what_the_cache_holds() {
    let (mut held_paths, mut resets) = (0, 0);
    for seed in 0..40 {
        let mut host = Host::new(seed);
        let mut gateways = [Gateway::default(), Gateway::default()];
        for round in 0..400 {
            host.step();
            // One keeps up, in bites of any size; the other looks now and then.
            let limit = 1 + host.random.below(5) as usize;
            while gateways[0].read(&host.feed, limit) {}
            if round % 97 == 0 {
                while gateways[1].read(&host.feed, 1000) {}
            }
            if round % 7 > 0 {
                continue;
            }
            let held = host.held();
            held_paths += held.len();
            for path in host.sent.keys() {
                let believed = gateways[0].believes(path);
                assert_eq!(
                    believed,
                    held.contains(path),
                    "seed {seed}, round {round}: {path:?}"
                );
            }
            assert_eq!(
                gateways[0].documents(),
                held.len(),
                "seed {seed}, round {round}"
            );
        }
        while gateways[1].read(&host.feed, 1000) {}
        for path in host.sent.keys() {
            assert_eq!(
                gateways[0].believes(path),
                gateways[1].believes(path),
                "seed {seed}: {path:?}"
            );
        }
        resets += gateways[0].resets;
    }
    // The traffic was worth following.
    assert!(held_paths > 10_000, "{held_paths} paths were held");
    assert!(resets > 40, "{resets} resets");
}

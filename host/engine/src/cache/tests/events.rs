//! Tests that a reader of the events knows the cache's content.

use super::*;
use std::collections::{HashMap, HashSet};

/// The knowledge of a reader that follows the events.
#[derive(Default)]
struct Follower {
    pages: HashSet<(PageHash, Tier)>,
    /// The parent and tokens of every page ever reported.
    links: HashMap<PageHash, (Option<PageHash>, Vec<TokenId>)>,
    documents: HashMap<(Arc<str>, u64, Vec<Document>), u32>,
}

impl Follower {
    fn follow(&mut self, events: Vec<CacheEvent>) {
        for event in events {
            match event {
                CacheEvent::Stored {
                    hash,
                    parent,
                    tokens,
                    salt,
                    tier,
                } => {
                    let before = parent.unwrap_or_else(|| PageHash::root(0, &salt));
                    assert_eq!(before.then(&tokens), hash);
                    assert!(self.pages.insert((hash, tier)), "{hash:?} is told twice");
                    let held = |parent| {
                        let tiers = [Tier::Device, Tier::Host];
                        tiers
                            .iter()
                            .any(|&tier| self.pages.contains(&(parent, tier)))
                    };
                    assert!(parent.is_none_or(held), "{hash:?} has no parent");
                    self.links.insert(hash, (parent, tokens.to_vec()));
                }
                CacheEvent::Removed { hash, tier } => {
                    assert!(self.pages.remove(&(hash, tier)), "{hash:?} was not there");
                }
                CacheEvent::Cleared => {
                    self.pages.clear();
                    self.documents.clear();
                }
                CacheEvent::DocumentsStored { salt, scope, path } => {
                    *self
                        .documents
                        .entry((salt, scope, path.to_vec()))
                        .or_default() += 1;
                }
                CacheEvent::DocumentsRemoved { salt, scope, path } => {
                    let key = (salt, scope, path.to_vec());
                    let count = self.documents.get_mut(&key).expect("was never stored");
                    *count -= 1;
                    if *count == 0 {
                        self.documents.remove(&key);
                    }
                }
                CacheEvent::Gap { events } => panic!("{events} events are lost"),
            }
        }
    }
}

/// Returns three documents of a prompt, the first of which begins after a few tokens.
fn documents(random: &mut Seeded, tokens: u32) -> DocumentPath {
    let mut ends: Vec<u32> = (0..4).map(|_| random.below(tokens + 1)).collect();
    ends.sort_unstable();
    let spans = ends[1..].iter().map(|&end| DocumentSpan {
        fingerprint: end.into(),
        end,
    });
    DocumentPath {
        scope: 7,
        start: ends[0],
        documents: spans.collect(),
    }
}

#[test]
fn a_follower_knows_what_is_held_where() {
    let mut told = 0;
    for seed in 0..40 {
        let mut random = Seeded::new(seed);
        let config = CacheConfig {
            replicated_share: 0.2,
            ..CacheConfig::default()
        };
        let disk = (random.below(2) == 0).then(Arc::default);
        let mut device = Device::with_tiers(10, random.below(12), config, disk);
        let mut follower = Follower::default();
        for _ in 0..150 {
            let salt: Arc<str> = random.below(2).to_string().into();
            let prompt = random.long_tokens();
            match random.below(20) {
                0 => _ = device.cache.clear(),
                1 => device.lose(),
                2 => {
                    device.cache.fetch(&salt, &prompt);
                    device.cache.receive();
                }
                _ => {
                    let length = prompt.len() as u32;
                    let documents = documents(&mut random, length);
                    if let Some(opening) =
                        device
                            .cache
                            .open(&salt, &prompt, Some(&documents), CacheUse::default())
                    {
                        device.cache.landed();
                        device.cache.close(opening.lease, &prompt, length);
                    }
                }
            }
            device.transfer();
            device.cache.landed();
            let events = device.cache.take_events();
            told += events.len();
            follower.follow(events);
            let held: HashSet<(PageHash, Tier)> = device
                .cache
                .tree
                .nodes()
                .flat_map(|(_, node)| {
                    let device = node.at.device.is_some().then_some(Tier::Device);
                    let host = node.at.host.is_some().then_some(Tier::Host);
                    let tiers = device.into_iter().chain(host);
                    tiers.filter_map(|tier| Some((node.hash?, tier)))
                })
                .collect();
            assert_eq!(follower.pages, held);
            let marked = device.cache.tree.nodes();
            let marked: usize = marked.map(|(_, node)| node.at.marks.len()).sum();
            let known: u32 = follower.documents.values().sum();
            assert_eq!(known as usize, marked, "documents");
        }
    }
    assert!(told > 10_000, "{told}: too tame");
}

#[test]
fn a_document_is_held_until_the_last_page_before_its_end_goes() {
    let mut device = Device::new(4);
    let path = DocumentPath {
        scope: 3,
        start: 2,
        documents: [(11, 6), (12, 9)]
            .map(|(fingerprint, end)| DocumentSpan { fingerprint, end })
            .to_vec(),
    };
    let prompt = tokens(0, 10);
    let salt: Arc<str> = "".into();
    let opening = device
        .cache
        .open(&salt, &prompt, Some(&path), CacheUse::default())
        .unwrap();
    device.cache.close(opening.lease, &prompt, 10);
    let of_documents = |device: &mut Device| {
        let events = device.cache.take_events().into_iter();
        let named = events.filter_map(|event| match event {
            CacheEvent::DocumentsStored { path, .. } => Some((true, path.to_vec())),
            CacheEvent::DocumentsRemoved { path, .. } => Some((false, path.to_vec())),
            _ => None,
        });
        named.collect::<Vec<_>>()
    };
    let (one, both) = (vec![(11, 4)], vec![(11, 4), (12, 3)]);
    assert_eq!(
        of_documents(&mut device),
        [(true, one.clone()), (true, both.clone())]
    );
    device.run("", &tokens(100, 8));
    assert_eq!(of_documents(&mut device), [], "only the partial page went");
    device.run("", &tokens(200, 4));
    assert_eq!(of_documents(&mut device), [(false, both)]);
    device.run("", &tokens(300, 8));
    assert_eq!(of_documents(&mut device), [(false, one)]);
}

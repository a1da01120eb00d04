//! Tests of the cache's treatment of documents: RAGCache's policy against a model of its Algorithm 1, and the documents
//! and sequences that are not kept.

use super::*;

/// A document of the knowledge tree, with everything that precedes it.
#[derive(Clone, Debug)]
struct Entry {
    path: Vec<u32>,
    frequency: f64,
    misses: f64,
    cost: f64,
    priority: f64,
    last: u64,
}

/// RAGCache's Algorithm 1 on one tier, over whole documents.
struct Model {
    capacity: u32,
    clock: f64,
    now: u64,
    entries: Vec<Entry>,
    gone: Vec<Entry>,
    departed_pages: u32,
}

/// Pages of a document.
fn size(document: u32) -> u32 {
    1 + document % 3
}

fn cost(cached: u32, new: u32) -> f64 {
    3.0 + f64::from(new) * (0.5 + f64::from(cached) * 0.01)
}

fn pages(path: &[u32]) -> u32 {
    path.iter().map(|document| size(*document)).sum()
}

/// Returns a prompt of these documents and a question of one token, and the ends of the documents.
fn prompt(path: &[u32]) -> (Vec<TokenId>, DocumentPath) {
    let (mut tokens, mut documents) = (Vec::new(), Vec::new());
    for document in path {
        tokens.extend(std::iter::repeat_n(
            *document,
            (size(*document) * PAGE) as usize,
        ));
        documents.push(DocumentSpan {
            fingerprint: u64::from(*document),
            end: tokens.len() as u32,
        });
    }
    tokens.push(99);
    let documents = DocumentPath {
        scope: 1,
        start: 0,
        documents,
    };
    (tokens, documents)
}

impl Model {
    fn find(&self, path: &[u32]) -> Option<usize> {
        self.entries.iter().position(|entry| entry.path == path)
    }

    fn evict(&mut self, kept: &[u32]) {
        let leaf = |entry: &&Entry| {
            let parent_of = |other: &Entry| {
                other.path.len() > entry.path.len() && other.path.starts_with(&entry.path)
            };
            !self.entries.iter().any(parent_of) && !kept.starts_with(&entry.path)
        };
        let worth = |entry: &&Entry| (entry.priority, entry.last);
        let leaves = self.entries.iter().filter(leaf);
        let least = leaves.min_by(|a, b| worth(a).partial_cmp(&worth(b)).unwrap());
        let path = least.unwrap().path.clone();
        let index = self.find(&path).unwrap();
        let entry = self.entries.remove(index);
        self.clock = self.clock.max(entry.priority);
        self.departed_pages += size(*path.last().unwrap());
        self.gone.retain(|other| other.path != path);
        self.gone.push(entry);
    }

    fn serve(&mut self, path: &[u32]) {
        let depths = 1..=path.len();
        let found = depths.take_while(|depth| self.find(&path[..*depth]).is_some());
        let found = found.count();
        let needed = pages(path) + 1 - pages(&path[..found]);
        let used = |model: &Self| -> u32 {
            let entries = model.entries.iter();
            entries.map(|entry| size(*entry.path.last().unwrap())).sum()
        };
        while self.capacity - used(self) < needed {
            self.evict(&path[..found]);
        }
        let cached = pages(&path[..found]) * PAGE;
        let new = pages(path) * PAGE + 1 - cached;
        for depth in 1..=path.len() {
            if depth > found {
                let gone = (self.gone.iter()).position(|entry| entry.path == path[..depth]);
                let mut entry = gone.map_or_else(
                    || Entry {
                        path: path[..depth].to_vec(),
                        frequency: 0.0,
                        misses: 0.0,
                        cost: 0.0,
                        priority: 0.0,
                        last: 0,
                    },
                    |index| self.gone.remove(index),
                );
                // Equation 4: the mean, over requests that computed it, of the time per token that they computed.
                entry.misses += 1.0;
                entry.cost += (cost(cached, new) / f64::from(new) - entry.cost) / entry.misses;
                self.entries.push(entry);
            }
        }
        for depth in (1..=path.len()).rev() {
            let index = self.find(&path[..depth]).unwrap();
            self.now += 1;
            let entry = &mut self.entries[index];
            entry.frequency += 1.0;
            entry.priority = self.clock + entry.frequency * entry.cost;
            entry.last = self.now;
        }
    }
}

#[test]
fn the_papers_policy_keeps_what_its_algorithm_keeps() {
    let mut departed = 0;
    for seed in 0..60 {
        let mut random = Seeded::new(seed);
        let capacity = 10 + random.below(16);
        let mut model = Model {
            capacity,
            clock: 0.0,
            now: 0,
            entries: Vec::new(),
            gone: Vec::new(),
            departed_pages: 0,
        };
        let config = CacheConfig {
            policy: EvictionPolicy::PgdsfPaper,
            cost: Some(Arc::new(cost)),
            ..CacheConfig::default()
        };
        let mut device = Device::with_tiers(capacity, 0, config, None);
        let salt: Arc<str> = "".into();
        let mut seen: Vec<Vec<u32>> = Vec::new();
        for request in 0..60 {
            // One of a few documents at each position, none twice.
            let mut path: Vec<u32> = Vec::new();
            for _ in 0..1 + random.below(3) {
                let document = random.below(3 + request / 20);
                if !path.contains(&document) {
                    path.push(document);
                }
            }
            model.serve(&path);
            let (tokens, documents) = prompt(&path);
            let opening = device
                .cache
                .open(&salt, &tokens, Some(&documents), CacheUse::default())
                .unwrap();
            let mut lease = opening.lease;
            device.cache.landed();
            device
                .cache
                .commit(&mut lease, &tokens, pages(&path) * PAGE);
            device.cache.abandon(lease);
            device.cache.check([]);
            seen.push(path);
            for path in &seen {
                let depths = 1..=path.len();
                let kept = depths.take_while(|depth| model.find(&path[..*depth]).is_some());
                let kept = pages(&path[..kept.count()]) * PAGE;
                let found = device.cache.lookup("", &prompt(path).0).tokens;
                assert_eq!(found, kept, "seed {seed}, request {request}, {path:?}");
            }
        }
        // The model has no window for frequencies, so no page may fall out of the cache's window here.
        let window = EvictionPolicy::PgdsfPaper.remembered(capacity as usize);
        assert!((model.departed_pages as usize) < window);
        departed += model.departed_pages;
    }
    assert!(departed > 2000, "{departed}: too tame");
}

#[test]
fn only_the_first_documents_of_a_prompt_are_kept() {
    let config = CacheConfig {
        max_documents: Some(2),
        ..CacheConfig::default()
    };
    let mut device = Device::with_tiers(40, 0, config, None);
    let salt: Arc<str> = "".into();
    let mut run = |path: &[u32]| {
        let (tokens, documents) = prompt(path);
        let opening = device
            .cache
            .open(&salt, &tokens, Some(&documents), CacheUse::default())
            .unwrap();
        device.cache.landed();
        let cached = opening.cached_tokens + opening.copy.map_or(0, |copy| copy.tokens);
        device
            .cache
            .close(opening.lease, &tokens, tokens.len() as u32);
        device.cache.check([]);
        (cached, device.cache.stats().cached)
    };
    let two = pages(&[4, 5]);
    assert_eq!(run(&[4, 5, 6, 7]), (0, two));
    assert_eq!(run(&[4, 5, 6, 7]), (two * PAGE, two));
    // With no more than two, the question is kept too.
    assert_eq!(run(&[4, 5]), (two * PAGE, two + 1));
    assert_eq!(run(&[4, 6, 5]).0, size(4) * PAGE);
    assert_eq!(run(&[4, 6, 5]).0, pages(&[4, 6]) * PAGE);
}

#[test]
fn a_document_that_ends_inside_a_page_is_kept_up_to_its_end() {
    let config = CacheConfig {
        max_documents: Some(1),
        ..CacheConfig::default()
    };
    let mut device = Device::with_tiers(40, 0, config, None);
    let tokens = tokens(0, 20);
    let documents = DocumentPath {
        scope: 1,
        start: 2,
        documents: [6, 13]
            .map(|end| DocumentSpan {
                fingerprint: u64::from(end),
                end,
            })
            .to_vec(),
    };
    let salt: Arc<str> = "".into();
    let opening = device
        .cache
        .open(&salt, &tokens, Some(&documents), CacheUse::default())
        .unwrap();
    let mut sequence = Sequence {
        salt,
        tokens: tokens.clone(),
        computed: 0,
        lease: opening.lease,
    };
    device.compute(&mut sequence, 20);
    device.close(sequence);
    device.cache.check([]);
    assert_eq!(device.cache.lookup("", &tokens).tokens, 6);
}

#[test]
fn a_sequence_that_is_not_kept_leaves_nothing_and_one_that_does_not_read_finds_nothing() {
    let mut device = Device::new(20);
    let salt: Arc<str> = "".into();
    let prompt = tokens(0, 14);
    let mut run = |reads: u32, keeps: bool| {
        let cache_use = CacheUse { reads, keeps };
        let opening = device.cache.open(&salt, &prompt, None, cache_use).unwrap();
        device.cache.landed();
        let mut lease = opening.lease;
        let cached = opening.cached_tokens + opening.copy.map_or(0, |copy| copy.tokens);
        device.cache.commit(&mut lease, &prompt, 9);
        device.cache.check([&lease]);
        device.cache.close(lease, &prompt, 14);
        device.cache.check([]);
        (cached, device.cache.stats().cached)
    };
    assert_eq!(run(u32::MAX, false), (0, 0));
    assert_eq!(run(u32::MAX, true), (0, 4));
    // The sequence computes the pages that are already there, and its own pages are released.
    assert_eq!(run(0, true), (0, 4));
    assert_eq!(run(0, false), (0, 4));
    assert_eq!(run(u32::MAX, false), (13, 4));
    assert_eq!(run(9, false), (9, 4));
}

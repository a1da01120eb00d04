//! Tests of the cache against slow, obvious models: every slot of every page, in every tier, remembers the prefix that
//! it was computed for.

mod disk_replicas;
mod documents;
mod events;
mod policies;
mod prefix;
mod tiers;

use super::*;
use crate::backend::{Load, Store};
use foreword_ordering::random::Random;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

const PAGE: u32 = 4;

/// A cache with the content of its device, host memory and disk, by page and slot.
struct Device {
    cache: PrefixCache,
    slots: Vec<Slots>,
    host: Vec<Slots>,
    disk: Option<Arc<FakeDisk>>,
    /// Loads of the next step.
    loads: Vec<Load>,
    /// Pages copied to host memory so far.
    stores: u32,
    /// Pages loaded from host memory so far.
    loaded: u32,
}

type Slots = Vec<Option<State>>;

/// The prefix that a slot's KV state was computed for, with the tenant's salt.
type State = (String, Vec<TokenId>);

/// A sequence as the engine drives it.
struct Sequence {
    salt: Arc<str>,
    tokens: Vec<TokenId>,
    computed: u32,
    lease: Lease,
}

/// A disk in memory, which stores any bytes.
#[derive(Default)]
struct FakeDisk {
    pages: Mutex<HashMap<PageHash, Vec<u8>>>,
    asked: Mutex<VecDeque<PageHash>>,
}

impl DiskTier for FakeDisk {
    fn contains(&self, page: PageHash) -> bool {
        self.pages.lock().unwrap().contains_key(&page)
    }

    fn request(&self, page: PageHash) {
        self.asked.lock().unwrap().push_back(page);
    }

    fn completed(&self) -> Option<(PageHash, Option<Vec<u8>>)> {
        let page = self.asked.lock().unwrap().pop_front()?;
        Some((page, self.pages.lock().unwrap().get(&page).cloned()))
    }

    fn on_completion(&self, _wake: Box<dyn Fn() + Send + Sync>) {}

    fn write(&self, page: PageHash, _parent: PageHash, bytes: &[u8]) {
        self.pages.lock().unwrap().insert(page, bytes.to_vec());
    }

    fn remove(&self, page: PageHash) {
        self.pages.lock().unwrap().remove(&page);
    }

    fn clear(&self) {
        self.pages.lock().unwrap().clear();
    }
}

impl Device {
    fn new(pages: u32) -> Self {
        Self::with_tiers(pages, 0, CacheConfig::default(), None)
    }

    fn with_tiers(
        device: u32,
        host: u32,
        config: CacheConfig,
        disk: Option<Arc<FakeDisk>>,
    ) -> Self {
        let pages = Pages {
            device,
            host,
            tokens: PAGE,
        };
        let config = CacheConfig {
            disk: disk.clone().map(|disk| disk as Arc<dyn DiskTier>),
            ..config
        };
        let empty = |pages| vec![vec![None; PAGE as usize]; pages as usize];
        Self {
            cache: PrefixCache::new(pages, &config),
            slots: empty(device),
            host: empty(host),
            disk,
            loads: Vec::new(),
            stores: 0,
            loaded: 0,
        }
    }

    /// Carries out the transfers that the cache has requested so far.
    fn transfer(&mut self) {
        for transfer in self.cache.take_transfers() {
            match transfer {
                Transfer::Store(Store { from, to }) => {
                    self.stores += 1;
                    self.host[to.0 as usize] = self.slots[from.0 as usize].clone();
                }
                Transfer::Save { page, hash, parent } => {
                    let slots = &self.host[page.0 as usize];
                    let bytes = slots
                        .iter()
                        .flat_map(|slot| encode(slot.as_ref()))
                        .collect::<Vec<_>>();
                    self.disk.as_ref().unwrap().write(hash, parent, &bytes);
                }
                Transfer::Fill { page, bytes } => self.host[page.0 as usize] = decode(&bytes),
            }
        }
    }

    /// Carries out the beginning of a step: transfers, then loads.
    fn land(&mut self) {
        self.transfer();
        for Load { from, to } in self.loads.drain(..) {
            self.slots[to.0 as usize] = self.host[from.0 as usize].clone();
        }
        self.cache.landed();
    }

    /// Opens a lease, but does not carry out its loads.
    fn open_only(&mut self, salt: &str, tokens: &[TokenId]) -> Option<Sequence> {
        let salt: Arc<str> = salt.into();
        let found = self.cache.lookup(&salt, tokens);
        let lookup = self.cache.remember_lookup(&salt, tokens);
        assert_eq!(
            (lookup.tokens, lookup.host_tokens),
            (found.tokens, found.host_tokens)
        );
        let available = self.cache.available();
        let opening = self.cache.open(&salt, tokens, None, CacheUse::default());
        self.transfer();
        let Some(opening) = opening else {
            let needed = tokens.len().div_ceil(PAGE as usize) as u32 - found.pages;
            assert!(
                needed > available - found.idle_pages,
                "refused although there is room"
            );
            return None;
        };
        self.loads.extend(&opening.loads);
        self.loaded += opening.loads.len() as u32;
        let mut computed = opening.cached_tokens;
        if let Some(SlotCopy { from, to, tokens }) = opening.copy {
            for slot in 0..tokens as usize {
                self.slots[to.0 as usize][slot] = self.slots[from.0 as usize][slot].clone();
            }
            computed += tokens;
        }
        let whole = found.tokens - found.tokens % PAGE;
        assert!(
            computed == found.tokens || computed == whole,
            "lookup and open disagree"
        );
        Some(Sequence {
            salt,
            tokens: tokens.to_vec(),
            computed,
            lease: opening.lease,
        })
    }

    /// Opens a lease and checks that every slot that counts as computed holds the right prefix.
    fn open(&mut self, salt: &str, tokens: &[TokenId]) -> Option<Sequence> {
        let sequence = self.open_only(salt, tokens);
        self.land();
        sequence.iter().for_each(|sequence| self.verify(sequence));
        sequence
    }

    /// Computes the sequence up to position `end`.
    fn compute(&mut self, sequence: &mut Sequence, end: u32) {
        while sequence.lease.pages().len() < end.div_ceil(PAGE) as usize {
            assert!(self.cache.grow(&mut sequence.lease));
        }
        self.land();
        for position in sequence.computed..end {
            let page = sequence.lease.pages()[(position / PAGE) as usize];
            let prefix = sequence.tokens[..=position as usize].to_vec();
            self.slots[page.0 as usize][(position % PAGE) as usize] =
                Some((sequence.salt.to_string(), prefix));
        }
        sequence.computed = end;
        self.cache
            .commit(&mut sequence.lease, &sequence.tokens, end);
        self.verify(sequence);
    }

    fn close(&mut self, sequence: Sequence) {
        self.cache
            .close(sequence.lease, &sequence.tokens, sequence.computed);
    }

    /// Runs a sequence from start to end. Returns the tokens that it found cached.
    fn run(&mut self, salt: &str, tokens: &[TokenId]) -> u32 {
        let mut sequence = self.open(salt, tokens).unwrap();
        let cached = sequence.computed;
        self.compute(&mut sequence, tokens.len() as u32);
        self.close(sequence);
        self.cache.check([]);
        cached
    }

    fn verify(&self, sequence: &Sequence) {
        for position in 0..sequence.computed {
            let page = sequence.lease.pages()[(position / PAGE) as usize];
            let slot = self.slots[page.0 as usize][(position % PAGE) as usize].as_ref();
            let (salt, prefix) = slot.expect("a slot counts as computed and is empty");
            assert_eq!(
                (salt.as_str(), &prefix[..]),
                (&*sequence.salt, &sequence.tokens[..=position as usize])
            );
        }
    }

    /// Makes the device lose its memory.
    fn lose(&mut self) {
        self.slots
            .iter_mut()
            .flatten()
            .for_each(|slot| *slot = None);
        self.loads.clear();
        self.cache.lose_device();
        self.transfer();
        self.cache.check([]);
    }
}

/// Encodes a slot as bytes: lengths, each followed by its content.
fn encode(slot: Option<&State>) -> Vec<u8> {
    let Some((salt, prefix)) = slot else {
        return vec![0];
    };
    let mut bytes = vec![1, salt.len() as u8, prefix.len() as u8];
    bytes.extend(salt.as_bytes());
    bytes.extend(prefix.iter().flat_map(|token| token.to_le_bytes()));
    bytes
}

fn decode(mut bytes: &[u8]) -> Slots {
    let mut slots = Vec::new();
    while let Some((&full, rest)) = bytes.split_first() {
        bytes = rest;
        if full == 0 {
            slots.push(None);
            continue;
        }
        let (salt, tokens) = (bytes[0] as usize, bytes[1] as usize);
        let (text, rest) = bytes[2..].split_at(salt);
        let (prefix, rest) = rest.split_at(4 * tokens);
        let prefix = prefix.chunks_exact(4);
        let prefix = prefix.map(|token| TokenId::from_le_bytes(token.try_into().unwrap()));
        slots.push(Some((
            String::from_utf8(text.to_vec()).unwrap(),
            prefix.collect(),
        )));
        bytes = rest;
    }
    slots
}

fn tokens(from: TokenId, count: TokenId) -> Vec<TokenId> {
    (from..from + count).collect()
}

/// A seeded source of random tokens.
struct Seeded(Random);

impl Seeded {
    fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.0.below(limit.into()) as u32
    }

    /// Returns tokens with few distinct values, so that sequences often begin alike and part anywhere.
    fn tokens(&mut self) -> Vec<TokenId> {
        let count = 1 + self.below(20);
        (0..count).map(|_| u32::from(self.below(6) == 0)).collect()
    }

    /// Returns several pages of tokens, as [`Seeded::tokens`] does, that part rarely.
    fn long_tokens(&mut self) -> Vec<TokenId> {
        let count = 1 + self.below(36);
        (0..count).map(|_| u32::from(self.below(12) == 0)).collect()
    }
}

//! Tests of which page each policy evicts, against a model that examines all pages every time.

use super::*;

/// A page in the model; its path includes everything before it.
#[derive(Clone, Debug, Default)]
struct Entry {
    /// Tokens from the sequence's start to the page's end.
    path: Vec<TokenId>,
    in_device: bool,
    in_host: bool,
    last: u64,
    frequency: f64,
    computed: f64,
    seconds_per_token: f64,
    /// The page and the one before it begin within the same document.
    continues: bool,
    /// The page's priority by tier, device first.
    priority: [f64; 2],
}

struct Model {
    policy: EvictionPolicy,
    capacity: [usize; 2],
    clock: [f64; 2],
    now: u64,
    entries: Vec<Entry>,
    /// Departed pages, each with the number of its departure.
    gone: Vec<(usize, Entry)>,
    departures: usize,
    /// Pages that were evicted because the one behind them in their document was, from the device and from host memory.
    whole: usize,
    whole_in_host: usize,
}

fn cost(cached: u32, new: u32) -> f64 {
    3.0 + f64::from(new) * (0.5 + f64::from(cached) * 0.01)
}

impl Entry {
    fn is_in(&self, tier: usize) -> bool {
        [self.in_device, self.in_host][tier]
    }

    fn is_parent_of(&self, other: &Self) -> bool {
        other.path.len() == self.path.len() + PAGE as usize && other.path.starts_with(&self.path)
    }
}

impl Model {
    fn rank(&mut self, index: usize) {
        self.now += 1;
        let entry = &mut self.entries[index];
        entry.last = self.now;
        for tier in 0..2 {
            entry.priority[tier] = match self.policy {
                EvictionPolicy::Lru => entry.last as f64,
                EvictionPolicy::Lfu => entry.frequency,
                EvictionPolicy::Gdsf => self.clock[tier] + entry.frequency,
                EvictionPolicy::Pgdsf => {
                    self.clock[tier] + (entry.frequency - 1.0 + 0.3) * entry.seconds_per_token
                }
                EvictionPolicy::PgdsfPaper => {
                    self.clock[tier] + entry.frequency * entry.seconds_per_token
                }
            };
        }
    }

    /// Returns whether the model may evict the page from the tier: it is there, no page there follows it, and the request
    /// being served does not need it.
    fn is_evictable(&self, index: usize, tier: usize, kept: &[Vec<TokenId>]) -> bool {
        let entry = &self.entries[index];
        let followed = |other: &Entry| entry.is_parent_of(other) && other.is_in(tier);
        let alone = tier == 0 || !entry.in_device;
        entry.is_in(tier)
            && !self.entries.iter().any(followed)
            && !(alone && kept.contains(&entry.path))
    }

    /// Returns the page before that page, if both begin within the same document, which is evicted whole, and if it can
    /// be evicted now that the other was.
    fn before(&self, path: &[TokenId], tier: usize, kept: &[Vec<TokenId>]) -> Option<usize> {
        let before = path.len().checked_sub(PAGE as usize)?;
        let mut entries = self.entries.iter();
        let index = entries.position(|entry| entry.path == path[..before])?;
        self.is_evictable(index, tier, kept).then_some(index)
    }

    /// Returns whether evicting this page also evicts the page before it, as part of the same document.
    fn goes_on(&self, index: usize) -> bool {
        self.policy == EvictionPolicy::PgdsfPaper && self.entries[index].continues
    }

    /// Returns the lowest-ranked page of a tier that nothing follows there and that is not kept.
    fn victim(&mut self, tier: usize, kept: &[Vec<TokenId>]) -> Option<usize> {
        let candidates =
            (0..self.entries.len()).filter(|&index| self.is_evictable(index, tier, kept));
        let worth = |index: &usize| {
            let entry = &self.entries[*index];
            (entry.priority[tier], entry.last)
        };
        let victim = candidates.min_by(|a, b| worth(a).partial_cmp(&worth(b)).unwrap())?;
        self.clock[tier] = self.clock[tier].max(self.entries[victim].priority[tier]);
        Some(victim)
    }

    fn count(&self, tier: usize) -> usize {
        self.entries
            .iter()
            .filter(|entry| entry.is_in(tier))
            .count()
    }

    fn forget_gone(&mut self) {
        let gone = self
            .entries
            .extract_if(.., |entry| !entry.in_device && !entry.in_host);
        for entry in gone {
            self.departures += 1;
            self.gone.push((self.departures, entry));
        }
    }

    fn evict(&mut self, kept: &[Vec<TokenId>]) {
        let mut victim = self.victim(0, kept);
        while let Some(index) = victim {
            let (path, goes_on) = (self.entries[index].path.clone(), self.goes_on(index));
            self.evict_page(index, kept);
            let before = goes_on.then(|| self.before(&path, 0, kept));
            self.whole += usize::from(before.flatten().is_some());
            victim = before.flatten();
        }
    }

    fn evict_from_host(&mut self, mut victim: usize, kept: &[Vec<TokenId>]) {
        loop {
            let (path, goes_on) = (self.entries[victim].path.clone(), self.goes_on(victim));
            self.entries[victim].in_host = false;
            self.forget_gone();
            let before = goes_on.then(|| self.before(&path, 1, kept));
            let Some(before) = before.flatten() else {
                return;
            };
            self.whole_in_host += 1;
            victim = before;
        }
    }

    fn evict_page(&mut self, victim: usize, kept: &[Vec<TokenId>]) {
        let path = self.entries[victim].path.clone();
        let of = |model: &Self, path: &[TokenId]| {
            let mut entries = model.entries.iter();
            entries.position(|entry| entry.path == path).unwrap()
        };
        let mut has_place = !self.entries[victim].in_host;
        if has_place {
            let full = self.count(1) == self.capacity[1];
            let victim = full.then(|| self.victim(1, kept)).flatten();
            if let Some(victim) = victim {
                self.evict_from_host(victim, kept);
            }
            // If every page is about to be loaded, none can make room.
            has_place = !full || victim.is_some();
        }
        if has_place {
            let index = of(self, &path);
            let clock = self.clock[1];
            let entry = &mut self.entries[index];
            entry.in_host = true;
            // The priority at the page's last use, with this tier's clock.
            entry.priority[1] = match self.policy {
                EvictionPolicy::Gdsf => clock + entry.frequency,
                EvictionPolicy::Pgdsf => {
                    clock + (entry.frequency - 1.0 + 0.3) * entry.seconds_per_token
                }
                EvictionPolicy::PgdsfPaper => clock + entry.frequency * entry.seconds_per_token,
                EvictionPolicy::Lru | EvictionPolicy::Lfu => entry.priority[1],
            };
        }
        let index = of(self, &path);
        self.entries[index].in_device = false;
        self.forget_gone();
    }

    /// Serves whole pages and the tokens behind them, at least one, which are not kept. `continues` says of each page
    /// whether it and the one before it begin within the same document.
    fn serve(&mut self, tokens: &[TokenId], continues: &[bool]) {
        let page = PAGE as usize;
        let paths: Vec<Vec<TokenId>> = (1..=tokens.len() / page)
            .map(|pages| tokens[..pages * page].to_vec())
            .collect();
        let find = |model: &Self, path: &[TokenId]| {
            let mut entries = model.entries.iter();
            entries.position(|entry| entry.path == path)
        };
        let found = paths.iter().take_while(|path| find(self, path).is_some());
        let (kept, missing) = paths.split_at(found.count());
        let near = kept.iter().filter(|path| {
            let index = find(self, path).unwrap();
            self.entries[index].in_device
        });
        let needed = paths.len() + 1 - near.count();
        while self.capacity[0] - self.count(0) < needed {
            self.evict(kept);
        }
        for path in kept.iter().rev() {
            let index = find(self, path).unwrap();
            self.entries[index].in_device = true;
            self.entries[index].frequency += 1.0;
            self.rank(index);
        }
        let cached = (kept.len() * page) as u32;
        let new = tokens.len() as u32 - cached;
        let seconds = cost(cached, new) / f64::from(new);
        for (path, &continues) in missing.iter().zip(&continues[kept.len()..]) {
            let mut gone = self.gone.iter();
            let before = gone.rposition(|(_, entry)| entry.path == *path);
            let before = before.map(|index| self.gone.remove(index));
            let window = self.policy.remembered(self.capacity[0] + self.capacity[1]);
            let remembered = before.filter(|(departure, _)| departure + window > self.departures);
            let mut entry = remembered.map(|(_, entry)| entry).unwrap_or_default();
            entry.path.clone_from(path);
            entry.in_device = true;
            entry.frequency += 1.0;
            entry.continues = continues;
            if continues {
                let before = find(self, &path[..path.len() - page]).unwrap();
                entry.frequency = entry.frequency.max(self.entries[before].frequency);
            }
            entry.computed += 1.0;
            entry.seconds_per_token += (seconds - entry.seconds_per_token) / entry.computed;
            self.entries.push(entry);
            self.rank(self.entries.len() - 1);
        }
        for path in paths.iter().rev() {
            let index = find(self, path).unwrap();
            self.rank(index);
        }
    }
}

/// A prompt whose documents begin and end anywhere in pages. Two pages with other content differ from their first token
/// on, so sequences never part inside a page.
struct Prompt {
    tokens: Vec<TokenId>,
    documents: DocumentPath,
    /// For each whole page, whether it and the one before it begin within the same document.
    continues: Vec<bool>,
}

impl Prompt {
    /// One of a few documents at each position, the first ones more often.
    fn new(random: &mut Seeded, contents: &mut Vec<Vec<(u32, u32)>>) -> Self {
        // What stands at each position: a document's number, from 1, and the place in it. 0 is no document.
        let start = 5 * random.below(2);
        let mut parts: Vec<(u32, u32)> = (0..start).map(|place| (0, place)).collect();
        let mut documents = Vec::new();
        for _ in 0..1 + random.below(4) {
            let most = 1 + random.below(4);
            let document = 1 + random.below(most);
            parts.extend((0..2 + document * 7 % 12).map(|place| (document, place)));
            documents.push(DocumentSpan {
                fingerprint: u64::from(document),
                end: parts.len() as u32,
            });
        }
        let question = if parts.len() % PAGE as usize == PAGE as usize - 1 {
            2
        } else {
            1
        };
        parts.extend((0..question).map(|place| (0, 100 + place)));
        let document_at = |token: usize| {
            let within = documents.iter().position(|span| token < span.end as usize);
            within.filter(|_| token >= start as usize)
        };
        let page = PAGE as usize;
        let continues = (0..parts.len() / page).map(|index| {
            index > 0
                && document_at(index * page).is_some()
                && document_at(index * page) == document_at((index - 1) * page)
        });
        let continues = continues.collect();
        let tokens = parts.chunks(page).flat_map(|content| {
            let known = contents.iter().position(|other| other == content);
            let id = known.unwrap_or_else(|| {
                contents.push(content.to_vec());
                contents.len() - 1
            });
            std::iter::repeat_n(id as TokenId, content.len())
        });
        Self {
            tokens: tokens.collect(),
            continues,
            documents: DocumentPath {
                scope: 1,
                start,
                documents,
            },
        }
    }
}

#[test]
fn every_policy_keeps_what_the_model_keeps() {
    let (mut whole, mut whole_in_host) = (0, 0);
    for (policy, seed) in EvictionPolicy::ALL.into_iter().cycle().zip(0..60) {
        let mut random = Seeded::new(seed);
        let capacity = [
            16 + random.below(12),
            random.below(3) * (2 + random.below(20)),
        ];
        let mut model = Model {
            policy,
            capacity: capacity.map(|pages| pages as usize),
            clock: [0.0; 2],
            now: 0,
            entries: Vec::new(),
            gone: Vec::new(),
            departures: 0,
            whole: 0,
            whole_in_host: 0,
        };
        let config = CacheConfig {
            policy,
            replicated_share: 0.0,
            cost: Some(Arc::new(cost)),
            ..CacheConfig::default()
        };
        let mut device = Device::with_tiers(capacity[0], capacity[1], config, None);
        let salt: Arc<str> = "".into();
        let (mut seen, mut contents) = (Vec::new(), Vec::new());
        for _ in 0..150 {
            let prompt = Prompt::new(&mut random, &mut contents);
            model.serve(&prompt.tokens, &prompt.continues);
            let opening = device
                .cache
                .open(
                    &salt,
                    &prompt.tokens,
                    Some(&prompt.documents),
                    CacheUse::default(),
                )
                .unwrap();
            let mut lease = opening.lease;
            device.transfer();
            device.cache.landed();
            let pages = prompt.continues.len() as u32;
            (device.cache).commit(&mut lease, &prompt.tokens, pages * PAGE);
            device.cache.abandon(lease);
            device.cache.check([]);
            seen.push(prompt);
            for Prompt { tokens, .. } in &seen {
                let find = |pages: usize| {
                    let path = &tokens[..pages * PAGE as usize];
                    model.entries.iter().find(|entry| entry.path == path)
                };
                let pages = tokens.len() / PAGE as usize;
                let kept: Vec<&Entry> = (1..=pages).map_while(find).collect();
                let far = kept.iter().filter(|entry| !entry.in_device).count();
                let found = device.cache.lookup("", tokens);
                assert_eq!(
                    (found.tokens, found.host_tokens),
                    (kept.len() as u32 * PAGE, far as u32 * PAGE),
                    "{policy}, seed {seed}, {tokens:?}"
                );
            }
        }
        whole += model.whole;
        whole_in_host += model.whole_in_host;
    }
    assert!(
        whole > 100 && whole_in_host > 100,
        "{whole} and {whole_in_host}: too tame"
    );
}

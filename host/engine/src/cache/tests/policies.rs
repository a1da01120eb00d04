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

    /// Returns the lowest-ranked page of a tier that nothing follows there and that is not kept.
    fn victim(&mut self, tier: usize, kept: &[Vec<TokenId>]) -> Option<usize> {
        let of_tier = |index: &usize| {
            let entry = &self.entries[*index];
            let followed = |other: &Entry| entry.is_parent_of(other) && other.is_in(tier);
            let alone = tier == 0 || !entry.in_device;
            entry.is_in(tier)
                && !self.entries.iter().any(followed)
                && !(alone && kept.contains(&entry.path))
        };
        let candidates = (0..self.entries.len()).filter(of_tier);
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
        let victim = self.victim(0, kept).unwrap();
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
                self.entries[victim].in_host = false;
                self.forget_gone();
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

    /// Serves whole pages and one token more, which is not kept.
    fn serve(&mut self, tokens: &[TokenId]) {
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
        for path in missing {
            let mut gone = self.gone.iter();
            let before = gone.rposition(|(_, entry)| entry.path == *path);
            let before = before.map(|index| self.gone.remove(index));
            let window = self.policy.remembered(self.capacity[0] + self.capacity[1]);
            let remembered = before.filter(|(departure, _)| departure + window > self.departures);
            let mut entry = remembered.map(|(_, entry)| entry).unwrap_or_default();
            entry.path.clone_from(path);
            entry.in_device = true;
            entry.frequency += 1.0;
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

#[test]
fn every_policy_keeps_what_the_model_keeps() {
    for (policy, seed) in EvictionPolicy::ALL.into_iter().cycle().zip(0..60) {
        let mut random = Seeded::new(seed);
        let capacity = [
            7 + random.below(12),
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
        };
        let config = CacheConfig {
            policy,
            replicated_share: 0.0,
            cost: Some(Arc::new(cost)),
            ..CacheConfig::default()
        };
        let mut device = Device::with_tiers(capacity[0], capacity[1], config, None);
        let mut seen: Vec<Vec<TokenId>> = Vec::new();
        for _ in 0..150 {
            // One of a few documents at each position, the first ones more often.
            let places = 1 + random.below(5);
            let mut tokens: Vec<TokenId> = Vec::new();
            for _ in 0..places {
                let most = 1 + random.below(4);
                tokens.extend([random.below(most); PAGE as usize]);
            }
            tokens.push(9);
            model.serve(&tokens);
            let mut sequence = device.open("", &tokens).unwrap();
            device.compute(&mut sequence, places * PAGE);
            device.cache.abandon(sequence.lease);
            device.cache.check([]);
            seen.push(tokens);
            for tokens in &seen {
                let find = |pages: usize| {
                    let path = &tokens[..pages * PAGE as usize];
                    model.entries.iter().find(|entry| entry.path == path)
                };
                let pages = tokens.len() / PAGE as usize;
                let kept: Vec<&Entry> = (1..=pages).map_while(find).collect();
                let far = kept.iter().filter(|entry| !entry.in_device).count();
                let found = device.cache.lookup("", tokens);
                // Sequences never part inside a page here: documents differ from their first token on.
                assert_eq!(
                    (found.tokens, found.host_tokens),
                    (kept.len() as u32 * PAGE, far as u32 * PAGE),
                    "{policy}, seed {seed}, {tokens:?}"
                );
            }
        }
    }
}

//! ADR-011's four scenarios, and the kinds of cache that it compares: which prefixes are found, and at what work.
//!
//! | scenario | a request's prompt | target: requests that hit |
//! | --- | --- | --- |
//! | chat | a system prompt of 200 tokens, then all turns so far | 98 % |
//! | RAG | four documents of 250 tokens and a question, nothing before them | 90 % |
//! | batch | an instruction of 50 tokens and an input; a batch arrives at once | 100 % |
//! | mixed | a chat's turn, a question to documents, a batch's input, or something that is asked once | 80 % |
//!
//! A request *hits* if at least a page of its prompt is found: fewer tokens may be the same by chance. Tokens are drawn
//! from the 256 of the simulated device.

use crate::simulated::{Arrival, Costs, House, PAGE_TOKENS, Served, prompt, serve};
use crate::workloads;
use foreword_engine::engine::{EngineConfig, Request as EngineRequest};
use foreword_ordering::policy::{PolicyKind, PolicyOptions};
use foreword_ordering::random::Random;
use foreword_simulation::{Capacity, Replay};
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hasher;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3Default;

/// A prompt, and how long its answer is.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Time at which it arrives.
    pub at: Duration,
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// Tokens of its answer.
    pub answer_tokens: u32,
}

/// A workload with ADR-011's target for it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The name of the scenario in tables.
    pub name: String,
    /// Share of the requests that are to hit.
    pub target: f64,
    /// The prompts, by their time of arrival.
    pub prompts: Vec<Prompt>,
}

/// Number of a scenario's requests and tokens, and the part found in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The number of requests that were sent.
    pub requests: u64,
    /// Requests of which at least a page was found.
    pub hits: u64,
    /// Requests of which an earlier prompt and answer hold at least a page: no cache can hit more.
    pub possible: u64,
    /// Tokens of all prompts.
    pub tokens: u64,
    /// Tokens that were found.
    pub found_tokens: u64,
    /// Tokens that an earlier prompt and answer hold.
    pub possible_tokens: u64,
    /// Pages that the engine computed, those in part included; 0 for a model of a cache.
    pub computed_pages: u64,
    /// Pages that the engine evicted; 0 for a model of a cache.
    pub evicted_pages: u64,
}

/// The work of a cache's lookups, in counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Tokens that went into hashes.
    pub hashed_tokens: u64,
    /// Hashes that were looked for in an index.
    pub probes: u64,
    /// Tokens that were compared with tokens.
    pub compared_tokens: u64,
}

/// Time between requests that do not arrive together: any earlier one has been answered.
const APART: Duration = Duration::from_secs(600);

const USER_TOKENS: u32 = 24;
const ANSWER_TOKENS: u32 = 40;
const SYSTEM_TOKENS: u32 = 200;
const DOCUMENTS: usize = 4;
const DOCUMENT_TOKENS: u32 = 250;
const INSTRUCTION_TOKENS: u32 = 50;

/// A text that nothing else has.
fn text(kind: u64, number: u64, tokens: u32) -> impl Iterator<Item = u32> {
    let mut words = prompt([(kind << 32 | number, tokens)], 0);
    words.truncate(tokens as usize);
    words.into_iter()
}

/// A chat that grows.
struct Chat {
    tokens: Vec<u32>,
    number: u64,
    turns: u64,
}

impl Chat {
    fn new(number: u64) -> Self {
        Self {
            tokens: text(1, 0, SYSTEM_TOKENS).collect(),
            number,
            turns: 0,
        }
    }

    /// The next turn's prompt. Its answer, all zeros as the device says it, belongs to the prompts after it.
    fn turn(&mut self) -> Vec<u32> {
        let name = self.number << 16 | self.turns;
        self.tokens.extend(text(2, name, USER_TOKENS));
        self.turns += 1;
        let tokens = self.tokens.clone();
        self.tokens.extend((0..ANSWER_TOKENS).map(|_| 0));
        tokens
    }
}

fn one_by_one(prompts: impl Iterator<Item = (Vec<u32>, u32)>) -> Vec<Prompt> {
    let prompts = (1..).zip(prompts);
    prompts
        .map(|(number, (tokens, answer_tokens))| Prompt {
            at: APART * number,
            tokens,
            answer_tokens,
        })
        .collect()
}

/// One chat of so many turns.
#[must_use]
pub fn chat(turns: usize) -> Scenario {
    let mut chat = Chat::new(1);
    Scenario {
        name: format!("chat of {turns} turns"),
        target: 0.98,
        prompts: one_by_one((0..turns).map(|_| (chat.turn(), ANSWER_TOKENS))),
    }
}

/// Questions to a corpus of `documents`, by Zipf's law, with the documents in the order that `order` gives them.
#[must_use]
pub fn rag(requests: usize, documents: u64, order: PolicyKind) -> Scenario {
    Scenario {
        name: format!("RAG of {requests} requests, {} order", order.name()),
        target: 0.9,
        prompts: one_by_one(
            questions(requests, documents, order)
                .into_iter()
                .map(|tokens| (tokens, 8)),
        ),
    }
}

fn questions(requests: usize, documents: u64, order: PolicyKind) -> Vec<Vec<u32>> {
    let trace = workloads::zipf_topics(1, requests, documents, DOCUMENTS);
    let capacity = Capacity::of_prompts(u32::MAX, &trace);
    let mut gateway = Replay::new(order, &PolicyOptions::default(), capacity);
    let questions = trace.iter().enumerate().map(|(number, request)| {
        let order = gateway.decide(request);
        let documents = (order.iter()).filter_map(|&rank| request.documents.get(usize::from(rank)));
        let documents =
            documents.map(|document| (3 << 32 | document.fingerprint.0, DOCUMENT_TOKENS));
        prompt(documents, number as u64)
    });
    questions.collect()
}

/// Batches of `size` requests that arrive together. `instructions` is the number of different ones, which take turns.
#[must_use]
pub fn batches(batches: u32, size: u64, instructions: u32) -> Scenario {
    let input = |batch: u32, number: u64| {
        let own = u64::from(batch) * size + number;
        let instruction = u64::from(batch % instructions.max(1));
        text(4, instruction, INSTRUCTION_TOKENS).chain(text(5, own, 100))
    };
    let prompts = (0..batches).flat_map(|batch| {
        (0..size).map(move |number| Prompt {
            at: APART * batch,
            tokens: input(batch, number).collect(),
            answer_tokens: 8,
        })
    });
    Scenario {
        name: format!("{batches} batches of {size}, instructions: {instructions}"),
        target: 1.0,
        prompts: prompts.collect(),
    }
}

/// Turns of 20 chats, questions to documents, and inputs of ten batches, as 4 : 3 : 1, at random; `unique` percent of the
/// requests share nothing with any other.
#[must_use]
pub fn mixed(requests: usize, unique: u64, order: PolicyKind) -> Scenario {
    let mut random = Random::new(7);
    let mut chats: Vec<Chat> = (0..20).map(Chat::new).collect();
    let mut questions = questions(requests, 200, order).into_iter();
    let prompts = (0..requests as u64).map(|number| {
        if random.below(100) < unique {
            return (text(6, number, 300).collect(), 8);
        }
        match random.below(8) {
            0..=3 => {
                let at = random.below(chats.len() as u64) as usize;
                let tokens = chats[at].turn();
                if chats[at].turns == 16 {
                    chats[at] = Chat::new(100 + number);
                }
                (tokens, ANSWER_TOKENS)
            }
            4..=6 => (questions.next().unwrap_or_default(), 8),
            _ => {
                let instruction = text(4, random.below(10), INSTRUCTION_TOKENS);
                (instruction.chain(text(5, number, 100)).collect(), 8)
            }
        }
    });
    Scenario {
        name: format!(
            "mixed, {requests} requests, {unique} % unique, {} order",
            order.name()
        ),
        target: 0.8,
        prompts: one_by_one(prompts),
    }
}

impl Scenario {
    /// Serves the scenario with the real engine on a simulated device whose pool has room for `pool_tokens`.
    #[must_use]
    pub fn serve(&self, pool_tokens: u32, config: &EngineConfig) -> Found {
        let config = EngineConfig {
            max_waiting: 100_000,
            ..config.clone()
        };
        let mut house = House::new(Costs::MISTRAL_7B_A10G, pool_tokens, &config);
        let arrivals: Vec<Arrival> = (self.prompts.iter())
            .map(|prompt| Arrival {
                at: prompt.at,
                request: EngineRequest {
                    prompt: prompt.tokens.clone(),
                    max_tokens: prompt.answer_tokens,
                    ..EngineRequest::default()
                },
            })
            .collect();
        let (served, stats) = serve(&mut house, &arrivals);
        let pages = |(prompt, served): (&Prompt, &Served)| {
            let all = prompt.whole().len().div_ceil(PAGE_TOKENS as usize) as u64;
            all - u64::from(served.cached / PAGE_TOKENS)
        };
        Found {
            computed_pages: self.prompts.iter().zip(&served).map(pages).sum(),
            evicted_pages: stats.cache.evicted,
            ..self.found(served.iter().map(|served| served.cached))
        }
    }

    /// Serves the scenario from a cache of this kind, one request after the other.
    pub fn look(&self, cache: &mut dyn Cache) -> (Found, Work) {
        let found: Vec<u32> = (self.prompts.iter())
            .map(|prompt| {
                // At least the last token is computed.
                let found = cache
                    .look(&prompt.tokens)
                    .min(prompt.tokens.len() as u32 - 1);
                cache.keep(&prompt.whole());
                found
            })
            .collect();
        (self.found(found.into_iter()), cache.work())
    }

    /// Compares what was found of each prompt with what a cache without bounds would have found.
    fn found(&self, found: impl Iterator<Item = u32>) -> Found {
        let mut sum = Found::default();
        // In sorted order, the sequence with the longest common beginning is a neighbour.
        let mut seen: BTreeSet<Vec<u32>> = BTreeSet::new();
        for (prompt, found) in self.prompts.iter().zip(found) {
            let tokens = &prompt.tokens;
            let (before, after) = (seen.range(..tokens.clone()), seen.range(tokens.clone()..));
            let neighbours = before.rev().take(1).chain(after.take(1));
            let longest = neighbours.map(|other| common(other, tokens)).max();
            let possible = longest.unwrap_or(0).min(tokens.len() as u64 - 1);
            sum.requests += 1;
            sum.hits += u64::from(found >= PAGE_TOKENS);
            sum.possible += u64::from(possible >= u64::from(PAGE_TOKENS));
            sum.tokens += tokens.len() as u64;
            sum.found_tokens += u64::from(found);
            sum.possible_tokens += possible;
            seen.insert(prompt.whole());
        }
        sum
    }
}

impl Prompt {
    /// The tokens whose KV state is there in the end: all but the answer's last.
    fn whole(&self) -> Vec<u32> {
        let answer = (1..self.answer_tokens).map(|_| 0);
        self.tokens.iter().copied().chain(answer).collect()
    }
}

fn common(one: &[u32], other: &[u32]) -> u64 {
    one.iter().zip(other).take_while(|(a, b)| a == b).count() as u64
}

impl Found {
    /// Share of the requests that hit.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        self.hits as f64 / self.requests.max(1) as f64
    }

    /// Whether the share of hits is the target's, in whole percents as ADR-011 gives it.
    #[must_use]
    pub fn meets(&self, target: f64) -> bool {
        (100.0 * self.hit_share()).round() >= 100.0 * target
    }
}

/// A kind of prefix cache, with its pages evicted by their last use.
pub trait Cache {
    /// Returns how many tokens of the prompt's beginning are found.
    fn look(&mut self, tokens: &[u32]) -> u32;

    /// Stores a sequence, so that later prompts can find it.
    fn keep(&mut self, tokens: &[u32]);

    /// Returns the work of all lookups so far.
    fn work(&self) -> Work;
}

/// Whole sequences by the hash of their tokens (ADR-011, option A). It finds a sequence that the prompt goes on from, and
/// no other.
#[derive(Debug)]
pub struct WholeSequences {
    capacity_pages: usize,
    pages: usize,
    /// The last use and the length of each sequence, by hash.
    sequences: HashMap<u64, (u64, usize)>,
    /// The number of stored sequences of each length.
    lengths: BTreeMap<usize, usize>,
    uses: BTreeMap<u64, u64>,
    now: u64,
    work: Work,
}

/// Full blocks by the hash of their tokens and all before them, as vLLM keeps them.
#[derive(Debug)]
pub struct Blocks {
    capacity: usize,
    blocks: HashMap<u64, u64>,
    uses: BTreeMap<u64, u64>,
    now: u64,
    work: Work,
}

/// A radix tree of pages whose last one may match in part, as the engine's.
#[derive(Debug)]
pub struct Radix {
    capacity: usize,
    nodes: Vec<Option<RadixNode>>,
    free: Vec<usize>,
    uses: BTreeMap<u64, usize>,
    now: u64,
    work: Work,
}

#[derive(Debug)]
struct RadixNode {
    children: BTreeMap<Counted, usize>,
    /// The parent and the tokens by which it knows this node; `None` for the root.
    parent: Option<(usize, Vec<u32>)>,
    used: u64,
}

/// Tokens whose comparisons are counted.
#[derive(Debug)]
struct Counted(Vec<u32>);

thread_local! {
    static COMPARED: Cell<u64> = const { Cell::new(0) };
}

impl Ord for Counted {
    fn cmp(&self, other: &Self) -> Ordering {
        let compared = (common(&self.0, &other.0) + 1).min(self.0.len().max(other.0.len()) as u64);
        COMPARED.set(COMPARED.get() + compared);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Counted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Counted {}

fn pages(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS as usize)
}

impl WholeSequences {
    /// Returns an empty cache with room for so many pages.
    #[must_use]
    pub fn new(capacity_pages: usize) -> Self {
        Self {
            capacity_pages,
            pages: 0,
            sequences: HashMap::new(),
            lengths: BTreeMap::new(),
            uses: BTreeMap::new(),
            now: 0,
            work: Work::default(),
        }
    }

    fn hash(tokens: &[u32]) -> u64 {
        let mut hash = Xxh3Default::new();
        tokens.iter().for_each(|token| hash.write_u32(*token));
        hash.finish()
    }
}

impl Cache for WholeSequences {
    fn look(&mut self, tokens: &[u32]) -> u32 {
        // One pass over the prompt yields the hash at every length at which there is a sequence.
        let (mut hash, mut found, mut done) = (Xxh3Default::new(), 0, 0);
        for &length in self
            .lengths
            .range(..=tokens.len())
            .map(|(length, _)| length)
        {
            tokens[done..length]
                .iter()
                .for_each(|token| hash.write_u32(*token));
            done = length;
            self.work.probes += 1;
            if let Some((used, _)) = self.sequences.get_mut(&hash.finish()) {
                self.now += 1;
                self.uses.remove(used);
                *used = self.now;
                self.uses.insert(self.now, hash.finish());
                found = length;
            }
        }
        self.work.hashed_tokens += done as u64;
        found as u32
    }

    fn keep(&mut self, tokens: &[u32]) {
        let hash = Self::hash(tokens);
        if self.sequences.contains_key(&hash) || pages(tokens.len()) > self.capacity_pages {
            return;
        }
        self.now += 1;
        self.sequences.insert(hash, (self.now, tokens.len()));
        self.uses.insert(self.now, hash);
        *self.lengths.entry(tokens.len()).or_default() += 1;
        self.pages += pages(tokens.len());
        while self.pages > self.capacity_pages
            && let Some((_, oldest)) = self.uses.pop_first()
            && let Some((_, length)) = self.sequences.remove(&oldest)
        {
            self.pages -= pages(length);
            if let Some(count) = self.lengths.get_mut(&length) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&length);
                }
            }
        }
    }

    fn work(&self) -> Work {
        self.work
    }
}

impl Blocks {
    /// Returns an empty cache with room for so many blocks.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            blocks: HashMap::new(),
            uses: BTreeMap::new(),
            now: 0,
            work: Work::default(),
        }
    }

    /// Returns the hash of each full block.
    fn hashes(tokens: &[u32]) -> Vec<u64> {
        let mut before = 0;
        let hashes = tokens.chunks_exact(PAGE_TOKENS as usize).map(|block| {
            let mut hash = Xxh3Default::new();
            hash.write_u64(before);
            block.iter().for_each(|token| hash.write_u32(*token));
            before = hash.finish();
            before
        });
        hashes.collect()
    }
}

impl Cache for Blocks {
    fn look(&mut self, tokens: &[u32]) -> u32 {
        let hashes = Self::hashes(tokens);
        self.work.hashed_tokens += hashes.len() as u64 * u64::from(PAGE_TOKENS);
        let found = hashes
            .iter()
            .take_while(|hash| self.blocks.contains_key(hash));
        let found = found.count();
        self.work.probes += hashes.len().min(found + 1) as u64;
        found as u32 * PAGE_TOKENS
    }

    fn keep(&mut self, tokens: &[u32]) {
        // The last block is used first, so that a block goes before those that it follows.
        for hash in Self::hashes(tokens).into_iter().rev() {
            self.now += 1;
            if let Some(used) = self.blocks.insert(hash, self.now) {
                self.uses.remove(&used);
            }
            self.uses.insert(self.now, hash);
        }
        while self.blocks.len() > self.capacity
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.blocks.remove(&oldest);
        }
    }

    fn work(&self) -> Work {
        self.work
    }
}

impl Radix {
    /// Returns an empty tree with room for so many pages.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let root = RadixNode {
            children: BTreeMap::new(),
            parent: None,
            used: 0,
        };
        Self {
            capacity,
            nodes: vec![Some(root)],
            free: Vec::new(),
            uses: BTreeMap::new(),
            now: 0,
            work: Work::default(),
        }
    }

    /// Returns the nodes of the full pages that match, and how many tokens match after them.
    fn walk(&self, tokens: &[u32]) -> (Vec<usize>, u64) {
        let (mut path, mut at) = (Vec::new(), 0);
        for page in tokens.chunks(PAGE_TOKENS as usize) {
            let Some(node) = &self.nodes[at] else { break };
            let key = Counted(page.to_vec());
            if page.len() == PAGE_TOKENS as usize
                && let Some(child) = node.children.get(&key)
            {
                at = *child;
                path.push(at);
                continue;
            }
            let before = node.children.range(..&key).next_back();
            let after = node.children.range(&key..).next();
            let neighbours = before.into_iter().chain(after);
            let tail = neighbours.map(|(other, _)| common(&other.0, page)).max();
            return (path, tail.unwrap_or(0));
        }
        (path, 0)
    }

    fn remove(&mut self, id: usize) {
        let Some(RadixNode {
            parent: Some((parent, tokens)),
            used,
            ..
        }) = self.nodes[id].take()
        else {
            return;
        };
        self.uses.remove(&used);
        if let Some(parent) = &mut self.nodes[parent] {
            parent.children.remove(&Counted(tokens));
        }
        self.free.push(id);
    }
}

impl Cache for Radix {
    fn look(&mut self, tokens: &[u32]) -> u32 {
        COMPARED.set(0);
        let (path, tail) = self.walk(tokens);
        self.work.compared_tokens += COMPARED.get();
        path.len() as u32 * PAGE_TOKENS + tail as u32
    }

    fn keep(&mut self, tokens: &[u32]) {
        let (mut path, _) = self.walk(tokens);
        let mut at = path.last().copied().unwrap_or(0);
        let known = path.len() * PAGE_TOKENS as usize;
        for page in tokens[known..].chunks(PAGE_TOKENS as usize) {
            let Some(node) = &self.nodes[at] else { break };
            // A page that begins with these tokens, or that these begin with.
            let key = Counted(page.to_vec());
            let longer = node.children.range(&key..).next();
            if longer.is_some_and(|(other, _)| other.0.starts_with(page)) {
                break;
            }
            let shorter = node.children.range(..&key).next_back();
            let shorter = shorter.filter(|(other, _)| page.starts_with(&other.0));
            if let Some((_, &shorter)) = shorter {
                self.remove(shorter);
            }
            let new = RadixNode {
                children: BTreeMap::new(),
                parent: Some((at, page.to_vec())),
                used: 0,
            };
            let id = self.free.pop().unwrap_or(self.nodes.len());
            match self.nodes.get_mut(id) {
                Some(slot) => *slot = Some(new),
                None => self.nodes.push(Some(new)),
            }
            if let Some(node) = &mut self.nodes[at] {
                node.children.insert(key, id);
            }
            path.push(id);
            at = id;
        }
        for id in path.into_iter().rev() {
            self.now += 1;
            if let Some(node) = &mut self.nodes[id] {
                self.uses.remove(&node.used);
                node.used = self.now;
                self.uses.insert(self.now, id);
            }
        }
        while self.uses.len() > self.capacity
            && let Some((_, &oldest)) = self.uses.first_key_value()
        {
            self.remove(oldest);
        }
    }

    fn work(&self) -> Work {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: u32 = 65_536;

    #[test]
    fn the_four_scenarios_meet_their_targets() {
        let order = PolicyKind::Foresight;
        for scenario in [
            chat(50),
            rag(300, 100, order),
            batches(10, 100, 1),
            mixed(400, 10, order),
        ] {
            let found = scenario.serve(POOL, &EngineConfig::default());
            assert!(
                found.meets(scenario.target),
                "{}: {found:?}, not {}",
                scenario.name,
                scenario.target
            );
            // No order of requests hits more, because all but the first prompt with a first page can hit.
            assert!(
                found.hits <= found.possible,
                "{}: {found:?} hits what nothing earlier holds",
                scenario.name
            );
            // Requests of a batch may be served in another order, and what they share by chance depends on it.
            let arrives_at_once = scenario.prompts[0].at == scenario.prompts[1].at;
            assert!(
                arrives_at_once || found.found_tokens <= found.possible_tokens,
                "{}: {found:?} finds more tokens than anything earlier holds",
                scenario.name
            );
        }
    }

    #[test]
    fn without_the_cache_nothing_is_found() {
        let config = EngineConfig {
            prefix_caching: false,
            ..EngineConfig::default()
        };
        let found = chat(5).serve(POOL, &config);
        assert_eq!((found.hits, found.found_tokens, found.possible), (0, 0, 4));
    }

    #[test]
    fn a_tree_finds_all_that_there_is_blocks_whole_blocks_and_hashes_of_sequences_whole_sequences()
    {
        let scenario = batches(3, 20, 3);
        let (radix, _) = scenario.look(&mut Radix::new(4_096));
        assert_eq!(radix.found_tokens, radix.possible_tokens);
        let (blocks, _) = scenario.look(&mut Blocks::new(4_096));
        // Of an instruction of 50 tokens, three blocks of 16.
        assert_eq!(blocks.found_tokens, 3 * 19 * 48);
        let (whole, _) = scenario.look(&mut WholeSequences::new(4_096));
        assert_eq!(whole.found_tokens, 0, "no prompt goes on from another");
        let (whole, _) = chat(20).look(&mut WholeSequences::new(4_096));
        assert_eq!(whole.hits, 19, "a chat goes on from its last turn");
    }

    #[test]
    fn a_full_cache_evicts_what_was_used_least_recently() {
        let prompts = [text(1, 1, 64), text(1, 2, 64), text(1, 3, 64)];
        let prompts = prompts.map(Iterator::collect::<Vec<u32>>);
        let caches: [Box<dyn Cache>; 3] = [
            Box::new(Radix::new(8)),
            Box::new(Blocks::new(8)),
            Box::new(WholeSequences::new(8)),
        ];
        for mut cache in caches {
            for prompt in [0, 1, 0, 2] {
                cache.look(&prompts[prompt]);
                cache.keep(&prompts[prompt]);
            }
            let found = prompts.each_ref().map(|prompt| cache.look(prompt));
            assert_eq!(found, [64, 0, 64]);
        }
    }
}

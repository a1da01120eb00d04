//! Traces and a bound for tests and benches.

use foreword_ordering::document::Fingerprint;
use foreword_ordering::policy::{PolicyKind, PolicyOptions};
use foreword_ordering::random::Random;
use foreword_ordering::tree::Scope;
use foreword_simulation::{Capacity, Replay, Request, Retrieved, Reuse, Trace, document_tokens};
use std::collections::HashMap;

/// Tokens of every generated document, as in [`foreword_simulation::workload`].
const TOKENS: u32 = 200;

/// Generates long-tailed topics: a request draws a topic of 100 documents, then `k` distinct documents of it, both by
/// Zipf's law.
#[must_use]
pub fn zipf_topics(seed: u64, requests: usize, documents: u64, k: usize) -> Trace {
    const TOPIC: u64 = 100;
    let mut random = Random::new(seed);
    let topics = (documents / TOPIC).max(1);
    (0..requests)
        .map(|_| {
            let topic = zipf(&mut random, topics);
            request(&popular(&mut random, topic * TOPIC, TOPIC, k))
        })
        .collect()
}

/// Generates interleaved conversations of 2 to 8 turns, 20 at a time, over topics of 40 documents. A turn keeps about
/// half of the previous turn's documents. Documents precede the conversation, so turns share their beginnings.
#[must_use]
pub fn conversations(seed: u64, requests: usize, k: usize) -> Trace {
    const AT_ONCE: u64 = 20;
    const TOPICS: u64 = 50;
    const TOPIC: u64 = 40;
    struct Conversation {
        topic: u64,
        turns_left: u64,
        last: Vec<u64>,
    }
    let mut random = Random::new(seed);
    let start = |random: &mut Random| Conversation {
        topic: zipf(random, TOPICS),
        turns_left: 2 + random.below(7),
        last: Vec::new(),
    };
    let mut open: Vec<Conversation> = (0..AT_ONCE).map(|_| start(&mut random)).collect();
    let mut trace = Trace::with_capacity(requests);
    while trace.len() < requests {
        let at = random.below(AT_ONCE) as usize;
        let Some(conversation) = open.get_mut(at) else {
            break;
        };
        if conversation.turns_left == 0 {
            *conversation = start(&mut random);
        }
        conversation.turns_left -= 1;
        let mut current = std::mem::take(&mut conversation.last);
        random.shuffle(&mut current);
        current.truncate(k / 2);
        let fresh = popular(&mut random, conversation.topic * TOPIC, TOPIC, k);
        fill(&mut current, fresh, k);
        random.shuffle(&mut current);
        trace.push(request(&current));
        conversation.last = current;
    }
    trace
}

/// Replays a whole trace under a policy, from an empty cache.
#[must_use]
pub fn replay(
    trace: &Trace,
    kind: PolicyKind,
    options: &PolicyOptions,
    capacity: Capacity,
) -> Reuse {
    let mut replay = Replay::new(kind, options, capacity);
    for request in trace {
        let order = replay.decide(request);
        replay.serve(request, &order);
    }
    replay.reuse()
}

/// Returns the pairwise upper bound: each request counts its largest overlap, in tokens, with any one earlier request
/// of its scope. No order exceeds it, since a cached prefix came from one earlier request that had all of it. On some
/// traces no order reaches it: one request's best order is another's worst. O(requests x overlapping requests).
#[must_use]
pub fn upper_bound(trace: &Trace) -> Reuse {
    let mut postings: HashMap<(u64, Fingerprint), Vec<usize>> = HashMap::new();
    let mut shared: Vec<u64> = vec![0; trace.len()];
    let mut reuse = Reuse::default();
    for (at, request) in trace.iter().enumerate() {
        let mut met = Vec::new();
        for document in &request.documents {
            let posted = postings
                .entry((request.scope.0, document.fingerprint))
                .or_default();
            for &earlier in &*posted {
                if let Some(shared) = shared.get_mut(earlier) {
                    *shared += u64::from(document.tokens);
                    met.push(earlier);
                }
            }
            posted.push(at);
        }
        let most = met
            .into_iter()
            .filter_map(|earlier| shared.get_mut(earlier).map(std::mem::take))
            .max();
        reuse.reused_tokens += most.unwrap_or(0);
        reuse.document_tokens += document_tokens(std::slice::from_ref(request));
    }
    reuse
}

fn request(documents: &[u64]) -> Request {
    Request {
        is_ranked: true,
        scope: Scope(0),
        documents: documents
            .iter()
            .map(|&number| Retrieved::numbered(number, TOKENS))
            .collect(),
    }
}

/// Adds elements of `more` that `chosen` lacks, up to `k` in all.
fn fill(chosen: &mut Vec<u64>, more: Vec<u64>, k: usize) {
    for document in more {
        if chosen.len() >= k {
            return;
        }
        if !chosen.contains(&document) {
            chosen.push(document);
        }
    }
}

/// Draws `k` distinct documents of the `count` from `first` on (all of them if there are fewer), by Zipf's law.
fn popular(random: &mut Random, first: u64, count: u64, k: usize) -> Vec<u64> {
    let k = k.min(usize::try_from(count).unwrap_or(usize::MAX));
    let mut chosen: Vec<u64> = Vec::with_capacity(k);
    while chosen.len() < k {
        fill(&mut chosen, vec![first + zipf(random, count)], k);
    }
    chosen
}

/// Draws a number below `count`, by Zipf's law with exponent 1, approximated by the inverse transform of the continuous
/// 1/x law.
fn zipf(random: &mut Random, count: u64) -> u64 {
    let drawn = ((count as f64 + 1.0).powf(random.unit()) - 1.0) as u64;
    drawn.min(count.saturating_sub(1))
}

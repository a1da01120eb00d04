//! The ordering core: one decision at k = 15 against 10,000 stored paths, and one whole body of about 16 KB.
//!
//! `cargo bench -p foreword-benches -- ordering`

use criterion::{BatchSize, Criterion};
use foreword_benches::{Arguments, zipf_topics};
use foreword_ordering::document::{Candidate, Fingerprint};
use foreword_ordering::policy::{
    Policy, PolicyKind, PolicyOptions, SentDocuments, Start, fingerprints, match_of,
};
use foreword_ordering::tree::{Bounds, KnowledgeTree, Scope};
use foreword_ordering::{Config, Orderer, Tenant};
use std::hint::black_box;

const DOCUMENTS: u64 = 5_000;
const K: usize = 15;
const STORED: usize = 10_000;
const SCOPE: Scope = Scope(0);
const TOKENS: u32 = 250;

pub(crate) fn bench(_: &Arguments) {
    let mut criterion = crate::criterion();
    orders(&mut criterion);
    bodies(&mut criterion);
    criterion.final_summary();
}

fn candidates(tree: &mut KnowledgeTree, list: &[u64]) -> Vec<Candidate<'static>> {
    list.iter()
        .map(|&document| Candidate {
            id: tree.intern(Fingerprint(document)),
            fingerprint: Fingerprint(document),
            label: "",
            tokens: TOKENS,
        })
        .collect()
}

/// Returns a tree that has seen `lists`, each in the order that `policy` chose.
fn grown(policy: &mut dyn Policy, lists: &[Vec<u64>]) -> KnowledgeTree {
    let mut tree = KnowledgeTree::new(Bounds {
        max_nodes: 1_000_000,
        max_tokens: None,
    });
    for list in lists {
        let candidates = candidates(&mut tree, list);
        let order = policy.order(&candidates, Start::behind(&tree, SCOPE));
        policy.remember(&fingerprints(&candidates), &order);
        let sent: Vec<_> = (order.iter())
            .map(|&rank| (candidates[usize::from(rank)].fingerprint, TOKENS))
            .collect();
        policy.sent(&[SentDocuments {
            scope: SCOPE,
            documents: &sent,
            order: Some(&order),
        }]);
        tree.insert(
            SCOPE,
            order
                .iter()
                .map(|&rank| (candidates[usize::from(rank)].id, TOKENS)),
        );
    }
    tree
}

/// Measures choosing an order, for every policy.
fn orders(c: &mut Criterion) {
    let lists = zipf_topics(1, STORED + 1_000, DOCUMENTS, K);
    let (stored, asked) = lists.split_at(STORED);
    let mut group = c.benchmark_group("order/k15/10000-paths");
    for kind in PolicyKind::ALL {
        let mut policy = kind.build(&PolicyOptions::default());
        let mut tree = grown(&mut *policy, stored);
        let asked: Vec<_> = asked
            .iter()
            .map(|list| candidates(&mut tree, list))
            .collect();
        let matched: u32 = asked
            .iter()
            .map(|candidates| {
                match_of(
                    candidates,
                    &policy.order(candidates, Start::behind(&tree, SCOPE)),
                    Start::behind(&tree, SCOPE),
                )
                .documents
            })
            .sum();
        assert!(
            matched > 0,
            "{} matches nothing: the bench measures nothing",
            kind.name()
        );
        let mut next = asked.iter().cycle();
        group.bench_function(kind.name(), |b| {
            b.iter_batched(
                || next.next().expect("a cycle does not end"),
                |candidates| policy.order(black_box(candidates), Start::behind(&tree, SCOPE)),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// Measures body in, body out: 15 tagged documents of 1 KB, with the tree updated.
fn bodies(c: &mut Criterion) {
    let text = "All hands shall keep the watch list where the relief can read it. ".repeat(16);
    let body = |list: &Vec<u64>| {
        let documents: String = list
            .iter()
            .map(|id| format!("<document id=\\\"{id}\\\">{text}</document>\\n"))
            .collect();
        format!(
            "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{documents}Why?\"}}]}}"
        )
    };
    let bodies: Vec<String> = zipf_topics(1, STORED + 1_000, DOCUMENTS, K)
        .iter()
        .map(body)
        .collect();
    let (stored, asked) = bodies.split_at(STORED);
    let mut orderer = Orderer::new(
        Config::from_json(br#"{"tree":{"max_nodes":1000000}}"#).expect("a valid configuration"),
    );
    for body in stored {
        orderer
            .rewrite(Tenant::default(), body.as_bytes())
            .expect("a chat request with documents");
    }
    let mut next = asked.iter().cycle();
    c.bench_function("rewrite/16KB/k15/10000-paths", |b| {
        b.iter_batched(
            || next.next().expect("a cycle does not end"),
            |body| orderer.rewrite(Tenant::default(), black_box(body.as_bytes())),
            BatchSize::SmallInput,
        );
    });
}

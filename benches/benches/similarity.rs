//! The similarity cache: one look-up among 300 questions by a scan, and among 100,000 by buckets.
//!
//! `cargo bench -p foreword-benches -- similarity`. Before it times anything, it prints how many of the hits of a
//! scan the buckets find.

use criterion::Criterion;
use foreword_benches::Arguments;
use foreword_ordering::random::Random;
use foreword_similarity::{SimilarityCache, SimilarityConfig};
use std::hint::black_box;

const DIMENSIONS: usize = 768;

pub(crate) fn bench(_: &Arguments) {
    let mut criterion = crate::criterion();
    scans(&mut criterion);
    buckets(&mut criterion);
    criterion.final_summary();
}

/// Numbers that are about normal: sums of twelve uniform ones, less their mean.
fn normal(random: &mut Random) -> f32 {
    (0..12).map(|_| random.unit()).sum::<f64>() as f32 - 6.0
}

/// `around`, moved to a cosine of about `cosine` in a random direction, of length 1.
fn near(random: &mut Random, around: &[f32], cosine: f32) -> Vec<f32> {
    let noise = (1.0 / (cosine * cosine) - 1.0).sqrt() / (around.len() as f32).sqrt();
    unit(
        around
            .iter()
            .map(|value| value + noise * normal(random))
            .collect(),
    )
}

fn anywhere(random: &mut Random) -> Vec<f32> {
    unit((0..DIMENSIONS).map(|_| normal(random)).collect())
}

fn unit(mut point: Vec<f32>) -> Vec<f32> {
    let length = point.iter().map(|value| value * value).sum::<f32>().sqrt();
    for value in &mut point {
        *value /= length;
    }
    point
}

fn cache(config: &str, keys: &[Vec<f32>]) -> SimilarityCache {
    let config = SimilarityConfig::from_json(config.as_bytes()).expect("the bench's configuration");
    let mut cache = SimilarityCache::new(&config);
    for (number, key) in keys.iter().enumerate() {
        let documents = [number.to_string()];
        cache
            .insert(key, &documents, None, 0)
            .expect("the bench's embeddings");
    }
    cache
}

fn hits(cache: &mut SimilarityCache, asked: &[Vec<f32>]) -> usize {
    let hit = |asked: &&Vec<f32>| {
        cache
            .lookup(asked, 0)
            .expect("the bench's embeddings")
            .is_some()
    };
    asked.iter().filter(hit).count()
}

/// 300 entries, every metric: a near question, a far one, and the worst case, a far one with a tolerance that lets no
/// comparison be given up.
fn scans(c: &mut Criterion) {
    let mut random = Random::new(1);
    let keys: Vec<Vec<f32>> = (0..300).map(|_| anywhere(&mut random)).collect();
    let hit: Vec<Vec<f32>> = keys
        .iter()
        .map(|key| near(&mut random, key, 0.95))
        .collect();
    let miss: Vec<Vec<f32>> = keys.iter().map(|_| anywhere(&mut random)).collect();
    let mut group = c.benchmark_group("lookup/300x768");
    for (metric, tolerance, all) in [
        ("cosine", 0.1, 2.0),
        ("l2", 0.45, 1e9),
        ("inner-product", 0.1, 1e9),
    ] {
        for (name, tolerance, asked, expected) in [
            ("hit", tolerance, &hit, 300),
            ("miss", tolerance, &miss, 0),
            ("worst", all, &miss, 300),
        ] {
            let config = format!(
                r#"{{"dimensions": {DIMENSIONS}, "metric": "{metric}", "tolerance": {tolerance}, "ttl_ms": null}}"#
            );
            let mut cache = cache(&config, &keys);
            assert_eq!(hits(&mut cache, asked), expected, "{metric}, {name}");
            let mut next = asked.iter().cycle();
            group.bench_function(format!("{metric}/{name}"), |b| {
                b.iter(|| {
                    let asked = next.next().expect("a cycle does not end");
                    cache.lookup(black_box(asked), 0).is_ok()
                });
            });
        }
    }
    group.finish();
}

/// 100,000 entries in clusters of `per_cluster`, whose members are at a cosine of about 0.6 to each other; questions at
/// a cosine of about 0.95 to an entry, which a tolerance of 0.1 accepts.
fn buckets(c: &mut Criterion) {
    const ENTRIES: usize = 100_000;
    const QUESTIONS: usize = 2_000;
    let mut group = c.benchmark_group("lookup/100000x768");
    for per_cluster in [20, 1_000] {
        let mut random = Random::new(2);
        let centres: Vec<Vec<f32>> = (0..ENTRIES / per_cluster)
            .map(|_| anywhere(&mut random))
            .collect();
        let keys: Vec<Vec<f32>> = (0..ENTRIES)
            .map(|at| near(&mut random, &centres[at % centres.len()], 0.775))
            .collect();
        let mut asked = || -> Vec<Vec<f32>> {
            let key = |_| random.below(ENTRIES as u64) as usize;
            let keys_at: Vec<usize> = (0..QUESTIONS).map(key).collect();
            keys_at
                .iter()
                .map(|&at| near(&mut random, &keys[at], 0.95))
                .collect()
        };
        let near_ones = asked();
        let far: Vec<Vec<f32>> = (0..QUESTIONS)
            .map(|at| near(&mut random, &centres[at % centres.len()], 0.775))
            .collect();
        let config = |buckets: &str| {
            format!(
                r#"{{"dimensions": {DIMENSIONS}, "tolerance": 0.1, "capacity": {ENTRIES}, "ttl_ms": null,
                    "buckets": {buckets}}}"#
            )
        };
        let mut by_buckets = cache(&config("{}"), &keys);
        let found = hits(&mut by_buckets, &near_ones);
        println!("clusters of {per_cluster}: {found} of {QUESTIONS} hits found");
        assert!(found * 100 >= QUESTIONS * 95, "recall of hits");
        for (name, asked) in [("hit", &near_ones), ("miss", &far)] {
            let mut next = asked.iter().cycle();
            group.bench_function(format!("clusters of {per_cluster}/{name}"), |b| {
                b.iter(|| {
                    let asked = next.next().expect("a cycle does not end");
                    by_buckets.lookup(black_box(asked), 0).is_ok()
                });
            });
        }
    }
    group.finish();
}

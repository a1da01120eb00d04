//! Tests the similarity cache against a simple model: a list with linear search.

use foreword_ordering::document::Fingerprint;
use foreword_ordering::random::Random;
use foreword_similarity::{CacheName, SimilarityCache, SimilarityCaches, SimilarityConfig};

/// The documented behaviour, without optimisations.
struct Model {
    metric: &'static str,
    capacity: usize,
    lru: bool,
    ttl_ms: Option<u64>,
    /// Entries in the order of insertion.
    entries: Vec<Entry>,
    uses: u64,
}

struct Entry {
    embedding: Vec<f32>,
    documents: Vec<String>,
    tolerance: f32,
    inserted_ms: u64,
    used: u64,
}

impl Model {
    fn distance(&self, a: &[f32], b: &[f32]) -> f64 {
        let pairs = || a.iter().zip(b).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        let dot: f64 = pairs().map(|(a, b)| a * b).sum();
        match self.metric {
            "l2" => pairs().map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt(),
            "cosine" => {
                let lengths = pairs().fold((0.0, 0.0), |(x, y), (a, b)| (x + a * a, y + b * b));
                1.0 - dot / (lengths.0 * lengths.1).sqrt()
            }
            _ => 1.0 - dot,
        }
    }

    fn expire(&mut self, now_ms: u64) {
        if let Some(ttl_ms) = self.ttl_ms {
            self.entries
                .retain(|entry| now_ms - entry.inserted_ms < ttl_ms);
        }
    }

    /// The nearest entry that accepts the embedding, the newest on a tie, with its distance. `None` if rounding in
    /// `f32` may decide otherwise: for the cosine, when it is close.
    fn nearest(&self, embedding: &[f32]) -> Option<Option<(usize, f64)>> {
        let mut nearest: Option<(usize, f64)> = None;
        for (at, entry) in self.entries.iter().enumerate() {
            let distance = self.distance(embedding, &entry.embedding);
            let tolerance = f64::from(entry.tolerance);
            if self.metric == "cosine" {
                let best = nearest.map_or(tolerance, |(_, best)| best);
                let same = embedding == entry.embedding;
                if !same
                    && [tolerance, best]
                        .iter()
                        .any(|&other| (distance - other).abs() < 1e-5)
                {
                    return None;
                }
            }
            if distance <= tolerance && nearest.is_none_or(|(_, best)| distance <= best) {
                nearest = Some((at, distance));
            }
        }
        Some(nearest)
    }

    fn insert(&mut self, embedding: &[f32], documents: &[String], tolerance: f32, now_ms: u64) {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.embedding != embedding);
        if self.entries.len() == before && before == self.capacity {
            let by_use = self.entries.iter().enumerate();
            let oldest = match self.lru {
                true => by_use.min_by_key(|(_, entry)| entry.used).unwrap().0,
                false => 0,
            };
            self.entries.remove(oldest);
        }
        self.uses += 1;
        self.entries.push(Entry {
            embedding: embedding.to_vec(),
            documents: documents.to_vec(),
            tolerance,
            inserted_ms: now_ms,
            used: self.uses,
        });
    }
}

/// Multiples of a quarter, whose sums and products are exact in an `f32`, so that ties occur in the cache and the model
/// alike. The cosine is never exact, so these are any numbers.
fn embedding(random: &mut Random, metric: &str, dimensions: usize) -> Vec<f32> {
    let exact = metric != "cosine";
    (0..dimensions)
        .map(|_| match exact {
            true => random.below(9) as f32 / 4.0 - 1.0,
            false => random.unit() as f32 - 0.5,
        })
        .collect()
}

fn documents(random: &mut Random) -> Vec<String> {
    (0..random.below(4))
        .map(|_| format!("d{}", random.below(60)))
        .collect()
}

#[test]
fn a_cache_decides_like_a_list_that_is_searched_from_end_to_end() {
    let (mut hits, mut misses, mut invalidated, mut expired) = (0, 0, 0, 0);
    for seed in 0..90 {
        let mut random = Random::new(seed);
        let metric = ["l2", "cosine", "inner-product"][(seed % 3) as usize];
        let dimensions = [2, 3, 40][(seed / 3 % 3) as usize];
        let tolerances: [f32; 2] = match (metric, dimensions) {
            ("l2", 40) => [3.25, 4.0],
            ("l2", _) => [0.5, 0.25],
            ("cosine", 40) => [0.5, 0.75],
            ("cosine", _) => [0.05, 0.02],
            (_, 40) => [-1.5, -3.0],
            _ => [0.0, -0.5],
        };
        let mut model = Model {
            metric,
            capacity: 1 + random.below(20) as usize,
            lru: seed % 2 == 0,
            ttl_ms: (random.below(2) == 0).then_some(30),
            entries: Vec::new(),
            uses: 0,
        };
        // With three borders, eight buckets are all buckets, so no entry is missed.
        let buckets = match seed % 4 {
            1 if metric != "l2" => r#"{"tables": 1, "functions": 3, "probes": 8}"#,
            _ => "null",
        };
        let config = format!(
            r#"{{"dimensions": {dimensions}, "metric": "{metric}", "tolerance": {}, "capacity": {},
                "eviction": "{}", "ttl_ms": {}, "buckets": {buckets}}}"#,
            tolerances[0],
            model.capacity,
            if model.lru { "lru" } else { "fifo" },
            model.ttl_ms.map_or("null".into(), |ttl| ttl.to_string()),
        );
        let config = SimilarityConfig::from_json(config.as_bytes()).unwrap();
        let mut cache = SimilarityCache::new(&config);
        let pool: Vec<Vec<f32>> = (0..30)
            .map(|_| embedding(&mut random, metric, dimensions))
            .collect();
        let mut now_ms = 1_000;
        for _ in 0..300 {
            now_ms += random.below(3);
            let asked = match random.below(3) {
                0 => pool[random.below(30) as usize].clone(),
                _ => embedding(&mut random, metric, dimensions),
            };
            if metric == "cosine" && asked.iter().all(|&value| value == 0.0) {
                continue;
            }
            match random.below(12) {
                0 => {
                    let gone = [format!("d{}", random.below(60)), "d7".into()];
                    let before = model.entries.len();
                    model
                        .entries
                        .retain(|entry| !entry.documents.iter().any(|id| gone.contains(id)));
                    assert_eq!(cache.invalidate(&gone), before - model.entries.len());
                    invalidated += before - model.entries.len();
                }
                1..=6 => {
                    let before = model.entries.len();
                    model.expire(now_ms);
                    expired += before - model.entries.len();
                    let Some(nearest) = model.nearest(&asked) else {
                        continue;
                    };
                    let hit = cache.lookup(&asked, now_ms).unwrap();
                    let Some((at, distance)) = nearest else {
                        assert!(hit.is_none(), "seed {seed}");
                        misses += 1;
                        continue;
                    };
                    hits += 1;
                    let hit = hit.unwrap_or_else(|| panic!("seed {seed}: a hit at {distance}"));
                    model.uses += 1;
                    let entry = &mut model.entries[at];
                    entry.used = model.uses;
                    let held: Vec<&str> = hit.documents.iter().map(|id| &**id).collect();
                    assert_eq!(held, entry.documents, "seed {seed}");
                    assert!((f64::from(hit.distance) - distance).abs() < 1e-4);
                    assert_eq!(hit.age_ms, now_ms - entry.inserted_ms);
                    assert!(hit.sample.is_none());
                }
                choice => {
                    let documents = documents(&mut random);
                    let tolerance = (choice > 10).then_some(tolerances[1]);
                    model.expire(now_ms);
                    model.insert(
                        &asked,
                        &documents,
                        tolerance.unwrap_or(tolerances[0]),
                        now_ms,
                    );
                    cache
                        .insert(&asked, &documents, tolerance.map(f64::from), now_ms)
                        .unwrap();
                    assert_eq!(cache.len(), model.entries.len(), "seed {seed}");
                }
            }
        }
    }
    for (what, times) in [
        ("hits", hits),
        ("misses", misses),
        ("invalidated", invalidated),
        ("expired", expired),
    ] {
        assert!(times > 300, "{what}: {times}");
    }
}

#[test]
fn buckets_find_nearly_what_a_scan_finds_and_nothing_else() {
    for (metric, tolerance) in [("cosine", 0.05), ("inner-product", 0.05), ("l2", 0.32)] {
        let config = |buckets: &str| {
            let text = format!(
                r#"{{"dimensions": 64, "metric": "{metric}", "tolerance": {tolerance}, "capacity": 200,
                    "buckets": {buckets}}}"#
            );
            SimilarityConfig::from_json(text.as_bytes()).unwrap()
        };
        let mut scan = SimilarityCache::new(&config("null"));
        let mut buckets = SimilarityCache::new(&config("{}"));
        let mut random = Random::new(9);
        let mut unit = |around: Option<&[f32]>| -> Vec<f32> {
            let noise = || random.unit() as f32 - 0.5;
            let noise: Vec<f32> = std::iter::repeat_with(noise).take(64).collect();
            let point = around.map_or(noise.clone(), |around| {
                // At a distance of about 0.28.
                let pairs = around.iter().zip(&noise);
                pairs.map(|(value, noise)| value + 0.12 * noise).collect()
            });
            let length = point.iter().map(|value| value * value).sum::<f32>().sqrt();
            point.iter().map(|value| value / length).collect()
        };
        let keys: Vec<Vec<f32>> = (0..300).map(|_| unit(None)).collect();
        for (number, key) in keys.iter().enumerate() {
            for cache in [&mut scan, &mut buckets] {
                cache.insert(key, &[number.to_string()], None, 0).unwrap();
            }
        }
        assert_eq!((scan.len(), buckets.len()), (200, 200));
        let (mut expected, mut found) = (0, 0);
        for key in &keys {
            let asked = unit(Some(key));
            let by_scan = scan.lookup(&asked, 0).unwrap();
            let by_buckets = buckets.lookup(&asked, 0).unwrap();
            expected += usize::from(by_scan.is_some());
            found += usize::from(by_buckets.is_some());
            if let Some(hit) = by_buckets {
                assert_eq!(
                    hit.documents,
                    by_scan.expect("an entry accepts it").documents
                );
            }
        }
        assert!(expected > 150, "{metric}: {expected} hits");
        assert!(
            found * 100 >= expected * 95,
            "{metric}: {found} of {expected}"
        );
    }
}

/// A hash of all distances and answers of some thousand calls. `tests/wasi.mjs` describes how to run this test in Wasm,
/// where it must produce the same hash, with and without vectors.
#[test]
fn decisions_are_the_same_bit_for_bit_on_every_target() {
    let mut seen = Fingerprint(0);
    for (metric, tolerance) in [("cosine", 0.75), ("inner-product", 0.1), ("l2", 2.25)] {
        for buckets in ["null", "{}"] {
            let config = format!(
                r#"{{"dimensions": 40, "metric": "{metric}", "tolerance": {tolerance}, "capacity": 40,
                    "buckets": {buckets}, "sample_one_in": 3}}"#
            );
            let config = SimilarityConfig::from_json(config.as_bytes()).unwrap();
            let mut cache = SimilarityCache::new(&config);
            let mut random = Random::new(10);
            for number in 0..300_u32 {
                let asked: Vec<f32> = (0..40).map(|_| random.unit() as f32 - 0.5).collect();
                if let Some(hit) = cache.lookup(&asked, number.into()).unwrap() {
                    let distance = hit.distance.to_bits().to_le_bytes();
                    let sampled = [u8::from(hit.sample.is_some())];
                    let before = seen.0.to_le_bytes();
                    seen = Fingerprint::of(&[
                        &before,
                        hit.documents[0].as_bytes(),
                        &distance,
                        &sampled,
                    ]);
                }
                if number % 2 == 0 {
                    cache
                        .insert(&asked, &[number.to_string()], None, number.into())
                        .unwrap();
                }
            }
            let quality = cache.quality();
            assert!(
                (30..270).contains(&quality.hits),
                "{metric}: {} hits",
                quality.hits
            );
        }
    }
    assert_eq!(seen, Fingerprint(3_883_207_277_976_508_676));
}

fn caches(config: &str) -> SimilarityCaches {
    SimilarityCaches::new(SimilarityConfig::from_json(config.as_bytes()).unwrap())
}

const fn name<'n>(tenant: &'n str, retriever: &'n str) -> CacheName<'n> {
    CacheName { tenant, retriever }
}

fn held(
    caches: &mut SimilarityCaches,
    of: CacheName<'_>,
    embedding: &[f32],
) -> Option<Vec<String>> {
    let hit = caches.lookup(of, embedding, 0).unwrap()?;
    Some(hit.documents.iter().map(ToString::to_string).collect())
}

#[test]
fn tenants_and_retriever_versions_share_nothing() {
    let mut caches = caches(r#"{"dimensions": 2}"#);
    let asked = [1.0, 0.0];
    caches
        .insert(name("a", "v1"), &asked, &["x"], None, 0)
        .unwrap();
    assert_eq!(held(&mut caches, name("a", "v1"), &asked).unwrap(), ["x"]);
    for other in [
        name("b", "v1"),
        name("a", "v2"),
        name("av", "1"),
        name("", "av1"),
    ] {
        assert_eq!(held(&mut caches, other, &asked), None);
    }
    caches
        .insert(name("b", "v1"), &asked, &["x"], None, 0)
        .unwrap();
    assert_eq!(caches.invalidate("a", &["x"]), 1);
    assert_eq!(held(&mut caches, name("b", "v1"), &asked).unwrap(), ["x"]);
}

#[test]
fn the_least_recently_used_cache_makes_room_and_its_counts_stay() {
    let mut caches = caches(r#"{"dimensions": 2, "max_caches": 2}"#);
    let asked = [1.0, 0.0];
    for tenant in ["a", "b"] {
        caches
            .insert(name(tenant, ""), &asked, &[tenant], None, 0)
            .unwrap();
    }
    assert!(held(&mut caches, name("a", ""), &asked).is_some());
    assert!(held(&mut caches, name("c", ""), &asked).is_none());
    assert_eq!((caches.len(), caches.entries()), (2, 1));
    assert!(held(&mut caches, name("a", ""), &asked).is_some());
    assert!(held(&mut caches, name("b", ""), &asked).is_none());
    let quality = caches.quality();
    assert_eq!((quality.lookups, quality.hits), (4, 2));
    assert_eq!(caches.quality_of(name("a", "")).unwrap().hits, 2);
    caches.clear();
    assert_eq!(caches.quality(), quality);
    assert!(caches.is_empty() && caches.quality_of(name("a", "")).is_none());
}

#[test]
fn sampled_hits_are_checked_against_a_fresh_search() {
    let mut caches = caches(r#"{"dimensions": 2, "sample_one_in": 4}"#);
    let of = name("a", "");
    let asked = [1.0, 0.0];
    caches.insert(of, &asked, &["x", "y"], None, 0).unwrap();
    let mut sampled = 0;
    for _ in 0..400 {
        let hit = caches.lookup(of, &asked, 0).unwrap().unwrap();
        if let Some(sample) = hit.sample {
            sampled += 1;
            caches.report(of, &sample, &["y", "z"]);
        }
    }
    assert!((60..140).contains(&sampled), "{sampled} of 400");
    let quality = caches.quality();
    assert_eq!(quality.sampled, sampled);
    assert_eq!((quality.hits, quality.lookups), (400, 400));
    assert_eq!(quality.false_hits, sampled);
    assert_eq!(quality.recall(), Some(0.5));
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut caches = caches(r#"{"dimensions": 2, "max_documents": 2, "max_id_bytes": 3}"#);
    let of = name("a", "");
    let none: [&str; 0] = [];
    for (embedding, documents, tolerance, message) in [
        (
            &[1.0][..],
            &["x"][..],
            None,
            "the embedding has 1 dimensions, this cache is for 2",
        ),
        (
            &[f32::NAN, 1.0],
            &["x"],
            None,
            "the embedding's component 0 is NaN, it must be finite",
        ),
        (
            &[0.0, 0.0],
            &["x"],
            None,
            "the embedding is zero in every component: it has no direction to compare by cosine",
        ),
        (
            &[1.0, 0.0],
            &["x", "y", "z"],
            None,
            "3 documents, an entry holds at most 2",
        ),
        (
            &[1.0, 0.0],
            &["x", "long"],
            None,
            "the id of document 1 is 4 bytes long, it may be at most 3",
        ),
        (
            &[1.0, 0.0],
            &["x"],
            Some(f32::NAN),
            "a tolerance of NaN is out of range, it must be 0 to 2",
        ),
    ] {
        let refused = caches.insert(of, embedding, documents, tolerance.map(f64::from), 0);
        assert_eq!(refused.unwrap_err().to_string(), message);
    }
    assert_eq!(
        caches.lookup(of, &[], 0).err().unwrap().to_string(),
        "the embedding has 0 dimensions, this cache is for 2"
    );
    assert_eq!((caches.entries(), caches.quality().lookups), (0, 0));
    caches.insert(of, &[1.0, 0.0], &none, None, 0).unwrap();
    assert_eq!(held(&mut caches, of, &[1.0, 0.0]).unwrap(), none);
}

#[test]
fn a_clock_that_is_set_back_keeps_no_entry_for_longer() {
    let mut caches = caches(r#"{"dimensions": 1, "ttl_ms": 10}"#);
    let of = name("a", "");
    caches.insert(of, &[1.0], &["x"], None, 100).unwrap();
    caches.insert(of, &[-1.0], &["y"], None, 105).unwrap();
    assert_eq!(caches.lookup(of, &[1.0], 50).unwrap().unwrap().age_ms, 0);
    assert_eq!(caches.lookup(of, &[1.0], 59).unwrap().unwrap().age_ms, 9);
    assert!(caches.lookup(of, &[1.0], 60).unwrap().is_none());
    assert_eq!(caches.entries(), 0, "both expired");
    assert!(caches.lookup(of, &[1.0], u64::MAX).unwrap().is_none());
}

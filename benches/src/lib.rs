//! What the benches share: seeded workloads.

/// SplitMix64: a small seeded generator, so that every run of a bench sees the same data.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that gives the same numbers for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Retrieved lists over topics of Zipf popularity: a request draws a topic, then `k` distinct documents of it,
/// popular ones more often, in an order of their own.
#[must_use]
pub fn zipf_topics(seed: u64, requests: usize, documents: u64, k: usize) -> Vec<Vec<u64>> {
    const TOPIC: u64 = 50;
    let mut random = Random::new(seed);
    let topics = documents / TOPIC;
    // Inverse transform of the continuous 1/x law: close enough to Zipf with exponent 1.
    let zipf =
        |random: &mut Random, count: u64| ((count as f64 + 1.0).powf(random.unit()) - 1.0) as u64;
    let mut list = || {
        let topic = zipf(&mut random, topics).min(topics - 1);
        let mut found: Vec<u64> = Vec::with_capacity(k);
        while found.len() < k {
            let document = topic * TOPIC + zipf(&mut random, TOPIC).min(TOPIC - 1);
            if !found.contains(&document) {
                found.push(document);
            }
        }
        found
    };
    (0..requests).map(|_| list()).collect()
}

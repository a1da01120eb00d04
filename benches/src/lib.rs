//! What the benches share.

pub mod simulated;
pub mod xquad;

use foreword_ordering::simulation::workload;

/// The documents' numbers in a trace of [Zipf topics](workload::zipf_topics).
#[must_use]
pub fn zipf_topics(seed: u64, requests: usize, documents: u64, k: usize) -> Vec<Vec<u64>> {
    workload::zipf_topics(seed, requests, documents, k)
        .iter()
        .map(|request| request.documents.iter().map(|d| d.fingerprint.0).collect())
        .collect()
}

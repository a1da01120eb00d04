//! The quality of a cache's answers: the hit rate, and how many of the checked hits were wrong.

/// The counts of one or several caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Number of valid look-ups.
    pub lookups: u64,
    /// Number of look-ups that an entry answered.
    pub hits: u64,
    /// Number of hits compared with a fresh search.
    pub sampled: u64,
    /// Number of sampled hits whose documents differ from the fresh ones, regardless of order.
    pub false_hits: u64,
    /// Number of documents found by the fresh searches.
    pub fresh_documents: u64,
    /// Number of these documents that the answers also had.
    pub recalled_documents: u64,
}

/// A hit to check: run the search anyway, and report its result.
///
/// The caller owns it; a sample that is dropped is not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a sample is for reporting what a fresh search finds"]
pub struct Sample {
    /// Ids of the documents in the answer.
    pub(super) served: Vec<Box<str>>,
}

impl Quality {
    /// Returns recall@k of sampled hits: of the documents that fresh searches found, the share that the hits had.
    /// `None` if no fresh search found any.
    #[must_use]
    pub fn recall(&self) -> Option<f64> {
        share(self.recalled_documents, self.fresh_documents)
    }

    /// Compares `sample` with the result of a fresh search, and counts it.
    pub(super) fn report<S: AsRef<str>>(&mut self, sample: &Sample, fresh: &[S]) {
        let held = |wanted: &str| sample.served.iter().any(|id| &**id == wanted);
        let recalled = fresh.iter().filter(|id| held(id.as_ref())).count();
        let found = |id: &str| fresh.iter().any(|fresh| fresh.as_ref() == id);
        let same = recalled == fresh.len() && sample.served.iter().all(|id| found(id));
        self.sampled += 1;
        self.false_hits += u64::from(!same);
        self.fresh_documents += fresh.len() as u64;
        self.recalled_documents += recalled as u64;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.lookups += other.lookups;
        self.hits += other.hits;
        self.sampled += other.sampled;
        self.false_hits += other.false_hits;
        self.fresh_documents += other.fresh_documents;
        self.recalled_documents += other.recalled_documents;
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ids: &[&str]) -> Sample {
        Sample {
            served: ids.iter().map(|&id| id.into()).collect(),
        }
    }

    #[test]
    fn a_hit_is_false_when_its_documents_differ_in_more_than_order() {
        let mut quality = Quality::default();
        assert_eq!((quality.false_hits, quality.sampled), (0, 0));
        quality.report(&sample(&["a", "b"]), &["b", "a"]);
        quality.report(&sample(&["a", "b"]), &["a", "c"]);
        quality.report(&sample(&["a", "b"]), &["a"]);
        quality.report(&sample(&["a"]), &["a", "b", "c"]);
        assert_eq!((quality.false_hits, quality.sampled), (3, 4));
        assert_eq!(quality.recall(), Some(5.0 / 8.0));
    }

    #[test]
    fn searches_that_find_nothing_have_no_recall() {
        let mut quality = Quality::default();
        quality.report(&sample(&[]), &[] as &[&str]);
        assert_eq!((quality.false_hits, quality.sampled), (0, 1));
        assert_eq!(quality.recall(), None);
    }
}

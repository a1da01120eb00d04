//! A trace in little memory: each document is stored once, and requests are lists of 4-byte numbers. A million requests
//! of ten documents take about 60 MB, without the documents themselves.

use super::{Request, Retrieved};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::tree::Scope;
use fxhash::{FxHashMap, FxHashSet};

/// Requests in the order of their arrival.
///
/// A request has at least one part: one for each group of documents that is ordered separately.
#[derive(Clone, Debug, Default)]
pub struct CompactTrace {
    documents: Vec<Retrieved>,
    /// Document numbers by fingerprint and tokens: a log may state different tokens for one document.
    numbers: FxHashMap<(Fingerprint, u32), u32>,
    /// Document numbers of all parts.
    places: Vec<u32>,
    parts: Vec<Part>,
    /// For each request, the end of its parts in `parts`.
    ends: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Part {
    scope: Scope,
    is_ranked: bool,
    /// End of its documents in `places`.
    end: usize,
}

impl CompactTrace {
    /// Adds a request; one without parts is ignored.
    pub fn push(&mut self, parts: Vec<Request>) {
        if parts.is_empty() {
            return;
        }
        for part in parts {
            for document in part.documents {
                let key = (document.fingerprint, document.tokens);
                let number = *self.numbers.entry(key).or_insert_with(|| {
                    self.documents.push(document);
                    // 2^32 documents would need more memory than there is.
                    u32::try_from(self.documents.len() - 1).unwrap_or(u32::MAX)
                });
                self.places.push(number);
            }
            self.parts.push(Part {
                scope: part.scope,
                is_ranked: part.is_ranked,
                end: self.places.len(),
            });
        }
        self.ends.push(self.parts.len());
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> usize {
        self.ends.len()
    }

    /// Returns the number of distinct documents.
    pub fn documents(&self) -> usize {
        let distinct: FxHashSet<_> = self.documents.iter().map(|d| d.fingerprint).collect();
        distinct.len()
    }

    /// Returns the parts of request `at`, from 0; none beyond the last request.
    pub fn request(&self, at: usize) -> impl Iterator<Item = Request> + '_ {
        let start = at
            .checked_sub(1)
            .map_or(0, |before| end(&self.ends, before));
        (start..end(&self.ends, at)).filter_map(|part| {
            let Part {
                scope, is_ranked, ..
            } = *self.parts.get(part)?;
            Some(Request {
                scope,
                is_ranked,
                documents: self.part(part).cloned().collect(),
            })
        })
    }

    /// Iterates over every part's scope and documents, in order.
    pub fn parts(&self) -> impl Iterator<Item = (Scope, impl Iterator<Item = &Retrieved>)> {
        let parts = self.parts.iter().enumerate();
        parts.map(|(at, part)| (part.scope, self.part(at)))
    }

    fn part(&self, at: usize) -> impl Iterator<Item = &Retrieved> {
        let part_end = |at: usize| self.parts.get(at).map_or(0, |part| part.end);
        let start = at.checked_sub(1).map_or(0, part_end);
        let places = self.places.get(start..part_end(at)).unwrap_or_default();
        places
            .iter()
            .filter_map(|&number| self.documents.get(number as usize))
    }
}

fn end(ends: &[usize], at: usize) -> usize {
    ends.get(at).copied().unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::workload::{Bursty, bursty};

    pub(crate) fn generated(requests: usize) -> (CompactTrace, Vec<Request>) {
        let requests = bursty(7, requests, Bursty::default());
        let mut trace = CompactTrace::default();
        for request in &requests {
            trace.push(vec![request.clone()]);
        }
        (trace, requests)
    }

    #[test]
    fn what_was_pushed_comes_back() {
        let (mut trace, requests) = generated(50);
        trace.push(Vec::new());
        trace.push(requests[..2].to_vec());
        assert_eq!(trace.requests(), 51);
        for (at, request) in requests.iter().enumerate() {
            let parts: Vec<_> = trace.request(at).collect();
            assert_eq!(parts, std::slice::from_ref(request));
        }
        let last: Vec<_> = trace.request(50).collect();
        assert_eq!(last, requests[..2]);
        assert_eq!(trace.parts().count(), 52);
    }
}

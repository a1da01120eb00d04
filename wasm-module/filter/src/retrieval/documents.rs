//! The texts of the documents in similarity caches, each stored once, however many questions found it.

use std::hash::RandomState;
use std::sync::Arc;

use foreword_ordering::lru::Lru;

/// The texts of retrieved documents, by tenant and id, as elements of a request's `documents`. The least recently used
/// are evicted first. No tenant can read another's document.
#[derive(Debug)]
pub(super) struct Documents {
    max_bytes: usize,
    bytes: usize,
    held: Lru<Key, Arc<str>, RandomState>,
}

/// A document's tenant and id.
type Key = Arc<(Box<str>, Box<str>)>;

impl Documents {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            bytes: 0,
            held: Lru::default(),
        }
    }

    /// Stores a document's JSON, replacing an earlier one of the tenant with the same id. If the document is larger
    /// than the whole store may be, only the earlier one is removed.
    pub(super) fn put(&mut self, tenant: &str, id: &str, element: Arc<str>) {
        let key: Key = Arc::new((tenant.into(), id.into()));
        if let Some(old) = self.held.remove(&key) {
            self.bytes = self.bytes.saturating_sub(size(&key, &old));
        }
        let added = size(&key, &element);
        if added > self.max_bytes {
            return;
        }
        while self.bytes.saturating_add(added) > self.max_bytes
            && let Some((key, old)) = self.held.pop()
        {
            self.bytes = self.bytes.saturating_sub(size(&key, &old));
        }
        self.bytes = self.bytes.saturating_add(added);
        self.held.insert(key, element, usize::MAX);
    }

    /// Returns the JSON of all the tenant's documents with these ids, and counts it as a use of each; `None` if any of
    /// them is not stored.
    pub(super) fn get(&mut self, tenant: &str, ids: &[Box<str>]) -> Option<Vec<Arc<str>>> {
        let mut elements = Vec::with_capacity(ids.len());
        for id in ids {
            let key: Key = Arc::new((tenant.into(), id.clone()));
            elements.push(Arc::clone(self.held.get(&key)?));
        }
        Some(elements)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.max_bytes);
    }
}

/// Returns the bytes that a document counts for in the store: its key, its JSON and the maps' overhead.
fn size(key: &Key, element: &str) -> usize {
    const BESIDE: usize = 200;
    let texts = [key.0.len(), key.1.len(), element.len(), BESIDE];
    texts.into_iter().fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<Box<str>> {
        ids.iter().map(|&id| id.into()).collect()
    }

    #[test]
    fn the_least_recently_used_go_first_and_the_bytes_stay_within_their_bound() {
        let mut documents = Documents::new(3 * 300);
        for id in ["a", "b", "c"] {
            documents.put("t", id, "x".repeat(98).into());
        }
        assert!(documents.get("t", &ids(&["a", "c"])).is_some());
        documents.put("t", "d", "x".repeat(98).into());
        assert!(documents.get("t", &ids(&["b"])).is_none());
        assert!(documents.get("t", &ids(&["a", "c", "d"])).is_some());
        documents.put("t", "e", "x".repeat(2_000).into());
        assert!(documents.get("t", &ids(&["e"])).is_none());
        assert!(documents.get("t", &ids(&["a", "c", "d"])).is_some());
        for round in 0..1_000 {
            documents.put(
                "t",
                &format!("{}", round % 7),
                "y".repeat(round % 90).into(),
            );
            let keys = "abcde0123456"
                .split("")
                .map(|id| Arc::new(("t".into(), id.into())));
            let real: usize = keys
                .filter_map(|key| Some(size(&key, documents.held.peek(&key)?)))
                .sum();
            assert!(real == documents.bytes && real <= 900);
        }
    }

    #[test]
    fn a_documents_new_text_takes_the_place_of_its_old_one_and_tenants_have_their_own() {
        let mut documents = Documents::new(10_000);
        documents.put("t", "a", "old".into());
        documents.put("t", "a", "new".into());
        documents.put("u", "a", "other".into());
        let got = |documents: &mut Documents, tenant| documents.get(tenant, &ids(&["a"])).unwrap();
        assert_eq!(&*got(&mut documents, "t")[0], "new");
        assert_eq!(&*got(&mut documents, "u")[0], "other");
        assert!(documents.get("v", &ids(&["a"])).is_none());
        documents.clear();
        assert!(documents.get("t", &ids(&["a"])).is_none());
        assert_eq!(documents.bytes, 0);
    }
}

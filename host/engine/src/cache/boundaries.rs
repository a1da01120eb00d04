//! Marks: which documents end on which pages.
//!
//! A document's mark is on the last page that lies wholly before the document's end. While that page is in the tree, so
//! are all pages before it, and the document is cached except for its tokens on the next page.
//!
//! ```text
//!   tokens      |system prompt        |document 1         |document 2                |question
//!   pages       [       |       |       |       |       |       |       |       |       |
//!   marks                                  1 ─────┘          2 ─────────┘
//! ```

use super::documents::{Document, DocumentPath};
use super::events::{CacheEvent, EventLog};
use smallvec::SmallVec;
use std::sync::Arc;

/// The announced documents of a running sequence, and how many of them the full pages of its lease (its hold on pages
/// of the cache) have reached so far.
#[derive(Debug)]
pub(super) struct Route {
    scope: u64,
    path: Arc<[Document]>,
    /// The token index at which the first document starts, followed by the token index at which each document ends.
    bounds: Vec<u32>,
    page_tokens: u32,
    /// Number of leading documents up to whose ends [`Route::pass`] has advanced.
    passed: usize,
}

/// A mark on a page: records that a document ends on the page or on the page after it. The document is the last one of
/// `path[..documents]`, and the page is the last one wholly before its end.
struct DocumentBoundary {
    scope: u64,
    path: Arc<[Document]>,
    documents: usize,
}

/// The documents that are known to end on one page or on the page after it, for the events about documents. There are
/// several if documents are short or prompts with different documents share the page.
#[derive(Default)]
pub(super) struct DocumentBoundaries(SmallVec<[DocumentBoundary; 1]>);

/// Maximum number of documents that are recorded on one page as ending there; further ones are not recorded.
const MAX_BOUNDARIES: usize = 8;

impl Route {
    pub(super) fn new(documents: &DocumentPath, page_tokens: u32) -> Self {
        let ends = documents.documents.iter().map(|document| document.end);
        Self {
            scope: documents.scope,
            path: documents.sizes(),
            bounds: std::iter::once(documents.start).chain(ends).collect(),
            page_tokens,
            passed: 0,
        }
    }

    /// Advances to the next document up to whose end at most `pages` full pages lie, skipping documents that end within
    /// the first page. Returns the index of the last page wholly before its end, and the mark (a record of the
    /// document) to put there; `None` if no further document is reached.
    pub(super) fn pass(&mut self, pages: u32) -> Option<(usize, PassedDocument)> {
        while let Some(&end) = self.bounds.get(self.passed + 1)
            && end / self.page_tokens <= pages
        {
            self.passed += 1;
            if let Some(last) = (end / self.page_tokens).checked_sub(1) {
                let mark = DocumentBoundary {
                    scope: self.scope,
                    path: self.path.clone(),
                    documents: self.passed,
                };
                return Some((last as usize, PassedDocument(mark)));
            }
        }
        None
    }

    /// Returns whether the page with index `index` in the sequence and the page before it begin within the same
    /// document.
    pub(super) fn continues(&self, index: u32) -> bool {
        let part = |index: u32| {
            let token = index * self.page_tokens;
            self.bounds.partition_point(|&bound| bound <= token)
        };
        // Part 0 precedes the documents, and the last part follows them.
        index > 0 && part(index) == part(index - 1) && (1..self.bounds.len()).contains(&part(index))
    }
}

/// The record of a document whose full pages are all cached, to be put on a page by [`DocumentBoundaries::add`].
pub(super) struct PassedDocument(DocumentBoundary);

impl DocumentBoundaries {
    /// Records `document` on the page, and logs an event: the document is now cached. Does nothing if the page already
    /// has a record of this document, or has [`MAX_BOUNDARIES`] records.
    pub(super) fn add(&mut self, document: PassedDocument, salt: &Arc<str>, log: &mut EventLog) {
        let PassedDocument(mark) = document;
        if self.0.len() == MAX_BOUNDARIES || self.0.iter().any(|other| other.is(&mark)) {
            return;
        }
        log.push(CacheEvent::DocumentsStored {
            salt: salt.clone(),
            scope: mark.scope,
            path: mark.path[..mark.documents].into(),
        });
        self.0.push(mark);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Logs an event for each document that is recorded on the page, in reverse order of recording: it is no longer
    /// cached. To be called when the page leaves the cache.
    pub(super) fn tell_removed(self, salt: &Arc<str>, log: &mut EventLog) {
        for mark in self.0.into_iter().rev() {
            log.push(CacheEvent::DocumentsRemoved {
                salt: salt.clone(),
                scope: mark.scope,
                path: mark.path[..mark.documents].into(),
            });
        }
    }
}

impl DocumentBoundary {
    fn is(&self, other: &Self) -> bool {
        self.scope == other.scope && self.path[..self.documents] == other.path[..other.documents]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::DocumentSpan;

    fn route(start: u32, ends: &[u32]) -> Route {
        let document = |(fingerprint, &end): (u64, &u32)| DocumentSpan { fingerprint, end };
        let documents = DocumentPath {
            scope: 9,
            start,
            documents: (0..).zip(ends).map(document).collect(),
        };
        Route::new(&documents, 4)
    }

    #[test]
    fn documents_are_passed_with_the_last_page_wholly_before_their_end() {
        let mut route = route(1, &[3, 8, 11, 12, 20]);
        let mut passed = |pages| {
            let documents = std::iter::from_fn(|| route.pass(pages));
            documents
                .map(|(page, document)| (page, document.0.documents))
                .collect::<Vec<_>>()
        };
        assert_eq!(passed(1), [], "the first ends within the first page");
        assert_eq!(passed(2), [(1, 2), (1, 3)]);
        assert_eq!(passed(2), []);
        assert_eq!(passed(9), [(2, 4), (4, 5)]);
    }

    #[test]
    fn a_page_continues_the_document_that_the_one_before_is_in() {
        let continues = |start, ends: &[u32]| {
            let route = route(start, ends);
            let pages = (0..12).filter(|&page| route.continues(page));
            pages.collect::<Vec<u32>>()
        };
        assert_eq!(continues(0, &[9, 24]), [1, 2, 4, 5]);
        assert_eq!(
            continues(11, &[24]),
            [4, 5],
            "what precedes documents is none"
        );
    }

    #[test]
    fn a_document_is_told_once_and_its_going_too() {
        let (mut marks, mut log) = (DocumentBoundaries::default(), EventLog::default());
        for _ in 0..2 {
            let mut route = route(0, &[2, 6]);
            while let Some((page, document)) = route.pass(3) {
                assert_eq!(page, 0);
                marks.add(document, &"a".into(), &mut log);
            }
        }
        marks.tell_removed(&"a".into(), &mut log);
        let path: Arc<[Document]> = [(0, 2), (1, 4)].into();
        let (salt, scope): (Arc<str>, u64) = ("a".into(), 9);
        assert_eq!(
            log.take(),
            [
                CacheEvent::DocumentsStored {
                    salt: salt.clone(),
                    scope,
                    path: path.clone()
                },
                CacheEvent::DocumentsRemoved { salt, scope, path },
            ]
        );
    }
}

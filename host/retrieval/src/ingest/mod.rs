//! Ingestion: reads a folder's files as documents, and makes a collection mirror them.
//!
//! ```text
//!   *.txt, *.md   ─▶ cut into passages of up to 160 words, at paragraphs and headings ─▶ id FILE#NUMBER
//!   *.jsonl       ─▶ a document on every line: {"id", "title", "text", "metadata"}    ─▶ its own id, or FILE#LINE
//!                          │
//!                          ▼ those that are not in the collection yet, or have changed
//!                       embedder ─▶ editor        documents that the folder no longer contains are deleted
//! ```

mod passages;
mod read;

pub use passages::Passages;
pub use read::{ReadError, documents};

use crate::Document;
use crate::collection::{Collection, Editor};
use crate::embedder::{EmbedError, Embedder};
use crate::file::FileError;
use crate::words::has_words;
use fxhash::FxHashSet;
use std::fmt::Display;

/// The result of an ingestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of new and changed documents.
    pub embedded: usize,
    /// Number of documents already in the collection, unchanged.
    pub unchanged: usize,
    /// Number of documents deleted because the folder no longer has them, or has them empty.
    pub deleted: usize,
    /// Number of documents skipped because they have no letter or digit.
    pub empty: usize,
}

/// The reason why documents could not be ingested.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct IngestError(String);

/// Number of documents embedded together.
const BATCH: usize = 32;

/// Makes `collection` mirror `documents`: new ones are added, changed ones replaced, and all others deleted. `progress`
/// receives the number of documents done and the total.
///
/// # Errors
/// Returns an [`IngestError`] when the collection has another embedder or cannot be read, or a document has no vector.
pub fn mirror(
    collection: Collection,
    documents: &[Document],
    embedder: &dyn Embedder,
    mut progress: impl FnMut(usize, usize),
) -> Result<(Collection, Summary), IngestError> {
    if collection.spec().embedder != embedder.name() {
        return Err(IngestError(format!(
            "the index was made with the embedder {}, not with {}",
            collection.spec().embedder,
            embedder.name()
        )));
    }
    let unreadable = |error: FileError| IngestError(error.to_string());
    let refused = |id: &str, reason: &dyn Display| IngestError(format!("document {id}: {reason}"));
    let mut editor = Editor::new(collection).map_err(unreadable)?;
    let mut summary = Summary::default();
    let given: FxHashSet<&str> = documents.iter().map(|document| &*document.id).collect();
    let gone: Vec<String> = editor
        .ids()
        .filter(|id| !given.contains(id))
        .map(str::to_owned)
        .collect();
    for id in gone {
        summary.deleted += usize::from(editor.remove(&id));
    }
    for (number, batch) in documents.chunks(BATCH).enumerate() {
        progress(number * BATCH, documents.len());
        let (mut fresh, mut texts) = (Vec::new(), Vec::new());
        for document in batch {
            let text = document.searched_text();
            if editor.holds(document) {
                summary.unchanged += 1;
            } else if has_words(&text) {
                fresh.push(document);
                texts.push(text);
            } else {
                summary.empty += 1;
                summary.deleted += usize::from(editor.remove(&document.id));
            }
        }
        let texts: Vec<&str> = texts.iter().map(|text| text.trim_start()).collect();
        let embeddings = embedder.embed(&texts).map_err(|reason| {
            let (EmbedError::Empty { at } | EmbedError::Failed { at, .. }) = reason;
            let id = fresh.get(at).map_or("", |document| &*document.id);
            refused(id, &reason)
        })?;
        for (document, embedding) in fresh.iter().zip(embeddings) {
            let put = editor.put(document, &embedding.vector);
            put.map_err(|reason| refused(&document.id, &reason))?;
            summary.embedded += 1;
        }
    }
    progress(documents.len(), documents.len());
    Ok((editor.finish().map_err(unreadable)?, summary))
}

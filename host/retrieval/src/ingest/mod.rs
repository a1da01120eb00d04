//! From a folder of files to documents, and from documents to a collection that mirrors them.
//!
//! ```text
//!   *.txt, *.md   ─▶ cut into passages of some 160 words, at paragraphs and headings ─▶ id FILE#NUMBER
//!   *.jsonl       ─▶ a document on every line: {"id", "title", "text", "metadata"}   ─▶ its own id, or FILE#LINE
//!                          │
//!                          ▼ those that are not in the collection yet, or not like this
//!                       embedder ─▶ editor        and what the folder does not hold any more goes
//! ```

mod passages;
mod read;

pub use passages::Passages;
pub use read::{ReadError, documents};

use crate::Document;
use crate::collection::{Collection, Editor};
use crate::embedder::{EmbedError, Embedder};
use crate::file::FileError;
use crate::index::Refused;
use fxhash::FxHashSet;

/// What became of the documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// New ones, and changed ones.
    pub embedded: usize,
    /// Those that were there already, just like this.
    pub unchanged: usize,
    /// Those that were there and are not in the folder any more.
    pub deleted: usize,
    /// Those without a letter or a digit.
    pub empty: usize,
}

/// Why documents could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// The embedder failed.
    #[error("document {id}: {reason}")]
    Embed {
        /// The document.
        id: String,
        /// Why.
        reason: EmbedError,
    },
    /// Its vector was refused.
    #[error("document {id}: {reason}")]
    Vector {
        /// The document.
        id: String,
        /// Why.
        reason: Refused,
    },
    /// The collection holds another embedder's vectors.
    #[error("the index was made with the embedder {found}, not with {given}")]
    Embedder {
        /// The collection's.
        found: String,
        /// The one given.
        given: String,
    },
    /// The collection could not be read.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Documents that are embedded together.
const BATCH: usize = 32;

/// `collection` as `documents` are: new ones are added, changed ones replaced, others deleted. `progress` is told of the
/// number done and of all.
///
/// # Errors
/// [`IngestError`].
pub fn mirror(
    collection: Collection,
    documents: &[Document],
    embedder: &dyn Embedder,
    mut progress: impl FnMut(usize, usize),
) -> Result<(Collection, Summary), IngestError> {
    if collection.spec().embedder != embedder.name() {
        return Err(IngestError::Embedder {
            found: collection.spec().embedder.clone(),
            given: embedder.name().to_owned(),
        });
    }
    let mut editor = Editor::new(collection)?;
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
            } else if text.contains(char::is_alphanumeric) {
                fresh.push(document);
                texts.push(text);
            } else {
                summary.empty += 1;
            }
        }
        let texts: Vec<&str> = texts.iter().map(|text| text.trim_start()).collect();
        let embeddings = embedder.embed(&texts).map_err(|reason| {
            let (EmbedError::Empty { at } | EmbedError::Failed { at, .. }) = reason;
            let id = fresh
                .get(at)
                .map_or_else(String::new, |document| document.id.clone());
            IngestError::Embed { id, reason }
        })?;
        for (document, embedding) in fresh.iter().zip(embeddings) {
            let put = editor.put(document, &embedding.vector);
            put.map_err(|reason| IngestError::Vector {
                id: document.id.clone(),
                reason,
            })?;
            summary.embedded += 1;
        }
    }
    progress(documents.len(), documents.len());
    Ok((editor.finish()?, summary))
}

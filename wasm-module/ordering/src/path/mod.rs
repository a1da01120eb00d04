//! The documents of a request in the order in which they were forwarded, as the value of one header for the engine.
//!
//! ```text
//!   1;9f3c61d2a0b4e587=0a1b2c3d4e5f6071,77de…;51c0…=e3a9…
//!   │ └ scope          └ adjacent documents, in the order sent
//!   └ version
//! ```
//!
//! An engine that knows the path can mark in its cache where each document ends. It can then report residency as paths
//! of documents ([`crate::feed`]) instead of tokens.
//!
//! The header has hashes and no text of a document, but the hashes are not keyed: anyone who has a document can
//! recognise it in a header. That reveals nothing to the engine, which reads the documents in the body. It would to a
//! third party, so the header must be sent to the engine only, like the body. The feed repeats the fingerprints to
//! others, so it requires a token and separates tenants.

mod locate;

pub use locate::{Located, Locator};

use crate::document::Fingerprint;
use crate::hexadecimal;
use crate::tree::Scope;

/// The documents of one forwarded request in the order of the prompt, as fingerprints, in runs of adjacent documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentPath {
    /// The runs of adjacent documents in the order of the prompt; each run has at least one document.
    pub runs: Vec<Run>,
}

/// A run of adjacent documents, which follow each other in a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Hash of the prompt before the first of these documents.
    pub scope: Scope,
    /// The fingerprints of the documents, in the order in which they were sent.
    pub documents: Vec<Fingerprint>,
}

/// The reason why a header with a request's documents cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// The header does not begin with the version of its format, `1;`.
    #[error("the path's version is not 1")]
    Version,
    /// A scope (hash of the prompt before documents) or a fingerprint does not have 16 hexadecimal digits.
    #[error("the path has something other than 16 hexadecimal digits at byte {at}")]
    Hash {
        /// Offset of the scope (hash of the prompt before documents) or the fingerprint in the header.
        at: usize,
    },
    /// A scope (hash of the prompt before documents) is not followed by `=` and the fingerprints of documents.
    #[error("the path has a scope without documents at byte {at}")]
    Empty {
        /// Offset in the header of the scope (hash of a prompt) that no documents follow.
        at: usize,
    },
    /// The header is longer than [`MAX_PATH_BYTES`].
    #[error("the path has {bytes} bytes, more than the limit of {MAX_PATH_BYTES}")]
    Long {
        /// Length of the header, in bytes.
        bytes: usize,
    },
}

/// Number of hexadecimal digits of a hash in the header: a scope (hash of the prompt before documents) or a
/// fingerprint.
const DIGITS: usize = 16;

/// The maximum length in bytes of the header with one request's documents: 239 documents in one run of adjacent ones.
/// Proxies and servers accept headers of 8 KiB or more.
pub const MAX_PATH_BYTES: usize = 4096;

const VERSION: &str = "1";

impl SentPath {
    /// Returns whether the request has no documents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the value of the header that names the documents to the engine; `None` if there are none. It is
    /// truncated to [`MAX_PATH_BYTES`] after a whole document, since the beginning of the list is valid too.
    #[must_use]
    pub fn to_header(&self) -> Option<String> {
        let hashes = self.runs.iter().map(|run| 1 + run.documents.len());
        let bytes = VERSION.len() + hashes.sum::<usize>() * (1 + DIGITS);
        let mut text = String::with_capacity(bytes.min(MAX_PATH_BYTES));
        text.push_str(VERSION);
        'runs: for run in &self.runs {
            let mut separator = '=';
            for document in &run.documents {
                let scope = if separator == '=' { 1 + DIGITS } else { 0 };
                if text.len() + scope + 1 + DIGITS > MAX_PATH_BYTES {
                    break 'runs;
                }
                if separator == '=' {
                    text.push(';');
                    hexadecimal::push(&mut text, &run.scope.0.to_be_bytes());
                }
                text.push(separator);
                hexadecimal::push(&mut text, &document.0.to_be_bytes());
                separator = ',';
            }
        }
        (text.len() > VERSION.len()).then_some(text)
    }

    /// Parses the value of the header with a request's documents.
    ///
    /// # Errors
    /// Returns [`BadPath`] for the first problem in the header.
    pub fn from_header(header: &str) -> Result<Self, BadPath> {
        if header.len() > MAX_PATH_BYTES {
            return Err(BadPath::Long {
                bytes: header.len(),
            });
        }
        let runs = header
            .strip_prefix(VERSION)
            .and_then(|rest| rest.strip_prefix(';'))
            .ok_or(BadPath::Version)?;
        let mut at = VERSION.len() + 1;
        let runs = runs.split(';').map(|run| {
            let start = at;
            at += run.len() + 1;
            let (scope, documents) = run.split_once('=').ok_or(BadPath::Empty { at: start })?;
            let mut at = start + scope.len() + 1;
            let documents = documents.split(',').map(|document| {
                let start = at;
                at += document.len() + 1;
                Ok(Fingerprint(hash(document, start)?))
            });
            Ok(Run {
                documents: documents.collect::<Result<_, _>>()?,
                scope: Scope(hash(scope, start)?),
            })
        });
        Ok(Self {
            runs: runs.collect::<Result<_, _>>()?,
        })
    }
}

fn hash(digits: &str, at: usize) -> Result<u64, BadPath> {
    hexadecimal::parse_hash(digits).ok_or(BadPath::Hash { at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(runs: &[(u64, &[u64])]) -> SentPath {
        SentPath {
            runs: runs
                .iter()
                .map(|(scope, documents)| Run {
                    scope: Scope(*scope),
                    documents: documents.iter().copied().map(Fingerprint).collect(),
                })
                .collect(),
        }
    }

    #[test]
    fn the_header_is_fixed() {
        // Gateways and engines of different versions rely on it.
        assert_eq!(
            path(&[(0x1a, &[1, u64::MAX]), (2, &[3])])
                .to_header()
                .unwrap(),
            "1;000000000000001a=0000000000000001,ffffffffffffffff;0000000000000002=0000000000000003"
        );
        assert_eq!(path(&[]).to_header(), None);
    }

    #[test]
    fn what_does_not_fit_is_left_out_from_the_end() {
        let documents: Vec<u64> = (0..300).collect();
        let header = path(&[(7, &documents), (8, &[1])]).to_header().unwrap();
        assert!(header.len() <= MAX_PATH_BYTES, "{} bytes", header.len());
        let back = SentPath::from_header(&header).unwrap();
        assert_eq!(back, path(&[(7, &documents[..239])]));
    }

    #[test]
    fn what_is_no_path_says_why_and_where() {
        let long = "1;".repeat(MAX_PATH_BYTES);
        for (header, error) in [
            ("", BadPath::Version),
            ("2;00", BadPath::Version),
            ("1", BadPath::Version),
            ("1;", BadPath::Empty { at: 2 }),
            ("1;000000000000001a", BadPath::Empty { at: 2 }),
            ("1;000000000000001a=", BadPath::Hash { at: 19 }),
            (
                "1;000000000000001=0000000000000001",
                BadPath::Hash { at: 2 },
            ),
            (
                "1;000000000000001a=000000000000000G",
                BadPath::Hash { at: 19 },
            ),
            (
                "1;000000000000001a=+00000000000000a",
                BadPath::Hash { at: 19 },
            ),
            (
                "1;000000000000001a=0000000000000001,",
                BadPath::Hash { at: 36 },
            ),
            (
                &long,
                BadPath::Long {
                    bytes: 2 * MAX_PATH_BYTES,
                },
            ),
        ] {
            assert_eq!(SentPath::from_header(header), Err(error), "{header:.60}");
        }
    }

    proptest! {
        #[test]
        fn a_header_leads_back_to_its_path(
            runs in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u64>(), 1..20)), 1..8),
        ) {
            let runs: Vec<_> = runs.iter().map(|(scope, documents)| (*scope, &documents[..])).collect();
            let path = path(&runs);
            prop_assert_eq!(SentPath::from_header(&path.to_header().unwrap()), Ok(path));
        }

        #[test]
        fn no_header_panics(header in "(1;)?[0-9a-f=,;é]{0,80}") {
            if let Ok(path) = SentPath::from_header(&header) {
                prop_assert_eq!(path.to_header(), Some(header));
            }
        }
    }
}

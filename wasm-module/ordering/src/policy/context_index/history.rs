//! The history in a context index's configuration: contexts (document sets of requests) from a log. Each is one string
//! with the fingerprints of its documents, best first, as 16 hexadecimal digits each.
//!
//! A fingerprint is a hash of a document's rendered text, so a history contains no text. It records which documents
//! occur together, independent of the prompt before them: it serves every tenant, model and prompt.

use super::{ContextIndex, Rules};
use crate::document::Fingerprint;
use crate::hexadecimal::{hash, parse_hash};
use crate::policy::MAX_CANDIDATES;
use fxhash::FxHashSet;
use std::sync::Arc;

/// The maximum number of contexts (document sets of requests) in a configured history. With 15 documents each they take
/// 1 MB of configuration, and half a second to read in a VM.
pub const MAX_CONTEXTS: usize = 4096;

/// Returns contexts (the documents of one request each, best first) as strings for the configuration, one string for
/// each context.
#[must_use]
pub fn write(contexts: &[Vec<Fingerprint>]) -> Vec<String> {
    let text = |context: &Vec<Fingerprint>| context.iter().map(|d| hash(d.0)).collect();
    contexts.iter().map(text).collect()
}

/// Builds a context index from the configuration's strings, one for each context (document set of a request); `None` if
/// there are no strings.
///
/// # Errors
/// Returns the problem as text: there are too many contexts, or one is not a list of distinct fingerprints.
pub(crate) fn read(texts: &[String], rules: Rules) -> Result<Option<Arc<ContextIndex>>, String> {
    if texts.len() > MAX_CONTEXTS {
        let found = texts.len();
        return Err(format!(
            "it has {found} contexts, more than the limit of {MAX_CONTEXTS}"
        ));
    }
    let mut contexts = Vec::with_capacity(texts.len());
    for (text, number) in texts.iter().zip(1_usize..) {
        let context = context(text).map_err(|reason| format!("context {number}: {reason}"))?;
        contexts.push(context);
    }
    Ok((!contexts.is_empty()).then(|| Arc::new(ContextIndex::build(&contexts, rules).0)))
}

fn context(text: &str) -> Result<Vec<Fingerprint>, String> {
    let digits = text.len();
    if digits == 0 || !digits.is_multiple_of(DIGITS) || digits / DIGITS > MAX_CANDIDATES as usize {
        return Err(format!(
            "it has {digits} digits, it must have {DIGITS} for each of 1 to {MAX_CANDIDATES} documents"
        ));
    }
    let mut seen = FxHashSet::default();
    let documents = (0..digits / DIGITS).map(|at| {
        let digits = text.get(at * DIGITS..(at + 1) * DIGITS);
        let document = digits.and_then(parse_hash).map(Fingerprint);
        let document = document.ok_or_else(|| format!("document {} is not hexadecimal", at + 1))?;
        if seen.insert(document) {
            Ok(document)
        } else {
            Err(format!("document {} stands in it twice", at + 1))
        }
    });
    documents.collect()
}

/// Number of hexadecimal digits of one document's fingerprint.
const DIGITS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn prints(documents: &[u64]) -> Vec<Fingerprint> {
        documents.iter().copied().map(Fingerprint).collect()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let contexts = [prints(&[1, u64::MAX]), prints(&[7])];
        let texts = write(&contexts);
        assert_eq!(
            texts,
            ["0000000000000001ffffffffffffffff", "0000000000000007"]
        );
        let index = read(&texts, Rules::default()).unwrap().unwrap();
        assert_eq!(index.len(), 2);
        assert!(read(&[], Rules::default()).unwrap().is_none());
    }

    #[test]
    fn a_bad_history_is_refused_with_its_place() {
        let error = |history: &str| {
            let text = format!(r#"{{"policy_options": {{"history": {history}}}}}"#);
            Config::from_json(text.as_bytes())
                .err()
                .unwrap()
                .to_string()
        };
        assert_eq!(
            error(r#"["0000000000000001", "01"]"#),
            "policy_options.history: context 2: it has 2 digits, it must have 16 for each of 1 to 4096 documents"
        );
        assert_eq!(
            error(r#"["000000000000000g"]"#),
            "policy_options.history: context 1: document 1 is not hexadecimal"
        );
        assert_eq!(
            error(r#"["00000000000000010000000000000001"]"#),
            "policy_options.history: context 1: document 2 stands in it twice"
        );
        let many = format!("[{}]", vec![r#""0000000000000001""#; 4_097].join(","));
        assert_eq!(
            error(&many),
            "policy_options.history: it has 4097 contexts, more than the limit of 4096"
        );
    }
}

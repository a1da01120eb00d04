//! Lists the documents of a request's body, for tools that analyse requests instead of rewriting them.

use crate::arrangement::DistinctDocuments;
use crate::body::{self, Group, Message, Skip};
use crate::config::Config;
use crate::document::Fingerprint;
use crate::policy::{Placement, Split, Start};
use crate::tree::{KnowledgeTree, Scope};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// One group of documents (ordered together) of a recorded request, as input to simulations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Hash of the model and of everything before the documents in the prompt.
    pub scope: Scope,
    /// The distinct documents of the group, in the client's order, best first.
    pub documents: Vec<Retrieved>,
    /// True if the client's order of the documents is a ranking. If not, no document is favoured (given a fixed place
    /// as one of the best).
    pub is_ranked: bool,
}

impl Request {
    /// Returns the position in `tree`, the knowledge tree (documents believed to be cached), from which the documents
    /// are matched, directly after the prompt before them.
    #[must_use]
    pub fn start<'t>(&self, tree: &'t KnowledgeTree) -> Start<'t> {
        let start = Start::behind(tree, self.scope);
        match self.is_ranked {
            true => start,
            false => start.unranked(),
        }
    }

    /// Returns the documents, divided into those that `placement` favours (the retriever's best, which get a fixed
    /// place) and the others; if the client's order is no ranking, none is favoured.
    #[must_use]
    pub fn split(&self, placement: Placement) -> Split {
        let placement = match self.is_ranked {
            true => placement,
            false => Placement::FREE,
        };
        placement.split(self.documents.len())
    }
}

/// A document of a recorded request, without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retrieved {
    /// The document's label, by which the policy `sorted` sorts.
    pub label: String,
    /// The document's fingerprint: a hash of its block (the document with its tags).
    pub fingerprint: Fingerprint,
    /// Estimated tokens of the document's block (the document with its tags).
    pub tokens: u32,
}

impl Retrieved {
    /// Returns document `number` of a generated corpus, with its number as fingerprint and, in six digits, as label.
    #[must_use]
    pub fn numbered(number: u64, tokens: u32) -> Self {
        Self {
            // Labels have one width, so that they sort like the numbers.
            label: format!("{number:06}"),
            fingerprint: Fingerprint(number),
            tokens,
        }
    }

    /// Returns a piece of a prompt, such as a sentence, in the form of a document without a label; `hash` is the hash
    /// of its bytes.
    #[must_use]
    pub fn piece(hash: u64, tokens: u32) -> Self {
        Self {
            label: String::new(),
            fingerprint: Fingerprint(hash),
            tokens,
        }
    }
}

/// Returns the documents that an [`Orderer`](crate::Orderer) would find in `body`, without repeats: one [`Request`] for
/// each group of documents that it would order separately; most bodies have one group. The model's name is part of the
/// [`Request::scope`], since models share no cached state.
///
/// # Errors
/// Returns [`Skip`], the reason why the body would be forwarded unchanged.
pub fn documents_of(body: &[u8], config: &Config) -> Result<Vec<Request>, Skip> {
    let parsed = body::parse(body, config)?;
    if !parsed.has_documents() {
        return Err(Skip::NoDocuments);
    }
    let rendered = parsed.rendered.iter().map(|(_, group)| group);
    let groups = (parsed.front.iter().chain(rendered))
        .chain(parsed.messages.iter().flat_map(Message::ordered));
    Ok(groups
        .map(|group| listed(group, &parsed.model, config))
        .collect())
}

/// Returns the documents of one group (ordered together) without repeats, as a recorded request to `model`.
fn listed(group: &Group<'_>, model: &str, config: &Config) -> Request {
    let documents = DistinctDocuments::of(group).distinct.into_iter();
    let documents = documents.filter_map(|(index, fingerprint)| {
        let found = group.found.get(usize::from(index))?;
        Some(Retrieved {
            label: found.label.to_owned(),
            fingerprint,
            tokens: found.tokens,
        })
    });
    Request {
        scope: Scope(xxh3_64_with_seed(model.as_bytes(), group.scope.0)),
        documents: documents.collect(),
        is_ranked: !config.unranked.contains(&group.format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed_of(model: &str) -> Vec<Request> {
        let body = format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"Why?"}}],
            "documents":[{{"id":"a","text":"one"}},{{"id":"b","text":"two"}},{{"id":"a","text":"one"}}]}}"#
        );
        documents_of(body.as_bytes(), &Config::default()).unwrap()
    }

    #[test]
    fn repeats_are_left_out_and_models_share_nothing() {
        let (m, other) = (listed_of("m"), listed_of("n"));
        let labels: Vec<_> = m[0].documents.iter().map(|d| d.label.as_str()).collect();
        assert_eq!((m.len(), labels), (1, vec!["a", "b"]));
        assert_eq!(m, listed_of("m"));
        assert_eq!(m[0].documents, other[0].documents);
        assert_ne!(m[0].scope, other[0].scope);
    }

    #[test]
    fn what_changes_the_prompt_before_its_messages_shares_nothing() {
        let scope = |field: &str| {
            let body = format!(
                r#"{{{field}"messages":[{{"role":"user","content":"<doc>a</doc><doc>b</doc> Why?"}}]}}"#
            );
            documents_of(body.as_bytes(), &Config::default()).unwrap()[0].scope
        };
        let [plain, low, high, form] = [
            "",
            r#""reasoning_effort":"low","#,
            r#""reasoning_effort":"high","#,
            r#""response_format":{"type":"json_object"},"#,
        ]
        .map(scope);
        assert!(plain != low && low != high && plain != high);
        assert_eq!(plain, form);
    }

    #[test]
    fn a_body_without_documents_says_so() {
        let body = br#"{"messages":[{"role":"user","content":"Why?"}]}"#;
        assert_eq!(
            documents_of(body, &Config::default()),
            Err(Skip::NoDocuments)
        );
    }
}

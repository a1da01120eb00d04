//! Parses logs of requests line by line: a line is a chat body or a ranking. Errors name positions and limits, never a
//! value of the line. The caller reads the lines from a file or a page.

use super::bad_line::BadLine;
use super::logged::{Logged, LoggedKind, kind_of, realm_hash};
use super::{Request, Retrieved};
use foreword_ordering::Config;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::listing::documents_of;
use foreword_ordering::policy::MAX_CANDIDATES;
use foreword_ordering::scan::{self, Bad, Scan};
use foreword_ordering::tree::Scope;
use foreword_ordering::{Skip, string};
use fxhash::FxHashSet;
use std::borrow::Cow;

/// Parses the lines of a log.
#[derive(Clone)]
pub struct LogReader {
    config: Config,
    document_tokens: u32,
}

impl LogReader {
    /// Returns a reader that counts a document as `document_tokens` tokens if its line states none. Bodies are parsed
    /// with the default configuration, but with as many documents as can be ordered.
    #[must_use]
    pub fn new(document_tokens: u32) -> Self {
        Self {
            config: Config::default().with_most_documents(),
            document_tokens,
        }
    }

    /// Makes the reader parse bodies with `config`, but with as many documents as can be ordered.
    #[must_use]
    pub fn under(self, config: Config) -> Self {
        Self {
            config: config.with_most_documents(),
            ..self
        }
    }

    /// Returns a line's request in parts, one for every group of documents that is ordered separately; no part if it
    /// has no documents.
    ///
    /// # Errors
    /// Returns a [`BadLine`] if the line is not a request.
    pub fn requests(&self, line: &[u8]) -> Result<Vec<Request>, BadLine> {
        parse(line, &self.config, self.document_tokens)
    }

    /// Returns the parts of a logged request as [`Self::requests`] does. Those of different tenants, engines or client's
    /// salts differ in [`Request::scope`], since they share no cached state.
    ///
    /// # Errors
    /// Returns a [`BadLine`] if the body is not a request.
    pub fn parts(&self, logged: &Logged<'_>) -> Result<Vec<Request>, BadLine> {
        let mut parts = self.requests(logged.body.as_bytes())?;
        let [salt] = scan::fields(&logged.body, ["cache_salt"]).unwrap_or_default();
        let salt = salt.and_then(string).unwrap_or_default();
        let realm = [&*salt, &*logged.tenant, &*logged.engine];
        if realm != [""; 3] {
            for part in &mut parts {
                part.scope = Scope(realm_hash(&realm, part.scope.0));
            }
        }
        Ok(parts)
    }
}

fn parse(line: &[u8], config: &Config, document_tokens: u32) -> Result<Vec<Request>, BadLine> {
    let text = std::str::from_utf8(line).map_err(|error| BadLine::NotAnObject {
        column: error.valid_up_to() + 1,
    })?;
    let names = ["messages", "message", "input", "contents", "docs", "tokens"];
    let fields = scan::fields(text, names);
    let [messages, message, input, contents, docs, tokens] =
        fields.map_err(|Bad(at)| BadLine::NotAnObject { column: at + 1 })?;
    match kind_of([messages, message, input, contents, docs])? {
        LoggedKind::Chat => match documents_of(line, config) {
            Err(Skip::NoDocuments) => Ok(Vec::new()),
            found => found.map_err(BadLine::Body),
        },
        LoggedKind::Ranking => ranking(docs.unwrap_or("[]"), tokens, document_tokens),
    }
}

fn ranking(
    docs: &str,
    tokens: Option<&str>,
    document_tokens: u32,
) -> Result<Vec<Request>, BadLine> {
    let docs = (Scan::new(docs).elements()).map_err(|_| BadLine::DocsNotAList)?;
    if docs.len() > MAX_CANDIDATES as usize {
        return Err(BadLine::TooManyDocuments {
            found: docs.len(),
            limit: MAX_CANDIDATES,
        });
    }
    let number = |text: &str| text.parse().map_err(|_| BadLine::Tokens);
    let tokens: Vec<u32> = match tokens {
        None => vec![document_tokens; docs.len()],
        Some(list) if list.starts_with('[') => {
            let list = Scan::new(list).elements().unwrap_or_default();
            list.into_iter().map(number).collect::<Result<_, _>>()?
        }
        Some(all) => vec![number(all)?; docs.len()],
    };
    if tokens.len() != docs.len() {
        return Err(BadLine::TokensOfOthers {
            tokens: tokens.len(),
            docs: docs.len(),
        });
    }
    let mut seen = FxHashSet::default();
    let mut documents = Vec::with_capacity(docs.len());
    for (index, (id, tokens)) in docs.into_iter().zip(tokens).enumerate() {
        let label = match id.as_bytes().first() {
            Some(b'-' | b'0'..=b'9') => Some(id.to_owned()),
            _ => string(id).map(Cow::into_owned),
        };
        let label = label.ok_or(BadLine::Id { index })?;
        let fingerprint = Fingerprint::of(&[label.as_bytes()]);
        if seen.insert(fingerprint) {
            documents.push(Retrieved {
                label,
                fingerprint,
                tokens,
            });
        }
    }
    if documents.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Request {
        is_ranked: true,
        // A ranking does not state its scope, so all rankings share one.
        scope: Scope(0),
        documents,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Vec<Request>, BadLine> {
        LogReader::new(256).requests(line.as_bytes())
    }

    fn documents(line: &str) -> Vec<(String, u32)> {
        let [request] = parsed(line).unwrap().try_into().unwrap();
        let documents = request.documents.into_iter();
        documents.map(|d| (d.label, d.tokens)).collect()
    }

    #[test]
    fn a_ranking_weighs_its_documents_each_all_alike_or_by_default() {
        let weighed = |a, b| vec![("a".to_owned(), a), ("7".to_owned(), b)];
        let line = |tokens: &str| format!(r#"{{"query_id":1,"docs":["a",7,"a"]{tokens}}}"#);
        assert_eq!(documents(&line(r#","tokens":[1,2,3]"#)), weighed(1, 2));
        assert_eq!(documents(&line(r#","tokens":9"#)), weighed(9, 9));
        assert_eq!(documents(&line("")), weighed(256, 256));
        assert_eq!(documents(&line(r#","tokens":null"#)), weighed(256, 256));
    }

    #[test]
    fn tenants_engines_and_salts_share_nothing() {
        let scope = |line: &str| {
            let logged = Logged::read(line.as_bytes()).unwrap();
            LogReader::new(256).parts(&logged).unwrap()[0].scope
        };
        let chat = r#"{"messages":[{"role":"user","content":"Why?"}],"documents":[{"id":"a","text":"x"}]}"#;
        let salted = chat.replacen('{', r#"{"cache_salt":"s","#, 1);
        for (body, other) in [(chat, Some(&*salted)), (r#"{"docs":["a"]}"#, None)] {
            let lines = [
                body.to_owned(),
                format!(r#"{{"request":{body},"tenant":"a"}}"#),
                format!(r#"{{"request":{body},"tenant":"b"}}"#),
                format!(r#"{{"request":{body},"engine":"a"}}"#),
            ];
            let lines = lines.iter().map(String::as_str).chain(other);
            let scopes: Vec<Scope> = lines.map(scope).collect();
            let distinct: FxHashSet<u64> = scopes.iter().map(|scope| scope.0).collect();
            assert_eq!(distinct.len(), scopes.len());
            assert_eq!(scope(&format!(r#"{{"request":{body}}}"#)), scopes[0]);
        }
    }

    #[test]
    fn a_chat_body_is_read_by_the_core() {
        let line = r#"{"messages":[{"role":"user","content":"Why?"}],"documents":[{"id":"a","text":"12345678"}]}"#;
        assert_eq!(documents(line), [("a".to_owned(), 3)]);
    }

    #[test]
    fn nothing_to_order_is_no_error() {
        for line in [
            r#"{"docs":[]}"#,
            r#"{"messages":[{"role":"user","content":"Why?"}]}"#,
        ] {
            assert_eq!(parsed(line), Ok(Vec::new()));
        }
    }

    #[test]
    fn what_is_wrong_is_told_without_the_lines_words() {
        let told = |line: &str| parsed(line).unwrap_err().to_string();
        for (line, words) in [
            ("{\"secret\"", "error at column 10"),
            ("[\"secret\"]", "not a JSON object"),
            (r#"{"secret":1}"#, "neither a chat body"),
            (r#"{"docs":"secret"}"#, "`docs` is not a list"),
            (r#"{"docs":["a",{"secret":1}]}"#, "docs[1] is neither"),
            (r#"{"docs":[null]}"#, "docs[0] is neither"),
            (
                r#"{"docs":[1,2],"tokens":[1]}"#,
                "`tokens` has 1 elements, `docs` has 2",
            ),
            (
                r#"{"docs":[1],"tokens":-1}"#,
                "`tokens` is neither a number",
            ),
            (
                r#"{"docs":[1],"tokens":["secret"]}"#,
                "`tokens` is neither a number",
            ),
            (
                r#"{"messages":[],"documents":[{"secret":1}]}"#,
                "documents[0] has no text",
            ),
            (
                r#"{"messages":[],"documents":[{"text":"secret"}]}"#,
                "user message",
            ),
        ] {
            let told = told(line);
            assert!(told.contains(words), "{told}");
            assert!(!told.contains("secret"), "{told}");
        }
        let many = format!(r#"{{"docs":[{}0]}}"#, "0,".repeat(MAX_CANDIDATES as usize));
        assert!(told(&many).contains("4097 documents, more than the limit of 4096"));
    }
}

//! Rewrites a body without a memory, for hosts that give each request a fresh instance.

use crate::body::{self, Skip, edit};
use crate::config::Config;
use crate::conversation::memory::{self, Memory, Path};
use crate::policy::Policy;
use crate::request::{self, HeadWords, OrderingMode, Report};
use crate::tree::{Bounds, KnowledgeTree};

/// A body that was rewritten without a memory.
#[derive(Debug)]
pub struct StatelessRewrite {
    /// The body to send; `None`: the one that came.
    pub body: Option<Vec<u8>>,
    /// What was done. Nothing is matched, since nothing is remembered.
    pub report: Report,
}

/// Orders the documents of one body by a policy that needs neither tree nor memory, such as an
/// [`OrderTable`](crate::order_table::OrderTable). The result is a function of the configuration, the policy and the body.
///
/// Documents are found, arrays written into their message, repeats replaced by location hints and order hints added as
/// an [`Orderer`](crate::Orderer) does. What needs a memory is not done: nothing is pinned, no head is stabilised. A chat's
/// earlier messages are ordered again at each turn, by the same rule, so they become what they became before.
///
/// # Errors
/// Returns [`Skip`], the reason why the body must be sent as it came.
pub fn rewrite_stateless(
    config: &Config,
    policy: &mut dyn Policy,
    body: &[u8],
) -> Result<StatelessRewrite, Skip> {
    let parsed = body::parse(body, config)?;
    if !parsed.has_documents() {
        return Err(Skip::NoDocuments);
    }
    let mut tree = KnowledgeTree::new(Bounds {
        max_nodes: 1,
        max_tokens: None,
    });
    let memory = Memory::new(memory::Bounds {
        max_entries: 0,
        max_bytes: 0,
    });
    let arranged = request::arrange(
        config,
        &parsed,
        HeadWords::default(),
        &mut tree,
        policy,
        &memory,
        &Path::default(),
        OrderingMode::Ordered,
    );
    let is_changed = !arranged.edits.is_empty();
    Ok(StatelessRewrite {
        body: is_changed.then(|| edit::apply(parsed.text, arranged.edits)),
        report: arranged.report,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Orderer;
    use crate::document::Fingerprint;
    use crate::order_table::{Identity, OrderTable};
    use crate::tenant::Tenant;

    fn table(ids: &[&str]) -> Vec<u8> {
        let keys = ids.iter().map(|id| Identity::Id.key(id, Fingerprint(0)));
        OrderTable::encode(Identity::Id, &keys.collect::<Vec<_>>(), b"").unwrap()
    }

    fn chat(documents: &str, question: &str) -> String {
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{documents}{question}"}}]}}"#
        )
    }

    fn document(id: &str) -> String {
        let more = "and more than a location hint has ".repeat(3);
        format!(r#"<document id=\"{id}\">Text of {id}, {more}.</document>\n"#)
    }

    fn rewritten(table: &[u8], body: &str) -> Option<String> {
        let mut table = OrderTable::read(table).unwrap();
        let rewrite = rewrite_stateless(&Config::default(), &mut table, body.as_bytes()).unwrap();
        rewrite.body.map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn documents_stand_in_the_tables_order_with_a_hint_and_nothing_else_changes() {
        let table = table(&["c", "a", "b"]);
        let [a, b, c] = ["a", "b", "c"].map(document);
        let body = rewritten(&table, &chat(&format!("{a}{b}{c}"), "Why?")).unwrap();
        let places = ["id=\\\"c", "id=\\\"a", "id=\\\"b", "a>b>c", "Why?"];
        let places = places.map(|part| body.find(part));
        assert!(places.is_sorted() && places[0].is_some(), "{body}");
        assert_eq!(
            rewritten(&table, &chat(&format!("{c}{a}{b}"), "Why?")),
            None
        );
    }

    #[test]
    fn the_body_is_the_one_that_an_orderer_makes_of_the_same_order() {
        // `sorted` has no memory either, and puts single documents where this table does.
        let config = Config::from_json(br#"{"policy": "sorted"}"#).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(document);
        let array = r#"{"messages":[{"role":"user","content":"Why?"}],"documents":[{"id":"c","text":"x"},{"id":"a","text":"y"}]}"#;
        for body in [chat(&format!("{c}{b}{a}{b}"), "Why?"), array.to_owned()] {
            let ordered = Orderer::new(config.clone()).rewrite(Tenant::default(), body.as_bytes());
            let ordered = ordered.unwrap().body;
            let stateless = rewritten(&table(&["a", "b", "c"]), &body);
            assert_eq!(stateless.map(String::into_bytes), ordered);
        }
    }

    #[test]
    fn a_chats_earlier_turns_become_what_they_were() {
        let table = table(&["b", "a", "c"]);
        let [a, b, c] = ["a", "b", "c"].map(document);
        let first = chat(&format!("{a}{b}"), "Why?");
        let turn = first.strip_suffix("]}").unwrap();
        let second = format!(
            r#"{turn},{{"role":"assistant","content":"So."}},{{"role":"user","content":"{c}{a}How?"}}]}}"#
        );
        let [first, second] = [first.clone(), second].map(|body| rewritten(&table, &body).unwrap());
        let sent = first.strip_suffix("]}").unwrap();
        assert!(second.starts_with(sent), "{first}\n{second}");
        assert_eq!(second.matches("Text of a,").count(), 1, "{second}");
    }

    #[test]
    fn what_cannot_be_ordered_says_why() {
        let bytes = table(&["a"]);
        let mut table = OrderTable::read(&bytes).unwrap();
        let mut told = |body: &[u8]| {
            let refused = rewrite_stateless(&Config::default(), &mut table, body);
            refused.unwrap_err().reason()
        };
        assert_eq!(
            told(br#"{"messages":[{"role":"user","content":"Why?"}]}"#),
            "no-documents"
        );
        assert_eq!(told(b"{"), "invalid-json");
        assert_eq!(told(b"\xff"), "invalid-utf8");
    }
}

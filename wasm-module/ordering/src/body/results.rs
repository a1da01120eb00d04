//! Documents in a tool's result that is JSON: the elements of its `results` array, as search tools return them.

use super::json::{inner, range_in};
use super::scan::{Scan, fields};
use super::tags::Span;

/// The elements of the array `results` of the object that `text` is; none if one of them does not say by `url`,
/// `path`, `file`, `filename`, `uri` or `href`, a string, where it comes from.
pub(super) fn results(text: &str) -> Vec<Span> {
    let Ok([Some(results)]) = fields(text, ["results"]) else {
        return Vec::new();
    };
    let elements = Scan::new(results).elements().unwrap_or_default();
    let spans = elements.into_iter().map(|element| {
        let from = origin(element)?;
        Some(Span {
            whole: range_in(text, element),
            id: Some(range_in(text, from)).filter(|id| !id.is_empty()),
        })
    });
    spans.collect::<Option<_>>().unwrap_or_default()
}

fn origin(element: &str) -> Option<&str> {
    let names = ["url", "path", "file", "filename", "uri", "href"];
    let fields = fields(element, names).ok()?;
    fields.into_iter().flatten().find_map(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements and what they are called by, as texts.
    fn found(text: &str) -> Vec<(&str, &str)> {
        let spans = results(text).into_iter();
        spans
            .map(|span| (&text[span.whole], span.id.map_or("", |id| &text[id])))
            .collect()
    }

    #[test]
    fn results_say_where_they_come_from() {
        assert_eq!(
            found(
                r#" {"n": 2, "results": [ {"url":"a", "s":[1]} , {"title":"T","path":"b\"c"}], "m": {}}"#
            ),
            [
                (r#"{"url":"a", "s":[1]}"#, "a"),
                (r#"{"title":"T","path":"b\"c"}"#, r#"b\"c"#)
            ]
        );
    }

    #[test]
    fn other_json_is_text() {
        for text in [
            r#"{"results": [{"url":"a"}, {"title":"T"}]}"#,
            r#"{"results": [{"url":5}]}"#,
            r#"{"results": ["a"]}"#,
            r#"{"results": [["a"]]}"#,
            r#"{"results": {"url":"a"}}"#,
            r#"{"results": []}"#,
            r#"[[{"url":"a"}]]"#,
            r#"{"results": [{"url":"a"}]} and words"#,
            "",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }
}

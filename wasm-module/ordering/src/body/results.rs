//! Documents in a tool's result that is JSON: the elements of its `results` array, as search tools return them.

use super::json::{inner, range_in};
use super::tags::Span;
use crate::object;
use serde_json::value::RawValue;

/// A tool's result.
#[derive(Default)]
struct RawResults<'a> {
    results: Vec<&'a RawValue>,
}

object!(impl<'de> RawResults<'de> { results }, others: Ignored);

/// What a result may be called by.
#[derive(Default)]
struct RawResult<'a> {
    url: Option<&'a RawValue>,
    path: Option<&'a RawValue>,
    file: Option<&'a RawValue>,
    filename: Option<&'a RawValue>,
    uri: Option<&'a RawValue>,
    href: Option<&'a RawValue>,
}

object!(
    impl<'de> RawResult<'de> { url, path, file, filename, uri, href },
    others: Ignored
);

/// The elements of the array `results` of the object that `text` is; none if one of them does not say by `url`,
/// `path`, `file`, `filename`, `uri` or `href`, a string, where it comes from.
pub(super) fn results(text: &str) -> Vec<Span> {
    let Ok(RawResults { results }) = serde_json::from_str(text) else {
        return Vec::new();
    };
    let spans = results.iter().map(|element| {
        let element = element.get();
        let from = origin(element)?;
        Some(Span {
            whole: range_in(text, element),
            id: Some(range_in(text, from)).filter(|id| !id.is_empty()),
        })
    });
    spans.collect::<Option<_>>().unwrap_or_default()
}

fn origin(element: &str) -> Option<&str> {
    let result: RawResult<'_> = serde_json::from_str(element).ok()?;
    let keys = [
        result.url,
        result.path,
        result.file,
        result.filename,
        result.uri,
        result.href,
    ];
    keys.into_iter()
        .flatten()
        .find_map(|value| inner(value.get()))
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

//! Finds documents in a tool's JSON result: the elements of its `results` array, as search tools return them.

use super::json::{inner, range_in};
use super::scan::{Bad, Scan, drop_nulls};
use super::tags::Span;
use smallvec::SmallVec;

/// Returns the elements of the array `results` of the JSON object `text` as documents; empty unless each has a string
/// `url`, `path`, `file`, `filename`, `uri` or `href`, which is the document's id.
pub(super) fn results(text: &str) -> Vec<Span> {
    let mut scan = Scan::new(text);
    let found = elements(text, &mut scan);
    match scan.end() {
        Ok(()) => found.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn elements(text: &str, scan: &mut Scan<'_>) -> Result<Vec<Span>, Bad> {
    let mut found: Option<Vec<Span>> = None;
    scan.object(|scan, name| {
        if name != "results" {
            return scan.value().map(|_| ());
        }
        let spans = list(text, scan, 0)?;
        match found.replace(spans) {
            None => Ok(()),
            Some(_) => Err(Bad(scan.next())),
        }
    })?;
    Ok(found.unwrap_or_default())
}

/// Returns the documents in the array `results` of a tool's result that is a JSON object, and the object's texts under
/// `names` in their order there, without quotes. Both are empty if `object` is no JSON object; the texts are empty if
/// one of `names` occurs twice. One pass over the object, and one more over its results.
pub(super) fn results_and_texts<'a>(
    object: &'a str,
    names: &[&str],
) -> (Vec<Span>, SmallVec<[&'a str; 3]>) {
    let mut texts: SmallVec<[(usize, &'a str); 3]> = SmallVec::new();
    let mut lists: SmallVec<[&'a str; 1]> = SmallVec::new();
    let mut scan = Scan::new(object);
    let read = scan.object(|scan, name| {
        let value = scan.value()?;
        if name == "results" {
            lists.push(value);
        } else if let Some(at) = names.iter().position(|known| *known == name) {
            texts.push((at, value));
        }
        Ok(())
    });
    if read.is_err() || scan.end().is_err() {
        return (Vec::new(), SmallVec::new());
    }
    // If a name occurs twice, no text of the object is used.
    let is_twice = (texts.iter().enumerate())
        .any(|(place, (at, _))| texts.iter().skip(place + 1).any(|(other, _)| at == other));
    if is_twice {
        texts.clear();
    }
    let spans = match lists.as_slice() {
        [list] => spans_of(object, list).unwrap_or_default(),
        _ => Vec::new(),
    };
    let texts = texts.into_iter().filter_map(|(_, value)| inner(value));
    (spans, texts.collect())
}

/// Returns the elements of the JSON list `results`, a substring of `text`, as documents with ranges of `text`; an error
/// if one does not name its source.
fn spans_of(text: &str, results: &str) -> Result<Vec<Span>, Bad> {
    let mut scan = Scan::new(results);
    let spans = list(text, &mut scan, range_in(text, results).start)?;
    scan.end()?;
    Ok(spans)
}

/// Reads a list of results and returns its elements as documents with ranges of `text`; the scanned part begins at the
/// offset `base` of `text`.
fn list(text: &str, scan: &mut Scan<'_>, base: usize) -> Result<Vec<Span>, Bad> {
    let mut spans = Vec::new();
    scan.list(|scan| {
        spans.push(element(text, scan, base)?);
        Ok(())
    })?;
    Ok(spans)
}

/// Reads an element of a list of results and returns it as a document; an error if it does not name its source, such as
/// by a `url`. The scanned part begins at the offset `base` of `text`.
fn element(text: &str, scan: &mut Scan<'_>, base: usize) -> Result<Span, Bad> {
    let start = scan.next();
    let mut fields = scan.fields(["url", "path", "file", "filename", "uri", "href"])?;
    drop_nulls(&mut fields);
    let from = fields.into_iter().flatten().find_map(inner);
    let from = range_in(text, from.ok_or(Bad(start))?);
    Ok(Span {
        whole: base + start..base + scan.at(),
        id: Some(from).filter(|id| !id.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the elements of the array `results` in `text`, each as its text and its id.
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

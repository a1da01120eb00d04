//! A body's `cache_salt`, by which engines keep prefix caches apart (vLLM, SGLang and this project's host).
//!
//! A client that chooses its salt may choose another client's, and learn from response times what that one has asked.
//! So the gateway overwrites the client's salt with its own. A body with an ambiguous salt (not JSON, or the field
//! twice) is an error, since engines differ in which one they use.

use super::edit::{self, Edit};
use super::json::{offset_in, range_in, scanned};
use super::search::{pass_space, trimmed_json};
use super::{Skip, unescaped};
use crate::feed::TenantKey;

/// The place in a body at which the gateway writes its `cache_salt`: over the value that the client sent or, if it sent
/// none, as a new first field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaltField<'a> {
    /// The JSON of the client's `cache_salt`; `None` if it sent none.
    given: Option<&'a str>,
    /// Offset in the body just after its opening brace.
    inside: usize,
    /// True if the body's object is not empty, so that an inserted field must end with a comma.
    has_fields: bool,
}

/// Returns the body with `salt` as its `cache_salt` and every other byte unchanged.
///
/// # Errors
/// Returns [`Skip::InvalidUtf8`] or [`Skip::InvalidJson`]: such a body may have a `cache_salt` that this parser does
/// not see.
pub fn salted(body: &[u8], salt: &str) -> Result<Vec<u8>, Skip> {
    let body = super::text_of(body)?;
    let top = trimmed_json(body);
    // `null` counts as a salt: the gateway's would be inserted before it, and parsers may use the last of two fields.
    let [given] = scanned(body, top, |scan| scan.fields(["cache_salt"]))?;
    let place = SaltField::new(body, top, given);
    Ok(edit::apply(body, vec![place.write(body, salt)]))
}

impl<'a> SaltField<'a> {
    /// Locates the `cache_salt` in `top`, the JSON object of `body`; `given` is the JSON of its value, `None` if
    /// absent.
    pub(super) fn new(body: &'a str, top: &'a str, given: Option<&'a str>) -> Self {
        let first = pass_space(top, 1);
        Self {
            given,
            inside: offset_in(body, top) + 1,
            has_fields: top.as_bytes().get(first) != Some(&b'}'),
        }
    }

    /// Returns the JSON of the client's `cache_salt`; `None` if it sent none.
    pub(crate) fn given(&self) -> Option<&'a str> {
        self.given
    }

    /// Returns the edit that makes `salt` the body's `cache_salt`, in place of the client's or as a new field.
    pub(crate) fn write(&self, body: &'a str, salt: &str) -> Edit<'a> {
        let salt = serde_json::to_string(salt).unwrap_or_default();
        match self.given {
            Some(given) => Edit::replace(range_in(body, given), salt),
            None => {
                let comma = if self.has_fields { "," } else { "" };
                let field = format!("\"cache_salt\":{salt}{comma}");
                Edit::replace(self.inside..self.inside, field)
            }
        }
    }

    /// Returns the tenant's key for the client's `cache_salt`, computed by `key_of`; the default key if the client sent
    /// none, or one that is not a string.
    pub(crate) fn key(&self, key_of: fn(&str) -> TenantKey) -> TenantKey {
        let inner = self.given.and_then(super::json::inner);
        inner.map_or_else(TenantKey::default, |salt| key_of(&unescaped(salt)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(body: &str) -> String {
        String::from_utf8(salted(body.as_bytes(), "ours").unwrap()).unwrap()
    }

    #[test]
    fn whatever_the_client_sent_is_replaced_and_every_other_byte_stays() {
        for (body, expected) in [
            ("{}", r#"{"cache_salt":"ours"}"#),
            (" { } ", r#" {"cache_salt":"ours" } "#),
            (r#"{"a":1e400}"#, r#"{"cache_salt":"ours","a":1e400}"#),
            (
                r#"{ "a": 1, "cache_salt" : "theirs" }"#,
                r#"{ "a": 1, "cache_salt" : "ours" }"#,
            ),
            (r#"{"cache_salt":null}"#, r#"{"cache_salt":"ours"}"#),
            (
                r#"{"cache_salt": {"deep": ["x"]}, "b": 2}"#,
                r#"{"cache_salt": "ours", "b": 2}"#,
            ),
            (
                r#"{"cache\u005fsalt":"theirs"}"#,
                r#"{"cache\u005fsalt":"ours"}"#,
            ),
            (
                r#"{"messages":[{"cache_salt":"inner"}]}"#,
                r#"{"cache_salt":"ours","messages":[{"cache_salt":"inner"}]}"#,
            ),
        ] {
            assert_eq!(sent(body), expected, "{body}");
        }
    }

    #[test]
    fn a_body_whose_salt_is_not_certain_is_refused() {
        for body in [
            r#"{"cache_salt":"a","cache_salt":"b"}"#,
            r#"{"cache_salt":"a","cache\u005fsalt":"b"}"#,
            r#"{"cache_salt":null,"cache_salt":"b"}"#,
            r#"[{"cache_salt":"a"}]"#,
            r#"{"a":1} {"cache_salt":"b"}"#,
            r#"{"a":NaN}"#,
            r#"{"a":1"#,
            r#"{"\ud800":1}"#,
            "{\"a\":1}\u{feff}",
            "\u{feff}{\"a\":1}",
            "",
            "null",
        ] {
            assert!(salted(body.as_bytes(), "ours").is_err(), "{body}");
        }
        assert!(salted(b"{\"a\":\"\xff\"}", "ours").is_err());
    }

    #[test]
    fn a_salt_is_written_as_a_json_string_whatever_is_in_it() {
        let sent = salted(b"{}", "a\"b\\\n").unwrap();
        let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap();
        assert_eq!(sent["cache_salt"], "a\"b\\\n");
    }
}

//! Scans JSON text in one pass, validates it, and returns its values as substrings.
//!
//! The bytes that the scanner reads are counted (module `work`), each once, however many checks are made on it.
//!
//! Bodies are read with this scanner because messages hold most of their bytes: a parser that first finds the messages
//! and then reads inside them looks at each byte twice. Only names with escapes are decoded.
//!
//! ```text
//!   {"messages": [{"role": "user", "content": "…"}], …}
//!                          └────┘             └─┘   values, as written; a list or an object of interest is entered
//! ```
//!
//! The scanner accepts exactly what `serde_json` accepts; a property test checks this.

use super::search::{has, special};
use super::text::unescaped;
use crate::work::looked;
use std::borrow::Cow;

/// A scanner of JSON text, with the position of the next byte to read.
pub struct Scan<'a> {
    text: &'a str,
    at: usize,
}

/// The error that a text is not JSON or not of the expected shape, with the offset of the offending byte in the scanned
/// text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad(pub usize);

impl<'a> Scan<'a> {
    /// Returns a scanner at the beginning of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Reads an object. `each` is called with every field's unescaped name and must read the field's value.
    pub(crate) fn object(
        &mut self,
        mut each: impl FnMut(&mut Self, &str) -> Result<(), Bad>,
    ) -> Result<(), Bad> {
        self.expect(b'{')?;
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let name = self.name()?;
            each(self, &decoded(name).ok_or(Bad(self.at))?)?;
            if !self.read_separator(b'}')? {
                return Ok(());
            }
        }
    }

    /// Reads a list. `each` is called before every element and must read that element.
    pub(crate) fn list(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), Bad>,
    ) -> Result<(), Bad> {
        self.expect(b'[')?;
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if !self.read_separator(b']')? {
                return Ok(());
            }
        }
    }

    /// Reads an object and returns the JSON of its fields with these names; `None` for an absent one. Returns an error
    /// if one of the names occurs twice.
    pub(crate) fn fields<const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[Option<&'a str>; N], Bad> {
        let mut fields = [None; N];
        self.read_fields(&names, &mut fields)?;
        Ok(fields)
    }

    /// Reads an object and writes the JSON of its fields with these names to `fields`, which are in the order of
    /// `names`; a field that is absent stays unchanged. Returns an error if one of the names occurs twice. The number
    /// of names is not part of the type, so this code is compiled once.
    pub(super) fn read_fields(
        &mut self,
        names: &[&str],
        fields: &mut [Option<&'a str>],
    ) -> Result<(), Bad> {
        self.object(|scan, name| scan.field(name, names, fields))
    }

    /// Reads a list and returns the JSON of its elements.
    pub fn elements(&mut self) -> Result<Vec<&'a str>, Bad> {
        let mut elements = Vec::new();
        self.list(|scan| {
            elements.push(scan.value()?);
            Ok(())
        })?;
        Ok(elements)
    }

    /// Reads a value and returns its JSON. If it is a list, also appends the JSON of its elements to `elements`.
    pub(super) fn list_or_value(&mut self, elements: &mut Vec<&'a str>) -> Result<&'a str, Bad> {
        let start = self.next();
        if self.byte() != Some(b'[') {
            return self.value();
        }
        elements.extend(self.elements()?);
        Ok(self.since(start))
    }

    /// Reads the value of the field `name` and stores its JSON in `fields`, at the index of `name` in `names`; a name
    /// not in `names` is ignored. Returns an error if that name already has a value.
    pub(super) fn field(
        &mut self,
        name: &str,
        names: &[&str],
        fields: &mut [Option<&'a str>],
    ) -> Result<(), Bad> {
        let value = self.value()?;
        self.place(name, value, names, fields)
    }

    /// Stores `value`, the JSON of the field `name`, in `fields`, at the index of `name` in `names`; a name not in
    /// `names` is ignored. Returns an error if that name already has a value.
    pub(super) fn place(
        &mut self,
        name: &str,
        value: &'a str,
        names: &[&str],
        fields: &mut [Option<&'a str>],
    ) -> Result<(), Bad> {
        let place = names.iter().position(|known| *known == name);
        match place.and_then(|at| fields.get_mut(at)) {
            Some(Some(_)) => Err(Bad(self.at)),
            Some(field) => {
                *field = Some(value);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Reads a value of any depth and returns its JSON.
    pub(crate) fn value(&mut self) -> Result<&'a str, Bad> {
        // The closing brackets of the open lists and objects.
        let mut open: Vec<u8> = Vec::new();
        self.space();
        let start = self.at;
        loop {
            match self.expect_any()? {
                b'{' if !self.eat(b'}') => {
                    open.push(b'}');
                    self.name()?;
                    continue;
                }
                b'[' if !self.eat(b']') => {
                    open.push(b']');
                    continue;
                }
                b'{' | b'[' => {}
                b'"' => self.string()?,
                b't' => self.word("rue")?,
                b'f' => self.word("alse")?,
                b'n' => self.word("ull")?,
                b'-' => self.number()?,
                b'0'..=b'9' => {
                    self.at -= 1;
                    self.number()?;
                }
                _ => return Err(Bad(self.at - 1)),
            }
            loop {
                let Some(&close) = open.last() else {
                    return Ok(self.since(start));
                };
                if self.read_separator(close)? {
                    if close == b'}' {
                        self.name()?;
                    }
                    break;
                }
                open.pop();
            }
        }
    }

    /// Returns the scanned text from the offset `start` to the current position.
    pub(crate) fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// Returns the current position: the offset in the scanned text of the next byte to read.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Skips white space and returns the next byte without reading it.
    pub(super) fn peek(&mut self) -> Option<u8> {
        self.space();
        self.byte()
    }

    /// Skips white space and returns the position of the next byte.
    pub(crate) fn next(&mut self) -> usize {
        self.space();
        self.at
    }

    /// Returns an error unless only white space is left to read.
    pub(crate) fn end(mut self) -> Result<(), Bad> {
        if self.next() == self.text.len() {
            Ok(())
        } else {
            Err(Bad(self.at))
        }
    }

    /// Reads a field's name and the colon after it; returns the name without quotes, its escapes unchanged.
    pub(crate) fn name(&mut self) -> Result<&'a str, Bad> {
        self.expect(b'"')?;
        let start = self.at;
        self.string()?;
        let name = self.text.get(start..self.at - 1).unwrap_or_default();
        self.expect(b':')?;
        Ok(name)
    }

    /// Reads a string whose opening quote has been read, up to and including its closing quote.
    fn string(&mut self) -> Result<(), Bad> {
        loop {
            self.at = special(self.text, self.at);
            if self.takes(|byte| byte == b'"') {
                return Ok(());
            }
            let is_escape = self.takes(|byte| byte == b'\\')
                && (self.takes(|byte| br#""\/bfnrt"#.contains(&byte))
                    || self.takes(|byte| byte == b'u')
                        && (0..4).all(|_| self.takes(|byte| byte.is_ascii_hexdigit())));
            if !is_escape {
                return Err(Bad(self.at));
            }
        }
    }

    /// Reads a number whose sign, if any, has been read.
    fn number(&mut self) -> Result<(), Bad> {
        if !self.takes(|byte| byte == b'0') {
            self.digits()?;
        }
        if self.takes(|byte| byte == b'.') {
            self.digits()?;
        }
        if self.takes(|byte| matches!(byte, b'e' | b'E')) {
            self.takes(|byte| matches!(byte, b'+' | b'-'));
            self.digits()?;
        }
        Ok(())
    }

    /// Reads one or more decimal digits; an error if there is none.
    fn digits(&mut self) -> Result<(), Bad> {
        let start = self.at;
        while self.takes(|byte| byte.is_ascii_digit()) {}
        if self.at > start {
            Ok(())
        } else {
            Err(Bad(start))
        }
    }

    fn word(&mut self, rest: &str) -> Result<(), Bad> {
        let found = self.text.as_bytes().get(self.at..self.at + rest.len());
        if found == Some(rest.as_bytes()) {
            self.at += rest.len();
            looked(rest.len());
            Ok(())
        } else {
            Err(Bad(self.at))
        }
    }

    /// Reads the byte after an element or a field. Returns true for a comma, false for `close` (the bracket that ends
    /// the list or object), and an error for any other byte.
    pub(crate) fn read_separator(&mut self, close: u8) -> Result<bool, Bad> {
        match self.expect_any()? {
            b',' => Ok(true),
            byte if byte == close => Ok(false),
            _ => Err(Bad(self.at - 1)),
        }
    }

    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), Bad> {
        if self.eat(byte) {
            Ok(())
        } else {
            Err(Bad(self.at))
        }
    }

    /// Skips white space and reads any byte; an error at the end of the text.
    fn expect_any(&mut self) -> Result<u8, Bad> {
        self.space();
        let byte = self.byte().ok_or(Bad(self.at))?;
        self.at += 1;
        looked(1);
        Ok(byte)
    }

    /// Skips white space, and reads the next byte only if it equals `byte`. Returns whether it did.
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        self.space();
        self.takes(|next| next == byte)
    }

    fn space(&mut self) {
        while self.takes(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {}
    }

    /// Reads the next byte only if `is_one` is true for it. Returns whether a byte was read.
    fn takes(&mut self, is_one: impl Fn(u8) -> bool) -> bool {
        let comes = self.byte().is_some_and(is_one);
        self.at += usize::from(comes);
        looked(usize::from(comes));
        comes
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

/// Returns the JSON of the named fields of the object `text`; `None` for a field that is absent or `null`.
///
/// # Errors
/// Returns [`Bad`] if the text is not an object or a name occurs twice.
pub fn fields<'a, const N: usize>(
    text: &'a str,
    names: [&str; N],
) -> Result<[Option<&'a str>; N], Bad> {
    let mut fields = [None; N];
    let mut scan = Scan::new(text);
    scan.read_fields(&names, &mut fields)?;
    scan.end()?;
    drop_nulls(&mut fields);
    Ok(fields)
}

/// Returns whether `text` is one JSON value and nothing else.
pub(crate) fn is_value(text: &str) -> bool {
    let mut scan = Scan::new(text);
    scan.value().is_ok() && scan.end().is_ok()
}

/// Sets fields whose value is `null` to `None`.
pub(super) fn drop_nulls(fields: &mut [Option<&str>]) {
    for field in fields {
        *field = field.filter(|value| *value != "null");
    }
}

/// Unescapes the text of a string that was scanned as valid JSON. If it has escapes and the result contains U+FFFD,
/// returns `None`, since an unpaired surrogate also becomes U+FFFD.
pub(super) fn decoded(inner: &str) -> Option<Cow<'_, str>> {
    let text = unescaped(inner, None);
    let is_certain = matches!(text, Cow::Borrowed(_)) || !has(&text, "\u{fffd}");
    is_certain.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    /// Scans `text` as one value and returns it; an error if anything follows.
    fn whole(text: &str) -> Result<&str, Bad> {
        let mut scan = Scan::new(text);
        let value = scan.value()?;
        scan.end()?;
        Ok(value)
    }

    fn agree(text: &str) {
        let expected = serde_json::from_str::<&RawValue>(text).ok();
        assert_eq!(whole(text).ok(), expected.map(RawValue::get), "{text}");
    }

    #[test]
    fn takes_what_serde_takes_and_nothing_else() {
        for text in [
            "null",
            "true",
            "false",
            "nul",
            "nulll",
            "tru e",
            "True",
            "",
            " ",
            "-",
            "-0",
            "-01",
            "01",
            "0.5",
            ".5",
            "5.",
            "1e",
            "1e+",
            "1E-9",
            "1.5e+10",
            "+1",
            "1 2",
            "NaN",
            "[]",
            "[ ]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1, 2 ]",
            "[",
            "]",
            "[}",
            "{}",
            "{ }",
            "{\"a\":1}",
            "{\"a\" : [ {} , [] ] , \"b\":\"c\" }",
            "{\"a\":1,}",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{1:1}",
            "{\"a\":1 \"b\":2}",
            "[{\"a\":1]",
            "{\"a\":[1}",
            "\"",
            "\"a",
            "\"a\"",
            "\"\\\"",
            "\"\\u00e9\\ud800\\n\\/\"",
            "\"\\u00g9\"",
            "\"\\u12\"",
            "\"\\x\"",
            "\"\n\"",
            "\"\u{7f}é\"",
            "\u{feff}1",
        ] {
            agree(text);
        }
    }

    #[test]
    fn a_deep_value_is_no_deeper_a_stack() {
        let deep = "[".repeat(200_000);
        assert_eq!(whole(&deep), Err(Bad(deep.len())));
        let closed = deep + &"]".repeat(200_000);
        assert_eq!(whole(&closed), Ok(closed.as_str()));
    }

    #[test]
    fn fields_are_told_by_their_names_and_come_once() {
        fn read(text: &str) -> Result<Option<&str>, Bad> {
            fields(text, ["a"]).map(|[a]| a)
        }
        assert_eq!(read("{}"), Ok(None));
        assert_eq!(read(r#" {"b":{"a":1}, "\u0061" : [2] } "#), Ok(Some("[2]")));
        assert_eq!(read(r#"{"a":1,"\u0061":2}"#), Err(Bad(17)));
        assert_eq!(read(r#"{"\ud800":1}"#), Err(Bad(10)));
        assert_eq!(read("[]"), Err(Bad(0)));
        assert_eq!(read(r#"{"a":null}"#), Ok(None), "it says nothing");
        assert_eq!(
            read(r#"{"a":null,"a":1}"#),
            Err(Bad(15)),
            "it came all the same"
        );
    }

    /// Generates JSON values, and texts that are nearly JSON.
    fn json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<f64>().prop_map(|number| number.to_string()),
            any::<i64>().prop_map(|number| number.to_string()),
            any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let list = prop::collection::vec(inner, 0..4);
            list.prop_flat_map(|items| {
                let fields = items.iter().zip(["a", "\\n", "", "é"]);
                let fields = fields.map(|(item, name)| format!("\"{name}\" : {item}"));
                let object = format!("{{ {} }}", fields.collect::<Vec<_>>().join(" , "));
                prop_oneof![Just(format!("[{}]", items.join(","))), Just(object)]
            })
        })
    }

    proptest! {
        #[test]
        fn agrees_with_serde(text in json(), at in any::<prop::sample::Index>(), other in r#"[\[\]{}",:\\0-9a-f.+ -]"#) {
            agree(&text);
            let mut chars: Vec<char> = text.chars().collect();
            let at = at.index(chars.len());
            let removed = chars.remove(at);
            agree(&chars.iter().collect::<String>());
            chars.insert(at, other.chars().next().unwrap_or(removed));
            agree(&chars.iter().collect::<String>());
        }
    }
}

//! Passes over JSON text once, checks it, and says where its values stand.
//!
//! A byte that is read counts as one look ([`crate::work`]), however many questions are asked of it where it stands.
//!
//! Bodies are read this way: a chat's messages hold most of its bytes, and a parser that first finds the messages and
//! then what is in them looks at each byte twice. Nothing is decoded but names with escapes.
//!
//! ```text
//!   {"messages": [{"role": "user", "content": "…"}], …}
//!                          └────┘             └─┘   values, as they stand; a list or an object of interest is entered
//! ```
//!
//! The scanner accepts what `serde_json` accepts, which a property test holds it to.

use super::search::{has, special};
use super::text::unescaped;
use crate::work::looked;
use std::borrow::Cow;

/// How far a text has been read.
pub struct Scan<'a> {
    text: &'a str,
    at: usize,
}

/// It is no JSON, or not of the shape wanted, at this byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad(pub usize);

impl<'a> Scan<'a> {
    /// A scan that stands at the beginning of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Enters an object; `each` gets every name and must read its value.
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
            if !self.goes_on(b'}')? {
                return Ok(());
            }
        }
    }

    /// Enters a list; `each` must read an element.
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
            if !self.goes_on(b']')? {
                return Ok(());
            }
        }
    }

    /// The fields of an object by these names, as written. What else it has is passed over; a name that comes twice is an
    /// error.
    pub(super) fn fields<const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[Option<&'a str>; N], Bad> {
        let mut fields = [None; N];
        self.read_fields(&names, &mut fields)?;
        Ok(fields)
    }

    /// The same for any number of names, so that its code is there once.
    pub(super) fn read_fields(
        &mut self,
        names: &[&str],
        fields: &mut [Option<&'a str>],
    ) -> Result<(), Bad> {
        self.object(|scan, name| scan.field(name, names, fields))
    }

    /// The elements of a list, as written.
    pub fn elements(&mut self) -> Result<Vec<&'a str>, Bad> {
        let mut elements = Vec::new();
        self.list(|scan| {
            elements.push(scan.value()?);
            Ok(())
        })?;
        Ok(elements)
    }

    /// Passes over a value, and adds what stands in it to `elements` if it is a list.
    pub(super) fn list_or_value(&mut self, elements: &mut Vec<&'a str>) -> Result<&'a str, Bad> {
        let start = self.next();
        if self.byte() != Some(b'[') {
            return self.value();
        }
        elements.extend(self.elements()?);
        Ok(self.since(start))
    }

    /// Reads the value of `name` into its place among the fields of these names, if it is one of them.
    pub(super) fn field(
        &mut self,
        name: &str,
        names: &[&str],
        fields: &mut [Option<&'a str>],
    ) -> Result<(), Bad> {
        let value = self.value()?;
        self.place(name, value, names, fields)
    }

    /// Puts the `value` of `name` into its place among the fields of these names, if it is one of them.
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

    /// Passes over a value, however deep.
    pub(crate) fn value(&mut self) -> Result<&'a str, Bad> {
        // What closes each list and object that is open.
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
                if self.goes_on(close)? {
                    if close == b'}' {
                        self.name()?;
                    }
                    break;
                }
                open.pop();
            }
        }
    }

    /// What was read from `start` on.
    pub(crate) fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// How far the text has been read.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The byte that comes next, behind spaces.
    pub(super) fn peek(&mut self) -> Option<u8> {
        self.space();
        self.byte()
    }

    /// Where the next value, or whatever comes, begins.
    pub(crate) fn next(&mut self) -> usize {
        self.space();
        self.at
    }

    /// There must be nothing more.
    pub(crate) fn end(mut self) -> Result<(), Bad> {
        if self.next() == self.text.len() {
            Ok(())
        } else {
            Err(Bad(self.at))
        }
    }

    /// A field's name, as between its quotes, and the colon.
    pub(crate) fn name(&mut self) -> Result<&'a str, Bad> {
        self.expect(b'"')?;
        let start = self.at;
        self.string()?;
        let name = self.text.get(start..self.at - 1).unwrap_or_default();
        self.expect(b':')?;
        Ok(name)
    }

    /// The rest of a string, behind its opening quote.
    fn string(&mut self) -> Result<(), Bad> {
        loop {
            self.at = special(self.text, self.at);
            if self.takes(b"\"") {
                return Ok(());
            }
            let is_escape = self.takes(b"\\")
                && (self.takes(br#""\/bfnrt"#)
                    || self.takes(b"u") && (0..4).all(|_| self.takes(b"0123456789abcdefABCDEF")));
            if !is_escape {
                return Err(Bad(self.at));
            }
        }
    }

    /// The rest of a number, behind its sign.
    fn number(&mut self) -> Result<(), Bad> {
        if !self.takes(b"0") {
            self.digits()?;
        }
        if self.takes(b".") {
            self.digits()?;
        }
        if self.takes(b"eE") {
            self.takes(b"+-");
            self.digits()?;
        }
        Ok(())
    }

    /// One digit at least.
    fn digits(&mut self) -> Result<(), Bad> {
        let start = self.at;
        while self.takes(b"0123456789") {}
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

    /// Behind an item: whether another one follows, or `close`.
    pub(crate) fn goes_on(&mut self, close: u8) -> Result<bool, Bad> {
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

    /// The next byte that is no space.
    fn expect_any(&mut self) -> Result<u8, Bad> {
        self.space();
        let byte = self.byte().ok_or(Bad(self.at))?;
        self.at += 1;
        looked(1);
        Ok(byte)
    }

    /// Reads the byte, if it comes next, behind spaces or not.
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        self.space();
        self.takes(&[byte])
    }

    fn space(&mut self) {
        while self.takes(b" \t\n\r") {}
    }

    /// Reads one of these bytes, if the next one is.
    fn takes(&mut self, bytes: &[u8]) -> bool {
        let comes = self.byte().is_some_and(|byte| bytes.contains(&byte));
        self.at += usize::from(comes);
        looked(usize::from(comes));
        comes
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

/// Returns the named fields of the object that `text` is, each as it is written.
///
/// # Errors
/// [`Bad`]: the text is no object.
pub fn fields<'a, const N: usize>(
    text: &'a str,
    names: [&str; N],
) -> Result<[Option<&'a str>; N], Bad> {
    let mut fields = [None; N];
    let mut scan = Scan::new(text);
    scan.read_fields(&names, &mut fields)?;
    scan.end()?;
    say(&mut fields);
    Ok(fields)
}

/// Whether `text` is one value and nothing else.
pub(crate) fn is_value(text: &str) -> bool {
    let mut scan = Scan::new(text);
    scan.value().is_ok() && scan.end().is_ok()
}

/// Leaves those fields that say anything.
pub(super) fn say(fields: &mut [Option<&str>]) {
    for field in fields {
        *field = field.filter(|value| *value != "null");
    }
}

/// What stands between the quotes of a string that was passed over, without its escapes; `None` where one of them stands
/// for no character, or for the one that is put in such a place.
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

    /// The value that `text` is.
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

    /// Values, and texts that are nearly such.
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

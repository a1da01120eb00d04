//! JSON as templates write it: Python's `json.dumps`, which Hugging Face uses as `tojson`.
//!
//! This departs from Jinja's own `tojson`, which escapes `<`, `>`, `&` and `'` for HTML and would change a prompt. Here
//! keys keep their order, only what JSON requires is escaped, and numbers look as Python prints them.

use super::limits::{MAX_BYTES, MAX_NESTING, too_deep};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// The filter of chat templates that writes a value as JSON:
/// `tojson(indent=None, separators=None, ensure_ascii=False, sort_keys=False)`.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) if indent.kind() == ValueKind::String => indent.as_str().map(str::to_owned),
        Some(indent) => Some(" ".repeat(usize::try_from(indent)?.min(MAX_INDENT))),
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators are two strings",
            ));
        }
    };
    let ensure_ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Writer {
        text: String::new(),
        indent,
        item,
        key,
        ensure_ascii,
        sort_keys,
        depth: 0,
    };
    writer.value(value)?;
    // Not marked as safe: minijinja's `join` could then escape the other strings, and a prompt is never escaped.
    Ok(Value::from(writer.text))
}

/// Converts a JSON value to a value for templates; objects keep the order of their keys.
pub(super) fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(to_value).collect(),
        serde_json::Value::Object(fields) => Value::from_pairs(
            fields
                .iter()
                .map(|(key, value)| (key.as_str(), to_value(value))),
        ),
    }
}

const MAX_INDENT: usize = 16;

struct Writer {
    text: String,
    indent: Option<String>,
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => self.text.push_str("null"),
            ValueKind::Bool => self
                .text
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.text.push_str(&value.to_string()),
            ValueKind::Number => self.text.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', &items, Self::value)?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list('{', '}', &keys, |writer, key| {
                    match key.as_str() {
                        Some(key) => writer.string(key),
                        None => writer.string(&key.to_string()),
                    }
                    writer.text.push_str(&writer.key.clone());
                    writer.value(&value.get_item(key)?)
                })?;
            }
            kind => {
                let reason = format!("tojson: a value of kind {kind} has no JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        items: &[Value],
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.depth >= MAX_NESTING || self.text.len() > MAX_BYTES {
            return Err(too_deep());
        }
        self.text.push(open);
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.text.push_str(&self.item.clone());
            }
            self.new_line();
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line();
        }
        self.text.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(self.depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                '\0'..='\u{1f}' => self.escape(character),
                '\u{7f}'.. if self.ensure_ascii && character != '\u{7f}' => self.escape(character),
                _ => self.text.push(character),
            }
        }
        self.text.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(self.text, "\\u{unit:04x}");
        }
    }
}

/// Formats a number as Python's `repr` formats a float: the shortest digits that read back as the same number, with an
/// exponent below 1e-4 and from 1e16 on.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(options: &str, json: &str) -> String {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", tojson);
        let value = to_value(&serde_json::from_str(json).unwrap());
        let source = format!("{{{{ value | tojson{options} }}}}");
        environment
            .render_str(&source, Value::from_pairs([("value", value)]))
            .unwrap()
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        // Expected: `json.dumps(json.loads(input), ensure_ascii=False, …)` of CPython 3.11.
        let tool = r#"{"z": [1, 2.50, -0.0, true, null], "a": {"<b>": "it's & \"q\" \\ \n\u0001\u007f é 😀"}, "e": []}"#;
        let compact = r#"{"z": [1, 2.5, -0.0, true, null], "a": {"<b>": "it's & \"q\" \\ \n\u0001"#;
        assert_eq!(
            render("", tool),
            format!("{compact}\u{7f} é 😀\"}}, \"e\": []}}")
        );
        assert_eq!(
            render("(indent=2)", r#"{"b": [1, {"c": {}}], "a": []}"#),
            "{\n  \"b\": [\n    1,\n    {\n      \"c\": {}\n    }\n  ],\n  \"a\": []\n}"
        );
        assert_eq!(render("(indent=none)", "[1, 2]"), "[1, 2]");
        assert_eq!(
            render(
                "(separators=(',', ':'), sort_keys=true)",
                r#"{"b": 1, "a": [1, 2]}"#
            ),
            r#"{"a":[1,2],"b":1}"#
        );
        assert_eq!(
            render("(ensure_ascii=true)", "\"é😀\u{7f}\""),
            "\"\\u00e9\\ud83d\\ude00\u{7f}\""
        );
        assert_eq!(render("", "18446744073709551615"), "18446744073709551615");
    }

    #[test]
    fn floats_look_as_python_prints_them() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (123_456.789, "123456.789"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}

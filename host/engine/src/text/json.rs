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
mod tests;

//! Takes a JSON object's fields one by one, with checks of type and range.
//!
//! `null` counts as absent everywhere: OpenAI's own clients send it for a field that was not set.

use crate::failure::{Failure, clip};
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// The fields of a request's body not taken yet.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Parses a body into its fields.
    ///
    /// # Errors
    /// Returns an error if `body` is not UTF-8, not JSON, or not an object. The message names the place, never the text.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Failure> {
        let text = std::str::from_utf8(body).map_err(|error| {
            Failure::invalid_body(format!(
                "the body is not UTF-8: invalid byte at offset {}",
                error.valid_up_to()
            ))
        })?;
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(other) => Err(Failure::invalid_body(format!(
                "the body must be a JSON object, got {}",
                type_name(&other)
            ))),
            Err(error) => Err(Failure::invalid_body(format!(
                "the body is not valid JSON: {error}"
            ))),
        }
    }

    /// Returns the fields of an object within a body.
    pub(super) fn of(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// Returns the fields not taken.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.0
    }

    /// Returns a field without taking it.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0
            .get_mut(name)
            .map(Value::take)
            .filter(|value| !value.is_null())
    }

    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(name, "a string", &other)),
        }
    }

    /// Takes a boolean; an absent one counts as `false`.
    pub(super) fn boolean(&mut self, name: &str) -> Result<bool, Failure> {
        self.boolean_or(name, false)
    }

    /// Takes a boolean; an absent one counts as `default`.
    pub(super) fn boolean_or(&mut self, name: &str, default: bool) -> Result<bool, Failure> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(wrong_type(name, "a boolean", &other)),
        }
    }

    pub(super) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Failure> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match &value {
            Value::Number(number) => match number.as_i64() {
                Some(integer) if range.contains(&integer) => Ok(Some(integer)),
                _ => Err(outside(name, number, "an integer", &range)),
            },
            _ => Err(wrong_type(name, "an integer", &value)),
        }
    }

    pub(super) fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, Failure> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match &value {
            Value::Number(number) => match number.as_f64() {
                Some(real) if range.contains(&real) => Ok(Some(real)),
                _ => Err(outside(name, number, "a number", &range)),
            },
            _ => Err(wrong_type(name, "a number", &value)),
        }
    }
}

/// Takes an array of objects; `None` if it is absent or empty.
pub(super) fn take_objects(fields: &mut Fields, name: &str) -> Result<Option<Value>, Failure> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Array(items)) => match items.iter().position(|item| !item.is_object()) {
            Some(index) => Err(wrong_type(
                &format!("{name}[{index}]"),
                "an object",
                &items[index],
            )),
            None if items.is_empty() => Ok(None),
            None => Ok(Some(Value::Array(items))),
        },
        Some(other) => Err(wrong_type(name, "an array", &other)),
    }
}

/// Returns the failure for a field of the wrong type.
pub(super) fn wrong_type(param: &str, wanted: &str, got: &Value) -> Failure {
    Failure::invalid(
        param,
        format!("{param} must be {wanted}, got {}", type_name(got)),
    )
}

/// Formats `value` for an error: shortened, and without the content of arrays and objects.
pub(super) fn show(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => type_name(value).to_owned(),
        scalar => clip(&scalar.to_string()),
    }
}

fn outside<T: Display>(
    name: &str,
    value: &impl Display,
    kind: &str,
    range: &RangeInclusive<T>,
) -> Failure {
    let (low, high) = (range.start(), range.end());
    Failure::invalid(
        name,
        format!("{name} must be {kind} from {low} to {high}, got {value}"),
    )
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<impl Sized, Failure>) -> String {
        result
            .err()
            .map(|failure| failure.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn a_body_that_is_no_object_is_named_without_its_text() {
        assert_eq!(
            message(Fields::parse(b"{\"a\": \"\xff\"}")),
            "the body is not UTF-8: invalid byte at offset 7"
        );
        assert_eq!(
            message(Fields::parse(b"[1]")),
            "the body must be a JSON object, got an array"
        );
        assert_eq!(
            message(Fields::parse(b"{\"secret\": ")),
            "the body is not valid JSON: EOF while parsing a value at line 1 column 11"
        );
        assert_eq!(
            message(Fields::parse("[".repeat(100_000).as_bytes())),
            "the body is not valid JSON: recursion limit exceeded at line 1 column 128"
        );
    }

    #[test]
    fn values_are_held_against_type_and_range() {
        let mut fields =
            Fields::parse(br#"{"a": 3, "b": 2.5, "c": "x", "d": null, "e": 1e99, "f": true}"#)
                .unwrap();
        assert_eq!(
            message(fields.integer("a", 0..=2)),
            "a must be an integer from 0 to 2, got 3"
        );
        assert_eq!(
            message(fields.integer("b", 0..=9)),
            "b must be an integer from 0 to 9, got 2.5"
        );
        assert_eq!(
            message(fields.number("c", 0.0..=2.0)),
            "c must be a number, got a string"
        );
        assert_eq!(fields.string("d").unwrap(), None);
        assert_eq!(
            message(fields.number("e", 0.0..=2.0)),
            "e must be a number from 0 to 2, got 1e+99"
        );
        assert!(fields.boolean("f").unwrap());
        assert!(!fields.boolean("absent").unwrap());
    }
}

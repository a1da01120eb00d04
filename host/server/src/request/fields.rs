//! Removes the fields of a JSON object one by one, with checks of type and range.
//!
//! `null` counts as absent everywhere: OpenAI's own clients send it for a field that was not set.

use crate::failure::{Failure, clip};
use foreword_engine::TokenId;
use serde_json::{Map, Number, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// The fields of a request's JSON object that were not removed yet.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Parses the body of a request into its fields.
    ///
    /// # Errors
    /// Returns an error if `body` is not UTF-8, not JSON, or not an object. The message names the position, and never
    /// quotes the body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Failure> {
        let text = std::str::from_utf8(body).map_err(|error| {
            Failure::invalid_body(format!(
                "the body is not UTF-8: invalid byte at offset {}",
                error.valid_up_to()
            ))
        })?;
        let message = match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => return Ok(Self(fields)),
            Ok(other) => format!("the body must be a JSON object, got {}", type_name(&other)),
            Err(error) => format!("the body is not valid JSON: {error}"),
        };
        Err(Failure::invalid_body(message))
    }

    /// Wraps the fields of an object that was parsed elsewhere.
    pub(super) fn of(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// Returns the fields that were not removed yet, with those of `more` that are not `None`.
    pub(super) fn rest_with<const N: usize>(
        self,
        more: [(&str, Option<Value>); N],
    ) -> Map<String, Value> {
        let more = more.into_iter();
        let present = more.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        self.0.into_iter().chain(present).collect()
    }

    /// Returns the value of a field without removing it; `None` if it is absent or null.
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

    /// Removes a field and returns its boolean; false if it is absent or null.
    pub(super) fn boolean(&mut self, name: &str) -> Result<bool, Failure> {
        self.boolean_or(name, false)
    }

    /// Removes a field and returns its boolean; `default` if it is absent or null.
    pub(super) fn boolean_or(&mut self, name: &str, default: bool) -> Result<bool, Failure> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(wrong_type(name, "a boolean", &other)),
        }
    }

    /// Removes a field and returns it, which must be an object; `None` if it is absent or null.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Value>, Failure> {
        let found = self.take(name);
        if let Some(found) = &found {
            object(name, found)?;
        }
        Ok(found)
    }

    pub(super) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Failure> {
        self.within(name, "an integer", Number::as_i64, &range)
    }

    /// Removes a field and returns its integer, which must be within `range`. Returns `None` if it is absent, or
    /// negative where `range` allows that.
    pub(super) fn count(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<u32>, Failure> {
        let count = self.integer(name, range)?;
        Ok(count.and_then(|count| u32::try_from(count).ok()))
    }

    pub(super) fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, Failure> {
        self.within(name, "a number", Number::as_f64, &range)
    }

    fn within<T: Display + PartialOrd>(
        &mut self,
        name: &str,
        kind: &str,
        read: fn(&Number) -> Option<T>,
        range: &RangeInclusive<T>,
    ) -> Result<Option<T>, Failure> {
        let number = match self.take(name) {
            None => return Ok(None),
            Some(Value::Number(number)) => number,
            Some(other) => return Err(wrong_type(name, kind, &other)),
        };
        let value = read(&number).filter(|value| range.contains(value));
        let value = value.ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            let message = format!("{name} must be {kind} from {low} to {high}, got {number}");
            Failure::invalid(name, message)
        })?;
        Ok(Some(value))
    }
}

/// Removes a field and returns it, which must be an array of objects; `None` if it is absent or empty.
pub(super) fn take_objects(fields: &mut Fields, name: &str) -> Result<Option<Value>, Failure> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                object(&format!("{name}[{index}]"), item)?;
            }
            Ok((!items.is_empty()).then_some(Value::Array(items)))
        }
        Some(other) => Err(wrong_type(name, "an array", &other)),
    }
}

/// Returns the elements of a field's value `found`, an array that must be present and not empty. `wanted` describes the
/// type, for an error.
pub(super) fn filled(
    name: &str,
    wanted: &str,
    found: Option<Value>,
) -> Result<Vec<Value>, Failure> {
    match found {
        Some(Value::Array(items)) if items.is_empty() => {
            Err(Failure::invalid(name, format!("{name} must not be empty")))
        }
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(wrong_type(name, wanted, &other)),
        None => Err(missing(name)),
    }
}

/// Returns the string in `value`, or an error that names the path `at` in the body.
pub(super) fn text<'v>(at: &str, value: &'v Value) -> Result<&'v str, Failure> {
    value
        .as_str()
        .ok_or_else(|| wrong_type(at, "a string", value))
}

/// Returns an error, which names the path `at` in the body, unless `value` is an object.
pub(super) fn object(at: &str, value: &Value) -> Result<(), Failure> {
    match value {
        Value::Object(_) => Ok(()),
        other => Err(wrong_type(at, "an object", other)),
    }
}

/// Returns the failure for a required field that is absent.
pub(super) fn missing(param: &str) -> Failure {
    Failure::invalid(param, format!("{param} is missing"))
}

/// Returns the failure for a field with a value of the wrong type. `wanted` describes the right type.
pub(super) fn wrong_type(param: &str, wanted: &str, got: &Value) -> Failure {
    let got = type_name(got);
    Failure::invalid(param, format!("{param} must be {wanted}, got {got}"))
}

/// Returns the failure for a field whose value is none of the accepted ones, which `wanted` describes.
pub(super) fn wrong_value(param: &str, wanted: &str, got: &Value) -> Failure {
    let got = show(got);
    Failure::invalid(param, format!("{param} must be {wanted}, got {got}"))
}

/// Formats a value for an error message: shortened, and without the content of arrays and objects.
pub(super) fn show(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => type_name(value).to_owned(),
        scalar => clip(&scalar.to_string()),
    }
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

/// Returns the token ids in a list, or an error if an element is not a token. `at` is the list's path in the body.
pub(super) fn check_tokens(at: &str, values: &[Value]) -> Result<Vec<TokenId>, Failure> {
    let check = |(index, value): (usize, &Value)| {
        let token = value.as_u64().and_then(|id| TokenId::try_from(id).ok());
        token.ok_or_else(|| {
            let at = format!("{at}[{index}]");
            let (Value::Number(number), most) = (value, TokenId::MAX) else {
                return wrong_type(&at, "a token", value);
            };
            let message = format!("{at} must be a token, from 0 to {most}, got {number}");
            Failure::invalid(at, message)
        })
    };
    values.iter().enumerate().map(check).collect()
}

/// Validates the field `metadata` of OpenAI's API: up to 16 strings of up to 512 characters, under names of up to 64.
/// `None` if it is absent.
pub(crate) fn metadata(value: Option<&Value>) -> Result<Option<Map<String, Value>>, Failure> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let fits = |(name, value): (&String, &Value)| {
        let text = value.as_str();
        name.chars().count() <= 64 && text.is_some_and(|text| text.chars().count() <= 512)
    };
    let metadata = value
        .as_object()
        .filter(|map| map.len() <= 16 && map.iter().all(fits));
    let metadata = metadata.ok_or_else(|| {
        let message = "metadata must be an object of up to 16 strings of up to 512 characters, under names of up to 64";
        Failure::invalid("metadata", message)
    })?;
    Ok(Some(metadata.clone()))
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

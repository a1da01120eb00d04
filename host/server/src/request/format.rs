//! The field `response_format`, which constrains the whole answer, and vLLM's `structured_outputs.json` and
//! `guided_json`, which do the same.

use super::fields::{Fields, object, text, wrong_type, wrong_value};
use crate::failure::{Failure, clip};
use serde_json::{Value, json};

/// The form that an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any text.
    Text,
    /// Any answer that is a JSON object.
    JsonObject,
    /// JSON that matches this schema, whether or not the request has `strict`.
    JsonSchema {
        /// The JSON schema that the answer must match, an object.
        schema: Value,
        /// The schema's path in the request, for errors.
        field: &'static str,
    },
}

impl Format {
    pub(super) fn take(fields: &mut Fields) -> Result<Self, Failure> {
        let guided = take_guided(fields)?;
        let format = fields.object("response_format")?;
        let format = format.unwrap_or_else(|| json!({"type": "text"}));
        match (format["type"].as_str(), guided) {
            (Some("text"), None) => Ok(Self::Text),
            (Some("text"), Some((field, schema))) => Ok(Self::JsonSchema { schema, field }),
            (_, Some((field, _))) => {
                let message = format!("{field} and response_format exclude each other");
                Err(Failure::invalid(field, message))
            }
            (Some("json_object"), None) => Ok(Self::JsonObject),
            (Some("json_schema"), None) => Self::schema(&format["json_schema"]),
            (_, None) => {
                let wanted = "\"text\", \"json_object\" or \"json_schema\"";
                Err(wrong_value("response_format.type", wanted, &format["type"]))
            }
        }
    }

    fn schema(found: &Value) -> Result<Self, Failure> {
        let at = "response_format.json_schema";
        object(at, found)?;
        text(&format!("{at}.name"), &found["name"])?;
        let strict = &found["strict"];
        if !strict.is_null() && !strict.is_boolean() {
            return Err(wrong_type(&format!("{at}.strict"), "a boolean", strict));
        }
        let field = "response_format.json_schema.schema";
        object(field, &found["schema"])?;
        let schema = found["schema"].clone();
        Ok(Self::JsonSchema { schema, field })
    }
}

/// Removes the field `structured_outputs` and its predecessor `guided_json`, and returns the path of the schema in them
/// and the schema; `None` if there is none. The schema may be a string of JSON.
fn take_guided(fields: &mut Fields) -> Result<Option<(&'static str, Value)>, Failure> {
    let mut outputs = fields.object("structured_outputs")?.unwrap_or_default();
    let mut newer = outputs["json"].take();
    if newer.is_null() && outputs["json_object"].take() == true {
        newer = json!({"type": "object"});
    }
    for (name, value) in outputs.as_object().into_iter().flatten() {
        let is_unset = matches!(value, Value::Null | Value::Bool(false))
            || value.as_array().is_some_and(Vec::is_empty);
        if !is_unset && name != "disable_fallback" {
            let param = format!("structured_outputs.{}", clip(name));
            let message = format!("{param} is not supported: the only supported one is json");
            return Err(Failure::invalid(param, message));
        }
    }
    let older = fields.take("guided_json").unwrap_or_default();
    let (field, schema) = match (newer, older) {
        (Value::Null, Value::Null) => return Ok(None),
        (newer, Value::Null) => ("structured_outputs.json", newer),
        (Value::Null, older) => ("guided_json", older),
        _ => {
            let message = "guided_json and structured_outputs.json exclude each other";
            return Err(Failure::invalid("guided_json", message));
        }
    };
    let schema = match schema {
        Value::String(text) => serde_json::from_str(&text).map_err(|error| {
            Failure::invalid(field, format!("{field} is not valid JSON: {error}"))
        })?,
        schema => schema,
    };
    object(field, &schema)?;
    Ok(Some((field, schema)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(format: Value) -> Result<Format, String> {
        let body = json!({"response_format": format});
        Format::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_format_is_text_any_object_or_a_schema() {
        assert_eq!(take(Value::Null), Ok(Format::Text));
        assert_eq!(take(json!({"type": "text"})), Ok(Format::Text));
        assert_eq!(take(json!({"type": "json_object"})), Ok(Format::JsonObject));
        let schema = json!({"type": "boolean"});
        let format = json!({"name": "flag", "schema": schema, "strict": true});
        let field = "response_format.json_schema.schema";
        assert_eq!(
            take(json!({"type": "json_schema", "json_schema": format})),
            Ok(Format::JsonSchema { schema, field })
        );
    }

    #[test]
    fn vllms_schemas_are_formats() {
        let take = |body: Value| {
            Format::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
                .map_err(|failure| failure.to_string())
        };
        let schema = json!({"type": "boolean"});
        for (body, field) in [
            (json!({"guided_json": schema}), "guided_json"),
            (json!({"guided_json": schema.to_string()}), "guided_json"),
            (
                json!({"structured_outputs": {"json": schema, "regex": null, "disable_any_whitespace": false}}),
                "structured_outputs.json",
            ),
            (
                json!({"guided_json": schema, "response_format": {"type": "text"}}),
                "guided_json",
            ),
        ] {
            let schema = schema.clone();
            assert_eq!(take(body), Ok(Format::JsonSchema { schema, field }));
        }
        assert_eq!(take(json!({"structured_outputs": {}})), Ok(Format::Text));
        let object = take(json!({"structured_outputs": {"json_object": true}})).unwrap();
        assert!(
            matches!(object, Format::JsonSchema { schema, .. } if schema == json!({"type": "object"}))
        );
        for (body, message) in [
            (
                json!({"structured_outputs": {"regex": "a"}}),
                "structured_outputs.regex is not supported: the only supported one is json",
            ),
            (
                json!({"guided_json": "{"}),
                "guided_json is not valid JSON: EOF while parsing an object at line 1 column 1",
            ),
            (
                json!({"guided_json": true}),
                "guided_json must be an object, got a boolean",
            ),
            (
                json!({"guided_json": schema, "response_format": {"type": "json_object"}}),
                "guided_json and response_format exclude each other",
            ),
        ] {
            assert_eq!(take(body).unwrap_err(), message);
        }
    }

    #[test]
    fn anything_else_is_named() {
        for (format, message) in [
            (
                json!("json"),
                "response_format must be an object, got a string",
            ),
            (
                json!({"type": "xml"}),
                "response_format.type must be \"text\", \"json_object\" or \"json_schema\", got \"xml\"",
            ),
            (
                json!({"type": "json_schema"}),
                "response_format.json_schema must be an object, got null",
            ),
            (
                json!({"type": "json_schema", "json_schema": {"schema": {}}}),
                "response_format.json_schema.name must be a string, got null",
            ),
            (
                json!({"type": "json_schema", "json_schema": {"name": "x", "schema": true}}),
                "response_format.json_schema.schema must be an object, got a boolean",
            ),
        ] {
            assert_eq!(take(format).unwrap_err(), message);
        }
    }
}

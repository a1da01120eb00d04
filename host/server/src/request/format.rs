//! The field `response_format`, which constrains the whole answer.

use super::fields::{Fields, object, text, wrong_type, wrong_value};
use crate::failure::Failure;
use serde_json::Value;

/// The form of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any text.
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that matches this schema, with `strict` or without.
    JsonSchema(Value),
}

impl Format {
    pub(super) fn take(fields: &mut Fields) -> Result<Self, Failure> {
        let Some(format) = fields.object("response_format")? else {
            return Ok(Self::Text);
        };
        match format["type"].as_str() {
            Some("text") => Ok(Self::Text),
            Some("json_object") => Ok(Self::JsonObject),
            Some("json_schema") => Self::schema(&format["json_schema"]),
            _ => {
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
        object(&format!("{at}.schema"), &found["schema"])?;
        Ok(Self::JsonSchema(found["schema"].clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        assert_eq!(
            take(json!({"type": "json_schema", "json_schema": format})),
            Ok(Format::JsonSchema(schema))
        );
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

//! What a JSON schema may hold: the keywords that answers can be constrained by, and bounds on their number.
//!
//! Checked before anything is compiled, so that a refusal can name the place.

use serde_json::Value as Json;

/// Why answers cannot be constrained by a schema.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A keyword that is not among those understood.
    #[error("`{keyword}` at {place} is not supported")]
    Unsupported {
        /// The keyword, clipped.
        keyword: String,
        /// The schema that holds it, as a path: `#/properties/name`.
        place: String,
    },
    /// A part that is no schema.
    #[error("{place} must be {wanted}")]
    Malformed {
        /// Where.
        place: String,
        /// What should stand there.
        wanted: &'static str,
    },
    /// A bound.
    #[error("the schema has {found} {what}, more than {limit}")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// What only the compiler sees: contradictions, patterns too costly to match.
    #[error("{0}")]
    Refused(String),
}

/// Holds a schema against what is understood and against the bounds.
pub(super) fn check(schema: &Json) -> Result<(), SchemaError> {
    if !schema.is_object() {
        return Err(SchemaError::Malformed {
            place: "#".to_owned(),
            wanted: "an object",
        });
    }
    within("bytes", schema.to_string().len(), MAX_BYTES)?;
    let mut check = Check { schemas: 0 };
    check.schema(schema, "#", 0)
}

struct Check {
    schemas: usize,
}

impl Check {
    fn schema(&mut self, schema: &Json, place: &str, depth: usize) -> Result<(), SchemaError> {
        self.schemas += 1;
        within("schemas", self.schemas, MAX_SCHEMAS)?;
        within("levels", depth, MAX_DEPTH)?;
        let fields = match schema {
            Json::Bool(_) => return Ok(()),
            Json::Object(fields) => fields,
            _ => {
                return Err(SchemaError::Malformed {
                    place: clip(place),
                    wanted: "an object or a boolean",
                });
            }
        };
        for (keyword, value) in fields {
            let inner = format!("{place}/{keyword}");
            match keyword.as_str() {
                "items" if value.is_array() => self.list(value, &inner, depth)?,
                "items" | "additionalProperties" | "additionalItems" => {
                    self.schema(value, &inner, depth + 1)?;
                }
                "anyOf" | "oneOf" | "allOf" | "prefixItems" => self.list(value, &inner, depth)?,
                "properties" | "patternProperties" | "$defs" | "definitions" => {
                    self.map(value, &inner, depth)?;
                }
                "enum" => match value.as_array() {
                    Some(values) => within("values in an enum", values.len(), MAX_ENUM)?,
                    None => return Err(malformed(&inner, "an array")),
                },
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
                | "maxProperties" => match value.as_u64() {
                    // A whole number may be written 2.0.
                    None if value.as_f64().is_none_or(|n| n < 0.0 || n.fract() != 0.0) => {
                        return Err(malformed(&inner, "a count"));
                    }
                    _ => {}
                },
                "$ref" => match value.as_str() {
                    Some(target) if target.starts_with('#') => {}
                    Some(_) => {
                        return Err(malformed(&inner, "a reference within the schema, `#…`"));
                    }
                    None => return Err(malformed(&inner, "a string")),
                },
                known if VALUES.contains(&known) || ANNOTATIONS.contains(&known) => {}
                unknown => {
                    return Err(SchemaError::Unsupported {
                        keyword: clip(unknown),
                        place: clip(place),
                    });
                }
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Json, place: &str, depth: usize) -> Result<(), SchemaError> {
        let schemas = value
            .as_array()
            .ok_or_else(|| malformed(place, "an array"))?;
        for (index, schema) in schemas.iter().enumerate() {
            self.schema(schema, &format!("{place}/{index}"), depth + 1)?;
        }
        Ok(())
    }

    fn map(&mut self, value: &Json, place: &str, depth: usize) -> Result<(), SchemaError> {
        let schemas = value
            .as_object()
            .ok_or_else(|| malformed(place, "an object"))?;
        for (name, schema) in schemas {
            self.schema(schema, &format!("{place}/{name}"), depth + 1)?;
        }
        Ok(())
    }
}

fn within(what: &'static str, found: usize, limit: usize) -> Result<(), SchemaError> {
    if found > limit {
        return Err(SchemaError::TooLarge { what, found, limit });
    }
    Ok(())
}

fn malformed(place: &str, wanted: &'static str) -> SchemaError {
    SchemaError::Malformed {
        place: clip(place),
        wanted,
    }
}

/// The end of a long path or name, where it differs from others.
fn clip(text: &str) -> String {
    const CHARACTERS: usize = 120;
    match text.char_indices().rev().nth(CHARACTERS - 1) {
        Some((start, _)) if start > 0 => format!("…{}", &text[start..]),
        _ => text.to_owned(),
    }
}

/// Keywords that hold plain values and restrict the answer.
const VALUES: [&str; 10] = [
    "type",
    "const",
    "required",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Keywords that restrict nothing.
const ANNOTATIONS: [&str; 14] = [
    "$anchor",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
    "deprecated",
];

/// Bytes of the schema as compact JSON.
const MAX_BYTES: usize = 128 << 10;
/// Schemas within schemas, all together.
const MAX_SCHEMAS: usize = 2_000;
/// Schemas within each other.
const MAX_DEPTH: usize = 32;
/// Values of one enum.
const MAX_ENUM: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refusal_names_the_place() {
        for (schema, message) in [
            (json!([]), "# must be an object"),
            (json!({"not": {}}), "`not` at # is not supported"),
            (
                json!({"properties": {"a": {"items": {"anyOf": [{}, {"uniqueItems": true}]}}}}),
                "`uniqueItems` at #/properties/a/items/anyOf/1 is not supported",
            ),
            (
                json!({"properties": {"a": 3}}),
                "#/properties/a must be an object or a boolean",
            ),
            (json!({"anyOf": {}}), "#/anyOf must be an array"),
            (json!({"maxItems": -1}), "#/maxItems must be a count"),
            (
                json!({"$ref": "https://example.com/schema"}),
                "#/$ref must be a reference within the schema, `#…`",
            ),
            (
                json!({"x-guidance": {"lenient": true}}),
                "`x-guidance` at # is not supported",
            ),
        ] {
            assert_eq!(check(&schema).unwrap_err().to_string(), message, "{schema}");
        }
    }

    #[test]
    fn a_property_may_be_named_as_a_keyword_is() {
        let schema =
            json!({"properties": {"not": {"type": "string"}, "if": true}, "$defs": {"then": {}}});
        assert_eq!(check(&schema), Ok(()));
    }

    #[test]
    fn size_is_bounded() {
        let mut deep = json!({});
        for _ in 0..=MAX_DEPTH {
            deep = json!({"items": deep});
        }
        let wide: Vec<Json> = vec![json!({}); MAX_SCHEMAS];
        for (schema, message) in [
            (deep, "the schema has 33 levels, more than 32"),
            (
                json!({"anyOf": wide}),
                "the schema has 2001 schemas, more than 2000",
            ),
            (
                json!({"enum": vec![0; MAX_ENUM + 1]}),
                "the schema has 1001 values in an enum, more than 1000",
            ),
            (
                json!({"description": "x".repeat(MAX_BYTES)}),
                "the schema has 131090 bytes, more than 131072",
            ),
        ] {
            assert_eq!(check(&schema).unwrap_err().to_string(), message);
        }
    }
}

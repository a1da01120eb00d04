//! Checks of a JSON schema: the supported keywords, and bounds on their number.
//!
//! The schema is checked before anything is compiled, so that an error can name the place.
//!
//! `llguidance` bounds its steps with one exception: it multiplies out schemas that apply to the same value. The bounds
//! here keep such a schema from making other requests wait.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::panic_utils::catch_unwind;
use llguidance::regex_to_lark;
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;

/// The reason that a JSON schema cannot constrain answers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A keyword of the schema is not supported.
    #[error("`{keyword}` at {place} is not supported")]
    Unsupported {
        /// The keyword; only its end if it is long.
        keyword: String,
        /// Path of the (nested) schema that has the keyword, such as `#/properties/name`.
        place: String,
    },
    /// A part of the schema is not valid.
    #[error("{place} must be {wanted}")]
    Malformed {
        /// Path of the invalid part in the schema, such as `#/properties/name`.
        place: String,
        /// A noun phrase for the values that are allowed there, such as "a string".
        wanted: &'static str,
    },
    /// The schema exceeds a bound on its size.
    #[error("the schema has {found} {what}, more than {limit}")]
    TooLarge {
        /// The kind of parts of which there are too many, in words.
        what: &'static str,
        /// Number of these parts that the schema has.
        found: usize,
        /// Maximum number of these parts in a schema.
        limit: usize,
    },
    /// The compiler refused the schema, for instance for a contradiction or a costly pattern; contains its message.
    #[error("{0}")]
    Refused(String),
    /// The compilation was cancelled by [`Cancel`](super::Cancel).
    #[error("its request is gone")]
    Cancelled,
}

/// Checks that a schema has only supported keywords and is within the bounds; otherwise returns the first fault.
pub(super) fn check(schema: &Json) -> Result<(), SchemaError> {
    if !schema.is_object() {
        return Err(SchemaError::Malformed {
            place: "#".to_owned(),
            wanted: "an object",
        });
    }
    within("bytes", schema.to_string().len(), MAX_BYTES)?;
    let mut check = Check::default();
    check.schema(schema, "#", 0)?;
    check.references()?;
    if check.counts_properties {
        let what = "properties beside minProperties or maxProperties";
        within(what, check.properties, MAX_COUNTED_PROPERTIES)?;
    }
    Loads::of(&check, schema)
}

/// Counts of the parts of a schema, collected by one visit to every schema within it.
#[derive(Default)]
struct Check<'a> {
    /// Every schema within the schema, by its path: a JSON pointer that begins with `#`.
    places: HashMap<String, &'a Json>,
    /// For each `$anchor`, `#` and its name, mapped to the path of the schema that has it.
    anchors: HashMap<String, String>,
    /// For each `$ref`, the path of the schema that has it, and its target.
    references: Vec<(String, String)>,
    /// Path of the first nested schema that has an `$id` or `id`; `None` if none has. If there is one, every `$ref` is
    /// refused, since those within that schema would be relative to its id.
    inner_id: Option<String>,
    /// Sum of the lengths of the paths in `places`, in bytes.
    path_bytes: usize,
    patterns: Patterns,
    values: usize,
    names: usize,
    properties: usize,
    counts_properties: bool,
    pattern_properties: usize,
    /// Distinct pairs of `minLength` and `maxLength`. Equal pairs share their states in the lexer, so each counts once.
    lengths: HashSet<(usize, usize)>,
    counted: usize,
}

impl<'a> Check<'a> {
    fn schema(&mut self, schema: &'a Json, place: &str, depth: usize) -> Result<(), SchemaError> {
        self.path_bytes += place.len();
        within("bytes in its paths", self.path_bytes, MAX_PATH_BYTES)?;
        self.places.insert(place.to_owned(), schema);
        within("schemas", self.places.len(), MAX_SCHEMAS)?;
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
        self.lengths(fields)?;
        for (keyword, value) in fields {
            let inner = format!("{place}/{keyword}");
            match keyword.as_str() {
                "items" if value.is_array() => self.list(value, &inner, depth)?,
                "items" | "additionalProperties" | "additionalItems" => {
                    self.schema(value, &inner, depth + 1)?;
                }
                "anyOf" | "oneOf" | "allOf" | "prefixItems" => self.list(value, &inner, depth)?,
                "properties" | "$defs" | "definitions" => self.map(value, &inner, depth)?,
                "patternProperties" => {
                    self.map(value, &inner, depth)?;
                    for pattern in value.as_object().into_iter().flat_map(|map| map.keys()) {
                        self.pattern_properties += 1;
                        within(
                            "pattern properties",
                            self.pattern_properties,
                            MAX_PATTERN_PROPERTIES,
                        )?;
                        self.patterns.add(pattern)?;
                    }
                }
                "required" => {
                    self.names += value.as_array().map_or(0, Vec::len);
                    within("required properties", self.names, MAX_SCHEMAS)?;
                    self.values(value)?;
                }
                "enum" => match value.as_array() {
                    Some(values) => {
                        within("values in an enum", values.len(), MAX_ENUM)?;
                        self.values(value)?;
                    }
                    None => return Err(malformed(&inner, "an array")),
                },
                "const" => self.values(value)?,
                "pattern" => {
                    let Some(pattern) = value.as_str() else {
                        return Err(malformed(&inner, "a string"));
                    };
                    self.patterns.add(pattern)?;
                }
                "multipleOf" => multiple_of(value, place)?,
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
                | "maxProperties" => {
                    if count(value).is_none() {
                        return Err(malformed(&inner, "a count"));
                    }
                    self.counts_properties |= keyword.ends_with("Properties");
                }
                "$ref" => match value.as_str() {
                    Some(target) if target.starts_with('#') => {
                        self.references.push((inner, target.to_owned()));
                    }
                    Some(_) => {
                        return Err(malformed(&inner, "a reference within the schema, `#…`"));
                    }
                    None => return Err(malformed(&inner, "a string")),
                },
                "$anchor" => {
                    let anchor = format!("#{}", value.as_str().unwrap_or_default());
                    self.anchors.insert(anchor, place.to_owned());
                }
                "$id" | "id" if depth > 0 => {
                    self.inner_id.get_or_insert_with(|| place.to_owned());
                }
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

    fn list(&mut self, value: &'a Json, place: &str, depth: usize) -> Result<(), SchemaError> {
        let schemas = value
            .as_array()
            .ok_or_else(|| malformed(place, "an array"))?;
        for (index, schema) in schemas.iter().enumerate() {
            self.schema(schema, &format!("{place}/{index}"), depth + 1)?;
        }
        Ok(())
    }

    fn map(&mut self, value: &'a Json, place: &str, depth: usize) -> Result<(), SchemaError> {
        let schemas = value
            .as_object()
            .ok_or_else(|| malformed(place, "an object"))?;
        self.properties += schemas.len();
        for (name, schema) in schemas {
            within("bytes in a property's name", name.len(), MAX_NAME)?;
            let name = name.replace('~', "~0").replace('/', "~1");
            self.schema(schema, &format!("{place}/{name}"), depth + 1)?;
        }
        Ok(())
    }

    /// Counts a value of `enum` or `const` and all values within it. The recursion is as deep as the value, which the
    /// JSON parser has bounded.
    fn values(&mut self, value: &Json) -> Result<(), SchemaError> {
        self.values += 1;
        within("values in enums and consts", self.values, MAX_VALUES)?;
        match value {
            Json::String(text) => within("bytes in a value", text.len(), MAX_LITERAL),
            Json::Array(items) => items.iter().try_for_each(|item| self.values(item)),
            Json::Object(fields) => fields.iter().try_for_each(|(name, value)| {
                within("bytes in a property's name", name.len(), MAX_NAME)?;
                self.values(value)
            }),
            _ => Ok(()),
        }
    }

    /// Counts the characters that the lexer must count for `minLength` and `maxLength` in `fields`, and checks the
    /// bound on their sum. Each takes some ten states.
    fn lengths(&mut self, fields: &serde_json::Map<String, Json>) -> Result<(), SchemaError> {
        let bound = |name| fields.get(name).and_then(count);
        let (least, most) = (bound("minLength"), bound("maxLength"));
        if (least, most) == (None, None) {
            return Ok(());
        }
        let pair = (least.unwrap_or(0), most.unwrap_or(0));
        if self.lengths.insert(pair) {
            self.counted = self.counted.saturating_add(pair.0.max(pair.1));
        }
        let what = "characters to count for minLength and maxLength (equal bounds count once)";
        within(what, self.counted, MAX_COUNTED)
    }

    /// Checks that every `$ref` leads to a schema that was visited.
    fn references(&self) -> Result<(), SchemaError> {
        if let (Some(place), Some(_)) = (&self.inner_id, self.references.first()) {
            return Err(SchemaError::Unsupported {
                keyword: "$id".to_owned(),
                place: clip(place),
            });
        }
        for (place, target) in &self.references {
            // The compiler does not decode these characters, so it could find another schema than the one counted.
            if target.contains(['%', '~']) {
                return Err(malformed(place, "a reference without `%` and `~`"));
            }
            if self.target(target).is_none() {
                return Err(malformed(
                    place,
                    "a reference to a schema within the schema",
                ));
            }
        }
        Ok(())
    }

    /// Returns the schema to which a `$ref` leads, and its path; `None` if there is none.
    fn target(&self, reference: &str) -> Option<(&str, &'a Json)> {
        let anchored = self.anchors.get(reference);
        let pointer = anchored.map_or(reference, String::as_str);
        self.places
            .get_key_value(pointer)
            .map(|(place, schema)| (place.as_str(), *schema))
    }
}

/// Sums the cost of building all patterns of a schema, in units of work that the compiler counts.
#[derive(Default)]
struct Patterns(Option<RegexBuilder>);

impl Patterns {
    fn add(&mut self, pattern: &str) -> Result<(), SchemaError> {
        within("bytes in a pattern", pattern.len(), MAX_PATTERN)?;
        let builder = self.0.get_or_insert_with(RegexBuilder::new);
        let search = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
        // An invalid regular expression is refused later, with the reason, when it is compiled.
        let _ = catch_unwind(AssertUnwindSafe(|| builder.mk(&search)));
        let cost = usize::try_from(builder.exprset().cost()).unwrap_or(usize::MAX);
        within("steps to read its patterns", cost, MAX_PATTERN_COST)
    }
}

/// Counts for a schema and all schemas that apply to the same values. Where several schemas apply to one value
/// (`allOf`, siblings of `$ref` and `anyOf`), the compiler multiplies alternatives out within one step of its own
/// counting, so these counts are bounded here.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Number of patterns and formats, plus their combinations where two schemas apply to one value.
    patterns: usize,
    /// Number of alternatives that a pattern may be combined with where two schemas apply to one value: patterns and
    /// formats, and values of `enum` and `const`.
    strings: usize,
    /// Number of patterns and formats that one string must match: the maximum over all strings that the schema
    /// describes.
    meeting: usize,
    /// Number of `multipleOf` that one number must satisfy: the maximum over all numbers.
    multiples: usize,
    /// Number of schemas and of values of `enum` and `const`; a `$ref` counts with its target where another schema
    /// applies to the same value.
    width: usize,
}

impl Load {
    /// Returns the counts for two schemas that are alternatives, or that apply to different values: sums, but of
    /// `meeting` and `multiples` the maximum.
    fn beside(self, other: Self) -> Self {
        Self {
            patterns: self.patterns.saturating_add(other.patterns),
            strings: self.strings.saturating_add(other.strings),
            meeting: self.meeting.max(other.meeting),
            multiples: self.multiples.max(other.multiples),
            width: self.width.saturating_add(other.width),
        }
    }

    /// Returns the counts for two schemas that both apply to one value, so that their patterns combine.
    fn and(self, other: Self) -> Self {
        let pairs = self
            .patterns
            .saturating_mul(other.strings)
            .saturating_add(other.patterns.saturating_mul(self.strings));
        let both = self.beside(other);
        Self {
            patterns: both.patterns.saturating_add(pairs),
            strings: both.strings.saturating_add(pairs),
            meeting: self.meeting.saturating_add(other.meeting),
            multiples: self.multiples.saturating_add(other.multiples),
            width: both.width,
        }
    }
}

struct Loads<'a, 'b> {
    check: &'b Check<'a>,
    /// Counts of the targets of `$ref` by path; `None` while they are being computed, so that a recursive reference is
    /// not expanded endlessly.
    known: HashMap<&'b str, Option<Load>>,
}

impl<'a, 'b> Loads<'a, 'b> {
    fn of(check: &'b Check<'a>, schema: &'a Json) -> Result<(), SchemaError> {
        let known = HashMap::new();
        Self { check, known }.schema(schema, false).map(|_| ())
    }

    /// Returns the counts ([`Load`]) of a schema and checks their bounds. `meets` is true if another schema applies to
    /// the same value.
    fn schema(&mut self, schema: &'a Json, meets: bool) -> Result<Load, SchemaError> {
        let Some(fields) = schema.as_object() else {
            return Ok(Load {
                width: 1,
                ..Load::default()
            });
        };
        let part = |name: &&str| fields.contains_key(*name);
        let combining = ["allOf", "anyOf", "oneOf", "$ref", "enum", "const"];
        let own = fields.keys().any(|name| {
            let name = name.as_str();
            !combining.contains(&name)
                && !ANNOTATIONS.contains(&name)
                && !DEFINITIONS.contains(&name)
        });
        let several = fields
            .get("allOf")
            .and_then(Json::as_array)
            .is_some_and(|all| all.len() > 1);
        let meets = meets
            || several
            || combining.iter().filter(|name| part(name)).count() + usize::from(own) > 1;
        let mut all = self.own(fields, meets)?;
        for name in ["enum", "const"].iter().filter(|name| part(name)) {
            let values = fields[*name].as_array().map_or(1, Vec::len);
            all = all.and(Load {
                strings: values,
                width: values,
                ..Load::default()
            });
        }
        for name in ["anyOf", "oneOf"] {
            let options = fields.get(name).and_then(Json::as_array);
            let load = self.sum(options.into_iter().flatten(), meets)?;
            if name == "oneOf" {
                within("schemas and values within a oneOf", load.width, MAX_ONE_OF)?;
            }
            all = all.and(load);
        }
        for option in fields
            .get("allOf")
            .and_then(Json::as_array)
            .into_iter()
            .flatten()
        {
            let load = self.schema(option, meets)?;
            all = all.and(load);
        }
        if let Some(reference) = fields.get("$ref").and_then(Json::as_str).filter(|_| meets) {
            let load = self.reference(reference)?;
            all = all.and(load);
        }
        for name in DEFINITIONS {
            let schemas = fields.get(name).and_then(Json::as_object);
            self.sum(schemas.into_iter().flat_map(|map| map.values()), false)?;
        }
        within(
            "patterns and formats for one string",
            all.meeting,
            MAX_MEETING,
        )?;
        within("multipleOf for one number", all.multiples, 1)?;
        let what = "patterns and formats, counting each combination that allOf makes,";
        within(what, all.patterns, MAX_PATTERNS)?;
        Ok(all)
    }

    /// Returns the counts ([`Load`]) for those keywords of a schema that do not combine schemas. `meets` is true if
    /// another schema applies to the same value.
    fn own(
        &mut self,
        fields: &'a serde_json::Map<String, Json>,
        meets: bool,
    ) -> Result<Load, SchemaError> {
        let has = |name| usize::from(fields.contains_key(name));
        let patterns = has("pattern") + has("format");
        let mut load = Load {
            patterns,
            strings: patterns,
            meeting: patterns,
            multiples: has("multipleOf"),
            width: 1,
        };
        let children = ["items", "additionalProperties", "additionalItems"];
        let mut inner = self.sum(children.iter().filter_map(|name| fields.get(*name)), meets)?;
        for name in ["items", "prefixItems"] {
            let items = fields.get(name).and_then(Json::as_array);
            inner = inner.beside(self.sum(items.into_iter().flatten(), meets)?);
        }
        let mut properties = |name| {
            let map = fields.get(name).and_then(Json::as_object);
            let both = meets || fields.contains_key("patternProperties");
            self.sum(map.into_iter().flat_map(|map| map.values()), both)
        };
        let named = properties("properties")?;
        let matched = properties("patternProperties")?;
        load = load.and(inner.beside(named.and(matched)));
        Ok(load)
    }

    fn sum(
        &mut self,
        schemas: impl Iterator<Item = &'a Json>,
        meets: bool,
    ) -> Result<Load, SchemaError> {
        let mut sum = Load::default();
        for schema in schemas {
            sum = sum.beside(self.schema(schema, meets)?);
        }
        Ok(sum)
    }

    fn reference(&mut self, reference: &str) -> Result<Load, SchemaError> {
        let Some((place, schema)) = self.check.target(reference) else {
            return Ok(Load::default());
        };
        if let Some(known) = self.known.get(place) {
            return Ok(known.unwrap_or_default());
        }
        self.known.insert(place, None);
        let load = self.schema(schema, true)?;
        self.known.insert(place, Some(load));
        Ok(load)
    }
}

/// Checks that the value of a `multipleOf` is within the bounds. The lexer has as many states for it as the value has
/// units of its last decimal.
fn multiple_of(value: &Json, place: &str) -> Result<(), SchemaError> {
    let bounded = value.as_f64().is_some_and(|mut value| {
        let mut decimals = 0;
        while value.fract() != 0.0 && decimals < MAX_DECIMALS {
            value *= 10.0;
            decimals += 1;
        }
        value.fract() == 0.0 && (1.0..=MAX_DIVISOR).contains(&value)
    });
    if bounded {
        return Ok(());
    }
    Err(malformed(
        &format!("{place}/multipleOf"),
        "above 0, with at most 6 decimals, and at most 10000 units of the last of them",
    ))
}

/// Returns the value of a whole number, which may be written 2.0; `None` for any other value.
fn count(value: &Json) -> Option<usize> {
    match (value.as_u64(), value.as_f64()) {
        (Some(count), _) => Some(usize::try_from(count).unwrap_or(usize::MAX)),
        (None, Some(count)) if count >= 0.0 && count.fract() == 0.0 => Some(count as usize),
        _ => None,
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

/// Returns a path or name on one line, for an error message: with control characters escaped, and only its end, which
/// distinguishes it from others, if it has more than 120 characters.
fn clip(text: &str) -> String {
    const CHARACTERS: usize = 120;
    let (mark, end) = match text.char_indices().rev().nth(CHARACTERS - 1) {
        Some((start, _)) if start > 0 => ("…", &text[start..]),
        _ => ("", text),
    };
    let mut line = String::from(mark);
    for character in end.chars() {
        // Control characters would break the line.
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// Keywords with plain values that restrict the answer, and whose number or size needs no bound.
const VALUES: [&str; 6] = [
    "type",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
];

/// Keywords whose schemas apply only where a `$ref` leads to them.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keywords that do not restrict the answer.
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

/// Maximum length of a schema, written as compact JSON, in bytes.
const MAX_BYTES: usize = 128 << 10;
/// Maximum number of schemas within a schema, itself included.
const MAX_SCHEMAS: usize = 2_000;
/// Maximum depth of schemas nested within a schema.
const MAX_DEPTH: usize = 32;
/// Maximum sum of the lengths of the paths of all schemas within a schema, in bytes. Each path is kept up to three times:
/// as a place, for its `$anchor` and for its `$ref`.
const MAX_PATH_BYTES: usize = 1 << 20;
/// Maximum number of values of one `enum`.
const MAX_ENUM: usize = 1_000;
/// Maximum number of values of all `enum` and `const` of a schema together, including nested values.
const MAX_VALUES: usize = 4_000;
/// Maximum length of a string in an `enum` or `const`, in bytes.
const MAX_LITERAL: usize = 4_096;
/// Maximum length of the name of a property, in bytes.
const MAX_NAME: usize = 512;
/// Maximum length of one regular expression (`pattern` or name in `patternProperties`), in bytes.
const MAX_PATTERN: usize = 1_024;
/// Maximum cost of building all patterns of a schema, in units of work that the compiler counts: some milliseconds.
const MAX_PATTERN_COST: usize = 200_000;
/// Maximum number of patterns and formats of a schema, including their combinations where two schemas apply to one
/// value. The compiler checks for each whether anything matches, within 10,000 units of work.
const MAX_PATTERNS: usize = 256;
/// Maximum number of patterns and formats that one string must match.
const MAX_MEETING: usize = 2;
/// Maximum number of `patternProperties` in a whole schema: each pattern is compared with every other one.
const MAX_PATTERN_PROPERTIES: usize = 8;
/// Maximum number of properties in a whole schema, nested ones included, if any part of it has `minProperties` or
/// `maxProperties`: its grammar grows with their square.
const MAX_COUNTED_PROPERTIES: usize = 128;
/// Maximum number of schemas and values within one `oneOf`: each is compared with every other one.
const MAX_ONE_OF: usize = 2_000;
/// Maximum sum, over the distinct pairs of `minLength` and `maxLength` of a schema, of the larger bound, in characters.
/// The lexer has some ten states for each character.
const MAX_COUNTED: usize = 8_192;
/// Maximum number of decimals of the value of a `multipleOf`.
const MAX_DECIMALS: u32 = 6;
/// Maximum value of a `multipleOf`, in units of its last decimal.
const MAX_DIVISOR: f64 = 10_000.0;

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
            (
                json!({"properties": {"a\u{7f}": {"an\nb": 1}}}),
                "`an\\nb` at #/properties/a\\u{7f} is not supported",
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
    fn the_paths_of_a_small_schema_are_bounded() {
        let siblings = (0..MAX_SCHEMAS).map(|index| (format!("p{index}"), json!({})));
        let mut schema = json!({"properties": siblings.collect::<serde_json::Map<_, _>>()});
        for _ in 1..MAX_DEPTH {
            schema = json!({"properties": {"x".repeat(MAX_NAME): schema}});
        }
        assert!(schema.to_string().len() < MAX_BYTES / 2);
        let error = check(&schema).unwrap_err();
        let message = error.to_string();
        assert!(
            message.ends_with(" bytes in its paths, more than 1048576"),
            "{message}"
        );
        // It ends at the first path that exceeds the bound.
        let longest = MAX_DEPTH * (MAX_NAME + "/properties/".len());
        assert!(
            matches!(error, SchemaError::TooLarge { found, .. } if found < MAX_PATH_BYTES + longest)
        );
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

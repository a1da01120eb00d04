//! `cargo xtask config-docs`: generates the documentation of configuration fields from the schema.
//!
//! ```text
//!   schema.json ─┬─► the tables of gateway-config/envoy/README.md
//!                └─► `Config` in the browser package's types.d.ts
//! ```
//!
//! The schema states each field once: its name, type, default, range and meaning. `x-table` has the text for a default
//! or a range that cannot be derived from these. Only the text between markers is replaced.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, ensure};
use indexmap::IndexMap;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::workspace::Workspace;

const SCHEMA: &str = "wasm-module/filter/src/config/schema.json";
const TABLES: &str = "gateway-config/envoy/README.md";
const TYPES: &str = "wasm-module/browser/src/types.d.ts";

/// A bound this large is not shown.
const UNBOUNDED: u64 = u32::MAX as u64;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Change nothing; fail if a text is not what the schema says
    #[arg(long)]
    pub(crate) check: bool,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let schema = fs::read_to_string(workspace.root().join(SCHEMA))?;
    let root: Part = serde_json::from_str(&schema).with_context(|| SCHEMA.to_owned())?;
    for (file, texts) in [(TABLES, tables(&root)?), (TYPES, types(&root)?)] {
        let path = workspace.root().join(file);
        let before = fs::read_to_string(&path)?;
        let mut after = before.clone();
        for (name, text) in texts {
            after = replaced(&after, name, &text).with_context(|| file.to_owned())?;
        }
        if before != after {
            ensure!(
                !options.check,
                "{file} is not what the schema says: run `cargo xtask config-docs`"
            );
            fs::write(&path, after)?;
            println!("{file}");
        }
    }
    Ok(())
}

/// A part of the schema. Table rows have the order of its properties.
#[derive(Deserialize, Default)]
struct Part {
    #[serde(default)]
    properties: IndexMap<String, Part>,
    #[serde(default)]
    description: String,
    #[serde(rename = "type", default)]
    kind: Value,
    #[serde(rename = "enum")]
    words: Option<Vec<Value>>,
    #[serde(default, deserialize_with = "given")]
    default: Option<Value>,
    minimum: Option<Value>,
    maximum: Option<Value>,
    items: Option<Box<Part>>,
    #[serde(rename = "x-table", default)]
    table: Words,
}

/// The texts of a row that cannot be derived.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Words {
    default: Option<String>,
    allowed: Option<String>,
}

/// Reads a `null` default as a default, not as an absent one.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Part {
    fn is(&self, kind: &str) -> bool {
        match &self.kind {
            Value::Array(kinds) => kinds.iter().any(|value| value == kind),
            value => value == kind,
        }
    }

    fn property(&self, name: &str) -> Result<&Part> {
        let part = self.properties.get(name);
        part.with_context(|| format!("the schema has no {name}"))
    }

    /// Returns the text of the column *default*.
    fn default_words(&self) -> String {
        match (&self.table.default, &self.default) {
            (Some(words), _) => words.clone(),
            (None, None) => String::new(),
            (None, Some(Value::Number(number))) => number.to_string(),
            (None, Some(value)) => format!("`{}`", spaced(value)),
        }
    }

    /// Returns the text of the column *allowed*.
    fn allowed_words(&self) -> String {
        if let Some(words) = &self.table.allowed {
            return words.clone();
        }
        if let Some(words) = &self.words {
            let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
            return words.join(", ");
        }
        let null = if self.is("null") { "`null` or " } else { "" };
        let maximum = self.maximum.as_ref();
        let maximum = maximum.filter(|most| most.as_u64().is_none_or(|most| most < UNBOUNDED));
        match (&self.minimum, maximum) {
            (Some(least), Some(most)) => format!("{null}{least} to {most}"),
            (Some(least), None) if least != 0 => format!("{null}from {least}"),
            _ => String::new(),
        }
    }
}

/// Formats a list of texts with a space after each comma; any other value as JSON.
fn spaced(value: &Value) -> String {
    match value.as_array() {
        Some(list) => {
            let list: Vec<_> = list.iter().map(Value::to_string).collect();
            format!("[{}]", list.join(", "))
        }
        None => value.to_string(),
    }
}

type Texts = Vec<(&'static str, String)>;

/// Returns the README's two tables: the gateway's fields, and those of `ordering`.
fn tables(root: &Part) -> Result<Texts> {
    let mut gateway = head("field");
    for (name, part) in &root.properties {
        if name == "ordering" {
            row(&mut gateway, name, part)?;
        } else {
            rows(&mut gateway, name, part)?;
        }
    }
    let mut ordering = head("field of `ordering`");
    for (name, part) in &root.property("ordering")?.properties {
        rows(&mut ordering, name, part)?;
    }
    Ok(vec![("fields", gateway), ("ordering", ordering)])
}

fn head(first: &str) -> String {
    format!("| {first} | default | allowed | meaning |\n| --- | --- | --- | --- |\n")
}

/// Writes the rows of a field and of its fields.
fn rows(table: &mut String, path: &str, part: &Part) -> Result<()> {
    let items = part.items.as_deref();
    let items = items.filter(|items| !items.properties.is_empty());
    // An object that cannot be `null` has no row of its own.
    let is_group = !part.properties.is_empty() && !part.is("null");
    if !is_group {
        row(table, path, part)?;
    }
    for (name, part) in &part.properties {
        rows(table, &format!("{path}.{name}"), part)?;
    }
    if let Some(items) = items {
        for (name, part) in &items.properties {
            rows(table, &format!("{path}[].{name}"), part)?;
        }
    }
    Ok(())
}

fn row(table: &mut String, path: &str, part: &Part) -> Result<()> {
    let cells = [
        part.default_words(),
        part.allowed_words(),
        part.description.clone(),
    ];
    ensure!(
        cells.iter().all(|cell| !cell.contains(['|', '\n'])),
        "{path}: a cell of a table cannot hold \"|\" or a line break"
    );
    let _ = write!(table, "| `{path}` |");
    for cell in cells {
        let space = if cell.is_empty() { "" } else { " " };
        let _ = write!(table, "{space}{cell} |");
    }
    table.push('\n');
    Ok(())
}

/// Returns the browser package's types of configurations.
fn types(root: &Part) -> Result<Texts> {
    let ordering = root.property("ordering")?;
    let policies = ordering.property("policy")?.words.iter().flatten();
    let policies: Vec<_> = policies.map(Value::to_string).collect();
    let mut text = format!(
        "/** Rules that order documents. */\nexport type Policy =\n  {};\n\n/** What the gateway calls `ordering`; \
         whatever is absent has its default. */\nexport interface Config {{\n",
        policies.join(" | ")
    );
    members(&mut text, ordering, 1);
    text.push_str("}\n");
    Ok(vec![("config", text)])
}

fn members(text: &mut String, part: &Part, depth: usize) {
    let indent = "  ".repeat(depth);
    for (name, part) in &part.properties {
        if part.properties.is_empty() {
            let meaning = &part.description;
            let _ = writeln!(text, "{indent}/** {meaning} */");
            let _ = writeln!(text, "{indent}{name}?: {};", type_of(name, part));
        } else {
            let _ = writeln!(text, "{indent}{name}?: {{");
            members(text, part, depth + 1);
            let _ = writeln!(text, "{indent}}};");
        }
    }
}

fn type_of(name: &str, part: &Part) -> String {
    if name == "policy" {
        return "Policy".to_owned();
    }
    if let Some(words) = &part.words {
        let words: Vec<_> = words.iter().map(Value::to_string).collect();
        return words.join(" | ");
    }
    let kinds = match &part.kind {
        Value::Array(kinds) => kinds.as_slice(),
        kind => std::slice::from_ref(kind),
    };
    let kinds = kinds.iter().map(|kind| match kind.as_str() {
        Some("integer" | "number") => "number".to_owned(),
        Some("boolean") => "boolean".to_owned(),
        Some("null") => "null".to_owned(),
        Some("array") => match part.items.as_deref().map(|items| type_of("", items)) {
            Some(one) if one.starts_with('{') || !one.contains('|') => format!("{one}[]"),
            Some(several) => format!("({several})[]"),
            None => "unknown[]".to_owned(),
        },
        Some("object") => {
            let members = part.properties.iter();
            let members = members.map(|(name, part)| format!("{name}?: {}", type_of(name, part)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join("; "))
        }
        _ => "string".to_owned(),
    });
    kinds.collect::<Vec<_>>().join(" | ")
}

/// Replaces the text between the markers of this name.
fn replaced(text: &str, name: &str, by: &str) -> Result<String> {
    let find = |mark: &str| {
        let lines = text.split_inclusive('\n');
        let mut at = 0;
        for line in lines {
            if line.contains(mark) {
                return Some((at, at + line.len()));
            }
            at += line.len();
        }
        None
    };
    let begin = format!("config-docs: {name} begin");
    let end = format!("config-docs: {name} end");
    let missing = |mark: &str| format!("there is no line with `{mark}`");
    let (_, from) = find(&begin).with_context(|| missing(&begin))?;
    let (to, _) = find(&end).with_context(|| missing(&end))?;
    ensure!(from <= to, "`{end}` stands before `{begin}`");
    Ok([&text[..from], by, &text[to..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{"properties": {
        "b": {"type": ["integer", "null"], "minimum": 1, "maximum": 9, "default": null, "description": "first"},
        "a": {"type": "object", "properties": {
            "c": {"enum": ["x", "y"], "default": "x", "description": "second"}}},
        "list": {"type": "array", "default": [], "x-table": {"allowed": "many"}, "description": "third",
            "items": {"properties": {"d": {"type": "integer", "minimum": 0, "maximum": 4294967295,
                "default": 3, "description": "fourth"}}}}}}"#;

    #[test]
    fn a_row_has_what_the_schema_says_in_the_schemas_order() {
        let root: Part = serde_json::from_str(SCHEMA).unwrap();
        let mut table = String::new();
        for (name, part) in &root.properties {
            rows(&mut table, name, part).unwrap();
        }
        assert_eq!(
            table,
            "| `b` | `null` | `null` or 1 to 9 | first |\n\
             | `a.c` | `\"x\"` | `\"x\"`, `\"y\"` | second |\n\
             | `list` | `[]` | many | third |\n\
             | `list[].d` | 3 | | fourth |\n"
        );
    }

    #[test]
    fn what_stands_between_markers_is_replaced_and_nothing_else() {
        let text = "a\n<!-- config-docs: t begin -->\nold\n<!-- config-docs: t end -->\nb\n";
        let new = replaced(text, "t", "new\n").unwrap();
        assert_eq!(new, text.replace("old", "new"));
        assert_eq!(replaced(&new, "t", "new\n").unwrap(), new);
        let error = replaced(text, "u", "").unwrap_err().to_string();
        assert!(error.contains("config-docs: u begin"), "{error}");
    }
}

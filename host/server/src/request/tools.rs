//! The fields `tools`, `tool_choice` and `parallel_tool_calls`: the tools that a chat may call, whether it must call
//! one, and whether it may call several.

use super::fields::{Fields, show, take_objects, wrong_type};
use crate::failure::Failure;
use serde_json::{Map, Value, json};

/// The tools that the model may call in a chat.
#[derive(Debug)]
pub struct Tools {
    /// The tools as the client sent them, with their order of keys; at least one.
    pub shown: Value,
    /// The rule for the answer's tool calls: the model decides, or one call is forced.
    pub choice: ToolChoice,
    /// True if the answer may have several tool calls; false if it ends with the first one (`parallel_tool_calls`).
    pub parallel: bool,
}

/// The rule for the answer's tool calls: the model decides, or one call is forced.
#[derive(Debug, PartialEq)]
pub enum ToolChoice {
    /// The model decides whether to call a tool.
    Auto,
    /// The answer must be exactly one tool call that matches this schema: an object with `name` and `arguments`.
    Forced(Value),
}

impl Tools {
    /// Removes the fields on tools. Returns `None` if there are no tools or `tool_choice` is `none`; the model is then
    /// told of no tools.
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>, Failure> {
        let tools = take_objects(fields, "tools")?;
        let choice = fields.take("tool_choice");
        let parallel = fields.boolean_or("parallel_tool_calls", true)?;
        let forced = match &choice {
            None => None,
            Some(Value::String(word)) if word == "auto" => None,
            Some(Value::String(word)) if word == "none" => return Ok(None),
            Some(Value::String(word)) if word == "required" => Some(None),
            Some(Value::Object(fields)) => Some(Some(named(fields)?)),
            Some(other) => {
                let message = format!(
                    "tool_choice must be \"none\", \"auto\", \"required\" or an object that names a function, got {}",
                    show(other)
                );
                return Err(Failure::invalid("tool_choice", message));
            }
        };
        let Some(shown) = tools else {
            return match forced {
                None => Ok(None),
                Some(_) => Err(Failure::invalid(
                    "tool_choice",
                    "tool_choice demands a call, and there are no tools",
                )),
            };
        };
        let choice = match forced {
            None => ToolChoice::Auto,
            Some(name) => ToolChoice::Forced(schema(&shown, name)?),
        };
        Ok(Some(Self {
            shown,
            choice,
            parallel,
        }))
    }
}

/// Returns the function's name in a `tool_choice` of the form `{"type": "function", "function": {"name": …}}`; an error
/// for any other form.
fn named(choice: &Map<String, Value>) -> Result<&str, Failure> {
    let name = choice
        .get("function")
        .and_then(|function| function["name"].as_str());
    match (choice.get("type").and_then(Value::as_str), name) {
        (Some("function"), Some(name)) => Ok(name),
        (Some("function"), None) => Err(Failure::invalid(
            "tool_choice.function.name",
            "tool_choice.function.name must be a string",
        )),
        _ => Err(Failure::invalid(
            "tool_choice.type",
            "tool_choice.type must be \"function\"",
        )),
    }
}

/// Returns the schema that a tool call must match: a call of the tool `name`, or of any tool if `name` is `None`.
fn schema(tools: &Value, name: Option<&str>) -> Result<Value, Failure> {
    let mut functions = Vec::new();
    for (index, tool) in tools.as_array().into_iter().flatten().enumerate() {
        let at = format!("tools[{index}].function");
        match (
            tool["function"]["name"].as_str(),
            &tool["function"]["parameters"],
        ) {
            (None, _) => {
                return Err(Failure::invalid(
                    format!("{at}.name"),
                    format!("{at}.name must be a string"),
                ));
            }
            (Some(found), _) if name.is_some_and(|name| name != found) => {}
            (Some(found), Value::Null) => functions.push((found, json!({"type": "object"}))),
            (Some(found), parameters @ Value::Object(_)) => {
                functions.push((found, parameters.clone()));
            }
            (Some(_), other) => {
                return Err(wrong_type(&format!("{at}.parameters"), "an object", other));
            }
        }
    }
    let call = |name: &str, mut arguments: Value, place: String| {
        // References start at the schema's root, and the tool's schema is no longer there.
        rebase(&mut arguments, &format!("{place}/properties/arguments"));
        json!({
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    };
    match (functions.len(), name) {
        (0, Some(name)) => Err(Failure::invalid(
            "tool_choice.function.name",
            format!(
                "tool_choice names a function that is not among the tools: {}",
                crate::failure::clip(name)
            ),
        )),
        (1, _) => {
            let (name, arguments) = functions.remove(0);
            Ok(call(name, arguments, "#".to_owned()))
        }
        _ => {
            let calls = functions.into_iter().enumerate();
            let calls = calls.map(|(index, (name, arguments))| {
                call(name, arguments, format!("#/anyOf/{index}"))
            });
            Ok(json!({"anyOf": calls.collect::<Vec<_>>()}))
        }
    }
}

/// Prefixes all local `$ref`s in a schema with `root`, the path at which the schema is placed in a larger one.
fn rebase(schema: &mut Value, root: &str) {
    match schema {
        Value::Object(fields) => {
            for (keyword, value) in fields.iter_mut() {
                match (keyword.as_str(), value) {
                    // These hold data, not schemas.
                    ("const" | "enum" | "default" | "examples", _) => {}
                    // The names in these are no keywords.
                    (
                        "properties" | "patternProperties" | "$defs" | "definitions"
                        | "dependentSchemas",
                        Value::Object(schemas),
                    ) => schemas.values_mut().for_each(|schema| rebase(schema, root)),
                    ("$ref", Value::String(target)) => {
                        let path = target.strip_prefix('#').map(str::to_owned);
                        if let Some(path) = path.filter(|p| p.is_empty() || p.starts_with('/')) {
                            *target = format!("{root}{}", path.trim_end_matches('/'));
                        }
                    }
                    (_, value) => rebase(value, root),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rebase(item, root)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(choice: Value, tools: Value) -> Result<Option<Tools>, Failure> {
        let body = json!({"tool_choice": choice, "tools": tools});
        Tools::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    fn tool(name: &str, parameters: Value) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    }

    fn refusal(choice: Value, tools: Value) -> (String, String) {
        match take(choice, tools) {
            Err(Failure::Invalid { param, message }) => (param.unwrap_or_default(), message),
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn a_choice_shows_hides_or_forces() {
        let tools = json!([tool("f", json!({"type": "object"}))]);
        let auto = take(json!("auto"), tools.clone()).unwrap().unwrap();
        assert_eq!((&auto.shown, auto.choice), (&tools, ToolChoice::Auto));
        assert!(take(json!("none"), tools.clone()).unwrap().is_none());
        assert!(take(Value::Null, json!([])).unwrap().is_none());
        let forced = take(json!("required"), tools).unwrap().unwrap().choice;
        let expected = json!({
            "type": "object",
            "properties": {"name": {"const": "f"}, "arguments": {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": false,
        });
        assert_eq!(forced, ToolChoice::Forced(expected));
    }

    #[test]
    fn references_follow_their_schema() {
        let parameters = json!({
            "$defs": {"x": {"type": "null"}},
            "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#"}, "c": {"const": {"$ref": "#/$defs/x"}},
                "default": {"$ref": "#/$defs/x"}},
        });
        let tools = json!([tool("f", parameters), tool("g", Value::Null)]);
        let Some(Tools {
            choice: ToolChoice::Forced(schema),
            ..
        }) = take(json!("required"), tools.clone()).unwrap()
        else {
            panic!("forced");
        };
        let properties = &schema["anyOf"][0]["properties"]["arguments"]["properties"];
        assert_eq!(
            properties["a"]["$ref"],
            "#/anyOf/0/properties/arguments/$defs/x"
        );
        assert_eq!(properties["b"]["$ref"], "#/anyOf/0/properties/arguments");
        assert_eq!(properties["c"]["const"]["$ref"], "#/$defs/x");
        assert_eq!(
            properties["default"]["$ref"],
            "#/anyOf/0/properties/arguments/$defs/x"
        );
        let named = json!({"type": "function", "function": {"name": "f"}});
        let Some(Tools {
            choice: ToolChoice::Forced(schema),
            ..
        }) = take(named, tools).unwrap()
        else {
            panic!("forced");
        };
        assert_eq!(
            schema["properties"]["arguments"]["properties"]["a"]["$ref"],
            "#/properties/arguments/$defs/x"
        );
    }

    #[test]
    fn what_cannot_be_chosen_is_named() {
        let tools = json!([tool("f", json!({}))]);
        for (choice, tools, param) in [
            (json!("sometimes"), tools.clone(), "tool_choice"),
            (json!(3), tools.clone(), "tool_choice"),
            (json!("required"), json!([]), "tool_choice"),
            (json!({"type": "custom"}), tools.clone(), "tool_choice.type"),
            (
                json!({"type": "function"}),
                tools.clone(),
                "tool_choice.function.name",
            ),
            (
                json!({"type": "function", "function": {"name": "g"}}),
                tools,
                "tool_choice.function.name",
            ),
            (
                json!("required"),
                json!([{"function": {}}]),
                "tools[0].function.name",
            ),
            (
                json!("required"),
                json!([tool("f", json!(3))]),
                "tools[0].function.parameters",
            ),
        ] {
            assert_eq!(refusal(choice.clone(), tools).0, param, "{choice}");
        }
    }
}

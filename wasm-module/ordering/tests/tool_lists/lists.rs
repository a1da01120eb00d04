//! Lists of tools as clients send them: the forms of six APIs, what changes in them from one request to the next, and what may
//! have changed in them when they are sent on.
//!
//! JSON is read here with its keys in their order, which is what clients change.

#![allow(dead_code, reason = "each user takes a part")]

use foreword_ordering::random::Random;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt::{self, Write as _};

/// A JSON value whose objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    /// `null`, `true`, `false` or a number, as written.
    Plain(String),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// # Panics
    /// Panics if `text` is no JSON.
    pub(crate) fn of(text: &str) -> Self {
        serde_json::from_str(text).unwrap()
    }

    pub(crate) fn string(text: &str) -> Self {
        Self::String(text.to_owned())
    }

    pub(crate) fn object(members: Vec<(&str, Self)>) -> Self {
        let members = members.into_iter();
        Self::Object(
            members
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members
                .iter()
                .find(|(name, _)| name == key)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    pub(crate) fn elements(&self) -> &[Self] {
        match self {
            Self::Array(elements) => elements,
            _ => &[],
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Self::String(text) => text,
            _ => "",
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Plain(text) => out.push_str(text),
            Self::String(text) => out.push_str(&serde_json::to_string(text).unwrap()),
            Self::Array(elements) => {
                out.push('[');
                for (at, element) in elements.iter().enumerate() {
                    out.push_str(if at > 0 { "," } else { "" });
                    element.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (at, (key, value)) in members.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    let _ = write!(out, "{comma}{}:", serde_json::to_string(key).unwrap());
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        self.write(&mut out);
        f.write_str(&out)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Plain("null".into()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Json::Plain(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Json::Plain(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(Json::Plain(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(Json::Plain(format!("{value:?}")))
            }

            fn visit_str<E>(self, value: &str) -> Result<Json, E> {
                Ok(Json::string(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    elements.push(element);
                }
                Ok(Json::Array(elements))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Json::Object(members))
            }
        }
        deserializer.deserialize_any(Values)
    }
}

/// What a client changes in its list from one request to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    No,
    /// The tools stand in another order each time: a hash map of them, or servers that answer in any order.
    Order,
    /// The keys of every object do, and the elements of `required`: Go's and Swift's maps.
    Keys,
    /// Each tool is missing from one request in four.
    Subset,
    /// A clock stands in one tool's description.
    Clock,
}

impl Broken {
    pub(crate) const ALL: [Self; 5] =
        [Self::No, Self::Order, Self::Keys, Self::Subset, Self::Clock];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::No => "unbroken",
            Self::Order => "order",
            Self::Keys => "keys",
            Self::Subset => "subset",
            Self::Clock => "clock",
        }
    }

    /// A list of functions as the client has it in request `nth`.
    pub(crate) fn of(self, functions: &[Json], nth: u64) -> Vec<Json> {
        let mut random = Random::new(nth + 7);
        let mut list = functions.to_vec();
        match self {
            Self::No => {}
            Self::Order => shuffle(&mut random, &mut list),
            Self::Keys => list
                .iter_mut()
                .for_each(|function| shuffle_keys(&mut random, function)),
            Self::Subset => {
                let kept = (0..list.len()).map(|_| random.below(4) > 0);
                let kept: Vec<bool> = kept.collect();
                let mut kept = kept.iter();
                list.retain(|_| kept.next() == Some(&true));
                if list.is_empty() {
                    list.extend(functions.first().cloned());
                }
            }
            Self::Clock => {
                let at = functions.len() / 2;
                if let Some(Json::Object(members)) = list.get_mut(at) {
                    for (key, value) in members {
                        if let ("description", Json::String(text)) = (&**key, value) {
                            let (minutes, seconds) = (nth / 60 % 60, nth % 60);
                            let _ =
                                write!(text, " It is 2026-11-23 09:{minutes:02}:{seconds:02} now.");
                        }
                    }
                }
            }
        }
        list
    }
}

fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
}

fn shuffle_keys(random: &mut Random, value: &mut Json) {
    match value {
        Json::Object(members) => {
            shuffle(random, members);
            for (key, value) in members {
                if let ("required", Json::Array(names)) = (&**key, &mut *value) {
                    shuffle(random, names);
                }
                shuffle_keys(random, value);
            }
        }
        Json::Array(elements) => elements
            .iter_mut()
            .for_each(|element| shuffle_keys(random, element)),
        _ => {}
    }
}

/// How a body holds its tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Messages,
    Responses,
    Gemini,
    Converse,
    /// Cohere's second API.
    Cohere,
}

impl Api {
    pub(crate) const ALL: [Self; 6] = [
        Self::Chat,
        Self::Messages,
        Self::Responses,
        Self::Gemini,
        Self::Converse,
        Self::Cohere,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Messages => "messages",
            Self::Responses => "responses",
            Self::Gemini => "gemini",
            Self::Converse => "converse",
            Self::Cohere => "cohere",
        }
    }

    /// A body with these functions, each `{"name", "description", "parameters"}`, a system text, and messages by their roles.
    pub(crate) fn body(
        self,
        functions: &[Json],
        system: &str,
        messages: &[(&str, &str)],
    ) -> String {
        let tools: Vec<Json> = functions
            .iter()
            .map(|function| self.tool(function))
            .collect();
        let said = |role: &str, text: &str| self.message(role, text);
        let messages: Vec<Json> = messages
            .iter()
            .map(|(role, text)| said(role, text))
            .collect();
        let list = Json::Array;
        let text = Json::string;
        let body = match self {
            Self::Chat | Self::Cohere => {
                let mut all = vec![said("system", system)];
                all.extend(messages);
                vec![
                    ("model", text("m")),
                    ("messages", list(all)),
                    ("tools", list(tools)),
                ]
            }
            Self::Messages => vec![
                ("model", text("m")),
                ("system", text(system)),
                ("tools", list(tools)),
                ("messages", list(messages)),
            ],
            Self::Responses => vec![
                ("model", text("m")),
                ("instructions", text(system)),
                ("tools", list(tools)),
                ("input", list(messages)),
            ],
            Self::Gemini => {
                let parts = list(vec![Json::object(vec![("text", text(system))])]);
                vec![
                    ("systemInstruction", Json::object(vec![("parts", parts)])),
                    ("contents", list(messages)),
                    (
                        "tools",
                        list(vec![Json::object(vec![(
                            "functionDeclarations",
                            list(tools),
                        )])]),
                    ),
                ]
            }
            Self::Converse => vec![
                (
                    "system",
                    list(vec![Json::object(vec![("text", text(system))])]),
                ),
                ("messages", list(messages)),
                ("toolConfig", Json::object(vec![("tools", list(tools))])),
            ],
        };
        Json::object(body).to_string()
    }

    fn message(self, role: &str, text: &str) -> Json {
        let part = || Json::Array(vec![Json::object(vec![("text", Json::string(text))])]);
        match self {
            Self::Gemini => {
                let role = if role == "assistant" { "model" } else { role };
                Json::object(vec![("role", Json::string(role)), ("parts", part())])
            }
            Self::Converse => Json::object(vec![("role", Json::string(role)), ("content", part())]),
            _ => Json::object(vec![
                ("role", Json::string(role)),
                ("content", Json::string(text)),
            ]),
        }
    }

    /// A function as the API writes it; the members stand as in `function`.
    fn tool(self, function: &Json) -> Json {
        let renamed = |schema: &dyn Fn(&Json) -> (String, Json)| match function {
            Json::Object(members) => Json::Object(
                members
                    .iter()
                    .map(|(key, value)| match &**key {
                        "parameters" => schema(value),
                        _ => (key.clone(), value.clone()),
                    })
                    .collect(),
            ),
            other => other.clone(),
        };
        match self {
            Self::Chat | Self::Cohere => Json::object(vec![
                ("type", Json::string("function")),
                ("function", function.clone()),
            ]),
            Self::Messages => renamed(&|schema| ("input_schema".into(), schema.clone())),
            Self::Responses => match renamed(&|schema| ("parameters".into(), schema.clone())) {
                Json::Object(mut members) => {
                    members.insert(0, ("type".into(), Json::string("function")));
                    Json::Object(members)
                }
                other => other,
            },
            Self::Gemini => function.clone(),
            Self::Converse => {
                let spec = renamed(&|schema| {
                    let inner = Json::object(vec![("json", schema.clone())]);
                    ("inputSchema".into(), inner)
                });
                Json::object(vec![("toolSpec", spec)])
            }
        }
    }

    /// The tools of a body, each as it is written there, and the body without them.
    fn parted(self, body: &Json) -> (Vec<Json>, Json) {
        let path: &[&str] = match self {
            Self::Converse => &["toolConfig", "tools"],
            _ => &["tools"],
        };
        let mut rest = body.clone();
        let mut tools = Vec::new();
        let mut at = &mut rest;
        for key in path {
            let Json::Object(members) = at else {
                return (tools, rest);
            };
            let Some((_, value)) = members.iter_mut().find(|(name, _)| name == key) else {
                return (tools, rest);
            };
            at = value;
        }
        if let Json::Array(elements) = std::mem::replace(at, Json::Array(Vec::new())) {
            for element in elements {
                match element.get("functionDeclarations") {
                    Some(Json::Array(functions)) => tools.extend(functions.iter().cloned()),
                    _ => tools.push(element),
                }
            }
        }
        (tools, rest)
    }
}

/// Returns an error that says what differs, unless `sent` is `came` with its tools in another order, and keys and `required` of
/// these in another order, and nothing else. What stands in `enum`, `const`, `default` and examples is compared as it is
/// written, and so is the order of every other array.
pub(crate) fn differ_by_order_alone(api: Api, came: &str, sent: &str) -> Result<(), String> {
    let [(came_tools, came), (sent_tools, sent)] =
        [came, sent].map(|body| api.parted(&Json::of(body)));
    if came != sent {
        return Err(format!("beside the tools: {came}\n{sent}"));
    }
    let canonical = |tools: &[Json]| {
        let mut tools: Vec<String> = tools
            .iter()
            .map(|tool| canonical(tool, Keys::Words).to_string())
            .collect();
        tools.sort();
        tools
    };
    let (came, sent) = (canonical(&came_tools), canonical(&sent_tools));
    match came.iter().zip(&sent).find(|(came, sent)| came != sent) {
        Some((came, sent)) => Err(format!("{came}\n{sent}")),
        None if came.len() != sent.len() => {
            Err(format!("{} tools, not {}", sent.len(), came.len()))
        }
        None => Ok(()),
    }
}

/// What the keys of an object are.
#[derive(Clone, Copy)]
enum Keys {
    /// Words of a schema or a tool.
    Words,
    /// Names of arguments, whose values are schemas.
    Names,
    /// Names of arguments, whose values are sets of names.
    Sets,
}

/// A value with everything sorted whose order means nothing.
fn canonical(value: &Json, keys: Keys) -> Json {
    match value {
        Json::Object(members) => {
            let member = |(key, value): &(String, Json)| {
                let value = match (keys, &**key) {
                    (Keys::Sets, _) | (Keys::Words, "required") => sorted(value),
                    (Keys::Words, "enum" | "const" | "default" | "example" | "examples") => {
                        value.clone()
                    }
                    (Keys::Words, "properties" | "$defs" | "definitions") => {
                        canonical(value, Keys::Names)
                    }
                    (Keys::Words, "dependentRequired") => canonical(value, Keys::Sets),
                    _ => canonical(value, Keys::Words),
                };
                (key.clone(), value)
            };
            let mut members: Vec<(String, Json)> = members.iter().map(member).collect();
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            Json::Object(members)
        }
        Json::Array(elements) => {
            let elements = elements.iter();
            Json::Array(elements.map(|element| canonical(element, keys)).collect())
        }
        other => other.clone(),
    }
}

/// A set of names with its elements by their text. An array of anything else is none, and keeps its order.
fn sorted(value: &Json) -> Json {
    match value {
        Json::Array(elements)
            if elements
                .iter()
                .all(|element| matches!(element, Json::String(_))) =>
        {
            let mut elements = elements.clone();
            elements.sort_by_key(Json::to_string);
            Json::Array(elements)
        }
        other => canonical(other, Keys::Words),
    }
}

//! Marked bodies: without the markers, and with the split texts joined, they are the bodies that would have been sent;
//! no more than four are set, and none where a provider forbids one.

use foreword_ordering::config::Config;
use foreword_ordering::cuts::{CacheKind, CutOptions, Cutter};
use foreword_ordering::policy::Placement;
use foreword_ordering::random::Random;
use foreword_ordering::{EngineId, Tenant};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const MARKS: [&str; 2] = ["cache_control", "prompt_cache_breakpoint"];

/// What a body says, however its texts are divided into blocks, without markers.
fn said(body: &Value) -> Value {
    match body {
        Value::Object(fields) => {
            let mut said = Map::new();
            for (name, value) in fields {
                if MARKS.contains(&&**name)
                    || ["prompt_cache_options", "prompt_cache_key"].contains(&&**name)
                {
                    continue;
                }
                let is_content = ["content", "system", "input", "output"].contains(&&**name);
                let value = if is_content {
                    joined(value)
                } else {
                    said_of(value)
                };
                said.insert(name.clone(), value);
            }
            Value::Object(said)
        }
        other => said_of(other),
    }
}

fn said_of(value: &Value) -> Value {
    match value {
        Value::Object(_) => said(value),
        Value::Array(list) => {
            let list = list
                .iter()
                .filter(|value| value.get("cachePoint").is_none());
            Value::Array(list.map(said_of).collect())
        }
        other => other.clone(),
    }
}

/// A content whose neighbouring texts are one, and which is a list in any case.
fn joined(content: &Value) -> Value {
    let list = match content {
        Value::String(text) => vec![json!({"text": text})],
        Value::Array(list) => list.clone(),
        other => return said_of(other),
    };
    let mut joined: Vec<Value> = Vec::new();
    for block in list {
        if block.get("cachePoint").is_some() {
            continue;
        }
        let mut block = said_of(&block);
        // A user's only message may be written as a list of one.
        if block.get("role").is_some() {
            if block.as_object().unwrap().len() == 2 && block["role"] == "user" {
                joined.extend(block["content"].as_array().unwrap().iter().cloned());
            } else {
                joined.push(block);
            }
            continue;
        }
        let is_text = |block: &Value| {
            let fields = block.as_object().map_or(0, Map::len);
            block.get("text").is_some_and(Value::is_string)
                && fields <= 1 + usize::from(block.get("type").is_some())
        };
        if is_text(&block) {
            block.as_object_mut().unwrap().remove("type");
            if let Some(last) = joined.last_mut().filter(|last| is_text(last)) {
                let text = format!(
                    "{}{}",
                    last["text"].as_str().unwrap(),
                    block["text"].as_str().unwrap()
                );
                last["text"] = text.into();
                continue;
            }
        }
        joined.push(block);
    }
    Value::Array(joined)
}

/// Parses a body, whose names must be different in each object: of two fields with one name, a `Value` has only one.
fn parsed(body: &[u8]) -> Value {
    let value: Value = serde_json::from_slice(body).expect("JSON stays JSON");
    assert_eq!(value.to_string().len(), body.len(), "a name twice: {value}");
    value
}

/// Returns whether each text block in `value` has a `type`.
fn is_typed(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            let is_text = fields.get("text").is_some_and(Value::is_string);
            (!is_text || fields.contains_key("type")) && fields.values().all(is_typed)
        }
        Value::Array(list) => list.iter().all(is_typed),
        _ => true,
    }
}

/// Every marked block, and whether it stands inside a tool's result.
fn marked(value: &Value, inside: bool, found: &mut Vec<(Value, bool)>) {
    match value {
        Value::Object(fields) => {
            if MARKS
                .iter()
                .any(|mark| fields.get(*mark).is_some_and(Value::is_object))
            {
                found.push((value.clone(), inside));
            }
            let is_result = fields.get("type") == Some(&json!("tool_result"));
            for (_, value) in fields {
                marked(value, inside || is_result, found);
            }
        }
        Value::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                if value.get("cachePoint").is_some() {
                    found.push((list[at - 1].clone(), inside));
                }
                marked(value, inside, found);
            }
        }
        _ => {}
    }
}

fn marks_of(body: &Value) -> Vec<(Value, bool)> {
    let mut found = Vec::new();
    marked(body, false, &mut found);
    found
}

/// Requests of one client, with all that a body may hold, drawn from a seed.
struct Bodies {
    random: Random,
    kind: CacheKind,
    /// Whether it is a body of the Responses API.
    is_responses: bool,
}

impl Bodies {
    fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    fn text(&self, name: &str, words: usize) -> String {
        format!("{name} “says” \\ what\n{}", "it says. ".repeat(words))
    }

    fn documents(&mut self) -> String {
        let count = 1 + self.random.below(6);
        let first = self.random.below(4);
        let documents: Vec<String> = (first..first + count)
            .map(|at| format!("<document id=\"d{at}\">{}</document>", self.text("It", 90)))
            .collect();
        let separator = ["", "\n", "\n\n \t"][self.random.below(3) as usize];
        documents.join(separator)
    }

    /// A text block, whose type precedes the text or follows it; it always follows if `serde_json` sorts names.
    fn block(&mut self, text: &str) -> Value {
        let kind = match self.is_responses {
            true => "input_text",
            false => "text",
        };
        match (self.kind, self.one_in(2)) {
            (CacheKind::Bedrock, _) => json!({"text": text}),
            (_, true) => json!({"type": kind, "text": text}),
            (_, false) => json!({"text": text, "type": kind}),
        }
    }

    /// A block with the client's own marker, perhaps.
    fn perhaps_marked(&mut self, mut block: Value, left: &mut u32) -> Vec<Value> {
        if *left == 0 || !self.one_in(5) {
            return vec![block];
        }
        *left -= 1;
        let is_long = self.one_in(4) && *left > 1;
        match self.kind {
            CacheKind::Bedrock => vec![block, json!({"cachePoint": {"type": "default"}})],
            CacheKind::OpenAi => {
                block["prompt_cache_breakpoint"] = json!({"mode": "explicit"});
                vec![block]
            }
            _ => {
                block["cache_control"] = json!({"type": "ephemeral"});
                if is_long {
                    block["cache_control"]["ttl"] = "1h".into();
                }
                vec![block]
            }
        }
    }

    fn user(&mut self, number: u64, left: &mut u32) -> Value {
        let before = if self.one_in(2) { "Read this.\n" } else { "" };
        let documents = self.documents();
        let question = format!("\nWhat of {number}?");
        if self.kind != CacheKind::Bedrock && self.one_in(2) {
            let mut message =
                json!({"role": "user", "content": format!("{before}{documents}{question}")});
            if self.kind == CacheKind::Anthropic && *left > 0 && self.one_in(5) {
                *left -= 1;
                message["cache_control"] = json!({"type": "ephemeral"});
            }
            return message;
        }
        let mut content = Vec::new();
        if self.kind == CacheKind::Anthropic && self.one_in(2) {
            let cites = self.one_in(2);
            for title in ["A", "B"] {
                let block = json!({"type": "document", "title": title, "citations": {"enabled": cites},
                    "source": {"type": "text", "media_type": "text/plain", "data": self.text(title, 120)}});
                content.extend(self.perhaps_marked(block, left));
            }
            content.push(json!({"type": "tool_result", "tool_use_id": "t",
                "content": [{"type": "text", "text": self.documents()}]}));
        }
        let block = self.block(&format!("{before}{documents}"));
        content.extend(self.perhaps_marked(block, left));
        let block = self.block(&question);
        content.extend(self.perhaps_marked(block, left));
        json!({"role": "user", "content": content})
    }

    fn body(&mut self, number: u64) -> Value {
        let mut left = self.random.below(4) as u32;
        let system = self.text("You", 200);
        let mut messages = Vec::new();
        if self.one_in(3) {
            messages.push(self.user(0, &mut left));
            messages.push(match self.kind {
                CacheKind::Anthropic => json!({"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": ""},
                    {"type": "text", "text": "So.", "citations": [{"type": "char_location", "document_index": 0}]},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}),
                CacheKind::Bedrock => json!({"role": "assistant", "content": [{"text": "So."}]}),
                _ if self.is_responses => json!({"type": "message", "role": "assistant", "content": [
                    {"type": "output_text", "text": "So."}]}),
                _ => json!({"role": "assistant", "content": "So."}),
            });
        }
        messages.push(self.user(number, &mut left));
        match self.kind {
            CacheKind::Bedrock => json!({"system": [{"text": system}], "messages": messages,
                "toolConfig": {"tools": [{"toolSpec": {"name": "f"}}]}}),
            CacheKind::OpenAi if self.is_responses => {
                if messages.len() == 1 && self.one_in(2) && messages[0]["content"].is_string() {
                    json!({"model": "m", "instructions": system, "input": messages[0]["content"]})
                } else {
                    json!({"model": "m", "instructions": system, "input": messages})
                }
            }
            CacheKind::OpenAi => {
                messages.insert(0, json!({"role": "developer", "content": system}));
                json!({"model": "m", "messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}]})
            }
            _ => {
                let mut body = json!({"model": "m", "system": system, "messages": messages,
                    "tools": [{"name": "f", "input_schema": {"type": "object"}}]});
                if self.one_in(8) {
                    body["cache_control"] = json!({"type": "ephemeral"});
                }
                body
            }
        }
    }
}

/// Sends a client's requests, and returns the number of markers that were set.
fn sent(seed: u64, kind: CacheKind, is_responses: bool) -> u32 {
    let mut bodies = Bodies {
        random: Random::new(seed),
        kind,
        is_responses,
    };
    let config = Config::default().with_placement(Placement::FREE);
    let mut cutter = Cutter::new();
    let mut markers = 0;
    for number in 0..40 {
        let came = bodies.body(number);
        let text = came.to_string();
        let options = CutOptions {
            rules: kind.rules("claude-opus-5-5"),
            tenant: Tenant::default(),
            model: "",
            engine: EngineId(0),
            now_ms: number * 1_000,
        };
        let cut = cutter.cut(&options, &config, text.as_bytes()).unwrap();
        markers += cut.markers;
        let Some(sent) = cut.body else {
            assert_eq!(cut.markers, 0);
            continue;
        };
        let sent = parsed(&sent);
        assert_eq!(said(&sent), said(&came), "seed {seed}: {sent}");
        assert!(kind == CacheKind::Bedrock || is_typed(&sent), "{sent}");
        let [before, after] = [&came, &sent].map(marks_of);
        assert_eq!(after.len() - before.len(), cut.markers as usize, "{sent}");
        let automatic = usize::from(came.get("cache_control").is_some());
        let is_implicit =
            kind == CacheKind::OpenAi && sent["prompt_cache_options"]["mode"] != "explicit";
        let all = after.len() + usize::from(is_implicit);
        assert!(all <= 4, "{all} with those that are automatic: {sent}");
        assert_eq!(automatic, usize::from(sent.get("cache_control").is_some()));
        for (block, is_inside) in &after {
            assert!(!is_inside, "inside a tool's result: {block}");
            let name = block["type"].as_str().unwrap_or_default();
            assert!(
                !["thinking", "tool_use", "output_text", "function"].contains(&name),
                "{block}"
            );
            let is_blank = block["text"]
                .as_str()
                .is_some_and(|text| text.trim().is_empty());
            assert!(!is_blank, "{block}");
        }
        // An hour's markers precede those of five minutes.
        let is_long = |(block, _): &(Value, bool)| block["cache_control"]["ttl"] == "1h";
        let is_body = |(block, _): &(Value, bool)| block.get("messages").is_some();
        let mut order: Vec<bool> = after
            .iter()
            .filter(|mark| !is_body(mark))
            .map(is_long)
            .collect();
        let came_wrong = {
            let order: Vec<bool> = before
                .iter()
                .filter(|mark| !is_body(mark))
                .map(is_long)
                .collect();
            !order.is_sorted_by(|a, b| a >= b)
        };
        // The tools stand behind the messages in these bodies, and before them in the prompt.
        if !came_wrong && kind == CacheKind::Anthropic {
            let tools = marks_of(&sent["tools"]).len();
            order.rotate_right(tools);
            assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}: {sent}");
        }
    }
    markers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn without_the_markers_a_body_is_what_would_have_been_sent(seed: u64, kind in 0..4_usize) {
        let (kind, is_responses) = [
            (CacheKind::Anthropic, false),
            (CacheKind::OpenAi, false),
            (CacheKind::OpenAi, true),
            (CacheKind::Bedrock, false),
        ][kind];
        sent(seed, kind, is_responses);
    }
}

#[test]
fn every_kind_is_marked_where_prompts_go_on_alike() {
    for (kind, is_responses) in [
        (CacheKind::Anthropic, false),
        (CacheKind::OpenAi, false),
        (CacheKind::OpenAi, true),
        (CacheKind::Bedrock, false),
    ] {
        let markers: u32 = (0..5).map(|seed| sent(seed, kind, is_responses)).sum();
        assert!(markers > 20, "{markers} for {} {is_responses}", kind.name());
    }
}

/// Sends a body many times, a second apart, with another number for each `{n}`, and returns what is sent at last.
fn at_last(kind: CacheKind, body: &Value) -> Value {
    let mut cutter = Cutter::new();
    let mut last = body.to_string().into_bytes();
    for second in 0..30_u64 {
        let mut body = body.clone();
        body["user_question"] = second.into();
        let options = CutOptions {
            rules: kind.rules("claude-opus-5-5"),
            tenant: Tenant::default(),
            model: "",
            engine: EngineId(0),
            now_ms: second * 1_000,
        };
        let text = body.to_string().replace("{n}", &second.to_string());
        let cut = cutter.cut(
            &options,
            &Config::default().with_placement(Placement::FREE),
            text.as_bytes(),
        );
        last = cut.unwrap().body.unwrap_or(text.into_bytes());
    }
    parsed(&last)
}

#[test]
fn a_marker_is_set_before_what_cannot_have_one() {
    let long = "So. ".repeat(5_000);
    let chat = |field: &str| {
        let mut body = json!({"model": "m", "messages": [
            {"role": "developer", "content": long}, {"role": "user", "content": "{n}"}]});
        body[field] = Value::Null;
        body
    };
    let tools = |first: Value, last: Value| {
        json!({"model": "m", "tools": [first, {"name": "f", "description": long}, last], "system": "{n}",
            "messages": [{"role": "user", "content": "Why?"}]})
    };
    for (kind, body, place) in [
        // Deferred tools are not part of the prefix: the first one changes.
        (
            CacheKind::Anthropic,
            tools(
                json!({"name": "e", "description": "{n}", "defer_loading": true}),
                json!({"name": "g", "type": "custom", "custom": {"defer_loading": true}}),
            ),
            "/tools/1/cache_control/type",
        ),
        (
            CacheKind::Anthropic,
            tools(
                json!({"name": "e"}),
                json!({"name": "g", "description": "So. So. So.", "cache_control": null}),
            ),
            "/tools/1/cache_control/type",
        ),
        (
            CacheKind::Anthropic,
            json!({"model": "m", "system": long, "messages": [{"role": "user", "content": [
                {"type": "text", "text": long, "cache_control": null}, {"type": "text", "text": "{n}"}]}]}),
            "/system/0/cache_control/type",
        ),
        // The item's content is its id, since it has no results.
        (
            CacheKind::OpenAi,
            json!({"model": "m", "input": [{"role": "user", "content": long},
                {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "status": "completed"},
                {"role": "user", "content": "{n}"}]}),
            "/input/0/content/0/prompt_cache_breakpoint/mode",
        ),
        (
            CacheKind::OpenAi,
            chat("prompt_cache_options"),
            "/messages/0/content/0/prompt_cache_breakpoint/mode",
        ),
        (
            CacheKind::OpenAi,
            chat("prompt_cache_key"),
            "/messages/0/content/0/prompt_cache_breakpoint/mode",
        ),
    ] {
        let sent = at_last(kind, &body);
        let is_marked = sent.pointer(place).is_some();
        assert!(is_marked && marks_of(&sent).len() == 1, "{place}: {sent}");
    }
}

#[test]
fn a_clock_that_is_set_back_prolongs_no_lifetime() {
    let rules = CacheKind::Anthropic.rules("claude-opus-5-5");
    let mut cutter = Cutter::new();
    let mut read_tokens = |words: &str, now_ms: u64| {
        let body =
            json!({"model": "m", "messages": [{"role": "user", "content": words.repeat(5_000)}]});
        let options = CutOptions {
            rules,
            tenant: Tenant::default(),
            model: "",
            engine: EngineId(0),
            now_ms,
        };
        let cut = cutter.cut(&options, &Config::default(), body.to_string().as_bytes());
        cut.unwrap().read_tokens
    };
    let mut read_at = |now_ms: u64| ["So. ", "No. "].map(|words| read_tokens(words, now_ms) > 0);
    let ahead_ms = 86_400_000;
    let reads = (0..30).map(|second| read_at(ahead_ms + second * 1_000));
    assert_eq!(reads.last(), Some([true; 2]));
    assert_eq!(read_at(0), [true; 2], "the clock was set back just now");
    assert_eq!(read_at(2 * rules.ttl_ms), [false; 2]);
}

#[test]
fn a_short_prompt_and_one_for_a_cache_without_markers_stay_as_they_came() {
    let body = |words: usize| {
        json!({"model": "m", "messages": [
            {"role": "user", "content": format!("<document id=\"a\">{}</document>Why?", "So. ".repeat(words))}]})
    };
    for (kind, words) in [
        (CacheKind::Anthropic, 100),
        (CacheKind::OpenAi, 100),
        (CacheKind::Prefix, 5_000),
        (CacheKind::Units, 5_000),
    ] {
        let mut expected = body(words);
        expected["user_question"] = 29.into();
        assert_eq!(at_last(kind, &body(words)), expected);
    }
    let marked = at_last(CacheKind::Anthropic, &body(5_000));
    assert_eq!(marks_of(&marked).len(), 1, "{marked}");
}

#[test]
fn a_client_that_sets_four_markers_gets_none_of_ours() {
    let mark = json!({"type": "ephemeral"});
    let texts: Vec<Value> = (0..4)
        .map(|at| json!({"type": "text", "text": format!("{at} {}", "So. ".repeat(900)), "cache_control": mark}))
        .collect();
    let body = json!({"model": "m", "messages": [{"role": "user", "content": texts}]});
    assert_eq!(marks_of(&at_last(CacheKind::Anthropic, &body)).len(), 4);
}

#[test]
fn openai_is_told_a_key_that_prompts_with_one_beginning_share_unless_the_client_says_one() {
    let body = |question: &str| {
        json!({"model": "m", "messages": [
            {"role": "system", "content": "Be brief. ".repeat(900)},
            {"role": "user", "content": question}]})
    };
    let kind = CacheKind::OpenAi;
    let [first, second] = ["Why?", "How?"].map(|question| at_last(kind, &body(question)));
    assert_eq!(first["prompt_cache_options"], json!({"mode": "explicit"}));
    assert_eq!(first["prompt_cache_key"], second["prompt_cache_key"]);
    let key = first["prompt_cache_key"].as_str().unwrap();
    assert!(key.starts_with("foreword-") && key.len() == 25, "{key}");
    let mut own = body("Why?");
    own["prompt_cache_key"] = "mine".into();
    assert_eq!(at_last(kind, &own)["prompt_cache_key"], "mine");
    own["prompt_cache_options"] = json!({"mode": "implicit"});
    assert_eq!(
        at_last(kind, &own)["prompt_cache_options"],
        json!({"mode": "implicit"})
    );
}

/// Whole bodies, in and out, byte for byte: `golden-cuts/KIND….in.json` is what would be sent without markers, and
/// `.out.json` what is sent once it has come often enough, with another number for each `{n}`, for a cache that keeps 64
/// tokens or more.
/// `UPDATE_GOLDEN=1` writes the outputs anew.
#[test]
fn bodies_are_marked_as_the_golden_files_say() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-cuts");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(|file| {
            let name = file.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".in.json").map(str::to_owned)
        })
        .collect();
    names.sort();
    assert!(names.len() >= 5, "{} holds the cases", folder.display());
    for name in names {
        let kind = CacheKind::by_name(name.split('-').next().unwrap()).unwrap();
        let template = std::fs::read_to_string(folder.join(format!("{name}.in.json"))).unwrap();
        let mut cutter = Cutter::new();
        let mut sent = Vec::new();
        for second in 0..40 {
            let came = template.replace("{n}", &second.to_string());
            let mut rules = kind.rules("");
            rules.minimum_tokens = 64;
            let options = CutOptions {
                rules,
                tenant: Tenant::default(),
                model: "m",
                engine: EngineId(0),
                now_ms: second * 1_000,
            };
            let cut = cutter.cut(
                &options,
                &Config::default().with_placement(Placement::FREE),
                came.as_bytes(),
            );
            sent = cut.unwrap().body.unwrap_or_else(|| came.into_bytes());
        }
        let path = folder.join(format!("{name}.out.json"));
        if update {
            std::fs::write(&path, &sent).unwrap();
        }
        let expected = std::fs::read(&path).unwrap_or_default();
        let sent = String::from_utf8(sent).unwrap();
        assert_eq!(
            sent.as_bytes(),
            expected,
            "{} should be:\n{sent}",
            path.display()
        );
    }
}

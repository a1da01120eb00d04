//! What the chat template writes: a date or a clock, and tools in an order of their own.
//!
//! `/tokenize` renders the same chat before and after the other probes, and `/detokenize` returns its text. The chat's own
//! words have no digit and no colon.

use super::api::{CHAT, Usage};
use super::client::refusal;
use super::finding::{Finding, Status};
use super::prompt::Words;
use super::survey::Engine;
use serde_json::{Value, json};
use std::time::SystemTime;

/// The rendered prompt of a chat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) tokens: Vec<u64>,
    text: Option<String>,
}

/// One chat rendered twice, or what came instead.
pub(super) type Renderings = Result<[Rendered; 2], String>;

/// One chat with tools: rendered twice, and asked twice.
pub(super) struct Tools {
    rendered: Renderings,
    asked: Option<[Usage; 2]>,
}

/// Renders a body of the chat API, or of completions.
///
/// # Errors
/// Returns what came instead of tokens.
pub(super) fn render(engine: &Engine<'_>, body: &Value) -> Result<Rendered, String> {
    let post = |path: &str, body: &Value| {
        let answer = engine.client.post(&format!("{}{path}", engine.root), body);
        match &answer {
            Ok(reply) if reply.status == 200 => Ok(reply.json()),
            _ => Err(format!("POST {path}: {}", refusal(&answer))),
        }
    };
    let mut asked = json!({"model": engine.model});
    for name in ["messages", "prompt", "tools"] {
        if let Some(value) = body.get(name) {
            asked[name] = value.clone();
        }
    }
    let tokens = post("/tokenize", &asked)?;
    let tokens = tokens["tokens"].as_array().cloned().unwrap_or_default();
    let tokens: Vec<u64> = tokens.iter().filter_map(Value::as_u64).collect();
    if tokens.is_empty() {
        return Err("POST /tokenize: no tokens".to_owned());
    }
    let text = post(
        "/detokenize",
        &json!({"model": engine.model, "tokens": tokens}),
    );
    let text = text
        .ok()
        .and_then(|text| Some(text["prompt"].as_str()?.to_owned()));
    Ok(Rendered { tokens, text })
}

/// Asks for two renderings of a chat with tools, and sends it twice where the chat API reports reuse.
pub(super) fn ask_tools(engine: &Engine<'_>, words: &mut Words, is_reported: bool) -> Tools {
    let tools: Vec<Value> = (TOOLS.iter())
        .map(|name| {
            let function = json!({"name": name, "description": words.text(40),
                "parameters": {"type": "object", "properties": {"subject": {"type": "string"}}}});
            json!({"type": "function", "function": function})
        })
        .collect();
    let mut body = CHAT.body(engine.model, &words.text(16));
    body["tools"] = tools.into();
    let rendered = || Ok([render(engine, &body)?, render(engine, &body)?]);
    let ask = || CHAT.ask(engine.client, engine.root, &body).ok();
    let asked = is_reported.then(|| Some([ask()?, ask()?])).flatten();
    Tools {
        rendered: rendered(),
        asked,
    }
}

/// Whether the template writes something that changes.
pub(super) fn template_date(renderings: &Renderings, now: SystemTime) -> Finding {
    const CHECK: &str = "template-date";
    let [first, second] = match renderings {
        Ok(renderings) => renderings,
        Err(came) => {
            let remedy =
                "look for strftime_now, date_string or a clock in the model's chat_template.jinja";
            return Finding::new(CHECK, Status::Skipped, came.clone(), remedy);
        }
    };
    let asked = "one chat rendered twice by /tokenize";
    if first.tokens != second.tokens {
        let detail = format!("{asked}: two different prompts");
        return Finding::new(CHECK, Status::Fail, detail, PIN);
    }
    let Some(text) = &first.text else {
        let detail = format!(
            "{asked}: the same tokens; POST /detokenize gave no text to look for a date in"
        );
        return Finding::new(CHECK, Status::Skipped, detail, "");
    };
    match today(text, now) {
        Some(date) => {
            let detail =
                format!("{asked}: the template writes {date:?}, which changes at midnight");
            Finding::new(CHECK, Status::Warn, detail, PIN)
        }
        None => Finding::ok(CHECK, format!("{asked}: the same, without today's date")),
    }
}

/// Whether equal tools make equal prompts.
pub(super) fn tool_order(tools: &Tools, least: Option<u64>) -> Finding {
    const CHECK: &str = "tool-order";
    let shuffled =
        "render tools in the order of the request, from a list and not from a map or a set";
    if let Ok([first, second]) = &tools.rendered
        && first.tokens != second.tokens
    {
        let detail = format!(
            "one chat with {} tools rendered twice: two different prompts",
            TOOLS.len()
        );
        return Finding::new(CHECK, Status::Fail, detail, shuffled);
    }
    let least = least.unwrap_or(u64::MAX);
    let told = tools
        .asked
        .as_ref()
        .filter(|[_, warm]| warm.prompt / 2 > least);
    if let Some([_, warm]) = told {
        let detail = format!(
            "one chat with {} tools twice: {} of {} tokens cached",
            TOOLS.len(),
            warm.shown(),
            warm.prompt
        );
        if !warm.is_cached(warm.prompt) {
            return Finding::new(CHECK, Status::Fail, detail, shuffled);
        }
        return Finding::ok(CHECK, format!("{detail}{}", tools.order()));
    }
    match &tools.rendered {
        Ok(_) => {
            let detail = format!(
                "one chat with {} tools rendered twice: the same{}",
                TOOLS.len(),
                tools.order()
            );
            Finding::ok(CHECK, detail)
        }
        Err(came) => Finding::new(CHECK, Status::Skipped, came.clone(), ""),
    }
}

impl Tools {
    /// Returns in which order the template writes the tools, as an addition to a finding.
    fn order(&self) -> &'static str {
        let Ok(
            [
                Rendered {
                    text: Some(text), ..
                },
                _,
            ],
        ) = &self.rendered
        else {
            return "";
        };
        let places: Option<Vec<usize>> = TOOLS.iter().map(|name| text.find(name)).collect();
        match places {
            Some(places) if places.is_sorted() => ", in the order of the request",
            Some(_) => ", in another order than the request's",
            None => ", and the template does not write them",
        }
    }
}

/// Returns the words of `text` that say today's date, or yesterday's or tomorrow's: day, month and year, in any order and form.
fn today(text: &str, now: SystemTime) -> Option<String> {
    let is_break = |character: char| !character.is_ascii_alphanumeric();
    let words: Vec<&str> = text
        .split(is_break)
        .filter(|word| !word.is_empty())
        .collect();
    let days = [-DAY, 0, DAY].map(|seconds| {
        let time = match u64::try_from(seconds) {
            Ok(seconds) => now + std::time::Duration::from_secs(seconds),
            Err(_) => now - std::time::Duration::from_secs(seconds.unsigned_abs()),
        };
        // "Wed, 25 Nov 2026 14:28:51 GMT"
        httpdate::fmt_http_date(time)
    });
    for date in &days {
        let mut parts = date.split_whitespace().skip(1);
        let (Some(day), Some(month), Some(year)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let number = MONTHS
            .iter()
            .position(|name| name.eq_ignore_ascii_case(month));
        let number = number.unwrap_or_default() as u32 + 1;
        let compact = format!("{year}{number:02}{day}");
        if words.contains(&compact.as_str()) {
            return Some(compact);
        }
        let says = |word: &str, wanted: u32| word.len() <= 2 && word.parse() == Ok(wanted);
        let is_year = |word: &&str| **word == *year;
        let is_day = |word: &&str| {
            says(
                word.trim_end_matches(char::is_alphabetic),
                day.parse().unwrap_or(0),
            )
        };
        let is_month = |word: &&str| {
            says(word, number)
                || word
                    .get(..3)
                    .is_some_and(|start| start.eq_ignore_ascii_case(month))
        };
        let found = words.windows(3).find(|window| {
            let [a, b, c] = window else { return false };
            let orders = [
                [a, b, c],
                [a, c, b],
                [b, a, c],
                [b, c, a],
                [c, a, b],
                [c, b, a],
            ];
            (orders.iter())
                .any(|[day, month, year]| is_day(day) && is_month(month) && is_year(year))
        });
        if let Some(window) = found {
            return Some(window.join(" "));
        }
    }
    None
}

/// Names in an order that no sorting yields.
const TOOLS: [&str; 5] = [
    "mend_roof",
    "ask_tide",
    "weigh_coal",
    "call_ferry",
    "read_lamp",
];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const DAY: i64 = 86_400;
const PIN: &str = "\"chat_template_kwargs\": {\"date_string\": \"26 Jul 2024\"} in each request, or vLLM's --chat-template with a copy \
                   that writes no date";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_date_is_todays_in_any_form_and_an_old_one_is_none() {
        // 25 November 2026, 14:28:51.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_616_931);
        assert_eq!(
            httpdate::fmt_http_date(now),
            "Wed, 25 Nov 2026 14:28:51 GMT"
        );
        for text in [
            "Today Date: 25 Nov 2026",
            "Current date: 2026-11-25\n",
            "It is November 25th, 2026.",
            "today is 11/25/2026.",
            "<date>20261125</date>",
            "currentDate: 26 November 2026",
        ] {
            assert!(today(text, now).is_some(), "{text}");
        }
        for text in [
            "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024",
            "25 lamps of 2026",
            "",
            "version 2026.1.25",
        ] {
            assert_eq!(today(text, now), None, "{text}");
        }
    }
}

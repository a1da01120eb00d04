//! The checks of the chat template: whether it writes a date or a time, and whether it renders equal tools alike.
//!
//! `/tokenize` renders the same chat before and after other requests, and `/detokenize` returns its text. The chat
//! itself has no digits and no colons.

use super::api::{CHAT, Usage};
use super::client::served;
use super::finding::Finding;
use super::prompt::Words;
use super::survey::Engine;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// The prompt that the engine's chat template makes from a request body.
#[derive(Clone, Debug)]
pub(super) struct Rendered {
    pub(super) tokens: Vec<u64>,
    /// The prompt's text; `None` if `/detokenize` returns none.
    text: Option<String>,
}

/// The two prompts that the engine's chat template made from one request body, rendered twice; or the error of a
/// request.
pub(super) type Renderings = Result<[Rendered; 2], String>;

/// The responses about one chat with tools: the prompt rendered twice, and the token counts of the chat sent twice. The
/// counts are missing if the chat API does not report cached tokens.
pub(super) struct Tools {
    rendered: Renderings,
    asked: Option<[Usage; 2]>,
}

/// Returns the prompt that the engine makes from a request body, by `/tokenize` and `/detokenize`.
///
/// # Errors
/// Returns a message if `/tokenize` returns no tokens.
pub(super) fn render(engine: &Engine<'_>, body: &Value) -> Result<Rendered, String> {
    let post = |path: &str, body: &Value| {
        let answer = engine.client.post(&format!("{}{path}", engine.root), body);
        Ok::<_, String>(served(&format!("POST {path}"), answer)?.json())
    };
    let mut asked = json!({"model": engine.model});
    for name in ["messages", "prompt", "tools"] {
        if let Some(value) = body.get(name) {
            asked[name] = value.clone();
        }
    }
    let tokens = post("/tokenize", &asked)?;
    let tokens = tokens["tokens"].as_array().into_iter().flatten();
    let tokens: Vec<u64> = tokens.filter_map(Value::as_u64).collect();
    if tokens.is_empty() {
        return Err("POST /tokenize: no tokens".to_owned());
    }
    let asked = json!({"model": engine.model, "tokens": tokens});
    let text = post("/detokenize", &asked).ok();
    let text = text.and_then(|text| Some(text["prompt"].as_str()?.to_owned()));
    Ok(Rendered { tokens, text })
}

/// Renders a chat with tools twice. If `is_reported` (the chat API reports cached tokens), also sends it twice.
pub(super) fn ask_tools(engine: &Engine<'_>, words: &mut Words, is_reported: bool) -> Tools {
    let mut body = CHAT.body(engine.model, &words.text(16));
    body["tools"] = Value::from_iter(TOOLS.map(|name| {
        json!({"type": "function", "function": {"name": name, "description": words.text(40),
            "parameters": {"type": "object", "properties": {"subject": {"type": "string"}}}}})
    }));
    let rendered = || Ok([render(engine, &body)?, render(engine, &body)?]);
    let ask = || CHAT.ask(engine.client, engine.root, &body).ok();
    Tools {
        rendered: rendered(),
        asked: is_reported.then(|| Some([ask()?, ask()?])).flatten(),
    }
}

/// Checks that the chat template renders a chat the same twice, and without the date of `now` (or of the day before or
/// after).
pub(super) fn template_date(renderings: &Renderings, now: SystemTime) -> Finding {
    let [first, second] = match renderings {
        Ok(renderings) => renderings,
        Err(came) => return Finding::skipped(came, CLOCK),
    };
    let asked = "one chat rendered twice by /tokenize";
    if first.tokens != second.tokens {
        return Finding::fail(format!("{asked}: two different prompts"), PIN);
    }
    let Some(text) = &first.text else {
        let detail = format!("{asked}: the same; /detokenize gave no text to look for a date in");
        return Finding::unknown(detail);
    };
    match today(text, now) {
        Some(date) => {
            let detail =
                format!("{asked}: the template writes {date:?}, which changes at midnight");
            Finding::warn(detail, PIN)
        }
        None => Finding::ok(format!("{asked}: the same, without today's date")),
    }
}

/// Returns the finding on whether the engine renders one chat with tools into the same prompt twice. It compares (1)
/// the two prompts that `/tokenize` returned; (2) if the prompt has more than 2 × `least` tokens, whether the second
/// response found it cached. `least` is the number of tokens of the shortest prompt that the engine reused; `None` if
/// it reused none.
pub(super) fn tool_order(tools: &Tools, least: Option<u64>) -> Finding {
    let remedy =
        "render tools in the order of the request, from a list and not from a map or a set";
    let asked = "one chat with five tools twice";
    if let Ok([first, second]) = &tools.rendered
        && first.tokens != second.tokens
    {
        let detail = format!("{asked}: /tokenize gives two different prompts");
        return Finding::fail(detail, remedy);
    }
    let is_long = |[_, warm]: &&[Usage; 2]| least.is_some_and(|least| warm.prompt > 2 * least);
    match (tools.asked.as_ref().filter(is_long), &tools.rendered) {
        (Some([_, warm]), _) => {
            let detail = format!("{asked}: {} tokens cached", warm.of_prompt());
            match warm.is_warm() {
                true => Finding::ok(format!("{detail}{}", tools.order())),
                false => Finding::fail(detail, remedy),
            }
        }
        (None, Ok(_)) => {
            let order = tools.order();
            Finding::ok(format!("{asked}: /tokenize gives the same{order}"))
        }
        (None, Err(came)) => Finding::unknown(came),
    }
}

impl Tools {
    /// Returns the end of a sentence about the order in which the chat template writes the tools; empty if the prompt's
    /// text is unknown.
    fn order(&self) -> &'static str {
        let rendered = self.rendered.as_ref().ok();
        let Some(text) = rendered.and_then(|[first, _]| first.text.as_ref()) else {
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

/// Returns the date found in `text`, in any order and form of day, month and year, if it is that of `now` or of the day
/// before or after; `None` if there is none.
fn today(text: &str, now: SystemTime) -> Option<String> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let day = Duration::from_secs(86_400);
    [now - day, now, now + day].into_iter().find_map(|time| {
        // "Wed, 25 Nov 2026 14:28:51 GMT"
        let date = httpdate::fmt_http_date(time);
        let mut date: Vec<String> = date.split(' ').skip(1).take(3).map(plain).collect();
        let compact = format!("{}{:0>2}{:0>2}", date[2], date[1], date[0]);
        date.sort_unstable();
        let is_date = |window: &&[&str]| {
            let mut parts: Vec<String> = window.iter().copied().map(plain).collect();
            parts.sort_unstable();
            parts == date
        };
        let found = words.windows(3).find(is_date);
        let found = found.map(|window| window.join(" "));
        found.or_else(|| words.contains(&&*compact).then_some(compact))
    })
}

/// Returns a part of a date as a number without leading zeros: 11 for `November`, 25 for `25th`.
fn plain(word: &str) -> String {
    let start = word.get(..3).unwrap_or_default();
    match (MONTHS.iter()).position(|name| start.eq_ignore_ascii_case(name)) {
        Some(month) => (month + 1).to_string(),
        None => {
            let digits = word.trim_end_matches(|character: char| character.is_ascii_alphabetic());
            digits.trim_start_matches('0').to_owned()
        }
    }
}

/// Names of the test chat's tools, in an order that sorting does not produce.
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
const CLOCK: &str =
    "look for strftime_now, date_string or a clock in the model's chat_template.jinja";
const PIN: &str = "\"chat_template_kwargs\": {\"date_string\": \"26 Jul 2024\"} in each request, or vLLM's --chat-template with a copy \
                   that writes no date";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_todays_in_any_form_and_an_old_one_is_none() {
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

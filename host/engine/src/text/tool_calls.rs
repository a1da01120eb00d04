//! Tool calls within an answer, as models of the Hermes kind write them (Qwen, Hermes and many others):
//! `<tool_call>{"name": …, "arguments": …}</tool_call>`.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Watches the text of an answer, as it arrives, for tool calls.
///
/// Text outside calls is returned byte for byte, except white space that only separates calls or is between them and an
/// end of the answer. Text that resembles a call but is not one (no JSON, no name) is returned unchanged.
pub struct ToolCalls {
    held: String,
    place: ParserState,
    /// True if a tool call was found in the answer: text after it that is only white space is dropped.
    found: bool,
    /// True if text other than white space was returned since the last tool call or, before the first, since the
    /// beginning.
    shown: bool,
}

/// A part of an answer: text to show, or a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text to show to the client.
    Text(String),
    /// A complete tool call.
    Call(ToolCall),
}

/// A tool call that the model wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// The arguments as the model wrote them, normally JSON; `{}` if it wrote none.
    pub arguments: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    Outside,
    /// Within a tool call. The text kept so far (`held`) begins after [`OPEN`]; closing tags before its byte offset
    /// `seen` are part of a string.
    Inside {
        seen: usize,
    },
    /// The whole answer is expected to be one tool call without tags.
    Bare,
}

/// The tag that opens a tool call. If the model is forced to call a tool, the tag is part of the prompt.
pub const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

impl ToolCalls {
    /// Returns a watcher for an answer of text that may contain tool calls between tags.
    pub fn within_text() -> Self {
        Self::new(ParserState::Outside)
    }

    /// Returns a watcher for an answer that is one tool call and nothing else, without tags.
    pub fn bare() -> Self {
        Self::new(ParserState::Bare)
    }

    fn new(place: ParserState) -> Self {
        Self {
            held: String::new(),
            place,
            found: false,
            shown: false,
        }
    }

    /// Takes the next piece of text. Returns the parts of the answer that are now complete, in order.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        loop {
            match self.place {
                ParserState::Bare => return parts,
                ParserState::Outside => {
                    let Some(start) = self.held.find(OPEN) else {
                        let settled = self.held.len() - overlap(&self.held, OPEN);
                        self.show(settled, &mut parts);
                        return parts;
                    };
                    self.show(start, &mut parts);
                    // White space held until here only preceded the call, so it is dropped.
                    let begin = self.held.find(OPEN).unwrap_or(0) + OPEN.len();
                    self.held.drain(..begin);
                    self.place = ParserState::Inside { seen: 0 };
                }
                ParserState::Inside { seen } => {
                    let Some(end) = self.held[seen..].find(CLOSE).map(|end| seen + end) else {
                        // The held text may end with the beginning of the closing tag.
                        let seen = self.held.len().saturating_sub(CLOSE.len() - 1).max(seen);
                        let seen = (0..=seen).rev().find(|at| self.held.is_char_boundary(*at));
                        self.place = ParserState::Inside {
                            seen: seen.unwrap_or(0),
                        };
                        return parts;
                    };
                    match parse(&self.held[..end]) {
                        Ok(call) => {
                            self.held.drain(..end + CLOSE.len());
                            self.place = ParserState::Outside;
                            self.found = true;
                            self.shown = false;
                            parts.push(Part::Call(call));
                        }
                        // The tag is within a string, so the call continues.
                        Err(Flaw::Unfinished) => {
                            self.place = ParserState::Inside {
                                seen: end + CLOSE.len(),
                            };
                        }
                        Err(Flaw::NoCall) => {
                            let rest = self.held.split_off(end + CLOSE.len());
                            let text = OPEN.to_owned() + &std::mem::replace(&mut self.held, rest);
                            self.place = ParserState::Outside;
                            self.shown = true;
                            parts.push(Part::Text(text));
                        }
                    }
                }
            }
        }
    }

    /// Ends the answer and returns the parts that had to wait for its end: at most one.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let place = std::mem::replace(&mut self.place, ParserState::Outside);
        let part = match place {
            ParserState::Outside => Part::Text(held),
            ParserState::Inside { .. } => match parse(&held) {
                Ok(call) => Part::Call(call),
                Err(_) => Part::Text(OPEN.to_owned() + &held),
            },
            ParserState::Bare => match parse(&held) {
                Ok(call) => Part::Call(call),
                Err(_) => Part::Text(held),
            },
        };
        match part {
            Part::Text(text) if text.is_empty() => Vec::new(),
            Part::Text(text) if self.found && !self.shown && text.trim().is_empty() => Vec::new(),
            part => vec![part],
        }
    }

    /// Moves the text kept so far, up to byte offset `end`, to `parts`. Keeps it if it is white space that may only
    /// separate tool calls.
    fn show(&mut self, end: usize, parts: &mut Vec<Part>) {
        if end == 0 || (!self.shown && self.held[..end].trim().is_empty()) {
            return;
        }
        self.shown = true;
        let rest = self.held.split_off(end);
        parts.push(Part::Text(std::mem::replace(&mut self.held, rest)));
    }
}

enum Flaw {
    /// The text is not a call yet, but its continuation may be.
    Unfinished,
    NoCall,
}

fn parse(text: &str) -> Result<ToolCall, Flaw> {
    #[derive(Deserialize)]
    struct Call<'a> {
        name: String,
        #[serde(borrow)]
        arguments: Option<&'a RawValue>,
    }
    let call: Call<'_> = serde_json::from_str(text).map_err(|error| {
        if error.is_eof() {
            Flaw::Unfinished
        } else {
            Flaw::NoCall
        }
    })?;
    let arguments = call.arguments.map_or("{}", RawValue::get);
    // Some models write the arguments as OpenAI does, as a string of JSON.
    let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.to_owned());
    Ok(ToolCall {
        name: call.name,
        arguments,
    })
}

/// Returns the length in bytes of the longest suffix of `text` that is a proper prefix of `tag`.
fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len().min(text.len() + 1))
        .rev()
        .find(|length| text.ends_with(&tag[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> Part {
        Part::Call(ToolCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        })
    }

    /// Returns the parts of a whole answer, with adjacent texts joined.
    fn parts(mut calls: ToolCalls, pieces: &[&str]) -> Vec<Part> {
        let found = pieces
            .iter()
            .flat_map(|piece| calls.push(piece))
            .collect::<Vec<_>>();
        let mut joined: Vec<Part> = Vec::new();
        for part in found.into_iter().chain(calls.finish()) {
            match (joined.last_mut(), part) {
                (Some(Part::Text(before)), Part::Text(more)) => before.push_str(&more),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    const ANSWERS: &[(&str, &[(&str, &str)])] = &[
        ("", &[]),
        (" \n", &[("", " \n")]),
        (
            "no call <tool_cal> at all\n",
            &[("", "no call <tool_cal> at all\n")],
        ),
        (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.0,  \"a\": []}}\n</tool_call>",
            &[("f", "{\"b\": 1.0,  \"a\": []}")],
        ),
        (
            "I look.\n\n<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"arguments\": \"{}\", \"name\": \"g\"}</tool_call>\n",
            &[("", "I look.\n\n"), ("f", "{}"), ("g", "{}")],
        ),
        (
            "\n<tool_call>{\"name\": \"é\", \"arguments\": {\"t\": \"</tool_call> é\"}}</tool_call> done",
            &[("é", "{\"t\": \"</tool_call> é\"}"), ("", " done")],
        ),
        (
            "<tool_call>[1]</tool_call> <tool_call>{\"name\": \"f\"}</tool_call>",
            &[("", "<tool_call>[1]</tool_call> "), ("f", "{}")],
        ),
        ("<tool_call>{\"name\": \"f\"}", &[("f", "{}")]),
        (
            "x<tool_call>{\"name\": ",
            &[("", "x<tool_call>{\"name\": ")],
        ),
    ];

    fn expected(list: &[(&str, &str)]) -> Vec<Part> {
        list.iter()
            .map(|(name, rest)| {
                if name.is_empty() {
                    text(rest)
                } else {
                    call(name, rest)
                }
            })
            .collect()
    }

    #[test]
    fn calls_are_taken_out_and_all_else_stays() {
        for (answer, list) in ANSWERS {
            assert_eq!(
                parts(ToolCalls::within_text(), &[answer]),
                expected(list),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn the_cut_into_pieces_does_not_matter() {
        let mut random = Random::new(11);
        let mut below = |limit: usize| random.below(limit as u64) as usize;
        for _ in 0..3000 {
            let (answer, list) = ANSWERS[below(ANSWERS.len())];
            let mut pieces = Vec::new();
            let mut rest = answer;
            while !rest.is_empty() {
                let end =
                    (1 + below(12)..).find(|end| rest.is_char_boundary((*end).min(rest.len())));
                let (piece, more) = rest.split_at(end.unwrap_or(rest.len()).min(rest.len()));
                pieces.push(piece);
                rest = more;
            }
            assert_eq!(
                parts(ToolCalls::within_text(), &pieces),
                expected(list),
                "{pieces:?}"
            );
        }
    }

    #[test]
    fn text_is_shown_as_soon_as_it_is_settled() {
        let mut calls = ToolCalls::within_text();
        assert_eq!(calls.push("a <tool"), [text("a ")]);
        assert_eq!(calls.push("s"), [text("<tools")]);
        assert_eq!(calls.push("<tool_call>{\"name\": \"f\"}"), []);
        assert_eq!(calls.push("</tool_call>"), [call("f", "{}")]);
    }

    #[test]
    fn a_bare_answer_is_one_call_or_text() {
        let answer = ["{\"name\": \"f\", ", "\"arguments\": {\"a\": 1}}"];
        assert_eq!(parts(ToolCalls::bare(), &answer), [call("f", "{\"a\": 1}")]);
        assert_eq!(
            parts(ToolCalls::bare(), &["{\"name\": "]),
            [text("{\"name\": ")]
        );
    }
}

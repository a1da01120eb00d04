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
    /// The first `blank` bytes of the text kept so far (`held`) are white space. They have been examined.
    Outside {
        blank: usize,
    },
    Inside(Inside),
    /// The whole answer is expected to be one tool call without tags.
    Bare,
}

/// Within a tool call. The text kept so far (`held`) begins after [`OPEN`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Inside {
    /// Closing tags before this byte offset are part of a string, or were passed over as if they were.
    seen: usize,
    /// Length of the text that was parsed last, up to a closing tag; 0 if none was.
    parsed: usize,
    /// Byte offset of the last closing tag.
    tag: usize,
    /// True if that tag is within a string of JSON, if the text before it is JSON at all.
    quoted: bool,
    /// True if a backslash within a string, itself not escaped, stands directly before that tag.
    escaped: bool,
}

impl Inside {
    /// Goes on to the closing tag that follows `text`, all of the text kept so far before it.
    fn advance(&mut self, text: &str) {
        for byte in &text.as_bytes()[self.tag..] {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = self.quoted,
                b'"' => self.quoted = !self.quoted,
                _ => {}
            }
        }
        self.tag = text.len();
    }
}

/// The tag that opens a tool call. If the model is forced to call a tool, the tag is part of the prompt.
pub const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

impl ToolCalls {
    /// Returns a watcher for an answer of text that may contain tool calls between tags.
    pub fn within_text() -> Self {
        Self::new(ParserState::Outside { blank: 0 })
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
                ParserState::Outside { blank } => {
                    let Some(start) = self.held[blank..].find(OPEN) else {
                        let settled = self.held.len() - overlap(&self.held, OPEN);
                        let blank = self.show(blank, settled, &mut parts);
                        self.place = ParserState::Outside { blank };
                        return parts;
                    };
                    // White space held until here only preceded the call, so it is dropped.
                    let begin = self.show(blank, blank + start, &mut parts) + OPEN.len();
                    self.held.drain(..begin);
                    self.place = ParserState::Inside(Inside::default());
                }
                ParserState::Inside(mut inside) => {
                    let seen = inside.seen;
                    let Some(end) = self.held[seen..].find(CLOSE).map(|end| seen + end) else {
                        // The held text may end with the beginning of the closing tag.
                        let seen = self.held.len().saturating_sub(CLOSE.len() - 1).max(seen);
                        let seen = (0..=seen).rev().find(|at| self.held.is_char_boundary(*at));
                        inside.seen = seen.unwrap_or(0);
                        self.place = ParserState::Inside(inside);
                        return parts;
                    };
                    inside.advance(&self.held[..end]);
                    inside.seen = end + CLOSE.len();
                    self.place = ParserState::Inside(inside);
                    // A tag within a string has the text parsed only if it has doubled, to find flaws before the tag.
                    if inside.quoted && end < 2 * inside.parsed {
                        continue;
                    }
                    match parse(&self.held[..end]) {
                        Ok(call) => {
                            self.held.drain(..end + CLOSE.len());
                            self.place = ParserState::Outside { blank: 0 };
                            self.found = true;
                            self.shown = false;
                            parts.push(Part::Call(call));
                        }
                        // The tag is within a string, so the call continues.
                        Err(Flaw::Unfinished) if inside.quoted => {
                            inside.parsed = end;
                            self.place = ParserState::Inside(inside);
                        }
                        Err(_) => {
                            let end = self.flawed(end).unwrap_or(end);
                            parts.push(self.no_call(end));
                        }
                    }
                }
            }
        }
    }

    /// Returns the byte offset of the first closing tag between the text that was parsed last and `end` before which
    /// the text is no call; `None` if there is none. Only tags that were passed over are there.
    fn flawed(&self, end: usize) -> Option<usize> {
        let ParserState::Inside(Inside { parsed, .. }) = self.place else {
            return None;
        };
        let tags = self.held[parsed..end].match_indices(CLOSE);
        let tags: Vec<usize> = tags.map(|(at, _)| parsed + at).collect();
        let is_good = |at: &usize| !matches!(parse(&self.held[..*at]), Err(Flaw::NoCall));
        tags.get(tags.partition_point(is_good)).copied()
    }

    /// Takes the text up to and with the closing tag at byte offset `end`, which is no call, as text to show.
    fn no_call(&mut self, end: usize) -> Part {
        let rest = self.held.split_off(end + CLOSE.len());
        let text = OPEN.to_owned() + &std::mem::replace(&mut self.held, rest);
        self.place = ParserState::Outside { blank: 0 };
        self.shown = true;
        Part::Text(text)
    }

    /// Ends the answer and returns the parts that had to wait for its end.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        while let Some(end) = self.flawed(self.held.len()) {
            parts.push(self.no_call(end));
            parts.extend(self.push(""));
        }
        let held = std::mem::take(&mut self.held);
        let place = std::mem::replace(&mut self.place, ParserState::Outside { blank: 0 });
        let part = match place {
            ParserState::Outside { .. } => Part::Text(held),
            ParserState::Inside(_) => match parse(&held) {
                Ok(call) => Part::Call(call),
                Err(_) => Part::Text(OPEN.to_owned() + &held),
            },
            ParserState::Bare => match parse(&held) {
                Ok(call) => Part::Call(call),
                Err(_) => Part::Text(held),
            },
        };
        match part {
            Part::Text(text) if text.is_empty() => {}
            Part::Text(text) if self.found && !self.shown && text.trim().is_empty() => {}
            part => parts.push(part),
        }
        parts
    }

    /// Moves the text kept so far, up to byte offset `end`, to `parts`. Keeps it if it is white space that may only
    /// separate tool calls; its first `blank` bytes are. Returns how much of it is kept, in bytes.
    fn show(&mut self, blank: usize, end: usize, parts: &mut Vec<Part>) -> usize {
        if end == 0 || (!self.shown && self.held[blank..end].trim().is_empty()) {
            return end;
        }
        self.shown = true;
        let rest = self.held.split_off(end);
        parts.push(Part::Text(std::mem::replace(&mut self.held, rest)));
        0
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
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
            &[
                (
                    "",
                    "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>\n",
                ),
                ("g", "{}"),
            ],
        ),
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
        // A tag that is passed over as part of a string, although the text before it is no JSON.
        (
            "<tool_call>{\"name\": \"f\", \"a\": \"</tool_call>\" x \"</tool_call> <tool_call>{\"name\": \"g\"}</tool_call>",
            &[
                (
                    "",
                    "<tool_call>{\"name\": \"f\", \"a\": \"</tool_call>\" x \"</tool_call> ",
                ),
                ("g", "{}"),
            ],
        ),
        // Two, until the end of the answer.
        (
            "<tool_call>{\"name\": \"f\", \"a\": \"____________________________________________________________</tool_call>\" x \"</tool_call> <tool_call>{\"name\": \"g\"}</tool_call>",
            &[
                (
                    "",
                    "<tool_call>{\"name\": \"f\", \"a\": \"____________________________________________________________</tool_call>\" x \"</tool_call> ",
                ),
                ("g", "{}"),
            ],
        ),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": [\"</tool_call>\", \"\\\"</tool_call>\", \"</tool_call>\"]}</tool_call>",
            &[(
                "f",
                "[\"</tool_call>\", \"\\\"</tool_call>\", \"</tool_call>\"]",
            )],
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
    fn white_space_is_examined_once() {
        let mut calls = ToolCalls::within_text();
        let mut examined = 0;
        for _ in 0..20_000 {
            assert_eq!(calls.push(" \n"), []);
            let ParserState::Outside { blank } = calls.place else {
                panic!("outside")
            };
            // The next piece is examined from here.
            examined += 2 + calls.held.len() - blank;
        }
        assert_eq!((examined, calls.held.len()), (40_000, 40_000));
        assert_eq!(calls.push("<tool_call>{\"name\": \"f\"}"), []);
        assert_eq!(calls.push("</tool_call>"), [call("f", "{}")]);
    }

    #[test]
    fn tags_within_strings_do_not_have_the_text_parsed_each_time() {
        let mut calls = ToolCalls::within_text();
        calls.push("<tool_call>{\"name\": \"f\", \"arguments\": [\"\"");
        let (mut parsed, mut total) = (0, 0);
        for _ in 0..20_000 {
            assert_eq!(calls.push(", \"\\\"</tool_call>\""), []);
            let ParserState::Inside(inside) = calls.place else {
                panic!("inside")
            };
            if inside.parsed != parsed {
                parsed = inside.parsed;
                total += parsed;
            }
        }
        assert!(parsed > 0 && total < 2 * calls.held.len(), "{total}");
        let found = calls.push("]}</tool_call>");
        assert!(
            matches!(&found[..], [Part::Call(call)] if call.arguments.len() > 20_000 * CLOSE.len())
        );
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

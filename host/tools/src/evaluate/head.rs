//! A prompt's head (system text and tools) that changes from request to request, as real clients' heads do: a clock and
//! a session id before the system message, and tools in varying order.
//!
//! ```text
//!   Current date and time: 2026-11-22 14:03:27      a little later in each turn of a chat
//!   Session ID: 5c1f09ae                            the chat's own
//!   Answer the question from the documents, …       the system message
//! ```
//!
//! The head is derived from the run's seed and the case, so a question has the same head under every arm (way to ask).

use foreword_ordering::document::Fingerprint;
use foreword_ordering::random::Random;
use serde_json::{Value, json};

/// The parts of one request's head (system text and tools) that change from request to request: lines that are written
/// before the system message, and the tools.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChangingHead {
    /// The lines with a clock and a session id, to be written before the system message.
    pub(super) lines: String,
    pub(super) tools: Vec<Value>,
}

impl ChangingHead {
    /// Returns the changing head (lines with a clock and a session id, and shuffled tools) for a turn, counted from 0,
    /// of the case with the id `case`. The same arguments give the same result.
    pub(super) fn of(seed: u64, case: &str, turn: usize) -> Self {
        let case = Fingerprint::of(&[case.as_bytes()]).0;
        let mut chat = Random::new(seed ^ case);
        let session = chat.below(1 << 32);
        let turn = turn as u64;
        let second = (chat.below(80_000) + 41 * turn) % 86_400;
        let clock = [second / 3_600, second / 60 % 60, second % 60];
        let [hours, minutes, seconds] = clock;
        let mut tools: Vec<Value> = TOOLS.iter().map(described).collect();
        Random::new(seed ^ case.rotate_left(17) ^ turn).shuffle(&mut tools);
        Self {
            lines: format!(
                "Current date and time: 2026-11-22 {hours:02}:{minutes:02}:{seconds:02}\nSession ID: {session:08x}\n"
            ),
            tools,
        }
    }
}

fn described([name, description, argument]: &[&str; 3]) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {(*argument): {"type": "string"}},
                "required": [argument],
            },
        },
    })
}

/// The tools in every changing head: the name, the description and the argument's name of each.
const TOOLS: &[[&str; 3]] = &[
    [
        "search_tickets",
        "Finds tickets by words in their titles.",
        "words",
    ],
    [
        "open_ticket",
        "Opens a ticket and returns its number.",
        "title",
    ],
    ["read_calendar", "Lists the appointments of a day.", "day"],
    ["send_message", "Sends a message to a colleague.", "text"],
    ["look_up_order", "Returns the state of an order.", "order"],
    [
        "convert_units",
        "Converts a quantity to metric units.",
        "quantity",
    ],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_differ_by_case_and_turn_and_a_session_lasts() {
        let [one, next, other] =
            [("a", 0), ("a", 1), ("b", 0)].map(|(case, turn)| ChangingHead::of(7, case, turn));
        assert_eq!(one, ChangingHead::of(7, "a", 0));
        let parts = |head: &ChangingHead| -> Vec<String> {
            head.lines.lines().map(str::to_owned).collect()
        };
        assert_ne!(parts(&one)[0], parts(&next)[0]);
        assert_eq!(parts(&one)[1], parts(&next)[1]);
        assert_ne!(parts(&one)[1], parts(&other)[1]);
        let orders: std::collections::HashSet<String> = (0..20)
            .map(|turn| format!("{:?}", ChangingHead::of(7, "a", turn).tools))
            .collect();
        assert!(orders.len() > 10);
    }
}

//! MT-RAG (Katsis et al., 2025): chats of several turns, each with the contexts that were retrieved for it. They are
//! published as conversations, in one array, and as tasks, one on each line, which repeat the chat up to their turn.

use super::{Data, Document, Reading, turn};
use crate::evaluate::data::{Case, Turn, lines_of};
use anyhow::{Context, Result};
use fxhash::FxHashMap;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
struct Conversation {
    #[serde(alias = "conversation_id", alias = "_id")]
    id: Option<String>,
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    speaker: String,
    text: String,
    #[serde(default)]
    contexts: Vec<Passage>,
}

#[derive(Deserialize)]
struct Passage {
    document_id: String,
    text: String,
    #[serde(default)]
    title: Option<String>,
}

#[derive(Deserialize)]
struct Task {
    conversation_id: String,
    task_id: String,
    /// Counted from 1; a number, or its digits.
    turn: serde_json::Value,
    input: Vec<Message>,
    targets: Vec<Message>,
    #[serde(default)]
    contexts: Vec<Passage>,
}

/// Returns the chats of conversations or tasks, in the order of the file.
pub(super) fn read(text: &[u8], reading: &Reading<'_>) -> Result<Data> {
    let most = reading.documents.unwrap_or(usize::MAX);
    let chats = if text.trim_ascii_start().first() == Some(&b'[') {
        conversations(text, most)?
    } else {
        tasks(text, most)?
    };
    let mut data = Data::default();
    for case in chats {
        let is_asked = case.turns.iter().any(|turn| !turn.answers.is_empty())
            && case.turns.iter().any(|turn| !turn.documents.is_empty());
        if is_asked {
            data.cases.push(case);
        } else {
            data.without_answers += 1;
        }
    }
    Ok(data)
}

fn conversations(json: &[u8], most: usize) -> Result<Vec<Case>> {
    let conversations: Vec<Conversation> = serde_json::from_slice(json)?;
    let cases = conversations.into_iter().zip(1..).map(|(chat, number)| {
        let mut turns: Vec<Turn> = Vec::new();
        for message in chat.messages {
            if message.speaker == "user" {
                turns.push(turn(message.text, Vec::new(), Vec::new()));
            } else if let Some(asked) = turns.last_mut() {
                let question = std::mem::take(&mut asked.question);
                let documents = documents(message.contexts, most);
                *asked = turn(question, documents, vec![message.text]);
            }
        }
        Case {
            id: chat.id.unwrap_or_else(|| format!("conversation {number}")),
            turns,
        }
    });
    Ok(cases.collect())
}

/// Puts the tasks of a conversation together, in the order of their turns.
fn tasks(lines: &[u8], most: usize) -> Result<Vec<Case>> {
    let mut chats: Vec<(String, Vec<(u64, Turn)>)> = Vec::new();
    let mut places: FxHashMap<String, usize> = FxHashMap::default();
    for (number, line) in lines_of(lines) {
        let of_line = || format!("line {number}");
        let task: Task = serde_json::from_slice(line).with_context(of_line)?;
        let place_in_chat = match &task.turn {
            serde_json::Value::String(digits) => digits.parse().ok(),
            number => number.as_u64(),
        };
        let place_in_chat =
            place_in_chat.with_context(|| format!("line {number}: `turn` is no number"))?;
        let asked = task
            .input
            .into_iter()
            .rev()
            .find(|message| message.speaker == "user");
        let asked = asked
            .with_context(|| format!("line {number}: {:?} has no user's turn", task.task_id))?;
        let answers = task
            .targets
            .into_iter()
            .map(|message| message.text)
            .collect();
        let turn = turn(asked.text, documents(task.contexts, most), answers);
        let place = *places
            .entry(task.conversation_id.clone())
            .or_insert(chats.len());
        if place == chats.len() {
            chats.push((task.conversation_id, Vec::new()));
        }
        chats[place].1.push((place_in_chat, turn));
    }
    let cases = chats.into_iter().map(|(id, mut turns)| {
        turns.sort_by_key(|(number, _)| *number);
        Case {
            id,
            turns: turns.into_iter().map(|(_, turn)| turn).collect(),
        }
    });
    Ok(cases.collect())
}

fn documents(passages: Vec<Passage>, most: usize) -> Vec<Arc<Document>> {
    let documents = passages.into_iter().take(most).map(|passage| {
        Arc::new(Document {
            id: passage.document_id,
            title: passage.title.unwrap_or_default(),
            text: passage.text,
        })
    });
    documents
        .filter(|document| !document.text.trim().is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, reading};
    use super::*;

    #[test]
    fn a_conversation_is_a_chat() {
        let file = r#"[{"author": "a", "retriever": {"collection": {"name": "c"}}, "messages": [
            {"speaker": "user", "text": "When does it leave?", "timestamp": 1},
            {"speaker": "agent", "text": "At noon.", "contexts": [{"document_id": "d1", "source": "s", "score": 9.1, "text": "It leaves at noon.", "title": "Ferry"}, {"document_id": "d2", "text": "A train."}, {"document_id": "d3", "text": "More."}]},
            {"speaker": "user", "text": "And on Sunday?"},
            {"speaker": "agent", "text": "I do not know.", "contexts": []}]},
            {"messages": [{"speaker": "user", "text": "Hi"}]}]"#;
        let data = read(file.as_bytes(), &reading(None)).unwrap();
        assert_eq!((data.cases.len(), data.without_answers), (1, 1));
        let chat = &data.cases[0];
        assert_eq!((chat.id.as_str(), chat.turns.len()), ("conversation 1", 2));
        assert_eq!(ids(&chat.turns[0]), ["d1", "d2"]);
        assert_eq!(chat.turns[1].answers, ["I do not know."]);
    }

    #[test]
    fn tasks_of_one_conversation_are_one_chat_in_the_order_of_turns() {
        let task = |turn: &str, question: &str| {
            format!(
                r#"{{"conversation_id": "c1", "task_id": "c1<::>{turn}", "turn": {turn}, "input": [{{"speaker": "user", "text": "old"}}, {{"speaker": "agent", "text": "x"}}, {{"speaker": "user", "text": "{question}", "metadata": {{}}}}], "targets": [{{"speaker": "agent", "text": "a"}}], "contexts": [{{"document_id": "d{turn}", "text": "t", "title": ""}}], "Answerability": ["ANSWERABLE"]}}"#
            )
        };
        let file = [task("2", "second"), task("1", "first")].join("\n");
        let data = read(file.as_bytes(), &reading(None)).unwrap();
        let turns = &data.cases[0].turns;
        assert_eq!(
            [turns[0].question.as_str(), &turns[1].question],
            ["first", "second"]
        );
        assert_eq!(ids(&turns[1]), ["d2"]);
        let bad = file.replace("\"turn\": 1", "\"turn\": \"x\"");
        let error = read(bad.as_bytes(), &reading(None)).err().unwrap();
        assert!(
            error.to_string().contains("line 2: `turn` is no number"),
            "{error}"
        );
    }
}

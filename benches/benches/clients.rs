//! What an engine computes of chats whose clients take contexts out of the history again: as their bodies come, and as the
//! gateway sends them.
//!
//! ```text
//! FOREWORD_MTRAG=mtrag-un.jsonl cargo bench -p foreword-benches -- clients [--logs FOLDER] [place=NAME] [pinned=TOKENS]
//! ```
//!
//! The file holds conversations of MT-RAG's unanswerable and follow-up set (IBM/mt-rag-benchmark, Apache-2.0), one a line:
//! `{"collection", "contexts": [{"id", "title", "text"}], "messages": [{"role", "content"}]}`. It has contexts for the last
//! turn alone, so those of each turn are searched for here: the five passages of its collection that share the rarest words with
//! the last two questions. Conversations go on in turn, a request of each, in an order that is the same every time.
//! `--logs` writes a log for each client, for `foreword replay` and `foreword explain`, the same chat by chat (a line of
//! each: an array of bodies) for `benches/peers/chat_times.py`, and the configuration.

#[path = "../../wasm-module/ordering/tests/clients/mod.rs"]
mod forms;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use foreword_benches::Arguments;
use foreword_benches::simulated::Costs;
use foreword_ordering::config::RawConfig;
use foreword_ordering::policy::PolicyKind;
use foreword_ordering::random::Random;
use foreword_simulation::{Capacity, Logged, PromptReplay, PromptReuse};
use forms::{Client, Context, Turn};
use serde::Deserialize;
use serde_json::{Value, json};

/// A line of the file.
#[derive(Deserialize)]
struct Row {
    collection: String,
    contexts: Vec<Passage>,
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Passage {
    title: Option<String>,
    text: String,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

/// What is found for a question.
const PASSAGES: usize = 5;

/// Conversations under way at once.
const AT_ONCE: usize = 8;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let Some(path) = std::env::var_os("FOREWORD_MTRAG").map(PathBuf::from) else {
        println!("skipped: FOREWORD_MTRAG names no file of MT-RAG's conversations");
        return Ok(());
    };
    if !path.exists() {
        println!("skipped: {} does not exist", path.display());
        return Ok(());
    }
    let logs = arguments.value("--logs").map(PathBuf::from);
    let pinned: u32 = arguments.number("pinned").unwrap_or(100_000);
    let config = json!({
        "conversation": {"pin": true, "max_pinned_tokens": pinned},
        "head": {"mode": "apply"},
        "rank": arguments.rank("place"),
    });
    let chats = chats(&std::fs::read_to_string(&path)?)?;
    let requests: usize = chats.iter().map(Vec::len).sum();
    println!(
        "{} conversations, {requests} requests, {PASSAGES} passages each\n",
        chats.len()
    );
    println!(
        "| client | prompt tokens | computed as it comes | computed as sent | ratio | prefill as it comes, s | as sent | ratio | reused as it comes | as sent |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for client in Client::ALL {
        let bodies = bodies(client, &chats);
        if let Some(folder) = &logs {
            std::fs::create_dir_all(folder)?;
            let log = folder.join(format!("{}.jsonl", client.name()));
            std::fs::write(&log, bodies.join("\n") + "\n")
                .with_context(|| log.display().to_string())?;
            let whole = chats.iter().map(|chat| {
                let bodies = (1..=chat.len()).map(|turns| client.body(&chat[..turns]));
                format!("[{}]\n", bodies.collect::<Vec<_>>().join(","))
            });
            let file = folder.join(format!("{}.chats.jsonl", client.name()));
            std::fs::write(&file, whole.collect::<String>())?;
            std::fs::write(folder.join("ordering.json"), config.to_string())?;
        }
        let (came, came_s) = replayed(&bodies, PolicyKind::Retrieval, &json!({}))?;
        let (sent, sent_s) = replayed(&bodies, PolicyKind::Foresight, &config)?;
        println!(
            "| {} | {} | {} | {} | {:.2} | {came_s:.0} | {sent_s:.0} | {:.2} | {:.1} % | {:.1} % |",
            client.name(),
            came.prompt_tokens,
            came.computed_tokens(),
            sent.computed_tokens(),
            sent.computed_tokens() as f64 / came.computed_tokens() as f64,
            sent_s / came_s,
            100.0 * came.share(),
            100.0 * sent.share(),
        );
    }
    Ok(())
}

/// What a cache without a bound would do for these requests, and the seconds that a 7B model on an A10G would compute,
/// by the simulated device's formula.
fn replayed(bodies: &[String], kind: PolicyKind, config: &Value) -> Result<(PromptReuse, f64)> {
    let raw = RawConfig::from_json(config.to_string().as_bytes())?;
    let mut replay = PromptReplay::new(raw, kind, Capacity::UNBOUNDED)?;
    let mut seconds = 0.0;
    for body in bodies {
        let logged = Logged::read(body.as_bytes()).map_err(|error| anyhow::anyhow!("{error}"))?;
        let sent = replay.decide(&logged)?;
        let before = replay.reuse();
        replay.serve(&logged, sent.as_deref())?;
        let after = replay.reuse();
        let cached = after.reused_tokens - before.reused_tokens;
        let new = after.computed_tokens() - before.computed_tokens();
        let costs = Costs::MISTRAL_7B_A10G;
        seconds += costs.step + costs.prefill(u32::try_from(cached)?, u32::try_from(new)?);
    }
    Ok((replay.reuse(), seconds))
}

/// The requests of all chats: a few go on in turn.
fn bodies(client: Client, chats: &[Vec<Turn>]) -> Vec<String> {
    let mut random = Random::new(19);
    let mut waiting = chats.iter();
    let mut open: Vec<(&[Turn], usize)> = waiting
        .by_ref()
        .take(AT_ONCE)
        .map(|chat| (&**chat, 0))
        .collect();
    let mut bodies = Vec::new();
    while !open.is_empty() {
        let at = random.below(open.len() as u64) as usize;
        let (chat, turns) = &mut open[at];
        *turns += 1;
        bodies.push(client.body(&chat[..*turns]));
        if *turns == chat.len() {
            open.swap_remove(at);
            open.extend(waiting.next().map(|chat| (&**chat, 0)));
        }
    }
    bodies
}

/// The conversations, with what is found for each of their questions.
fn chats(lines: &str) -> Result<Vec<Vec<Turn>>> {
    let rows: Vec<Row> = lines
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let mut collections: BTreeMap<&str, Collection> = BTreeMap::new();
    for row in &rows {
        let collection = collections.entry(&row.collection).or_default();
        row.contexts
            .iter()
            .for_each(|passage| collection.add(passage));
    }
    let mut chats = Vec::new();
    for row in &rows {
        let collection = &collections[&*row.collection];
        let mut turns: Vec<Turn> = Vec::new();
        for message in &row.messages {
            if message.role == "user" {
                let before = turns.last().map_or("", |turn| &*turn.question);
                turns.push(Turn {
                    contexts: collection.found(&format!("{before} {}", message.content)),
                    question: message.content.clone(),
                    answer: String::new(),
                });
            } else if let Some(turn) = turns.last_mut() {
                turn.answer.clone_from(&message.content);
            }
        }
        if turns.len() > 1 {
            chats.push(turns);
        }
    }
    Ok(chats)
}

/// Passages, and which of them hold a word.
#[derive(Default)]
struct Collection {
    passages: Vec<Context>,
    known: HashSet<String>,
    holders: HashMap<String, Vec<usize>>,
}

impl Collection {
    fn add(&mut self, passage: &Passage) {
        if !self.known.insert(passage.text.clone()) {
            return;
        }
        let at = self.passages.len();
        let words: HashSet<String> = words(&passage.text).collect();
        for word in words {
            self.holders.entry(word).or_default().push(at);
        }
        // Some passages have no title; a client shows a file's name.
        let title = passage
            .title
            .clone()
            .unwrap_or_else(|| format!("passage-{at}"));
        self.passages.push(Context {
            title: title.replace(['"', '<', '>', '\n'], " "),
            text: passage.text.trim().to_owned(),
        });
    }

    /// The passages that share the rarest words with a question.
    fn found(&self, question: &str) -> Vec<Context> {
        let mut scores = vec![0.0_f64; self.passages.len()];
        let asked: std::collections::BTreeSet<String> = words(question).collect();
        for word in asked {
            let holders = self.holders.get(&word).map_or(&[][..], Vec::as_slice);
            for &at in holders {
                scores[at] += (1.0 + self.passages.len() as f64 / holders.len() as f64).ln();
            }
        }
        let mut ranked: Vec<usize> = (0..scores.len()).collect();
        ranked.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
        ranked.truncate(PASSAGES);
        ranked.iter().map(|at| self.passages[*at].clone()).collect()
    }
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.len() > 2)
        .map(str::to_lowercase)
}

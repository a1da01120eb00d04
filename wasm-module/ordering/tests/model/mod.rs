//! A slow, obvious model of chats: it stores every request with its texts, as the client wrote it and as it was sent,
//! and checks every new one against all of them. Shared by the property tests and the fuzz target.

use foreword_ordering::policy::Placement;
use foreword_ordering::{Config, Orderer, Report, Skip, Tenant};
use serde_json::{Value, json};

/// What a client does: a kind, and numbers that choose among few words and documents.
pub(crate) type Step = [u8; 6];

/// A message of a client's history.
#[derive(Clone, Debug, PartialEq)]
struct Message {
    role: &'static str,
    /// Tagged in it.
    documents: Vec<usize>,
    words: u8,
    in_parts: bool,
}

/// Documents of a `documents` array, and the message that they are for.
type Array = Option<(usize, Vec<usize>)>;

/// A request as the client wrote it and as it was sent.
struct Stored {
    messages: Vec<Message>,
    array: Array,
    sent: Vec<Value>,
}

/// The client's side: chats that go on.
#[derive(Default)]
struct Client {
    chats: Vec<Vec<Message>>,
}

/// Everything that was sent for one tenant.
struct Model {
    stored: Vec<Stored>,
    pins: bool,
    refers: bool,
}

/// Lets a client take `steps`, and checks every request. `setup` chooses the configuration.
pub(crate) fn run(setup: u8, steps: &[Step]) {
    let on = |bit: u8| setup & bit != 0;
    let (pins, refers, bounded) = (!on(1), !on(2), on(4));
    let mut conversation =
        json!({"pin": pins, "deduplicate": refers, "max_pinned_tokens": 1_000_000});
    if bounded {
        conversation["max_entries"] = 6.into();
        conversation["max_bytes"] = 4_000.into();
    }
    let policy = ["longest", "greedy", "sorted", "recency"][usize::from(setup >> 4) % 4];
    let config =
        json!({"policy": policy, "hint": {"enabled": !on(8)}, "conversation": conversation});
    let mut orderer = Orderer::new(
        Config::from_json(config.to_string().as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    );
    let mut client = Client::default();
    let mut model = Model {
        stored: Vec::new(),
        pins,
        refers,
    };
    // A tenant is known by its first documents.
    let known = json!({"model": "m", "messages": [{"role": "user", "content": "<doc>x</doc>"}]});
    orderer
        .rewrite(Tenant::default(), known.to_string().as_bytes())
        .unwrap();
    for step in steps {
        let (messages, array) = client.step(step);
        let body = body_of(&messages, &array);
        let (sent, report) = match orderer.rewrite(Tenant::default(), body.as_bytes()) {
            Ok(rewrite) => {
                let sent = rewrite.body.as_deref().unwrap_or(body.as_bytes());
                let sent: Value = serde_json::from_slice(sent).expect("what is sent is JSON");
                (sent, Some(rewrite.report))
            }
            Err(Skip::NoDocuments) => (serde_json::from_str(&body).unwrap(), None),
            Err(skip) => panic!("{skip}"),
        };
        let sent = sent["messages"].as_array().unwrap().clone();
        model.check_content(&messages, &array, &sent, report);
        if !bounded {
            model.check_history(&messages, &array, &sent);
        }
        let remembered = orderer.remembered();
        if bounded {
            assert!(remembered.messages <= 6 && remembered.bytes <= 4_000);
        }
        model.stored.push(Stored {
            messages,
            array,
            sent,
        });
    }
}

/// The bodies that a client sends when it takes `steps`.
#[allow(dead_code, reason = "not every user of the model needs it")]
pub(crate) fn bodies(steps: &[Step]) -> Vec<String> {
    let mut client = Client::default();
    let requests = steps.iter().map(|step| client.step(step));
    requests
        .map(|(messages, array)| body_of(&messages, &array))
        .collect()
}

impl Client {
    /// The request that a step makes.
    fn step(&mut self, step: &Step) -> (Vec<Message>, Array) {
        let [kind, chat, words, documents, cut, array] = *step;
        let question = Message {
            role: "user",
            documents: LISTS[usize::from(documents) % LISTS.len()].to_vec(),
            words: words % 3,
            in_parts: words % 7 == 6,
        };
        let answer = Message {
            role: "assistant",
            documents: Vec::new(),
            words: words / 16 % 2,
            in_parts: false,
        };
        let at = usize::from(chat) % self.chats.len().max(1);
        let cut = usize::from(cut);
        let system = Message {
            role: "system",
            documents: LISTS[cut % 2].to_vec(),
            words: 0,
            in_parts: false,
        };
        match (kind % 8, self.chats.get_mut(at)) {
            (0, _) | (_, None) => {
                let system = (cut % 3 == 0).then_some(system);
                self.chats
                    .push(system.into_iter().chain([question]).collect());
            }
            (1..=3, Some(chat)) => chat.extend([answer, question]),
            (4, Some(chat)) => {
                // The user goes back and asks something else.
                let mut fork = chat[..=cut % chat.len()].to_vec();
                fork.extend([answer, question]);
                self.chats.push(fork);
            }
            (5, Some(chat)) => {
                let at = cut % chat.len();
                let role = chat[at].role;
                chat[at] = Message { role, ..question };
            }
            (6, Some(_)) => {}
            (_, Some(chat)) => {
                let result = Message {
                    role: "tool",
                    ..question
                };
                chat.extend([answer, result]);
            }
        }
        let at = if kind % 8 == 0 || kind % 8 == 4 {
            self.chats.len() - 1
        } else {
            at.min(self.chats.len() - 1)
        };
        let messages = self.chats[at].clone();
        let target = messages.iter().rposition(|message| message.role == "user");
        let list = ARRAYS[usize::from(array) % ARRAYS.len()];
        let array = target.filter(|_| !list.is_empty());
        (messages, array.map(|target| (target, list.to_vec())))
    }
}

impl Model {
    /// Documents out equal documents in, less what is announced, plus what is pinned; text outside is untouched.
    fn check_content(
        &self,
        messages: &[Message],
        array: &Array,
        sent: &[Value],
        report: Option<Report>,
    ) {
        assert_eq!(messages.len(), sent.len());
        let mut found = Counts::default();
        for (at, (message, sent_message)) in messages.iter().zip(sent).enumerate() {
            assert_eq!(sent_message["role"], message.role);
            if message.role == "assistant" {
                // What a model wrote for itself is not looked into.
                assert_eq!(sent_message["content"], message.content());
                continue;
            }
            let text = text_of(&sent_message["content"]);
            let earlier = self.earlier(messages, sent, at);
            let (inserted, rest) = insertion(&text);
            let client = text_of(&message.content());
            let mut group = slots(&client, rest);
            let documents: Vec<String> = message.documents.iter().map(|d| tagged(*d)).collect();
            self.check_group(&mut group, &message.documents, documents, &earlier, tagged);
            found.add(&group, message.documents.len());
            match array {
                Some((target, list)) if *target == at => {
                    let mut group = inserted.expect("an array's documents are written");
                    let documents = list.iter().map(|d| rendered(*d)).collect();
                    self.check_group(&mut group, list, documents, &earlier, rendered);
                    found.add(&group, list.len());
                }
                _ => {
                    if let Some(group) = inserted {
                        assert!(self.pins, "nothing is written that nobody asked for");
                        let was_sent = self.stored.iter().any(|stored| {
                            stored.array.as_ref().is_some_and(|array| array.0 == at)
                                && stored.messages.get(..=at) == messages.get(..=at)
                                && stored.sent[at] == *sent_message
                        });
                        assert!(was_sent, "documents of another chat: {text}");
                        found.pinned += group.documents.len();
                        found.hints += usize::from(group.hint.is_some());
                    }
                }
            }
        }
        let Some(report) = report else {
            assert_eq!(found.documents + found.pinned, 0);
            return;
        };
        assert_eq!(report.documents as usize, found.documents);
        assert_eq!(report.dropped as usize, found.dropped);
        assert_eq!(report.deduplicated as usize, found.references);
        assert_eq!(report.pinned as usize, found.pinned);
        assert!(self.refers || found.references == 0);
        assert_eq!(report.hinted, found.hints > 0);
    }

    /// Texts of the messages up to the last answer before message `at`, and of all messages before it, without answers.
    fn earlier(&self, messages: &[Message], sent: &[Value], at: usize) -> Earlier {
        let answered = messages[..at]
            .iter()
            .rposition(|message| message.role == "assistant")
            .map_or(0, |answer| answer + 1);
        let text = |sent: &[Value]| -> String {
            let asked = sent.iter().filter(|sent| sent["role"] != "assistant");
            asked.map(|sent| text_of(&sent["content"])).collect()
        };
        Earlier {
            turns: text(&sent[..answered]),
            all: text(&sent[..at]),
        }
    }

    /// Each of the group's documents once, as itself or as a reference to where it stands.
    fn check_group(
        &self,
        group: &mut Group,
        list: &[usize],
        mut blocks: Vec<String>,
        earlier: &Earlier,
        block: fn(usize) -> String,
    ) {
        let mut distinct: Vec<usize> = Vec::new();
        for document in list {
            if !distinct.contains(document) {
                distinct.push(*document);
            }
        }
        let labels: Vec<&str> = distinct.iter().map(|d| DOCUMENTS[*d].0).collect();
        if let Some(hint) = &group.hint {
            let order: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
            assert_eq!(*hint, order.join(">"), "a hint tells the client's order");
        }
        let mut all = group.documents.clone();
        for reference in &group.references {
            let named: Vec<&usize> = (distinct.iter())
                .filter(|document| DOCUMENTS[**document].0 == reference)
                .collect();
            let [named] = named[..] else {
                panic!("{reference} names {} documents of the turn", named.len());
            };
            assert!(
                earlier.turns.contains(&block(*named)),
                "a reference leads to {reference}, which an earlier turn holds"
            );
            for (other, (label, _)) in DOCUMENTS.iter().enumerate() {
                let stands =
                    [tagged(other), rendered(other)].map(|block| earlier.all.contains(&block));
                assert!(
                    other == *named || label != reference || stands == [false, false],
                    "{reference} names another document"
                );
            }
            all.push(block(*named));
        }
        blocks.sort();
        blocks.dedup();
        all.sort();
        assert_eq!(all, blocks, "documents out are documents in");
        group.distinct = distinct.len();
    }

    /// What a chat's earlier messages were sent like, they are sent like again.
    fn check_history(&self, messages: &[Message], array: &Array, sent: &[Value]) {
        // Whether a request began with the first `length` messages, sent for what this one could continue.
        let began = |stored: &Stored, length: usize| {
            stored.messages.get(..length) == messages.get(..length)
                && match (array, &stored.array) {
                    (Some((target, _)), theirs) if *target < length => theirs == array,
                    // What was written into the last message was for that request.
                    (None, Some((target, _))) if *target < length => target + 1 < messages.len(),
                    _ => true,
                }
        };
        let lengths = self
            .stored
            .iter()
            .map(|stored| (stored, stored.messages.len()));
        let lengths = lengths.filter(|(stored, length)| began(stored, *length));
        let Some(longest) = lengths.map(|(_, length)| length).max() else {
            return;
        };
        let versions: Vec<&Stored> = (self.stored.iter())
            .filter(|stored| began(stored, longest))
            .collect();
        // Without pins an array's documents leave with it.
        let left = |stored: &Stored| {
            let target = stored.array.as_ref().map(|array| array.0);
            target.filter(|_| !self.pins && stored.array != *array)
        };
        let history = |stored: &Stored| -> Vec<String> {
            let texts = stored.sent[..longest].iter().enumerate().map(|(at, sent)| {
                let text = text_of(&sent["content"]);
                match left(stored) {
                    Some(target) if target == at => insertion(&text).1.to_owned(),
                    _ => text,
                }
            });
            texts.collect()
        };
        let now: Vec<String> = sent[..longest]
            .iter()
            .map(|sent| text_of(&sent["content"]))
            .collect();
        let expected = history(versions[0]);
        let differ = |at: &usize| {
            let first = |stored: &&Stored| history(stored)[*at] == expected[*at];
            !versions.iter().all(first)
        };
        // Another document may have the name of one that left: from there on it may be referred to now, and could not
        // be before.
        let first_left = versions.iter().filter_map(|stored| left(stored)).min();
        let as_history = |texts: &[String]| -> Vec<String> {
            let texts = texts.iter().enumerate().map(|(at, text)| match first_left {
                Some(target) if target <= at => referred(text),
                _ => text.clone(),
            });
            texts.collect()
        };
        match (0..longest).find(differ) {
            None => assert_eq!(
                as_history(&now),
                as_history(&expected),
                "a chat's earlier messages have changed"
            ),
            // A request that shares more than that may tell them apart.
            Some(at) => assert!(
                insertion(&now[at]).0.is_none()
                    || longest < messages.len()
                        && (self.stored.iter()).any(|stored| began(stored, longest + 1)),
                "one of several chats that cannot be told apart was chosen"
            ),
        }
    }
}

struct Earlier {
    turns: String,
    all: String,
}

/// What stands where a group's documents stood.
#[derive(Default)]
struct Group {
    documents: Vec<String>,
    references: Vec<String>,
    hint: Option<String>,
    distinct: usize,
}

#[derive(Default)]
struct Counts {
    documents: usize,
    dropped: usize,
    references: usize,
    pinned: usize,
    hints: usize,
}

impl Counts {
    fn add(&mut self, group: &Group, listed: usize) {
        self.documents += listed;
        self.dropped += listed - group.distinct;
        self.references += group.references.len();
        self.hints += usize::from(group.hint.is_some());
    }
}

impl Message {
    fn content(&self) -> Value {
        let documents: String = self
            .documents
            .iter()
            .map(|document| format!(" {} -", tagged(*document)))
            .collect();
        let words = ["Why?", "How \"so\"?\n", "And é?"][usize::from(self.words)];
        let text = format!("Context:{documents}\n\n{words}");
        if self.in_parts {
            json!([{"type": "text", "text": text}])
        } else {
            text.into()
        }
    }
}

fn body_of(messages: &[Message], array: &Array) -> String {
    let messages: Vec<Value> = messages
        .iter()
        .map(|message| json!({"role": message.role, "content": message.content()}))
        .collect();
    let mut body = json!({"model": "m", "messages": messages});
    if let Some((_, list)) = array {
        let document = |document: &usize| {
            let (id, text) = DOCUMENTS[*document];
            json!({"id": id, "text": text})
        };
        body["documents"] = list.iter().map(document).collect();
    }
    body.to_string()
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        parts => (parts.as_array().unwrap().iter())
            .map(|part| part["text"].as_str().unwrap())
            .collect(),
    }
}

fn tagged(document: usize) -> String {
    let (label, text) = DOCUMENTS[document];
    format!("<doc id=\"{label}\">{text}</doc>")
}

fn rendered(document: usize) -> String {
    let (label, text) = DOCUMENTS[document];
    let id = if label.is_empty() {
        String::new()
    } else {
        format!(" id=\"{label}\"")
    };
    format!("<document{id}>\n{text}\n</document>\n")
}

/// What was written before a message's own text, and that text.
fn insertion(text: &str) -> (Option<Group>, &str) {
    if text.starts_with("Context:") {
        return (None, text);
    }
    let mut group = Group::default();
    let mut rest = text;
    loop {
        if rest.starts_with("<document") {
            let end = rest.find("</document>\n").unwrap() + "</document>\n".len();
            group.documents.push(rest[..end].to_owned());
            rest = &rest[end..];
        } else if let Some((label, after)) = reference(rest) {
            group.references.push(label.to_owned());
            rest = after.strip_prefix('\n').unwrap();
        } else if let Some((order, after)) = order_hint(rest) {
            group.hint = Some(order.to_owned());
            rest = after.strip_prefix('\n').unwrap();
        } else {
            return (Some(group), rest.strip_prefix('\n').unwrap());
        }
    }
}

/// What stands in the places of the documents of `client`; everything else must be as there.
fn slots(client: &str, sent: &str) -> Group {
    let mut group = Group::default();
    let mut client = client;
    let mut sent = sent;
    let mut is_first = true;
    while let Some(start) = client.find("<doc id=") {
        let end = client.find("</doc>").unwrap() + "</doc>".len();
        sent = sent
            .strip_prefix(&client[..start])
            .expect("text between documents stays");
        client = &client[end..];
        is_first = false;
        if sent.starts_with("<doc id=") {
            let end = sent.find("</doc>").unwrap() + "</doc>".len();
            group.documents.push(sent[..end].to_owned());
            sent = &sent[end..];
        } else if let Some((label, after)) = reference(sent) {
            group.references.push(label.to_owned());
            sent = after;
        }
    }
    if !is_first && let Some((order, after)) = sent.strip_prefix('\n').and_then(order_hint) {
        group.hint = Some(order.to_owned());
        sent = after;
    }
    assert_eq!(sent, client, "text behind the documents stays");
    group
}

fn reference(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix("Please refer to [")?
        .split_once("] in the previous conversation.")
}

/// The text with references in the places of its tagged documents.
fn referred(text: &str) -> String {
    let mut parts = text.split("<doc id=\"");
    let mut referred = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (label, rest) = part.split_once("\">").unwrap();
        let (_, behind) = rest.split_once("</doc>").unwrap();
        referred += &format!("Please refer to [{label}] in the previous conversation.{behind}");
    }
    referred
}

/// The labels that a hint tells, and what stands behind the hint.
fn order_hint(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix("Best documents first: ")?.split_once('.')
}

/// Labels and texts: two documents share a label, one has none, one is shorter than a hint.
const DOCUMENTS: [(&str, &str); 7] = [
    (
        "a",
        "The lamp is lit at dusk and trimmed at midnight, and the keeper signs for both.",
    ),
    (
        "b",
        "Coal comes by boat in \"good\" weather;\n\tin bad weather the store must do. é 😀",
    ),
    (
        "c",
        "The fog signal sounds twice a minute. Backslashes \\ and <tags> & such are text.",
    ),
    (
        "d",
        "Visitors are shown the lantern room in parties of four, never after sunset.",
    ),
    (
        "d",
        "Visitors bring their own lamps. This one has the same label as another document.",
    ),
    (
        "",
        "A document that nobody named, long enough for a hint if only it had a label.",
    ),
    ("g", "Short."),
];

const LISTS: [&[usize]; 10] = [
    &[],
    &[0, 1],
    &[1, 0],
    &[2, 3, 0],
    &[3, 4, 1],
    &[5, 6, 0],
    &[0, 1, 0, 5, 5],
    &[4],
    &[6, 2, 1, 0],
    &[],
];

const ARRAYS: [&[usize]; 8] = [
    &[],
    &[0, 1],
    &[1, 0, 2],
    &[3],
    &[4, 3, 0],
    &[5, 6],
    &[2, 0],
    &[],
];

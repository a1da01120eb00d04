//! Chats whose contexts their clients take out of the history again, as seven clients send them: golden files, and properties
//! against a slow model that keeps all that was ever sent.
//!
//! `tests/wandering/CLIENT/N.in.json` is the Nth request of one chat, `N.out.json` what is sent for it.
//! `UPDATE_GOLDEN=1 cargo test -p foreword-ordering --test ordering wandering` writes them anew.

use crate::clients::{Client, Context, Turn};
use crate::clients_model as model;
use crate::clients_model::{Step, contents, orderer, send};
use foreword_ordering::{Orderer, PeerUpdate, Tenant};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

/// Everything on.
fn applying() -> Orderer {
    orderer(json!({"conversation": {"pin": true}, "head": {"mode": "apply"}}))
}

fn context(name: &str) -> Context {
    Context {
        title: format!("{name}.md"),
        text: format!(
            "The {name} costs {} crowns.\nIt \"lasts\" long. ",
            name.len()
        )
        .repeat(6),
    }
}

fn turn(question: &str, contexts: &[&str], answer: &str) -> Turn {
    Turn {
        question: question.into(),
        contexts: contexts.iter().map(|name| context(name)).collect(),
        answer: answer.into(),
    }
}

fn chat() -> Vec<Turn> {
    vec![
        turn(
            "What does the kettle cost?",
            &["kettle", "teapot"],
            "6 crowns.",
        ),
        turn(
            "And the teapot?\nIs it \"good\"?",
            &["teapot", "cup"],
            "Also 6, and it is.",
        ),
        turn(
            "Which is cheapest?",
            &["cup", "kettle", "spoon"],
            "The cup.",
        ),
    ]
}

#[test]
fn bodies_become_what_the_golden_files_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wandering");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    for client in Client::ALL {
        let folder = folder.join(client.name());
        let mut orderer = applying();
        for turns in 1..=chat().len() {
            let body = client.body(&chat()[..turns]);
            let sent = send(&mut orderer, "", &body);
            for (kind, text) in [("in", &body), ("out", &sent)] {
                let path = folder.join(format!("{turns}.{kind}.json"));
                if update {
                    std::fs::create_dir_all(&folder).unwrap();
                    std::fs::write(&path, text).unwrap();
                }
                if std::fs::read_to_string(&path).unwrap_or_default() != **text {
                    wrong.push(format!("{} should be:\n{text}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_chats_earlier_messages_stand_as_they_were_sent_whichever_client_sends_them() {
    for client in Client::ALL {
        let mut orderer = applying();
        let mut before: Vec<String> = Vec::new();
        for turns in 1..=chat().len() {
            let body = client.body(&chat()[..turns]);
            let sent = contents(&send(&mut orderer, "", &body));
            assert_eq!(sent[..before.len()], before, "{} {turns}", client.name());
            let report = orderer.last_head();
            assert_eq!(report.restored as usize, turns - 1, "{}", client.name());
            assert!(report.applied || turns == 1, "{}", client.name());
            assert_eq!(sent.len(), turns * 2);
            before = sent;
        }
    }
}

/// Bytes of a chat's prompts that no earlier prompt of its began with.
fn computed(prompts: &[String]) -> usize {
    let shared = |one: &str, other: &str| {
        let pairs = one.bytes().zip(other.bytes());
        pairs.take_while(|(one, other)| one == other).count()
    };
    let new = |at: usize| {
        let earlier = prompts[..at].iter();
        let most = earlier.map(|earlier| shared(earlier, &prompts[at])).max();
        prompts[at].len() - most.unwrap_or(0)
    };
    (0..prompts.len()).map(new).sum()
}

#[test]
fn an_engine_computes_three_quarters_at_most_of_what_the_clients_bodies_cost() {
    let chat: Vec<Turn> = (0..6)
        .map(|at| {
            let names = ["kettle", "teapot", "cup", "spoon", "saucer", "tray", "jug"];
            let contexts = [at, at + 1, (at + 3) % 7].map(|name| names[name % 7]);
            turn(
                &format!("Question {at}?"),
                &contexts,
                "It depends. ".repeat(20).trim(),
            )
        })
        .collect();
    for client in Client::ALL {
        let prompts = |orderer: Option<Orderer>| {
            let mut orderer = orderer;
            let bodies = (1..=chat.len()).map(|turns| client.body(&chat[..turns]));
            let sent = bodies.map(|body| match &mut orderer {
                Some(orderer) => contents(&send(orderer, "", &body)).join("\n"),
                None => contents(&body).join("\n"),
            });
            computed(&sent.collect::<Vec<_>>())
        };
        let (came, sent) = (prompts(None), prompts(Some(applying())));
        assert!(sent * 4 <= came * 3, "{}: {sent} of {came}", client.name());
    }
}

#[test]
fn a_chat_that_comes_to_another_worker_gets_its_contexts_back() {
    for client in Client::ALL {
        let mut workers = [applying(), applying()];
        let mut before: Vec<String> = Vec::new();
        for turns in 1..=chat().len() {
            let body = client.body(&chat()[..turns]);
            let at = turns % 2;
            let rewrite = workers[at]
                .rewrite(Tenant::named("t"), body.as_bytes())
                .unwrap();
            let told = PeerUpdate::decode(&rewrite.record.encode()).unwrap();
            workers[1 - at].learn(&told);
            let sent = String::from_utf8(rewrite.body.unwrap_or(body.into())).unwrap();
            let sent = contents(&sent);
            assert_eq!(sent[..before.len()], before, "{} {turns}", client.name());
            before = sent;
        }
    }
}

#[test]
fn a_worker_that_was_told_of_a_chat_evicts_its_first_messages_last() {
    let config =
        json!({"conversation": {"pin": true, "max_entries": 3}, "head": {"mode": "apply"}});
    let client = Client::OpenWebUi;
    let mut workers = [(); 2].map(|()| orderer(config.clone()));
    let ask = |workers: &mut [Orderer; 2], at: usize, turns: &[Turn]| {
        let body = client.body(turns);
        let rewrite = workers[at].rewrite(Tenant::named("t"), body.as_bytes());
        let rewrite = rewrite.unwrap();
        let told = PeerUpdate::decode(&rewrite.record.encode()).unwrap();
        workers[1 - at].learn(&told);
        contents(&String::from_utf8(rewrite.body.unwrap_or(body.into())).unwrap())
    };
    let mut chat = chat();
    let mut before = Vec::new();
    for turns in 1..=chat.len() {
        before = ask(&mut workers, 0, &chat[..turns]);
    }
    ask(
        &mut workers,
        0,
        &[turn("What is a tray?", &["tray"], "Flat.")],
    );
    chat.push(turn("And a jug?", &["jug"], ""));
    let sent = ask(&mut workers, 1, &chat);
    assert_eq!(sent[..4], before[..4]);
    assert_ne!(sent[5], before[5], "one message of the chat was evicted");
}

#[test]
fn chats_that_cannot_be_told_apart_get_nothing_back() {
    let ask = |contexts: &[&str]| vec![turn("Why?", contexts, "So.")];
    for client in [Client::OpenWebUi, Client::AnythingLlm] {
        let mut orderer = applying();
        let (mut one, two) = (ask(&["kettle"]), ask(&["teapot"]));
        send(&mut orderer, "", &client.body(&one));
        send(&mut orderer, "", &client.body(&two));
        one.push(turn("How?", &["cup"], ""));
        let sent = contents(&send(&mut orderer, "", &client.body(&one)));
        assert_eq!(sent[1], "Why?");
        // The same words of another tenant are nobody's business, and neither is another user's chat.
        let mut orderer = applying();
        send(&mut orderer, "a", &client.body(&two));
        for (tenant, user) in [("b", None), ("a", Some("u"))] {
            let mut body: Value = serde_json::from_str(&client.body(&one)).unwrap();
            if let Some(user) = user {
                body["user"] = user.into();
            }
            let sent = contents(&send(&mut orderer, tenant, &body.to_string()));
            assert_eq!(sent[1], "Why?", "{tenant}");
        }
        let sent = contents(&send(&mut orderer, "a", &client.body(&one)));
        assert!(sent[1].contains("teapot"), "{}", sent[1]);
        // One sending has one continuation.
        one[0].answer = "Because.".into();
        let sent = contents(&send(&mut orderer, "a", &client.body(&one)));
        assert_eq!(sent[1], "Why?");
    }
}

#[test]
fn a_question_that_was_asked_without_contexts_gets_none_of_another_chats() {
    let bare = turn("Why?", &[], "So.");
    let told = |orderer: &mut Orderer, body: &str| {
        let rewrite = orderer.rewrite(Tenant::named(""), body.as_bytes());
        rewrite.map(|rewrite| rewrite.record).unwrap()
    };
    for client in [Client::OpenWebUi, Client::AnythingLlm] {
        let asked = client.body(std::slice::from_ref(&bare));
        let with = client.body(&[turn("Why?", &["kettle"], "So.")]);
        let next = client.body(&[bare.clone(), turn("How?", &["cup"], "")]);
        // The first one comes before the tenant has any state.
        for learns in [false, true] {
            let mut orderer = applying();
            send(&mut orderer, "", &asked);
            if learns {
                let record = told(&mut applying(), &with);
                orderer.learn(&PeerUpdate::OrderingRecord(record));
            } else {
                send(&mut orderer, "", &with);
            }
            let sent = contents(&send(&mut orderer, "", &next));
            assert_eq!(sent[1], "Why?", "{}", client.name());
        }
        // Another tenant's question is no reason.
        let mut orderer = applying();
        send(&mut orderer, "a", &asked);
        send(&mut orderer, "b", &with);
        let sent = contents(&send(&mut orderer, "b", &next));
        assert!(sent[1].contains("kettle"), "{}", client.name());
    }
}

/// A request of Open WebUI for chunks of one attached file, which all have the file's number and name.
fn of_one_file(chat: &[(&str, Vec<String>, &str)]) -> String {
    let ((question, chunks, _), earlier) = chat.split_last().unwrap();
    let mut messages = Vec::new();
    for (question, _, answer) in earlier {
        messages.push(json!({"role": "user", "content": question}));
        messages.push(json!({"role": "assistant", "content": answer}));
    }
    let sources: String = (chunks.iter())
        .map(|chunk| format!("<source id=\"1\" name=\"handbook.txt\" resource-type=\"file\" resource-id=\"6f1c\">{chunk}</source>\n"))
        .collect();
    let content = format!(
        "### Task:\nAnswer from the context (e.g., <source id=\"1\">).\n\n<context>\n{sources}</context>\n\n{question}"
    );
    messages.push(json!({"role": "user", "content": content}));
    json!({"model": "m", "messages": messages}).to_string()
}

/// A chunk of a file; two that begin alike differ in their ends.
fn chunk(opening: &str, name: &str) -> String {
    format!(
        "{opening} {}",
        format!("The {name} is told of here. ")
            .repeat(12)
            .trim_end()
    )
}

#[test]
fn a_reference_to_a_chunk_of_an_attached_file_names_that_chunk_and_no_other() {
    let harbour = chunk("The harbour opens at six.", "harbour");
    let ferry = chunk("A ferry leaves at noon.", "ferry");
    let (tower, spire) = (
        chunk(
            "As was said on the first page of this book, it is old.",
            "tower",
        ),
        chunk(
            "As was said on the first page of this book, it is old.",
            "spire",
        ),
    );
    let mill = chunk("The mill stands still.", "mill");
    let all = [&harbour, &ferry, &tower, &spire]
        .map(String::clone)
        .to_vec();
    let turns = [
        ("When does the harbour open?", all, "At six."),
        (
            "And the ferry?",
            vec![mill.clone(), ferry.clone(), harbour.clone()],
            "It leaves at noon.",
        ),
        (
            "How old is the tower?",
            vec![tower.clone(), mill.clone(), ferry.clone()],
            "",
        ),
    ];
    let mut orderer = applying();
    let mut before: Vec<String> = Vec::new();
    for turn in 1..=turns.len() {
        let sent = contents(&send(&mut orderer, "", &of_one_file(&turns[..turn])));
        assert_eq!(sent[..before.len()], before);
        before = sent;
    }
    let [_, _, second, _, third] = &before[..] else {
        panic!("{before:?}");
    };
    let refers = |text: &str, name: &str| {
        let words = format!(">Please refer to [{name}] in the previous conversation.</source>");
        text.matches(&words).count() == 1
    };
    assert!(
        refers(
            second,
            "A ferry leaves at noon. The ferry is… of question 1"
        ),
        "{second}"
    );
    assert!(
        refers(
            second,
            "The harbour opens at six. The harbour is… of question 1"
        ),
        "{second}"
    );
    assert!(second.contains(&mill) && !second.contains(&ferry));
    // Where the words do not tell chunks apart either, the chunk itself is sent.
    assert!(third.contains(&tower), "{third}");
    assert!(
        refers(
            third,
            "The mill stands still. The mill is told… of question 2"
        ),
        "{third}"
    );
    assert!(
        refers(third, "A ferry leaves at noon. The ferry is… of question 1"),
        "{third}"
    );
}

#[test]
fn contexts_of_a_turn_that_a_chat_has_no_room_for_are_not_kept() {
    let mut orderer = orderer(json!({
        "conversation": {"pin": true, "max_pinned_tokens": 10}, "head": {"mode": "apply"}
    }));
    let chat = chat();
    let mut sent = Vec::new();
    for turns in 1..=2 {
        sent = contents(&send(
            &mut orderer,
            "",
            &Client::OpenWebUi.body(&chat[..turns]),
        ));
    }
    assert_eq!(sent[1], chat[0].question);
}

#[test]
fn each_part_has_a_switch_and_none_works_without_pinning() {
    let sent = |config: Value, client: Client| {
        let mut orderer = orderer(config);
        send(&mut orderer, "", &client.body(&chat()[..1]));
        contents(&send(&mut orderer, "", &client.body(&chat()[..2])))
    };
    let config = |pin: bool, contexts: Value| json!({"conversation": {"pin": pin}, "head": {"mode": "apply", "contexts": contexts}});
    let question = &chat()[0].question;
    for client in [Client::OpenWebUi, Client::AnythingLlm] {
        for (pin, contexts) in [
            (true, json!({"restore": false, "relocate": false})),
            (false, json!({})),
        ] {
            let sent = sent(config(pin, contexts), client);
            assert_eq!(sent[1], *question);
            assert_eq!(sent[0].contains("CONTEXT"), client == Client::AnythingLlm);
        }
    }
    let kept = sent(
        config(true, json!({"relocate": false})),
        Client::AnythingLlm,
    );
    assert!(kept[0].contains("[CONTEXT ") && kept[1] == *question);
}

#[test]
fn a_system_text_that_the_client_wants_cached_stays() {
    let mut orderer = applying();
    let body = json!({
        "system": [{
            "type": "text", "text": "Be kind. <source>a</source><source>b</source>",
            "cache_control": {"type": "ephemeral"}
        }],
        "messages": [{"role": "user", "content": "Why?"}]
    });
    let sent = send(&mut orderer, "", &body.to_string());
    assert!(sent.contains("Be kind. <source>"), "{sent}");
}

#[test]
fn labelled_documents_of_a_system_text_stay_with_their_labels() {
    let text = "Ours: <source>a</source> Theirs (14:03, 2024-05-01): <source>b</source> Be kind.";
    let body = json!({"system": text, "messages": [{"role": "user", "content": "Why?"}]});
    let body = body.to_string();
    assert_eq!(send(&mut applying(), "", &body), body);
}

#[test]
fn contents_in_parts_get_their_text_back_and_keep_their_pictures() {
    let picture = json!({"type": "image_url", "image_url": {"url": "x"}});
    let body = |chat: &[Turn], at: usize| {
        let mut body: Value = serde_json::from_str(&Client::OpenWebUi.body(chat)).unwrap();
        let text = body["messages"][at]["content"].take();
        body["messages"][at]["content"] = json!([{"type": "text", "text": text}, picture]);
        body.to_string()
    };
    let mut orderer = applying();
    let chat = chat();
    let first = send(&mut orderer, "", &body(&chat[..1], 1));
    let second = send(&mut orderer, "", &body(&chat[..2], 1));
    let [first, second]: [Value; 2] =
        [first, second].map(|body| serde_json::from_str(&body).unwrap());
    assert_eq!(first["messages"][1], second["messages"][1]);
    // Another picture is another message.
    let other = body(&chat[..2], 1).replace("\"x\"", "\"y\"");
    let sent: Value = serde_json::from_str(&send(&mut orderer, "", &other)).unwrap();
    assert_eq!(sent["messages"][1]["content"][0]["text"], chat[0].question);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_message_has_its_own_chats_contexts_or_none(
        steps in prop::collection::vec(any::<Step>(), 1..40),
        client in 0..Client::ALL.len(),
        max_bytes in prop::sample::select(vec![3_000_u64, 1 << 20]),
    ) {
        model::run(Client::ALL[client], max_bytes, &steps);
    }

    #[test]
    fn a_chat_grows_and_every_line_that_was_found_stands_in_it(
        steps in prop::collection::vec(any::<Step>(), 1..30),
        client in 0..Client::ALL.len(),
    ) {
        model::run_whole(Client::ALL[client], &steps);
    }
}

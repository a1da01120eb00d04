//! Tests a chat whose documents are retrieved in scripted stages: what the engine computes meanwhile.

use crate::support::client::{get, post};
use crate::support::{Options, TestServer, until};
use foreword_retrieval::store::Stage;
use foreword_retrieval::{Ask, Document, ScoredDocument, Store, StoreError};
use foreword_server::retrieval::Config;
use foreword_server::retrieval::pipeline::Compared;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// A document store whose search yields the stages, the end or the failure that the test sends.
struct Scripted {
    steps: Mutex<Receiver<Step>>,
}

enum Step {
    Stage(&'static [&'static str]),
    End(&'static [&'static str]),
    Fail,
}

fn found(ids: &[&str]) -> Vec<ScoredDocument> {
    let found = |id: &&str| ScoredDocument {
        document: Arc::new(Document {
            id: (*id).to_owned(),
            text: format!("{id} is a document. ").repeat(8),
            ..Document::default()
        }),
        score: 1.0,
    };
    ids.iter().map(found).collect()
}

impl Store for Scripted {
    fn search(&self, _: &Ask, stage: &mut Stage<'_>) -> Result<Vec<ScoredDocument>, StoreError> {
        let steps = self.steps.lock().unwrap();
        while let Ok(step) = steps.recv() {
            match step {
                Step::Stage(ids) => {
                    if stage(&found(ids)) == ControlFlow::Break(()) {
                        break;
                    }
                }
                Step::End(ids) => return Ok(found(ids)),
                Step::Fail => break,
            }
        }
        Err(StoreError::Unavailable("the script is over".to_owned()))
    }

    fn version(&self) -> Result<String, StoreError> {
        Ok("1".to_owned())
    }

    fn embedder(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

async fn house(max_waiting: u32) -> (TestServer, Sender<Step>) {
    house_with_steps(max_waiting, 512).await
}

async fn house_with_steps(max_waiting: u32, max_step_tokens: u32) -> (TestServer, Sender<Step>) {
    let free = Config {
        ordering: foreword_ordering::Config::default()
            .with_placement(foreword_ordering::policy::Placement::FREE),
        ..Config::default()
    };
    house_with(free, max_waiting, max_step_tokens).await
}

async fn house_with(
    retrieval: Config,
    max_waiting: u32,
    max_step_tokens: u32,
) -> (TestServer, Sender<Step>) {
    let (sender, steps) = channel();
    let store = Scripted {
        steps: Mutex::new(steps),
    };
    let retrieval = Config {
        store: Some(Arc::new(store)),
        ..retrieval
    };
    let options = Options {
        retrieval,
        max_waiting,
        max_running: 1,
        max_step_tokens,
        ..Options::default()
    };
    (TestServer::with(options).await, sender)
}

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "Which one? say(this)"}], "retrieval": true})
}

async fn ask(house: &TestServer) -> tokio::task::JoinHandle<crate::support::client::Response> {
    let address = house.address();
    tokio::spawn(async move { post(address, "/v1/chat/completions", &chat()).await })
}

/// Returns whether `guesses` guesses have been received and none of them waits or runs.
fn has_computed(house: &TestServer, guesses: u64) -> bool {
    let stats = house.stats();
    stats.speculations_started == guesses && stats.waiting + stats.running == 0
}

#[tokio::test]
async fn a_right_guess_is_joined_and_nothing_is_computed_twice() {
    let (house, script) = house(8).await;
    let answer = ask(&house).await;
    script.send(Step::Stage(&["a", "b"])).unwrap();
    until("the guess is computed", || has_computed(&house, 1)).await;
    let computed = house.stats().prompt_tokens;
    // Other ranks of the same documents do not start a new guess.
    script.send(Step::Stage(&["b", "a"])).unwrap();
    script.send(Step::End(&["a", "b"])).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.header("x-foreword-retrieved"), Some("2"));
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "this");
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"].as_u64(), Some(computed));
    assert_eq!(
        usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        Some(computed - 1)
    );
    assert_eq!(house.stats().speculations_started, 1);
    house.idle().await;
}

/// Checks the number of guesses computed after each stage of a search. Returns the tokens that the chat then computes.
async fn guesses(retrieval: Config, stages: &[(&'static [&'static str], u64)]) -> u64 {
    let (house, script) = house_with(retrieval, 8, 512).await;
    let answer = ask(&house).await;
    for (stage, guesses) in stages {
        script.send(Step::Stage(stage)).unwrap();
        until("the guess is computed", || has_computed(&house, *guesses)).await;
    }
    let (last, guesses) = stages[stages.len() - 1];
    script.send(Step::End(last)).unwrap();
    let usage = answer.await.unwrap().json()["usage"].clone();
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    let prompt = usage["prompt_tokens"].as_u64();
    assert_eq!(house.stats().speculations_started, guesses);
    house.idle().await;
    prompt.unwrap() - cached.unwrap()
}

#[tokio::test]
async fn ranks_end_a_guess_where_the_order_follows_from_them() {
    let with = |json: &str, compared| Config {
        ordering: foreword_ordering::Config::from_json(json.as_bytes()).unwrap(),
        compared,
        ..Config::default()
    };
    let stages = |counts: [u64; 3]| {
        let stages: [&[&str]; 3] = [&["a", "b", "c"], &["a", "c", "b"], &["c", "a", "b"]];
        [0, 1, 2].map(|stage| (stages[stage], counts[stage]))
    };
    // The best document is favoured, and it changes in the last stage.
    let placed = with("{}", Compared::Documents);
    assert_eq!(guesses(placed, &stages([1, 1, 2])).await, 1);
    let free = r#"{"rank": {"place": "free"}}"#;
    // Only the hint differs.
    let hint = guesses(with(free, Compared::Documents), &stages([1, 1, 1])).await;
    assert!((2..80).contains(&hint), "{hint}");
    let ranks = with(free, Compared::Ranks);
    assert_eq!(guesses(ranks, &stages([1, 2, 3])).await, 1);
    // The retriever's order is forwarded, whatever was guessed before.
    let retrieval = with(r#"{"policy": "retrieval"}"#, Compared::Documents);
    assert_eq!(guesses(retrieval, &stages([1, 2, 3])).await, 1);
}

#[tokio::test]
async fn the_chat_takes_the_place_of_a_guess_that_still_waits() {
    let (house, script) = house(8).await;
    house.steps.hold(0);
    let address = house.address();
    let body = json!({"messages": [{"role": "user", "content": "say(other)"}]});
    let other = tokio::spawn(async move { post(address, "/v1/chat/completions", &body).await });
    until("the other one runs", || {
        let stats = house.stats();
        stats.running == 1 || stats.waiting == 1
    })
    .await;
    let answer = ask(&house).await;
    script.send(Step::Stage(&["a", "b"])).unwrap();
    let waiting =
        |count| move |house: &TestServer| house.stats().waiting + house.stats().running >= count;
    until("the guess waits", || waiting(2)(&house)).await;
    script.send(Step::End(&["a", "b"])).unwrap();
    until("the chat has come too", || waiting(3)(&house)).await;
    house.steps.release();
    let answer = answer.await.unwrap().json();
    assert_eq!(answer["choices"][0]["message"]["content"], "this");
    assert_eq!(other.await.unwrap().status, 200);
    let stats = house.stats();
    assert_eq!(
        (stats.speculations_joined, stats.speculations_superseded),
        (1, 0)
    );
    house.idle().await;
}

#[tokio::test]
async fn a_wrong_guess_is_superseded_and_what_it_shares_is_kept() {
    let (house, script) = house(8).await;
    let answer = ask(&house).await;
    script.send(Step::Stage(&["a", "c"])).unwrap();
    until("the first guess is computed", || has_computed(&house, 1)).await;
    let before = house.stats().cached_tokens;
    script.send(Step::Stage(&["b", "a"])).unwrap();
    until("the second guess is computed", || has_computed(&house, 2)).await;
    // Document a comes first, although b ranks higher now: a's tokens were cached.
    let shared = house.stats().cached_tokens - before;
    assert!(shared > 8 * "a is a document. ".len() as u64, "{shared}");
    script.send(Step::End(&["b", "a"])).unwrap();
    let usage = answer.await.unwrap().json()["usage"].clone();
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(
        cached,
        usage["prompt_tokens"].as_u64().map(|tokens| tokens - 1)
    );
    house.idle().await;
}

#[tokio::test]
async fn under_load_nothing_is_guessed() {
    let (house, script) = house(64).await;
    house.steps.hold(0);
    // One request runs, and four wait, which is the batch limit for prefills.
    let others: Vec<_> = (0..5)
        .map(|_| {
            let address = house.address();
            let body = json!({"messages": [{"role": "user", "content": "say(other)"}]});
            tokio::spawn(async move { post(address, "/v1/chat/completions", &body).await })
        })
        .collect();
    until("they wait", || house.stats().waiting >= 4).await;
    let answer = ask(&house).await;
    script.send(Step::Stage(&["a", "b"])).unwrap();
    until("the guess is refused", || {
        house.stats().speculations_refused == 1
    })
    .await;
    script.send(Step::End(&["a", "b"])).unwrap();
    house.steps.release();
    assert_eq!(
        answer.await.unwrap().json()["choices"][0]["message"]["content"],
        "this"
    );
    for other in others {
        assert_eq!(other.await.unwrap().status, 200);
    }
    assert_eq!(house.stats().speculations_started, 0);
    let metrics = String::from_utf8(get(house.internal(), "/metrics").await.body).unwrap();
    assert!(
        metrics.contains("foreword_speculations_refused_total 1"),
        "{metrics}"
    );
    house.idle().await;
}

/// Tokens computed for an answer: the uncached ones of its prompt, and its own, including the end token.
fn computed(answer: &Value) -> u64 {
    let usage = &answer["usage"];
    let count = |value: &Value| value.as_u64().expect("a count");
    let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    count(&usage["prompt_tokens"]) - cached + count(&usage["completion_tokens"])
}

#[tokio::test]
async fn under_load_a_guess_whose_documents_changed_is_computed_no_further() {
    const STEP_TOKENS: u32 = 32;
    let (house, script) = house_with_steps(64, STEP_TOKENS).await;
    house.steps.hold(2);
    let answer = ask(&house).await;
    script.send(Step::Stage(&["a", "b"])).unwrap();
    until("two steps of the guess are computed", || {
        house.stats().steps == 2
    })
    .await;
    let others: Vec<_> = (0..5)
        .map(|_| {
            let address = house.address();
            let body = json!({"messages": [{"role": "user", "content": "say(other)"}]});
            tokio::spawn(async move { post(address, "/v1/chat/completions", &body).await })
        })
        .collect();
    until("as many wait as a batch of prefills", || {
        house.stats().waiting >= 5
    })
    .await;
    // The guess's third step is being computed. It is the last one, although no other guess replaces it.
    script.send(Step::Stage(&["c", "d"])).unwrap();
    until("the next guess is refused", || {
        house.stats().speculations_refused == 1
    })
    .await;
    house.steps.release();
    let mut answers = Vec::new();
    for other in others {
        answers.push(other.await.unwrap().json());
    }
    until("nothing runs while the search goes on", || {
        let stats = house.stats();
        stats.waiting + stats.running == 0
    })
    .await;
    let wasted = |answers: &[Value]| {
        house.steps.computed_tokens() - answers.iter().map(computed).sum::<u64>()
    };
    assert_eq!(wasted(&answers), 3 * u64::from(STEP_TOKENS));
    script.send(Step::End(&["c", "d"])).unwrap();
    answers.push(answer.await.unwrap().json());
    house.idle().await;
    assert_eq!(wasted(&answers), 3 * u64::from(STEP_TOKENS));
    let whole = answers[5]["usage"]["prompt_tokens"].as_u64().unwrap();
    println!("96 of the guess's {whole} tokens were computed");
    assert!(whole > 8 * u64::from(STEP_TOKENS), "{whole}");
    let stats = house.stats();
    assert_eq!(
        (stats.speculations_started, stats.speculations_cancelled),
        (1, 1)
    );
}

#[tokio::test]
async fn a_search_that_fails_after_a_guess_leaves_nothing_behind() {
    let (house, script) = house(8).await;
    let answer = ask(&house).await;
    script.send(Step::Stage(&["a", "b"])).unwrap();
    until("the guess is taken in", || {
        house.stats().speculations_started == 1
    })
    .await;
    script.send(Step::Fail).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.header("x-foreword-retrieved"), Some("failed"));
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "this");
    house.idle().await;
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_search_and_the_guess() {
    let (house, script) = house(8).await;
    house.steps.hold(0);
    let answer = ask(&house).await;
    script.send(Step::Stage(&["a", "b"])).unwrap();
    until("the guess is taken in", || {
        house.stats().speculations_started == 1
    })
    .await;
    answer.abort();
    house.steps.release();
    house.idle().await;
    until("the place inside is free", || {
        house.app().gate.inside() == 0
    })
    .await;
    // The search is cancelled at its next stage, and the next chat is searched for.
    script.send(Step::Stage(&["c"])).unwrap();
    script.send(Step::End(&["a"])).unwrap();
    let answer = post(house.address(), "/v1/chat/completions", &chat()).await;
    assert_eq!(answer.header("x-foreword-retrieved"), Some("1"));
}

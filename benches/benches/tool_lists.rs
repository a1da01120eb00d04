//! What an engine computes of requests that offer tools of real lists, when their clients change these lists from one request to
//! the next: as their bodies come, and as the gateway sends them. Every body that is sent is compared with the one that came.
//!
//! ```text
//! FOREWORD_BFCL=FOLDER cargo bench -p foreword-benches -- tool_lists
//! ```
//!
//! The folder is `bfcl_eval/data` of the Berkeley Function-Calling Leaderboard (PyPI `bfcl-eval`, Apache-2.0), version 4. Two traces
//! are made of it:
//!
//! - *live*: requests of users to products with at least two functions, `BFCL_v4_live_*.json`, in an order that is the same
//!   every time; each brings its product's list.
//! - *chats*: the chats of `BFCL_v4_multi_turn_base.json`, eight under way at once. A request brings all functions of the
//!   chat's APIs (9 to 40), and the chat's turns so far, with the expected calls in the place of answers.

#[path = "../../wasm-module/ordering/tests/tool_lists/lists.rs"]
mod lists;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use foreword_benches::Arguments;
use foreword_ordering::config::RawConfig;
use foreword_ordering::policy::PolicyKind;
use foreword_ordering::random::Random;
use foreword_simulation::{Capacity, Logged, PromptReplay, PromptReuse};
use lists::{Api, Broken, Json, differ_by_order_alone};

/// Chats under way at once.
const AT_ONCE: usize = 8;

const SYSTEM: &str = "You are an expert in composing functions. You are given a question and a set of possible functions. \
     Based on the question, make one or more function calls to achieve the purpose. If none of the functions can be used, \
     point it out.";

const STABILISED: &str = r#"{"head":{"mode":"apply"}}"#;

pub(crate) fn bench(_: &Arguments) -> Result<()> {
    let Some(folder) = std::env::var_os("FOREWORD_BFCL").map(PathBuf::from) else {
        println!("skipped: FOREWORD_BFCL names no folder with BFCL's data");
        return Ok(());
    };
    if !folder.is_dir() {
        println!("skipped: {} does not exist", folder.display());
        return Ok(());
    }
    let traces = [("live", live(&folder)?), ("chats", chats(&folder)?)];
    for (name, requests) in &traces {
        let functions: usize = requests.iter().map(|request| request.functions.len()).sum();
        println!(
            "{name}: {} requests, {:.1} functions each\n",
            requests.len(),
            functions as f64 / requests.len() as f64
        );
        println!(
            "| what changes | prompt tokens | as it comes | stabilised | of an unbroken head |"
        );
        println!("| --- | --- | --- | --- | --- |");
        let mut whole = None;
        for broken in Broken::ALL {
            let bodies: Vec<String> = (requests.iter().zip(0..))
                .map(|(request, nth)| request.body(Api::Chat, broken, nth))
                .collect();
            let came = replayed(&bodies, PolicyKind::Retrieval, "{}", None)?;
            let sent = replayed(&bodies, PolicyKind::Foresight, STABILISED, Some(Api::Chat))?;
            let whole = *whole.get_or_insert(came.share());
            println!(
                "| {} | {} | {:.1} % | {:.1} % | {:.2} |",
                broken.name(),
                came.prompt_tokens,
                100.0 * came.share(),
                100.0 * sent.share(),
                sent.share() / whole,
            );
        }
        println!();
    }
    for api in Api::ALL {
        for broken in Broken::ALL {
            for (_, requests) in &traces {
                let bodies = (requests.iter().zip(0..)).step_by(7);
                let bodies: Vec<String> = bodies
                    .map(|(request, nth)| request.body(api, broken, nth))
                    .collect();
                replayed(&bodies, PolicyKind::Foresight, STABILISED, Some(api))?;
            }
        }
    }
    println!(
        "every body that was sent held what came, in six APIs' forms, and nothing but order differed"
    );
    Ok(())
}

/// What a cache without a bound would do for these requests; of an API whose bodies are to be compared.
fn replayed(
    bodies: &[String],
    kind: PolicyKind,
    config: &str,
    compared: Option<Api>,
) -> Result<PromptReuse> {
    let raw = RawConfig::from_json(config.as_bytes())?;
    let mut replay = PromptReplay::new(raw, kind, Capacity::UNBOUNDED)?;
    for body in bodies {
        let logged = Logged {
            body: body.into(),
            tenant: "".into(),
            engine: "".into(),
            path: "".into(),
            prompt_tokens: None,
            cached_tokens: None,
            at_ms: None,
            has_unread_time: false,
        };
        let sent = replay.decide(&logged)?;
        if let (Some(api), Some(sent)) = (compared, &sent) {
            let compared = differ_by_order_alone(api, body, std::str::from_utf8(sent)?);
            ensure!(compared.is_ok(), "{}: {compared:?}", api.name());
        }
        replay.serve(&logged, sent.as_deref())?;
    }
    Ok(replay.reuse())
}

/// A request of a trace.
struct Asked {
    functions: Vec<Json>,
    system: String,
    /// The chat's messages, each as its role and its text.
    messages: Vec<(&'static str, String)>,
}

impl Asked {
    fn body(&self, api: Api, broken: Broken, nth: u64) -> String {
        let messages = self.messages.iter().map(|(role, text)| (*role, &**text));
        let messages: Vec<(&str, &str)> = messages.collect();
        api.body(&broken.of(&self.functions, nth), &self.system, &messages)
    }
}

/// The lines of a file, each a JSON object.
fn lines(path: &Path) -> Result<Vec<Json>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(Json::of)
        .collect())
}

/// The roles and texts of a turn; system messages apart.
fn said(turn: &Json) -> (Vec<String>, Vec<(&'static str, String)>) {
    let (mut system, mut messages) = (Vec::new(), Vec::new());
    for message in turn.elements() {
        let text = message.get("content").map_or("", Json::text).to_owned();
        match message.get("role").map_or("", Json::text) {
            "system" => system.push(text),
            "assistant" => messages.push(("assistant", text)),
            _ => messages.push(("user", text)),
        }
    }
    (system, messages)
}

fn live(folder: &Path) -> Result<Vec<Asked>> {
    let mut requests = Vec::new();
    for name in ["multiple", "parallel_multiple", "irrelevance", "relevance"] {
        for line in lines(&folder.join(format!("BFCL_v4_live_{name}.json")))? {
            let functions = line.get("function").map_or(&[][..], Json::elements);
            let Some(turn) = line
                .get("question")
                .and_then(|turns| turns.elements().first())
            else {
                continue;
            };
            let (system, messages) = said(turn);
            if functions.len() > 1 && !messages.is_empty() {
                requests.push(Asked {
                    functions: functions.to_vec(),
                    system: [&[SYSTEM.to_owned()], &*system].concat().join("\n"),
                    messages,
                });
            }
        }
    }
    let mut random = Random::new(23);
    for at in (1..requests.len()).rev() {
        requests.swap(at, random.below(at as u64 + 1) as usize);
    }
    Ok(requests)
}

fn chats(folder: &Path) -> Result<Vec<Asked>> {
    let apis = [
        ("GorillaFileSystem", "gorilla_file_system"),
        ("MathAPI", "math_api"),
        ("MessageAPI", "message_api"),
        ("TwitterAPI", "posting_api"),
        ("TicketAPI", "ticket_api"),
        ("TradingBot", "trading_bot"),
        ("TravelAPI", "travel_booking"),
        ("VehicleControlAPI", "vehicle_control"),
    ];
    let mut functions: HashMap<&str, Vec<Json>> = HashMap::new();
    for (class, file) in apis {
        let path = folder.join(format!("multi_turn_func_doc/{file}.json"));
        functions.insert(class, lines(&path)?);
    }
    let answers = folder.join("possible_answer/BFCL_v4_multi_turn_base.json");
    let answers = lines(&answers)?;
    let calls: HashMap<&str, &Json> = answers
        .iter()
        .filter_map(|line| Some((line.get("id")?.text(), line.get("ground_truth")?)))
        .collect();
    let mut chats = Vec::new();
    for line in lines(&folder.join("BFCL_v4_multi_turn_base.json"))? {
        let classes = line.get("involved_classes").map_or(&[][..], Json::elements);
        let excluded = line
            .get("excluded_function")
            .map_or(&[][..], Json::elements);
        let all = classes.iter().flat_map(|class| {
            let functions = functions.get(class.text());
            functions.map_or(&[][..], Vec::as_slice)
        });
        let offered = all.filter(|function| {
            let name = function.get("name").map_or("", Json::text);
            !excluded.iter().any(|excluded| excluded.text() == name)
        });
        let offered: Vec<Json> = offered.cloned().collect();
        let truth = line
            .get("id")
            .and_then(|id| calls.get(id.text()))
            .map_or(&[][..], |calls| calls.elements());
        let mut messages: Vec<(&'static str, String)> = Vec::new();
        let mut requests = Vec::new();
        let turns = line.get("question").map_or(&[][..], Json::elements);
        for (turn, turn_said) in turns.iter().enumerate() {
            let (_, asked) = said(turn_said);
            if asked.is_empty() {
                // Here the benchmark offers functions that were missing; the chat ends.
                break;
            }
            messages.extend(asked);
            requests.push(Asked {
                functions: offered.clone(),
                system: SYSTEM.to_owned(),
                messages: messages.clone(),
            });
            let calls = truth.get(turn).map_or(&[][..], Json::elements);
            let calls: Vec<&str> = calls.iter().map(Json::text).collect();
            messages.push(("assistant", format!("[{}]", calls.join(", "))));
        }
        chats.push(requests);
    }
    Ok(in_turn(chats))
}

/// The requests of all chats, of which a few go on in turn.
fn in_turn(chats: Vec<Vec<Asked>>) -> Vec<Asked> {
    let mut random = Random::new(19);
    let mut waiting = chats.into_iter().map(Vec::into_iter);
    let mut open: Vec<_> = waiting.by_ref().take(AT_ONCE).collect();
    let mut requests = Vec::new();
    while !open.is_empty() {
        let at = random.below(open.len() as u64) as usize;
        match open[at].next() {
            Some(request) => requests.push(request),
            None => {
                open.swap_remove(at);
                open.extend(waiting.next());
            }
        }
    }
    requests
}

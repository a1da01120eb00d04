//! What prompts cost where a cache matches only up to marked boundaries: bursty and XQuAD traces under Anthropic's and
//! OpenAI's rules, by who orders and who marks. Whole bodies, a system text of 400 tokens, a request a second.
//!
//! `FOREWORD_XQUAD=xquad.en.json cargo bench -p foreword-benches -- boundaries`, with `rate=N` for other rates,
//! in requests a minute. Without XQuAD's file its rows are left out.

use foreword_benches::{Arguments, xquad};
use foreword_ordering::RawConfig;
use foreword_ordering::cuts::CacheKind;
use foreword_ordering::policy::PolicyKind;
use foreword_simulation::workload::{Bursty, bursty};
use foreword_simulation::{BoundaryArm, BoundaryReplay, CachePrices, Logged, Request};

/// Bytes of the system text: 400 tokens, as the core estimates.
const SYSTEM_BYTES: usize = 1_600;
/// Requests of a bursty trace.
const REQUESTS: usize = 1_000;
/// Seeds of the bursty traces, over which figures are summed.
const SEEDS: u64 = 3;

/// One request: texts of documents, as retrieved, and a question.
struct Asked {
    documents: Vec<(String, String)>,
    question: String,
}

/// Models whose rules are tried.
const MODELS: [(CacheKind, &str); 4] = [
    (CacheKind::Anthropic, "claude-opus-5-5"),
    (CacheKind::Anthropic, "claude-sonnet-5"),
    (CacheKind::OpenAi, "gpt-5.6"),
    (CacheKind::Bedrock, "anthropic.claude-sonnet-5-v1:0"),
];

pub(crate) fn bench(arguments: &Arguments) {
    let per_minute: u64 = arguments.number("rate").unwrap_or(60);
    println!(
        "{:<14}{:<32}{:>8}{:>8}{:>8}{:>9}{:>8}{:>8}",
        "trace", "rules", "auto", "fixed", "markers", "foreword", "ratio", "goal"
    );
    let mut traces: Vec<(String, Vec<Vec<Asked>>, f64)> = Vec::new();
    for k in [5, 10] {
        let lists = (0..SEEDS).map(|seed| {
            let shape = Bursty {
                k,
                ..Bursty::default()
            };
            asked_in(&bursty(seed + 1, REQUESTS, shape))
        });
        traces.push((format!("bursty k={k}"), lists.collect(), 0.75));
    }
    match xquad::corpus() {
        Ok(corpus) => {
            let ranked = corpus.retrievals();
            for (k, goal) in [(5, 0.75), (10, 0.85)] {
                let asked = ranked.iter().map(|ranked| Asked {
                    documents: (ranked.paragraphs.iter().take(k))
                        .map(|&at| (format!("{at:03}"), corpus.paragraphs[at].clone()))
                        .collect(),
                    question: ranked.question.clone(),
                });
                traces.push((format!("XQuAD k={k}"), vec![asked.collect()], goal));
            }
        }
        Err(why) => println!("no XQuAD: {why}"),
    }
    for (name, lists, goal) in &traces {
        for (kind, model) in MODELS {
            let mut costs = [0.0; BoundaryArm::ALL.len()];
            for list in lists {
                for (arm, cost) in replayed(list, kind, model, per_minute) {
                    let at = BoundaryArm::ALL.iter().position(|known| *known == arm);
                    costs[at.expect("an arm is listed")] += cost;
                }
            }
            let [plain, _, automatic, fixed, markers, foreword, _] = costs;
            let share = |cost: f64| match cost {
                0.0 => "-".to_owned(),
                cost => format!("{:.3}", cost / plain),
            };
            let better = match automatic {
                0.0 => fixed,
                automatic => automatic.min(fixed),
            };
            println!(
                "{name:<14}{:<32}{:>8}{:>8}{:>8}{:>9}{:>8}{goal:>8}",
                format!("{} {}", kind.name(), model),
                share(automatic),
                share(fixed),
                share(markers),
                share(foreword),
                format!("{:.3}", foreword / better)
            );
        }
    }
}

/// Requests whose documents have 200 tokens, tags included, and questions of 30 or so.
fn asked_in(trace: &[Request]) -> Vec<Asked> {
    const BLOCK_BYTES: usize = 800;
    let asked = trace.iter().enumerate().map(|(at, request)| Asked {
        documents: (request.documents.iter())
            .map(|document| {
                let name = format!("d{}", document.label);
                let words = format!("What {name} says is told here, at some length. ");
                let mut text = words.repeat(BLOCK_BYTES / words.len() + 1);
                text.truncate(BLOCK_BYTES - 40 - name.len());
                (name, text)
            })
            .collect(),
        question: format!(
            "Of all that was said above, what is it that answers the question of number {at}, and which of the \
             documents says so?"
        ),
    });
    asked.collect()
}

/// What each arm costs for the requests, one after another.
fn replayed(
    list: &[Asked],
    kind: CacheKind,
    model: &str,
    per_minute: u64,
) -> Vec<(BoundaryArm, f64)> {
    let mut replay = BoundaryReplay::new(
        RawConfig::default(),
        PolicyKind::Foresight,
        kind,
        CachePrices::published(),
        Some(model.to_owned()),
    )
    .expect("a valid configuration");
    for (at, asked) in (0..).zip(list) {
        let body = body(asked, kind);
        let logged = Logged::read(body.as_bytes()).expect("a line of a log");
        let now_ms = at * 60_000 / per_minute;
        replay.serve(&logged, now_ms).expect("a chat request");
    }
    let outcomes = replay.outcomes().into_iter();
    outcomes
        .map(|outcome| (outcome.arm, outcome.cost))
        .collect()
}

/// The request's body, as the provider's clients write one.
fn body(asked: &Asked, kind: CacheKind) -> String {
    let system: String = "Answer from the documents alone, briefly, and say which one you used. "
        .chars()
        .cycle()
        .take(SYSTEM_BYTES)
        .collect();
    let documents: String = (asked.documents.iter())
        .map(|(id, text)| format!("<document id=\"{id}\">\n{text}\n</document>\n"))
        .collect();
    let user = format!("{documents}\n{}", asked.question);
    let body = match kind {
        CacheKind::OpenAi => serde_json::json!({"model": "m", "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": user},
        ]}),
        CacheKind::Bedrock => serde_json::json!({
            "system": [{"text": system}],
            "messages": [{"role": "user", "content": [{"text": user}]}],
        }),
        _ => serde_json::json!({"model": "m", "system": system, "messages": [
            {"role": "user", "content": user},
        ]}),
    };
    body.to_string()
}

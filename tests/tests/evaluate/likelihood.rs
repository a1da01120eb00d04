//! Tests of how likely the right answers are: what is sent for it, what is made of what comes back, and what is kept.

use super::{Evaluation, answer, arm, asked, error_of, figures_of, first_document, question};
use foreword_tests::{Received, Reply, Upstream};
use serde_json::{Value, json};

fn body(request: &Received) -> Value {
    serde_json::from_slice(&request.body).unwrap()
}

/// Returns the number of the place where the question's own document stands, from 0.
fn place(request: &Received) -> usize {
    let body = body(request);
    let messages = body["messages"].as_array().unwrap();
    let asked = messages[messages.len() - 2]["content"].as_str().unwrap();
    let documents = asked.split("</document>");
    documents.take_while(|text| !text.contains(" is X")).count()
}

/// Reports the prompt's last tokens, one a character; each has this log-probability.
fn told(reply: &mut Reply<'_>, text: &str, logprob: f64) -> anyhow::Result<()> {
    let token = |c: char, logprob: f64| json!({u32::from(c).to_string(): {"logprob": logprob, "rank": 1, "decoded_token": c.to_string()}});
    let mut tokens = vec![Value::Null, token('X', -9.0), token('\n', -9.0)];
    tokens.extend(text.chars().map(|c| token(c, logprob)));
    reply.json(
        200,
        &json!({"choices": [], "prompt_logprobs": tokens}).to_string(),
    )
}

/// An endpoint whose model reads the first document, and finds an answer the less likely the further behind its
/// document stands.
fn scoring() -> Upstream {
    Upstream::scripted(|request, reply| {
        let body = body(request);
        if body["prompt_logprobs"].is_null() {
            return answer(reply, &first_document(request));
        }
        assert_eq!(body["prompt_logprobs"], 0);
        assert_eq!(body["add_generation_prompt"], false);
        assert_eq!(body["continue_final_message"], true);
        assert!(body.get("stream").is_none());
        let logprob = match body["messages"].as_array().unwrap().len() {
            // The system message, the question, the answer.
            3.. => -0.5 - 0.25 * place(request) as f64,
            _ => -1.0,
        };
        told(reply, &asked(request), logprob)
    })
    .unwrap()
}

fn lines() -> Vec<Value> {
    (0..40).map(|number| question(number, number % 3)).collect()
}

fn scored(upstream: &Upstream) -> usize {
    let received = upstream.received();
    let scored = received.iter().map(body);
    let scored = scored.filter(|body| !body["prompt_logprobs"].is_null());
    // One tries the endpoint.
    scored.count() - 1
}

#[test]
fn answers_are_asked_and_right_ones_scored_on_the_same_prompts() {
    let upstream = scoring();
    let evaluation = Evaluation::of(&lines()).scored();
    let figures = evaluation.figures(
        &upstream,
        &["--arms", "retrieval,reversed,last", "--positions"],
    );
    assert_eq!(scored(&upstream), 40 * 5);
    let received = upstream.received();
    for forced in received.iter().map(body) {
        let mut messages = forced["messages"].as_array().unwrap().clone();
        if !forced["prompt_logprobs"].is_null() && messages.len() > 2 {
            messages.pop();
            let is_same = |body: &Value| body["messages"] == json!(messages);
            assert!(received.iter().map(body).any(|body| is_same(&body)));
        }
    }
    let mean = |name: &str| {
        arm(&figures, name)["answer_logprob"]["mean"]
            .as_f64()
            .unwrap()
    };
    // The answer's document is at each of three places equally often, but for one question.
    let expected = -(0.5 * 40.0 + 0.25 * 13.0 + 0.5 * 13.0) / 40.0;
    assert!((mean("retrieval") - expected).abs() < 1e-3, "{figures}");
    assert_eq!(mean("first"), -0.5);
    assert_eq!(mean("middle"), -0.75);
    assert_eq!(mean("last"), -1.0);
    let first = &arm(&figures, "first")["answer_logprob"];
    assert_eq!(first["verdict"], "better");
    assert!(
        first["less_retrieval"].as_f64().unwrap() > 0.2 && first["low"].as_f64().unwrap() > 0.1
    );
    assert!(arm(&figures, "retrieval")["answer_logprob"]["low"].is_null());
    // Two or three tokens an answer.
    let nats = arm(&figures, "first")["answer_nats"]["mean"]
        .as_f64()
        .unwrap();
    assert_eq!(nats, -0.5 * (2.0 * 10.0 + 3.0 * 30.0) / 40.0);
    assert_eq!(arm(&figures, "first")["exact_match"]["value"], 100.0);
    let page = std::fs::read_to_string(evaluation.path("report.html")).unwrap();
    assert!(page.contains("How likely the model finds the right answer"));
}

#[test]
fn prompts_after_an_unanswered_request_are_scored_as_they_were_sent() {
    let upstream = Upstream::scripted(|request, reply| {
        if !body(request)["prompt_logprobs"].is_null() {
            return told(reply, &asked(request), -1.0);
        }
        if asked(request).ends_with("thing 0?") {
            return reply.json(400, r#"{"error": {"message": "no"}}"#);
        }
        answer(reply, "X")
    })
    .unwrap();
    // The same documents, each time in another order: later requests follow the first one's.
    let lines = (0..6).map(|number| {
        let documents: Vec<String> = (0..5)
            .map(|place| format!("Text {}.", (number + place) % 5))
            .collect();
        let id = format!("q{number}");
        let question = format!("What is thing {number}?");
        json!({"id": id, "question": question, "documents": documents, "answers": ["X"]})
    });
    let evaluation = Evaluation::of(&lines.collect::<Vec<_>>()).scored();
    let arguments = ["--arms", "retrieval,ordered", "--concurrency", "1"];
    let figures = figures_of(&evaluation.run(&upstream, &[&arguments[..], &["--json"]].concat()));
    assert_eq!(figures["left_out"], 1);
    let bodies: Vec<Value> = upstream.received().iter().map(body).collect();
    let (forced, sent): (Vec<_>, Vec<_>) =
        (bodies.iter()).partition(|body| !body["prompt_logprobs"].is_null());
    let sent: Vec<&Value> = sent.iter().map(|body| &body["messages"]).collect();
    // The first forced request tries the endpoint.
    for forced in &forced[1..] {
        let messages = forced["messages"].as_array().unwrap();
        let prompt = json!(messages[..messages.len() - 1]);
        assert!(sent.contains(&&prompt), "{prompt}");
    }
    assert_eq!(forced.len() - 1, 10);
}

#[test]
fn right_answers_can_be_scored_alone_and_not_twice() {
    let upstream = scoring();
    let mut lines = lines();
    let turns = [question(50, 0), question(51, 1)];
    lines.push(json!({"id": "chat", "turns": turns}));
    let evaluation = Evaluation::of(&lines).scored();
    let arguments = ["--arms", "retrieval,reversed,dedup+hint", "--score-only"];
    let figures = evaluation.figures(&upstream, &arguments);
    assert_eq!(upstream.received().len(), 1 + 3 * 42);
    assert_eq!(evaluation.records().len(), 0, "nothing was asked");
    let retrieval = arm(&figures, "retrieval");
    for unknown in [
        "exact_match",
        "contains",
        "f1",
        "ttft_ms",
        "prompt_tokens",
        "difference",
    ] {
        assert!(retrieval[unknown].is_null(), "{unknown}");
    }
    assert_eq!(retrieval["answer_logprob"]["questions"], 41);
    assert!(arm(&figures, "dedup+hint")["moved"].as_u64().unwrap() > 0);
    // In the second turn, the first one's right answer stands for the model's.
    let second = upstream.received().iter().map(body).find(|body| {
        let messages = body["messages"].as_array().unwrap();
        messages.len() == 5 && messages[2]["content"] == "X50"
    });
    assert!(second.is_some());

    let table = evaluation.run(&upstream, &arguments);
    assert!(table.status.success(), "{}", error_of(&table));
    assert_eq!(upstream.received().len(), 2 + 3 * 42, "all was known");
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("\nright answer "), "{table}");
    assert!(
        table.contains("\nretrieval                     41"),
        "{table}"
    );
    assert!(!table.contains("exact match"), "{table}");
    // What was scored serves a run that also asks, but where a chat now has the model's own answer.
    let figures = evaluation.figures(&upstream, &arguments[..2]);
    assert_eq!(scored(&upstream), 2 + 3 * 42 + 3);
    assert_eq!(
        arm(&figures, "retrieval")["answer_logprob"]["questions"],
        41
    );
    assert!(arm(&figures, "retrieval")["exact_match"].is_object());
}

#[test]
fn an_endpoint_that_does_not_tell_is_named_and_the_rest_is_measured() {
    for (status, reply) in [
        (
            400,
            r#"{"error": {"message": "prompt_logprobs is not supported"}}"#,
        ),
        (200, r#"{"choices": [{"message": {"content": "Four."}}]}"#),
    ] {
        let upstream = Upstream::scripted(move |request, answers| {
            match body(request)["prompt_logprobs"].is_null() {
                true => answer(answers, &first_document(request)),
                false => answers.json(status, reply),
            }
        })
        .unwrap();
        let evaluation = Evaluation::of(&lines()).scored();
        let output = evaluation.run(&upstream, &["--arms", "retrieval", "--json"]);
        let error = error_of(&output);
        assert!(
            error.contains("warning: answer_logprob is left out"),
            "{error}"
        );
        let figures = figures_of(&output);
        assert!(arm(&figures, "retrieval")["answer_logprob"].is_null());
        assert!(arm(&figures, "retrieval")["exact_match"].is_object());
        let output = evaluation.run(&upstream, &["--arms", "retrieval", "--score-only"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            error_of(&output).contains("the endpoint cannot tell"),
            "{}",
            error_of(&output)
        );
    }
}

#[test]
fn a_question_that_cannot_be_scored_under_an_arm_counts_under_none() {
    let upstream = Upstream::scripted(|request, reply| {
        if asked(request) == "X7" && place(request) == 2 {
            return reply.json(400, r#"{"error": {"message": "too long"}}"#);
        }
        told(reply, &asked(request), -1.0)
    })
    .unwrap();
    let evaluation = Evaluation::of(&lines()).scored();
    let arguments = ["--arms", "retrieval,last", "--score-only"];
    let figures = evaluation.figures(&upstream, &arguments);
    assert_eq!(
        arm(&figures, "retrieval")["answer_logprob"]["questions"],
        40
    );
    assert_eq!(arm(&figures, "last")["answer_logprob"]["questions"], 39);
}

#[test]
fn a_profile_tells_where_the_model_reads_and_what_to_configure() {
    let upstream = scoring();
    let lines: Vec<_> = (0..40).map(|number| question(number, 0)).collect();
    let evaluation = Evaluation::of(&lines).scored();
    let arguments = [
        "--arms",
        "retrieval,random",
        "--score-only",
        "--profile",
        "6",
    ];
    let output = evaluation.run(&upstream, &arguments);
    assert!(output.status.success(), "{}", error_of(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    let last = table.lines().last().unwrap();
    assert!(
        last.ends_with(r#""rank": {"place": "first", "documents": 1}"#),
        "{table}"
    );
    let text = std::fs::read_to_string(evaluation.path("rank-profile.json")).unwrap();
    let profile: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        [&profile["questions"], &profile["documents"]],
        [&json!(40), &json!(3)]
    );
    let worth = |place: usize| profile["table"][0][place]["value"].as_f64().unwrap();
    for (place, expected) in [(0, 0.25), (2, 0.0), (4, -0.25)] {
        assert!((worth(place) - expected).abs() < 1e-6, "{text}");
    }
    assert!(profile["table"][0][1].is_null() && profile["table"][3][0].is_null());
    let page = std::fs::read_to_string(evaluation.path("report.html")).unwrap();
    assert!(page.contains("Where the model reads"));
    // Equal bodies are asked once, and nothing twice.
    let asked = upstream.received().len();
    assert!(asked < 1 + 40 * (2 + 6), "{asked}");
    let again = evaluation.figures(&upstream, &arguments);
    assert_eq!(upstream.received().len(), asked + 1);
    assert_eq!(again["rank_profile"], profile);
}

//! Tests of chats without documents, which get them from a retriever that works, is slow, is dead or sends nonsense.
//!
//! The retriever is scripted, so that each fault comes when it is wanted; `tests/retrieval.rs` uses the real one.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use foreword_tests::http::{Client, Response, exchange, post, post_chunked, post_with};
use foreword_tests::{Gateway, GatewayOptions, Received, Upstream, under_traffic, until};
use serde_json::{Value, json};

use crate::{assert_length, send, workers};

/// Returns the vector of a question: its first number, as an angle.
fn vector(question: &str) -> [f64; 2] {
    let digits = question.chars().filter(char::is_ascii_digit);
    let angle: f64 = digits.collect::<String>().parse().unwrap_or(0.0);
    [angle.to_radians().cos(), angle.to_radians().sin()]
}

/// Starts an embedder, retriever and warm-up endpoint in one; its documents show which question they belong to.
fn retriever() -> Upstream {
    retriever_that(|_, _| None)
}

/// Starts a retriever that gives this answer where it is told to.
fn retriever_that(
    instead: impl Fn(&Received, &str) -> Option<(u16, String)> + Send + Sync + 'static,
) -> Upstream {
    let upstream = Upstream::scripted(move |request, reply| {
        let path = request.line.split(' ').nth(1).unwrap_or_default();
        if let Some((status, body)) = instead(request, path) {
            return reply.json(status, &body);
        }
        let asked: Value = serde_json::from_slice(&request.body)?;
        let answer = match path {
            "/v1/embeddings" => {
                let question = asked["input"].as_str().unwrap_or_default();
                json!({"data": [{"embedding": vector(question)}]})
            }
            "/v1/retrieve" => found(asked["query"].as_str().unwrap_or_default()),
            _ => json!({}),
        };
        reply.json(200, &answer.to_string())
    });
    upstream.unwrap()
}

fn found(question: &str) -> Value {
    let document = |id: &str| json!({"id": format!("{question}-{id}"), "text": format!("What {id} says."), "score": 1});
    json!({"object": "list", "version": "1", "data": [document("a"), document("b")]})
}

fn options(engine: &Upstream, retriever: SocketAddr, retrieval: Value) -> GatewayOptions {
    let mut all = json!({"cluster": "retriever", "timeout_ms": 20_000,
        "similarity": {"dimensions": 2, "tolerance": 0.001, "ttl_ms": null}});
    for (name, value) in retrieval.as_object().unwrap() {
        all[name] = value.clone();
    }
    GatewayOptions {
        clusters: vec![("retriever", retriever)],
        plugin: Some(json!({"retrieval": all})),
        ..GatewayOptions::placing_freely(engine.address())
    }
}

fn gateway(engine: &Upstream, retriever: &Upstream, retrieval: Value) -> Gateway {
    Gateway::start(&options(engine, retriever.address(), retrieval)).unwrap()
}

fn chat(question: &str) -> String {
    json!({"model": "m", "messages": [{"role": "system", "content": "Be brief."},
        {"role": "user", "content": question}]})
    .to_string()
}

fn paths(upstream: &Upstream) -> Vec<String> {
    let received = upstream.received();
    let path = |request: &Received| request.line.split(' ').nth(1).unwrap().to_owned();
    received.iter().map(path).collect()
}

/// Returns the last user message that the engine received.
fn asked(engine: &Upstream) -> String {
    let body: Value = serde_json::from_slice(&engine.last().unwrap().body).unwrap();
    body["messages"][1]["content"].as_str().unwrap().to_owned()
}

fn count(gateway: &Gateway, what: &str) -> u64 {
    let name = format!("foreword_retrieval_{what}_total");
    gateway.metric(&name).unwrap().unwrap_or(0)
}

#[test]
fn the_first_question_is_searched_for_and_one_like_it_is_answered_from_the_cache() {
    let (engine, retriever) = (Upstream::start().unwrap(), retriever());
    let gateway = gateway(&engine, &retriever, json!({}));
    let first = send(&gateway, &chat("Why 40?"));
    assert_eq!(
        first.report(),
        "ordered; policy=foresight; documents=2; matched=0; moved=0; dropped=0; hint=0; retrieval=miss"
    );
    let text = asked(&engine);
    assert_eq!(
        text,
        "<document id=\"Why 40?-a\">\nWhat a says.\n</document>\n<document id=\"Why 40?-b\">\nWhat b says.\n</document>\n\nWhy 40?"
    );
    assert_length(&engine);

    let second = send(&gateway, &chat("Why 41?"));
    assert!(
        second
            .report()
            .ends_with("matched=2; moved=0; dropped=0; hint=0; retrieval=hit"),
        "{}",
        second.report()
    );
    assert_eq!(asked(&engine), text.replace("\n\nWhy 40?", "\n\nWhy 41?"));
    let third = send(&gateway, &chat("Why 80?"));
    assert!(third.report().ends_with("retrieval=miss"));
    assert_eq!(
        paths(&retriever),
        [
            "/v1/embeddings",
            "/v1/retrieve",
            "/v1/embeddings",
            "/v1/embeddings",
            "/v1/retrieve"
        ]
    );
    gateway.await_requests(3);
    for (what, expected) in [
        ("searches", 3),
        ("hits", 1),
        ("misses", 2),
        ("embeddings", 3),
    ] {
        assert_eq!(count(&gateway, what), expected, "{what}");
    }
    let log = gateway.stop().unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[1]["documents"], "2");
}

#[test]
fn a_vector_of_the_clients_saves_the_embedder() {
    let (engine, retriever) = (Upstream::start().unwrap(), retriever());
    let gateway = gateway(
        &engine,
        &retriever,
        json!({"embedding": {"header": "x-embedding"}}),
    );
    let mut body: Value = serde_json::from_str(&chat("How 1?")).unwrap();
    let plain = body.to_string();
    body["retrieval"] = json!({"embedding": vector("How 1?")});
    // A client's vector finds what others' questions found, and keeps nothing for them.
    for (body, word) in [
        (&body.to_string(), "miss"),
        (&plain, "miss"),
        (&body.to_string(), "hit"),
    ] {
        let report = send(&gateway, body).report().to_owned();
        assert!(report.ends_with(&format!("retrieval={word}")), "{report}");
    }
    assert!(!engine.last().unwrap().text().contains("retrieval"));
    // 1.0 and 0.0 in base64, one degree from the first vector.
    let request = post_with(
        &[
            "content-type: application/json",
            "x-embedding: AACAPwAAAAA=",
        ],
        chat("How?").as_bytes(),
    );
    let response = exchange(gateway.address(), &request).unwrap();
    assert!(
        response.report().ends_with("retrieval=hit"),
        "{}",
        response.report()
    );
    assert_eq!(engine.last().unwrap().header("x-embedding"), None);
    assert_eq!(
        paths(&retriever),
        ["/v1/retrieve", "/v1/embeddings", "/v1/retrieve"]
    );
}

#[test]
fn a_client_may_go_without_and_one_with_documents_does() {
    let (engine, retriever) = (Upstream::start().unwrap(), retriever());
    let gateway = gateway(&engine, &retriever, json!({}));
    let plain = chat("Why 1?");
    let off = plain.replacen('{', r#"{"retrieval": false, "#, 1);
    let response = send(&gateway, &off);
    assert_eq!(response.report(), "passed; reason=no-documents");
    assert_eq!(engine.last().unwrap().text(), plain);
    assert!(
        send(&gateway, &crate::tagged(&["a"]))
            .report()
            .contains("documents=1")
    );
    assert!(paths(&retriever).is_empty());
    gateway.await_requests(2);
    assert_eq!(
        (count(&gateway, "searches"), count(&gateway, "opted_out")),
        (0, 1)
    );
}

#[test]
fn a_chat_that_goes_on_keeps_the_documents_of_its_earlier_turns() {
    let (engine, retriever) = (Upstream::start().unwrap(), retriever());
    let gateway = gateway(&engine, &retriever, json!({}));
    send(&gateway, &chat("Why 40?"));
    let first = asked(&engine);
    let longer = json!({"model": "m", "messages": [{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why 40?"}, {"role": "assistant", "content": "So."},
        {"role": "user", "content": "And 80?"}]});
    let response = send(&gateway, &longer.to_string());
    assert!(
        response.report().contains("pinned=2"),
        "{}",
        response.report()
    );
    assert_eq!(asked(&engine), first);
    let body: Value = serde_json::from_slice(&engine.last().unwrap().body).unwrap();
    assert!(
        body["messages"][3]["content"]
            .as_str()
            .unwrap()
            .starts_with("<document id=\"And 80?-a\">")
    );
}

#[test]
fn a_chat_that_goes_on_with_another_worker_keeps_them_too() {
    const TURNS: u64 = 8;
    let (engine, retriever) = (Upstream::start().unwrap(), retriever());
    let gateway = Gateway::start(&GatewayOptions {
        concurrency: 2,
        ..options(&engine, retriever.address(), json!({}))
    })
    .unwrap();
    // Envoy gives each connection to one worker, and these came to both.
    let mut clients = workers::connect(&gateway, 2);
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    let mut sent_before = Vec::new();
    for turn in 0..TURNS {
        messages.push(json!({"role": "user", "content": format!("Why {}?", 10 * turn)}));
        let body = json!({"model": "m", "messages": messages}).to_string();
        let count = clients.len();
        let client = &mut clients[turn as usize % count];
        client.send(&post(body.as_bytes())).unwrap();
        let report = client.response().unwrap().report().to_owned();
        let pinned = if turn > 0 {
            workers::field(&report, "pinned")
        } else {
            0
        };
        assert_eq!(pinned, 2 * turn, "{report}");
        let body: Value = serde_json::from_slice(&engine.last().unwrap().body).unwrap();
        let sent = body["messages"].as_array().unwrap().clone();
        assert!(
            sent.starts_with(&sent_before),
            "turn {turn} changed an earlier one"
        );
        sent_before = sent;
        messages.push(json!({"role": "assistant", "content": "So."}));
    }
}

#[test]
fn tenants_get_nothing_of_each_other() {
    let (engine, retriever) = (Upstream::start().unwrap(), retriever());
    let mut options = options(
        &engine,
        retriever.address(),
        json!({"tenant_filter": "owner"}),
    );
    options.plugin.as_mut().unwrap()["tenant"] = json!({"header": "x-tenant"});
    let gateway = Gateway::start(&options).unwrap();
    let ask = |tenant: &str| {
        let headers = [
            "content-type: application/json",
            &format!("x-tenant: {tenant}"),
        ];
        let request = post_with(&headers, chat("Why 40?").as_bytes());
        exchange(gateway.address(), &request).unwrap()
    };
    for (tenant, end) in [
        ("red", "miss"),
        ("blue", "miss"),
        ("red", "hit"),
        ("blue", "hit"),
    ] {
        let response = ask(tenant);
        assert!(
            response.report().ends_with(&format!("retrieval={end}")),
            "{}",
            response.report()
        );
    }
    let searches = retriever.received();
    let searches = searches
        .iter()
        .filter(|request| request.line.contains("retrieve"));
    let filters: Vec<Value> = searches
        .map(|request| serde_json::from_slice::<Value>(&request.body).unwrap()["filters"].clone())
        .collect();
    assert_eq!(filters, [json!({"owner": "red"}), json!({"owner": "blue"})]);
}

#[test]
fn whatever_a_retriever_answers_the_chat_goes_on_and_the_fault_is_counted() {
    let faults = [
        ("status", 500, "{}".to_owned()),
        ("status", 404, "{}".to_owned()),
        ("bad_answer", 200, "<html>".to_owned()),
        (
            "bad_answer",
            200,
            json!({"data": [{"id": "a"}]}).to_string(),
        ),
        (
            "bad_answer",
            200,
            json!({"data": vec![json!({"text": "x"}); 9]}).to_string(),
        ),
        (
            "too_large",
            200,
            json!({"data": [], "version": "x".repeat(2 << 20)}).to_string(),
        ),
    ];
    for path in ["/v1/retrieve", "/v1/embeddings"] {
        let next = Arc::new(Mutex::new(None));
        let said = Arc::clone(&next);
        let at = path.to_owned();
        let retriever =
            retriever_that(move |_, path| said.lock().unwrap().clone().filter(|_| path == at));
        let engine = Upstream::start().unwrap();
        let gateway = gateway(&engine, &retriever, json!({}));
        for (index, (reason, status, body)) in faults.iter().enumerate() {
            *next.lock().unwrap() = Some((*status, body.clone()));
            let before = count(&gateway, &format!("failed_{reason}"));
            let question = chat(&format!("Why {}?", index * 9));
            let response = send(&gateway, &question);
            assert_eq!(response.status, 200);
            let word = reason.replace('_', "-");
            assert_eq!(
                response.report(),
                format!("passed; reason=no-documents; retrieval={word}")
            );
            assert_eq!(engine.last().unwrap().text(), question);
            gateway.await_metric(
                &format!("foreword_retrieval_failed_{reason}_total"),
                before + 1,
            );
        }
        *next.lock().unwrap() = None;
        assert!(
            send(&gateway, &chat("Why 90?"))
                .report()
                .ends_with("retrieval=miss")
        );
        assert_eq!(gateway.failures().unwrap(), 0);
    }
}

#[test]
fn vectors_that_no_cache_can_compare_are_counted() {
    let next = Arc::new(Mutex::new(json!([1])));
    let said = Arc::clone(&next);
    let retriever = retriever_that(move |_, path| {
        let body = json!({"data": [{"embedding": *said.lock().unwrap()}]}).to_string();
        (path == "/v1/embeddings").then_some((200, body))
    });
    let engine = Upstream::start().unwrap();
    let gateway = gateway(&engine, &retriever, json!({}));
    // Too few and too many numbers, none, NaN in base64, and a vector without a direction.
    for wrong in [
        json!([1]),
        json!([1, 2, 3]),
        json!([]),
        json!("AADAfwAAwH8="),
        json!([0, 0]),
        json!([1, null]),
    ] {
        *next.lock().unwrap() = wrong.clone();
        let response = send(&gateway, &chat("Why?"));
        assert_eq!(
            response.report(),
            "passed; reason=no-documents; retrieval=bad-embedding",
            "{wrong}"
        );
    }
    gateway.await_metric("foreword_retrieval_failed_bad_embedding_total", 6);
}

#[test]
fn where_a_failure_is_to_be_one_the_client_hears_of_it() {
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let engine = Upstream::start().unwrap();
    let mut options = options(&engine, dead, json!({"on_failure": "refuse"}));
    let gateway = Gateway::start(&options).unwrap();
    let response = send(&gateway, &chat("Why?"));
    assert_eq!(
        (response.status, response.report()),
        (503, "refused; reason=retrieval; retrieval=unreachable")
    );
    // In the client's format, as the filter writes it: Envoy wraps only its own answers.
    let error = &response.json().unwrap()["error"];
    assert_eq!(error["code"], "retrieval");
    assert_eq!(
        error["message"],
        "no documents could be retrieved: nobody answered"
    );
    let wrong = chat("Why?").replacen('{', r#"{"retrieval": 7, "#, 1);
    assert_eq!(send(&gateway, &wrong).status, 400);
    assert!(engine.received().is_empty());
    // With documents of its own, a request needs no retrieval.
    assert_eq!(send(&gateway, &crate::tagged(&["a"])).status, 200);
    // A cluster that Envoy does not know, while documents are required.
    options.plugin.as_mut().unwrap()["retrieval"]["cluster"] = json!("nowhere");
    options.plugin.as_mut().unwrap()["retrieval"]["on_failure"] = json!("continue");
    let gateway = Gateway::start(&options).unwrap();
    let response = send(&gateway, &chat("Why?"));
    assert_eq!(
        response.report(),
        "passed; reason=no-documents; retrieval=unreachable"
    );
    assert_eq!(response.status, 200);
}

/// Holds answers back until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar, AtomicU32);

impl Gate {
    fn pass(&self) {
        self.2.fetch_add(1, SeqCst);
        let closed = self.0.lock().unwrap();
        drop(self.1.wait_while(closed, |open| !*open).unwrap());
    }

    fn waiting(&self) -> u32 {
        self.2.load(SeqCst)
    }

    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

fn held_at(path: &'static str) -> (Arc<Gate>, Upstream) {
    let gate = Arc::new(Gate::default());
    let shut = Arc::clone(&gate);
    let retriever = retriever_that(move |_, at| {
        if at == path {
            shut.pass();
        }
        None
    });
    (gate, retriever)
}

#[test]
fn a_retriever_that_takes_too_long_is_not_waited_for() {
    let (gate, retriever) = held_at("/v1/retrieve");
    let engine = Upstream::start().unwrap();
    let gateway = gateway(&engine, &retriever, json!({"timeout_ms": 50}));
    let response = send(&gateway, &chat("Why?"));
    assert_eq!(
        response.report(),
        "passed; reason=no-documents; retrieval=timeout"
    );
    gateway.await_metric("foreword_retrieval_failed_timeout_total", 1);
    gate.open();
}

#[test]
fn the_engine_computes_the_system_prompt_in_the_meantime_and_no_more_than_it_may() {
    let (gate, retriever) = held_at("/v1/prefill");
    let engine = Upstream::start().unwrap();
    let gateway = gateway(
        &engine,
        &retriever,
        json!({"warm_up": {"max_in_flight": 1, "timeout_ms": 20_000}}),
    );
    // The chat does not wait for the warm-up.
    assert!(
        send(&gateway, &chat("Why 10?"))
            .report()
            .ends_with("retrieval=miss")
    );
    until("the warm-up is under way", || gate.waiting() == 1);
    let warm = retriever.received();
    let warm = warm
        .iter()
        .find(|request| request.line.contains("prefill"))
        .unwrap();
    let warm: Value = serde_json::from_slice(&warm.body).unwrap();
    assert_eq!(
        warm,
        json!({"model": "m", "messages": [{"role": "system", "content": "Be brief."}]})
    );
    // The chat is over, and its place is free.
    assert!(
        send(&gateway, &chat("Why 50?"))
            .report()
            .ends_with("retrieval=miss")
    );
    assert!(
        send(&gateway, &chat("Why 11?"))
            .report()
            .ends_with("retrieval=hit")
    );
    until("the second warm-up is under way", || gate.waiting() == 2);
    gate.open();
    gateway.await_metric("foreword_retrieval_warm_ups_total", 2);
    assert_eq!(count(&gateway, "skipped_warm_ups"), 0);

    // While one request is held in its chat, another gets no place.
    let (gate, retriever) = held_at("/v1/retrieve");
    let gateway = self::gateway(
        &engine,
        &retriever,
        json!({"warm_up": {"max_in_flight": 1}}),
    );
    let mut clients = [(); 2].map(|()| Client::connect(gateway.address()).unwrap());
    for (client, question) in clients.iter_mut().zip(["Why 10?", "Why 50?"]) {
        client.send(&post(chat(question).as_bytes())).unwrap();
    }
    until("both are searched for", || gate.waiting() == 2);
    until("one goes without", || {
        count(&gateway, "skipped_warm_ups") + count(&gateway, "warm_ups") == 2
    });
    gate.open();
    for client in &mut clients {
        assert!(
            client
                .response()
                .unwrap()
                .report()
                .ends_with("retrieval=miss")
        );
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_search_harms_nobody() {
    let (gate, retriever) = held_at("/v1/retrieve");
    let engine = Upstream::start().unwrap();
    let gateway = gateway(&engine, &retriever, json!({}));
    let active = || gateway.stat("http.clients.downstream_rq_active").unwrap();
    for round in 0..8 {
        let mut client = Client::connect(gateway.address()).unwrap();
        client
            .send(&post(chat(&format!("Why {}?", round * 40)).as_bytes()))
            .unwrap();
        until("the search is under way", || gate.waiting() == round + 1);
        drop(client);
        until("the request is gone", || active() == Some(0));
    }
    // The answers come after their requests have ended.
    gate.open();
    assert!(engine.received().is_empty());
    let response = send(&gateway, &chat("Why 350?"));
    assert!(
        response.report().ends_with("retrieval=miss"),
        "{}",
        response.report()
    );
    assert_eq!(gateway.failures().unwrap(), 0);
    gateway.await_metric("foreword_retrieval_searches_total", 9);
}

/// Asks 200 questions of some 60, one after another, of workers in turn, and returns how many were answered by a cache.
fn hits(workers: u32, retrieval: Value) -> u64 {
    let (engine, retriever) = (Upstream::start().unwrap(), retriever());
    let gateway = Gateway::start(&GatewayOptions {
        concurrency: workers,
        ..options(&engine, retriever.address(), retrieval)
    })
    .unwrap();
    let mut clients = workers::connect(&gateway, workers as usize);
    let mut random = foreword_ordering::random::Random::new(3);
    let count = clients.len();
    let mut hits = 0;
    for at in 0..200 {
        // Skewed, as questions are; five degrees are apart.
        let question = random.below(8) * random.below(8);
        let client = &mut clients[at % count];
        client
            .send(&post(chat(&format!("Why {}?", 5 * question)).as_bytes()))
            .unwrap();
        let report = client.response().unwrap().report().to_owned();
        let is_hit = report.ends_with("retrieval=hit");
        assert!(is_hit || report.ends_with("retrieval=miss"), "{report}");
        hits += u64::from(is_hit);
    }
    hits
}

#[test]
fn four_workers_hit_as_often_as_one() {
    let (one, four) = (hits(1, json!({})), hits(4, json!({})));
    assert!(one > 150, "{one}");
    assert!(
        100 * four >= 97 * one,
        "{four} hits with four workers, {one} with one"
    );
    let alone = hits(4, json!({"shared_results": 0}));
    println!(
        "hits of 200: {one} with one worker, {four} with four, {alone} with four that share nothing"
    );
    if foreword_tests::Shell::chosen() == foreword_tests::Shell::Wasm {
        assert!(alone < one, "{alone}");
    }
}

#[test]
fn no_request_is_lost_when_the_retriever_is_killed_and_comes_back_in_mid_traffic() {
    let engine = Upstream::start().unwrap();
    let mut retriever = retriever();
    let gateway = Gateway::start(&GatewayOptions {
        concurrency: 2,
        ..options(&engine, retriever.address(), json!({"similarity": null}))
    })
    .unwrap();
    let question = |sender, round| chat(&format!("Why {sender}{round}?"));
    under_traffic(gateway.address(), 4, question, |more| {
        for _ in 0..5 {
            more(20);
            retriever.restart().unwrap();
        }
        more(20);
    });
    until("it is found again", || {
        send(&gateway, &chat("Why?"))
            .report()
            .ends_with("retrieval=miss")
    });
    assert_eq!(gateway.failures().unwrap(), 0);
    until("each search is counted by how it ended", || {
        let failed = ["unreachable", "status", "timeout"].iter();
        let failed = failed.map(|reason| count(&gateway, &format!("failed_{reason}")));
        let ended = count(&gateway, "misses") + failed.sum::<u64>();
        ended > 0 && count(&gateway, "searches") == ended
    });
}

#[test]
fn bodies_of_every_shape_wait_and_go_on_whole() {
    let (engine, retriever) = (Upstream::start().unwrap(), retriever());
    let gateway = gateway(&engine, &retriever, json!({"max_question_bytes": 1000}));
    let history = "An earlier turn of this chat. ".repeat(70_000);
    let long = json!({"messages": [{"role": "user", "content": history}, {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Why 40?"}]})
    .to_string();
    assert!(long.len() > 2_000_000);
    let chunked = post_chunked(
        &["content-type: application/json"],
        long.as_bytes(),
        60_000,
        &["x-trailer: yes"],
    );
    for request in [post(long.as_bytes()), chunked] {
        let response = exchange(gateway.address(), &request).unwrap();
        assert!(
            response.report().contains("documents=2;"),
            "{}",
            response.report()
        );
        let sent = engine.last().unwrap().text();
        let (before, rest) = sent.split_once("<document").unwrap();
        let (_, behind) = rest.rsplit_once(r"</document>\n\n").unwrap();
        assert_eq!(format!("{before}{behind}"), long);
    }
    // Such a question is not searched for.
    let asked = chat(&"why ".repeat(500));
    assert!(
        send(&gateway, &asked)
            .report()
            .ends_with("retrieval=long-question")
    );
    assert_eq!(engine.last().unwrap().text(), asked);
}

#[test]
fn released_headers_and_streams_are_served_as_well() {
    let engine = Upstream::scripted(|_, reply| {
        reply.begin_events()?;
        for event in 0..3 {
            reply.event(&format!("{{\"event\": {event}}}"))?;
        }
        reply.end_events()
    })
    .unwrap();
    let retriever = retriever();
    for headers in ["hold", "release"] {
        let mut options = options(&engine, retriever.address(), json!({}));
        options.plugin.as_mut().unwrap()["request_headers"] = json!(headers);
        let gateway = Gateway::start(&options).unwrap();
        let response = send(&gateway, &chat("Why 40?"));
        assert!(
            response.report().ends_with("retrieval=miss"),
            "{}",
            response.report()
        );
        assert_eq!(
            String::from_utf8(response.body)
                .unwrap()
                .matches("data: ")
                .count(),
            3
        );
        assert!(asked(&engine).ends_with("Why 40?") && asked(&engine).starts_with("<document"));
    }
}

#[test]
fn a_new_configuration_in_the_middle_of_a_search_leaves_the_search_alone() {
    let (gate, retriever) = held_at("/v1/retrieve");
    let engine = Upstream::start().unwrap();
    let options = GatewayOptions {
        reloadable: true,
        ..options(&engine, retriever.address(), json!({}))
    };
    let gateway = Gateway::start(&options).unwrap();
    let mut client = Client::connect(gateway.address()).unwrap();
    client.send(&post(chat("Why 40?").as_bytes())).unwrap();
    until("the search is under way", || gate.waiting() == 1);
    gateway.reload(&json!({})).unwrap();
    gate.open();
    let response: Response = client.response().unwrap();
    assert_eq!(response.status, 200);
    assert!(
        response.report().ends_with("retrieval=miss"),
        "{}",
        response.report()
    );
    assert_eq!(
        send(&gateway, &chat("Why 40?")).report(),
        "passed; reason=no-documents"
    );
    assert_eq!(gateway.failures().unwrap(), 0);
}

#[test]
fn a_checked_hit_is_judged_while_its_chat_goes_on() {
    let changed = Arc::new(AtomicBool::new(false));
    let says = Arc::clone(&changed);
    let retriever = retriever_that(move |_, path| {
        let other = json!({"version": "1", "data": [{"id": "other", "text": "x"}]}).to_string();
        (path == "/v1/retrieve" && says.load(SeqCst)).then_some((200, other))
    });
    let engine = Upstream::scripted(|_, reply| reply.json(200, "{}")).unwrap();
    let similarity = json!({"dimensions": 2, "tolerance": 0.001, "sample_one_in": 1});
    let gateway = gateway(&engine, &retriever, json!({"similarity": similarity}));
    send(&gateway, &chat("Why 40?"));
    changed.store(true, SeqCst);
    assert!(
        send(&gateway, &chat("Why 41?"))
            .report()
            .ends_with("retrieval=hit")
    );
    // The answer may come after its chat is over; then it is not counted.
    until("a check was in time", || {
        send(&gateway, &chat("Why 41?"));
        count(&gateway, "sampled") > 0
    });
    assert!(count(&gateway, "false_hits") > 0);
}

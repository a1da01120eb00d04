//! What the gateway believes an engine to hold, and what the engine holds: the filter follows the host's feed, and reads
//! what answers say.

use foreword_ordering::feed::{Batch, FeedKey, Follower};
use foreword_ordering::random::Random;
use foreword_tests::http::{Client, Response, exchange, post};
use foreword_tests::{Gateway, GatewayOptions, Host, Upstream, artifacts, pause, until};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Mutex;

/// Documents in a question.
const DOCUMENTS: usize = 4;
/// Topics, of [`DOCUMENTS`] documents each: three times what the host has room for.
const TOPICS: u64 = 9;

/// Real documents have some hundred tokens; these have as many of the tiny model's.
fn question(topic: u64, stream: bool) -> String {
    let documents = (0..DOCUMENTS).map(|document| {
        let words = format!("What {topic} and {document} say fills some pages. ").repeat(8);
        format!("<document id=\"{topic}-{document}\">{words}</document>")
    });
    let documents: Vec<_> = documents.collect();
    json!({
        "model": "tiny",
        "max_tokens": 1,
        "stream": stream,
        "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null },
        "messages": [{"role": "user", "content": format!("{}\nWhy?", documents.join("\n"))}],
    })
    .to_string()
}

fn host() -> Host {
    host_with(&[])
}

fn host_with(args: &[&str]) -> Host {
    let model = artifacts::repository().join("host/engine/fixtures/qwen2");
    let args = [&["--name", "tiny", "--kv-tokens", "2560"], args].concat();
    Host::start(&model, &args).unwrap()
}

fn gateway(upstream: SocketAddr, concurrency: u32, plugin: Value) -> Gateway {
    let options = GatewayOptions {
        concurrency,
        plugin: Some(plugin),
        ..GatewayOptions::placing_freely(upstream)
    };
    Gateway::start(&options).unwrap()
}

/// A gateway before this host that follows its feed.
fn following(host: &Host, concurrency: u32) -> Gateway {
    let options = GatewayOptions {
        concurrency,
        clusters: vec![("feed", host.internal())],
        plugin: Some(json!({"engines": [{"name": "engine", "feed": {"cluster": "feed"}}]})),
        ..GatewayOptions::placing_freely(host.address())
    };
    Gateway::start(&options).unwrap()
}

fn followed() -> Value {
    json!({"engines": [{"name": "engine", "feed": {"cluster": "engine"}}]})
}

/// What the gateway said it matched, and the engine of the prompt and what of it was cached.
fn ask(gateway: &Gateway, body: &str) -> (u64, u64, u64) {
    let response = exchange(gateway.address(), &post(body.as_bytes())).unwrap();
    let text = String::from_utf8(response.body.clone()).unwrap();
    assert_eq!(response.status, 200, "{text}");
    let usage = text.rsplit_once("\"usage\":").map(|(_, usage)| usage);
    let usage: Value = serde_json::Deserializer::from_str(usage.unwrap())
        .into_iter()
        .next()
        .unwrap()
        .unwrap();
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    (
        matched(&response),
        usage["prompt_tokens"].as_u64().unwrap(),
        cached.unwrap(),
    )
}

fn matched(response: &Response) -> u64 {
    let field = response
        .report()
        .split("; ")
        .find_map(|field| field.strip_prefix("matched="));
    field
        .unwrap_or_else(|| panic!("{}", response.report()))
        .parse()
        .unwrap()
}

fn count(gateway: &Gateway, name: &str) -> u64 {
    gateway.metric(name).unwrap().unwrap_or_default()
}

/// Waits until the gateway has read all that the hosts have said.
fn synchronize(
    hosts: &[Host],
    gateway: &Gateway,
    followers: &mut [Follower],
    key: Option<&FeedKey>,
) {
    let said = hosts.iter().zip(followers).map(|(host, follower)| {
        let path = format!("/v1/kv/events?{}", follower.query());
        let token = key.map(|key| format!("authorization: Bearer {}\r\n", key.token()));
        let token = token.unwrap_or_default();
        let request = format!("GET {path} HTTP/1.1\r\nhost: host\r\n{token}\r\n");
        let response = exchange(host.internal(), request.as_bytes()).unwrap();
        let batch = Batch::read(&response.body, key).unwrap();
        follower.follow(&batch).for_each(drop);
        // Its first batch, of an empty cache, is one event, which forgets.
        batch.next + 1
    });
    let said: u64 = said.sum();
    while count(gateway, "foreword_feed_events_total") < said {
        pause();
    }
}

/// Asks about topics at random; how many documents the gateway believed held, and how many were.
fn play(gateway: &Gateway, mut before: impl FnMut()) -> Vec<(u64, u64)> {
    let (_, prompt, cached) = ask(gateway, &question(0, false));
    assert_eq!(cached, 0);
    let document = prompt / DOCUMENTS as u64;
    let mut random = Random::new(5);
    let asked = (0..40).map(|_| {
        // One topic comes back soon, the others seldom.
        let topic = random.below(TOPICS).min(random.below(TOPICS));
        before();
        let (matched, _, cached) = ask(gateway, &question(topic, false));
        // What stands around the documents is far less than one of them.
        (matched, (cached + document / 4) / document)
    });
    asked.collect()
}

#[test]
fn a_gateway_that_follows_the_feed_believes_what_the_engine_holds() {
    let hosts = [host()];
    assert_believed(&following(&hosts[0], 2), &hosts);
}

#[test]
fn a_gateway_with_the_hosts_key_follows_a_sealed_feed_and_one_with_another_key_says_so() {
    let digits = |byte: &str| byte.repeat(32);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), digits("5a")).unwrap();
    let hosts = [host_with(&[
        "--feed-key-file",
        file.path().to_str().unwrap(),
    ])];
    let gateway = |fields: Value, environment: Vec<(&'static str, String)>| {
        let mut feed = json!({"cluster": "feed"});
        feed.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let options = GatewayOptions {
            concurrency: 2,
            clusters: vec![("feed", hosts[0].internal())],
            plugin: Some(json!({"engines": [{"name": "engine", "feed": feed}]})),
            environment,
            ..GatewayOptions::placing_freely(hosts[0].address())
        };
        Gateway::start(&options).unwrap()
    };
    // Another key makes another token, so its reader is not let in; one that has a right token and another key reads what
    // it cannot open.
    let other = gateway(json!({"key": digits("77")}), Vec::new());
    until("it is refused", || {
        other
            .log()
            .unwrap()
            .contains("cannot be followed: status 401")
    });
    let token = FeedKey::from_hex(&digits("5a")).unwrap().token().to_owned();
    let blind = gateway(json!({"key": digits("77"), "token": token}), Vec::new());
    until("it cannot open what it reads", || {
        count(&blind, "foreword_feed_key_mismatches_total") > 0
    });
    assert!(blind.log().unwrap().contains("sealed with another key"));
    assert_eq!(count(&blind, "foreword_feed_events_total"), 0);
    drop((other, blind));
    // And with the right one, from the environment, it believes what is held.
    let gateway = gateway(
        json!({"key_env": "FEED_KEY"}),
        vec![("FEED_KEY", digits("5a"))],
    );
    let key = FeedKey::from_hex(&digits("5a"));
    assert_believed_by(&gateway, &hosts, key.as_ref());
    assert_eq!(count(&gateway, "foreword_feed_key_mismatches_total"), 0);
}

#[test]
fn of_several_engines_each_is_believed_to_hold_what_it_says() {
    let hosts = [(); 3].map(|()| host());
    let names = ["a", "b", "c"];
    let engines = hosts.iter().zip(names).map(|(host, name)| {
        let cluster = format!("feed-{name}");
        json!({"name": name, "address": host.address().to_string(), "feed": {"cluster": cluster}})
    });
    let options = GatewayOptions {
        engines: Some(hosts.each_ref().map(Host::address)),
        feeds: Some(hosts.each_ref().map(Host::internal)),
        plugin: Some(json!({"engines": engines.collect::<Vec<_>>()})),
        concurrency: 2,
        ..GatewayOptions::placing_freely(hosts[0].address())
    };
    assert_believed(&Gateway::start(&options).unwrap(), &hosts);
}

/// Plays until what is asked about comes back, evicted or not: what is believed held is held, no more and no less.
fn assert_believed(gateway: &Gateway, hosts: &[Host]) {
    assert_believed_by(gateway, hosts, None);
}

/// The same, where feeds are sealed with a key.
fn assert_believed_by(gateway: &Gateway, hosts: &[Host], key: Option<&FeedKey>) {
    // Until then, all that is held counts as one event.
    while count(gateway, "foreword_feed_events_total") < hosts.len() as u64 {
        pause();
    }
    let mut followers: Vec<Follower> = hosts.iter().map(|_| Follower::default()).collect();
    let played = play(gateway, || synchronize(hosts, gateway, &mut followers, key));
    assert!(
        played.iter().all(|(matched, held)| matched == held),
        "{played:?}"
    );
    let of = |held: u64| played.iter().filter(|(_, found)| *found == held).count();
    assert!(of(0) > 5 && of(DOCUMENTS as u64) > 5, "{played:?}");
    assert_eq!(count(gateway, "foreword_lost_entries_total"), 0);
}

#[test]
fn a_gateway_that_is_told_nothing_learns_from_answers() {
    let host = host();
    let gateway = gateway(host.address(), 2, json!({}));
    let played = play(&gateway, || {});
    let believed: u64 = played.iter().map(|(matched, _)| matched).sum();
    let held: u64 = played.iter().map(|(_, held)| held).sum();
    // It believes that what it sent once is held, until an answer says that it was not.
    assert!(believed > held, "{played:?}");
    until("answers are counted", || {
        let counted = |name| count(&gateway, name);
        counted("foreword_corrections_total") > 5
            && counted("foreword_engine_cached_tokens_total") > 0
    });
    let prompt = count(&gateway, "foreword_engine_prompt_tokens_total");
    let cached = count(&gateway, "foreword_engine_cached_tokens_total");
    assert!(cached < prompt, "{cached} of {prompt}");
}

#[test]
fn a_restarted_engine_is_believed_to_hold_what_it_says() {
    // What a host says, by the test.
    let batches: &'static Mutex<Vec<(u16, String)>> = Box::leak(Box::new(Mutex::new(Vec::new())));
    let upstream = Upstream::scripted(move |request, reply| {
        if request.line.contains("/v1/kv/events") {
            let next = batches.lock().unwrap().pop();
            // Nothing new: a client that waits in vain.
            let (status, body) = next.unwrap_or((503, "{}".to_owned()));
            return reply.json(status, &body);
        }
        reply.json(200, r#"{"ok": true}"#)
    })
    .unwrap();
    let gateway = gateway(upstream.address(), 2, followed());
    let batch = |epoch: &str, events: Value| {
        json!({"epoch": epoch, "from": 0, "next": 0, "reset": true, "model": "tiny", "events": events})
            .to_string()
    };
    let say = |status: u16, body: String, events: u64| {
        let before = count(&gateway, "foreword_feed_events_total");
        batches.lock().unwrap().push((status, body));
        while count(&gateway, "foreword_feed_events_total") < before + events
            || !batches.lock().unwrap().is_empty()
        {
            pause();
        }
    };
    let ask = || {
        let body = question(1, false);
        let response = exchange(gateway.address(), &post(body.as_bytes())).unwrap();
        matched(&response)
    };
    assert_eq!((ask(), ask()), (0, 4));
    say(200, batch("0000000000000001", json!([])), 1);
    assert_eq!((ask(), ask()), (0, 4));
    // It refuses, or says something else than it should: what is believed stays.
    for (status, body) in [
        (401, "{}"),
        (503, ""),
        (200, "noise"),
        (200, "{}"),
        (200, "["),
    ] {
        say(status, body.to_owned(), 0);
        assert_eq!(ask(), 4, "{status} {body}");
    }
    // So it does when the engine has too much to say.
    let scope = "00000000000000aa";
    let path: Vec<_> = (0..40)
        .map(|document| json!([format!("{document:016x}"), 9]))
        .collect();
    let stored = json!({"type": "stored", "tenant": "", "scope": scope, "path": path});
    let all: Vec<_> = (0..5_000).map(|_| stored.clone()).collect();
    let long = batch("0000000000000002", json!(all));
    assert!(long.len() > 4 << 20, "{} bytes", long.len());
    say(200, long, 0);
    assert_eq!(ask(), 4);
    // A megabyte is not too much.
    let long = batch("0000000000000002", json!(all[..1_100]));
    assert!(long.len() > 1_000_000, "{} bytes", long.len());
    say(200, long, 1);
    assert_eq!((ask(), ask()), (0, 4));
    assert_eq!(count(&gateway, "foreword_untold_requests_total"), 0);
    let log = gateway.log().unwrap();
    assert!(
        log.contains("the feed of engine cannot be followed: "),
        "{log}"
    );
    assert!(log.contains("the feed of engine is back"), "{log}");
}

#[test]
fn what_a_stream_says_is_read_and_not_a_byte_of_it_changes() {
    let usage = |prompt: u64, cached: u64| json!({"choices": [], "usage": {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}});
    let upstream = Upstream::scripted(move |_, reply| {
        reply.begin_events()?;
        for word in ["one", "two \"usage\": {}", "three"] {
            reply.event(
                &json!({"choices": [{"delta": {"content": word}}], "usage": null}).to_string(),
            )?;
        }
        reply.event(&usage(1_000, 0).to_string())?;
        reply.event("[DONE]")?;
        reply.end_events()
    })
    .unwrap();
    let stream = |gateway: &Gateway| {
        let mut client = Client::connect(gateway.address()).unwrap();
        client.send(&post(question(1, true).as_bytes())).unwrap();
        client.response().unwrap()
    };
    let bare = Gateway::start(&GatewayOptions {
        plugin: None,
        ..GatewayOptions::placing_freely(upstream.address())
    })
    .unwrap();
    let expected = stream(&bare).body;
    let gateway = gateway(upstream.address(), 1, json!({}));
    for asked in 1..=3 {
        let response = stream(&gateway);
        assert_eq!(response.body, expected);
        // It is believed to hold the documents, and says each time that it does not.
        assert_eq!(matched(&response), if asked == 1 { 0 } else { 4 });
        gateway.await_metric("foreword_engine_prompt_tokens_total", asked * 1_000);
        assert_eq!(count(&gateway, "foreword_corrections_total"), asked - 1);
    }
}

/// The engine's own count of what it had, by the number of workers.
#[test]
fn an_engine_finds_as_much_cached_behind_one_worker_as_behind_several() {
    let cached = |workers: u32| {
        let host = host();
        let gateway = gateway(
            host.address(),
            workers,
            json!({"ordering": {"hint": {"enabled": false}}}),
        );
        let mut random = Random::new(3);
        let mut clients: Vec<_> = (0..4 * workers)
            .map(|_| Client::connect(gateway.address()).unwrap())
            .collect();
        let mut prompt = 0;
        for _ in 0..60 {
            let topic = random.below(4);
            let mut documents: Vec<u64> = (0..5).collect();
            random.shuffle(&mut documents);
            let documents = documents.iter().take(3).map(|document| {
                let words = format!("What {topic} and {document} say fills some pages. ").repeat(8);
                format!("<document id=\"{topic}-{document}\">{words}</document>")
            });
            let content = documents.collect::<Vec<_>>().join("\n") + "\nWhy?";
            let body = json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": content}]});
            let at = usize::try_from(random.below(clients.len() as u64)).unwrap();
            clients[at]
                .send(&post(body.to_string().as_bytes()))
                .unwrap();
            let response = clients[at].response().unwrap();
            let usage = &response.json().unwrap()["usage"];
            prompt += usage["prompt_tokens"].as_u64().unwrap();
        }
        gateway.await_metric("foreword_engine_prompt_tokens_total", prompt);
        let cached = count(&gateway, "foreword_engine_cached_tokens_total");
        (cached, prompt)
    };
    let (one, prompt) = cached(1);
    assert!(
        one * 10 > prompt * 3,
        "{one} of {prompt} tokens were cached"
    );
    for workers in [2, 4] {
        let (several, same) = cached(workers);
        assert_eq!(same, prompt);
        println!("{workers} workers: {several} of {prompt} tokens cached, one: {one}");
        assert!(
            several.abs_diff(one) * 100 <= one * 3,
            "{workers} workers: {several}, one: {one}"
        );
    }
}

/// The checks of `foreword doctor` that are not `ok`, with their status, and its exit code.
fn examined(host: &Host, gateway: &Gateway) -> (Option<i32>, Vec<(String, String)>) {
    let mut doctor = Command::new(artifacts::host_binary("dev").unwrap());
    let url = |address: SocketAddr| format!("http://{address}");
    doctor
        .args(["doctor", &url(host.address()), "--json", "--allow-reset"])
        .args(["--internal", &url(host.internal())])
        .args(["--gateway", &url(gateway.address())])
        .args([
            "--gateway-metrics",
            &(url(gateway.admin()) + "/stats/prometheus"),
        ]);
    let output = doctor.output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = told["findings"].as_array().unwrap().iter();
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let findings = findings.map(|finding| (text(finding, "check"), text(finding, "status")));
    println!("{told:#}");
    let other = findings.filter(|(_, status)| status != "ok").collect();
    (output.status.code(), other)
}

#[test]
fn a_doctor_finds_nothing_behind_envoy_but_what_the_gateway_lacks() {
    let model = artifacts::repository().join("host/engine/fixtures/qwen2");
    let host = Host::start(&model, &["--name", "tiny", "--kv-tokens", "65536"]).unwrap();
    assert_eq!(examined(&host, &following(&host, 2)), (Some(0), vec![]));
    let alone = gateway(host.address(), 1, json!({}));
    let lacks = ("residency".to_owned(), "fail".to_owned());
    assert_eq!(examined(&host, &alone), (Some(3), vec![lacks]));
}

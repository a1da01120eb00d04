//! Salted means every path: whatever a client makes of a path, no body without the gateway's own salt reaches an engine.
//!
//! The engine is a real Starlette behind uvicorn, as vLLM and SGLang have it, whose router takes `/v1/chat/completions%0A`
//! and `/v1/chat%2Fcompletions` for `/v1/chat/completions`. Each spelling is sent over HTTP/1.1, as raw bytes, and over
//! HTTP/2, by tenants that a header and a token name, through the shipped configuration and through one that leaves it all
//! to the filter.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use foreword_tests::http::{exchange, post_with};
use foreword_tests::{Gateway, GatewayOptions, Paths, Routed, Shell, Starlette, over_http2, until};
use serde_json::{Value, json};

use crate::tenants::{KEY, jwt_authn, token};

const CHAT: &str = "/v1/chat/completions";

/// What a client may put where a path belongs: the routes in every spelling that some router, proxy or decoder is known to
/// take for another one, and paths beside them.
fn spellings() -> BTreeSet<Vec<u8>> {
    let mut found: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut add = |path: &[&[u8]]| {
        found.insert(path.concat());
    };
    let chat = CHAT.as_bytes();
    for suffix in SUFFIXES {
        add(&[chat, suffix]);
        add(&[b"/v1/models", suffix]);
    }
    for suffix in &SUFFIXES[..24] {
        add(&[b"/v1/messages", suffix]);
    }
    for prefix in PREFIXES {
        add(&[prefix, chat]);
    }
    for (at, byte) in chat.iter().enumerate() {
        let (before, after) = (&chat[..at], &chat[at + 1..]);
        if *byte == b'/' {
            for slash in SLASHES {
                add(&[before, slash, after]);
            }
        }
        let upper = format!("%{byte:02X}");
        let lower = format!("%{byte:02x}");
        let twice = format!("%25{byte:02X}");
        let wide = format!("%u00{byte:02X}");
        // Two and three bytes for what takes one, which decoders must refuse and some do not.
        let two = format!("%C{:X}%{:02X}", byte >> 6, 0x80 | (byte & 0x3f));
        let three = format!("%E0%8{:X}%{:02X}", byte >> 6, 0x80 | (byte & 0x3f));
        let full = char::from_u32(0xff00 + u32::from(*byte) - 0x20).map(String::from);
        for spelt in [upper, lower, twice, wide, two, three].iter().chain(&full) {
            add(&[before, spelt.as_bytes(), after]);
        }
        add(&[before, &[byte.to_ascii_uppercase()], after]);
        for between in [&b"%0A"[..], b"%00", b"%E2%80%8B", b"\t"] {
            add(&[before, between, &chat[at..]]);
        }
    }
    let encoded =
        |path: &[u8]| -> String { path.iter().map(|byte| format!("%{byte:02x}")).collect() };
    add(&[b"/", encoded(&chat[1..]).as_bytes()]);
    add(&[encoded(chat).as_bytes()]);
    add(&[CHAT.to_uppercase().as_bytes()]);
    for other in OTHERS {
        add(&[other]);
    }
    // These are listed, and are asked on purpose elsewhere.
    for listed in [
        CHAT,
        "/v1/messages",
        "/v1/responses",
        "/v1/models",
        "/health",
    ] {
        found.remove(listed.as_bytes());
    }
    found
}

#[rustfmt::skip]
const SUFFIXES: &[&[u8]] = &[
    b"%0A", b"%0a", b"\n", b"%0D", b"%0D%0A", b"%20", b" ", b"%09", b"\t", b"%00", b"\0", b"/", b"//", b"/.", b"/./",
    b"/..", b";", b";a=b", b"%3B", b"%3Ba=b", b"#", b"#x", b"%23", b"%3F", b"%3Fx=1", b".", b"..", b".json", b"*",
    b":", b"@", b"&", b"=", b",", b"!", b"~", b"'", b"\"", b"<", b">", b"|", b"\\", b"%5C", b"%2F", b"%2f", b"%2E",
    b"%2e%2e", b"%252F", b"%250A", b"%25250A", b"%u000A", b"%E2%80%A8", b"%E2%80%A9", b"%C2%85", b"%C2%A0", b"%C0%8A",
    b"\xc0\x8a", b"%E0%80%8A", b"%0B", b"%0C", b"\x0b", b"\x0c", b"%1C", b"%1D", b"%1E", b"%1F", b"%7F", b"\x7f",
    b"\x85", b"%85", b"%FF", b"\xff", b"%", b"%%", b"%0", b"%G0", b"%0A%0A", b"%0A/", b"/%0A", b"%0A?x=1", b"%0A;",
    b"/%2e", b"/..;/", b"/;/", b"/x/..", b"/%2e%2e/completions", b"$", b"^", b"`", b"{", b"[]", b"+", b"%2B", b"?",
    b"?x=1", b"?%0A", b"??", b"?/v1/models", b"#?", b"?#", b"%0A#",
];

#[rustfmt::skip]
const PREFIXES: &[&[u8]] = &[
    b"/", b"//", b"/.", b"/./", b"/..", b"/../", b"/x/..", b"/%2e", b"/%2e/", b"/%2E%2E/", b"/%2e%2e", b"/%2f",
    b"%2F", b"/%5c", b"\\", b"/\\", b"/;", b"/;/", b"/;a=b", b"/%0A", b"/%20", b"/%00", b"/v1/..", b"/v1/%2e%2e",
    b"/v1/models/..", b"/v1/models/%2e%2e", b"/v1/models/..;", b"/health/..", b"/v1/models%2f..", b"/v1/models\\..",
    b"http://gateway", b"HTTP://gateway", b"http://gateway:80", b"http://other", b"https://gateway", b"ws://gateway",
    b"http://gateway/", b"http://user@gateway", b"http:/", b"http:", b"//gateway", b"///gateway", b"x",
    b"\xef\xbb\xbf", b"*", b"?", b"#", b"~", b"/~", b"/0", b"/v1", b"/api", b"\t", b"/\t", b"\0", b"/%c0%af",
    b"/%c0%ae%c0%ae/",
];

#[rustfmt::skip]
const SLASHES: &[&[u8]] = &[
    b"//", b"///", b"/./", b"/././", b"/x/../", b"\\", b"/\\", b"\\\\", b"%2F", b"%2f", b"%2F%2F", b"/%2F", b"%5C",
    b"%5c", b"%252F", b"%25252F", b"/%2e/", b"/%2E/", b"/x/%2e%2e/", b"/x/.%2e/", b"/x/%2e./", b"/;/", b"/;a=b/",
    b"/x/..;/", b"%C0%AF", b"%c0%af", b"%E0%80%AF", b"%F0%80%80%AF", b"\xc0\xaf", b"%EF%BC%8F", b"\xef\xbc\x8f",
    b"%u002F", b"%u2215", b":", b"%3A", b"/%20/", b"/ /", b"/%00/", b"/%09", b"/\t", b"/%0A", b"%0A/", b"/%0D%0A/",
    b"",
];

#[rustfmt::skip]
const OTHERS: &[&[u8]] = &[
    b"/v1/completions", b"/v1/completions%0A", b"/v1/responses", b"/v1/responses%0A", b"/v1/embeddings",
    b"/v1/prefill", b"/v1/kv/snapshot", b"/v1/kv/events", b"/metrics", b"/metrics%0A", b"/tokenize", b"/pooling",
    b"/invocations", b"/inference/v1/generate", b"/generate", b"/", b"*", b"", b".", b"..", b"/.", b"/..", b"%", b"?",
    b"/?", b"#",
];

/// A chat with a salt of the client's own.
fn forged() -> Vec<u8> {
    json!({
        "model": "m",
        "cache_salt": "another tenant's",
        "messages": [{"role": "user", "content": "Why?"}],
    })
    .to_string()
    .into_bytes()
}

/// Who a request says it is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tenants {
    Header,
    Token,
}

impl Tenants {
    fn gateway(self, engine: SocketAddr, paths: Paths) -> Gateway {
        // A dynamic module cannot read claims.
        let tenant = match (self, Shell::chosen()) {
            (Self::Token, Shell::Wasm | Shell::ExtProc | Shell::ExtProcDuplex) => {
                json!({"claim": "tenant", "payload": "jwt"})
            }
            _ => json!({"header": "x-tenant"}),
        };
        let options = GatewayOptions {
            plugin: Some(json!({
                "tenant": tenant,
                "salt": {"key": KEY},
                "on_failure": "pass",
                "engines": [{"name": "engine", "salts": ["/v1/chat/completions", "/v1/messages", "/v1/responses"]}],
            })),
            filters_before: (self == Self::Token).then(jwt_authn),
            paths,
            ..GatewayOptions::placing_freely(engine)
        };
        Gateway::start(&options).unwrap()
    }

    fn headers(self) -> Vec<(String, String)> {
        let mut headers = vec![("x-tenant".to_owned(), "red".to_owned())];
        if self == Self::Token {
            let bearer = format!("Bearer {}", token(&json!({"tenant": "red"})));
            headers.push(("authorization".to_owned(), bearer));
        }
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
        headers
    }
}

/// Sends these bytes on a connection of its own and reads until an answer has begun, or the connection is closed. The
/// status; 0 where there is none.
fn over_http1(address: SocketAddr, request: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // A gateway that refuses the first line closes before it has read the last.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while answer.len() < 12 {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend(&buffer[..read]),
        }
    }
    let status = answer
        .get(9..12)
        .and_then(|status| str::from_utf8(status).ok());
    status.and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Sends each request as [`over_http1`] does, and returns how many were answered with 200. Sixteen wait at a time: where
/// Envoy cannot read a request and the filter is an external processor, Envoy answers by closing, after a second.
fn gone_on_over_http1(address: SocketAddr, requests: &[Vec<u8>]) -> usize {
    let next = AtomicUsize::new(0);
    let send = || -> usize {
        let mut gone_on = 0;
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            gone_on += usize::from(over_http1(address, request) == 200);
        }
        gone_on
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(send)).collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    })
}

fn http1(method: &str, path: &[u8], headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let mut request = [
        method.as_bytes(),
        b" ",
        path,
        b" HTTP/1.1\r\nhost: gateway\r\n",
    ]
    .concat();
    for (name, value) in headers {
        request.extend(format!("{name}: {value}\r\n").bytes());
    }
    request.extend(
        format!(
            "connection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .bytes(),
    );
    request.extend(body);
    request
}

type Http2 = (Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>);

fn http2(method: &str, path: &[u8], headers: &[(String, String)], body: &[u8]) -> Http2 {
    let pseudo = [
        (":method", method.as_bytes()),
        (":scheme", b"http"),
        (":authority", b"gateway"),
        (":path", path),
    ];
    let pseudo = pseudo.map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()));
    let headers = headers.iter();
    let headers =
        headers.map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
    (pseudo.into_iter().chain(headers).collect(), body.to_vec())
}

/// The salt that `red`'s chats go on with.
fn salt_of(gateway: &Gateway, engine: &Starlette, headers: &[(String, String)]) -> String {
    let status = over_http1(
        gateway.address(),
        &http1("POST", CHAT.as_bytes(), headers, &forged()),
    );
    assert_eq!(status, 200, "the route itself");
    let last = engine.received().unwrap().pop().unwrap();
    assert_eq!(last.handler.as_deref(), Some("chat"));
    let body: Value = serde_json::from_str(&last.body).unwrap();
    let salt = body["cache_salt"].as_str().unwrap().to_owned();
    assert_eq!(salt.len(), 64);
    salt
}

/// Every body that arrived has the gateway's salt and no other.
fn check(received: &[Routed], salt: &str, tried: &str) {
    for request in received.iter().filter(|request| !request.body.is_empty()) {
        let body: Option<Value> = serde_json::from_str(&request.body).ok();
        let found = body.as_ref().and_then(|body| body["cache_salt"].as_str());
        assert_eq!(
            (found, request.body.matches("cache_salt").count()),
            (Some(salt), 1),
            "{tried}: {} {:?} reached {:?}",
            request.method,
            request.raw_path,
            request.handler
        );
    }
}

#[test]
fn there_are_over_four_hundred_spellings_and_the_engines_own_router_takes_dozens_of_them_for_the_chat()
 {
    let spellings = spellings();
    assert!(spellings.len() > 400, "{}", spellings.len());
    let Some(engine) = Starlette::start().unwrap() else {
        return;
    };
    for path in &spellings {
        over_http1(engine.address(), &http1("POST", path, &[], &forged()));
    }
    let received = engine.received().unwrap();
    let chats = received
        .iter()
        .filter(|request| request.handler.as_deref() == Some("chat"));
    let chats: BTreeSet<_> = chats.map(|request| &request.raw_path).collect();
    assert!(chats.contains(&format!("{CHAT}%0A")), "{chats:?}");
    assert!(chats.len() > 24, "{} {chats:?}", chats.len());
}

#[test]
fn no_body_without_the_gateways_salt_reaches_an_engine_however_its_path_is_spelt() {
    let spellings = spellings();
    let Some(engine) = Starlette::start().unwrap() else {
        return;
    };
    for tenants in [Tenants::Header, Tenants::Token] {
        for paths in [Paths::Listed, Paths::All] {
            let gateway = tenants.gateway(engine.address(), paths);
            let headers = tenants.headers();
            let salt = salt_of(&gateway, &engine, &headers);
            let requests = spellings.iter();
            let requests: Vec<_> = requests
                .map(|path| http1("POST", path, &headers, &forged()))
                .collect();
            let mut gone_on = gone_on_over_http1(gateway.address(), &requests);
            let requests = spellings.iter();
            let requests: Vec<_> = requests
                .map(|path| http2("POST", path, &headers, &forged()))
                .collect();
            let statuses = over_http2(gateway.address(), &requests).unwrap();
            assert_eq!(statuses.len(), spellings.len());
            gone_on += statuses.iter().filter(|status| **status == 200).count();
            let tried = format!("{tenants:?}, {paths:?}");
            check(&engine.received().unwrap(), &salt, &tried);
            // Queries, and with the shipped configuration what Envoy makes plain.
            assert!(gone_on > 8, "{tried}: {gone_on}");
            assert!(gone_on < spellings.len() / 2, "{tried}: {gone_on}");
            assert_eq!(gateway.failures().unwrap(), 0);
            let failed = |status: &u16| *status >= 500;
            assert!(!statuses.iter().any(failed), "{tried}: {statuses:?}");
        }
    }
}

#[test]
fn listed_paths_are_served_over_both_protocols_and_nothing_else_is() {
    let Some(engine) = Starlette::start().unwrap() else {
        return;
    };
    for tenants in [Tenants::Header, Tenants::Token] {
        for paths in [Paths::Listed, Paths::All] {
            let gateway = tenants.gateway(engine.address(), paths);
            let headers = tenants.headers();
            let body = forged();
            let all = match paths {
                // Envoy finds no route, but the filter has answered before.
                Paths::Listed | Paths::All => 404,
            };
            for (method, path, body, status) in [
                ("POST", CHAT, &body[..], 200),
                ("POST", "/v1/chat/completions?api-version=1", &body, 200),
                ("POST", "/v1/messages", &body, 200),
                ("GET", "/v1/models", b"", 200),
                ("GET", "/health", b"", 200),
                ("GET", "/v1/models?limit=1", b"", 200),
                // Starlette has no such method there, but the question may be asked.
                ("OPTIONS", CHAT, b"", 405),
                ("GET", CHAT, b"", 405),
                ("PUT", CHAT, &body, 405),
                ("POST", "/v1/models", &body, 405),
                ("GET", "/v1/models", &body, 400),
                ("OPTIONS", CHAT, &body, 400),
                ("POST", "/v1/completions", &body, all),
                ("POST", "/v1/chat/completions%0A", &body, all),
                ("GET", "/metrics", b"", all),
                ("GET", "/v1/kv/snapshot", b"", all),
                ("POST", "/v1/prefill", &body, all),
            ] {
                let request = http1(method, path.as_bytes(), &headers, body);
                let answered = over_http1(gateway.address(), &request);
                assert_eq!(answered, status, "{tenants:?} {paths:?} {method} {path}");
                if body.is_empty() {
                    // The client ends such a request with an empty frame, not with its headers.
                    continue;
                }
                let request = http2(method, path.as_bytes(), &headers, body);
                let answered = over_http2(gateway.address(), &[request]).unwrap();
                assert_eq!(
                    answered,
                    [status],
                    "HTTP/2 {tenants:?} {paths:?} {method} {path}"
                );
            }
        }
    }
}

#[test]
fn a_body_that_cannot_be_read_and_a_method_in_disguise_do_not_go_on_either() {
    let Some(engine) = Starlette::start().unwrap() else {
        return;
    };
    let gateway = Tenants::Header.gateway(engine.address(), Paths::All);
    let headers = Tenants::Header.headers();
    let salt = salt_of(&gateway, &engine, &headers);
    let body = forged();
    let text = String::from_utf8(body.clone()).unwrap();
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let utf32: Vec<u8> = text
        .chars()
        .flat_map(|c| u32::from(c).to_le_bytes())
        .collect();
    let marked = [b"\xef\xbb\xbf", &body[..]].concat();
    let twice = text
        .replacen('{', r#"{"cache_salt": "x", "#, 1)
        .into_bytes();
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03";
    let with = |more: &[(&str, &str)]| -> Vec<(String, String)> {
        let more = more.iter();
        let more = more.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let named: Vec<_> = more.collect();
        let kept = headers
            .iter()
            .filter(|(name, _)| !named.iter().any(|(other, _)| other == name));
        kept.cloned().chain(named.clone()).collect()
    };
    let plain = with(&[]);
    for (method, path, headers, body, status) in [
        ("POST", CHAT, &plain, &utf16[..], 400),
        ("POST", CHAT, &plain, &utf32, 400),
        ("POST", CHAT, &plain, &marked, 400),
        ("POST", CHAT, &plain, &twice, 400),
        ("POST", CHAT, &plain, gzip, 400),
        (
            "POST",
            CHAT,
            &with(&[("content-encoding", "gzip")]),
            &body,
            415,
        ),
        (
            "POST",
            CHAT,
            &with(&[("content-encoding", "deflate, gzip")]),
            &body,
            415,
        ),
        (
            "POST",
            CHAT,
            &with(&[("content-type", "text/plain")]),
            &body,
            415,
        ),
        (
            "POST",
            CHAT,
            &with(&[("content-type", "multipart/form-data; boundary=x")]),
            &body,
            415,
        ),
        (
            "POST",
            CHAT,
            &with(&[("content-type", "application/json; charset=utf-16")]),
            &utf16,
            400,
        ),
        (
            "POST",
            CHAT,
            &with(&[("upgrade", "websocket"), ("connection", "upgrade")]),
            &body,
            403,
        ),
        (
            "GET",
            "/v1/models",
            &with(&[("x-http-method-override", "POST")]),
            &body,
            400,
        ),
        (
            "GET",
            CHAT,
            &with(&[("x-http-method-override", "POST")]),
            &body,
            405,
        ),
        (
            "POST",
            "/v1/models",
            &with(&[("x-original-url", CHAT), ("x-rewrite-url", CHAT)]),
            &body,
            405,
        ),
        (
            "POST",
            "/",
            &with(&[
                ("x-forwarded-prefix", CHAT),
                ("x-envoy-original-path", CHAT),
            ]),
            &body,
            404,
        ),
        ("post", CHAT, &plain, &body, 405),
        ("PATCH", CHAT, &plain, &body, 405),
    ] {
        let answered = over_http1(
            gateway.address(),
            &http1(method, path.as_bytes(), headers, body),
        );
        // What Envoy itself refuses it answers and closes at once, and the answer may still wait for a processor.
        let is_cut = Shell::chosen().is_ext_proc() && answered == 0;
        assert!(
            is_cut || answered == status || (400..500).contains(&answered),
            "{method} {path} {headers:?}: {answered}"
        );
    }
    // Framed in ways that two servers might read differently.
    let head = |more: &str| {
        let names = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: gateway\r\n{}{more}\r\n\r\n",
            names.collect::<String>()
        )
    };
    let length = body.len();
    let smuggled = format!("{CHAT}%0A");
    let behind = String::from_utf8(http1("POST", smuggled.as_bytes(), &headers, &body)).unwrap();
    for request in [
        format!(
            "{}{text}",
            head(&format!("content-length: {length}\r\ncontent-length: 2"))
        ),
        format!(
            "{}{text}",
            head(&format!("content-length: {length}, {length}"))
        ),
        format!("{}{text}", head(&format!("content-length: +{length}"))),
        format!(
            "{}0\r\n\r\n{behind}",
            head(&format!(
                "content-length: {length}\r\ntransfer-encoding: chunked"
            ))
        ),
        format!(
            "{}{length:x}\r\n{text}\r\n0\r\n\r\n",
            head("transfer-encoding: chunked, chunked")
        ),
        format!(
            "{}{length:x}\r\n{text}\r\n0\r\n\r\n",
            head("transfer-encoding: gzip, chunked")
        ),
        format!(
            "{}{length:x};a=b\r\n{text}\r\n0\r\ncontent-type: text/plain\r\n\r\n",
            head("transfer-encoding: chunked")
        ),
        format!(
            "{}{text}{behind}",
            head(&format!("content-length: {length}"))
        ),
        format!("{}{behind}", head("content-length: 0")),
    ] {
        over_http1(gateway.address(), request.as_bytes());
    }
    check(&engine.received().unwrap(), &salt, "bodies and methods");
    assert_eq!(gateway.failures().unwrap(), 0);
}

#[test]
fn a_refused_path_is_told_in_the_clients_dialect_and_counted() {
    let Some(engine) = Starlette::start().unwrap() else {
        return;
    };
    for paths in [Paths::Listed, Paths::All] {
        let gateway = Tenants::Header.gateway(engine.address(), paths);
        let ask = |path: &str| {
            let request = post_with(
                &["content-type: application/json", "x-tenant: red"],
                &forged(),
            );
            let request = String::from_utf8(request).unwrap().replacen(CHAT, path, 1);
            exchange(gateway.address(), request.as_bytes()).unwrap()
        };
        let openai = ask("/v1/chat/completions%0A");
        assert_eq!(
            (openai.status, openai.report()),
            (404, "refused; reason=unlisted-path")
        );
        assert_eq!(openai.json().unwrap()["error"]["code"], "unlisted-path");
        let anthropic = ask("/v1/messages%0A");
        assert_eq!(anthropic.status, 404);
        assert_eq!(
            anthropic.json().unwrap()["error"]["type"],
            "not_found_error"
        );
        let method = ask("/v1/models");
        assert_eq!(
            (method.status, method.header("allow")),
            (405, Some("GET, HEAD, OPTIONS"))
        );
        gateway.await_metric("foreword_unlisted_requests_total", 3);
        gateway.await_metric("foreword_refused_total", 3);
    }
    assert!(engine.received().unwrap().is_empty());
}

#[test]
fn without_salts_the_shipped_configuration_keeps_paths_that_are_not_listed_from_the_engine() {
    let Some(engine) = Starlette::start().unwrap() else {
        return;
    };
    let gateway = Gateway::start(&GatewayOptions::placing_freely(engine.address())).unwrap();
    for path in [
        "/metrics",
        "/v1/kv/snapshot",
        "/v1/prefill",
        "/v1/completions",
        "/v1/chat/completions%0A",
    ] {
        let request = http1(
            "POST",
            path.as_bytes(),
            &Tenants::Header.headers(),
            &forged(),
        );
        let response = exchange(gateway.address(), &request).unwrap();
        assert_eq!(response.status, 404, "{path}");
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert_eq!(response.json().unwrap()["error"]["code"], "unlisted-path");
    }
    let escaped = http1(
        "POST",
        b"/v1/chat%2Fcompletions",
        &Tenants::Header.headers(),
        &forged(),
    );
    assert_eq!(over_http1(gateway.address(), &escaped), 400);
    assert!(engine.received().unwrap().is_empty());
}

#[test]
fn a_flood_gets_429_and_headers_that_never_end_lose_their_connection() {
    let Some(engine) = Starlette::start().unwrap() else {
        return;
    };
    let options = GatewayOptions {
        rate_limit: true,
        ..GatewayOptions::placing_freely(engine.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let mut slow = TcpStream::connect(gateway.address()).unwrap();
    slow.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-a")
        .unwrap();
    let address = gateway.address();
    let flood = || {
        let mut client = foreword_tests::http::Client::connect(address).unwrap();
        let request = b"GET /nowhere HTTP/1.1\r\nhost: g\r\n\r\n";
        // The bucket holds two thousand, and a thousand come back each second.
        (0..40_000).find_map(|_| {
            client.send(request).unwrap();
            let response = client.response().unwrap();
            (response.status == 429).then(|| response.header("retry-after").map(str::to_owned))
        })
    };
    let limited = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(flood)).collect();
        let answers = clients.into_iter().map(|client| client.join().unwrap());
        answers.flatten().next()
    });
    assert_eq!(limited, Some(Some("1".to_owned())));
    until("the half-sent headers are given up", || {
        let stat = "http.clients.downstream_rq_header_timeout";
        gateway.stat(stat).unwrap().unwrap_or(0) == 1
    });
}

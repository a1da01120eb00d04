//! HTTP requests to the host, a 0 byte between two: `METHOD PATH`, then headers, one a line, a blank line and the body.
//! `!` before the method sends it to the internal listener. `{id}` stands for the response that was kept last.
//!
//! Each request with a body is sent once more as the gateway sends it, with a salt that nobody has had: it then finds
//! nothing in the cache, whatever the body says of salts, and what is kept of it nobody else reads.

use crate::host::{Host, Listener, MODEL};
use crate::seeds;
use axum::body::Body;
use axum::extract::Request;
use axum::http::response::Parts;
use axum::http::{Method, StatusCode, header};
use foreword_ordering::salted;
use serde_json::Value;
use std::cell::Cell;

pub(crate) fn run(input: &[u8]) {
    thread_local! {
        static HOST: Host = Host::start();
    }
    HOST.with(|host| {
        let mut kept = "resp_none".to_owned();
        for section in input.split(|byte| *byte == 0).take(8) {
            let Some(asked) = Asked::read(section, &kept) else {
                continue;
            };
            let body = asked.send(host, None);
            if asked.listener == Listener::Clients && asked.method == Method::POST {
                if let Some(id) = kept_response(&body) {
                    kept = id;
                }
                as_a_tenant(host, &asked);
            }
        }
        host.is_left();
    });
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let post = |path: &str, body: &str| {
        format!("POST {path}\ncontent-type: application/json\n\n{body}").into_bytes()
    };
    let say = r#""messages":[{"role":"user","content":"say(Hello, é!)"}]"#;
    let schema = r#"{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"integer","maximum":9}},"required":["a"]}}}"#;
    let posts = [
        ("/v1/chat/completions", format!(r#"{{{say},"n":2,"seed":7,"temperature":0.5,"stop":["!"]}}"#)),
        ("/v1/chat/completions", format!(r#"{{{say},"stream":true,"stream_options":{{"include_usage":true}},"logprobs":true,"top_logprobs":3}}"#)),
        ("/v1/chat/completions", format!(r#"{{{say},"max_tokens":40,"response_format":{schema},"cache_salt":"a","\u0063ache_salt":"b"}}"#)),
        ("/v1/chat/completions", format!(r#"{{{say},"tools":[{{"type":"function","function":{{"name":"f","parameters":{{"type":"object"}}}}}}],"tool_choice":"auto"}}"#)),
        ("/v1/chat/completions", format!(r#"{{{say},"retrieval":{{"k":3}}}}"#)),
        ("/v1/completions", r#"{"prompt":"say(x)","max_tokens":5,"logprobs":2,"echo":true}"#.to_owned()),
        ("/v1/completions", r#"{"prompt":[115,97,121,40,120,41],"n":3}"#.to_owned()),
        ("/v1/responses", r#"{"input":"say(yes)","instructions":"Be kind.","store":true,"metadata":{"a":"b"}}"#.to_owned()),
        ("/v1/responses", r#"{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"say(no)"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"3"}],"stream":true}"#.to_owned()),
        ("/v1/messages", r#"{"model":"m","max_tokens":9,"system":"S","messages":[{"role":"user","content":[{"type":"text","text":"say(hm)"},{"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"D"}}]}]}"#.to_owned()),
        ("/v1/messages/count_tokens", r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#.to_owned()),
        ("/v1/chat/completions/render", format!("{{{say}}}")),
        ("/v1/responses/render", r#"{"input":"x"}"#.to_owned()),
        ("/v1/completions/render", r#"{"prompt":["a",[1,2],"c"]}"#.to_owned()),
        ("/tokenize", r#"{"prompt":"tokens","return_token_strs":true,"add_special_tokens":false}"#.to_owned()),
        ("/tokenize", format!("{{{say}}}")),
        ("/detokenize", r#"{"tokens":[104,105,256,195]}"#.to_owned()),
        ("/v1/embeddings", r#"{"input":["a","b"],"encoding_format":"base64"}"#.to_owned()),
        ("/v1/retrieve", r#"{"query":"a","k":2}"#.to_owned()),
        ("/v1/prefill", format!("{{{say}}}")),
        ("/reset_prefix_cache", String::new()),
        ("/v1/models", "{}".to_owned()),
    ];
    let posts = posts.iter().map(|(path, body)| post(path, body));
    let chain = [
        post("/v1/responses", r#"{"input":"say(one)","store":true}"#),
        post(
            "/v1/responses",
            r#"{"input":"say(two)","previous_response_id":"{id}","store":true}"#,
        ),
        b"GET /v1/responses/{id}/input_items\n\n".to_vec(),
        b"GET /v1/responses/{id}?include=a\n\n".to_vec(),
        b"POST /v1/responses/{id}/cancel\n\n".to_vec(),
        b"DELETE /v1/responses/{id}\n\n".to_vec(),
    ];
    let gets = [
        "GET /health",
        "GET /version",
        "GET /server_info",
        "GET /get_load",
        "GET /v1/loads",
        "HEAD /v1/models",
        "GET /v1/models/m",
        "GET /v1/models/%2e%2e/%00%ff",
        "GET /metrics",
        "!GET /metrics",
        "!GET /readyz",
        "!POST /flush_cache",
        "!GET /v1/kv/snapshot",
        "OPTIONS *",
        "PUT /v1/chat/completions",
        "GET //v1/models",
        "POST /v1/chat/completions%0A",
    ];
    let gets = gets.iter().map(|line| {
        format!("{line}\nauthorization: Bearer k\nx-request-id: r\naccept: */*\n\n").into_bytes()
    });
    let golden = seeds::golden().into_iter().map(|bodies| {
        let posts = bodies
            .iter()
            .map(|body| post("/v1/chat/completions", &String::from_utf8_lossy(body)));
        posts.collect::<Vec<_>>().join(&0)
    });
    posts
        .chain(gets)
        .chain([chain.join(&0)])
        .chain(golden)
        .collect()
}

/// A request as the input describes it, before it is sent.
struct Asked {
    listener: Listener,
    method: Method,
    path: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Asked {
    /// Reads a section of the input; `{id}` in it stands for `kept`. Returns `None` if HTTP cannot write the request.
    fn read(section: &[u8], kept: &str) -> Option<Self> {
        let mut lines = section.splitn(2, |byte| *byte == b'\n');
        let first = std::str::from_utf8(lines.next()?).ok()?;
        let (listener, first) = match first.strip_prefix('!') {
            Some(rest) => (Listener::Internal, rest),
            None => (Listener::Clients, first),
        };
        let (method, path) = first.split_once(' ')?;
        let mut headers = Vec::new();
        let mut rest = lines.next().unwrap_or_default();
        loop {
            let mut lines = rest.splitn(2, |byte| *byte == b'\n');
            let line = lines.next().unwrap_or_default();
            rest = lines.next().unwrap_or_default();
            let mut parts = line.splitn(2, |byte| *byte == b':');
            let (Some(name), Some(value)) = (parts.next(), parts.next()) else {
                break;
            };
            if headers.len() < 100 {
                let name = String::from_utf8_lossy(name).into_owned();
                headers.push((name, value.trim_ascii().to_vec()));
            }
        }
        let named = String::from_utf8_lossy(rest);
        let body = match named.contains("{id}") {
            true => named.replace("{id}", kept).into_bytes(),
            false => rest.to_vec(),
        };
        let asked = Self {
            listener,
            method: method.parse().ok()?,
            path: path.replace("{id}", kept),
            headers,
            body,
        };
        asked.request(None).map(|_| asked)
    }

    fn request(&self, salted: Option<&[u8]>) -> Option<Request<Body>> {
        let mut request = Request::builder().method(&self.method).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(name.as_str(), value.as_slice());
        }
        let body = salted.unwrap_or(&self.body).to_vec();
        request.body(Body::from(body)).ok()
    }

    /// Sends the request, with the body `salted` in place of its own if there is one, and returns the answer's body. Asserts what
    /// holds for every answer: no server error but an unavailable retriever, JSON where it says so, and a request id.
    fn send(&self, host: &Host, salted: Option<&[u8]>) -> Vec<u8> {
        let Some(request) = self.request(salted) else {
            return Vec::new();
        };
        if self.path.contains("/v1/kv/events") {
            // It goes on for as long as its reader does.
            return Vec::new();
        }
        let limit = ANSWER + ANSWER_FOR_A_BYTE * self.body.len();
        let (head, body) = host.answer(self.listener, request, limit);
        let told = || {
            format!(
                "{} {} {}",
                self.method,
                self.path,
                String::from_utf8_lossy(&body)
            )
        };
        let is_retrievers = || String::from_utf8_lossy(&body).contains("retriever_unavailable");
        let is_said = head.status == StatusCode::SERVICE_UNAVAILABLE && is_retrievers();
        assert!(!head.status.is_server_error() || is_said, "{}", told());
        if is_json(&head) && self.method != Method::HEAD {
            let value = serde_json::from_slice::<Value>(&body);
            let value = value.unwrap_or_else(|error| panic!("{error}: {}", told()));
            let is_error = head.status.is_client_error();
            assert!(
                !is_error || value["error"]["message"].is_string(),
                "{}",
                told()
            );
        }
        assert!(head.headers.contains_key("x-request-id"), "{}", told());
        body
    }
}

fn is_json(head: &Parts) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
}

/// Sends the request once more as the gateway would: with a salt that no request has had.
fn as_a_tenant(host: &Host, asked: &Asked) {
    thread_local! {
        static TENANTS: Cell<u64> = const { Cell::new(0) };
    }
    let tenant = TENANTS.replace(TENANTS.get() + 1);
    let Ok(salted) = salted(&asked.body, &format!("tenant-{tenant}")) else {
        return;
    };
    let answer = asked.send(host, Some(&salted));
    let text = String::from_utf8_lossy(&answer);
    for field in ["\"cached_tokens\":", "\"cache_read_input_tokens\":"] {
        for (at, _) in text.match_indices(field) {
            let count = text[at + field.len()..].trim_start();
            let is_none = count.starts_with("0") || count.starts_with("null");
            assert!(is_none, "another's KV state was found: {text}");
        }
    }
    if let Some(id) = kept_response(&answer) {
        for request in [
            format!("GET /v1/responses/{id}\n\n"),
            format!("DELETE /v1/responses/{id}\n\n"),
        ] {
            let request = Asked::read(request.as_bytes(), "").expect("it is a request");
            let body = request.send(host, None);
            let told = String::from_utf8_lossy(&body);
            assert!(told.contains("response_not_found"), "{told}");
        }
        let body = format!(r#"{{"model":"{MODEL}","input":"x","previous_response_id":"{id}"}}"#);
        let next = Asked {
            listener: Listener::Clients,
            method: Method::POST,
            path: "/v1/responses".to_owned(),
            headers: vec![("content-type".to_owned(), b"application/json".to_vec())],
            body: body.into_bytes(),
        };
        let told = next.send(host, None);
        let told = String::from_utf8_lossy(&told);
        assert!(told.contains("response_not_found"), "{told}");
    }
}

/// The id of a response in an answer, whole or streamed.
fn kept_response(answer: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let (_, id) = text.split_once("\"id\":\"resp_")?;
    let (id, _) = id.split_once('"')?;
    Some(format!("resp_{id}"))
}

/// Most bytes of an answer to a request without a body: what a model of 4,096 positions writes in events with alternatives for
/// every token.
const ANSWER: usize = 16 << 20;

/// Bytes by which an answer may be longer for each byte of its request's body: three events may repeat some of them.
const ANSWER_FOR_A_BYTE: usize = 32;

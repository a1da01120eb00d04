//! What clients of several APIs send, through real Envoy: documents move with every byte of their wrappers, and errors
//! come in the client's own words. Random documents in every format are the core's tests (`tests/formats.rs` there).

use std::net::TcpListener;

use foreword_tests::http::{Response, exchange};
use foreword_tests::{Gateway, GatewayOptions, Upstream};
use serde_json::{Value, json};

use crate::configured;

/// Sends a body to a path.
fn send_to(gateway: &Gateway, path: &str, body: &str) -> Response {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    exchange(gateway.address(), request.as_bytes()).unwrap()
}

/// A gateway that looks at every API's route, finds documents in every format and writes no hint.
fn gateway(upstream: &Upstream) -> Gateway {
    configured(upstream, plugin())
}

/// Its configuration.
pub(crate) fn plugin() -> Value {
    let documents = json!({"field": "reorder", "numbered": true, "rules": true, "headings": true});
    json!({
        "routes": [
            "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/chat", "/v2/chat",
            "/v1beta/models/{model}:generateContent", "/model/{model}/converse",
        ],
        "ordering": {
            "hint": {"enabled": false},
            "conversation": {"deduplicate": false},
            "documents": documents,
        },
    })
}

/// A body that holds three documents, by their names, in the given order.
pub(crate) type Body = fn([&str; 3]) -> Value;

fn words(name: &str) -> String {
    format!("What {name} \"says\"\\ é.")
}

fn joined(names: [&str; 3], between: &str, document: fn(&str) -> String) -> String {
    names.map(document).join(between)
}

fn user(content: Value) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": content}], "temperature": 0.5})
}

fn tool(content: String) -> Value {
    json!({"messages": [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": content},
    ]})
}

/// Every API and format, by name, with its route.
pub(crate) const FORMATS: [(&str, &str, Body); 24] = [
    ("content parts", "/v1/chat/completions", |names| {
        let text = joined(names, "\n", |name| {
            format!("<doc id='{name}'>{}</doc>", words(name))
        });
        user(json!([{"type": "text", "text": text}, {"type": "text", "text": "Why?"}]))
    }),
    (
        "a system prompt with sources",
        "/v1/chat/completions",
        |names| {
            let text = joined(names, "\n", |name| {
                format!("<source id=\"{name}\" name=\"n\">{}</source>", words(name))
            });
            json!({"messages": [
                {"role": "system", "content": format!("Cite [id].\n<context>\n{text}\n</context>")},
                {"role": "user", "content": "Why?"},
            ]})
        },
    ),
    ("wrapped files", "/v1/chat/completions", |names| {
        let text = joined(names, "\n", |name| {
            format!("<file path=\"{name}\">{}</file>", words(name))
        });
        user(json!(format!("<files>\n{text}\n</files>\nWhy?")))
    }),
    ("files without a wrapper", "/v1/chat/completions", |names| {
        user(json!(
            joined(names, "", |name| format!(
                "<reference>{}</reference>",
                words(name)
            )) + "Why?"
        ))
    }),
    ("a numbered list", "/v1/chat/completions", |names| {
        let number = |name: &str| format!("[{}] {}", name.as_bytes()[0], words(name));
        user(json!(format!(
            "Read:\n{}\n\nWhy [97]?",
            joined(names, "\n", number)
        )))
    }),
    ("rules", "/v1/chat/completions", |names| {
        user(json!(format!(
            "Read:\n---\n{}\n---\nWhy?",
            joined(names, "\n---\n", words)
        )))
    }),
    ("headings of a tool", "/v1/chat/completions", |names| {
        tool(joined(names, "\n\n", |name| {
            format!("# {name}\n{}", words(name))
        }))
    }),
    ("tags of a tool", "/v1/chat/completions", |names| {
        tool(joined(names, "\n", |name| {
            format!("<passage>{}</passage>", words(name))
        }))
    }),
    ("results of a tool", "/v1/chat/completions", |names| {
        let result = names.map(|name| json!({"url": name, "text": words(name), "score": 0.5}));
        tool(json!({"query": "q", "results": result}).to_string())
    }),
    ("results of a function", "/v1/chat/completions", |names| {
        let result = names.map(|name| json!({"path": name, "text": words(name)}));
        let content = json!({"results": result}).to_string();
        json!({"messages": [
            {"role": "user", "content": "Why?"},
            {"role": "function", "name": "search", "content": content},
        ]})
    }),
    ("Anthropic's documents", "/v1/messages", |names| {
        let block = |name: &str| {
            let source = json!({"type": "text", "media_type": "text/plain", "data": words(name)});
            json!({"type": "document", "title": name, "source": source})
        };
        let [a, b, c] = names.map(block);
        json!({"model": "m", "max_tokens": 5, "system": "Be brief.", "messages": [
            {"role": "user", "content": [a, b, c, {"type": "text", "text": "Why?"}]},
        ]})
    }),
    ("Anthropic's search results", "/v1/messages", |names| {
        let block = |name: &str| {
            let content = [json!({"type": "text", "text": words(name)})];
            json!({"type": "search_result", "source": name, "title": name, "content": content})
        };
        let [a, b, c] = names.map(block);
        json!({"max_tokens": 5, "messages": [
            {"role": "user", "content": [a, b, c, {"type": "text", "text": "Why?"}]},
        ]})
    }),
    ("Anthropic's tool results", "/v1/messages", |names| {
        let block = |name: &str| {
            let content = [json!({"type": "text", "text": words(name)})];
            json!({"type": "search_result", "source": name, "title": name, "content": content})
        };
        json!({"max_tokens": 5, "messages": [
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": names.map(block)}]},
        ]})
    }),
    ("Cohere's documents", "/v2/chat", |names| {
        let document =
            |name: &str| json!({"id": name, "data": {"title": name, "snippet": words(name)}});
        json!({"model": "m", "messages": [{"role": "user", "content": "Why?"}], "documents": names.map(document)})
    }),
    ("Cohere's tool results", "/v2/chat", |names| {
        let block =
            |name: &str| json!({"type": "document", "document": {"id": name, "data": words(name)}});
        json!({"messages": [
            {"role": "user", "content": "Why?"},
            {"role": "tool", "tool_call_id": "c", "content": names.map(block)},
        ]})
    }),
    ("Cohere's first API", "/v1/chat", |names| {
        let document = |name: &str| json!({"id": name, "title": name, "snippet": words(name)});
        json!({
            "preamble": "Be brief.",
            "chat_history": [{"role": "USER", "message": "Hello."}, {"role": "CHATBOT", "message": "Hello."}],
            "message": "Why?",
            "documents": names.map(document),
        })
    }),
    ("Responses, a string", "/v1/responses", |names| {
        let text = joined(names, "\n", |name| {
            format!("<doc id='{name}'>{}</doc>", words(name))
        });
        json!({"model": "m", "instructions": "Be brief.", "input": text + "\nWhy?"})
    }),
    ("Responses, parts of an item", "/v1/responses", |names| {
        let text = joined(names, "\n", |name| {
            format!("<doc id='{name}'>{}</doc>", words(name))
        });
        json!({"model": "m", "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": text}, {"type": "input_text", "text": "Why?"}]},
        ]})
    }),
    ("Responses, a function's output", "/v1/responses", |names| {
        let result = names.map(|name| json!({"url": name, "text": words(name), "score": 0.5}));
        let output = json!({"results": result}).to_string();
        json!({"model": "m", "stream": true, "input": [
            {"role": "user", "content": "Why?"},
            {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "<doc>a</doc><doc>b</doc>"},
            {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": output},
        ]})
    }),
    ("Responses, a file search", "/v1/responses", |names| {
        let result = names.map(
            |name| json!({"file_id": name, "filename": name, "score": 0.5, "text": words(name)}),
        );
        json!({"model": "m", "previous_response_id": "resp_1", "input": [
            {"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["q"], "results": result},
            {"role": "user", "content": "Why?"},
        ]})
    }),
    (
        "Gemini's parts",
        "/v1beta/models/gemini-2.5-pro:generateContent",
        |names| {
            let text = joined(names, "\n", |name| {
                format!("<doc id='{name}'>{}</doc>", words(name))
            });
            json!({"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": [{"role": "user", "parts": [{"text": text}, {"text": "Why?"}]}]})
        },
    ),
    (
        "Gemini's function responses",
        "/v1beta/models/gemini-2.5-pro:generateContent",
        |names| {
            let result = names.map(|name| json!({"uri": name, "text": words(name)}));
            json!({"contents": [
                {"role": "user", "parts": [{"text": "Why?"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"results": result}}}]},
            ]})
        },
    ),
    (
        "Converse's documents",
        "/model/anthropic.claude-v1%3A0/converse",
        |names| {
            let block = |name: &str| json!({"document": {"format": "txt", "name": name, "source": {"text": words(name)}}});
            let [a, b, c] = names.map(block);
            json!({"system": [{"text": "Be brief."}], "messages": [{"role": "user", "content": [a, b, c, {"text": "Why?"}]}]})
        },
    ),
    (
        "Converse's tool results",
        "/model/anthropic.claude-v1%3A0/converse",
        |names| {
            let block = |name: &str| json!({"document": {"format": "txt", "name": name, "source": {"text": words(name)}}});
            json!({"messages": [
                {"role": "user", "content": [{"text": "Why?"}]},
                {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}]},
                {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": names.map(block)}}]},
            ]})
        },
    ),
];

#[test]
fn every_format_of_every_api_is_put_into_the_order_that_the_engine_holds() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    for (name, path, body) in FORMATS {
        let first = body(["a", "b", "c"]).to_string();
        let response = send_to(&gateway, path, &first);
        assert!(
            response.report().contains("; documents=3; matched=0;"),
            "{name}: {}",
            response.report()
        );
        assert_eq!(upstream.last().unwrap().text(), first, "{name}");
        for order in [["c", "b", "a"], ["b", "c", "a"]] {
            let response = send_to(&gateway, path, &body(order).to_string());
            assert!(
                response
                    .report()
                    .starts_with("ordered; policy=foresight; documents=3; matched=3;"),
                "{name}: {}",
                response.report()
            );
            // To the byte: the order that it holds is all that changed.
            assert_eq!(upstream.last().unwrap().text(), first, "{name}");
        }
    }
}

/// Texts of an error's shape, with `null` for what may be any text.
fn shape(error: &Value) -> Value {
    match error {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let value = if name == "message" {
                    Value::Null
                } else {
                    shape(value)
                };
                (name.clone(), value)
            });
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

#[test]
fn a_refusal_is_told_in_the_clients_dialect() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(
        &upstream,
        json!({
            "routes": [
                "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/chat", "/v2/chat",
                "/v1beta/models/{model}:generateContent", "/model/{model}/converse",
            ],
            "on_failure": "refuse",
            "max_body_bytes": 100,
        }),
    );
    let openai = |code| json!({"error": {"message": null, "type": "invalid_request_error", "param": null, "code": code}});
    let anthropic = |kind| json!({"type": "error", "error": {"type": kind, "message": null}});
    let cohere = json!({"message": null});
    let gemini =
        |code: u16| json!({"error": {"code": code, "message": null, "status": "INVALID_ARGUMENT"}});
    let bedrock = json!({"__type": "ValidationException", "message": null});
    let long = "x".repeat(101);
    for (path, body, status, expected) in [
        ("/v1/chat/completions", "{", 400, openai("invalid-json")),
        ("/v1/chat/completions", &long, 413, openai("too-large")),
        ("/v1/messages", "{", 400, anthropic("invalid_request_error")),
        ("/v1/messages", &long, 413, anthropic("request_too_large")),
        (
            "/v1/messages?beta=true",
            "{",
            400,
            anthropic("invalid_request_error"),
        ),
        ("/v1/responses", "{", 400, openai("invalid-json")),
        ("/v1beta/models/m:generateContent", "{", 400, gemini(400)),
        ("/v1beta/models/m:generateContent", &long, 413, gemini(413)),
        ("/model/m/converse", "{", 400, bedrock),
        ("/v1/chat", "{", 400, cohere.clone()),
        ("/v2/chat", &long, 413, cohere),
    ] {
        let response = send_to(&gateway, path, body);
        assert_eq!(response.status, status, "{path}");
        assert_eq!(response.header("content-type"), Some("application/json"));
        let error = response.json().unwrap();
        assert_eq!(shape(&error), expected, "{path}: {error}");
        let message = error["error"]["message"]
            .as_str()
            .or(error["message"].as_str());
        assert!(
            message.is_some_and(|text| text.len() > 20),
            "{path}: {error}"
        );
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn an_engine_that_is_down_is_told_in_the_clients_dialect() {
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let gateway = Gateway::start(&GatewayOptions::placing_freely(dead)).unwrap();
    let body = json!({"messages": []}).to_string();
    let response = send_to(&gateway, "/v1/messages", &body);
    assert_eq!(response.status, 503);
    let error = response.json().unwrap();
    assert_eq!(
        shape(&error),
        json!({"type": "error", "error": {"type": "api_error", "message": null}})
    );
    let error = send_to(&gateway, "/v1/chat/completions", &body)
        .json()
        .unwrap();
    assert_eq!(error["error"]["code"], "engine_unavailable");
}

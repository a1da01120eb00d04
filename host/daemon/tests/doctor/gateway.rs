//! A gateway that orders with the filter's core, in front of a stub engine, and has one fault.

use super::engine::{Engine, Fault, listen};
use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use foreword_ordering::{Config, Orderer, Tenant};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// A stub of the gateway in front of an [`Engine`], with the same seeded fault.
struct Gateway {
    fault: Fault,
    engine: Arc<Engine>,
    /// The engine for misrouted requests.
    other: Arc<Engine>,
    state: Mutex<Workers>,
}

struct Workers {
    workers: [Orderer; 2],
    /// Number of chats with documents so far.
    chats: usize,
    resets: usize,
}

/// Serves a gateway in front of the engine, and returns its address.
pub(crate) async fn serve(fault: Fault, engine: Arc<Engine>) -> SocketAddr {
    let orderer = || Orderer::new(Config::default());
    let gateway = Arc::new(Gateway {
        fault,
        engine,
        other: Engine::new(Fault::NoCaching),
        state: Mutex::new(Workers {
            workers: [orderer(), orderer()],
            chats: 0,
            resets: 0,
        }),
    });
    let handle = async |State(gateway): State<Arc<Gateway>>, uri: Uri, body: Bytes| {
        gateway.answer(uri.path(), &body).await
    };
    listen(Router::new().fallback(handle).with_state(gateway)).await
}

impl Gateway {
    async fn answer(&self, path: &str, body: &[u8]) -> Response {
        if path == "/metrics" {
            return self.metrics().into_response();
        }
        let mut sent: Value = serde_json::from_slice(body).unwrap_or_default();
        if let Some(fields) = sent.as_object_mut() {
            fields.retain(|name, _| !self.dropped().contains(&name.as_str()));
        }
        let report = self.order(&mut sent);
        let engine = match self.fault == Fault::OtherEngine && report.is_some() {
            true => &self.other,
            false => &self.engine,
        };
        let answer = engine.answer(path, &sent);
        let mut answer = self.spoil(answer).await;
        if let Some(report) = report {
            let report = HeaderValue::from_str(&report).unwrap();
            answer.headers_mut().insert("x-foreword", report);
        }
        answer
    }

    fn dropped(&self) -> &'static [&'static str] {
        match self.fault {
            Fault::DroppedFields => &["tools", "max_tokens"],
            Fault::DroppedSalt => &["cache_salt"],
            _ => &[],
        }
    }

    /// Orders the documents, and returns the report; `None` for a body without documents.
    fn order(&self, sent: &mut Value) -> Option<String> {
        if !sent.to_string().contains("<documents>") {
            return None;
        }
        if self.fault == Fault::PassedOn {
            return Some("passed; reason=too-large".to_owned());
        }
        let mut state = self.state.lock().unwrap();
        let chat = state.chats;
        state.chats += 1;
        let worker = if self.fault == Fault::TwoMinds {
            chat / 2 % 2
        } else {
            0
        };
        if self.fault == Fault::Blind {
            state.workers[worker].clear();
        }
        let resets = self.engine.resets();
        if state.resets < resets && self.fault != Fault::BelievedReset {
            state.resets = resets;
            state.workers[worker].clear();
        }
        let rewritten = state.workers[worker]
            .rewrite(Tenant::default(), sent.to_string().as_bytes())
            .unwrap();
        if let Some(body) = rewritten.body {
            *sent = serde_json::from_slice(&body).unwrap();
        }
        let report = rewritten.report;
        Some(format!(
            "ordered; policy={}; documents={}; matched={}; moved={}; dropped=0; hint=0",
            report.policy, report.documents, report.matched, report.moved
        ))
    }

    /// Changes the engine's response according to the fault.
    async fn spoil(&self, answer: Response) -> Response {
        let (head, body) = answer.into_parts();
        let body = to_bytes(body, 1 << 24).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let text = match self.fault {
            Fault::NoUsage => match serde_json::from_str::<Value>(&text) {
                Ok(mut answer) => {
                    answer["usage"]["prompt_tokens_details"] = json!(null);
                    answer.to_string()
                }
                Err(_) => text,
            },
            Fault::BrokenStream => text.replace("data: [DONE]\n\n", ""),
            Fault::SilentStream if text.starts_with("data:") => {
                let events = text.split("\n\n").filter(|event| !event.contains("usage"));
                events.collect::<Vec<_>>().join("\n\n")
            }
            _ => text,
        };
        Response::from_parts(head, text.into())
    }

    /// Returns the filter's counters in Envoy's format.
    fn metrics(&self) -> String {
        let usual = "# TYPE foreword_requests_total counter\nforeword_requests_total{} 528\n\
                     foreword_corrections_total{} 3\nforeword_lost_entries_total{} 0\n\
                     foreword_matched_percent_count{} 528\n";
        match self.fault {
            Fault::Metrics(lines) => format!("{usual}{lines}\n"),
            _ => format!("{usual}foreword_matched_percent_bucket{{le=\"0.5\"}} 66\n"),
        }
    }
}

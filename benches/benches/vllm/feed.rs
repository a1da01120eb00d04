//! The recipe for vLLM as it stands, on one engine: what the filter believes, with the bridge's feed and without.
//!
//! A correction is an answer that says clearly less than the filter believed. Followed through the feed, an engine that evicts
//! gives no reason for one.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use foreword_tests::http::{Client, post};
use foreword_tests::{Bridge, Gateway};
use serde_json::Value;

use super::engine::{MODEL, Vllm};
use super::{Usage, wait};

/// Prints the table; whether following the feed left nothing to correct.
pub(crate) fn feed(vllm: &Vllm, bodies: &[String]) -> Result<bool> {
    println!(
        "\n| | cached | share | corrections | documents believed held |\n| --- | ---: | ---: | ---: | ---: |"
    );
    let mut corrections = 0;
    for follows in [false, true] {
        vllm.reset()?;
        let bridge = Bridge::start(&vllm.model(), MODEL, vllm.events, vllm.replay, &[])?;
        wait("the bridge follows the engine", || {
            Ok(bridge.get("/readyz")?.status == 200)
        })?;
        let gateway = Gateway::recipe(
            "gateway-config/vllm/envoy.yaml",
            &replacements(vllm, &bridge, follows)?,
        )?;
        let count = |name: &str| -> Result<u64> { Ok(gateway.metric(name)?.unwrap_or_default()) };
        let (mut total, mut copies) = (Usage::default(), 0);
        let mut client = Client::connect(gateway.address())?;
        for body in bodies {
            client.send(&post(body.as_bytes()))?;
            let response = client.response()?;
            ensure!(response.status == 200, "answered {}", response.status);
            let usage = Usage::of(&response.json()?)?;
            total.prompt += usage.prompt;
            total.cached += usage.cached;
            copies += 1;
            // The next request is to know all of this one.
            wait("the bridge has seen the request's blocks", || {
                let followed =
                    bridge.metric("foreword_bridge_copies_total{outcome=\"followed\"}")?;
                Ok(followed == copies && bridge.metric("foreword_bridge_waiting_prompts")? == 0)
            })?;
            if follows {
                let held: Value = serde_json::from_slice(&bridge.get("/v1/kv/snapshot")?.body)?;
                let said = held["next"].as_u64().context("a snapshot has a position")?;
                wait("the filter has read the feed", || {
                    Ok(count("foreword_feed_events_total")? >= said)
                })?;
            }
        }
        corrections = count("foreword_corrections_total")?;
        println!(
            "| {} | {} | {:.1} % | {corrections} | {} |",
            if follows {
                "with the feed"
            } else {
                "by answers alone"
            },
            total.cached,
            total.share(),
            count("foreword_matched_documents_total")?,
        );
    }
    Ok(corrections == 0)
}

/// Ports of this run in the recipe; its second engine is not there.
fn replacements(
    vllm: &Vllm,
    bridge: &Bridge,
    follows: bool,
) -> Result<Vec<(&'static str, String)>> {
    let absent = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let port = |address: std::net::SocketAddr| format!("port_value: {} ", address.port());
    let named = |address: std::net::SocketAddr| format!("\"{address}\"");
    let mut replacements = vec![
        ("\"127.0.0.1:8000\"", named(vllm.address)),
        ("\"127.0.0.1:8001\"", named(absent)),
        ("port_value: 8000 ", port(vllm.address)),
        ("port_value: 8001 ", port(absent)),
        ("port_value: 8100 ", port(bridge.address())),
        ("port_value: 8101 ", port(absent)),
        ("port_value: 9100 ", port(bridge.internal())),
        ("port_value: 9101 ", port(absent)),
    ];
    if !follows {
        replacements.push((", \"feed\": {\"cluster\": \"feed-0\"}", String::new()));
    }
    Ok(replacements)
}

//! Host and Envoy of one arm: started for it, and ended with it.

use std::path::Path;

use anyhow::{Context, Result};
use foreword_tests::{Gateway, GatewayOptions, Host};
use serde_json::{Value, json};

use super::arm::Arm;
use crate::build::Built;

/// A running host with Envoy in front of it.
pub(super) struct Stack {
    // Dropped first: a gateway without an engine would only log refused connections.
    gateway: Gateway,
    host: Host,
    model: String,
}

/// What the host serves.
pub(super) struct Serving<'a> {
    /// Folder of the checkpoint.
    pub(super) checkpoint: &'a Path,
    /// Further arguments of `foreword serve`.
    pub(super) arguments: &'a [&'a str],
}

impl Stack {
    /// Starts both on free ports, the host with an empty cache and the filter with an empty tree.
    pub(super) fn start(arm: Arm, built: &Built, serving: &Serving<'_>) -> Result<Self> {
        let host = Host::start_binary(&built.host, serving.checkpoint, serving.arguments)?;
        let gateway = Gateway::start(&GatewayOptions {
            plugin: Some(json!({ "ordering": arm.ordering() })),
            module: Some(built.filter.clone()),
            ..GatewayOptions::new(host.address())
        })?;
        let model = served_model(&host)?;
        Ok(Self {
            gateway,
            host,
            model,
        })
    }

    /// Returns the URL to which clients send chat requests.
    pub(super) fn completions_url(&self) -> String {
        format!("http://{}/v1/chat/completions", self.gateway.address())
    }

    /// Returns the URL of the same endpoint on the host, without Envoy.
    pub(super) fn host_completions_url(&self) -> String {
        format!("http://{}/v1/chat/completions", self.host.address())
    }

    /// Returns the model's name in requests.
    pub(super) fn model(&self) -> &str {
        &self.model
    }
}

fn served_model(host: &Host) -> Result<String> {
    let url = format!("http://{}/v1/models", host.address());
    let mut response = ureq::get(&url)
        .call()
        .with_context(|| format!("asking {url}"))?;
    let models: Value = serde_json::from_reader(response.body_mut().as_reader())?;
    let name = models["data"][0]["id"].as_str();
    name.map(str::to_owned)
        .with_context(|| format!("{url} names no model: {models}"))
}

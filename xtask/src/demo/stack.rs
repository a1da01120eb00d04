//! Host and Envoy of one arm: started for it, ended with it.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::figures::Arm;
use crate::workspace::Workspace;

/// What the demo builds.
pub(super) struct Programs {
    pub(super) filter: PathBuf,
    pub(super) host: PathBuf,
}

/// A running host with Envoy before it.
pub(super) struct Stack {
    url: String,
    model: String,
}

impl Stack {
    pub(super) fn start(
        _: &Workspace,
        programs: &Programs,
        arm: Arm,
        kv_tokens: u32,
    ) -> Result<Self> {
        bail!(
            "{} {} {} {}",
            programs.filter.display(),
            programs.host.display(),
            arm.policy(),
            kv_tokens
        )
    }

    pub(super) fn gateway_url(&self) -> &str {
        &self.url
    }
    pub(super) fn completions_url(&self) -> String {
        format!("{}/v1/chat/completions", self.url)
    }
    pub(super) fn model(&self) -> &str {
        &self.model
    }
}

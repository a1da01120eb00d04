//! A request that was sent on and whose response is still to come: which engine was to compute what, and what the
//! engine reports.

use foreword_ordering::{Arm, EngineId, OrderingRecord};

use crate::engines::{Dispatch, DispatchResult};
use crate::host::{Host, HostError, LogLevel};
use crate::plugin::Plugin;
use crate::usage::{PromptUsage, UsageReader};

/// A request whose response is still to come.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    /// The core's expectation; `None`: the core did not decide on the request.
    record: Option<OrderingRecord>,
    /// The chat's arm in an experiment.
    arm: Option<Arm>,
    /// The dispatch; `None`: it is settled, or there is only one engine.
    dispatch: Option<Dispatch>,
    /// The reader of the response's usage; `None`: there is nothing to read, or it has been read.
    usage_reader: Option<UsageReader>,
    /// What the response reports of the prompt.
    counted: Option<PromptUsage>,
    /// Who asked, and which engine answers, where there is something to choose.
    asked: Option<(Box<str>, EngineId)>,
    /// Whether the response's usage is read: it is one to a prompt.
    is_read: bool,
}

impl PendingResponse {
    pub(crate) fn new(
        record: Option<OrderingRecord>,
        arm: Option<Arm>,
        dispatch: Dispatch,
    ) -> Self {
        Self {
            record,
            arm,
            dispatch: Some(dispatch),
            usage_reader: None,
            counted: None,
            asked: None,
            is_read: true,
        }
    }

    /// Returns the response to a request that nobody has looked at.
    pub(crate) fn unread(dispatch: Dispatch) -> Self {
        Self {
            is_read: false,
            ..Self::new(None, None, dispatch)
        }
    }

    /// The same of a request whose answer the chosen engine may keep for this tenant.
    pub(crate) fn of_tenant(mut self, plugin: &Plugin, tenant: &str) -> Self {
        let engine = self.dispatch.as_ref().map(|dispatch| dispatch.engine);
        let engine = engine.filter(|_| plugin.engines().are_several());
        self.asked = engine.map(|engine| (tenant.into(), engine));
        self
    }

    /// The answer begins, the engine's or the proxy's own.
    pub(crate) fn on_headers(&mut self, host: &impl Host, plugin: &Plugin) {
        let status = logged(host, host.response_header(":status")).flatten();
        let status = status.as_deref();
        if let Some(dispatch) = self.dispatch.take() {
            let failed = matches!(status, Some(b"502" | b"503" | b"504"));
            match served_by(host, plugin).filter(|other| *other != dispatch.engine && !failed) {
                // Envoy tried the chosen engine, and then another.
                Some(other) => {
                    plugin.settle(host, dispatch, DispatchResult::Failed);
                    plugin.answered_by(host, other);
                    if let Some((_, engine)) = &mut self.asked {
                        *engine = other;
                    }
                    if let Some(record) = &mut self.record {
                        plugin.undo(host, record);
                        plugin.went_to(host, record, other);
                    }
                }
                None if failed => {
                    plugin.settle(host, dispatch, DispatchResult::Failed);
                    if let Some(record) = &self.record {
                        plugin.undo(host, record);
                    }
                }
                None => plugin.settle(host, dispatch, DispatchResult::Answered),
            }
        }
        let is_read = self.is_read && status == Some(b"200");
        self.usage_reader = is_read.then(UsageReader::default);
    }

    /// Returns whether the response's body is to be read.
    pub(crate) fn wants_body(&self) -> bool {
        self.usage_reader.is_some()
    }

    /// Handles a chunk of the response of `size` bytes.
    pub(crate) fn on_body(
        &mut self,
        host: &impl Host,
        plugin: &Plugin,
        size: usize,
        is_last: bool,
    ) {
        if let Some(usage_reader) = &mut self.usage_reader
            && size > 0
        {
            let taken = usage_reader.take(size, |from, bytes| host.response_body(from, bytes));
            if logged(host, taken).is_none() {
                self.usage_reader = None;
            }
        }
        if is_last {
            self.on_end(host, plugin);
        }
    }

    /// Handles the end of the response.
    pub(crate) fn on_end(&mut self, host: &impl Host, plugin: &Plugin) {
        let Some(usage_reader) = self.usage_reader.take() else {
            return;
        };
        if let Some((tenant, engine)) = &self.asked
            && let Some(id) = usage_reader.response_id()
        {
            plugin.engines().keep(host, tenant, id, *engine);
        }
        if let Some(counted) = usage_reader.counted() {
            self.counted = Some(counted);
            plugin.counted(host, self.record.as_ref(), self.arm, counted);
        }
    }

    /// Handles the end of request and response, however they ended. Returns what the engine reported of the prompt.
    pub(crate) fn on_done(self, host: &impl Host, plugin: &Plugin) -> Option<PromptUsage> {
        if let Some(dispatch) = self.dispatch {
            plugin.settle(host, dispatch, DispatchResult::Abandoned);
        }
        self.counted
    }
}

/// Returns which of several engines the response comes from.
fn served_by(host: &impl Host, plugin: &Plugin) -> Option<EngineId> {
    let engines = plugin.engines();
    let address = (engines.are_several()).then(|| host.property(&["upstream", "address"]));
    engines.at(host, &logged(host, address?).flatten()?)
}

fn logged<T>(host: &impl Host, result: Result<T, HostError>) -> Option<T> {
    result
        .inspect_err(|error| host.log(LogLevel::Warn, &error.to_string()))
        .ok()
}

//! A forwarded request whose response has not ended: the engine that computes it, the token usage that the engine
//! reports, and the model's answer if it is stored for later requests.

use foreword_ordering::{Arm, EngineId, OrderingRecord};

use crate::answers::{AnswerReader, ChatKey};
use crate::engines::{Dispatch, DispatchResult};
use crate::host::{Host, HostError, LogLevel};
use crate::plugin::Plugin;
use crate::usage::{PromptUsage, UsageReader};

/// A forwarded request whose response has not ended.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    /// The record of the request that the ordering core made, with the expected number of cached tokens; `None` if the
    /// core did not process the request.
    record: Option<OrderingRecord>,
    /// The arm (treatment group) of the request's chat in an experiment; `None` if no experiment runs.
    arm: Option<Arm>,
    /// The tokens by which this request increases the load of its engine; `None` once the result is recorded and the
    /// load released.
    dispatch: Option<Dispatch>,
    /// Reads the usage report in the response; `None` except while a body with status 200 is being read.
    usage_reader: Option<UsageReader>,
    /// The key of the chat under which the model's answer is stored; `None` if answers of this request are not stored.
    chat: Option<ChatKey>,
    /// Reads the model's answer from the response; `None` unless the answer is to be stored and the response is
    /// readable (status 200, uncompressed).
    answer: Option<AnswerReader>,
    /// The token usage that the engine reported; `None` until the response has ended, or if it reports none.
    counted: Option<PromptUsage>,
    /// The tenant, and the engine that responds, so that the tenant's requests that refer to a response stored in the
    /// engine (Responses API) can be sent there. `None` if there is only one engine.
    asked: Option<(Box<str>, EngineId)>,
    /// True if usage and answer are read from the response; false for a request whose body the filter did not read.
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
            chat: None,
            answer: None,
            counted: None,
            asked: None,
            is_read: true,
        }
    }

    /// Returns the pending response of a request whose body the filter did not read.
    pub(crate) fn unread(dispatch: Dispatch) -> Self {
        Self {
            is_read: false,
            ..Self::new(None, None, dispatch)
        }
    }

    /// Sets tenant and engine, so that later requests that refer to a response stored in the engine (Responses API) can
    /// be sent there. Sets nothing if there is only one engine.
    pub(crate) fn of_tenant(mut self, plugin: &Plugin, tenant: &str) -> Self {
        let engine = self.dispatch.as_ref().map(|dispatch| dispatch.engine);
        let engine = engine.filter(|_| plugin.engines().are_several());
        self.asked = engine.map(|engine| (tenant.into(), engine));
        self
    }

    /// Sets the key of the chat under which the model's answer is stored; `None` if the answer is not to be stored.
    pub(crate) fn of_chat(&mut self, chat: Option<ChatKey>) {
        self.chat = chat;
    }

    /// Handles the response's headers, which come from the engine or, for an error, from the proxy. Records whether the
    /// engine answered and which one did, and decides what to read of the body. `follows` is true if another request of
    /// its burst was to compute the same documents first.
    pub(crate) fn on_headers(&mut self, host: &impl Host, plugin: &Plugin, follows: bool) {
        let status = logged(host, host.response_header(":status")).flatten();
        let status = status.as_deref();
        if let Some(dispatch) = self.dispatch.take() {
            let failed = matches!(status, Some(b"502" | b"503" | b"504"));
            let is_computed = status.is_none_or(|status| status.starts_with(b"2"));
            let served = served_by(host, plugin);
            // Another 4xx than an engine's, the router's 404 for example, says nothing about the engine.
            let is_of_engine = is_computed || served.is_some() || !plugin.engines().are_several();
            match served.filter(|other| *other != dispatch.engine && !failed) {
                // Envoy tried the chosen engine, and then another one.
                Some(other) => {
                    plugin.settle(host, dispatch, DispatchResult::Failed);
                    plugin.answered_by(host, other);
                    if let Some((_, engine)) = &mut self.asked {
                        *engine = other;
                    }
                    if let Some(record) = &mut self.record {
                        plugin.undo(host, record);
                        if is_computed {
                            plugin.went_to(host, record, other);
                        }
                    }
                }
                None => {
                    let result = match (failed, is_of_engine) {
                        (true, _) => DispatchResult::Failed,
                        (false, true) => DispatchResult::Answered,
                        (false, false) => DispatchResult::Abandoned,
                    };
                    plugin.settle(host, dispatch, result);
                    match &self.record {
                        Some(record) if !is_computed => plugin.undo(host, record),
                        Some(record) if follows => plugin.computed_too(host, record),
                        _ => {}
                    }
                }
            }
        }
        let is_read = self.is_read && status == Some(b"200");
        self.usage_reader = is_read.then(UsageReader::default);
        let chat = self.chat.filter(|_| is_read);
        self.answer = chat.and_then(|chat| {
            let encoding = logged(host, host.response_header("content-encoding"))?;
            let is_plain = encoding.is_none_or(|encoding| encoding == b"identity");
            is_plain.then(|| AnswerReader::new(chat))
        });
    }

    /// Returns the ordering core's record of the request (`None` if the core did not process it), and its chat's arm in
    /// an experiment.
    pub(crate) fn decided(&self) -> (Option<&OrderingRecord>, Option<Arm>) {
        (self.record.as_ref(), self.arm)
    }

    /// Returns whether the response's body must be read, for its usage report or the model's answer.
    pub(crate) fn wants_body(&self) -> bool {
        self.usage_reader.is_some() || self.answer.is_some()
    }

    /// Handles a chunk of the response's body, which has `size` bytes. `is_last` is true if the body ends with it.
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
        if size > 0
            && let Some(mut answer) = self.answer.take()
            && let Some(chunk) = logged(host, host.response_body(0, size))
        {
            answer.take(&chunk);
            // A stream's answer is stored before its client has read the end and can send the next request.
            match answer.is_over() {
                true => plugin.keep(host, answer),
                false => self.answer = Some(answer),
            }
        }
        if is_last {
            self.on_end(host, plugin);
        }
    }

    /// Handles the end of the response: stores the model's answer and records the token usage.
    pub(crate) fn on_end(&mut self, host: &impl Host, plugin: &Plugin) {
        if let Some(answer) = self.answer.take() {
            plugin.keep(host, answer);
        }
        let Some(usage_reader) = self.usage_reader.take() else {
            return;
        };
        if let Some((tenant, engine)) = &self.asked
            && let Some(id) = usage_reader.response_id()
        {
            plugin.engines().keep(host, tenant, id, *engine);
        }
        if let Some(counted) = usage_reader.counted() {
            self.counted = Some(plugin.counted(host, self.record.as_ref(), self.arm, counted));
        }
    }

    /// Handles the end of the exchange, however request and response ended. Returns the token usage that the engine
    /// reported; `None` if it reported none.
    pub(crate) fn on_done(self, host: &impl Host, plugin: &Plugin) -> Option<PromptUsage> {
        if let Some(dispatch) = self.dispatch {
            plugin.settle(host, dispatch, DispatchResult::Abandoned);
        }
        self.counted
    }
}

/// Returns the engine that sent the response. `None` if there is only one engine, or the upstream address is not one of
/// an engine.
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

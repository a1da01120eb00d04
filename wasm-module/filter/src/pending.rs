//! A pending response: a forwarded request, the engine that computes it, and the usage that the engine reports.

use foreword_ordering::{Arm, EngineId, OrderingRecord};

use crate::answers::{AnswerReader, ChatKey};
use crate::engines::{Dispatch, DispatchResult};
use crate::host::{Host, HostError, LogLevel};
use crate::plugin::Plugin;
use crate::usage::{PromptUsage, UsageReader};

/// A forwarded request whose response is still to come.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    /// The record with the expected match; `None` if the core did not process the request.
    record: Option<OrderingRecord>,
    /// The chat's arm in an experiment.
    arm: Option<Arm>,
    /// The request in flight; `None` once its result is recorded.
    dispatch: Option<Dispatch>,
    /// The reader of the response's usage; `None` except while a body with status 200 is being read.
    usage_reader: Option<UsageReader>,
    /// The chat to which the answer is added; `None` if the answer is not kept.
    chat: Option<ChatKey>,
    /// The reader of the answer; `None` unless the answer is kept, and the response can be read (status 200,
    /// uncompressed).
    answer: Option<AnswerReader>,
    /// The usage that the response reports; `None` until it has reported any.
    counted: Option<PromptUsage>,
    /// The tenant and the responding engine, for a response that the engine may store; `None` with a single engine.
    asked: Option<(Box<str>, EngineId)>,
    /// True if usage and answer are read from the response; false if the filter did not read the request's body.
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

    /// Returns the pending response of a request whose body was not read.
    pub(crate) fn unread(dispatch: Dispatch) -> Self {
        Self {
            is_read: false,
            ..Self::new(None, None, dispatch)
        }
    }

    /// Keeps the tenant and the engine, so that a response that the engine stores (Responses API) is found there later.
    /// Keeps nothing if there is only one engine.
    pub(crate) fn of_tenant(mut self, plugin: &Plugin, tenant: &str) -> Self {
        let engine = self.dispatch.as_ref().map(|dispatch| dispatch.engine);
        let engine = engine.filter(|_| plugin.engines().are_several());
        self.asked = engine.map(|engine| (tenant.into(), engine));
        self
    }

    /// Sets the chat to which the answer is added; `None` if the answer is not kept.
    pub(crate) fn of_chat(&mut self, chat: Option<ChatKey>) {
        self.chat = chat;
    }

    /// Handles the response's headers, from the engine or the proxy.
    pub(crate) fn on_headers(&mut self, host: &impl Host, plugin: &Plugin) {
        let status = logged(host, host.response_header(":status")).flatten();
        let status = status.as_deref();
        if let Some(dispatch) = self.dispatch.take() {
            let failed = matches!(status, Some(b"502" | b"503" | b"504"));
            let is_computed = status.is_none_or(|status| status.starts_with(b"2"));
            match served_by(host, plugin).filter(|other| *other != dispatch.engine && !failed) {
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
                    let result = match failed {
                        true => DispatchResult::Failed,
                        false => DispatchResult::Answered,
                    };
                    plugin.settle(host, dispatch, result);
                    if let Some(record) = self.record.as_ref().filter(|_| !is_computed) {
                        plugin.undo(host, record);
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

    /// Returns the record and the arm of a request that the core processed.
    pub(crate) fn decided(&self) -> (Option<&OrderingRecord>, Option<Arm>) {
        (self.record.as_ref(), self.arm)
    }

    /// Returns whether the response's body must be read.
    pub(crate) fn wants_body(&self) -> bool {
        self.usage_reader.is_some() || self.answer.is_some()
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

    /// Handles the end of the response.
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

    /// Handles the end of request and response, however they ended. Returns the usage that the engine reported.
    pub(crate) fn on_done(self, host: &impl Host, plugin: &Plugin) -> Option<PromptUsage> {
        if let Some(dispatch) = self.dispatch {
            plugin.settle(host, dispatch, DispatchResult::Abandoned);
        }
        self.counted
    }
}

/// Returns the engine that sent the response; `None` if there is only one, or it is unknown.
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

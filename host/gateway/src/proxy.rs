//! Implements the filter's [`Host`]: for a request, on the state that the protocol's messages bring, or for the plugin.
//!
//! ```text
//!   the protocol's messages ─▶ RequestState ─▶ Exchange reads headers, body, attributes
//!   the protocol's answers  ◀─ RequestState ◀─ Exchange changes headers, replaces the body, responds, logs
//! ```
//!
//! A header reads as changed once the filter has changed it, as in Envoy. Nothing is sent here: `stream` puts the
//! changes into its next message.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;
use foreword_filter::{EnginePool, Host, HostError, LogLevel, MetricId, Resumer, SharedData};
use tokio::sync::Notify;

use crate::calls::{Call, Clusters};
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::pool::subset::{Subset, served};

/// The [`Host`] that the filter calls, for one request or for the plugin.
pub(crate) struct Proxy<'a> {
    pub(crate) shared_data: &'a SharedData,
    pub(crate) metrics: &'a Metrics,
    pub(crate) clusters: &'a Clusters,
    pub(crate) pool: Option<&'a Pool>,
    pub(crate) scope: Scope<'a>,
}

/// The caller of the host: the plugin, or one request.
pub(crate) enum Scope<'a> {
    Plugin(&'a PluginCalls),
    Request(&'a RefCell<RequestState>),
}

/// The HTTP calls that the plugin has requested and that have not been made yet.
#[derive(Default)]
pub(crate) struct PluginCalls {
    asked: RefCell<Vec<Call>>,
    /// Id of the last call, counted from 1.
    last: Cell<u32>,
}

impl PluginCalls {
    pub(crate) fn take(&self) -> Vec<Call> {
        self.asked.take()
    }
}

/// A request, its response, and the changes that the filter has requested.
#[derive(Default)]
pub(crate) struct RequestState {
    pub(crate) request: Headers,
    pub(crate) response: Headers,
    /// The part of the request's body that has arrived.
    pub(crate) body: Vec<u8>,
    /// The body to forward in place of the original; `None` to forward the original body.
    pub(crate) new_body: Option<Vec<u8>>,
    /// The current chunk of the response's body.
    pub(crate) chunk: Vec<u8>,
    /// The filter's own response, which ends the request; `None` if the request is forwarded.
    pub(crate) reply: Option<Reply>,
    /// True once the filter has resumed the paused request.
    pub(crate) resumed: bool,
    /// Notified when another request or a tick resumes this one.
    pub(crate) woken: Arc<Notify>,
    /// Access-log fields not sent yet.
    pub(crate) log_fields: Vec<(String, String)>,
    /// The attributes that the gateway has sent.
    pub(crate) attributes: Vec<Struct>,
    /// Dynamic metadata, by namespace.
    pub(crate) metadata: BTreeMap<String, Struct>,
    /// The endpoints that the gateway allows; `None` for all of the pool.
    pub(crate) subset: Option<Subset>,
    /// Calls requested by the filter and not made yet.
    pub(crate) asked: Vec<Call>,
    /// Number of calls that the filter has requested so far; the last one's id.
    calls: u64,
    /// True once the filter has set the access-log fields, which later calls do not change.
    logged: bool,
}

/// The filter's own response to a request.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// Headers of a request or a response, with the changes that were not sent yet.
#[derive(Default)]
pub(crate) struct Headers {
    fields: Vec<(String, Vec<u8>)>,
    /// The new value by name; `None` removes the header.
    changes: BTreeMap<String, Option<String>>,
}

impl Headers {
    pub(crate) fn new(fields: Vec<(String, Vec<u8>)>) -> Self {
        Self {
            fields,
            changes: BTreeMap::new(),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let mut fields = self.fields.iter();
        let (_, value) = fields.find(|(known, _)| known == name)?;
        Some(value.clone())
    }

    fn values(&self, name: &str) -> Vec<Vec<u8>> {
        let fields = self.fields.iter().filter(|(known, _)| known == name);
        fields.map(|(_, value)| value.clone()).collect()
    }

    fn set(&mut self, name: &str, value: &str) {
        self.fields.retain(|(known, _)| known != name);
        self.fields
            .push((name.to_owned(), value.as_bytes().to_vec()));
        self.changes.insert(name.to_owned(), Some(value.to_owned()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.fields.retain(|(known, _)| known != name);
        self.changes.insert(name.to_owned(), None);
    }

    /// Takes the changes since the last call: the new value by name, `None` for a removed header.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<String, Option<String>> {
        std::mem::take(&mut self.changes)
    }
}

impl<'a> Proxy<'a> {
    /// Borrows the request's state. Fails for the plugin, and while the state is borrowed.
    fn state(&self, call: &'static str) -> Result<std::cell::RefMut<'_, RequestState>, HostError> {
        match &self.scope {
            Scope::Request(state) => state.try_borrow_mut().map_err(|_| refused(call, NESTED)),
            Scope::Plugin(_) => Err(refused(call, NO_REQUEST)),
        }
    }
}

impl Host for Proxy<'_> {
    fn request_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.state("request_header")?.request.get(name))
    }

    fn request_header_values(&self, name: &str) -> Result<Vec<Vec<u8>>, HostError> {
        Ok(self.state("request_header_values")?.request.values(name))
    }

    fn set_request_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        (self.state("set_request_header")?.request).set(name, value);
        Ok(())
    }

    fn remove_request_header(&self, name: &str) -> Result<(), HostError> {
        (self.state("remove_request_header")?.request).remove(name);
        Ok(())
    }

    fn set_response_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        (self.state("set_response_header")?.response).set(name, value);
        Ok(())
    }

    fn response_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.state("response_header")?.response.get(name))
    }

    fn response_body(&self, from: usize, size: usize) -> Result<Vec<u8>, HostError> {
        let state = self.state("response_body")?;
        let rest = state.chunk.get(from..).unwrap_or_default();
        Ok(rest.get(..size).unwrap_or(rest).to_vec())
    }

    fn request_body(&self, size: usize) -> Result<Vec<u8>, HostError> {
        let state = self.state("request_body")?;
        let body = state.new_body.as_ref().unwrap_or(&state.body);
        Ok(body.get(..size).unwrap_or(body).to_vec())
    }

    fn replace_request_body(&self, _size: usize, body: &[u8]) -> Result<(), HostError> {
        // The filter always replaces the whole body.
        self.state("replace_request_body")?.new_body = Some(body.to_vec());
        Ok(())
    }

    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Result<(), HostError> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.state("respond")?.reply = Some(Reply {
            status,
            headers: headers.iter().map(own).collect(),
            body: body.to_vec(),
        });
        Ok(())
    }

    fn has_metadata(&self) -> bool {
        true
    }

    fn environment(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn set_log_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError> {
        let mut state = self.state("set_log_fields")?;
        if !state.logged {
            state.logged = true;
            let own = |(name, value): &(&str, String)| ((*name).to_owned(), value.clone());
            state.log_fields = fields.iter().map(own).collect();
        }
        Ok(())
    }

    fn shared_data(&self, key: &str) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        Ok(self.shared_data.get(key))
    }

    fn set_shared_data(
        &self,
        key: &str,
        value: &[u8],
        unchanged_since: Option<u32>,
    ) -> Result<bool, HostError> {
        Ok(self.shared_data.set(key, value, unchanged_since))
    }

    /// Returns an attribute that the gateway sends (`request_attributes`, `response_attributes`), or dynamic metadata
    /// that it forwards (`metadata_options.forwarding_namespaces`); `None` if it is absent, an error if it is not text.
    /// For an endpoint picker, `upstream.address` is read from the metadata of the endpoint picker protocol.
    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        const CALL: &str = "property";
        if matches!(self.scope, Scope::Plugin(_)) {
            return Ok(None);
        }
        let state = self.state(CALL)?;
        if path == ["upstream", "address"]
            && self.pool.is_some()
            && let Some(address) = served(&state.metadata)
        {
            return Ok(Some(address.as_bytes().to_vec()));
        }
        let kind = match path {
            ["metadata", "filter_metadata", namespace, rest @ ..] => {
                let found = state.metadata.get(*namespace);
                found.and_then(|it| within(it, rest))
            }
            _ => {
                let name = path.join(".");
                let mut found = state.attributes.iter();
                found.find_map(|attributes| within(attributes, &[&name]))
            }
        };
        match kind {
            None | Some(Kind::NullValue(_)) => Ok(None),
            Some(Kind::StringValue(text)) => Ok(Some(text.clone().into_bytes())),
            Some(_) => Err(refused(CALL, NO_TEXT)),
        }
    }

    fn call_for_plugin(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u32, HostError> {
        let Scope::Plugin(calls) = &self.scope else {
            return Err(refused("call", NO_PLUGIN));
        };
        let id = calls.last.get().wrapping_add(1);
        let call = (self.clusters).prepare(id.into(), cluster, headers, body, limit_ms)?;
        calls.last.set(id);
        calls.asked.borrow_mut().push(call);
        Ok(id)
    }

    fn call_for_request(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u64, HostError> {
        let mut state = self.state("call")?;
        let id = state.calls + 1;
        let call = (self.clusters).prepare(id, cluster, headers, body, limit_ms)?;
        state.calls = id;
        state.asked.push(call);
        Ok(id)
    }

    fn pool(&self) -> Option<EnginePool> {
        let pool = self.pool?;
        Some(match &self.scope {
            Scope::Plugin(_) => pool.view(None, Instant::now()),
            Scope::Request(state) => {
                let state = state.try_borrow().ok()?;
                pool.view(state.subset.as_ref(), Instant::now())
            }
        })
    }

    fn resume(&self) -> Result<(), HostError> {
        self.state("resume")?.resumed = true;
        Ok(())
    }

    fn resumer(&self) -> Option<Resumer> {
        let woken = Arc::clone(&self.state("resumer").ok()?.woken);
        Some(Box::new(move || woken.notify_one()))
    }

    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    fn define_counter(&self, name: &str) -> Result<MetricId, HostError> {
        const CALL: &str = "define_counter";
        self.metrics.counter(name).ok_or(refused(CALL, NO_METRIC))
    }

    fn define_histogram(&self, name: &str) -> Result<MetricId, HostError> {
        const CALL: &str = "define_histogram";
        self.metrics.histogram(name).ok_or(refused(CALL, NO_METRIC))
    }

    fn add(&self, counter: MetricId, amount: u64) -> Result<(), HostError> {
        let added = self.metrics.add(counter, amount);
        added.then_some(()).ok_or(refused("add", NO_METRIC))
    }

    fn record(&self, histogram: MetricId, value: u64) -> Result<(), HostError> {
        let recorded = self.metrics.record(histogram, value);
        recorded.then_some(()).ok_or(refused("record", NO_METRIC))
    }

    fn now_ns(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = since.unwrap_or_default().as_nanos();
        u64::try_from(since).unwrap_or_default()
    }

    fn log(&self, level: LogLevel, message: &str) {
        match level {
            LogLevel::Info => tracing::info!("{message}"),
            LogLevel::Warn => tracing::warn!("{message}"),
            LogLevel::Error => tracing::error!("{message}"),
        }
    }
}

/// Returns the value at a path of field names within `structure`; `None` if there is none.
fn within<'s>(structure: &'s Struct, path: &[&str]) -> Option<&'s Kind> {
    let (name, rest) = path.split_first()?;
    let kind = structure.fields.get(*name)?.kind.as_ref()?;
    match kind {
        Kind::StructValue(inner) if !rest.is_empty() => within(inner, rest),
        _ if rest.is_empty() => Some(kind),
        _ => None,
    }
}

fn refused(call: &'static str, status: u32) -> HostError {
    HostError { call, status }
}

/// Status of a call that needs a request, made by the plugin.
const NO_REQUEST: u32 = 10;
/// Status of a call that only the plugin may make, made within a request.
const NO_PLUGIN: u32 = 11;
/// Status of a call while another one borrows the request's state.
const NESTED: u32 = 12;
/// Status of a property that is not text.
const NO_TEXT: u32 = 13;
/// Status of a metric that is unknown or of another kind.
const NO_METRIC: u32 = 14;

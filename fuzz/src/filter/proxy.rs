//! A proxy in memory, whose headers, bodies, shared data and refusals an input decides.

use foreword_filter::{Host, HostError, LogLevel, MetricId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The proxy of one worker.
#[derive(Debug, Default)]
pub(crate) struct Proxy(RefCell<ProxyState>);

#[derive(Debug, Default)]
pub(crate) struct ProxyState {
    pub(crate) request_headers: BTreeMap<String, Vec<u8>>,
    pub(crate) response_headers: BTreeMap<String, Vec<u8>>,
    /// The request body that Envoy has buffered.
    pub(crate) body: Vec<u8>,
    /// The response's chunk that goes by.
    pub(crate) chunk: Vec<u8>,
    /// Whether the filter answered the request itself.
    pub(crate) answered: bool,
    pub(crate) resumed: bool,
    pub(crate) log_fields: BTreeMap<String, String>,
    pub(crate) shared: BTreeMap<String, (Vec<u8>, u32)>,
    /// Calls made so far, of either kind.
    pub(crate) calls: u32,
    pub(crate) asked: u64,
    /// Calls that are refused from now on.
    pub(crate) refused: BTreeSet<&'static str>,
    pub(crate) now_ns: u64,
    metrics: u32,
}

/// What may be refused.
pub(crate) const CALLS: [&str; 16] = [
    "request_header",
    "set_request_header",
    "remove_request_header",
    "set_response_header",
    "response_header",
    "response_body",
    "request_body",
    "replace_request_body",
    "respond",
    "set_log_fields",
    "shared_data",
    "set_shared_data",
    "property",
    "call",
    "ask",
    "resume",
];

impl Proxy {
    pub(crate) fn state(&self) -> std::cell::RefMut<'_, ProxyState> {
        self.0.borrow_mut()
    }

    fn allowed(&self, call: &'static str) -> Result<std::cell::RefMut<'_, ProxyState>, HostError> {
        let state = self.state();
        if state.refused.contains(call) {
            Err(HostError { call, status: 10 })
        } else {
            Ok(state)
        }
    }
}

impl Host for Proxy {
    fn request_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self
            .allowed("request_header")?
            .request_headers
            .get(name)
            .cloned())
    }

    fn request_header_values(&self, name: &str) -> Result<Vec<Vec<u8>>, HostError> {
        Ok(self.request_header(name)?.into_iter().collect())
    }

    fn set_request_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        let mut state = self.allowed("set_request_header")?;
        state.request_headers.insert(name.to_owned(), value.into());
        Ok(())
    }

    fn remove_request_header(&self, name: &str) -> Result<(), HostError> {
        self.allowed("remove_request_header")?
            .request_headers
            .remove(name);
        Ok(())
    }

    fn set_response_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        let mut state = self.allowed("set_response_header")?;
        assert!(!value.contains(['\r', '\n']), "a header is one line");
        state.response_headers.insert(name.to_owned(), value.into());
        Ok(())
    }

    fn response_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self
            .allowed("response_header")?
            .response_headers
            .get(name)
            .cloned())
    }

    fn response_body(&self, from: usize, size: usize) -> Result<Vec<u8>, HostError> {
        Ok(self.allowed("response_body")?.chunk[from..from + size].to_vec())
    }

    fn request_body(&self, size: usize) -> Result<Vec<u8>, HostError> {
        let state = self.allowed("request_body")?;
        Ok(state.body[..size.min(state.body.len())].to_vec())
    }

    fn replace_request_body(&self, size: usize, body: &[u8]) -> Result<(), HostError> {
        let mut state = self.allowed("replace_request_body")?;
        state.body.splice(..size, body.iter().copied());
        Ok(())
    }

    fn respond(&self, status: u16, _: &[(&str, &str)], _: &[u8]) -> Result<(), HostError> {
        assert!((400..600).contains(&status));
        self.allowed("respond")?.answered = true;
        Ok(())
    }

    fn has_metadata(&self) -> bool {
        true
    }

    fn environment(&self, _: &str) -> Option<String> {
        Some("5a".repeat(32))
    }

    fn set_log_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError> {
        let mut state = self.allowed("set_log_fields")?;
        state.log_fields.clear();
        for (name, value) in fields {
            let before = state.log_fields.insert((*name).to_owned(), value.clone());
            assert_eq!(before, None, "{name} is written once");
        }
        Ok(())
    }

    fn shared_data(&self, key: &str) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        Ok(self.allowed("shared_data")?.shared.get(key).cloned())
    }

    fn set_shared_data(
        &self,
        key: &str,
        value: &[u8],
        since: Option<u32>,
    ) -> Result<bool, HostError> {
        let mut state = self.allowed("set_shared_data")?;
        let number = state.shared.get(key).map_or(0, |(_, number)| *number);
        if number > 0 && since.is_some_and(|since| since != number) {
            return Ok(false);
        }
        state
            .shared
            .insert(key.to_owned(), (value.to_vec(), number + 1));
        Ok(true)
    }

    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        let state = self.allowed("property")?;
        Ok(match path {
            ["plugin_name"] => Some(b"foreword".to_vec()),
            // Claims and addresses are what a header of that name says.
            [.., name] => state.request_headers.get(*name).cloned(),
            [] => None,
        })
    }

    fn call_for_plugin(
        &self,
        _: &str,
        _: &[(&str, &str)],
        _: &[u8],
        _: u64,
    ) -> Result<u32, HostError> {
        let mut state = self.allowed("call")?;
        state.calls += 1;
        Ok(state.calls)
    }

    fn call_for_request(
        &self,
        _: &str,
        _: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u64, HostError> {
        let mut state = self.allowed("ask")?;
        assert!(limit_ms > 0);
        assert!(crate::bodies::is_json(body), "what is asked is JSON");
        state.asked += 1;
        Ok(state.asked)
    }

    fn resume(&self) -> Result<(), HostError> {
        self.allowed("resume")?.resumed = true;
        Ok(())
    }

    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    fn define_counter(&self, _: &str) -> Result<MetricId, HostError> {
        let mut state = self.state();
        state.metrics += 1;
        Ok(MetricId(state.metrics))
    }

    fn define_histogram(&self, name: &str) -> Result<MetricId, HostError> {
        self.define_counter(name)
    }

    fn add(&self, _: MetricId, amount: u64) -> Result<(), HostError> {
        assert!(amount > 0, "Envoy refuses to add zero");
        Ok(())
    }

    fn record(&self, _: MetricId, _: u64) -> Result<(), HostError> {
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        let mut state = self.state();
        state.now_ns += 3_000;
        state.now_ns
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

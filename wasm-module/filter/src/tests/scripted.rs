//! A host for the tests: headers and body in memory, metrics in maps; any call can be refused.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

use crate::host::{EnginePool, Host, HostError, LogLevel, MetricId};

#[derive(Default)]
pub(crate) struct ScriptedHost(RefCell<ScriptedState>, SharedData, Interleaving);

/// How several workers' calls for shared data interleave.
#[derive(Clone, Default)]
struct Interleaving {
    /// Counts calls, if a model decides the order: see [`ScriptedHost::interleaved`].
    calls: Option<Arc<AtomicUsize>>,
    is_unconditional: bool,
}

/// Values with their compare-and-swap numbers, by key; several hosts may share them, as workers do.
type SharedData = Rc<RefCell<BTreeMap<String, (Vec<u8>, u32)>>>;

/// Cluster, headers and body of a call.
type ScriptedCall = (String, Vec<(String, String)>, Vec<u8>);

#[derive(Default)]
struct ScriptedState {
    request_headers: BTreeMap<String, String>,
    response_headers: BTreeMap<String, String>,
    metadata: BTreeMap<Vec<String>, Vec<u8>>,
    log_fields: BTreeMap<String, String>,
    log: String,
    body: Vec<u8>,
    /// Number of times that the body was read.
    body_reads: u32,
    /// The current chunk.
    response_body: Vec<u8>,
    properties: BTreeMap<String, Vec<u8>>,
    calls: Vec<ScriptedCall>,
    /// Bodies of [`Host::call_for_request`], by its numbers, with the path.
    asked: Vec<(String, Vec<u8>)>,
    resumed: bool,
    interference: Option<String>,
    local_response: Option<(u16, Vec<u8>)>,
    local_headers: BTreeMap<String, String>,
    metrics: Vec<(String, Vec<u64>)>,
    now_ns: u64,
    pool: Option<EnginePool>,
    refusing: HashSet<&'static str>,
    refused_calls: u32,
    /// Number of calls, by name.
    made: BTreeMap<&'static str, u32>,
}

impl ScriptedHost {
    /// Returns another worker's host in the same proxy.
    pub(crate) fn beside(other: &Self) -> Self {
        Self(RefCell::default(), Rc::clone(&other.1), other.2.clone())
    }

    /// Returns a host for a [`loom`] model, which runs workers' calls in every order: each call is a point of interruption.
    pub(crate) fn interleaved() -> Self {
        let calls = Some(Arc::new(AtomicUsize::new(0)));
        Self(
            RefCell::default(),
            SharedData::default(),
            Interleaving {
                calls,
                is_unconditional: false,
            },
        )
    }

    /// Makes compare-and-swap unconditional, for workers of the same proxy too: a mistake that a model must find.
    pub(crate) fn forget_conditions(mut self) -> Self {
        self.2.is_unconditional = true;
        self
    }

    /// The shared data, for tests that inspect or damage it.
    pub(crate) fn shared(&self) -> std::cell::RefMut<'_, BTreeMap<String, (Vec<u8>, u32)>> {
        self.1.borrow_mut()
    }

    /// Begins a new request: state of the previous one is cleared, metrics are not.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) {
        let mut state = self.0.borrow_mut();
        state.request_headers = [(":method", method), (":path", path)]
            .iter()
            .chain(headers)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        state.response_headers.clear();
        state.metadata.clear();
        state.log_fields.clear();
        state.body.clear();
        state.local_response = None;
        state.resumed = false;
    }

    /// Sets the response's status, and its header if one is given.
    pub(crate) fn respond_with(&self, status: &str, header: Option<(&str, &str)>) {
        let headers = &mut self.0.borrow_mut().response_headers;
        let all = [(":status", status)].into_iter().chain(header);
        headers.extend(all.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    /// Sets the current chunk of the response.
    pub(crate) fn stream(&self, chunk: &[u8]) {
        self.0.borrow_mut().response_body = chunk.to_vec();
    }

    pub(crate) fn set_property(&self, path: &[&str], value: &[u8]) {
        let properties = &mut self.0.borrow_mut().properties;
        properties.insert(path.join("."), value.to_vec());
    }

    /// Calls made so far, with their headers; a call's number is its index.
    pub(crate) fn calls(&self) -> Vec<(String, Vec<(String, String)>)> {
        let state = self.0.borrow();
        let calls = state.calls.iter();
        calls
            .map(|(cluster, headers, _)| (cluster.clone(), headers.clone()))
            .collect()
    }

    /// The bodies of these calls; empty if there was none.
    pub(crate) fn call_bodies(&self) -> Vec<Vec<u8>> {
        let state = self.0.borrow();
        state
            .calls
            .iter()
            .map(|(_, _, body)| body.clone())
            .collect()
    }

    /// Paths and bodies of requests' calls so far; a call's number is its index.
    pub(crate) fn asked(&self) -> Vec<(String, Vec<u8>)> {
        self.0.borrow().asked.clone()
    }

    /// Number of times that the body was read.
    pub(crate) fn body_reads(&self) -> u32 {
        self.0.borrow().body_reads
    }

    pub(crate) fn is_resumed(&self) -> bool {
        self.0.borrow().resumed
    }

    /// Makes another worker change the value of `key` right after the next read.
    pub(crate) fn interfere(&self, key: &str) {
        self.0.borrow_mut().interference = Some(key.to_owned());
    }

    /// Sets the shell's pool of engines.
    pub(crate) fn set_pool(&self, pool: EnginePool) {
        self.0.borrow_mut().pool = Some(pool);
    }

    pub(crate) fn set_time(&self, ms: u64) {
        self.0.borrow_mut().now_ns = ms * 1_000_000;
    }

    pub(crate) fn receive(&self, bytes: &[u8]) {
        self.0.borrow_mut().body.extend_from_slice(bytes);
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        self.0.borrow().body.clone()
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.0.borrow().request_headers.get(name).cloned()
    }

    pub(crate) fn response_header(&self, name: &str) -> Option<String> {
        self.0.borrow().response_headers.get(name).cloned()
    }

    pub(crate) fn local_response(&self) -> Option<(u16, Vec<u8>)> {
        self.0.borrow().local_response.clone()
    }

    /// Returns a header of the local response.
    pub(crate) fn local_header(&self, name: &str) -> Option<String> {
        self.0.borrow().local_headers.get(name).cloned()
    }

    /// Puts a text into the request's metadata.
    pub(crate) fn set_metadata(&self, path: &[&str], value: &[u8]) {
        let path = ["metadata", "filter_metadata"].iter().chain(path);
        let path = path.map(|part| (*part).to_owned()).collect();
        self.0.borrow_mut().metadata.insert(path, value.to_vec());
    }

    pub(crate) fn log_field(&self, name: &str) -> Option<String> {
        self.0.borrow().log_fields.get(name).cloned()
    }

    /// Returns the log's text.
    pub(crate) fn log_text(&self) -> String {
        self.0.borrow().log.clone()
    }

    /// Refuses calls of that name from now on.
    pub(crate) fn refuse(&self, call: &'static str) {
        self.0.borrow_mut().refusing.insert(call);
    }

    pub(crate) fn refuse_metrics(&self) {
        for call in ["define_counter", "define_histogram", "add", "record"] {
            self.refuse(call);
        }
    }

    pub(crate) fn refused_calls(&self) -> u32 {
        self.0.borrow().refused_calls
    }

    /// Takes the number of calls made since the last use, by name.
    pub(crate) fn calls_made(&self) -> BTreeMap<&'static str, u32> {
        std::mem::take(&mut self.0.borrow_mut().made)
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.samples(name).iter().sum()
    }

    pub(crate) fn samples(&self, name: &str) -> Vec<u64> {
        let state = self.0.borrow();
        let found = state.metrics.iter().find(|(known, _)| known == name);
        found
            .map(|(_, samples)| samples.clone())
            .unwrap_or_default()
    }

    /// A point at which another worker may run first.
    fn take_turns(&self) {
        if let Some(calls) = &self.2.calls {
            calls.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn allow(&self, call: &'static str) -> Result<(), HostError> {
        let mut state = self.0.borrow_mut();
        *state.made.entry(call).or_default() += 1;
        if state.refusing.contains(call) {
            state.refused_calls += 1;
            return Err(HostError { call, status: 10 });
        }
        Ok(())
    }

    fn define(&self, name: &str) -> MetricId {
        let metrics = &mut self.0.borrow_mut().metrics;
        let id = metrics
            .iter()
            .position(|(known, _)| known == name)
            .unwrap_or_else(|| {
                metrics.push((name.to_owned(), Vec::new()));
                metrics.len() - 1
            });
        MetricId(u32::try_from(id).unwrap())
    }

    fn sample(&self, id: MetricId, value: u64) {
        self.0.borrow_mut().metrics[usize::try_from(id.0).unwrap()]
            .1
            .push(value);
    }
}

impl Host for ScriptedHost {
    fn request_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.allow("request_header")?;
        Ok(self.header(name).map(String::into_bytes))
    }

    /// A header that was sent several times has a line for each value.
    fn request_header_values(&self, name: &str) -> Result<Vec<Vec<u8>>, HostError> {
        self.allow("request_header_values")?;
        let values = self.header(name).unwrap_or_default();
        Ok(values
            .lines()
            .map(|value| value.as_bytes().to_vec())
            .collect())
    }

    fn set_request_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        self.allow("set_request_header")?;
        let headers = &mut self.0.borrow_mut().request_headers;
        headers.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    fn remove_request_header(&self, name: &str) -> Result<(), HostError> {
        self.allow("remove_request_header")?;
        self.0.borrow_mut().request_headers.remove(name);
        Ok(())
    }

    fn set_response_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        self.allow("set_response_header")?;
        let headers = &mut self.0.borrow_mut().response_headers;
        headers.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    fn response_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.allow("response_header")?;
        let value = self.0.borrow().response_headers.get(name).cloned();
        Ok(value.map(String::into_bytes))
    }

    fn response_body(&self, from: usize, size: usize) -> Result<Vec<u8>, HostError> {
        self.allow("response_body")?;
        Ok(self.0.borrow().response_body[from..from + size].to_vec())
    }

    fn request_body(&self, size: usize) -> Result<Vec<u8>, HostError> {
        self.allow("request_body")?;
        self.0.borrow_mut().body_reads += 1;
        let mut body = self.body();
        body.truncate(size);
        Ok(body)
    }

    fn replace_request_body(&self, size: usize, body: &[u8]) -> Result<(), HostError> {
        self.allow("replace_request_body")?;
        let held = &mut self.0.borrow_mut().body;
        assert!(
            size <= held.len(),
            "replaces {size} of {} bytes",
            held.len()
        );
        held.splice(..size, body.iter().copied());
        Ok(())
    }

    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Result<(), HostError> {
        self.allow("respond")?;
        let mut state = self.0.borrow_mut();
        state.local_response = Some((status, body.to_vec()));
        let headers = headers.iter();
        let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        state.local_headers = headers.collect();
        Ok(())
    }

    fn has_metadata(&self) -> bool {
        self.allow("metadata").is_ok()
    }

    fn environment(&self, name: &str) -> Option<String> {
        (name == "SCRIPTED_KEY").then(|| "00".repeat(32))
    }

    fn set_log_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError> {
        self.allow("set_log_fields")?;
        let known = &mut self.0.borrow_mut().log_fields;
        // Fields of the request that ended last.
        known.clear();
        for (name, value) in fields {
            let before = known.insert((*name).to_owned(), value.clone());
            assert_eq!(before, None, "{name} is written once");
        }
        Ok(())
    }

    fn shared_data(&self, key: &str) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        self.allow("shared_data")?;
        self.take_turns();
        let mut data = self.1.borrow_mut();
        let found = data.get(key).cloned();
        if self
            .0
            .borrow_mut()
            .interference
            .take_if(|other| other == key)
            .is_some()
            && let Some((_, number)) = data.get_mut(key)
        {
            *number += 1;
        }
        Ok(found)
    }

    fn set_shared_data(
        &self,
        key: &str,
        value: &[u8],
        unchanged_since: Option<u32>,
    ) -> Result<bool, HostError> {
        self.allow("set_shared_data")?;
        self.take_turns();
        let unchanged_since = unchanged_since.filter(|_| !self.2.is_unconditional);
        let mut data = self.1.borrow_mut();
        let number = data.get(key).map_or(0, |(_, number)| *number);
        // As in Envoy, a missing value has no number to compare with.
        if number > 0 && unchanged_since.is_some_and(|since| since != number) {
            return Ok(false);
        }
        data.insert(key.to_owned(), (value.to_vec(), number + 1));
        Ok(true)
    }

    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        self.allow("property")?;
        if let Some(found) = self.0.borrow().properties.get(&path.join(".")) {
            return Ok(Some(found.clone()));
        }
        if path == ["plugin_name"] {
            return Ok(Some(b"foreword".to_vec()));
        }
        let path: Vec<_> = path.iter().map(|part| (*part).to_owned()).collect();
        Ok(self.0.borrow().metadata.get(&path).cloned())
    }

    fn call_for_plugin(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        _limit_ms: u64,
    ) -> Result<u32, HostError> {
        self.allow("call")?;
        let headers = headers.iter();
        let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let calls = &mut self.0.borrow_mut().calls;
        calls.push((cluster.to_owned(), headers.collect(), body.to_vec()));
        Ok(u32::try_from(calls.len() - 1).unwrap())
    }

    fn call_for_request(
        &self,
        _cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u64, HostError> {
        self.allow("ask")?;
        assert!(limit_ms > 0);
        let path = headers.iter().find(|(name, _)| *name == ":path").unwrap().1;
        let asked = &mut self.0.borrow_mut().asked;
        asked.push((path.to_owned(), body.to_vec()));
        Ok(u64::try_from(asked.len() - 1).unwrap())
    }

    fn pool(&self) -> Option<EnginePool> {
        self.0.borrow().pool.clone()
    }

    fn resume(&self) -> Result<(), HostError> {
        self.allow("resume")?;
        self.0.borrow_mut().resumed = true;
        Ok(())
    }

    fn memory_bytes(&self) -> Option<u64> {
        Some(7 << 20)
    }

    fn define_counter(&self, name: &str) -> Result<MetricId, HostError> {
        self.allow("define_counter")?;
        Ok(self.define(name))
    }

    fn define_histogram(&self, name: &str) -> Result<MetricId, HostError> {
        self.allow("define_histogram")?;
        Ok(self.define(name))
    }

    fn add(&self, counter: MetricId, amount: u64) -> Result<(), HostError> {
        self.allow("add")?;
        assert!(amount > 0, "Envoy refuses to add zero");
        self.sample(counter, amount);
        Ok(())
    }

    fn record(&self, histogram: MetricId, value: u64) -> Result<(), HostError> {
        self.allow("record")?;
        self.sample(histogram, value);
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        let state = &mut *self.0.borrow_mut();
        *state.made.entry("now").or_default() += 1;
        state.now_ns += 3_000;
        state.now_ns
    }

    fn log(&self, _level: LogLevel, message: &str) {
        let log = &mut self.0.borrow_mut().log;
        log.push_str(message);
        log.push('\n');
    }
}

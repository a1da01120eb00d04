//! What the host calls of one VM work on: the request whose callback is running, what the plugin was given, and the proxy's
//! clock.

use crate::abi::{BufferType, Headers, MapType};
use crate::limits::{HANDED_OVER, HandedOver, MemoryWatch};
use crate::shared::Shared;
use foreword_ordering::random::Random;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use wasmtime::{Memory, TypedFunc};

/// The plugin's own context; requests have the numbers behind it.
pub(crate) const ROOT: i32 = 1;

/// What a VM's host calls see and change.
pub(crate) struct State {
    pub(crate) memory: Option<Memory>,
    /// Room in the VM for what a host call returns.
    pub(crate) allocate: Option<TypedFunc<i32, i32>>,
    pub(crate) watch: MemoryWatch,
    pub(crate) shared: Rc<RefCell<Shared>>,
    /// The VM's place among those of the proxy.
    pub(crate) vm: usize,
    pub(crate) configuration: Rc<[u8]>,
    pub(crate) environment: Rc<[(String, String)]>,
    pub(crate) now_ns: u64,
    pub(crate) random: Random,
    pub(crate) tick_ms: u32,
    /// The context that the running callback is of.
    pub(crate) context: i32,
    pub(crate) stream: Stream,
    /// Calls of clusters that wait for an answer.
    pub(crate) pending: Vec<PendingCall>,
    next_token: u32,
    /// The answer that the running callback is about.
    pub(crate) answer: Option<CallAnswer>,
    /// Host calls, by name.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) call_count: u64,
    /// Lines of the log, by level.
    pub(crate) log_lines: [u64; LEVELS],
    /// What was said while the plugin was configured, as loud as a warning: that has no text of a request.
    pub(crate) said: Vec<String>,
    pub(crate) is_starting: bool,
    /// Where the source panicked, if the module said so.
    pub(crate) panicked_at: Option<String>,
    /// Bytes that the running callback handed over.
    handed_over: usize,
}

/// Levels of the log: trace, debug, info, warn, error, critical.
pub(crate) const LEVELS: usize = 6;

/// Lines that are kept of a refused configuration.
const SAID: usize = 8;

/// A call of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingCall {
    pub(crate) token: u32,
    pub(crate) context: i32,
    pub(crate) cluster: String,
}

/// What a cluster answers to a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallAnswer {
    /// Headers of the answer, `:status` among them; none at all: the call failed.
    pub headers: Headers,
    /// The body, whole.
    pub body: Vec<u8>,
}

/// The request whose callbacks are running. A map or a body that the proxy has let go of is `None`.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) request_headers: Option<Headers>,
    pub(crate) request_trailers: Option<Headers>,
    pub(crate) response_headers: Option<Headers>,
    pub(crate) response_trailers: Option<Headers>,
    pub(crate) request_body: Option<Vec<u8>>,
    pub(crate) response_body: Option<Vec<u8>>,
    /// The access log is being written: maps may be absent.
    pub(crate) is_logging: bool,
    /// By path, a 0 byte between two parts.
    pub(crate) properties: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) request_goes_on: bool,
    pub(crate) response_goes_on: bool,
    pub(crate) is_closed: bool,
    pub(crate) local: Option<LocalResponse>,
}

/// An answer that the module gave in the engine's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResponse {
    /// Of the answer.
    pub status: u32,
    /// Beside the status.
    pub headers: Headers,
    /// The body, whole.
    pub body: Vec<u8>,
}

impl State {
    pub(crate) fn new(
        vm: usize,
        shared: Rc<RefCell<Shared>>,
        configuration: Rc<[u8]>,
        environment: Rc<[(String, String)]>,
        memory_bytes: u64,
    ) -> Self {
        Self {
            memory: None,
            allocate: None,
            watch: MemoryWatch::new(memory_bytes),
            shared,
            vm,
            configuration,
            environment,
            now_ns: 0,
            random: Random::new(vm as u64),
            tick_ms: 0,
            context: ROOT,
            stream: Stream::default(),
            pending: Vec::new(),
            next_token: 1,
            answer: None,
            calls: BTreeMap::new(),
            call_count: 0,
            log_lines: [0; LEVELS],
            said: Vec::new(),
            is_starting: true,
            panicked_at: None,
            handed_over: 0,
        }
    }

    /// A callback begins, of this context.
    pub(crate) fn begin(&mut self, context: i32) {
        self.context = context;
        self.handed_over = 0;
    }

    pub(crate) fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
        self.call_count += 1;
    }

    /// The module hands over so many bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), HandedOver> {
        self.handed_over = self.handed_over.saturating_add(bytes);
        if self.handed_over > HANDED_OVER {
            return Err(HandedOver);
        }
        Ok(())
    }

    /// The time now. Each reading takes a microsecond, so that whoever waits for a moment sees it come.
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_ns += 1_000;
        self.now_ns
    }

    /// A line of the log. While the plugin starts, loud ones are kept; of a panic, its place.
    pub(crate) fn log(&mut self, level: usize, line: &[u8]) {
        if let Some(lines) = self.log_lines.get_mut(level) {
            *lines += 1;
        }
        let line = String::from_utf8_lossy(line);
        self.notice_panic(&line);
        if self.is_starting && level >= WARN && self.said.len() < SAID {
            self.said.push(line.into_owned());
        }
    }

    /// Rust's panics begin with their place in the source: `panicked at src/lib.rs:1:2:`. What follows may quote a request.
    pub(crate) fn notice_panic(&mut self, line: &str) {
        let Some((_, rest)) = line.split_once("panicked at ") else {
            return;
        };
        let place = rest
            .lines()
            .next()
            .unwrap_or_default()
            .trim_end_matches(':');
        // An older form of the message begins with the panic's words, in quotes.
        let is_place = place.len() <= PLACE_BYTES
            && !place.contains(['\'', '"', ' '])
            && place.split(':').count() == 3;
        if is_place {
            self.panicked_at = Some(place.to_owned());
        }
    }

    /// A token for a call of a cluster.
    pub(crate) fn token(&mut self) -> u32 {
        let token = self.next_token;
        self.next_token = self.next_token.checked_add(1).unwrap_or(1);
        token
    }

    pub(crate) fn map(&mut self, map: MapType) -> Option<&mut Headers> {
        let stream = &mut self.stream;
        match map {
            MapType::RequestHeaders => stream.request_headers.as_mut(),
            MapType::RequestTrailers => stream.request_trailers.as_mut(),
            MapType::ResponseHeaders => stream.response_headers.as_mut(),
            MapType::ResponseTrailers => stream.response_trailers.as_mut(),
            MapType::CallHeaders => self.answer.as_mut().map(|answer| &mut answer.headers),
            // A scripted answer has none.
            MapType::CallTrailers => None,
        }
    }

    pub(crate) fn buffer(&self, buffer: BufferType) -> Option<&[u8]> {
        match buffer {
            BufferType::RequestBody => self.stream.request_body.as_deref(),
            BufferType::ResponseBody => self.stream.response_body.as_deref(),
            BufferType::CallBody => self.answer.as_ref().map(|answer| &*answer.body),
            BufferType::VmConfiguration => Some(&[]),
            BufferType::PluginConfiguration => Some(&self.configuration),
        }
    }

    /// A buffer that may be changed.
    pub(crate) fn body(&mut self, buffer: BufferType) -> Option<&mut Vec<u8>> {
        match buffer {
            BufferType::RequestBody => self.stream.request_body.as_mut(),
            BufferType::ResponseBody => self.stream.response_body.as_mut(),
            _ => None,
        }
    }
}

const WARN: usize = 3;
const PLACE_BYTES: usize = 256;

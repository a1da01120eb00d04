//! The state of one VM for its host calls: the request of the running callback, the plugin's configuration, the clock.

use crate::abi::Headers;
use crate::fault::{FaultKind, HANDED_OVER};
use crate::limits::MemoryWatch;
use crate::request::{Answer, LocalResponse};
use crate::shared::Shared;
use foreword_ordering::random::Random;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use wasmtime::{Memory, TypedFunc};

/// The plugin's own context id; requests have higher ids.
pub(crate) const ROOT: i32 = 1;

/// The state of a VM that its host calls use.
pub(crate) struct State {
    pub(crate) memory: Option<Memory>,
    /// The module's allocator, for values that host calls return; `None` if it has none.
    pub(crate) allocate: Option<TypedFunc<i32, i32>>,
    pub(crate) watch: MemoryWatch,
    pub(crate) shared: Rc<RefCell<Shared>>,
    /// Index of the VM in the proxy.
    pub(crate) vm: usize,
    pub(crate) configuration: Rc<[u8]>,
    pub(crate) environment: Rc<[(String, String)]>,
    pub(crate) now_ns: u64,
    pub(crate) random: Random,
    pub(crate) tick_ms: u32,
    /// Id of the context for which the running callback is called.
    pub(crate) context: i32,
    pub(crate) stream: Stream,
    /// HTTP calls that were not answered yet.
    pub(crate) pending: Vec<PendingCall>,
    next_token: u32,
    /// The response to an HTTP call that the running callback may read.
    pub(crate) answer: Option<Answer>,
    /// Number of host calls, by name.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) call_count: u64,
    /// Number of log lines, by level.
    pub(crate) log_lines: [u64; LEVELS],
    /// Warnings and errors that the plugin logged during its start, when they cannot contain text of a request.
    pub(crate) said: Vec<String>,
    pub(crate) is_starting: bool,
    /// Source location of the last panic that the module logged.
    pub(crate) panicked_at: Option<String>,
    /// Bytes that the running callback has passed to the proxy so far.
    handed_over: usize,
}

/// Number of log levels: trace, debug, info, warn, error, critical.
pub(crate) const LEVELS: usize = 6;

/// Maximum number of log lines of a plugin's start that are stored.
const SAID: usize = 8;

/// An HTTP call of the module to a cluster, not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingCall {
    pub(crate) token: u32,
    pub(crate) context: i32,
    pub(crate) cluster: String,
}

/// The request whose callbacks are running. Headers and bodies that were forwarded are `None`.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) request_headers: Option<Headers>,
    pub(crate) request_trailers: Option<Headers>,
    pub(crate) response_headers: Option<Headers>,
    pub(crate) response_trailers: Option<Headers>,
    pub(crate) request_body: Option<Vec<u8>>,
    pub(crate) response_body: Option<Vec<u8>>,
    /// True if the access log is being written. Absent headers are then no error.
    pub(crate) is_logging: bool,
    /// Properties by path, with a 0 byte between the parts of a path.
    pub(crate) properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// True once the module has resumed the paused request; cleared when the proxy acts on it.
    pub(crate) request_goes_on: bool,
    /// True once the module has resumed the paused response; cleared when the proxy acts on it.
    pub(crate) response_goes_on: bool,
    pub(crate) is_closed: bool,
    pub(crate) local: Option<LocalResponse>,
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

    /// Prepares for a callback in `context`.
    pub(crate) fn begin(&mut self, context: i32) {
        self.context = context;
        self.handed_over = 0;
    }

    pub(crate) fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
        self.call_count += 1;
    }

    /// Counts bytes that the callback passes to the proxy. Fails beyond [`HANDED_OVER`].
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), FaultKind> {
        self.handed_over = self.handed_over.saturating_add(bytes);
        if self.handed_over > HANDED_OVER {
            return Err(FaultKind::HandedOver);
        }
        Ok(())
    }

    /// Returns the time in nanoseconds. Each call advances it by 1 µs, so that a busy wait ends.
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_ns += 1_000;
        self.now_ns
    }

    /// Counts a log line. Keeps warnings and errors of the start, and the source location of a panic.
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

    /// Keeps the location in a Rust panic's message (`panicked at src/lib.rs:1:2:`); the rest may quote a request.
    pub(crate) fn notice_panic(&mut self, line: &str) {
        let Some((_, rest)) = line.split_once("panicked at ") else {
            return;
        };
        let place = rest.lines().next().unwrap_or_default();
        let place = place.trim_end_matches(':');
        // In Rust's older format, the panic's message follows in quotes.
        let is_place = place.len() <= PLACE_BYTES
            && !place.contains(['\'', '"', ' '])
            && place.split(':').count() == 3;
        if is_place {
            self.panicked_at = Some(place.to_owned());
        }
    }

    /// Returns the token of a new HTTP call.
    pub(crate) fn token(&mut self) -> u32 {
        let token = self.next_token;
        self.next_token = self.next_token.checked_add(1).unwrap_or(1);
        token
    }

    /// Returns the headers or trailers with this number in the ABI; `None` if the callback may not see them. gRPC's
    /// metadata (4, 5) and trailers of HTTP calls' responses (7) are not supported.
    pub(crate) fn map(&mut self, number: i32) -> Option<&mut Headers> {
        let stream = &mut self.stream;
        match number {
            0 => stream.request_headers.as_mut(),
            1 => stream.request_trailers.as_mut(),
            2 => stream.response_headers.as_mut(),
            3 => stream.response_trailers.as_mut(),
            6 => self.answer.as_mut().map(|answer| &mut answer.headers),
            _ => None,
        }
    }

    /// Returns the buffer with this number in the ABI; `None` if the callback may not see it. The bytes of connections
    /// (2, 3), of gRPC (5) and of foreign functions (8) are not supported.
    pub(crate) fn buffer(&self, number: i32) -> Option<&[u8]> {
        match number {
            REQUEST_BODY => self.stream.request_body.as_deref(),
            RESPONSE_BODY => self.stream.response_body.as_deref(),
            4 => self.answer.as_ref().map(|answer| &*answer.body),
            // The VM has no configuration of its own; the plugin has one.
            6 => Some(&[]),
            7 => Some(&self.configuration),
            _ => None,
        }
    }

    /// Returns the body with this number in the ABI, for a change; `None` for other buffers.
    pub(crate) fn body(&mut self, number: i32) -> Option<&mut Vec<u8>> {
        match number {
            REQUEST_BODY => self.stream.request_body.as_mut(),
            RESPONSE_BODY => self.stream.response_body.as_mut(),
            _ => None,
        }
    }
}

const REQUEST_BODY: i32 = 0;
const RESPONSE_BODY: i32 = 1;
const WARN: usize = 3;
const PLACE_BYTES: usize = 256;

//! Plays a request on a VM, with callbacks in the order of Envoy.
//!
//! ```text
//!   create ─▶ headers ─▶ body, piece by piece ─▶ trailers ─▶ engine, or the module's own answer
//!                                                                 └─▶ headers ─▶ body ─▶ log, done, delete
//!   after each callback: the HTTP calls that it made are answered
//! ```
//!
//! While callbacks pause, the proxy collects what arrives, and the next callback sees it all. Headers that were
//! forwarded can no longer be read. The module's own response passes through its response callbacks, like an engine's.

use crate::fault::{Fault, FaultKind};
use crate::request::{Answer, Forwarded, Outcome, Request};
use crate::state::Stream;
use crate::vm::{Action, Vm, length};

/// The behaviour of the proxy around the module: responses to HTTP calls, and whether a pause at the headers holds all.
pub(crate) struct ProxyBehaviour<'a> {
    /// Returns the response to an HTTP call to the cluster of this name.
    pub(crate) answer: &'a dyn Fn(&str) -> Answer,
    /// True for a proxy without `allow_on_headers_stop_iteration`: a pause at the headers also pauses the body.
    pub(crate) holds_all: bool,
}

/// Plays a request. If its outcome has a fault, the VM must not be used again.
pub(crate) fn play(vm: &mut Vm, request: &Request, around: &ProxyBehaviour<'_>) -> Outcome {
    let before = (vm.fuel, vm.store.data().call_count);
    *vm.stream() = Stream {
        request_headers: Some(request.headers.clone()),
        properties: request.properties.iter().cloned().collect(),
        ..Stream::default()
    };
    let mut outcome = Outcome::default();
    outcome.fault = way(vm, request, around, &mut outcome).err();
    let after = vm.store.data_mut();
    if outcome.local.is_none() {
        outcome.local = after.stream.local.take();
    }
    outcome.calls = after.call_count - before.1;
    outcome.fuel = vm.fuel - before.0;
    outcome
}

/// Plays the request, its response, and the callbacks at its end. Writes the results into `outcome`.
fn way(
    vm: &mut Vm,
    request: &Request,
    around: &ProxyBehaviour<'_>,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    let context = vm.create()?;
    let mut sent = Forwarded::default();
    let asked = self::request(vm, context, request, around, &mut sent)?;
    if asked {
        outcome.forwarded = Some(sent);
    }
    let stream = vm.stream();
    outcome.local = stream.local.clone();
    if !stream.is_closed {
        response(vm, context, request, around, outcome)?;
    }
    let stream = vm.stream();
    stream.is_logging = true;
    stream.request_headers = Some(match &outcome.forwarded {
        Some(forwarded) => forwarded.headers.clone(),
        None => request.headers.clone(),
    });
    stream.response_headers = Some(outcome.response_headers.clone());
    vm.finish(context)
}

/// Plays the callbacks for the request, and writes what was forwarded into `sent`. Returns whether all of it was
/// forwarded.
fn request(
    vm: &mut Vm,
    context: i32,
    request: &Request,
    around: &ProxyBehaviour<'_>,
    sent: &mut Forwarded,
) -> Result<bool, Fault> {
    let is_body_empty = request.body.is_empty() && request.piece_bytes.is_none();
    let mut last = "proxy_on_request_headers";
    let count = length(&vm.stream().request_headers);
    let ends = is_body_empty && request.trailers.is_empty();
    let action = vm.pass(last, context, count, ends)?;
    let mut held = is_held(vm, action, around, |stream| &mut stream.request_goes_on)?;
    if is_over(vm) {
        return Ok(false);
    }
    if !held {
        forward_headers(vm, sent);
    } else if around.holds_all {
        return Err(held_for_ever(last));
    }
    let size = request.piece_bytes.unwrap_or(usize::MAX).max(1);
    let mut pieces = request.body.chunks(size).peekable();
    let mut empty = (!is_body_empty && request.body.is_empty()).then_some(&[][..]);
    let mut body: Vec<u8> = Vec::new();
    while let Some(piece) = pieces.next().or_else(|| empty.take()) {
        let end = pieces.peek().is_none() && request.trailers.is_empty();
        body.extend(piece);
        let size = body.len();
        vm.stream().request_body = Some(std::mem::take(&mut body));
        last = "proxy_on_request_body";
        let action = vm.pass(last, context, size, end)?;
        let still_held = is_held(vm, action, around, |stream| &mut stream.request_goes_on)?;
        if is_over(vm) {
            return Ok(false);
        }
        body = vm.stream().request_body.take().unwrap_or_default();
        if !still_held {
            forward_headers(vm, sent);
            sent.body.append(&mut body);
        }
        held = still_held;
    }
    if !request.trailers.is_empty() {
        let stream = vm.stream();
        stream.request_trailers = Some(request.trailers.clone());
        stream.request_body = held.then(|| std::mem::take(&mut body));
        last = "proxy_on_request_trailers";
        let action = vm.request_trailers(context)?;
        let still_held = is_held(vm, action, around, |stream| &mut stream.request_goes_on)?;
        if is_over(vm) {
            return Ok(false);
        }
        body = vm.stream().request_body.take().unwrap_or_default();
        if !still_held {
            forward_headers(vm, sent);
            sent.body.append(&mut body);
        }
        held = still_held;
    }
    if held {
        return Err(held_for_ever(last));
    }
    Ok(true)
}

/// Forwards the request's headers, unless they were forwarded already.
fn forward_headers(vm: &mut Vm, sent: &mut Forwarded) {
    if let Some(headers) = vm.stream().request_headers.take() {
        sent.headers = headers;
    }
}

/// Answers the HTTP calls that a callback made. Returns whether the request, or the response, is still paused;
/// `resumed` selects the flag by which the module resumes it.
fn is_held(
    vm: &mut Vm,
    action: Action,
    around: &ProxyBehaviour<'_>,
    resumed: fn(&mut Stream) -> &mut bool,
) -> Result<bool, Fault> {
    vm.answer_calls(around.answer)?;
    let resumed = std::mem::take(resumed(vm.stream()));
    Ok(action == Action::Pause && !resumed)
}

/// Returns whether the module has responded itself or closed the stream.
fn is_over(vm: &Vm) -> bool {
    let stream = &vm.store.data().stream;
    stream.local.is_some() || stream.is_closed
}

fn response(
    vm: &mut Vm,
    context: i32,
    request: &Request,
    around: &ProxyBehaviour<'_>,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    let (headers, body) = match &outcome.local {
        Some(local) => {
            let status = (b":status".to_vec(), local.status.to_string().into_bytes());
            ([&[status], &*local.headers].concat(), local.body.clone())
        }
        None => (request.answer.headers.clone(), request.answer.body.clone()),
    };
    let mut last = "proxy_on_response_headers";
    let count = headers.len();
    vm.stream().response_headers = Some(headers);
    let action = vm.pass(last, context, count, body.is_empty())?;
    let mut held = is_held(vm, action, around, |stream| &mut stream.response_goes_on)?;
    if !held {
        let headers = vm.stream().response_headers.take();
        outcome.response_headers = headers.unwrap_or_default();
    }
    if !body.is_empty() {
        let size = body.len();
        vm.stream().response_body = Some(body);
        last = "proxy_on_response_body";
        let action = vm.pass(last, context, size, true)?;
        held = is_held(vm, action, around, |stream| &mut stream.response_goes_on)?;
        let stream = vm.stream();
        outcome.response_body = stream.response_body.take().unwrap_or_default();
        if let Some(headers) = stream.response_headers.take() {
            outcome.response_headers = headers;
        }
    }
    if held {
        return Err(held_for_ever(last));
    }
    Ok(())
}

/// Returns the fault of a request, or a response, that stays paused after `callback`.
fn held_for_ever(callback: &'static str) -> Fault {
    Fault {
        callback,
        kind: FaultKind::Held,
        place: None,
    }
}

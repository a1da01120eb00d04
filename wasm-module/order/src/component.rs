//! The module as the core of a component for routers, in the component model's canonical ABI.
//!
//! Written by hand: two functions take a request as flat numbers and return the address of an action, and `component.wat`
//! beside this crate states their types. Bindings made by a tool would bring an allocation for every header, for two
//! routers each its own.
//!
//! | export | world | request | action |
//! | --- | --- | --- | --- |
//! | `smg-on-request` | `smg:gateway` | as below, and the time | with a status that it may set |
//! | `smg-on-response` | `smg:gateway` | is not read | continue |
//! | `vllm-handle` | `vllm:router-middleware` | as below | without a status |
//!
//! A request is method, path, query, headers, body and id, each an address and a length. Routers make an instance for each
//! call; what the host wrote for it (`cabi_realloc`) is given up with the instance, and is not freed here. The action
//! stays valid until the next call.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::{Mutex, PoisonError};

use crate::reordered;

/// Words of the longer action: its case, then what is modified.
const ACTION_WORDS: usize = 11;

/// The answer to the last call.
struct Answer {
    /// The action in the canonical ABI's layout.
    action: [u32; ACTION_WORDS],
    /// The body that it points to.
    body: Vec<u8>,
}

static ANSWER: Mutex<Answer> = Mutex::new(Answer {
    action: [0; ACTION_WORDS],
    body: Vec::new(),
});

/// The case `modify` of an action; 0 is `continue`.
const MODIFY: u32 = 2;

/// Where an action has the optional body: its presence, its address, its length.
#[derive(Clone, Copy)]
enum BodyAt {
    /// Behind the case, the optional status, and three empty lists.
    Smg = 8,
    /// Behind the case and three empty lists.
    Vllm = 7,
}

/// Answers a request with this body.
fn answer(body: &[u8], at: BodyAt) -> *const u32 {
    let mut answer = ANSWER.lock().unwrap_or_else(PoisonError::into_inner);
    answer.action = [0; ACTION_WORDS];
    if let Some(body) = reordered(body) {
        answer.body = body;
        let (address, length) = (answer.body.as_ptr() as usize, answer.body.len());
        let words = [1, address as u32, length as u32];
        if let Some(place) = answer.action.get_mut(at as usize..) {
            place
                .iter_mut()
                .zip(words)
                .for_each(|(word, value)| *word = value);
        }
        if let Some(case) = answer.action.first_mut() {
            *case = MODIFY;
        }
    }
    answer.action.as_ptr()
}

/// Returns the bytes that the host wrote.
///
/// # Safety
/// `address` and `length` come from the host, which wrote that many bytes there and keeps them during the call.
#[allow(unsafe_code, reason = "the canonical ABI passes lists as addresses")]
unsafe fn written<'a>(address: *const u8, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(address, length) }
}

macro_rules! on_request {
    ($function:ident, $name:literal, $at:expr $(, $time:ident: $kind:ty)?) => {
        #[allow(unsafe_code, reason = "an export of the canonical ABI")]
        #[allow(clippy::too_many_arguments, reason = "the record's fields, flat")]
        #[unsafe(export_name = $name)]
        extern "C" fn $function(
            _method: *const u8,
            _method_bytes: usize,
            _path: *const u8,
            _path_bytes: usize,
            _query: *const u8,
            _query_bytes: usize,
            _headers: *const u8,
            _header_count: usize,
            body: *const u8,
            body_bytes: usize,
            _id: *const u8,
            _id_bytes: usize,
            $($time: $kind,)?
        ) -> *const u32 {
            // SAFETY: the host wrote the body, as the canonical ABI has it.
            answer(unsafe { written(body, body_bytes) }, $at)
        }
    };
}

on_request!(smg_on_request, "smg-on-request", BodyAt::Smg, _now_ms: u64);
on_request!(vllm_handle, "vllm-handle", BodyAt::Vllm);

/// Continues with the response as it came.
#[allow(unsafe_code, reason = "an export of the canonical ABI")]
#[unsafe(export_name = "smg-on-response")]
extern "C" fn smg_on_response(
    _status: u32,
    _headers: *const u8,
    _header_count: usize,
    _body: *const u8,
    _body_bytes: usize,
) -> *const u32 {
    let mut answer = ANSWER.lock().unwrap_or_else(PoisonError::into_inner);
    answer.action = [0; ACTION_WORDS];
    answer.action.as_ptr()
}

/// Returns room for what the host passes.
///
/// # Safety
/// The host calls it as the canonical ABI has it: `old` is null, or came from here with `old_bytes` and `align`.
#[allow(unsafe_code, reason = "the canonical ABI's allocator")]
#[unsafe(export_name = "cabi_realloc")]
unsafe extern "C" fn cabi_realloc(
    old: *mut u8,
    old_bytes: usize,
    align: usize,
    bytes: usize,
) -> *mut u8 {
    if bytes == 0 {
        return std::ptr::without_provenance_mut(align);
    }
    let Ok(layout) = Layout::from_size_align(bytes, align) else {
        return std::ptr::null_mut();
    };
    let room = if old_bytes == 0 {
        // SAFETY: the layout is not empty.
        unsafe { std::alloc::alloc(layout) }
    } else {
        // SAFETY: `old` came from here with this alignment and `old_bytes`, which was a valid layout then.
        unsafe {
            let before = Layout::from_size_align_unchecked(old_bytes, align);
            std::alloc::realloc(old, before, bytes)
        }
    };
    if room.is_null() {
        handle_alloc_error(layout);
    }
    room
}

//! Tests the hooks with calls like Envoy's.
#![allow(unsafe_code, reason = "the tests call as Envoy does")]

use std::ffi::c_void;
use std::ptr::null_mut;

use foreword_filter::{Flow, Host};

use super::config::*;
use super::request::*;
use crate::abi::{self, EnvoyBuffer};
use crate::tests::fake;

fn load(text: &str) -> Config {
    let text = EnvoyBuffer {
        ptr: text.as_ptr().cast(),
        length: text.len(),
    };
    // SAFETY: the fake Envoy dereferences no pointer, and the text outlives the call.
    unsafe { envoy_dynamic_module_on_http_filter_config_new(null_mut(), text, text) }
}

#[test]
fn a_configuration_outlives_its_removal_while_a_request_uses_it() {
    let config = load("{}");
    // SAFETY: each object is the result of an earlier hook and is destroyed once.
    unsafe {
        let filter = envoy_dynamic_module_on_http_filter_new(config, null_mut());
        envoy_dynamic_module_on_http_filter_config_destroy(config);
        let status = envoy_dynamic_module_on_http_filter_request_headers(null_mut(), filter, true);
        assert_eq!(status, abi::CONTINUE);
        envoy_dynamic_module_on_http_filter_destroy(filter);
    }
}

#[test]
fn a_bad_configuration_is_refused() {
    assert!(load(r#"{"no_such_field": 1}"#).is_null());
}

#[test]
fn a_panic_ends_at_its_hook_and_answers_500() {
    let config = load("");
    // SAFETY: as above.
    unsafe {
        let filter = envoy_dynamic_module_on_http_filter_new(config, null_mut());
        assert_eq!(
            on_request(null_mut(), filter, |_, _| panic!("for the test")),
            Flow::Hold
        );
        assert_eq!(fake::take_answer(), Some(500));
        let flow = on_request(null_mut(), filter, |_, _| Flow::Continue);
        assert_eq!((flow, fake::take_answer()), (Flow::Continue, None));
        envoy_dynamic_module_on_http_filter_destroy(filter);
        envoy_dynamic_module_on_http_filter_config_destroy(config);
    }
}

/// Envoy may end the request within these calls, and destroy the exchange that the hook borrows.
#[test]
fn responses_and_resumptions_are_the_last_thing_that_a_hook_does() {
    let config = load("");
    // SAFETY: as above.
    unsafe {
        let filter = envoy_dynamic_module_on_http_filter_new(config, null_mut());
        let flow = on_request(null_mut(), filter, |_, envoy| {
            envoy.respond(503, &[], b"").unwrap();
            assert_eq!(fake::take_answer(), None);
            Flow::Hold
        });
        assert_eq!((flow, fake::take_answer()), (Flow::Hold, Some(503)));
        on_request(null_mut(), filter, |_, envoy| {
            envoy.resume().unwrap();
            assert_eq!(fake::take_resumed(), 0);
            Flow::Continue
        });
        assert_eq!((fake::take_resumed(), fake::take_answer()), (1, None));
        envoy_dynamic_module_on_http_filter_destroy(filter);
        envoy_dynamic_module_on_http_filter_config_destroy(config);
    }
}

#[test]
fn a_request_that_nothing_could_be_made_for_is_answered_with_500() {
    // SAFETY: null is what `filter_new` returns after a panic.
    let status = unsafe {
        envoy_dynamic_module_on_http_filter_request_headers(null_mut(), null_mut(), false)
    };
    assert_eq!(
        (status, fake::take_answer()),
        (abi::STOP_ITERATION, Some(500))
    );
}

#[test]
fn a_configuration_with_feeds_ticks_until_it_is_destroyed() {
    let text = br#"{"engines": [{"name": "e", "feed": {"cluster": "engine"}}]}"#;
    let text = EnvoyBuffer {
        ptr: text.as_ptr().cast(),
        length: text.len(),
    };
    // The fake Envoy dereferences no pointer; this one distinguishes this test's schedulers from others.
    let envoy: *mut c_void = std::ptr::without_provenance_mut(7);
    // SAFETY: as above.
    let config = unsafe { envoy_dynamic_module_on_http_filter_config_new(envoy, text, text) };
    while fake::schedulers(envoy).iter().all(|used| used.events < 2) {
        std::thread::yield_now();
    }
    // SAFETY: as above; there are no headers and no pieces.
    unsafe {
        envoy_dynamic_module_on_http_filter_config_scheduled(envoy, config, 0);
        envoy_dynamic_module_on_http_filter_config_http_callout_done(
            envoy,
            config,
            0,
            1,
            std::ptr::null(),
            0,
            std::ptr::null(),
            0,
        );
        envoy_dynamic_module_on_http_filter_config_destroy(config);
    }
    let [scheduled] = fake::schedulers(envoy)[..] else {
        panic!("one clock")
    };
    assert!(scheduled.deleted);
}

#[test]
fn a_configuration_without_feeds_has_no_clock() {
    let config = load("{}");
    // SAFETY: destroyed once.
    unsafe { envoy_dynamic_module_on_http_filter_config_destroy(config) };
    assert_eq!(fake::schedulers(null_mut()), []);
}

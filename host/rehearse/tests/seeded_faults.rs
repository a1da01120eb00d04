//! Tests modules with known faults, written in WAT: each fault is reported with its request and callback.

use foreword_rehearse::{
    Fault, FaultKind, Limits, Module, ModuleError, Proxy, Request, Setup, StartError,
};
use std::time::Duration;

/// Low limits, so that a fault occurs soon.
const LIMITS: Limits = Limits {
    fuel: 3_000_000,
    deadline: Duration::from_secs(60),
    memory_bytes: 1 << 20,
};

/// A module with these functions, whose other callbacks do nothing.
fn module(functions: &str) -> Module {
    compiled(functions, LIMITS).unwrap()
}

fn compiled(functions: &str, limits: Limits) -> Result<Module, ModuleError> {
    let text = format!(
        r#"(module
            (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
            (import "env" "proxy_get_buffer_bytes"
                (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
            (import "env" "proxy_set_buffer_bytes"
                (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
            (import "env" "proxy_get_shared_data"
                (func $get_shared (param i32 i32 i32 i32 i32) (result i32)))
            (import "env" "proxy_set_shared_data"
                (func $set_shared (param i32 i32 i32 i32 i32) (result i32)))
            (import "env" "proxy_send_local_response"
                (func $respond (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (import "env" "proxy_http_call"
                (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))
            (import "env" "proxy_set_tick_period_milliseconds" (func $tick (param i32) (result i32)))
            (memory (export "memory") 1)
            (global $next (mut i32) (i32.const 32768))
            (data (i32.const 16) "it says why")
            (data (i32.const 64) "thread panicked at src/lib.rs:7:9:\nsecret text")
            (func (export "proxy_abi_version_0_2_1"))
            (func (export "proxy_on_memory_allocate") (param i32) (result i32)
                (global.get $next)
                (global.set $next (i32.add (global.get $next) (local.get 0))))
            {functions})"#
    );
    Module::compile(&wat::parse_str(&text).unwrap(), limits)
}

fn start(module: &Module) -> Result<Proxy<'_>, StartError> {
    Proxy::start(module, Setup::default())
}

fn request() -> Request {
    Request::post("/v1/chat/completions", b"{\"messages\":[]}".to_vec())
}

/// Returns the fault of the second of three requests; the first and the third have none.
fn second(functions: &str) -> Fault {
    let module = module(functions);
    let mut proxy = start(&module).unwrap();
    let faults: Vec<_> = (0..3)
        .map(|number| {
            let mut request = request();
            if number == 1 {
                request.body.push(b' ');
            }
            proxy.play(&request).unwrap().fault
        })
        .collect();
    let [None, Some(fault), None] = &faults[..] else {
        panic!("{faults:?}");
    };
    assert_eq!(proxy.finish().unwrap().restarts, 1);
    fault.clone()
}

/// Does `work` in the callback of a body that is one byte longer than usual; others continue.
fn on_long_body(work: &str) -> String {
    format!(
        r#"(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
            (if (i32.eq (local.get 1) (i32.const 16)) (then {work}))
            (i32.const 0))"#
    )
}

#[test]
fn a_trap_is_named_with_its_callback_and_its_place_in_the_source_without_what_it_quotes() {
    let panic = "(drop (call $log (i32.const 5) (i32.const 64) (i32.const 47))) unreachable";
    let fault = second(&on_long_body(panic));
    assert_eq!(fault.callback, "proxy_on_request_body");
    assert!(matches!(fault.kind, FaultKind::Trap(_)));
    let told = fault.to_string();
    assert!(
        told.contains("unreachable") && told.ends_with("panicked at src/lib.rs:7:9"),
        "{told}"
    );
    assert!(!told.contains("secret"));
}

#[test]
fn an_endless_loop_ends_with_its_instructions() {
    let fault = second(&on_long_body("(loop (br 0))"));
    assert_eq!(fault.kind, FaultKind::Fuel(LIMITS.fuel));
    assert_eq!(fault.callback, "proxy_on_request_body");
}

#[test]
fn a_loop_within_its_instructions_ends_at_the_deadline() {
    let limits = Limits {
        fuel: u64::MAX / 2,
        deadline: Duration::from_millis(1),
        ..LIMITS
    };
    let module = compiled(&on_long_body("(loop (br 0))"), limits).unwrap();
    let mut request = request();
    request.body.push(b' ');
    let fault = start(&module).unwrap().play(&request).unwrap().fault;
    assert_eq!(fault.unwrap().kind, FaultKind::Deadline(limits.deadline));
}

#[test]
fn a_memory_hog_is_told_what_it_wanted() {
    let hog = "(loop (br_if 0 (i32.ne (memory.grow (i32.const 4)) (i32.const -1))))";
    let fault = second(&on_long_body(hog));
    let FaultKind::Memory { wanted, limit } = fault.kind else {
        panic!("{fault}");
    };
    assert_eq!(limit, LIMITS.memory_bytes);
    assert!(wanted > limit && wanted <= limit + (4 << 16), "{wanted}");
}

#[test]
fn many_memories_are_bounded_together() {
    let memories = "(memory 4)".repeat(10);
    let module = compiled(&memories, LIMITS).unwrap();
    let Err(StartError::Fault(fault)) = start(&module) else {
        panic!("a module has more memory than it may");
    };
    let FaultKind::Memory { wanted, limit } = fault.kind else {
        panic!("{fault}");
    };
    assert_eq!(limit, LIMITS.memory_bytes);
    assert!(wanted > limit && wanted <= limit + (4 << 16), "{wanted}");
}

#[test]
fn who_hands_the_proxy_more_and_more_is_stopped() {
    let limits = Limits {
        fuel: 1_000_000_000,
        ..LIMITS
    };
    let hoard = "(loop (drop (call $set_buffer (i32.const 0) (i32.const 0x7fffffff) (i32.const 0)
        (i32.const 0) (i32.const 65536))) (br 0))";
    let module = compiled(&on_long_body(hoard), limits).unwrap();
    let mut request = request();
    request.body.push(b' ');
    let fault = start(&module)
        .unwrap()
        .play(&request)
        .unwrap()
        .fault
        .unwrap();
    assert_eq!(fault.kind, FaultKind::HandedOver);
}

#[test]
fn a_request_that_is_held_for_ever_is_a_fault() {
    let fault = second(&on_long_body("(return (i32.const 1))"));
    assert_eq!(fault.kind, FaultKind::Held);
}

#[test]
fn a_fault_in_a_tick_is_named_beside_the_requests() {
    let module = module(
        r#"(func (export "proxy_on_configure") (param i32 i32) (result i32)
            (drop (call $tick (i32.const 10))) (i32.const 1))
        (func (export "proxy_on_tick") (param i32) unreachable)"#,
    );
    let mut proxy = start(&module).unwrap();
    for _ in 0..3 {
        assert_eq!(proxy.play(&request()).unwrap().fault, None);
    }
    let callbacks: Vec<_> = proxy.faults().iter().map(|fault| fault.callback).collect();
    assert!(!callbacks.is_empty() && callbacks.iter().all(|name| *name == "proxy_on_tick"));
}

#[test]
fn a_refused_configuration_is_told_in_the_modules_words() {
    let module = module(
        r#"(func (export "proxy_on_configure") (param i32 i32) (result i32)
            (drop (call $log (i32.const 4) (i32.const 16) (i32.const 11))) (i32.const 0))"#,
    );
    let error = start(&module).err().unwrap();
    let said = vec!["it says why".to_owned()];
    assert_eq!(error, StartError::Refused { said });
    assert!(error.to_string().contains("it says why"));
}

#[test]
fn a_module_that_cannot_run_here_says_why() {
    let error = |text: &str| {
        let bytes = wat::parse_str(text).unwrap();
        let compiled = Module::compile(&bytes, LIMITS);
        compiled.err().unwrap().to_string()
    };
    assert!(error("(module)").contains("it says nothing"));
    let old = error(r#"(module (func (export "proxy_abi_version_0_1_0")))"#);
    assert!(old.contains("it says proxy_abi_version_0_1_0"), "{old}");
    let unknown = error(
        r#"(module (import "env" "proxy_unheard_of" (func)) (func (export "proxy_abi_version_0_2_1")))"#,
    );
    assert!(unknown.contains("proxy_unheard_of"), "{unknown}");
    let none = Module::compile(b"no module", LIMITS).err().unwrap();
    assert!(matches!(none, ModuleError::Wasm(_)));
    let module = module(r#"(func (export "proxy_on_tick") (result i32) (i32.const 0))"#);
    let error = start(&module).err().unwrap();
    assert!(error.to_string().contains("proxy_on_tick"), "{error}");
}

#[test]
fn memory_that_is_not_there_is_refused_and_nothing_happens() {
    // The status is returned as the first byte of the body.
    let module = module(&on_long_body(
        "(i32.store8 (i32.const 0) (call $set_shared (i32.const 0x7ffffff0) (i32.const 9)
            (i32.const 0) (i32.const 1) (i32.const 0)))
         (drop (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 1)))",
    ));
    let mut request = request();
    request.body.push(b' ');
    let outcome = start(&module).unwrap().play(&request).unwrap();
    assert_eq!(outcome.fault, None);
    assert_eq!(outcome.forwarded.unwrap().body, [6]);
}

#[test]
fn a_changed_body_goes_on_and_an_answer_of_the_modules_own_does_not() {
    let changing = on_long_body(
        "(drop (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 99) (i32.const 16) (i32.const 11)))",
    );
    let module = self::module(&changing);
    let mut request = request();
    request.body.push(b' ');
    let outcome = start(&module).unwrap().play(&request).unwrap();
    assert_eq!(outcome.forwarded.unwrap().body, b"it says why");
    assert_eq!((outcome.fault, outcome.local), (None, None));

    let answering = on_long_body(
        "(drop (call $respond (i32.const 429) (i32.const 0) (i32.const 0) (i32.const 16) (i32.const 11)
            (i32.const 0) (i32.const 0) (i32.const -1))) (return (i32.const 1))",
    );
    let module = self::module(&answering);
    let outcome = start(&module).unwrap().play(&request).unwrap();
    assert_eq!(outcome.forwarded, None);
    assert_eq!(outcome.local.as_ref().unwrap().status, 429);
    assert_eq!(outcome.response_header(":status"), Some(&b"429"[..]));
    assert_eq!(outcome.response_body, b"it says why");
}

#[test]
fn the_vms_of_a_proxy_share_data_and_take_turns() {
    // Writes to each body a count in shared data and a count in the VM's memory.
    let counting = r#"(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
        (i32.store (i32.const 200) (i32.const 0))
        (if (i32.eqz (call $get_shared (i32.const 16) (i32.const 2) (i32.const 208) (i32.const 212) (i32.const 216)))
            (then (i32.store (i32.const 200) (i32.load (i32.load (i32.const 208))))))
        (i32.store (i32.const 200) (i32.add (i32.load (i32.const 200)) (i32.const 1)))
        (drop (call $set_shared (i32.const 16) (i32.const 2) (i32.const 200) (i32.const 4) (i32.const 0)))
        (i32.store8 (i32.const 204) (i32.add (i32.load8_u (i32.const 204)) (i32.const 1)))
        (drop (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 99) (i32.const 200) (i32.const 5)))
        (i32.const 0))"#;
    let module = module(counting);
    let setup = Setup {
        workers: 3,
        ..Setup::default()
    };
    let mut proxy = Proxy::start(&module, setup).unwrap();
    let bodies: Vec<_> = (0..7)
        .map(|_| proxy.play(&request()).unwrap().forwarded.unwrap().body)
        .collect();
    // Shared data counts all requests, other data those of the VM.
    let expected: Vec<_> = (0..7_u8)
        .map(|at| vec![at + 1, 0, 0, 0, at / 3 + 1])
        .collect();
    assert_eq!(bodies, expected);
}

#[test]
fn a_body_in_pieces_is_seen_as_it_grows_while_it_is_held() {
    // Pauses at each piece except the last, and records how much it saw.
    let holding = r#"(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
        (i32.store8 (i32.add (i32.const 300) (global.get $seen)) (local.get 1))
        (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
        (if (i32.eqz (local.get 2)) (then (return (i32.const 1))))
        (drop (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 99) (i32.const 300) (global.get $seen)))
        (i32.const 0))
        (global $seen (mut i32) (i32.const 0))"#;
    let module = module(holding);
    let mut request = request();
    request.piece_bytes = Some(6);
    let outcome = start(&module).unwrap().play(&request).unwrap();
    assert_eq!(outcome.forwarded.unwrap().body, [6, 12, 15]);
}

#[test]
fn fuel_and_calls_are_the_same_in_every_run() {
    let module = module(&on_long_body("(drop (call $tick (i32.const 0)))"));
    let play = || {
        let mut proxy = start(&module).unwrap();
        let mut request = request();
        let short = proxy.play(&request).unwrap();
        request.body.push(b' ');
        let header = |name: &str, value: &str| (name.into(), value.into());
        request.headers = vec![header(":method", "POST"), header(":path", "/")];
        let long = proxy.play(&request).unwrap();
        assert!(long.fuel > short.fuel);
        assert_eq!((short.calls, long.calls), (0, 1));
        (short, long)
    };
    assert_eq!(play(), play());
}

//! `foreword compile-order`: what it writes, run. The component's core and the filter under wasmtime, in each of their worlds'
//! words; and, where they are installed, the component in the real routers.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use foreword_ordering::order_table::OrderTable;
use foreword_ordering::random::Random;
use foreword_ordering::{Config, rewrite_stateless};
use foreword_rehearse::{Limits, Module, Proxy, Request, Setup};
use foreword_simulation::workload::{Bursty, bursty};
use foreword_tests::artifacts::{host_binary, order_modules};
use foreword_tests::http::Client;
use foreword_tests::{Upstream, http, until};
use serde_json::{Value, json};
use wasmtime::{Engine, Instance, Memory, Store, TypedFunc};

/// A bursty trace as chat bodies of some 10 KB.
fn bodies(seed: u64, requests: usize) -> Vec<String> {
    let trace = bursty(seed, requests, Bursty::default());
    let body = |at: usize| {
        let documents = trace[at].documents.iter().map(|found| {
            let text = format!("What is told of {}. ", found.label).repeat(100);
            format!(r#"<document id=\"{}\">{text}</document>\n"#, found.label)
        });
        let documents: String = documents.collect();
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{documents}Question {at}?"}}]}}"#
        )
    };
    (0..trace.len()).map(body).collect()
}

/// The component and the filter, with an order that was learned from a log; and their table.
struct Compiled {
    folder: tempfile::TempDir,
    table: Vec<u8>,
}

static COMPILED: LazyLock<Compiled> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.jsonl");
    std::fs::write(&log, bodies(1, 400).join("\n")).unwrap();
    for (module, name) in order_modules()
        .unwrap()
        .iter()
        .zip(["component.wasm", "filter.wasm"])
    {
        let output = Command::new(host_binary("dev").unwrap())
            .args(["compile-order", "--json", "--module"])
            .arg(module)
            .arg("--output")
            .arg(folder.path().join(name))
            .arg(&log)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            figures["check"]["over_foresight"].as_f64() > Some(0.75),
            "{figures}"
        );
    }
    let bytes = std::fs::read(folder.path().join("filter.wasm")).unwrap();
    let at = bytes.windows(8).rposition(|bytes| bytes == b"FWORDER1");
    Compiled {
        table: bytes[at.expect("a table")..].to_vec(),
        folder,
    }
});

impl Compiled {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns what a body must become; `None`: it stays.
    fn expected(&self, body: &[u8]) -> Option<Vec<u8>> {
        let mut table = OrderTable::read(&self.table).unwrap();
        let rewrite = rewrite_stateless(&Config::default(), &mut table, body);
        rewrite.ok().and_then(|rewrite| rewrite.body)
    }
}

/// Bodies of another trace, and some that are to pass.
fn requests() -> Vec<Vec<u8>> {
    let mut bodies = bodies(2, 40);
    bodies.extend(["{}", "", "{\"messages\":[", "\u{0}"].map(str::to_owned));
    bodies.into_iter().map(String::into_bytes).collect()
}

#[test]
fn the_filter_makes_of_bodies_what_the_core_does_within_a_plugins_means() {
    // Google's limit for a plugin.
    const MEMORY_BYTES: u64 = 16 << 20;
    let module = Module::read(&COMPILED.path("filter.wasm"), Limits::default()).unwrap();
    let mut proxy = Proxy::start(&module, Setup::default()).unwrap();
    let mut fuel = Vec::new();
    let mut changed = 0;
    for body in requests() {
        let expected = COMPILED.expected(&body);
        changed += usize::from(expected.is_some());
        let outcome = proxy
            .play(&Request::post("/v1/chat/completions", body.clone()))
            .unwrap();
        assert!(outcome.fault.is_none(), "{:?}", outcome.fault);
        let forwarded = outcome.forwarded.unwrap();
        assert!(forwarded.body == expected.unwrap_or(body));
        let length = forwarded
            .headers
            .iter()
            .find(|(name, _)| *name == b"content-length");
        assert!(length.is_none() || forwarded.body.is_empty());
        fuel.push(outcome.fuel);
    }
    assert!(changed > 30, "{changed}");
    fuel.sort_unstable();
    let totals = proxy.finish().unwrap();
    println!(
        "{} instructions, {} bytes",
        fuel[fuel.len() / 2],
        totals.memory_peak_bytes
    );
    assert!(
        totals.memory_peak_bytes < MEMORY_BYTES,
        "{}",
        totals.memory_peak_bytes
    );
}

/// The core module that a component begins with.
fn core(component: &[u8]) -> &[u8] {
    assert_eq!(component[..9], *b"\0asm\x0d\0\x01\0\x01");
    let (mut size, mut at, mut bits) = (0_usize, 9, 0);
    loop {
        size |= usize::from(component[at] & 0x7f) << bits;
        bits += 7;
        at += 1;
        if component[at - 1] < 0x80 {
            return &component[at..at + size];
        }
    }
}

/// A fresh instance of the component's core, as a router makes one for each call.
struct Fresh {
    store: Store<()>,
    instance: Instance,
    memory: Memory,
}

impl Fresh {
    fn of(engine: &Engine, module: &wasmtime::Module) -> Self {
        let mut store = Store::new(engine, ());
        // Nothing is imported.
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        Self {
            store,
            instance,
            memory,
        }
    }

    /// Writes a list of bytes for the guest, and returns its address and length.
    fn list(&mut self, bytes: &[u8]) -> (u32, u32) {
        let realloc: TypedFunc<(u32, u32, u32, u32), u32> = self
            .instance
            .get_typed_func(&mut self.store, "cabi_realloc")
            .unwrap();
        let length = u32::try_from(bytes.len()).unwrap();
        let at = realloc.call(&mut self.store, (0, 0, 1, length)).unwrap();
        self.memory
            .write(&mut self.store, at as usize, bytes)
            .unwrap();
        (at, length)
    }

    fn words<const N: usize>(&self, at: u32) -> [u32; N] {
        let mut bytes = vec![0; 4 * N];
        self.memory
            .read(&self.store, at as usize, &mut bytes)
            .unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap());
        std::array::from_fn(word)
    }

    /// Returns the body that an action puts in the place of the one that came, where its option begins at that word.
    fn replaced(&self, action: u32, option: usize) -> Option<Vec<u8>> {
        let words: [u32; 11] = self.words(action);
        let is_modify = words[0] & 0xff == 2;
        assert!(is_modify || words[0] & 0xff == 0);
        // No header is touched, no status set.
        assert!(words[1..option].iter().all(|word| *word == 0));
        if !is_modify {
            return None;
        }
        assert_eq!(words[option] & 0xff, 1);
        let mut body = vec![0; words[option + 2] as usize];
        self.memory
            .read(&self.store, words[option + 1] as usize, &mut body)
            .unwrap();
        Some(body)
    }
}

type Flat = (u32, u32, u32, u32, u32, u32, u32, u32, u32, u32, u32, u32);

#[test]
fn the_components_core_makes_of_bodies_what_the_core_does_in_both_routers_worlds() {
    let engine = Engine::default();
    let component = std::fs::read(COMPILED.path("component.wasm")).unwrap();
    let module = wasmtime::Module::new(&engine, core(&component)).unwrap();
    for body in requests() {
        let expected = COMPILED.expected(&body);
        let mut fresh = Fresh::of(&engine, &module);
        let (method, path, empty) = (
            fresh.list(b"POST"),
            fresh.list(b"/v1/chat/completions"),
            fresh.list(b""),
        );
        let (body, id) = (fresh.list(&body), fresh.list(b"1"));
        let flat: Flat = (
            method.0, method.1, path.0, path.1, empty.0, empty.1, empty.0, 0, body.0, body.1, id.0,
            id.1,
        );
        let handle: TypedFunc<Flat, u32> = fresh
            .instance
            .get_typed_func(&mut fresh.store, "vllm-handle")
            .unwrap();
        let action = handle.call(&mut fresh.store, flat).unwrap();
        assert!(fresh.replaced(action, 7) == expected);
        let (a, b, c, d, e, f, g, h, i, j, k, l) = flat;
        let on_request = fresh
            .instance
            .get_func(&mut fresh.store, "smg-on-request")
            .unwrap();
        let mut arguments: Vec<wasmtime::Val> = [a, b, c, d, e, f, g, h, i, j, k, l]
            .map(|word| wasmtime::Val::I32(word.cast_signed()))
            .into();
        arguments.push(wasmtime::Val::I64(0));
        let mut results = [wasmtime::Val::I32(0)];
        on_request
            .call(&mut fresh.store, &arguments, &mut results)
            .unwrap();
        let action = results[0].unwrap_i32().cast_unsigned();
        assert!(fresh.replaced(action, 8) == expected);
        let on_response: TypedFunc<(u32, u32, u32, u32, u32), u32> = fresh
            .instance
            .get_typed_func(&mut fresh.store, "smg-on-response")
            .unwrap();
        let action = on_response
            .call(&mut fresh.store, (200, empty.0, 0, body.0, body.1))
            .unwrap();
        assert_eq!(fresh.replaced(action, 8), None);
    }
}

/// Damaged bodies trap in no case: the host would go on, but say so in its log for each request.
#[test]
fn no_body_makes_the_components_core_trap() {
    let engine = Engine::default();
    let component = std::fs::read(COMPILED.path("component.wasm")).unwrap();
    let module = wasmtime::Module::new(&engine, core(&component)).unwrap();
    let seeds = requests();
    let mut random = Random::new(3);
    for _ in 0..300 {
        let mut any = || &seeds[random.below(seeds.len() as u64) as usize];
        let (one, other) = (any(), any());
        let body = foreword_fuzz::mutated(one, other, &mut random);
        let mut fresh = Fresh::of(&engine, &module);
        let body = fresh.list(&body);
        let handle: TypedFunc<Flat, u32> = fresh
            .instance
            .get_typed_func(&mut fresh.store, "vllm-handle")
            .unwrap();
        let flat = (1, 0, 1, 0, 1, 0, 4, 0, body.0, body.1, 1, 0);
        handle.call(&mut fresh.store, flat).unwrap();
    }
}

/// A router that is ended with the test.
struct Router(Child);

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The environment that names a folder with the routers' programs, as `pip install smg==1.13.0 vllm-router==0.1.17` in a
/// virtual environment leaves them in its `bin`.
const ROUTERS: &str = "FOREWORD_ROUTERS";

/// Answers as an engine does.
fn engine() -> Upstream {
    Upstream::scripted(|request, reply| match request.line.split(' ').nth(1) {
        Some("/v1/models") => reply.json(200, r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#),
        Some("/v1/chat/completions") => reply.json(200, r#"{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#),
        _ => reply.json(200, r#"{"model_path":"m","model_id":"m","status":"ok"}"#),
    })
    .unwrap()
}

/// Starts a router on a port that was free, and waits until it answers.
fn started(
    program: &Path,
    engine: &Upstream,
    first: &[&str],
    more: &[&str],
) -> (Router, std::net::SocketAddr) {
    // Neither of them says which port the system chose.
    let free = || {
        std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    };
    let (address, metrics) = (free(), free());
    let child = Command::new(program)
        .args(first)
        .args(["--host", "127.0.0.1", "--port", &address.port().to_string()])
        .args([
            "--prometheus-port",
            &metrics.port().to_string(),
            "--policy",
            "round_robin",
        ])
        .args(["--worker-urls", &format!("http://{}", engine.address())])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let router = Router(child.unwrap_or_else(|error| panic!("{}: {error}", program.display())));
    until("the router answers", || {
        let answer = Client::connect(address).and_then(|mut client| {
            client.send(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
            client.response()
        });
        answer.is_ok_and(|answer| answer.status == 200)
    });
    (router, address)
}

/// The documents' message in a body, as its text.
fn content(body: &[u8]) -> Value {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["messages"].clone()
}

#[test]
fn the_real_routers_send_engines_the_learned_order() {
    let Some(folder) = std::env::var_os(ROUTERS).map(PathBuf::from) else {
        eprintln!(
            "SKIPPED: {ROUTERS} names no folder with smg 1.13.0 and vllm-router 0.1.17 (PyPI)"
        );
        return;
    };
    let component = COMPILED.path("component.wasm");
    let component = component.to_str().unwrap();
    for name in ["smg", "vllm-router"] {
        let engine = engine();
        let program = folder.join(name);
        let (_router, address) = match name {
            "smg" => {
                let (router, address) = started(&program, &engine, &["launch"], &["--enable-wasm"]);
                let module = json!({"modules": [{
                    "name": "foreword-order", "file_path": component, "module_type": "Middleware",
                    "attach_points": [{"Middleware": "OnRequest"}],
                }]});
                let body = module.to_string();
                let request = format!(
                    "POST /wasm HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let told = http::exchange(address, request.as_bytes()).unwrap();
                assert!(
                    told.status == 200
                        && told.json().unwrap()["modules"][0]["add_result"]["Success"].is_string()
                );
                (router, address)
            }
            _ => started(&program, &engine, &[], &["--wasm-middleware", component]),
        };
        let mut changed = 0;
        for body in bodies(2, 20) {
            let answer = http::exchange(address, &http::post(body.as_bytes())).unwrap();
            assert_eq!(answer.status, 200, "{name}");
            let expected = COMPILED.expected(body.as_bytes());
            changed += usize::from(expected.is_some());
            let expected = expected.unwrap_or_else(|| body.into_bytes());
            assert!(
                content(&engine.last().unwrap().body) == content(&expected),
                "{name}"
            );
        }
        assert!(changed > 10, "{name}: {changed}");
    }
}

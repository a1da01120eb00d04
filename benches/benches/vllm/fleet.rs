//! A fleet as `gateway-config/vllm` describes it: three vLLMs with a bridge each, behind two gateways, while an engine and
//! a gateway are killed and come back.
//!
//! | requests | what happens meanwhile |
//! | --- | --- |
//! | first third | |
//! | second third | one engine is killed when a quarter of them are answered, and is revived when half are |
//! | last third | one gateway is killed when a quarter of them are answered, and another one comes when half are |
//!
//! Four clients send one request after another, each to the next gateway, as behind a balancer: to the other gateway where
//! a connection is refused or closed without an answer, and once more where the answer says that the engine is gone.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread;

use anyhow::{Context, Result, ensure};
use foreword_tests::http::{exchange, post};
use foreword_tests::{Bridge, Gateway};

use super::engine::{MODEL, Vllm};
use super::{Usage, wait};

const ENGINES: usize = 3;
const CLIENTS: usize = 4;
/// Most attempts at one request.
const ATTEMPTS: usize = 6;

/// What the clients saw of some requests.
#[derive(Default)]
struct Seen {
    answered: AtomicU64,
    /// Attempts that a client had to repeat.
    repeated: AtomicU64,
    prompt: AtomicU64,
    cached: AtomicU64,
    lost: Mutex<Vec<String>>,
}

/// Prints the tables. Returns whether every request was answered, and the fleet reuses more than engines in turn in the
/// client's order.
pub(crate) fn fleet(
    python: &Path,
    xquad: &Path,
    pages: Option<u32>,
    bodies: &[String],
) -> Result<bool> {
    let mut engines = thread::scope(|scope| {
        let starting: Vec<_> = (0..ENGINES)
            .map(|_| scope.spawn(|| Vllm::start(python, xquad, pages)))
            .collect();
        let started = starting.into_iter();
        started
            .map(|engine| engine.join().ok().context("a start panicked")?)
            .collect::<Result<Vec<_>>>()
    })?;
    println!(
        "\n{ENGINES} vLLMs, 2 gateways, {} requests, {CLIENTS} clients\n\n| | answered | repeated by the client | cached | share |\n| --- | ---: | ---: | ---: | ---: |",
        bodies.len()
    );
    let addresses: Vec<SocketAddr> = engines.iter().map(|engine| engine.address).collect();
    let in_turn = Seen::default();
    send(&in_turn, bodies, |at| addresses[at % ENGINES], || ());
    in_turn.print("client's order, engines in turn, nothing fails");
    let mut is_good = in_turn.is_whole(bodies.len());
    for engine in &engines {
        engine.reset()?;
    }

    let bridges = engines
        .iter()
        .map(|vllm| Bridge::start(&vllm.model(), MODEL, vllm.events, vllm.replay, &[]))
        .collect::<Result<Vec<_>>>()?;
    for bridge in &bridges {
        wait("a bridge follows its engine", || {
            Ok(bridge.get("/readyz")?.status == 200)
        })?;
    }
    let start = || {
        Gateway::recipe(
            "gateway-config/vllm/envoy.yaml",
            &third(&engines, &bridges)?,
        )
    };
    let gateways = [start()?, start()?];
    let replacement = start()?;
    let places = RwLock::new(gateways.each_ref().map(Gateway::address));
    let place = |at: usize| places.read().unwrap_or_else(PoisonError::into_inner)[at % 2];
    let (mut prompt, mut cached) = (0, 0);
    let third_of = bodies.len().div_ceil(3);
    let [whole, without_engine, without_gateway] = [0, 1, 2].map(|part| {
        let end = bodies.len().min((part + 1) * third_of);
        &bodies[(part * third_of).min(end)..end]
    });
    let mut done = |name: &str, seen: &Seen, requests: usize| {
        seen.print(name);
        prompt += seen.prompt.load(Ordering::Relaxed);
        cached += seen.cached.load(Ordering::Relaxed);
        is_good &= seen.is_whole(requests);
    };

    let seen = Seen::default();
    send(&seen, whole, place, || ());
    done("everything is there", &seen, whole.len());

    let seen = Seen::default();
    let last = engines.last_mut().context("engines")?;
    let (first, second) = without_engine.split_at(without_engine.len() / 2);
    send(&seen, first, place, || last.kill());
    last.revive()?;
    send(&seen, second, place, || ());
    done(
        "an engine is killed, and comes back",
        &seen,
        without_engine.len(),
    );

    let seen = Seen::default();
    let (first, second) = without_gateway.split_at(without_gateway.len() / 2);
    let [stays, goes] = gateways;
    send(&seen, first, place, || drop(goes));
    // It comes back as a pod does: with the same configuration, knowing nothing, at another address.
    places.write().unwrap_or_else(PoisonError::into_inner)[1] = replacement.address();
    send(&seen, second, place, || ());
    done(
        "a gateway is killed, and another one comes",
        &seen,
        without_gateway.len(),
    );

    let share = 100.0 * cached as f64 / prompt.max(1) as f64;
    let count = |gateway: &Gateway, name: &str| -> Result<u64> {
        Ok(gateway.metric(name)?.unwrap_or_default())
    };
    for (name, gateway) in [
        ("first gateway", &stays),
        ("gateway that came", &replacement),
    ] {
        println!(
            "{name}: corrections {}, updates received of the other {}, feed events {}",
            count(gateway, "foreword_corrections_total")?,
            count(gateway, "foreword_received_updates_total")?,
            count(gateway, "foreword_feed_events_total")?,
        );
    }
    println!(
        "\nfleet: {share:.1} % of all prompt tokens cached, in turn {:.1} %",
        in_turn.share()
    );
    Ok(is_good && share > in_turn.share())
}

/// Sends the requests with [`CLIENTS`] clients; `place` is where the n-th attempt goes. Calls `midway` when half of the
/// requests have been taken.
fn send(
    seen: &Seen,
    bodies: &[String],
    place: impl Fn(usize) -> SocketAddr + Sync,
    midway: impl FnOnce() + Send,
) {
    let next = AtomicUsize::new(0);
    let (half, is_half) = sync_channel(1);
    let client = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(body) = bodies.get(at) else { break };
            if at == bodies.len() / 2 {
                let _ = half.send(());
            }
            let mut problem = String::new();
            let answered = (at..at + ATTEMPTS).any(|at| match ask(place(at), body) {
                Ok(usage) => {
                    seen.prompt.fetch_add(usage.prompt, Ordering::Relaxed);
                    seen.cached.fetch_add(usage.cached, Ordering::Relaxed);
                    seen.answered.fetch_add(1, Ordering::Relaxed);
                    true
                }
                Err(error) => {
                    seen.repeated.fetch_add(1, Ordering::Relaxed);
                    problem = format!("{error:#}");
                    false
                }
            });
            if !answered {
                let mut lost = seen.lost.lock().unwrap_or_else(PoisonError::into_inner);
                lost.push(problem);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(client);
        }
        if !bodies.is_empty() && is_half.recv().is_ok() {
            midway();
        }
    });
}

fn ask(address: SocketAddr, body: &str) -> Result<Usage> {
    let response = exchange(address, &post(body.as_bytes()))?;
    ensure!(response.status == 200, "answered {}", response.status);
    Usage::of(&response.json()?)
}

impl Seen {
    fn share(&self) -> f64 {
        let prompt = self.prompt.load(Ordering::Relaxed).max(1);
        100.0 * self.cached.load(Ordering::Relaxed) as f64 / prompt as f64
    }

    fn is_whole(&self, requests: usize) -> bool {
        self.answered.load(Ordering::Relaxed) == requests as u64
    }

    fn print(&self, name: &str) {
        println!(
            "| {name} | {} | {} | {} | {:.1} % |",
            self.answered.load(Ordering::Relaxed),
            self.repeated.load(Ordering::Relaxed),
            self.cached.load(Ordering::Relaxed),
            self.share()
        );
        for problem in self
            .lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            println!("lost: {problem}");
        }
    }
}

/// Returns what makes of the recipe's two engines these three.
fn third(engines: &[Vllm], bridges: &[Bridge]) -> Result<Vec<(&'static str, String)>> {
    let [one, two, three] = engines else {
        anyhow::bail!("there are {} engines", engines.len());
    };
    let [bridge_one, bridge_two, bridge_three] = bridges else {
        anyhow::bail!("there are {} bridges", bridges.len());
    };
    let port = |address: SocketAddr| format!("port_value: {} ", address.port());
    let cluster = |name: &str, address: SocketAddr| {
        format!(
            "  - name: {name}\n    type: STATIC\n    connect_timeout: 1s\n    load_assignment:\n      cluster_name: {name}\n      endpoints:\n      - lb_endpoints:\n        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}\n",
            address.port()
        )
    };
    let second = "{\"name\": \"vllm-1\", \"address\": \"127.0.0.1:8001\", \"feed\": {\"cluster\": \"feed-1\"}}";
    let tells = "  # What the bridges tell: their internal listeners, which no route leads to.\n";
    let endpoint = "        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8001 } } }\n";
    let added = format!(
        "{}        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}\n",
        endpoint.replace("8001", &two.address.port().to_string()),
        three.address.port()
    );
    Ok(vec![
        ("\"127.0.0.1:8000\"", format!("\"{}\"", one.address)),
        (
            second,
            format!(
                "{}, {{\"name\": \"vllm-2\", \"address\": \"{}\", \"feed\": {{\"cluster\": \"feed-2\"}}}}",
                second.replace("127.0.0.1:8001", &two.address.to_string()),
                three.address
            ),
        ),
        (
            "                  - { cluster: bridge-1 }\n",
            "                  - { cluster: bridge-1 }\n                  - { cluster: bridge-2 }\n".to_owned(),
        ),
        ("port_value: 8000 ", port(one.address)),
        (endpoint, added),
        ("port_value: 8100 ", port(bridge_one.address())),
        ("port_value: 8101 ", port(bridge_two.address())),
        ("port_value: 9100 ", port(bridge_one.internal())),
        ("port_value: 9101 ", port(bridge_two.internal())),
        (
            tells,
            format!(
                "{}{}{tells}",
                cluster("bridge-2", bridge_three.address()),
                cluster("feed-2", bridge_three.internal())
            ),
        ),
    ])
}

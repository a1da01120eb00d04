//! The filter's cost in real Envoy: requests per second without it, with it as a Wasm module, and with it as a dynamic
//! module, side by side in one run. Also measured are the costs of workers sharing what they did, and of access log
//! fields.
//!
//! `cargo bench -p foreword-benches -- gateway`; with `FOREWORD_AGAINST=MODULE.wasm`, another Wasm module is one more
//! variant.
//!
//! Four keep-alive clients send chat requests of about 16 KB with 15 tagged documents, Zipf-distributed, alternately to
//! several Envoys: most have one worker, and two have four. All forward to the same scripted upstream. Clients,
//! upstream and Envoy share the machine, so the ratio counts, and Envoy's own processor time per request.

use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use foreword_benches::{Arguments, chats};
use foreword_tests::artifacts::dynamic_module;
use foreword_tests::http::{Client, post};
use foreword_tests::{Gateway, GatewayOptions, Shell, Upstream};
use serde_json::json;

const CLIENTS: usize = 4;
const ROUNDS: usize = 9;
const REQUESTS_PER_ROUND: usize = 4_000;
/// Least share of the requests per second that the filter must leave.
const MUST_HOLD: f64 = 0.5;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let (rounds, requests) = if arguments.benching {
        (ROUNDS, REQUESTS_PER_ROUND)
    } else {
        (1, 40)
    };

    let bodies: Vec<Vec<u8>> = chats().iter().map(|chat| post(chat.as_bytes())).collect();
    let upstream = Upstream::forgetful()?;
    let without = GatewayOptions {
        plugin: None,
        ..GatewayOptions::new(upstream.address())
    };
    let wasm = GatewayOptions {
        shell: Shell::Wasm,
        ..GatewayOptions::new(upstream.address())
    };
    let dynamic = GatewayOptions {
        shell: Shell::Dynamic,
        module: Some(dynamic_module("release")?),
        ..GatewayOptions::new(upstream.address())
    };
    let alone = GatewayOptions {
        plugin: Some(json!({"agreement": {"entries": 0}})),
        ..wasm.clone()
    };
    let unlogged = GatewayOptions {
        plugin: Some(json!({"log_fields": false})),
        ..wasm.clone()
    };
    let four = |options: &GatewayOptions| GatewayOptions {
        concurrency: 4,
        ..options.clone()
    };
    let mut variants = vec![
        Variant::new("no filter", Gateway::start(&without)?, ""),
        Variant::new("foreword, Wasm", Gateway::start(&wasm)?, "documents=15"),
        Variant::new(
            "foreword, dynamic",
            Gateway::start(&dynamic)?,
            "documents=15",
        ),
        Variant::new(
            "Wasm, tells nothing",
            Gateway::start(&alone)?,
            "documents=15",
        ),
        Variant::new("Wasm, no log", Gateway::start(&unlogged)?, "documents=15"),
        Variant::new(
            "Wasm, four workers",
            Gateway::start(&four(&wasm))?,
            "documents=15",
        ),
        Variant::new(
            "four, tell nothing",
            Gateway::start(&four(&alone))?,
            "documents=15",
        ),
    ];
    if let Some(module) = std::env::var_os("FOREWORD_AGAINST") {
        let other = GatewayOptions {
            module: Some(module.into()),
            ..wasm.clone()
        };
        variants.push(Variant::new(
            "the other module",
            Gateway::start(&other)?,
            "documents=15",
        ));
    }
    for variant in &mut variants {
        variant.round(&bodies, requests)?;
        variant.rounds.clear();
    }
    for round in 0..rounds {
        // The order rotates, so that no variant always meets the warmer machine.
        for turn in 0..variants.len() {
            let index = (round + turn) % variants.len();
            variants[index].round(&bodies, requests)?;
        }
    }

    let bytes = bodies.iter().map(Vec::len).sum::<usize>() / bodies.len();
    println!("{bytes} bytes a request, {CLIENTS} clients, {rounds} rounds of {requests} requests");
    for variant in &variants {
        println!("{}", variant.line());
    }
    let (without, wasm, dynamic) = (&variants[0], &variants[1], &variants[2]);
    let ratio = wasm.median_rate() / without.median_rate();
    println!("ratio, Wasm {ratio:.2} (must hold: at least {MUST_HOLD})");
    println!(
        "ratio, dynamic {:.2}",
        dynamic.median_rate() / without.median_rate()
    );
    let holds = ratio >= MUST_HOLD;
    arguments.require(holds)
}

struct Variant {
    name: &'static str,
    gateway: Gateway,
    /// Text that each report must contain, because a filter that does nothing would be fast.
    report: &'static str,
    rounds: Vec<Round>,
}

struct Round {
    /// Requests per second.
    rate: f64,
    /// Envoy's processor time per request.
    cpu: Duration,
}

impl Variant {
    fn new(name: &'static str, gateway: Gateway, report: &'static str) -> Self {
        Self {
            name,
            gateway,
            report,
            rounds: Vec::new(),
        }
    }

    fn round(&mut self, bodies: &[Vec<u8>], requests: usize) -> Result<()> {
        let (address, report) = (self.gateway.address(), self.report);
        let cpu = self.gateway.cpu_time()?;
        let start = Instant::now();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    scope.spawn(move || -> Result<()> {
                        let mut connection = Client::connect(address)?;
                        for number in (client..requests).step_by(CLIENTS) {
                            connection.send(&bodies[number % bodies.len()])?;
                            let response = connection.response()?;
                            ensure!(response.status == 200, "status {}", response.status);
                            ensure!(
                                response.report().contains(report),
                                "report {:?}",
                                response.report()
                            );
                        }
                        Ok(())
                    })
                })
                .collect();
            clients.into_iter().try_for_each(|client| {
                client
                    .join()
                    .map_err(|_| anyhow::anyhow!("a client panicked"))?
            })
        })
        .with_context(|| self.name)?;
        let elapsed = start.elapsed();
        let count = u32::try_from(requests)?;
        self.rounds.push(Round {
            rate: f64::from(count) / elapsed.as_secs_f64(),
            cpu: (self.gateway.cpu_time()? - cpu) / count,
        });
        Ok(())
    }

    fn median_rate(&self) -> f64 {
        let mut rates: Vec<_> = self.rounds.iter().map(|round| round.rate).collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    fn line(&self) -> String {
        let cpu: Duration = self.rounds.iter().map(|round| round.cpu).sum();
        let cpu = cpu / u32::try_from(self.rounds.len()).unwrap_or(1);
        let mut line = format!(
            "{:<19} {:>7.0} requests/s (median), {:>4} µs of Envoy's CPU a request; rounds:",
            self.name,
            self.median_rate(),
            cpu.as_micros()
        );
        for round in &self.rounds {
            let _ = write!(line, " {:.0}", round.rate);
        }
        line
    }
}

//! What each shell adds to a request, in time and in processor time: the Wasm module, the dynamic module, and the external
//! processor with both modes of bodies, with and without watching answers. One interleaved run.
//!
//! `cargo bench -p foreword-benches -- shells`
//!
//! One client has one connection to each Envoy and sends one request at a time, in an order that is drawn anew in each
//! round. Requests have 16 KB and 15 documents; the upstream answers at once with a stream of events, so an external
//! processor that watches answers is asked for each piece. The processor time is Envoy's and the external processor's.

use std::time::Duration;

use anyhow::Result;
use foreword_benches::variant::Variant;
use foreword_benches::{Arguments, chats};
use foreword_ordering::random::Random;
use foreword_tests::artifacts::{dynamic_module, ext_proc_binary};
use foreword_tests::http::post;
use foreword_tests::{GatewayOptions, Shell, Upstream};

const REQUESTS: usize = 3_000;
/// Most time that the external processor may add, from median to median, with buffered bodies and answers watched.
const EXT_PROC_ADDS: Duration = Duration::from_micros(800);

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let requests = if arguments.benching {
        arguments.number("requests").unwrap_or(REQUESTS)
    } else {
        20
    };
    let bodies: Vec<Vec<u8>> = chats().iter().map(|chat| post(chat.as_bytes())).collect();
    let upstream = Upstream::scripted_forgetful(|_, reply| {
        reply.begin_events()?;
        reply.event(r#"{"choices": []}"#)?;
        reply.event("[DONE]")?;
        reply.end_events()
    })?;
    let of = |shell| GatewayOptions {
        shell,
        ..GatewayOptions::new(upstream.address())
    };
    let without = GatewayOptions {
        plugin: None,
        ..of(Shell::Wasm)
    };
    let dynamic = GatewayOptions {
        module: Some(dynamic_module("release")?),
        ..of(Shell::Dynamic)
    };
    let processor = |shell| -> Result<GatewayOptions> {
        Ok(GatewayOptions {
            module: Some(ext_proc_binary("release")?),
            ..of(shell)
        })
    };
    let unwatched = |shell, mode: &'static str| -> Result<GatewayOptions> {
        Ok(GatewayOptions {
            edits: vec![(mode, "response_body_mode: NONE\n".to_owned())],
            ..processor(shell)?
        })
    };
    let documents = "documents=15";
    let mut variants = [
        Variant::start("no filter", &without, "")?,
        Variant::start("Wasm", &of(Shell::Wasm), documents)?,
        Variant::start("dynamic module", &dynamic, documents)?,
        Variant::start(
            "external, BUFFERED, answers watched",
            &processor(Shell::ExtProc)?,
            documents,
        )?,
        Variant::start(
            "external, BUFFERED, their headers alone",
            &unwatched(Shell::ExtProc, "response_body_mode: STREAMED\n")?,
            documents,
        )?,
        Variant::start(
            "external, FULL_DUPLEX_STREAMED, answers watched",
            &processor(Shell::ExtProcDuplex)?,
            documents,
        )?,
        Variant::start(
            "external, FULL_DUPLEX_STREAMED, their headers alone",
            &unwatched(
                Shell::ExtProcDuplex,
                "response_body_mode: FULL_DUPLEX_STREAMED\n",
            )?,
            documents,
        )?,
    ];
    let warm_up = requests / 10;
    let mut random = Random::new(1);
    let mut order: Vec<usize> = (0..variants.len()).collect();
    // Processor time up to the first request that counts.
    let mut cpu_before = Vec::new();
    for round in 0..requests + warm_up {
        if round == warm_up {
            let times = variants.iter().map(|variant| variant.gateway.cpu_time());
            cpu_before = times.collect::<Result<Vec<_>>>()?;
        }
        random.shuffle(&mut order);
        for &index in &order {
            variants[index].ask(&bodies[round % bodies.len()], round >= warm_up)?;
        }
    }

    println!("first event of an answer, {requests} requests of 16 KB to each, one at a time");
    println!("| | median | p99 | median added | p99 added | CPU a request | CPU added |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let base = [0.5, 0.99].map(|share| variants[0].quantile(share));
    let counted = u32::try_from(requests.max(1))?;
    let mut cpu_times = Vec::new();
    for (variant, before) in variants.iter().zip(&cpu_before) {
        cpu_times.push((variant.gateway.cpu_time()? - *before) / counted);
    }
    let base_cpu = cpu_times[0];
    for (variant, cpu) in variants.iter_mut().zip(cpu_times) {
        let [median, slow] = [0.5, 0.99].map(|share| variant.quantile(share));
        println!(
            "| {} | {} µs | {} µs | {} µs | {} µs | {} µs | {} µs |",
            variant.name,
            median.as_micros(),
            slow.as_micros(),
            median.saturating_sub(base[0]).as_micros(),
            slow.saturating_sub(base[1]).as_micros(),
            cpu.as_micros(),
            cpu.saturating_sub(base_cpu).as_micros(),
        );
    }
    let added = variants[3].quantile(0.5).saturating_sub(base[0]);
    println!("must hold: BUFFERED with answers watched adds less than {EXT_PROC_ADDS:?}");
    let holds = added < EXT_PROC_ADDS;
    arguments.require(holds)
}

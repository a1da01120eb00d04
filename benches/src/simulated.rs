//! A simulated device whose steps take as long as a formula says, on a clock of its own: scheduling at any scale, the
//! same on every machine. Everything except the arithmetic is the real engine's.

use foreword_engine::backend::{Backend, BackendError, BackendShape, Output, PageId, Step, Store};
use foreword_engine::engine::{
    EngineConfig, Event, Generation, Request, Stats, Stepper, SubmitError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seconds that a step takes: `step + loads · load + new · token + new · (cached + new / 2) · pair`, where the last two
/// terms are summed over segments.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Seconds to read the weights once.
    pub step: f64,
    /// Seconds to compute a token.
    pub token: f64,
    /// Seconds for a token's attention to one other token.
    pub pair: f64,
    /// Seconds to copy a page from host memory.
    pub load: f64,
}

impl Costs {
    /// A 7B model with grouped queries on an A10G (RAGCache's test bed): 14 GiB of weights at 600 GB/s; 14 GFLOP a
    /// token and 0.5 MFLOP a pair at 70 TFLOP/s; pages of 2 MiB at 20 GB/s.
    pub const MISTRAL_7B_A10G: Self = Self {
        step: 0.024,
        token: 0.000_2,
        pair: 0.000_000_007,
        load: 0.000_105,
    };

    /// Returns the seconds to compute `new` tokens behind `cached` ones, without the fixed cost of a step.
    #[must_use]
    pub fn prefill(&self, cached: u32, new: u32) -> f64 {
        let new = f64::from(new);
        new * self.token + new * (f64::from(cached) + new / 2.0) * self.pair
    }

    fn seconds(&self, step: &Step) -> f64 {
        let segments = step.segments.iter();
        let segments =
            segments.map(|segment| self.prefill(segment.start, segment.tokens.len() as u32));
        self.step + step.loads.len() as f64 * self.load + segments.sum::<f64>()
    }
}

/// The simulated device. Every logit is 0, so a greedy answer is all zeros.
pub struct Device {
    costs: Costs,
    pages: u32,
    host_pages: u32,
    elapsed_ns: Arc<AtomicU64>,
    fault: Box<dyn FnMut() -> Option<BackendError> + Send>,
}

/// Tokens in a page.
pub const PAGE_TOKENS: u32 = 16;

/// Tokens in the vocabulary; few, so that rows of logits cost nothing.
pub const VOCABULARY: u32 = 256;

impl Device {
    /// Returns a device with room for this many tokens. It adds the time of its steps to `elapsed_ns`.
    #[must_use]
    pub fn new(costs: Costs, tokens: u32, elapsed_ns: Arc<AtomicU64>) -> Self {
        Self {
            costs,
            pages: tokens / PAGE_TOKENS,
            host_pages: 0,
            elapsed_ns,
            fault: Box::new(|| None),
        }
    }

    /// Adds host memory with room for this many tokens. Copies to it take no time.
    #[must_use]
    pub fn with_host(self, tokens: u32) -> Self {
        Self {
            host_pages: tokens / PAGE_TOKENS,
            ..self
        }
    }

    /// Calls `fault` before every step to learn whether it fails.
    #[must_use]
    pub fn faults(self, fault: impl FnMut() -> Option<BackendError> + Send + 'static) -> Self {
        Self {
            fault: Box::new(fault),
            ..self
        }
    }
}

impl Backend for Device {
    fn shape(&self) -> BackendShape {
        BackendShape {
            vocabulary: VOCABULARY,
            max_positions: u32::MAX,
            page_tokens: PAGE_TOKENS,
            pages: self.pages,
            host_pages: self.host_pages,
            page_bytes: 0,
            draws: false,
        }
    }

    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        let nanoseconds = (self.costs.seconds(step) * 1e9) as u64;
        self.elapsed_ns.fetch_add(nanoseconds, Ordering::Relaxed);
        if let Some(error) = (self.fault)() {
            return Err(error);
        }
        let segments = step.segments.iter();
        let rows = segments
            .filter(|segment| segment.output == Output::Last)
            .count();
        logits.clear();
        logits.resize(rows * VOCABULARY as usize, 0.0);
        Ok(())
    }

    fn copy_slots(&mut self, _: PageId, _: PageId, _: u32) -> Result<(), BackendError> {
        Ok(())
    }

    fn store(&mut self, _: &[Store]) -> Result<(), BackendError> {
        Ok(())
    }
}

/// An engine on a simulated device, with the device's clock.
pub struct House {
    stepper: Stepper,
    elapsed_ns: Arc<AtomicU64>,
    start: Instant,
}

impl House {
    /// Returns an idle engine at time 0.
    #[must_use]
    pub fn new(costs: Costs, tokens: u32, config: &EngineConfig) -> Self {
        Self::with(config, |elapsed_ns| Device::new(costs, tokens, elapsed_ns))
    }

    /// Returns an idle engine on the device that `device` makes for the clock.
    #[must_use]
    pub fn with(config: &EngineConfig, device: impl FnOnce(Arc<AtomicU64>) -> Device) -> Self {
        let elapsed_ns = Arc::new(AtomicU64::new(0));
        let device = device(elapsed_ns.clone());
        Self {
            stepper: Stepper::new(Box::new(device), config),
            elapsed_ns,
            start: Instant::now(),
        }
    }

    /// Returns the time on the clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns.load(Ordering::Relaxed))
    }

    /// Advances the clock to `time`, without a step.
    pub fn sleep_until(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.elapsed_ns.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// Returns a time on the clock as the engine's `Instant`.
    #[must_use]
    pub fn instant(&self, time: Duration) -> Instant {
        self.start + time
    }

    /// Queues a request now.
    ///
    /// # Errors
    /// Returns the engine's error when it refuses the request.
    pub fn submit(&mut self, request: Request) -> Result<Generation, SubmitError> {
        let now = self.instant(self.now());
        self.stepper.submit(request, now)
    }

    /// Computes one step of the engine.
    pub fn step(&mut self) {
        let now = self.instant(self.now());
        self.stepper.step(now);
    }

    /// Returns the engine, which computes on a simulated device.
    #[must_use]
    pub fn stepper(&self) -> &Stepper {
        &self.stepper
    }
}

/// A request that arrives at a given time.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Time of the arrival.
    pub at: Duration,
    /// The request that arrives.
    pub request: Request,
}

/// Times and tokens of a served request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    /// Time from its arrival to its first token.
    pub first_token: Duration,
    /// Tokens of its prompt that were found in the cache.
    pub cached: u32,
    /// Number of requests that arrived later and ran earlier.
    pub overtaken: u32,
}

/// Serves `arrivals`, which must be ordered by time, to the end.
///
/// # Panics
/// Panics when a request is refused or fails.
#[must_use]
pub fn serve(house: &mut House, arrivals: &[Arrival]) -> (Vec<Served>, Stats) {
    let mut served = vec![Served::default(); arrivals.len()];
    let mut open: Vec<(usize, bool, Generation)> = Vec::new();
    let mut next = 0;
    loop {
        while let Some(arrival) = arrivals.get(next)
            && arrival.at <= house.now()
        {
            let generation = house.submit(arrival.request.clone());
            open.push((next, false, generation.expect("the queue has room for all")));
            next += 1;
        }
        if house.stepper().is_idle() {
            match arrivals.get(next) {
                Some(arrival) => house.sleep_until(arrival.at),
                None => break,
            }
            continue;
        }
        house.step();
        let now = house.now();
        let mut started = Vec::new();
        open.retain_mut(|(at, runs, generation)| {
            while let Some(event) = generation.try_next() {
                match event {
                    Event::Started { cached_tokens } => {
                        served[*at].cached = cached_tokens;
                        started.push(*at);
                        *runs = true;
                    }
                    Event::Token { .. } if served[*at].first_token.is_zero() => {
                        served[*at].first_token = now - arrivals[*at].at;
                    }
                    Event::Prompt(_) | Event::Token { .. } => {}
                    Event::Finished(_) => return false,
                    Event::Failed(failure) => panic!("{failure}"),
                }
            }
            true
        });
        for (at, _, _) in open.iter().filter(|(_, runs, _)| !runs) {
            let later = started.iter().filter(|started| *started > at);
            served[*at].overtaken += later.count() as u32;
        }
    }
    (served, house.stepper().stats())
}

/// Returns a prompt of these documents, each with its number of tokens, and a question of its own.
#[must_use]
pub fn prompt(documents: impl IntoIterator<Item = (u64, u32)>, question: u64) -> Vec<u32> {
    const QUESTION_TOKENS: u32 = 32;
    let text = |name: u64, tokens: u32| {
        (0..tokens).map(move |position| {
            let mixed = (name ^ (u64::from(position) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u32
        })
    };
    let documents = documents.into_iter();
    documents
        .flat_map(|(name, tokens)| text(name, tokens))
        .chain(text(!question, QUESTION_TOKENS))
        .collect()
}

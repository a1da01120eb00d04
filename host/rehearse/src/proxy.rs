//! A proxy: VMs that share data. Requests are played one at a time, on each VM in turn, and the clock advances by the
//! same interval before each. So a log needs the same instructions in every run with the same number of VMs.

use crate::fault::Fault;
use crate::module::Module;
use crate::request::{Answer, Outcome, Request};
use crate::shared::{MetricKind, Shared};
use crate::state::{LEVELS, State};
use crate::stream::{self, ProxyBehaviour};
use crate::vm::{CallbackUse, StartError, Vm};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Options with which a proxy runs a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The plugin's configuration, byte for byte.
    pub configuration: Vec<u8>,
    /// Environment variables of the module, by name.
    pub environment: Vec<(String, String)>,
    /// Responses to the module's HTTP calls, by cluster; calls to other clusters fail.
    pub answers: BTreeMap<String, Answer>,
    /// Number of VMs, at least one.
    pub workers: usize,
    /// Time by which the clock advances before each request.
    pub interval: Duration,
    /// True for a proxy without `allow_on_headers_stop_iteration`: a pause at the headers also pauses the body.
    pub headers_hold_all: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            configuration: Vec::new(),
            environment: Vec::new(),
            answers: BTreeMap::new(),
            workers: 1,
            interval: Duration::from_millis(10),
            headers_hold_all: false,
        }
    }
}

/// A proxy: VMs of one module that share data.
pub struct Proxy<'m> {
    module: &'m Module,
    setup: Setup,
    configuration: Rc<[u8]>,
    environment: Rc<[(String, String)]>,
    shared: Rc<RefCell<Shared>>,
    vms: Vec<Vm>,
    /// Number of requests played so far; they go to the VMs in turn.
    turn: usize,
    now_ns: u64,
    /// Totals of the VMs that were replaced.
    past: Totals,
}

/// Totals over all VMs of a proxy, replaced ones included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Largest memory of a VM, in bytes.
    pub memory_peak_bytes: u64,
    /// Number of host calls, by name.
    pub calls: BTreeMap<&'static str, u64>,
    /// Use of callbacks, by name.
    pub callbacks: BTreeMap<&'static str, CallbackUse>,
    /// Number of log lines by level: trace, debug, info, warn, error, critical.
    pub log_lines: [u64; LEVELS],
    /// By name: a counter's sum, a gauge's value, or a histogram's number of samples.
    pub metrics: BTreeMap<String, i64>,
    /// Faults in callbacks outside of requests: ticks, queues, and the end.
    pub faults: Vec<Fault>,
    /// Number of such faults beyond those that `faults` holds.
    pub unlisted_faults: usize,
    /// Number of VMs that replaced a failed one.
    pub restarts: u64,
}

impl<'m> Proxy<'m> {
    /// Starts the VMs, and configures the plugin in each.
    ///
    /// # Errors
    /// Returns an error if a VM does not start or the plugin refuses the configuration.
    pub fn start(module: &'m Module, setup: Setup) -> Result<Self, StartError> {
        let mut proxy = Self {
            module,
            configuration: setup.configuration.clone().into(),
            environment: setup.environment.clone().into(),
            setup,
            shared: Rc::default(),
            vms: Vec::new(),
            turn: 0,
            now_ns: BEGIN_NS,
            past: Totals::default(),
        };
        for index in 0..proxy.setup.workers.max(1) {
            let vm = proxy.vm(index)?;
            proxy.vms.push(vm);
        }
        Ok(proxy)
    }

    fn vm(&self, index: usize) -> Result<Vm, StartError> {
        let mut state = State::new(
            index,
            Rc::clone(&self.shared),
            Rc::clone(&self.configuration),
            Rc::clone(&self.environment),
            self.module.limits.memory_bytes,
        );
        state.now_ns = self.now_ns;
        Vm::start(self.module, state)
    }

    /// Plays a request on the next VM. A VM that failed is replaced, as with Envoy's `FAIL_RELOAD`.
    ///
    /// # Errors
    /// Returns an error if a VM cannot be replaced.
    pub fn play(&mut self, request: &Request) -> Result<Outcome, StartError> {
        self.pass_time()?;
        let index = self.turn % self.vms.len().max(1);
        self.turn += 1;
        let answers = &self.setup.answers;
        let answer = |cluster: &str| answers.get(cluster).cloned().unwrap_or_default();
        let around = ProxyBehaviour {
            answer: &answer,
            holds_all: self.setup.headers_hold_all,
        };
        let Some(vm) = self.vms.get_mut(index) else {
            return Err(StartError::Shape("there is no VM".to_owned()));
        };
        let outcome = stream::play(vm, request, &around);
        if outcome.fault.is_some() {
            self.replace(index)?;
        }
        self.tell_queues()?;
        Ok(outcome)
    }

    /// Advances the clock by the interval, and runs the ticks that are due.
    fn pass_time(&mut self) -> Result<(), StartError> {
        let interval = u64::try_from(self.setup.interval.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns = self.now_ns.saturating_add(interval);
        let now_ns = self.now_ns;
        for index in 0..self.vms.len() {
            self.run_outside_requests(index, |vm| vm.advance_clock(now_ns).map(|_| ()))?;
        }
        Ok(())
    }

    fn tell_queues(&mut self) -> Result<(), StartError> {
        for _ in 0..QUEUES_IN_A_ROW {
            let ready = self.shared.borrow_mut().next_ready();
            let Some((vm, queue)) = ready else { break };
            self.run_outside_requests(vm, |vm| vm.queue_ready(queue))?;
        }
        Ok(())
    }

    /// Runs callbacks outside of requests on a VM, and answers the HTTP calls that they make. If a callback fails,
    /// records its fault and replaces the VM.
    fn run_outside_requests(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut Vm) -> Result<(), Fault>,
    ) -> Result<(), StartError> {
        let Some(vm) = self.vms.get_mut(index) else {
            return Ok(());
        };
        let answers = &self.setup.answers;
        let answer = |cluster: &str| answers.get(cluster).cloned().unwrap_or_default();
        let done = work(vm).and_then(|()| vm.answer_calls(answer));
        if let Err(fault) = done {
            if self.past.faults.len() < FAULTS {
                self.past.faults.push(fault);
            } else {
                self.past.unlisted_faults += 1;
            }
            self.replace(index)?;
        }
        Ok(())
    }

    fn replace(&mut self, index: usize) -> Result<(), StartError> {
        let new = self.vm(index)?;
        if let Some(vm) = self.vms.get_mut(index) {
            let old = std::mem::replace(vm, new);
            self.past.add(&old);
            self.past.restarts += 1;
        }
        Ok(())
    }

    /// Returns the faults in callbacks outside of requests so far.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.past.faults
    }

    /// Ends the run: each plugin ticks once more and ends. Returns the totals.
    ///
    /// # Errors
    /// Returns an error if a VM cannot be replaced.
    pub fn finish(mut self) -> Result<Totals, StartError> {
        for index in 0..self.vms.len() {
            self.run_outside_requests(index, |vm| {
                vm.tick()?;
                vm.end()
            })?;
        }
        let mut totals = self.past;
        for vm in &self.vms {
            totals.add(vm);
        }
        let shared = self.shared.borrow();
        let metrics = shared.metrics().iter();
        let metrics = metrics.filter(|it| it.value != 0 || it.kind == MetricKind::Gauge);
        let metrics = metrics.map(|metric| (metric.name.clone(), metric.value));
        totals.metrics = metrics.collect();
        Ok(totals)
    }
}

impl Totals {
    fn add(&mut self, vm: &Vm) {
        let state = vm.store.data();
        self.memory_peak_bytes = self.memory_peak_bytes.max(state.watch.peak);
        for (name, count) in &state.calls {
            *self.calls.entry(name).or_default() += count;
        }
        for (name, used) in &vm.uses {
            let sum = self.callbacks.entry(name).or_default();
            sum.count += used.count;
            sum.fuel += used.fuel;
            sum.most_fuel = sum.most_fuel.max(used.most_fuel);
        }
        for (sum, lines) in self.log_lines.iter_mut().zip(state.log_lines) {
            *sum += lines;
        }
    }
}

/// The clock's first time, in nanoseconds since 1970. Fixed, so that runs do not differ.
const BEGIN_NS: u64 = 1_780_000_000_000_000_000;
/// Maximum number of queue callbacks in a row, in case a module answers each entry with another.
const QUEUES_IN_A_ROW: usize = 1024;
/// Maximum number of faults outside of requests that are recorded.
const FAULTS: usize = 100;

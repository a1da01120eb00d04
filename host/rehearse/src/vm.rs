//! One VM: an instance of the module, its plugin, and callbacks with limits on instructions and time.

use crate::abi::Headers;
use crate::fault::{Fault, FaultKind};
use crate::limits::Limits;
use crate::module::Module;
use crate::state::{ROOT, State, Stream};
use std::collections::BTreeMap;
use wasmtime::{Instance, Store, TypedFunc, WasmParams, WasmResults};

/// The reason for which a VM did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The plugin refused its configuration.
    #[error("the module refused its configuration: {}", words(.said))]
    Refused {
        /// The warnings and errors that the module logged.
        said: Vec<String>,
    },
    /// A callback failed before the plugin was configured.
    #[error("the module failed before it was configured: {0}")]
    Fault(Fault),
    /// The module cannot be instantiated, or a callback has another signature than the ABI's.
    #[error("the module cannot be started: {0}")]
    Shape(String),
}

fn words(said: &[String]) -> String {
    if said.is_empty() {
        "it did not say why".to_owned()
    } else {
        said.join("; ")
    }
}

/// Number of calls of a callback, and their instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallbackUse {
    /// Number of calls.
    pub count: u64,
    /// Instructions of all calls together.
    pub fuel: u64,
    /// Largest number of instructions of a single call.
    pub most_fuel: u64,
}

/// An instance of a module with one plugin.
pub(crate) struct Vm {
    pub(crate) store: Store<State>,
    limits: Limits,
    deadline_ticks: u64,
    instance: Instance,
    /// Instructions of all callbacks so far.
    pub(crate) fuel: u64,
    /// Calls and instructions of each callback, by name.
    pub(crate) uses: BTreeMap<&'static str, CallbackUse>,
    next_context: i32,
    /// Time of the plugin's next tick, in nanoseconds since 1970; `None` before the first request.
    next_tick_ns: Option<u64>,
}

/// The result of a callback: whether the request, or the response, continues or is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Continue,
    Pause,
}

impl Vm {
    /// Instantiates the module and configures the plugin.
    pub(crate) fn start(module: &Module, state: State) -> Result<Self, StartError> {
        let mut store = Store::new(&module.engine, state);
        store.limiter(|state| &mut state.watch);
        let limits = module.limits;
        // `instantiate` runs the module's start function.
        let deadline_ticks = module.deadline_ticks();
        refuel(&mut store, limits.fuel, deadline_ticks);
        let instance = module.instance.instantiate(&mut store);
        let instance = instance.map_err(|error| {
            let place = store.data_mut().panicked_at.take();
            let fault = Fault::new("_start", &error, limits.fuel, limits.deadline, place);
            StartError::Fault(fault)
        })?;
        store.data_mut().memory = instance.get_memory(&mut store, "memory");
        let shape = |error: wasmtime::Error| StartError::Shape(format!("{error:#}"));
        let allocate = match hook(&instance, &mut store, "proxy_on_memory_allocate") {
            Ok(None) => hook(&instance, &mut store, "malloc"),
            found => found,
        };
        store.data_mut().allocate = allocate.map_err(shape)?;
        check_hooks(&instance, &mut store).map_err(shape)?;
        let mut vm = Self {
            store,
            limits,
            deadline_ticks,
            instance,
            fuel: 0,
            uses: BTreeMap::new(),
            next_context: ROOT,
            next_tick_ns: None,
        };
        for name in BEGIN {
            let begun = vm.run::<(), ()>(name, ROOT, ());
            if begun.map_err(StartError::Fault)?.is_some() {
                break;
            }
        }
        vm.configure()?;
        vm.store.data_mut().is_starting = false;
        Ok(vm)
    }

    fn configure(&mut self) -> Result<(), StartError> {
        let size = self.store.data().configuration.len();
        let size = i32::try_from(size)
            .map_err(|_| StartError::Shape(format!("its configuration has {size} bytes")))?;
        self.run::<_, ()>("proxy_on_context_create", ROOT, (ROOT, 0))
            .map_err(StartError::Fault)?;
        for (name, size) in [("proxy_on_vm_start", 0), ("proxy_on_configure", size)] {
            let taken = self.run(name, ROOT, (ROOT, size));
            if taken.map_err(StartError::Fault)? == Some(0) {
                let said = std::mem::take(&mut self.store.data_mut().said);
                return Err(StartError::Refused { said });
            }
        }
        Ok(())
    }

    /// Returns the request whose callbacks are running.
    pub(crate) fn stream(&mut self) -> &mut Stream {
        &mut self.store.data_mut().stream
    }

    /// Runs a callback in `context`, and returns its result; `None` if the module does not have it.
    fn run<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &'static str,
        context: i32,
        arguments: P,
    ) -> Result<Option<R>, Fault> {
        // `check_hooks` has checked the signatures.
        let Ok(Some(hook)) = hook::<P, R>(&self.instance, &mut self.store, name) else {
            return Ok(None);
        };
        self.store.data_mut().begin(context);
        let fuel = self.limits.fuel;
        refuel(&mut self.store, fuel, self.deadline_ticks);
        let result = hook.call(&mut self.store, arguments);
        let used = fuel.saturating_sub(self.store.get_fuel().unwrap_or(0));
        self.fuel += used;
        let uses = self.uses.entry(name).or_default();
        uses.count += 1;
        uses.fuel += used;
        uses.most_fuel = uses.most_fuel.max(used);
        result.map(Some).map_err(|error| {
            let place = self.store.data_mut().panicked_at.take();
            Fault::new(name, &error, fuel, self.limits.deadline, place)
        })
    }

    /// Runs a callback whose result says whether the request, or the response, continues. A missing callback continues.
    fn decide<P: WasmParams>(
        &mut self,
        name: &'static str,
        context: i32,
        arguments: P,
    ) -> Result<Action, Fault> {
        Ok(match self.run(name, context, arguments)? {
            None | Some(0) => Action::Continue,
            Some(_) => Action::Pause,
        })
    }

    /// Creates the context of a request, and returns its id.
    pub(crate) fn create(&mut self) -> Result<i32, Fault> {
        self.next_context = self.next_context.checked_add(1).unwrap_or(ROOT + 1);
        let context = self.next_context;
        self.run::<_, ()>("proxy_on_context_create", context, (context, ROOT))?;
        Ok(context)
    }

    /// Runs the callback `name` for headers or a piece of a body. `length` is the number of headers, or of bytes; `end`
    /// is true if nothing follows.
    pub(crate) fn pass(
        &mut self,
        name: &'static str,
        context: i32,
        length: usize,
        end: bool,
    ) -> Result<Action, Fault> {
        self.decide(name, context, (context, narrow(length), i32::from(end)))
    }

    pub(crate) fn request_trailers(&mut self, context: i32) -> Result<Action, Fault> {
        let count = narrow(length(&self.stream().request_trailers));
        self.decide("proxy_on_request_trailers", context, (context, count))
    }

    /// Ends a request: calls the module's log, done and delete callbacks.
    pub(crate) fn finish(&mut self, context: i32) -> Result<(), Fault> {
        self.run::<_, ()>("proxy_on_log", context, context)?;
        self.run::<_, i32>("proxy_on_done", context, context)?;
        self.run::<_, ()>("proxy_on_delete", context, context)?;
        Ok(())
    }

    /// Answers all pending HTTP calls, and those that the module makes meanwhile.
    pub(crate) fn answer_calls(
        &mut self,
        answer: impl Fn(&str) -> crate::request::Answer,
    ) -> Result<(), Fault> {
        let callback = "proxy_on_http_call_response";
        for _ in 0..CALLS_IN_A_ROW {
            let state = self.store.data_mut();
            if state.pending.is_empty() {
                return Ok(());
            }
            let call = state.pending.remove(0);
            let answered = answer(&call.cluster);
            let (headers, body) = (answered.headers.len(), answered.body.len());
            state.answer = Some(answered);
            let (context, token) = (call.context, call.token.cast_signed());
            let arguments = (context, token, narrow(headers), narrow(body), 0);
            let done = self.run::<_, ()>(callback, context, arguments);
            self.store.data_mut().answer = None;
            done?;
        }
        Err(Fault {
            callback,
            kind: FaultKind::Trap(format!(
                "its calls lead to further calls, {CALLS_IN_A_ROW} in a row"
            )),
            place: None,
        })
    }

    /// Sets the clock, and runs a tick if one is due. Returns whether one ran.
    pub(crate) fn advance_clock(&mut self, now_ns: u64) -> Result<bool, Fault> {
        let state = self.store.data_mut();
        state.now_ns = state.now_ns.max(now_ns);
        let period_ns = u64::from(state.tick_ms) * 1_000_000;
        let following = now_ns.saturating_add(period_ns);
        let next = *self.next_tick_ns.get_or_insert(following);
        if period_ns == 0 || now_ns < next {
            return Ok(false);
        }
        self.next_tick_ns = Some(following);
        self.tick()?;
        Ok(true)
    }

    pub(crate) fn tick(&mut self) -> Result<(), Fault> {
        self.run("proxy_on_tick", ROOT, ROOT)
            .map(Option::unwrap_or_default)
    }

    pub(crate) fn queue_ready(&mut self, queue: u32) -> Result<(), Fault> {
        let arguments = (ROOT, queue.cast_signed());
        self.run("proxy_on_queue_ready", ROOT, arguments)
            .map(Option::unwrap_or_default)
    }

    /// Ends the plugin.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        self.run::<_, i32>("proxy_on_done", ROOT, ROOT).map(|_| ())
    }
}

/// Maximum number of HTTP calls answered in a row; a module that makes more is faulty.
const CALLS_IN_A_ROW: usize = 1024;

/// Functions that initialise a module; the first that it has is called.
const BEGIN: [&str; 2] = ["_initialize", "_start"];

/// Returns an error if a callback has another signature than the ABI's.
fn check_hooks(instance: &Instance, store: &mut Store<State>) -> wasmtime::Result<()> {
    hook::<(i32, i32), ()>(instance, store, "proxy_on_context_create")?;
    hook::<(i32, i32), i32>(instance, store, "proxy_on_vm_start")?;
    hook::<(i32, i32), i32>(instance, store, "proxy_on_configure")?;
    hook::<i32, ()>(instance, store, "proxy_on_tick")?;
    hook::<(i32, i32), ()>(instance, store, "proxy_on_queue_ready")?;
    hook::<(i32, i32, i32), i32>(instance, store, "proxy_on_request_headers")?;
    hook::<(i32, i32, i32), i32>(instance, store, "proxy_on_request_body")?;
    hook::<(i32, i32), i32>(instance, store, "proxy_on_request_trailers")?;
    hook::<(i32, i32, i32), i32>(instance, store, "proxy_on_response_headers")?;
    hook::<(i32, i32, i32), i32>(instance, store, "proxy_on_response_body")?;
    hook::<(i32, i32, i32, i32, i32), ()>(instance, store, "proxy_on_http_call_response")?;
    hook::<i32, i32>(instance, store, "proxy_on_done")?;
    hook::<i32, ()>(instance, store, "proxy_on_log")?;
    hook::<i32, ()>(instance, store, "proxy_on_delete")?;
    for name in BEGIN {
        hook::<(), ()>(instance, store, name)?;
    }
    Ok(())
}

fn hook<P: WasmParams, R: WasmResults>(
    instance: &Instance,
    store: &mut Store<State>,
    name: &str,
) -> wasmtime::Result<Option<TypedFunc<P, R>>> {
    let Some(function) = instance.get_func(&mut *store, name) else {
        return Ok(None);
    };
    let typed = function.typed(&*store);
    typed
        .map(Some)
        .map_err(|error| wasmtime::format_err!("{name}: {error}"))
}

/// Sets the limits on instructions and time for the next callback.
fn refuel(store: &mut Store<State>, fuel: u64, deadline_ticks: u64) {
    // Fails only if fuel is not counted.
    let _ = store.set_fuel(fuel);
    store.set_epoch_deadline(deadline_ticks);
}

/// Returns the number of headers; 0 if they were forwarded.
pub(crate) fn length(headers: &Option<Headers>) -> usize {
    headers.as_ref().map_or(0, Vec::len)
}

fn narrow(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

//! One VM: a module's instance, its plugin, and its callbacks, each with a limit on instructions and time.

use crate::abi::Headers;
use crate::fault::{Fault, FaultKind};
use crate::limits::Limits;
use crate::module::Module;
use crate::state::{ROOT, State};
use std::collections::BTreeMap;
use wasmtime::{Instance, Store, TypedFunc, WasmParams, WasmResults};

/// Why a plugin did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The plugin refused its configuration.
    #[error("the module refused its configuration: {}", words(.said))]
    Refused {
        /// The warnings and errors that it logged.
        said: Vec<String>,
    },
    /// A callback failed during the start.
    #[error("the module failed before it was configured: {0}")]
    Fault(Fault),
    /// The module could not be instantiated, or an ABI function has a wrong signature.
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

/// The use of one callback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallbackUse {
    /// Number of calls.
    pub count: u64,
    /// Instructions of all calls.
    pub fuel: u64,
    /// Most instructions of one call.
    pub most_fuel: u64,
}

/// A callback that a module may lack.
type Hook<P, R = ()> = Option<TypedFunc<P, R>>;

/// An instance of a module, with its state.
pub(crate) struct Vm {
    pub(crate) store: Store<State>,
    limits: Limits,
    deadline_ticks: u64,
    hooks: Hooks,
    /// Instructions of all callbacks so far.
    pub(crate) fuel: u64,
    pub(crate) uses: BTreeMap<&'static str, CallbackUse>,
    next_context: i32,
    /// Time of the plugin's next tick.
    next_tick_ns: Option<u64>,
}

struct Hooks {
    context_create: Hook<(i32, i32)>,
    vm_start: Hook<(i32, i32), i32>,
    configure: Hook<(i32, i32), i32>,
    tick: Hook<i32>,
    queue_ready: Hook<(i32, i32)>,
    request_headers: Hook<(i32, i32, i32), i32>,
    request_body: Hook<(i32, i32, i32), i32>,
    request_trailers: Hook<(i32, i32), i32>,
    response_headers: Hook<(i32, i32, i32), i32>,
    response_body: Hook<(i32, i32, i32), i32>,
    call_response: Hook<(i32, i32, i32, i32, i32)>,
    done: Hook<i32, i32>,
    log: Hook<i32>,
    delete: Hook<i32>,
}

/// The result of a request's callback: whether the request, or the response, continues.
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
        // The module's start function runs here.
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
        let hooks = Hooks::of(&instance, &mut store).map_err(shape)?;
        let begin = ["_initialize", "_start"]
            .into_iter()
            .map(|name| Ok((name, hook::<(), ()>(&instance, &mut store, name)?)));
        let begin: Vec<_> = begin.collect::<wasmtime::Result<_>>().map_err(shape)?;
        let mut vm = Self {
            store,
            limits,
            deadline_ticks,
            hooks,
            fuel: 0,
            uses: BTreeMap::new(),
            next_context: ROOT,
            next_tick_ns: None,
        };
        let begin = begin
            .into_iter()
            .find_map(|(name, hook)| Some((name, hook?)));
        if let Some((name, hook)) = begin {
            vm.run(name, Some(hook), ROOT, ())
                .map_err(StartError::Fault)?;
        }
        vm.configure()?;
        vm.store.data_mut().is_starting = false;
        Ok(vm)
    }

    fn configure(&mut self) -> Result<(), StartError> {
        let size = self.store.data().configuration.len();
        let size = i32::try_from(size)
            .map_err(|_| StartError::Shape(format!("its configuration has {size} bytes")))?;
        let create = self.hooks.context_create.clone();
        self.run("proxy_on_context_create", create, ROOT, (ROOT, 0))
            .map_err(StartError::Fault)?;
        let hooks = [
            ("proxy_on_vm_start", self.hooks.vm_start.clone(), 0),
            ("proxy_on_configure", self.hooks.configure.clone(), size),
        ];
        for (name, hook, size) in hooks {
            let taken = self.run(name, hook, ROOT, (ROOT, size));
            if taken.map_err(StartError::Fault)? == Some(0) {
                let said = std::mem::take(&mut self.store.data_mut().said);
                return Err(StartError::Refused { said });
            }
        }
        Ok(())
    }

    /// Runs a callback in this context, if the module has it.
    fn run<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &'static str,
        hook: Hook<P, R>,
        context: i32,
        arguments: P,
    ) -> Result<Option<R>, Fault> {
        let Some(hook) = hook else { return Ok(None) };
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

    fn action(result: Option<i32>) -> Action {
        match result {
            None | Some(0) => Action::Continue,
            Some(_) => Action::Pause,
        }
    }

    /// Creates a context for a request.
    pub(crate) fn create(&mut self) -> Result<i32, Fault> {
        self.next_context = self.next_context.checked_add(1).unwrap_or(ROOT + 1);
        let context = self.next_context;
        let hook = self.hooks.context_create.clone();
        self.run("proxy_on_context_create", hook, context, (context, ROOT))?;
        Ok(context)
    }

    pub(crate) fn request_headers(&mut self, context: i32, end: bool) -> Result<Action, Fault> {
        let count = length(&self.store.data().stream.request_headers);
        let hook = self.hooks.request_headers.clone();
        let arguments = (context, count, i32::from(end));
        self.run("proxy_on_request_headers", hook, context, arguments)
            .map(Self::action)
    }

    pub(crate) fn request_body(&mut self, context: i32, end: bool) -> Result<Action, Fault> {
        let size = size(&self.store.data().stream.request_body);
        let hook = self.hooks.request_body.clone();
        let arguments = (context, size, i32::from(end));
        self.run("proxy_on_request_body", hook, context, arguments)
            .map(Self::action)
    }

    pub(crate) fn request_trailers(&mut self, context: i32) -> Result<Action, Fault> {
        let count = length(&self.store.data().stream.request_trailers);
        let hook = self.hooks.request_trailers.clone();
        self.run("proxy_on_request_trailers", hook, context, (context, count))
            .map(Self::action)
    }

    pub(crate) fn response_headers(&mut self, context: i32, end: bool) -> Result<Action, Fault> {
        let count = length(&self.store.data().stream.response_headers);
        let hook = self.hooks.response_headers.clone();
        let arguments = (context, count, i32::from(end));
        self.run("proxy_on_response_headers", hook, context, arguments)
            .map(Self::action)
    }

    pub(crate) fn response_body(&mut self, context: i32, end: bool) -> Result<Action, Fault> {
        let size = size(&self.store.data().stream.response_body);
        let hook = self.hooks.response_body.clone();
        let arguments = (context, size, i32::from(end));
        self.run("proxy_on_response_body", hook, context, arguments)
            .map(Self::action)
    }

    /// Ends a request: writes the access log and deletes the context.
    pub(crate) fn finish(&mut self, context: i32) -> Result<(), Fault> {
        let hooks = (self.hooks.log.clone(), self.hooks.done.clone());
        self.run("proxy_on_log", hooks.0, context, context)?;
        self.run("proxy_on_done", hooks.1, context, context)?;
        let delete = self.hooks.delete.clone();
        self.run("proxy_on_delete", delete, context, context)?;
        Ok(())
    }

    /// Answers the cluster calls in flight, and those that the module makes meanwhile.
    pub(crate) fn answer_calls(
        &mut self,
        answer: impl Fn(&str) -> crate::state::CallAnswer,
    ) -> Result<(), Fault> {
        for _ in 0..CALLS_IN_A_ROW {
            let state = self.store.data_mut();
            if state.pending.is_empty() {
                return Ok(());
            }
            let call = state.pending.remove(0);
            let answered = answer(&call.cluster);
            let (headers, body) = (answered.headers.len(), answered.body.len());
            state.answer = Some(answered);
            let hook = self.hooks.call_response.clone();
            let arguments = (
                call.context,
                call.token.cast_signed(),
                narrow(headers),
                narrow(body),
                0,
            );
            let done = self.run("proxy_on_http_call_response", hook, call.context, arguments);
            self.store.data_mut().answer = None;
            done?;
        }
        let callback = "proxy_on_http_call_response";
        Err(Fault {
            callback,
            kind: FaultKind::Trap(format!(
                "its calls lead to further calls, {CALLS_IN_A_ROW} in a row"
            )),
            place: None,
        })
    }

    /// Advances the proxy's clock, and runs a tick if one is due. Returns whether it did.
    pub(crate) fn moment(&mut self, now_ns: u64) -> Result<bool, Fault> {
        let state = self.store.data_mut();
        state.now_ns = state.now_ns.max(now_ns);
        let period_ns = u64::from(state.tick_ms) * 1_000_000;
        let next = *self
            .next_tick_ns
            .get_or_insert(now_ns.saturating_add(period_ns));
        if period_ns == 0 || now_ns < next {
            return Ok(false);
        }
        self.next_tick_ns = Some(now_ns.saturating_add(period_ns));
        self.tick()?;
        Ok(true)
    }

    pub(crate) fn tick(&mut self) -> Result<(), Fault> {
        let hook = self.hooks.tick.clone();
        self.run("proxy_on_tick", hook, ROOT, ROOT).map(|_| ())
    }

    pub(crate) fn queue_ready(&mut self, queue: u32) -> Result<(), Fault> {
        let hook = self.hooks.queue_ready.clone();
        let arguments = (ROOT, queue.cast_signed());
        self.run("proxy_on_queue_ready", hook, ROOT, arguments)
            .map(|_| ())
    }

    /// Ends the plugin.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        let hook = self.hooks.done.clone();
        self.run("proxy_on_done", hook, ROOT, ROOT).map(|_| ())
    }
}

/// Most cluster calls answered after one callback; a module that makes more is faulty.
const CALLS_IN_A_ROW: usize = 1024;

impl Hooks {
    fn of(instance: &Instance, store: &mut Store<State>) -> wasmtime::Result<Self> {
        Ok(Self {
            context_create: hook(instance, store, "proxy_on_context_create")?,
            vm_start: hook(instance, store, "proxy_on_vm_start")?,
            configure: hook(instance, store, "proxy_on_configure")?,
            tick: hook(instance, store, "proxy_on_tick")?,
            queue_ready: hook(instance, store, "proxy_on_queue_ready")?,
            request_headers: hook(instance, store, "proxy_on_request_headers")?,
            request_body: hook(instance, store, "proxy_on_request_body")?,
            request_trailers: hook(instance, store, "proxy_on_request_trailers")?,
            response_headers: hook(instance, store, "proxy_on_response_headers")?,
            response_body: hook(instance, store, "proxy_on_response_body")?,
            call_response: hook(instance, store, "proxy_on_http_call_response")?,
            done: hook(instance, store, "proxy_on_done")?,
            log: hook(instance, store, "proxy_on_log")?,
            delete: hook(instance, store, "proxy_on_delete")?,
        })
    }
}

fn hook<P: WasmParams, R: WasmResults>(
    instance: &Instance,
    store: &mut Store<State>,
    name: &str,
) -> wasmtime::Result<Hook<P, R>> {
    let Some(function) = instance.get_func(&mut *store, name) else {
        return Ok(None);
    };
    let typed = function.typed(&*store);
    typed
        .map(Some)
        .map_err(|error| wasmtime::format_err!("{name}: {error}"))
}

/// Sets a callback's limits on instructions and time.
fn refuel(store: &mut Store<State>, fuel: u64, deadline_ticks: u64) {
    // Fails only if fuel is not counted.
    let _ = store.set_fuel(fuel);
    store.set_epoch_deadline(deadline_ticks);
}

fn length(headers: &Option<Headers>) -> i32 {
    narrow(headers.as_ref().map_or(0, Vec::len))
}

fn size(body: &Option<Vec<u8>>) -> i32 {
    narrow(body.as_ref().map_or(0, Vec::len))
}

fn narrow(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

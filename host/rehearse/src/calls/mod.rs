//! The host calls of proxy-wasm, with Envoy's behaviour.
//!
//! | module | calls |
//! | --- | --- |
//! | `headers` | headers and trailers |
//! | `buffers` | bodies and configurations |
//! | `properties` | properties of the proxy and the request |
//! | `shared` | data and queues that VMs share, metrics |
//! | `outside` | HTTP calls; resuming, answering and closing requests; log, clock, tick |
//! | `wasi` | the part of WASI that Envoy has, with a fixed clock and fixed random numbers |
//!
//! A call with an address outside the module's memory returns `INVALID_MEMORY_ACCESS` and has no effect.

mod buffers;
mod headers;
mod outside;
mod properties;
mod shared;
mod wasi;

use crate::abi::status;
use crate::state::State;
use wasmtime::{Caller, FuncType, Linker, Result, Val, ValType};

/// Defines all host calls in `linker`.
pub(crate) fn define(linker: &mut Linker<State>) -> Result<()> {
    let calls = &mut Calls {
        linker,
        module: ENV,
        memory_fault: status::INVALID_MEMORY_ACCESS,
    };
    headers::define(calls)?;
    buffers::define(calls)?;
    properties::define(calls)?;
    shared::define(calls)?;
    outside::define(calls)?;
    wasi::define(linker)
}

/// Import module of proxy-wasm's host calls.
const ENV: &str = "env";

type Vm<'a> = Caller<'a, State>;

/// The result of a host call that failed: a status for the module, or an error that ends the callback.
enum Failure {
    Status(i32),
    Trap(wasmtime::Error),
}

impl<E: Into<wasmtime::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Trap(error.into())
    }
}

type Answered<T = ()> = std::result::Result<T, Failure>;

fn refused<T>(status: i32) -> Answered<T> {
    Err(Failure::Status(status))
}

fn found<T>(item: Option<T>) -> Answered<T> {
    item.ok_or(Failure::Status(status::NOT_FOUND))
}

/// Returns the value read from an argument; `BAD_ARGUMENT` if the argument is malformed.
fn valid<T>(read: Option<T>) -> Answered<T> {
    read.ok_or(Failure::Status(status::BAD_ARGUMENT))
}

/// The host calls of one import module.
struct Calls<'l> {
    linker: &'l mut Linker<State>,
    module: &'static str,
    /// The status that reports an address outside the module's memory.
    memory_fault: i32,
}

impl Calls<'_> {
    /// Defines a host call with `N` arguments of type `i32`, which returns the status of `work`.
    fn define<const N: usize>(
        &mut self,
        name: &'static str,
        work: impl Fn(&mut Vm<'_>, [i32; N]) -> Answered + Send + Sync + 'static,
    ) -> Result<()> {
        let arguments = std::iter::repeat_n(ValType::I32, N);
        let kind = FuncType::new(self.linker.engine(), arguments, [ValType::I32]);
        let fault = self.memory_fault;
        let called = move |mut vm: Vm<'_>, arguments: &[Val], results: &mut [Val]| {
            // wasmtime has checked the number and types of the arguments.
            let number = |at: usize| arguments.get(at).and_then(Val::i32).unwrap_or_default();
            let numbers = std::array::from_fn(number);
            let status = match call(&mut vm, name, |vm| work(vm, numbers))? {
                status::INVALID_MEMORY_ACCESS => fault,
                status => status,
            };
            results.fill(Val::I32(status));
            Ok(())
        };
        (self.linker.func_new(self.module, name, kind, called)).map(drop)
    }
}

/// Counts a host call, does its work, and returns its status.
fn call(
    vm: &mut Vm<'_>,
    name: &'static str,
    work: impl FnOnce(&mut Vm<'_>) -> Answered,
) -> Result<i32> {
    vm.data_mut().count(name);
    match work(vm) {
        Ok(()) => Ok(status::OK),
        Err(Failure::Status(status)) => Ok(status),
        Err(Failure::Trap(error)) => Err(error),
    }
}

/// Copies `size` bytes from the module's memory, and counts them as passed to the proxy.
fn bytes(vm: &mut Vm<'_>, at: i32, size: i32) -> Answered<Vec<u8>> {
    let (at, size) = (offset(at), offset(size));
    vm.data_mut().take(size)?;
    let Some(memory) = vm.data().memory else {
        return refused(status::INVALID_MEMORY_ACCESS);
    };
    let end = at.checked_add(size);
    let found = end.and_then(|end| memory.data(&*vm).get(at..end));
    found
        .map(<[u8]>::to_vec)
        .ok_or(Failure::Status(status::INVALID_MEMORY_ACCESS))
}

/// Writes bytes to the module's memory.
fn write(vm: &mut Vm<'_>, at: i32, bytes: &[u8]) -> Answered {
    let Some(memory) = vm.data().memory else {
        return refused(status::INVALID_MEMORY_ACCESS);
    };
    memory
        .write(&mut *vm, offset(at), bytes)
        .map_err(|_| Failure::Status(status::INVALID_MEMORY_ACCESS))
}

fn write_number(vm: &mut Vm<'_>, at: i32, number: u32) -> Answered {
    write(vm, at, &number.to_le_bytes())
}

/// Copies a value to memory that the module allocates, and writes its address to `at` and its size to `size_at`.
fn give(vm: &mut Vm<'_>, value: &[u8], at: i32, size_at: i32) -> Answered {
    let length = valid(i32::try_from(value.len()).ok())?;
    let mut place = 0;
    if length > 0 {
        let Some(allocate) = vm.data().allocate.clone() else {
            return refused(status::INTERNAL_FAILURE);
        };
        place = allocate.call(&mut *vm, length)?;
        if place == 0 {
            return refused(status::INVALID_MEMORY_ACCESS);
        }
        write(vm, place, value)?;
    }
    write(vm, at, &place.to_le_bytes())?;
    write(vm, size_at, &length.to_le_bytes())
}

/// Converts an address or size, which Wasm passes as `i32` but means unsigned.
fn offset(value: i32) -> usize {
    value.cast_unsigned() as usize
}

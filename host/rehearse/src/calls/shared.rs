//! Host calls on data and queues that VMs share, and on metrics.

use super::{Answered, ENV, Failure, Vm, bytes, call, give, refused, write, write_number};
use crate::abi::status;
use crate::shared::MetricKind;
use crate::state::State;
use wasmtime::{Linker, Result};

pub(super) fn define(linker: &mut Linker<State>) -> Result<()> {
    data(linker)?;
    queues(linker)?;
    metrics(linker)
}

fn data(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_get_shared_data",
        |mut vm: Vm<'_>, key: i32, key_size: i32, at: i32, size_at: i32, number_at: i32| {
            call(&mut vm, "proxy_get_shared_data", |vm| {
                let key = bytes(vm, key, key_size)?;
                let shared = vm.data().shared.clone();
                let shared = shared.borrow();
                let (value, number) = shared.get(&key).ok_or(Failure::Status(status::NOT_FOUND))?;
                give(vm, value, at, size_at)?;
                write_number(vm, number_at, number)
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_set_shared_data",
        |mut vm: Vm<'_>, key: i32, key_size: i32, at: i32, size: i32, number: i32| {
            call(&mut vm, "proxy_set_shared_data", |vm| {
                let key = bytes(vm, key, key_size)?;
                let value = bytes(vm, at, size)?;
                let number = number.cast_unsigned();
                as_status(vm.data().shared.borrow_mut().set(&key, &value, number))
            })
        },
    )?;
    Ok(())
}

fn queues(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_register_shared_queue",
        |mut vm: Vm<'_>, name: i32, name_size: i32, id_at: i32| {
            call(&mut vm, "proxy_register_shared_queue", |vm| {
                let name = bytes(vm, name, name_size)?;
                let state = vm.data();
                let id = state.shared.borrow_mut().register_queue(state.vm, &name);
                write_number(
                    vm,
                    id_at,
                    id.ok_or(Failure::Status(status::INTERNAL_FAILURE))?,
                )
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_resolve_shared_queue",
        |mut vm: Vm<'_>, _id: i32, _id_size: i32, name: i32, name_size: i32, id_at: i32| {
            call(&mut vm, "proxy_resolve_shared_queue", |vm| {
                let name = bytes(vm, name, name_size)?;
                let id = vm.data().shared.borrow().resolve_queue(&name);
                write_number(vm, id_at, id.ok_or(Failure::Status(status::NOT_FOUND))?)
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_enqueue_shared_queue",
        |mut vm: Vm<'_>, id: i32, at: i32, size: i32| {
            call(&mut vm, "proxy_enqueue_shared_queue", |vm| {
                let entry = bytes(vm, at, size)?;
                let shared = vm.data().shared.clone();
                as_status(shared.borrow_mut().enqueue(id.cast_unsigned(), &entry))
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_dequeue_shared_queue",
        |mut vm: Vm<'_>, id: i32, at: i32, size_at: i32| {
            call(&mut vm, "proxy_dequeue_shared_queue", |vm| {
                let entry = vm.data().shared.borrow_mut().dequeue(id.cast_unsigned());
                give(vm, &entry.map_err(Failure::Status)?, at, size_at)
            })
        },
    )?;
    Ok(())
}

fn metrics(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_define_metric",
        |mut vm: Vm<'_>, kind: i32, name: i32, name_size: i32, id_at: i32| {
            call(&mut vm, "proxy_define_metric", |vm| {
                let name = bytes(vm, name, name_size)?;
                let kind = match kind {
                    0 => MetricKind::Counter,
                    1 => MetricKind::Gauge,
                    2 => MetricKind::Histogram,
                    _ => return refused(status::BAD_ARGUMENT),
                };
                let name = String::from_utf8_lossy(&name).into_owned();
                let id = vm.data().shared.borrow_mut().define(name, kind);
                write_number(
                    vm,
                    id_at,
                    id.ok_or(Failure::Status(status::INTERNAL_FAILURE))?,
                )
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_increment_metric",
        |mut vm: Vm<'_>, id: i32, amount: i64| {
            call(&mut vm, "proxy_increment_metric", |vm| {
                let shared = vm.data().shared.clone();
                let mut shared = shared.borrow_mut();
                let metric = shared.metric(id.cast_unsigned());
                let metric = metric.ok_or(Failure::Status(status::NOT_FOUND))?;
                // Envoy refuses to decrement a counter, and to change a counter by 0.
                if metric.kind == MetricKind::Histogram
                    || (metric.kind == MetricKind::Counter && amount <= 0)
                {
                    return refused(status::BAD_ARGUMENT);
                }
                metric.value = metric.value.saturating_add(amount);
                Ok(())
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_record_metric",
        |mut vm: Vm<'_>, id: i32, value: i64| {
            call(&mut vm, "proxy_record_metric", |vm| {
                let shared = vm.data().shared.clone();
                let mut shared = shared.borrow_mut();
                let metric = shared.metric(id.cast_unsigned());
                let metric = metric.ok_or(Failure::Status(status::NOT_FOUND))?;
                match metric.kind {
                    MetricKind::Counter => return refused(status::BAD_ARGUMENT),
                    MetricKind::Gauge => metric.value = value,
                    MetricKind::Histogram => metric.value = metric.value.saturating_add(1),
                }
                Ok(())
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_metric",
        |mut vm: Vm<'_>, id: i32, value_at: i32| {
            call(&mut vm, "proxy_get_metric", |vm| {
                let shared = vm.data().shared.clone();
                let mut shared = shared.borrow_mut();
                let metric = shared.metric(id.cast_unsigned());
                let metric = metric.ok_or(Failure::Status(status::NOT_FOUND))?;
                let value = metric.value.to_le_bytes();
                write(vm, value_at, &value)
            })
        },
    )?;
    Ok(())
}

fn as_status(code: i32) -> Answered {
    if code == status::OK {
        Ok(())
    } else {
        refused(code)
    }
}

//! Host calls for data and queues that VMs share, and for metrics.

use super::{
    Answered, Calls, ENV, Failure, Vm, bytes, call, found, give, refused, write, write_number,
};
use crate::abi::status;
use crate::shared::{Metric, MetricKind};
use wasmtime::Result;

pub(super) fn define(calls: &mut Calls<'_>) -> Result<()> {
    data(calls)?;
    queues(calls)?;
    metrics(calls)
}

fn data(calls: &mut Calls<'_>) -> Result<()> {
    calls.define(
        "proxy_get_shared_data",
        |vm, [key, key_size, at, size_at, number_at]| {
            let key = bytes(vm, key, key_size)?;
            let shared = vm.data().shared.clone();
            let shared = shared.borrow();
            let (value, number) = found(shared.get(&key))?;
            give(vm, value, at, size_at)?;
            write_number(vm, number_at, number)
        },
    )?;
    calls.define(
        "proxy_set_shared_data",
        |vm, [key, key_size, at, size, number]| {
            let key = bytes(vm, key, key_size)?;
            let value = bytes(vm, at, size)?;
            let number = number.cast_unsigned();
            as_status(vm.data().shared.borrow_mut().set(&key, &value, number))
        },
    )
}

fn queues(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("proxy_register_shared_queue", |vm, [name, size, id_at]| {
        let name = bytes(vm, name, size)?;
        let state = vm.data();
        let id = state.shared.borrow_mut().register_queue(state.vm, &name);
        let id = id.ok_or(Failure::Status(status::INTERNAL_FAILURE))?;
        write_number(vm, id_at, id)
    })?;
    calls.define(
        "proxy_resolve_shared_queue",
        |vm, [_id, _id_size, name, name_size, id_at]| {
            let name = bytes(vm, name, name_size)?;
            let id = vm.data().shared.borrow().resolve_queue(&name);
            write_number(vm, id_at, found(id)?)
        },
    )?;
    calls.define("proxy_enqueue_shared_queue", |vm, [id, at, size]| {
        let entry = bytes(vm, at, size)?;
        let shared = vm.data().shared.clone();
        as_status(shared.borrow_mut().enqueue(id.cast_unsigned(), &entry))
    })?;
    calls.define("proxy_dequeue_shared_queue", |vm, [id, at, size_at]| {
        let entry = vm.data().shared.borrow_mut().dequeue(id.cast_unsigned());
        give(vm, &entry.map_err(Failure::Status)?, at, size_at)
    })
}

fn metrics(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("proxy_define_metric", |vm, [kind, name, size, id_at]| {
        let name = bytes(vm, name, size)?;
        let kind = match kind {
            0 => MetricKind::Counter,
            1 => MetricKind::Gauge,
            2 => MetricKind::Histogram,
            _ => return refused(status::BAD_ARGUMENT),
        };
        let name = String::from_utf8_lossy(&name).into_owned();
        let id = vm.data().shared.borrow_mut().define(name, kind);
        let id = id.ok_or(Failure::Status(status::INTERNAL_FAILURE))?;
        write_number(vm, id_at, id)
    })?;
    calls.linker.func_wrap(
        ENV,
        "proxy_increment_metric",
        |mut vm: Vm<'_>, id: i32, amount: i64| {
            call(&mut vm, "proxy_increment_metric", |vm| {
                with_metric(vm, id, |metric| match metric.kind {
                    // Envoy refuses to decrement a counter, and to change a counter by 0.
                    MetricKind::Counter if amount <= 0 => refused(status::BAD_ARGUMENT),
                    MetricKind::Histogram => refused(status::BAD_ARGUMENT),
                    MetricKind::Counter | MetricKind::Gauge => {
                        metric.value = metric.value.saturating_add(amount);
                        Ok(())
                    }
                })
            })
        },
    )?;
    calls.linker.func_wrap(
        ENV,
        "proxy_record_metric",
        |mut vm: Vm<'_>, id: i32, value: i64| {
            call(&mut vm, "proxy_record_metric", |vm| {
                with_metric(vm, id, |metric| {
                    match metric.kind {
                        MetricKind::Counter => return refused(status::BAD_ARGUMENT),
                        MetricKind::Gauge => metric.value = value,
                        MetricKind::Histogram => metric.value = metric.value.saturating_add(1),
                    }
                    Ok(())
                })
            })
        },
    )?;
    calls.define("proxy_get_metric", |vm, [id, value_at]| {
        let value = with_metric(vm, id, |metric| Ok(metric.value))?;
        write(vm, value_at, &value.to_le_bytes())
    })
}

/// Calls `work` with the metric of this id; fails with `NOT_FOUND` if there is none.
fn with_metric<T>(
    vm: &Vm<'_>,
    id: i32,
    work: impl FnOnce(&mut Metric) -> Answered<T>,
) -> Answered<T> {
    let mut shared = vm.data().shared.borrow_mut();
    work(found(shared.metric(id.cast_unsigned()))?)
}

fn as_status(code: i32) -> Answered {
    match code {
        status::OK => Ok(()),
        code => refused(code),
    }
}

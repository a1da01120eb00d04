//! Host calls with effects outside the request's data: cluster calls, resuming, responding or closing; log, clock and
//! tick.

use super::{ENV, Failure, Vm, bytes, call, give, refused, write, write_number};
use crate::abi::{self, status};
use crate::state::{LEVELS, LocalResponse, PendingCall, State};
use wasmtime::{Linker, Result};

pub(super) fn define(linker: &mut Linker<State>) -> Result<()> {
    streams(linker)?;
    clusters(linker)?;
    environment(linker)?;
    absent(linker)
}

fn streams(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_continue_stream",
        |mut vm: Vm<'_>, stream: i32| {
            call(&mut vm, "proxy_continue_stream", |vm| {
                let goes = &mut vm.data_mut().stream;
                match stream {
                    REQUEST => goes.request_goes_on = true,
                    RESPONSE => goes.response_goes_on = true,
                    _ => return refused(status::BAD_ARGUMENT),
                }
                Ok(())
            })
        },
    )?;
    linker.func_wrap(ENV, "proxy_close_stream", |mut vm: Vm<'_>, stream: i32| {
        call(&mut vm, "proxy_close_stream", |vm| match stream {
            REQUEST | RESPONSE => {
                vm.data_mut().stream.is_closed = true;
                Ok(())
            }
            _ => refused(status::BAD_ARGUMENT),
        })
    })?;
    linker.func_wrap(
        ENV,
        "proxy_send_local_response",
        |mut vm: Vm<'_>,
         status: i32,
         details: i32,
         details_size: i32,
         body: i32,
         body_size: i32,
         headers: i32,
         headers_size: i32,
         _grpc_status: i32| {
            call(&mut vm, "proxy_send_local_response", |vm| {
                bytes(vm, details, details_size)?;
                let body = bytes(vm, body, body_size)?;
                let headers = bytes(vm, headers, headers_size)?;
                let headers = abi::read(&headers).ok_or(Failure::Status(status::BAD_ARGUMENT))?;
                // Envoy sends only the first response.
                vm.data_mut().stream.local.get_or_insert(LocalResponse {
                    status: status.cast_unsigned(),
                    headers,
                    body,
                });
                Ok(())
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_set_effective_context",
        |mut vm: Vm<'_>, context: i32| {
            call(&mut vm, "proxy_set_effective_context", |vm| {
                vm.data_mut().context = context;
                Ok(())
            })
        },
    )?;
    linker.func_wrap(ENV, "proxy_done", |mut vm: Vm<'_>| {
        call(&mut vm, "proxy_done", |_| Ok(()))
    })?;
    Ok(())
}

fn clusters(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_http_call",
        |mut vm: Vm<'_>,
         cluster: i32,
         cluster_size: i32,
         headers: i32,
         headers_size: i32,
         body: i32,
         body_size: i32,
         trailers: i32,
         trailers_size: i32,
         _timeout_ms: i32,
         token_at: i32| {
            call(&mut vm, "proxy_http_call", |vm| {
                let cluster = bytes(vm, cluster, cluster_size)?;
                let headers = bytes(vm, headers, headers_size)?;
                bytes(vm, body, body_size)?;
                let trailers = bytes(vm, trailers, trailers_size)?;
                let read = abi::read(&headers).zip(abi::read(&trailers));
                let (headers, _) = read.ok_or(Failure::Status(status::BAD_ARGUMENT))?;
                let has = |name: &[u8]| headers.iter().any(|(known, _)| known == name);
                if !(has(b":method") && has(b":path") && has(b":authority")) {
                    return refused(status::BAD_ARGUMENT);
                }
                let state = vm.data_mut();
                if state.pending.len() >= PENDING {
                    return refused(status::INTERNAL_FAILURE);
                }
                let token = state.token();
                state.pending.push(PendingCall {
                    token,
                    context: state.context,
                    cluster: String::from_utf8_lossy(&cluster).into_owned(),
                });
                write_number(vm, token_at, token)
            })
        },
    )?;
    Ok(())
}

fn environment(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_log",
        |mut vm: Vm<'_>, level: i32, at: i32, size: i32| {
            call(&mut vm, "proxy_log", |vm| {
                let line = bytes(vm, at, size)?;
                let level = usize::try_from(level).ok().filter(|level| *level < LEVELS);
                let level = level.ok_or(Failure::Status(status::BAD_ARGUMENT))?;
                vm.data_mut().log(level, &line);
                Ok(())
            })
        },
    )?;
    linker.func_wrap(ENV, "proxy_get_log_level", |mut vm: Vm<'_>, at: i32| {
        call(&mut vm, "proxy_get_log_level", |vm| {
            write_number(vm, at, INFO)
        })
    })?;
    linker.func_wrap(
        ENV,
        "proxy_get_current_time_nanoseconds",
        |mut vm: Vm<'_>, at: i32| {
            call(&mut vm, "proxy_get_current_time_nanoseconds", |vm| {
                let now = vm.data_mut().read_clock();
                write(vm, at, &now.to_le_bytes())
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_set_tick_period_milliseconds",
        |mut vm: Vm<'_>, period: i32| {
            call(&mut vm, "proxy_set_tick_period_milliseconds", |vm| {
                vm.data_mut().tick_ms = period.cast_unsigned();
                Ok(())
            })
        },
    )?;
    Ok(())
}

/// Defines gRPC and foreign functions, all of which report that they are unavailable.
fn absent(linker: &mut Linker<State>) -> Result<()> {
    macro_rules! unimplemented {
        ($name:literal, $($argument:ident),*) => {
            linker.func_wrap(ENV, $name, |mut vm: Vm<'_>, $($argument: i32),*| {
                let _ = ($($argument,)*);
                call(&mut vm, $name, |_| refused(status::UNIMPLEMENTED))
            })?;
        };
    }
    unimplemented!("proxy_grpc_call", a, b, c, d, e, f, g, h, i, j, k, l);
    unimplemented!("proxy_grpc_stream", a, b, c, d, e, f, g, h, i);
    unimplemented!("proxy_grpc_send", a, b, c, d);
    unimplemented!("proxy_grpc_cancel", a);
    unimplemented!("proxy_grpc_close", a);
    unimplemented!("proxy_call_foreign_function", a, b, c, d, e, f);
    linker.func_wrap(
        ENV,
        "proxy_get_status",
        |mut vm: Vm<'_>, code_at: i32, at: i32, size_at: i32| {
            call(&mut vm, "proxy_get_status", |vm| {
                write_number(vm, code_at, 0)?;
                give(vm, &[], at, size_at)
            })
        },
    )?;
    Ok(())
}

const REQUEST: i32 = 0;
const RESPONSE: i32 = 1;
const INFO: u32 = 2;
/// Most cluster calls of one VM in flight.
const PENDING: usize = 1024;

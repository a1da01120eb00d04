//! Host calls for HTTP calls, for resuming, answering and closing requests, and for log, clock and tick.

use super::{Answered, Calls, Vm, bytes, give, refused, valid, write, write_number};
use crate::abi::{self, status};
use crate::request::LocalResponse;
use crate::state::{LEVELS, PendingCall};
use wasmtime::Result;

pub(super) fn define(calls: &mut Calls<'_>) -> Result<()> {
    streams(calls)?;
    clusters(calls)?;
    environment(calls)?;
    absent(calls)
}

fn streams(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("proxy_continue_stream", |vm, [stream]| {
        let goes = &mut vm.data_mut().stream;
        match stream {
            REQUEST => goes.request_goes_on = true,
            RESPONSE => goes.response_goes_on = true,
            _ => return refused(status::BAD_ARGUMENT),
        }
        Ok(())
    })?;
    calls.define("proxy_close_stream", |vm, [stream]| match stream {
        REQUEST | RESPONSE => {
            vm.data_mut().stream.is_closed = true;
            Ok(())
        }
        _ => refused(status::BAD_ARGUMENT),
    })?;
    calls.define(
        "proxy_send_local_response",
        |vm,
         [
            status,
            details,
            details_size,
            body,
            body_size,
            headers,
            headers_size,
            _grpc_status,
        ]| {
            bytes(vm, details, details_size)?;
            let body = bytes(vm, body, body_size)?;
            let headers = valid(abi::read(&bytes(vm, headers, headers_size)?))?;
            // Envoy sends only the first of several responses.
            vm.data_mut().stream.local.get_or_insert(LocalResponse {
                status: status.cast_unsigned(),
                headers,
                body,
            });
            Ok(())
        },
    )?;
    calls.define("proxy_set_effective_context", |vm, [context]| {
        vm.data_mut().context = context;
        Ok(())
    })?;
    calls.define("proxy_done", |_, []| Ok(()))
}

fn clusters(calls: &mut Calls<'_>) -> Result<()> {
    calls.define(
        "proxy_http_call",
        |vm,
         [
            cluster,
            cluster_size,
            headers,
            headers_size,
            body,
            body_size,
            trailers,
            trailers_size,
            _timeout_ms,
            token_at,
        ]| {
            let cluster = bytes(vm, cluster, cluster_size)?;
            let headers = bytes(vm, headers, headers_size)?;
            bytes(vm, body, body_size)?;
            let trailers = bytes(vm, trailers, trailers_size)?;
            let (headers, _) = valid(abi::read(&headers).zip(abi::read(&trailers)))?;
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
        },
    )
}

fn environment(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("proxy_log", |vm, [level, at, size]| {
        let line = bytes(vm, at, size)?;
        let level = usize::try_from(level).ok().filter(|level| *level < LEVELS);
        vm.data_mut().log(valid(level)?, &line);
        Ok(())
    })?;
    calls.define("proxy_get_log_level", |vm, [at]| write_number(vm, at, INFO))?;
    calls.define("proxy_get_current_time_nanoseconds", |vm, [at]| {
        let now = vm.data_mut().read_clock();
        write(vm, at, &now.to_le_bytes())
    })?;
    calls.define("proxy_set_tick_period_milliseconds", |vm, [period]| {
        vm.data_mut().tick_ms = period.cast_unsigned();
        Ok(())
    })
}

/// Defines the calls for gRPC and foreign functions, which return `UNIMPLEMENTED`.
fn absent(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("proxy_grpc_call", unimplemented::<12>)?;
    calls.define("proxy_grpc_stream", unimplemented::<9>)?;
    calls.define("proxy_grpc_send", unimplemented::<4>)?;
    calls.define("proxy_grpc_cancel", unimplemented::<1>)?;
    calls.define("proxy_grpc_close", unimplemented::<1>)?;
    calls.define("proxy_call_foreign_function", unimplemented::<6>)?;
    calls.define("proxy_get_status", |vm, [code_at, at, size_at]| {
        write_number(vm, code_at, 0)?;
        give(vm, &[], at, size_at)
    })
}

fn unimplemented<const N: usize>(_: &mut Vm<'_>, _: [i32; N]) -> Answered {
    refused(status::UNIMPLEMENTED)
}

const REQUEST: i32 = 0;
const RESPONSE: i32 = 1;
const INFO: u32 = 2;
/// Maximum number of HTTP calls of a VM that wait for an answer.
const PENDING: usize = 1024;

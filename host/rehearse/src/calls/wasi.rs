//! The part of WASI that Envoy supports. The clock and random numbers are the same in every run. No files or arguments.

use super::{Answered, Calls, Failure, Vm, bytes, call, offset, refused, write, write_number};
use crate::fault::FaultKind;
use crate::state::State;
use wasmtime::{Linker, Result};

const WASI: &str = "wasi_snapshot_preview1";

/// WASI's error number for a file that is not open.
const BAD_DESCRIPTOR: i32 = 8;
/// WASI's error number for an address outside the module's memory.
const FAULT: i32 = 21;

pub(super) fn define(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        WASI,
        "proc_exit",
        |mut vm: Vm<'_>, code: i32| -> Result<()> {
            vm.data_mut().count("proc_exit");
            Err(FaultKind::Exit(code).into())
        },
    )?;
    linker.func_wrap(
        WASI,
        "clock_time_get",
        |mut vm: Vm<'_>, _clock: i32, _precision: i64, at: i32| {
            call(&mut vm, "clock_time_get", |vm| {
                let now = vm.data_mut().read_clock();
                write(vm, at, &now.to_le_bytes()).or_else(|_| refused(FAULT))
            })
        },
    )?;
    linker.func_wrap(
        WASI,
        "fd_seek",
        |mut vm: Vm<'_>, _file: i32, _offset: i64, _from: i32, _at: i32| {
            call(&mut vm, "fd_seek", |_| refused(BAD_DESCRIPTOR))
        },
    )?;
    let calls = &mut Calls {
        linker,
        module: WASI,
        memory_fault: FAULT,
    };
    calls.define("random_get", |vm, [at, size]| {
        vm.data_mut().take(offset(size))?;
        let random = &mut vm.data_mut().random;
        let bytes: Vec<u8> = (0..offset(size)).map(|_| random.bits() as u8).collect();
        write(vm, at, &bytes)
    })?;
    calls.define("clock_res_get", |vm, [_clock, at]| {
        write(vm, at, &1_000_u64.to_le_bytes())
    })?;
    calls.define("sched_yield", |_, []| Ok(()))?;
    strings(calls)?;
    files(calls)
}

/// Defines the calls for arguments, of which there are none, and for the environment.
fn strings(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("args_sizes_get", |vm, [count_at, size_at]| {
        write_number(vm, count_at, 0)?;
        write_number(vm, size_at, 0)
    })?;
    calls.define("args_get", |_, [_at, _text_at]| Ok(()))?;
    calls.define("environ_sizes_get", |vm, [count_at, size_at]| {
        let lines = lines(vm);
        let size: usize = lines.iter().map(Vec::len).sum();
        write_number(vm, count_at, number(lines.len())?)?;
        write_number(vm, size_at, number(size)?)
    })?;
    calls.define("environ_get", |vm, [at, text_at]| {
        let mut text = text_at.cast_unsigned();
        for (entry, line) in (at.cast_unsigned()..).step_by(4).zip(lines(vm)) {
            write_number(vm, entry.cast_signed(), text)?;
            write(vm, text.cast_signed(), &line)?;
            let end = text.checked_add(number(line.len())?);
            text = end.ok_or(Failure::Status(FAULT))?;
        }
        Ok(())
    })
}

/// Defines the file calls. Standard output and error go to the log; no other file is open.
fn files(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("fd_write", |vm, [file, parts, count, written_at]| {
        let level = match file {
            1 => INFO,
            2 => ERROR,
            _ => return refused(BAD_DESCRIPTOR),
        };
        let size = count.checked_mul(8).ok_or(Failure::Status(FAULT))?;
        let mut line = Vec::new();
        for part in bytes(vm, parts, size)?
            .as_chunks::<4>()
            .0
            .as_chunks::<2>()
            .0
        {
            let [at, size] = part.map(i32::from_le_bytes);
            line.extend(bytes(vm, at, size)?);
        }
        write_number(vm, written_at, number(line.len())?)?;
        vm.data_mut().log(level, &line);
        Ok(())
    })?;
    calls.define("fd_close", closed::<1>)?;
    calls.define("fd_fdstat_get", closed::<2>)?;
    calls.define("fd_prestat_get", closed::<2>)?;
    calls.define("fd_prestat_dir_name", closed::<3>)?;
    calls.define("fd_read", closed::<4>)
}

fn closed<const N: usize>(_: &mut Vm<'_>, _: [i32; N]) -> Answered {
    refused(BAD_DESCRIPTOR)
}

/// Returns the variables as `NAME=value`, each followed by a 0 byte.
fn lines(vm: &Vm<'_>) -> Vec<Vec<u8>> {
    let environment = vm.data().environment.iter();
    let lines = environment.map(|(name, value)| format!("{name}={value}\0").into_bytes());
    lines.collect()
}

fn number(length: usize) -> Answered<u32> {
    u32::try_from(length).map_err(|_| Failure::Status(FAULT))
}

const INFO: usize = 2;
const ERROR: usize = 4;

//! The part of WASI that Envoy supports. Clock and random numbers are the same in every run; there are no files or
//! arguments.

use super::{Answered, Failure, Vm, bytes, offset, refused, write, write_number};
use crate::limits::Exited;
use crate::state::State;
use wasmtime::{Linker, Result};

const WASI: &str = "wasi_snapshot_preview1";

/// Error numbers of WASI preview 1.
const BAD_DESCRIPTOR: i32 = 8;
const FAULT: i32 = 21;

pub(super) fn define(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        WASI,
        "proc_exit",
        |mut vm: Vm<'_>, code: i32| -> Result<()> {
            vm.data_mut().count("proc_exit");
            Err(Exited(code).into())
        },
    )?;
    linker.func_wrap(WASI, "random_get", |mut vm: Vm<'_>, at: i32, size: i32| {
        call(&mut vm, "random_get", |vm| {
            vm.data_mut().take(offset(size))?;
            let random = &mut vm.data_mut().random;
            let bytes: Vec<u8> = (0..offset(size)).map(|_| random.bits() as u8).collect();
            write(vm, at, &bytes)
        })
    })?;
    linker.func_wrap(
        WASI,
        "clock_time_get",
        |mut vm: Vm<'_>, _clock: i32, _precision: i64, at: i32| {
            call(&mut vm, "clock_time_get", |vm| {
                let now = vm.data_mut().read_clock();
                write(vm, at, &now.to_le_bytes())
            })
        },
    )?;
    linker.func_wrap(
        WASI,
        "clock_res_get",
        |mut vm: Vm<'_>, _clock: i32, at: i32| {
            call(&mut vm, "clock_res_get", |vm| {
                write(vm, at, &1_000_u64.to_le_bytes())
            })
        },
    )?;
    linker.func_wrap(WASI, "sched_yield", |mut vm: Vm<'_>| {
        call(&mut vm, "sched_yield", |_| Ok(()))
    })?;
    strings(linker)?;
    files(linker)
}

/// Defines arguments, of which there are none, and the environment.
fn strings(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        WASI,
        "args_sizes_get",
        |mut vm: Vm<'_>, count_at: i32, size_at: i32| {
            call(&mut vm, "args_sizes_get", |vm| {
                write_number(vm, count_at, 0)?;
                write_number(vm, size_at, 0)
            })
        },
    )?;
    linker.func_wrap(
        WASI,
        "args_get",
        |mut vm: Vm<'_>, _at: i32, _text_at: i32| call(&mut vm, "args_get", |_| Ok(())),
    )?;
    linker.func_wrap(
        WASI,
        "environ_sizes_get",
        |mut vm: Vm<'_>, count_at: i32, size_at: i32| {
            call(&mut vm, "environ_sizes_get", |vm| {
                let lines = lines(vm);
                let size: usize = lines.iter().map(Vec::len).sum();
                write_number(vm, count_at, number(lines.len())?)?;
                write_number(vm, size_at, number(size)?)
            })
        },
    )?;
    linker.func_wrap(
        WASI,
        "environ_get",
        |mut vm: Vm<'_>, at: i32, text_at: i32| {
            call(&mut vm, "environ_get", |vm| {
                let mut text = text_at.cast_unsigned();
                for (entry, line) in (at.cast_unsigned()..).step_by(4).zip(lines(vm)) {
                    write_number(vm, entry.cast_signed(), text)?;
                    write(vm, text.cast_signed(), &line)?;
                    let end = text.checked_add(number(line.len())?);
                    text = end.ok_or(Failure::Status(FAULT))?;
                }
                Ok(())
            })
        },
    )?;
    Ok(())
}

/// Defines file calls. Standard output and error go to the log; no other file is open.
fn files(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        WASI,
        "fd_write",
        |mut vm: Vm<'_>, file: i32, parts: i32, count: i32, written_at: i32| {
            call(&mut vm, "fd_write", |vm| {
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
            })
        },
    )?;
    macro_rules! closed {
        ($name:literal, $($argument:ident: $kind:ty),*) => {
            linker.func_wrap(WASI, $name, |mut vm: Vm<'_>, $($argument: $kind),*| {
                let _ = ($($argument,)*);
                call(&mut vm, $name, |_| refused(BAD_DESCRIPTOR))
            })?;
        };
    }
    closed!("fd_close", a: i32);
    closed!("fd_fdstat_get", a: i32, b: i32);
    closed!("fd_prestat_get", a: i32, b: i32);
    closed!("fd_prestat_dir_name", a: i32, b: i32, c: i32);
    closed!("fd_read", a: i32, b: i32, c: i32, d: i32);
    closed!("fd_seek", a: i32, b: i64, c: i32, d: i32);
    Ok(())
}

/// Like [`super::call`], with WASI's error number for invalid addresses.
fn call(
    vm: &mut Vm<'_>,
    name: &'static str,
    work: impl FnOnce(&mut Vm<'_>) -> Answered,
) -> Result<i32> {
    let answer = super::call(vm, name, work)?;
    Ok(match answer {
        crate::abi::status::INVALID_MEMORY_ACCESS => FAULT,
        other => other,
    })
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

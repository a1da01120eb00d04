//! Runs the tests of this folder once more, through a stand-in for CUDA's driver and cuBLASLt (`kernels/standin`). This
//! covers what the emulator alone does not: contexts, streams, events, graphs, modules, the library's descriptors and
//! staged copies go through the driver, as on a device, and the two streams run as far apart as CUDA allows.
//!
//! A process loads libraries only once, so each case is a separate process: this program again, with the path of the
//! stand-in.

use super::emulated::compile;
use super::models::{checkpoints, config};
use crate::backend::cuda::device::Device;
use crate::backend::cuda::driver::{self, Driver};
use crate::backend::cuda::{CudaBackend, CudaConfig, CudaPrecision};
use crate::backend::tests::segment;
use crate::backend::{Backend, BackendError, Output, Step};
use crate::engine::{Engine, EngineConfig, Event, Failure, Health, Request};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Environment variable that is set for a process that finds the stand-in in place of CUDA.
const LOADED: &str = "FOREWORD_STANDIN";

/// Returns whether this process runs on the stand-in.
pub(super) fn is_loaded() -> bool {
    std::env::var_os(LOADED).is_some()
}

/// Returns a folder with the stand-in under both its names, or why there is none.
fn folder() -> Result<&'static Path, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(make_folder).as_deref();
    made.map_err(Clone::clone)
}

fn make_folder() -> Result<PathBuf, String> {
    let library = compile("standin/driver.cpp")?;
    let folder = library.with_extension("");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcublasLt.so"] {
        let link = folder.join(name);
        if !link.exists() {
            // Another process may have created the link already.
            let _ = std::os::unix::fs::symlink(&library, &link);
            assert!(link.exists(), "{} cannot be made", link.display());
        }
    }
    Ok(folder)
}

/// Runs tests of this program on the stand-in.
fn run(tests: &[&str], setting: (&str, &str)) {
    if !driver::is_built_in(9, 0) {
        return eprintln!(
            "SKIPPED: the kernels are not built in; `cargo xtask kernels` compiles them"
        );
    }
    let folder = match folder() {
        Ok(folder) => folder,
        Err(reason) => return eprintln!("SKIPPED: {reason}"),
    };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(tests)
        .args(["--test-threads", "1"])
        .env("LD_LIBRARY_PATH", folder)
        .env(setting.0, setting.1)
        .env(LOADED, "1")
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(!out.contains("running 0 tests"), "{out}");
}

/// Runs all tests, with one of the two streams as late as possible.
fn run_late(stream: &str) {
    if !is_loaded() {
        run(
            &["cuda::tests::", "--skip", "standin", "--skip", "steps"],
            ("FOREWORD_LATE", stream),
        );
    }
}

#[test]
fn through_the_driver_with_arithmetic_as_late_as_can_be() {
    run_late("first");
}

#[test]
fn through_the_driver_with_copies_as_late_as_can_be() {
    run_late("second");
}

#[test]
fn a_device_that_breaks_ends_the_engine_in_words() {
    if !is_loaded() {
        let own = "standin::a_device_that_breaks_ends_the_engine_in_words";
        return run(&[own], ("FOREWORD_BREAKS", "norm_rows:7"));
    }
    let open = || {
        let device = Box::new(Driver::open(0).map_err(|error| error.to_string())?);
        let checkpoint = &checkpoints()[2];
        let backend = CudaBackend::build(checkpoint, &config(), device, &mut |_, _| {});
        let backend = backend.map_err(|error| error.to_string())?;
        Ok(Box::new(backend) as Box<dyn Backend>)
    };
    let backend = open().unwrap();
    let engine = Engine::guarded(backend, Box::new(open), EngineConfig::default());
    let request = Request {
        prompt: vec![1; 20],
        max_tokens: 9,
        ..Request::default()
    };
    let mut generation = engine.submit(request).unwrap();
    let end = loop {
        match generation.blocking_next() {
            Some(Event::Started { .. } | Event::Token { .. }) => {}
            end => break end,
        }
    };
    let Some(Event::Failed(Failure::Device(reason))) = end else {
        panic!("{end:?}");
    };
    assert!(reason.contains("ILLEGAL_ADDRESS"), "{reason}");
    engine.shutdown();
    let Health::Ended { reason } = engine.health() else {
        panic!("{:?}", engine.health());
    };
    assert!(reason.contains("device lost: ILLEGAL_ADDRESS"), "{reason}");
}

#[test]
fn a_driver_that_is_too_old_is_named_with_what_is_needed() {
    if !is_loaded() {
        let own = "standin::a_driver_that_is_too_old_is_named_with_what_is_needed";
        return run(&[own], ("FOREWORD_DRIVER", "12040"));
    }
    let absent = driver::unavailable(0).unwrap();
    assert!(absent.has_driver);
    assert_eq!(
        absent.reason,
        "the CUDA driver supports CUDA 12.4, and CUDA 13.0 is needed: update the driver to 580 or later"
    );
}

#[test]
fn a_device_of_a_later_version_computes_with_kernels_from_ptx() {
    let cut = "logits_agree_with_the_cpu_however_a_prompt_is_cut";
    if !is_loaded() {
        let own = "standin::a_device_of_a_later_version_computes_with_kernels_from_ptx";
        return run(&[own, cut], ("FOREWORD_MAJOR", "10"));
    }
    // Loaded without the variable, the stand-in is of version 9.
    if std::env::var_os("FOREWORD_MAJOR").is_some() {
        let device = Driver::open(0).unwrap();
        assert_eq!(device.name(), "emulator behind a driver (10.0)");
        assert!(!device.has_warpgroups());
    }
}

#[test]
fn fp8_is_refused_on_a_device_that_is_not_hopper() {
    if !is_loaded() {
        let own = "standin::fp8_is_refused_on_a_device_that_is_not_hopper";
        return run(&[own], ("FOREWORD_MAJOR", "10"));
    }
    let config = CudaConfig {
        precision: CudaPrecision::Fp8,
        ..config()
    };
    let device = Box::new(Driver::open(0).unwrap());
    let built = CudaBackend::build(&checkpoints()[0], &config, device, &mut |_, _| {});
    assert_eq!(
        built.err().unwrap().to_string(),
        "products in FP8 are not available: the device has compute capability 10.0 and cuBLASLt 13.1, needed are 9.0 \
         (Hopper) and cuBLASLt 12.9 or later"
    );
}

#[test]
fn a_library_without_an_algorithm_for_fp8_is_named() {
    if !is_loaded() {
        let own = "standin::a_library_without_an_algorithm_for_fp8_is_named";
        return run(&[own], ("FOREWORD_NO_WARPGROUPS", "1"));
    }
    let mut device = Driver::open(0).unwrap();
    assert_eq!(device.refuses_fp8(32, 16), Ok(None));
    let reason = device.refuses_fp8(24, 16).unwrap().unwrap();
    assert!(
        reason.starts_with(
            "cuBLASLt 13.1 has no product of FP8 with a scale for each row: cuBLASLt: "
        ),
        "{reason}"
    );
}

#[test]
fn warpgroups_are_left_out_where_a_variable_says_so() {
    if !is_loaded() {
        let own = "standin::warpgroups_are_left_out_where_a_variable_says_so";
        return run(&[own], ("FOREWORD_NO_WARPGROUPS", "1"));
    }
    let device = Driver::open(0).unwrap();
    assert_eq!(
        device.has_warpgroups(),
        std::env::var_os("FOREWORD_NO_WARPGROUPS").is_none()
    );
}

#[test]
fn a_device_that_refuses_every_step_is_lost() {
    if !is_loaded() {
        let own = "standin::a_device_that_refuses_every_step_is_lost";
        return run(&[own], ("FOREWORD_REFUSES", "norm_rows:1"));
    }
    let device = Box::new(Driver::open(0).unwrap());
    let checkpoint = &checkpoints()[2];
    let mut backend = CudaBackend::build(checkpoint, &config(), device, &mut |_, _| {}).unwrap();
    let step = Step {
        segments: vec![segment(&[1, 2, 3], 0, [0], Output::Last)],
        ..Step::default()
    };
    for _ in 0..4 {
        let error = backend.run(&step, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, BackendError::Device(_)), "{error}");
    }
    let error = backend.run(&step, &mut Vec::new()).unwrap_err();
    assert!(
        matches!(&error, BackendError::Lost(reason) if reason.contains("5 steps in a row: OUT_OF_MEMORY")),
        "{error}"
    );
}

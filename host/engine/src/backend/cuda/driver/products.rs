//! Matrix products by cuBLASLt: operands in bf16, or in FP8 with a scale for each row and each output; sums in f32,
//! optionally added to the output.
//!
//! cuBLASLt is column-major, so `output [rows, outputs] = input · weightsᵀ` is `D (outputs x rows) = Aᵀ · B` in its
//! terms, with A = weights (inputs x outputs) and B = input (inputs x rows). The algorithm is requested once per shape
//! and kept.

use super::super::device::{Fault, Output, Product};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver;
use fxhash::FxHashMap;
use std::ffi::c_void;

/// cuBLASLt: its handle, its workspace, and for each shape of a matrix product the algorithm that it proposed.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    prepared: FxHashMap<Shape, PreparedProduct>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    inputs: usize,
    outputs: usize,
    kind: Kind,
    /// True if the operands are in FP8 (E4M3).
    fp8: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Bf16,
    F32,
    Add,
}

#[derive(Clone, Copy)]
struct PreparedProduct {
    product: sys::cublasLtMatmulDesc_t,
    weights: sys::cublasLtMatrixLayout_t,
    input: sys::cublasLtMatrixLayout_t,
    output: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// Bytes of scratch memory on the device for cuBLASLt: NVIDIA's advice for Hopper.
const WORKSPACE: usize = 32 << 20;

/// Maximum number of shapes of matrix products whose algorithms are kept; at the limit, all are dropped. A server sees
/// as many numbers of rows as there are lengths of prompts.
const MAX_PREPARED: usize = 4096;

/// The value of `CUBLAS_OP_T` (transpose the operand), which only cuBLAS's own header defines.
const TRANSPOSED: i32 = 1;

fn fault(error: CublasError) -> Fault {
    Fault::Refused(format!("cuBLASLt: {:?}", error.0))
}

/// Sets an attribute of a product. The value's type must be the attribute's.
fn set<T: Copy>(
    product: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<(), CublasError> {
    let pointer = std::ptr::from_ref(value).cast();
    // SAFETY: the library copies as many bytes as the value has, or refuses them; the product is one of `prepared`.
    unsafe { result::set_matmul_desc_attribute(product, attribute, pointer, size_of::<T>()) }
}

/// Sets the addresses of the scales of a product's weights and of its input.
fn set_scales(
    product: sys::cublasLtMatmulDesc_t,
    [weights, input]: [u64; 2],
) -> Result<(), CublasError> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    set(
        product,
        Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
        &weights,
    )?;
    set(
        product,
        Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        &input,
    )
}

impl Products {
    /// Creates cuBLASLt's handle and its workspace on the device. The device's context must be current.
    pub(super) fn new() -> Result<Self, Fault> {
        Ok(Self {
            handle: result::create_handle().map_err(fault)?,
            // SAFETY: a workspace needs no values.
            workspace: unsafe { driver::result::malloc_sync(WORKSPACE) }?,
            prepared: FxHashMap::default(),
        })
    }

    /// Returns the reason why cuBLASLt does not multiply operands in FP8 on a device of compute capability
    /// `capability`, with `inputs` and `outputs`; `None` if it does.
    pub(super) fn refuses_fp8(
        &mut self,
        capability: (u32, u32),
        inputs: usize,
        outputs: usize,
    ) -> Option<String> {
        // SAFETY: returns a number and nothing more.
        let version = unsafe { sys::cublasLtGetVersion() };
        let library = format!("cuBLASLt {}.{}", version / 10_000, version / 100 % 100);
        let (major, minor) = capability;
        // Later devices have no scales by row: https://github.com/NVIDIA/CUDALibrarySamples/issues/270.
        if major != 9 || version < 120_900 {
            return Some(format!(
                "the device has compute capability {major}.{minor} and {library}, needed are 9.0 (Hopper) and cuBLASLt \
                 12.9 or later"
            ));
        }
        let shape = |kind| Shape {
            rows: 16,
            inputs,
            outputs,
            kind,
            fp8: true,
        };
        let failed = [Kind::Bf16, Kind::F32, Kind::Add]
            .into_iter()
            .find_map(|kind| self.prepare(shape(kind)).err());
        failed.map(|fault| {
            format!("{library} has no product of FP8 with a scale for each row: {fault}")
        })
    }

    /// Queues a matrix product in `queue`. The algorithm for its shape is requested from the library on first use.
    pub(super) fn multiply(
        &mut self,
        product: &Product<'_>,
        queue: driver::sys::CUstream,
    ) -> Result<(), Fault> {
        let (output, kind) = match &product.output {
            Output::Bf16(output) => (output.address(), Kind::Bf16),
            Output::F32(output) => (output.address(), Kind::F32),
            Output::Add(output) => (output.address(), Kind::Add),
        };
        let (operands, scales) = (product.operands.addresses(), product.operands.scales());
        let prepared = self.prepare(Shape {
            rows: product.rows,
            inputs: product.inputs,
            outputs: product.outputs,
            kind,
            fp8: scales.is_some(),
        })?;
        if let Some(scales) = scales {
            set_scales(prepared.product, scales).map_err(fault)?;
        }
        let (one, beta) = (1.0f32, if kind == Kind::Add { 1.0f32 } else { 0.0 });
        // SAFETY: the operands have the shapes that `prepared` was made for, as `kernels::multiply` has checked.
        let outcome = unsafe {
            result::matmul(
                self.handle,
                prepared.product,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&beta).cast(),
                operands[0] as *const c_void,
                prepared.weights,
                operands[1] as *const c_void,
                prepared.input,
                output as *const c_void,
                prepared.output,
                output as *mut c_void,
                prepared.output,
                &prepared.algorithm,
                self.workspace as *mut c_void,
                WORKSPACE,
                queue.cast(),
            )
        };
        outcome.map_err(fault)
    }

    fn prepare(&mut self, shape: Shape) -> Result<PreparedProduct, Fault> {
        if let Some(prepared) = self.prepared.get(&shape) {
            return Ok(*prepared);
        }
        if self.prepared.len() == MAX_PREPARED {
            self.forget();
        }
        let prepared = self.find(shape).map_err(|error| {
            let Shape {
                rows,
                inputs,
                outputs,
                ..
            } = shape;
            Fault::Refused(format!(
                "cuBLASLt: {:?} for {rows} x {inputs} x {outputs}",
                error.0
            ))
        })?;
        self.prepared.insert(shape, prepared);
        Ok(prepared)
    }

    fn find(&self, shape: Shape) -> Result<PreparedProduct, CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let (rows, inputs, outputs) =
            (shape.rows as u64, shape.inputs as u64, shape.outputs as u64);
        let wide = sys::cudaDataType_t::CUDA_R_32F;
        let result_type = match shape.kind {
            Kind::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Kind::F32 | Kind::Add => wide,
        };
        let narrow = match shape.fp8 {
            true => sys::cudaDataType_t::CUDA_R_8F_E4M3,
            false => sys::cudaDataType_t::CUDA_R_16BF,
        };
        let product =
            result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, wide)?;
        let weights = result::create_matrix_layout(narrow, inputs, outputs, inputs as i64)?;
        let input = result::create_matrix_layout(narrow, inputs, rows, inputs as i64)?;
        let output = result::create_matrix_layout(result_type, outputs, rows, outputs as i64)?;
        if shape.fp8 {
            use sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            let mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F as i32;
            set(product, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode)?;
            set(product, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode)?;
            // The algorithm is requested with scales in place. Each product sets its own.
            set_scales(product, [self.workspace; 2])?;
        }
        set(product, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        let preference = result::create_matmul_pref()?;
        // SAFETY: attributes are given with their own types' sizes; every handle was made above.
        let found = unsafe {
            result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                std::ptr::from_ref(&WORKSPACE).cast(),
                size_of::<usize>(),
            )?;
            let found = result::get_matmul_algo_heuristic(
                self.handle,
                product,
                weights,
                input,
                output,
                output,
                preference,
            );
            result::destroy_matmul_pref(preference)?;
            found?
        };
        Ok(PreparedProduct {
            product,
            weights,
            input,
            output,
            algorithm: found.algo,
        })
    }

    fn forget(&mut self) {
        for (_, product) in self.prepared.drain() {
            // SAFETY: descriptors are read while a product is queued, not later.
            unsafe {
                let _ = result::destroy_matmul_desc(product.product);
                for layout in [product.weights, product.input, product.output] {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
        }
    }

    /// Frees the handle, the workspace and the algorithms.
    ///
    /// # Safety
    /// None of these products may be running, and none may be queued afterwards.
    pub(super) unsafe fn close(&mut self) {
        self.forget();
        // SAFETY: the caller's promise.
        unsafe {
            let _ = result::destroy_handle(self.handle);
            let _ = driver::result::free_sync(self.workspace);
        }
    }
}

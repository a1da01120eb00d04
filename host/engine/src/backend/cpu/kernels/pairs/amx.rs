//! AMX: detection, the operating system's permission, a self-check, and the instructions.
//!
//! The instructions are written in assembly, because stable Rust has no intrinsics for them. Tile registers live from
//! one `asm!` to the next: rustc never allocates them (no type lives there), so only these blocks and the kernel's
//! context switch touch them. A [`TileRegisters`] holds the configuration for as long as a product needs it.

use super::tiles::{Emulated, Unit, multiply, span};
use super::{BLOCK, DEPTH, Left, PANEL, Pair, PairProduct, ROWS, STEP_PAIRS, Start};
use half::bf16;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Proof that the CPU has AMX with bf16, that the operating system lets this process use it, and that a small product
/// was computed correctly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) struct Amx(());

impl Amx {
    /// Detects AMX. Returns `None` where the CPU or the operating system does not support it.
    ///
    /// # Errors
    /// Returns the reason if AMX cannot be used although it is present.
    pub(super) fn detect() -> Result<Option<Self>, String> {
        static FOUND: OnceLock<Result<bool, String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            if !has_instructions() {
                return Ok(false);
            }
            request_permission()?;
            // SAFETY: the CPU has the instructions and the process its permission.
            check(&mut unsafe { TileRegisters::configure() })?;
            Ok(true)
        });
        found.clone().map(|usable| usable.then_some(Self(())))
    }

    /// Configures the AMX tile registers of the calling thread; dropping the result releases them.
    pub(super) fn unit(self) -> TileRegisters {
        // SAFETY: an `Amx` exists.
        unsafe { TileRegisters::configure() }
    }
}

/// Returns whether CPU and operating system support AMX tiles of bf16 in the size that this module is written for.
fn has_instructions() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX_BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    /// Bits of the extended control register that the operating system sets if a context switch saves the tile
    /// registers and their configuration.
    const TILE_STATE: u64 = 0b11 << 17;
    if __cpuid(0).eax < 0x1d
        || __cpuid(1).ecx & OSXSAVE == 0
        || __cpuid_count(7, 0).edx & AMX_BF16_AND_TILE != AMX_BF16_AND_TILE
    {
        return false;
    }
    // SAFETY: `xgetbv` exists where the kernel has set OSXSAVE.
    let state = unsafe { extended_control() };
    // Palette 1: bytes of a tile and of all tiles; bytes of a row and number of tiles; rows of a tile.
    let palette = __cpuid_count(0x1d, 1);
    state & TILE_STATE == TILE_STATE
        && palette.eax == 1024 << 16 | 8192
        && palette.ebx == 8 << 16 | 64
        && palette.ecx & 0xffff == 16
}

/// Returns the extended control register, whose bits say which registers the operating system saves.
///
/// # Safety
/// The CPU must have `xgetbv`.
#[target_feature(enable = "xsave")]
unsafe fn extended_control() -> u64 {
    // SAFETY: see above.
    unsafe { _xgetbv(0) }
}

/// Asks Linux, once per process, to permit the use of AMX tile registers. The state that is saved for a thread grows by
/// 8 KiB when the thread first uses them.
#[cfg(target_os = "linux")]
fn request_permission() -> Result<(), String> {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: this call reads and writes no memory of ours; a kernel that does not know it returns an error.
    match unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) } {
        0 => Ok(()),
        _ => Err(format!(
            "the kernel refuses it, arch_prctl(ARCH_REQ_XCOMP_PERM, 18): {}",
            std::io::Error::last_os_error()
        )),
    }
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> Result<(), String> {
    Err("it was never tried on this operating system".into())
}

/// Checks that `unit` computes the same product as the emulation in software, or returns the first difference. The
/// values are small integers, so the product is exact in every order of addition. It covers two tiles of rows and part
/// of a third, two steps of inputs, and a start from earlier sums.
fn check(unit: &mut impl Unit) -> Result<(), String> {
    const ROW_COUNT: usize = 2 * ROWS + 5;
    let number =
        |i: usize, range: usize| bf16::from_f32((i * 31 % range) as f32 - (range / 2) as f32);
    let pair = |i: usize| [number(2 * i, 15), number(2 * i + 1, 13)];
    let a: Vec<Pair> = (0..3 * 2 * STEP_PAIRS).map(pair).collect();
    let b: Vec<Pair> = (0..PANEL * DEPTH).map(pair).collect();
    let sums: Vec<f32> = (0..ROW_COUNT * PANEL).map(|i| i as f32).collect();
    let run = |unit: &mut dyn FnMut(PairProduct<'_>)| {
        let mut c = sums.clone();
        unit(PairProduct {
            a: Left {
                pairs: &a,
                row: DEPTH / 2,
                step: STEP_PAIRS,
                tile: 2 * STEP_PAIRS,
                low: None,
                streamed: true,
            },
            rows: 0..ROW_COUNT,
            b: &b,
            next: &b,
            c: &mut c,
            columns: PANEL,
            start: Start::Sum,
        });
        c
    };
    let got = run(&mut |product| multiply(unit, product.check()));
    let expected = run(&mut |product| multiply(&mut Emulated::new(), product.check()));
    match got
        .iter()
        .zip(&expected)
        .position(|(got, expected)| got != expected)
    {
        None => Ok(()),
        Some(at) => Err(format!(
            "its self-check gives {} in row {}, column {}, expected {}",
            got[at],
            at / PANEL,
            at % PANEL,
            expected[at]
        )),
    }
}

/// The operand of the instruction `LDTILECFG`: palette 1, eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The AMX tile registers of the calling thread, configured. They are released on drop, because a context switch takes
/// longer for a thread with tiles in use.
pub(in super::super::super) struct TileRegisters {
    /// Keeps the value in its thread (neither `Send` nor `Sync`), to which the registers belong.
    thread: PhantomData<*const ()>,
}

impl TileRegisters {
    /// Configures the AMX tile registers of the calling thread.
    ///
    /// # Safety
    /// The CPU must have the instructions and the process the permission to use them, and no other [`TileRegisters`] of
    /// this thread may exist.
    unsafe fn configure() -> Self {
        // SAFETY: see above; the operand is 64 bytes in the manual's layout.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly, preserves_flags));
        }
        Self {
            thread: PhantomData,
        }
    }
}

impl Drop for TileRegisters {
    fn drop(&mut self) {
        // SAFETY: a value exists, so the CPU has the instruction; no other code uses this thread's tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

// SAFETY, for the blocks below: a value exists, so the CPU has the instructions, the process its permission, and the
// tiles are configured as 16 rows of 64 bytes; what they read and write is asserted to be within the slice. None is
// `pure` and none may be moved past another: to the compiler they have side effects.
impl Unit for TileRegisters {
    #[inline(always)]
    fn zero<const T: usize>(&mut self) {
        // SAFETY: see above.
        unsafe { asm!("tilezero tmm{}", const T, options(nostack, nomem, preserves_flags)) };
    }

    #[inline(always)]
    fn load_pairs<const T: usize>(&mut self, from: &[Pair], stride: usize) {
        assert!(from.len() >= span(stride));
        // SAFETY: see above.
        unsafe {
            asm!("tileloadd tmm{}, [{} + {}*1]", const T, in(reg) from.as_ptr(), in(reg) stride * size_of::<Pair>(),
                options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    fn stream_pairs<const T: usize>(&mut self, from: &[Pair], stride: usize) {
        assert!(from.len() >= span(stride));
        // SAFETY: see above.
        unsafe {
            asm!("tileloaddt1 tmm{}, [{} + {}*1]", const T, in(reg) from.as_ptr(), in(reg) stride * size_of::<Pair>(),
                options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    fn fetch(&mut self, pair: &Pair) {
        // SAFETY: every CPU has the instruction, and it changes nothing but caches.
        unsafe {
            asm!("prefetcht1 [{}]", in(reg) pair, options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    fn store_sums<const T: usize>(&mut self, to: &mut [f32], stride: usize) {
        assert!(to.len() >= span(stride));
        // SAFETY: see above.
        unsafe {
            asm!("tilestored [{} + {}*1], tmm{}", in(reg) to.as_mut_ptr(), in(reg) stride * size_of::<f32>(), const T,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn multiply<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: see above.
        unsafe {
            asm!("tdpbf16ps tmm{}, tmm{}, tmm{}", const C, const A, const B, options(nostack, nomem, preserves_flags));
        }
    }
}

// The self-check's product lies within one block.
const _: () = assert!(2 * DEPTH <= BLOCK);

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit that computes one place wrongly.
    struct Faulty(Emulated);

    impl Unit for Faulty {
        fn zero<const T: usize>(&mut self) {
            self.0.zero::<T>();
        }
        fn load_pairs<const T: usize>(&mut self, from: &[Pair], stride: usize) {
            self.0.load_pairs::<T>(from, stride);
        }
        fn stream_pairs<const T: usize>(&mut self, from: &[Pair], stride: usize) {
            self.0.stream_pairs::<T>(from, stride);
        }
        fn fetch(&mut self, pair: &Pair) {
            self.0.fetch(pair);
        }
        fn store_sums<const T: usize>(&mut self, to: &mut [f32], stride: usize) {
            self.0.store_sums::<T>(to, stride);
            if T == 3 {
                to[15 * stride + 15] += 1.0;
            }
        }
        fn multiply<const C: usize, const A: usize, const B: usize>(&mut self) {
            self.0.multiply::<C, A, B>();
        }
    }

    #[test]
    fn the_self_check_accepts_the_manual_and_names_a_wrong_sum() {
        assert_eq!(check(&mut Emulated::new()), Ok(()));
        let error = check(&mut Faulty(Emulated::new())).unwrap_err();
        assert!(error.contains("row 31, column 31"), "{error}");
    }
}

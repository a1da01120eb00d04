//! The room for the table: zeros in the module as it is built, filled in the module that `foreword compile-order` writes.
//!
//! A data segment for the room is added to the module's own, so its bytes are in memory before anything runs. A fresh
//! instance shares the pages of the table with all others until it writes to them, which it never does.

use foreword_ordering::order_table::TABLE_ROOM;

/// The room. Its address is exported under its name, where `foreword compile-order` finds it.
///
/// `static mut`, although nothing here writes to it: of an immutable static the compiler would take the zeros for granted.
#[allow(unsafe_code, reason = "an exported symbol; nothing else has this name")]
#[unsafe(no_mangle)]
static mut FOREWORD_ORDER_ROOM: [u8; TABLE_ROOM] = [0; TABLE_ROOM];

/// Returns the bytes of the room.
#[allow(
    unsafe_code,
    reason = "reads a static that the linker exports as mutable"
)]
pub(crate) fn bytes() -> &'static [u8] {
    let room = std::hint::black_box(&raw const FOREWORD_ORDER_ROOM);
    // SAFETY: the static lives as long as the program, and nothing ever writes to it.
    unsafe { &*room }
}

//! Writes a table into the room of a WebAssembly module: a data segment at the address that the module exports as
//! `FOREWORD_ORDER_ROOM`.
//!
//! ```text
//!   core module    … │ globals │ exports │ … │ data, plus a segment at the room's address │ …
//!   component      its core module as above │ everything else as it was
//! ```
//!
//! A segment that already stands at that address is replaced, so a module may be filled again. Sections are copied byte for
//! byte; only the data section, and the section that counts its segments, are written anew.

use thiserror::Error;

/// The exported symbol at whose address the table is written.
const ROOM: &[u8] = b"FOREWORD_ORDER_ROOM";

/// Why a table cannot be written into a file.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum BadModule {
    #[error("it is neither a WebAssembly module nor a component")]
    NotWasm,
    #[error("it is damaged: the {what} at byte {at} does not end where it should")]
    Damaged {
        /// The part of the module that was read.
        what: &'static str,
        /// Index of the byte at which the reading stopped.
        at: usize,
    },
    #[error(
        "it has no room for an order (no export FOREWORD_ORDER_ROOM); it must be one of Foreword's order modules"
    )]
    NoRoom,
}

/// Returns the module or component with `table` in its room.
///
/// # Errors
/// Returns [`BadModule`] if `bytes` are not a module with a room.
pub(crate) fn filled(bytes: &[u8], table: &[u8]) -> Result<Vec<u8>, BadModule> {
    match bytes.get(..8) {
        Some(MODULE) => filled_module(bytes, table),
        Some(COMPONENT) => filled_component(bytes, table),
        _ => Err(BadModule::NotWasm),
    }
}

const MODULE: &[u8] = b"\0asm\x01\0\0\0";
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// Section ids of a core module.
mod section {
    pub(super) const IMPORT: u8 = 2;
    pub(super) const GLOBAL: u8 = 6;
    pub(super) const EXPORT: u8 = 7;
    pub(super) const DATA: u8 = 11;
    pub(super) const DATA_COUNT: u8 = 12;
}

/// Fills the first core module of a component that has a room.
fn filled_component(bytes: &[u8], table: &[u8]) -> Result<Vec<u8>, BadModule> {
    const CORE_MODULE: u8 = 1;
    let mut written = COMPONENT.to_vec();
    let mut is_filled = false;
    for (id, payload) in sections(bytes)? {
        let filled = match id {
            CORE_MODULE if !is_filled && payload.starts_with(MODULE) => {
                match filled_module(payload, table) {
                    Err(BadModule::NoRoom) => None,
                    filled => Some(filled?),
                }
            }
            _ => None,
        };
        is_filled |= filled.is_some();
        put_section(&mut written, id, filled.as_deref().unwrap_or(payload));
    }
    if is_filled {
        Ok(written)
    } else {
        Err(BadModule::NoRoom)
    }
}

fn filled_module(bytes: &[u8], table: &[u8]) -> Result<Vec<u8>, BadModule> {
    let sections = sections(bytes)?;
    let payload = |wanted: u8| {
        let mut found = sections.iter();
        found
            .find(|(id, _)| *id == wanted)
            .map(|(_, payload)| *payload)
    };
    let room = exported_global(payload(section::EXPORT).unwrap_or(&[0]))?;
    let imported = imported_globals(payload(section::IMPORT).unwrap_or(&[0]))?;
    let room = room.checked_sub(imported).ok_or(BadModule::NoRoom)?;
    let address = global_value(payload(section::GLOBAL).unwrap_or(&[0]), room)?;

    let (mut count, mut segments) = kept_segments(payload(section::DATA).unwrap_or(&[0]), address)?;
    count += 1;
    segments.extend([0, I32_CONST]);
    put_i32(&mut segments, address);
    segments.push(END);
    put_u32(&mut segments, table.len());
    segments.extend(table);
    let mut data = Vec::with_capacity(segments.len() + 5);
    put_u32(&mut data, count);
    data.extend(segments);

    let mut written = MODULE.to_vec();
    let mut is_put = false;
    for &(id, payload) in &sections {
        match id {
            section::DATA => {
                put_section(&mut written, id, &data);
                is_put = true;
            }
            section::DATA_COUNT => {
                let mut number = Vec::new();
                put_u32(&mut number, count);
                put_section(&mut written, id, &number);
            }
            _ => put_section(&mut written, id, payload),
        }
    }
    if !is_put {
        // Only custom sections may follow, and they may stand anywhere.
        put_section(&mut written, section::DATA, &data);
    }
    Ok(written)
}

const I32_CONST: u8 = 0x41;
const END: u8 = 0x0b;

/// Returns ids and payloads of the sections behind the eight bytes of a module's or component's beginning.
fn sections(bytes: &[u8]) -> Result<Vec<(u8, &[u8])>, BadModule> {
    let mut reader = Reader { bytes, at: 8 };
    let mut sections = Vec::new();
    while reader.at < bytes.len() {
        let id = reader.byte("section")?;
        let size = reader.size("section")?;
        sections.push((id, reader.take(size, "section")?));
    }
    Ok(sections)
}

/// Returns the index of the global that is exported as the room.
fn exported_global(exports: &[u8]) -> Result<u32, BadModule> {
    const WHAT: &str = "export";
    const GLOBAL: u8 = 3;
    let mut reader = Reader::of(exports);
    for _ in 0..reader.number(WHAT)? {
        let size = reader.size(WHAT)?;
        let name = reader.take(size, WHAT)?;
        let kind = reader.byte(WHAT)?;
        let index = reader.number(WHAT)?;
        if name == ROOM && kind == GLOBAL {
            return Ok(index);
        }
    }
    Err(BadModule::NoRoom)
}

/// Counts imported globals, whose indices come first.
fn imported_globals(imports: &[u8]) -> Result<u32, BadModule> {
    const WHAT: &str = "import";
    let mut reader = Reader::of(imports);
    let mut globals = 0;
    for _ in 0..reader.number(WHAT)? {
        for _ in 0..2 {
            let size = reader.size(WHAT)?;
            reader.take(size, WHAT)?;
        }
        let limits = |reader: &mut Reader<'_>| -> Result<(), BadModule> {
            let flags = reader.byte(WHAT)?;
            reader.number(WHAT)?;
            if flags & 1 == 1 {
                reader.number(WHAT)?;
            }
            Ok(())
        };
        match reader.byte(WHAT)? {
            0 => {
                reader.number(WHAT)?;
            }
            1 => {
                reader.byte(WHAT)?;
                limits(&mut reader)?;
            }
            2 => limits(&mut reader)?,
            3 => {
                reader.take(2, WHAT)?;
                globals += 1;
            }
            _ => return Err(reader.damaged(WHAT)),
        }
    }
    Ok(globals)
}

/// Returns the value of a global that the module defines, which a linker makes of an address: an `i32.const`.
fn global_value(globals: &[u8], wanted: u32) -> Result<i32, BadModule> {
    const WHAT: &str = "global";
    const I64_CONST: u8 = 0x42;
    let mut reader = Reader::of(globals);
    for index in 0..reader.number(WHAT)? {
        reader.take(2, WHAT)?;
        let value = match reader.byte(WHAT)? {
            I32_CONST => Some(reader.signed(WHAT)?),
            I64_CONST => reader.signed(WHAT).map(|_| None)?,
            // Other kinds of values would have to be known in order to be passed over.
            _ => return Err(BadModule::NoRoom),
        };
        if reader.byte(WHAT)? != END {
            return Err(reader.damaged(WHAT));
        }
        if index == wanted {
            let value = value.and_then(|value| i32::try_from(value).ok());
            return value.ok_or(BadModule::NoRoom);
        }
    }
    Err(BadModule::NoRoom)
}

/// Returns the data segments that do not stand at `address`, and their number.
fn kept_segments(data: &[u8], address: i32) -> Result<(u32, Vec<u8>), BadModule> {
    const WHAT: &str = "data segment";
    let mut reader = Reader::of(data);
    let mut kept = Vec::with_capacity(data.len());
    let mut count = 0;
    for _ in 0..reader.number(WHAT)? {
        let from = reader.at;
        let flags = reader.number(WHAT)?;
        if flags == 2 {
            reader.number(WHAT)?;
        }
        let mut offset = None;
        match flags {
            0 | 2 => {
                if reader.byte(WHAT)? != I32_CONST {
                    return Err(reader.damaged(WHAT));
                }
                offset = i32::try_from(reader.signed(WHAT)?).ok();
                if reader.byte(WHAT)? != END {
                    return Err(reader.damaged(WHAT));
                }
            }
            1 => {}
            _ => return Err(reader.damaged(WHAT)),
        }
        let size = reader.size(WHAT)?;
        reader.take(size, WHAT)?;
        if offset != Some(address) {
            kept.extend(data.get(from..reader.at).unwrap_or_default());
            count += 1;
        }
    }
    Ok((count, kept))
}

/// Reads numbers and bytes of the binary format.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn of(payload: &'a [u8]) -> Self {
        Self {
            bytes: payload,
            at: 0,
        }
    }

    fn damaged(&self, what: &'static str) -> BadModule {
        BadModule::Damaged { what, at: self.at }
    }

    fn take(&mut self, size: usize, what: &'static str) -> Result<&'a [u8], BadModule> {
        let end = self.at.checked_add(size);
        let taken = end.and_then(|end| Some((end, self.bytes.get(self.at..end)?)));
        let (end, taken) = taken.ok_or_else(|| self.damaged(what))?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, BadModule> {
        Ok(self.take(1, what)?.first().copied().unwrap_or_default())
    }

    /// Reads LEB128 of at most 64 bits; returns the value, unsigned, and its bits.
    fn leb(&mut self, what: &'static str) -> Result<(u64, u32), BadModule> {
        let (mut value, mut bits) = (0, 0);
        loop {
            let byte = self.byte(what)?;
            value |= u64::from(byte & 0x7f) << bits;
            bits += 7;
            if byte & 0x80 == 0 {
                return Ok((value, bits));
            }
            if bits >= 63 {
                return Err(self.damaged(what));
            }
        }
    }

    fn number(&mut self, what: &'static str) -> Result<u32, BadModule> {
        let (value, _) = self.leb(what)?;
        u32::try_from(value).map_err(|_| self.damaged(what))
    }

    fn size(&mut self, what: &'static str) -> Result<usize, BadModule> {
        Ok(self.number(what)? as usize)
    }

    fn signed(&mut self, what: &'static str) -> Result<i64, BadModule> {
        let (value, bits) = self.leb(what)?;
        let unused = 64_u32.saturating_sub(bits);
        Ok((value << unused).cast_signed() >> unused)
    }
}

fn put_section(bytes: &mut Vec<u8>, id: u8, payload: &[u8]) {
    bytes.push(id);
    put_u32(bytes, payload.len());
    bytes.extend(payload);
}

/// Writes a number in unsigned LEB128, as sizes and counts are.
fn put_u32(bytes: &mut Vec<u8>, number: impl TryInto<u64>) {
    let mut number = number.try_into().unwrap_or_default();
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Writes a number in signed LEB128, as the operand of `i32.const` is.
fn put_i32(bytes: &mut Vec<u8>, mut number: i32) {
    loop {
        let byte = (number & 0x7f) as u8;
        number >>= 7;
        let is_last = matches!((number, byte & 0x40), (0, 0) | (-1, 0x40));
        bytes.push(if is_last { byte } else { byte | 0x80 });
        if is_last {
            return;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a module that exports its room at this address, with one segment elsewhere and a count of segments.
    pub(in crate::compile_order) fn module(address: i32) -> Vec<u8> {
        let mut bytes = MODULE.to_vec();
        // A global is imported, so the room's index is 2.
        put_section(&mut bytes, section::IMPORT, b"\x01\x01e\x01g\x03\x7f\0");
        let mut globals = vec![2, 0x7f, 1, I32_CONST];
        put_i32(&mut globals, 1 << 20);
        globals.extend([END, 0x7f, 0, I32_CONST]);
        put_i32(&mut globals, address);
        globals.push(END);
        put_section(&mut bytes, section::GLOBAL, &globals);
        let mut exports = vec![2, 1, b'm', 2, 0, ROOM.len() as u8];
        exports.extend(ROOM);
        exports.extend([3, 2]);
        put_section(&mut bytes, section::EXPORT, &exports);
        put_section(&mut bytes, section::DATA_COUNT, &[1]);
        put_section(&mut bytes, section::DATA, b"\x01\0\x41\x08\x0b\x02ab");
        put_section(&mut bytes, 0, b"\x04name");
        bytes
    }

    fn component(core: &[u8]) -> Vec<u8> {
        let mut bytes = COMPONENT.to_vec();
        put_section(&mut bytes, 1, core);
        put_section(&mut bytes, 2, b"\x01\0\0\0");
        bytes
    }

    #[test]
    fn the_table_becomes_a_segment_at_the_rooms_address_and_nothing_else_changes() {
        for address in [16, 1_049_000, -70_000] {
            let empty = module(address);
            let full = filled(&empty, b"table").unwrap();
            let (before, after) = (sections(&empty).unwrap(), sections(&full).unwrap());
            assert_eq!(before.len(), after.len());
            for ((id, was), (same, is)) in before.iter().zip(&after) {
                assert_eq!(id, same);
                match *id {
                    section::DATA_COUNT => assert_eq!(is, &[2]),
                    section::DATA => {
                        let mut expected = vec![2];
                        expected.extend(&was[1..]);
                        expected.extend([0, I32_CONST]);
                        put_i32(&mut expected, address);
                        expected.extend(b"\x0b\x05table");
                        assert_eq!(is, &expected);
                    }
                    _ => assert_eq!(was, is),
                }
            }
            assert_eq!(
                filled(&full, b"other").unwrap(),
                filled(&empty, b"other").unwrap()
            );
        }
    }

    #[test]
    fn a_components_first_module_with_a_room_is_filled() {
        let empty = component(&module(64));
        let full = filled(&empty, b"table").unwrap();
        assert_eq!(full, component(&filled(&module(64), b"table").unwrap()));
        assert_eq!(filled(&component(MODULE), b"t"), Err(BadModule::NoRoom));
    }

    #[test]
    fn what_has_no_room_is_refused() {
        assert_eq!(filled(b"", b"t"), Err(BadModule::NotWasm));
        assert_eq!(filled(b"#!/bin/sh\n", b"t"), Err(BadModule::NotWasm));
        assert_eq!(filled(MODULE, b"t"), Err(BadModule::NoRoom));
        let whole = module(16);
        let told = filled(&whole[..40], b"t").unwrap_err().to_string();
        assert!(told.contains("is damaged"), "{told}");
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for number in [0, 1, 63, 64, -1, -64, -65, 8191, 8192, i32::MAX, i32::MIN] {
            let mut bytes = Vec::new();
            put_i32(&mut bytes, number);
            let read = Reader {
                bytes: &bytes,
                at: 0,
            }
            .signed("number");
            assert_eq!(read, Ok(number.into()));
        }
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0_usize..120, byte: u8, length in 0_usize..120) {
            for mut bytes in [module(16), component(&module(16))] {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
                bytes.truncate(length.max(8));
                let _ = filled(&bytes, b"table");
            }
        }
    }
}

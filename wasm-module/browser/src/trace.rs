//! The class `Trace`: reads a log of requests in pieces that may be cut anywhere.

use crate::values::{self, refused};
use foreword_simulation::{BadLine, Bound, CompactTrace, LogReader};
use serde::Serialize;
use wasm_bindgen::prelude::*;

/// The requests of a log. It keeps only ids, fingerprints and token counts, no text.
#[wasm_bindgen]
pub struct Trace {
    reader: LogReader,
    pub(crate) requests: CompactTrace,
    /// The bytes so far of the current line.
    begun: Vec<u8>,
    /// True if the current line is longer than [`MAX_LINE_BYTES`], and so is not stored.
    too_long: bool,
    bytes: u64,
    /// Number of line breaks seen.
    breaks: u64,
    lines: u64,
    without_documents: u64,
    bad: u64,
    named: Vec<Named>,
    listed: u64,
}

#[wasm_bindgen]
impl Trace {
    /// Returns an empty trace. A document whose line does not state its tokens counts as `document_tokens`, 256 by
    /// default.
    ///
    /// # Errors
    /// Throws if `document_tokens` is out of range.
    #[wasm_bindgen(constructor)]
    pub fn new(
        #[wasm_bindgen(
            js_name = documentTokens,
            unchecked_optional_param_type = "number | null"
        )]
        document_tokens: &JsValue,
    ) -> Result<Self, JsValue> {
        let range = (0, u32::MAX.into());
        let tokens = values::whole("documentTokens", document_tokens, Some(256), range)?;
        Ok(Self {
            reader: LogReader::new(u32::try_from(tokens).unwrap_or(u32::MAX)),
            requests: CompactTrace::default(),
            begun: Vec::new(),
            too_long: false,
            bytes: 0,
            breaks: 0,
            lines: 0,
            without_documents: 0,
            bad: 0,
            named: Vec::new(),
            listed: 0,
        })
    }

    /// Reads the next piece of the log. Bad lines are counted, and the first ones are listed.
    ///
    /// # Errors
    /// Throws if the log exceeds a trace's limits; what was read so far is kept.
    pub fn push(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "Uint8Array")] chunk: &JsValue,
    ) -> Result<(), JsValue> {
        let Some(chunk) = values::bytes("chunk", chunk, MAX_LOG_BYTES - self.bytes)? else {
            return Err(refused(format_args!(
                "the log has more than {MAX_LOG_BYTES} bytes"
            )));
        };
        self.bytes += chunk.len() as u64;
        for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
            if self.begun.len() + piece.len() > MAX_LINE_BYTES {
                self.too_long = true;
                self.begun = Vec::new();
            }
            if !self.too_long {
                self.begun.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                self.line()?;
            }
        }
        Ok(())
    }

    /// Reads the last line, if it lacks a line break, and returns a summary of the log.
    ///
    /// # Errors
    /// Throws if the log exceeds a trace's limits.
    #[wasm_bindgen(unchecked_return_type = "TraceSummary")]
    pub fn finish(&mut self) -> Result<JsValue, JsValue> {
        if self.too_long || !self.begun.is_empty() {
            self.line()?;
        }
        values::plain(&Summary {
            bytes: self.bytes,
            lines: self.lines,
            requests: self.requests.requests(),
            documents: self.requests.documents(),
            listed: self.listed,
            without_documents: self.without_documents,
            bad: self.bad,
            bad_lines: &self.named,
        })
    }

    /// Returns the number of requests with documents so far.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn requests(&self) -> f64 {
        self.requests.requests() as f64
    }

    /// Returns an upper bound on the share of document tokens that any order reuses. Takes some seconds for a long
    /// trace.
    ///
    /// # Errors
    /// Throws if the seed is not a whole number.
    #[wasm_bindgen(js_name = upperBound, unchecked_return_type = "Bound")]
    pub fn upper_bound(
        &self,
        #[wasm_bindgen(unchecked_optional_param_type = "number | null")] seed: &JsValue,
    ) -> Result<JsValue, JsValue> {
        let seed = values::whole("seed", seed, Some(0), (0, u32::MAX.into()))?;
        values::plain(&Bound::of(&self.requests, seed, 1, |_| ()))
    }

    /// Parses the stored line, which is now complete, and counts it.
    fn line(&mut self) -> Result<(), JsValue> {
        let line = std::mem::take(&mut self.begun);
        let too_long = std::mem::take(&mut self.too_long);
        self.breaks += 1;
        if !too_long && line.trim_ascii().is_empty() {
            return Ok(());
        }
        self.lines += 1;
        let parsed = if too_long {
            let limit = MAX_LINE_BYTES as u64;
            Err(BadLine::TooLong { limit })
        } else {
            self.reader.requests(&line)
        };
        match parsed {
            Ok(parts) if parts.is_empty() => self.without_documents += 1,
            Ok(parts) => {
                self.listed += parts
                    .iter()
                    .map(|part| part.documents.len() as u64)
                    .sum::<u64>();
                if self.requests.requests() >= MAX_REQUESTS || self.listed > MAX_LISTED {
                    return Err(refused(format_args!(
                        "the log has more than {MAX_REQUESTS} requests or {MAX_LISTED} documents in them"
                    )));
                }
                self.requests.push(parts);
            }
            Err(reason) => {
                self.bad += 1;
                if self.named.len() < NAMED {
                    self.named.push(Named {
                        line: self.breaks,
                        message: reason.to_string(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Most bytes of a log: 20,000 bodies of 50 KB. A trace keeps far less.
const MAX_LOG_BYTES: u64 = 1 << 30;

/// Most bytes of a line, more than any gateway accepts.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Most requests of a trace; each takes about 60 bytes.
const MAX_REQUESTS: usize = 1_000_000;

/// Most documents in all requests: at most 150 bytes each, which fit a page's memory of 4 GB.
const MAX_LISTED: u64 = 16_000_000;

/// Most bad lines listed; further ones are only counted.
const NAMED: usize = 20;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    bytes: u64,
    lines: u64,
    requests: usize,
    documents: usize,
    listed: u64,
    without_documents: u64,
    bad: u64,
    bad_lines: &'a [Named],
}

#[derive(Serialize)]
struct Named {
    /// Number of the line, from 1.
    line: u64,
    message: String,
}

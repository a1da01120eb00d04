//! The report on a prompt's head (tools and system text), as plain objects.

use foreword_ordering::head::{Change, ChangeKind, HeadReport};
use serde::Serialize;
use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = include_str!("head.d.ts");

/// The changes to a head; in mode `report`, the proposed ones.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    applied: bool,
    tools_moved: u32,
    tools_reformed: u32,
    moved: u32,
    learned: u32,
    frozen: u32,
    dropped: u32,
    restored: u32,
    relocated: u32,
    numbered: u32,
    scored: u32,
    doubtful: u32,
    left: u32,
    changes: Vec<HeadChange>,
}

impl From<&HeadReport> for Head {
    fn from(report: &HeadReport) -> Self {
        Self {
            applied: report.applied,
            tools_moved: report.tools_moved,
            tools_reformed: report.tools_reformed,
            moved: report.moved,
            learned: report.learned,
            frozen: report.frozen,
            dropped: report.dropped,
            restored: report.restored,
            relocated: report.relocated,
            numbered: report.numbered,
            scored: report.scored,
            doubtful: report.doubtful,
            left: report.left,
            changes: report.changes.iter().map(HeadChange::from).collect(),
        }
    }
}

/// One change, with its range in bytes of the client's body.
#[derive(Serialize)]
struct HeadChange {
    kind: &'static str,
    name: String,
    from: usize,
    to: usize,
}

impl From<&Change> for HeadChange {
    fn from(change: &Change) -> Self {
        Self {
            kind: match change.kind {
                ChangeKind::Tool => "tool",
                ChangeKind::Moved => "moved",
                ChangeKind::Frozen => "frozen",
                ChangeKind::Dropped => "dropped",
                ChangeKind::Context => "context",
                ChangeKind::Restored => "restored",
                ChangeKind::Number => "number",
                ChangeKind::Score => "score",
            },
            name: change.name.to_string(),
            from: change.range.start,
            to: change.range.end,
        }
    }
}

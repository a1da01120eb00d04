//! Saving a collection to a file and opening it again.
//!
//! The file's checksums detect damage. This module checks that the parts are consistent, so that no slot, start or link
//! is out of range, even in a file made by an attacker.

use super::{Collection, Records, Spec};
use crate::file::{Array, FileError, Part, Parts, write};
use crate::index::{Flat, Hnsw, HnswOptions, Index, Ivf, IvfOptions, Kind, Vectors};
use crate::words::Words;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The part of the file that describes how to read the others.
#[derive(Serialize, Deserialize)]
struct Description {
    #[serde(flatten)]
    spec: Spec,
    slots: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ivf: Option<IvfOptions>,
    /// Number of slots when the IVF was clustered; see [`Index::clustered`]. Older files do not have it and count as
    /// clustered with all their slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clustered: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hnsw: Option<HnswOptions>,
}

/// Largest number of components of a file's vectors; no embedder has more.
const MAX_DIMENSIONS: u32 = 65_536;

impl Collection {
    /// Writes the collection to `path`, replacing any file there.
    ///
    /// # Errors
    /// Returns [`FileError::Io`] when it cannot be written, as [`crate::file::write`] does.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        let slots = self.vectors.len() as u32;
        let description = Description {
            spec: self.spec.clone(),
            slots,
            ivf: self.index.ivf_options(),
            clustered: self.index.clustered(),
            hnsw: self.index.hnsw_options(),
        };
        let description = serde_json::to_vec(&description).unwrap_or_default();
        let mut deleted = self.deleted.to_vec();
        deleted.resize((slots as usize).div_ceil(64), 0);
        let (mut starts, mut records) = (vec![0_u64], Vec::new());
        for slot in (0..slots).map(crate::index::Slot) {
            records.extend_from_slice(self.records.raw(slot).unwrap_or_default());
            starts.push(records.len() as u64);
        }
        let mut parts = vec![
            (Part::Description, description),
            (Part::Vectors, self.vectors.bytes()),
            (Part::Deleted, bytemuck::cast_slice(&deleted).to_vec()),
            (Part::RecordStarts, bytemuck::cast_slice(&starts).to_vec()),
            (Part::Records, records),
            (
                Part::Fingerprints,
                bytemuck::cast_slice(&self.fingerprints).to_vec(),
            ),
        ];
        parts.extend(self.index.parts(&self.vectors));
        parts.extend(self.words.parts());
        write(path, &parts)
    }

    /// Maps the collection at `path`.
    ///
    /// # Errors
    /// Returns a [`FileError`] when the file is missing, belongs to another program, or is damaged.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let parts = Parts::open(path)?;
        let description: Description = serde_json::from_slice(parts.bytes(Part::Description)?)
            .map_err(|error| parts.damaged(format!("its description: {error}")))?;
        let Description { spec, slots, .. } = &description;
        let (count, dimensions) = (*slots as usize, spec.dimensions as usize);
        if !(1..=MAX_DIMENSIONS).contains(&spec.dimensions) {
            let reason = format!("it has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}");
            return Err(parts.damaged(reason));
        }
        let rows: Array<f32> = parts.numbers(Part::Vectors)?;
        let deleted: Array<u64> = parts.numbers(Part::Deleted)?;
        let fingerprints: Array<u64> = parts.numbers(Part::Fingerprints)?;
        let records = Records {
            path: path.to_owned(),
            starts: parts.numbers(Part::RecordStarts)?,
            bytes: parts.numbers(Part::Records)?,
            added: Vec::new(),
        };
        let starts = &records.starts;
        let fits = count.checked_mul(dimensions) == Some(rows.len())
            && rows.iter().all(|value| value.is_finite())
            && deleted.len() == count.div_ceil(64)
            && fingerprints.len() == count
            && starts.len() == count + 1
            && starts.first() == Some(&0)
            && starts.last() == Some(&(records.bytes.len() as u64))
            && starts.is_sorted();
        if !fits {
            return Err(parts.damaged(format!("its parts do not fit {count} slots")));
        }
        Ok(Self {
            index: index(&parts, &description)?,
            vectors: Vectors::over(spec.dimensions, spec.metric, rows),
            words: Words::over(&parts, count)?,
            records,
            deleted,
            fingerprints,
            spec: description.spec,
        })
    }
}

fn index(parts: &Parts, description: &Description) -> Result<Box<dyn Index>, FileError> {
    let count = description.slots as usize;
    let index: Option<Box<dyn Index>> = match description.spec.kind {
        Kind::Flat => Some(Box::new(Flat)),
        Kind::Ivf => {
            let of_file = (
                parts.numbers(Part::Centres)?,
                parts.numbers(Part::ListStarts)?,
                parts.numbers(Part::ListSlots)?,
                parts.numbers(Part::ListRows)?,
            );
            let dimensions = description.spec.dimensions as usize;
            let options = description.ivf;
            let clustered = description.clustered.unwrap_or(description.slots);
            let ivf = options
                .and_then(|options| Ivf::over(options, clustered, dimensions, count, of_file));
            ivf.map(|ivf| Box::new(ivf) as _)
        }
        Kind::Hnsw => {
            let ground = parts.numbers(Part::GroundLinks)?;
            let upper: Array<u32> = parts.numbers(Part::UpperLinks)?;
            let options = description.hnsw;
            let hnsw = options.and_then(|options| Hnsw::over(options, count, (ground, &upper)));
            hnsw.map(|hnsw| Box::new(hnsw) as _)
        }
    };
    index.ok_or_else(|| {
        let kind = description.spec.kind.name();
        parts.damaged(format!("its {kind} index does not fit its vectors"))
    })
}

//! Safetensors files, memory-mapped: from a tensor's name to its type, shape and bytes.
//!
//! The format (huggingface.co/docs/safetensors): eight bytes of little-endian header length, a JSON object from names
//! to `{dtype, shape, data_offsets}`, then the data. The `safetensors` crate is not used for reading, because its
//! version 0.8.0 adds lengths taken from the file without checking for overflow, which a crafted header turns into a
//! panic. The crate writes the files of the tests.

#![allow(
    unsafe_code,
    reason = "mapping a file is unsafe because another process may change it meanwhile"
)]

use super::CheckpointError;
use memmap2::Mmap;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Maximum length of a file's header in bytes (the bound of the reference implementation).
const MAX_HEADER: u64 = 100_000_000;

/// Number of bytes of a tensor that are sampled at its beginning, at its middle and at its end.
const SAMPLE: usize = 4096;

/// The tensors of a folder's safetensors files by name, mapped into memory.
pub struct Tensors {
    pub(super) folder: PathBuf,
    files: Vec<(PathBuf, Mmap)>,
    entries: HashMap<String, Entry>,
}

/// A tensor's type and shape, and in which file and where its bytes are.
pub(super) struct Entry {
    file: usize,
    bytes: Range<usize>,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Tensors {
    /// Maps `model.safetensors` in `folder` into memory, or the files that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when the files are missing or malformed.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        let mut this = Self {
            folder: folder.to_owned(),
            files: Vec::new(),
            entries: HashMap::new(),
        };
        if single.exists() {
            this.add(single)?;
        } else if index.exists() {
            for shard in shards(&index)? {
                this.add(folder.join(shard))?;
            }
        } else {
            return Err(CheckpointError::new(
                folder,
                "neither model.safetensors nor model.safetensors.index.json is there (other formats are not supported)",
            ));
        }
        Ok(this)
    }

    /// Returns the tensor called `name`: the path of its file, its description, and its bytes. `None` if there is none.
    pub(super) fn get(&self, name: &str) -> Option<(&Path, &Entry, &[u8])> {
        let entry = self.entries.get(name)?;
        let (path, map) = self.files.get(entry.file)?;
        Some((path, entry, map.get(entry.bytes.clone())?))
    }

    /// Adds every tensor's name, type and shape to `hash`, and the beginning, the middle and the end of its bytes. A
    /// training step or a merged adapter changes the whole of a matrix, and reading all bytes would double the start-up
    /// time.
    pub(super) fn sample(&self, hash: &mut Xxh3) {
        let mut names: Vec<_> = self.entries.keys().collect();
        names.sort_unstable();
        for name in names {
            let Some((_, entry, bytes)) = self.get(name) else {
                continue;
            };
            hash.update(format!("{name} {} {:?}", entry.dtype, entry.shape).as_bytes());
            sample(bytes, hash);
        }
    }

    fn add(&mut self, path: PathBuf) -> Result<(), CheckpointError> {
        let map = mapped(&path)?;
        let number = self.files.len();
        let entries = parse(&map).map_err(|reason| CheckpointError::new(&path, reason))?;
        for (name, info, bytes) in entries {
            let name = text_name(name);
            let entry = Entry {
                file: number,
                bytes,
                dtype: info.dtype,
                shape: info.shape,
            };
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(CheckpointError::new(
                    &path,
                    format!("tensor {name} is in another file too"),
                ));
            }
        }
        self.files.push((path, map));
        Ok(())
    }
}

/// Returns the name that a text model alone would have for a tensor, without the prefix that checkpoints with a vision
/// tower add.
fn text_name(name: String) -> String {
    let rest = ["language_model.model.", "model.language_model."];
    let rest = rest.iter().find_map(|prefix| name.strip_prefix(prefix));
    match (rest, name.strip_prefix("language_model.lm_head.")) {
        (Some(rest), _) => format!("model.{rest}"),
        (None, Some(rest)) => format!("lm_head.{rest}"),
        (None, None) => name,
    }
}

/// Maps a checkpoint's file into memory.
pub(super) fn mapped(path: &Path) -> Result<Mmap, CheckpointError> {
    let file = File::open(path).map_err(|error| CheckpointError::new(path, error))?;
    // SAFETY: the map is only read, as bytes, for which every bit pattern is valid. A checkpoint that another process
    // truncates while it is being loaded would end this one; nothing is read after loading.
    unsafe { Mmap::map(&file) }.map_err(|error| CheckpointError::new(path, error))
}

/// Adds the bytes at the beginning, the middle and the end of a tensor to `hash`.
pub(super) fn sample(bytes: &[u8], hash: &mut Xxh3) {
    let window = SAMPLE.min(bytes.len());
    let last = bytes.len() - window;
    for start in [0, last / 2, last] {
        hash.update(&bytes[start..start + window]);
    }
}

/// Returns the names of the files that an index (`model.safetensors.index.json`) lists, sorted and without duplicates.
fn shards(index: &Path) -> Result<Vec<String>, CheckpointError> {
    let wrong = |reason: String| CheckpointError::new(index, reason);
    let text = std::fs::read_to_string(index).map_err(|error| wrong(error.to_string()))?;
    let parsed: Index = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let mut files: Vec<String> = parsed.weight_map.into_values().collect();
    files.sort_unstable();
    files.dedup();
    // A checkpoint names its own shards. A path that leaves the folder is a mistake or an attack.
    if let Some(file) = files.iter().find(|file| {
        Path::new(file)
            .file_name()
            .is_none_or(|name| name != file.as_str())
    }) {
        return Err(wrong(format!(
            "weight_map names {file:?}, supported: a file of the same folder"
        )));
    }
    if files.is_empty() {
        return Err(wrong("weight_map names no file".into()));
    }
    Ok(files)
}

/// Parses a file's header and returns its tensors: each one's name, its description, and the range of its bytes in
/// `file`.
fn parse(file: &[u8]) -> Result<Vec<(String, Info, Range<usize>)>, String> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(format!(
            "{} bytes are too few for a safetensors file",
            file.len()
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(format!(
            "the header's length is {length} bytes, supported: {MAX_HEADER}"
        ));
    }
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(format!(
            "the header's length is {length} bytes, the file holds {}: it is truncated",
            rest.len()
        ));
    };
    let header: HashMap<String, serde_json::Value> = serde_json::from_slice(header)
        .map_err(|error| format!("the header is malformed: {error}"))?;
    let mut tensors = Vec::with_capacity(header.len());
    let mut total = 0;
    for (name, value) in header {
        if name == "__metadata__" {
            continue;
        }
        let info: Info =
            serde_json::from_value(value).map_err(|error| format!("tensor {name}: {error}"))?;
        let (start, end) = info.data_offsets;
        if start > end || end > data.len() as u64 {
            return Err(format!(
                "tensor {name}: data_offsets are [{start}, {end}], the file holds {} bytes of data",
                data.len()
            ));
        }
        // Tensors that overlap would let a small file fill the memory.
        total += end - start;
        if total > data.len() as u64 {
            return Err(format!(
                "the tensors have more bytes than the {} bytes of data that the file holds: they overlap",
                data.len()
            ));
        }
        let offset = 8 + length as usize;
        tensors.push((name, info, offset + start as usize..offset + end as usize));
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    #[test]
    fn lengths_and_offsets_beyond_the_file_are_refused() {
        let header = |offsets: &str| {
            format!(r#"{{"a":{{"dtype":"F32","shape":[1],"data_offsets":{offsets}}}}}"#)
        };
        assert_eq!(parse(&file(&header("[0,4]"), 4)).unwrap().len(), 1);
        for bytes in [
            Vec::new(),
            vec![0; 7],
            u64::MAX.to_le_bytes().to_vec(),
            1000u64.to_le_bytes().to_vec(),
            file("nonsense", 0),
            file("[1]", 0),
            file(r#"{"a":3}"#, 0),
            file(&header("[0,5]"), 4),
            file(&header("[4,0]"), 4),
            file(&header("[0,18446744073709551615]"), 4),
            file(&header("[18446744073709551615,18446744073709551615]"), 4),
            file(&header("[0,NaN]"), 4),
            file(&header("[0,1e400]"), 4),
        ] {
            assert!(parse(&bytes).is_err());
        }
    }

    #[test]
    fn tensors_that_overlap_are_refused() {
        let header = |second: &str| {
            format!(
                r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"b":{{"dtype":"F32","shape":[2],"data_offsets":{second}}}}}"#
            )
        };
        assert_eq!(parse(&file(&header("[8,16]"), 16)).unwrap().len(), 2);
        for second in ["[0,8]", "[4,12]"] {
            let error = parse(&file(&header(second), 12)).err().unwrap();
            assert!(error.contains("more bytes than the 12 bytes"), "{error}");
        }
    }

    #[test]
    fn every_truncation_of_a_file_is_refused() {
        let whole = file(
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
            8,
        );
        assert!(parse(&whole).is_ok());
        for length in 0..whole.len() {
            assert!(
                parse(&whole[..length]).is_err(),
                "{length} bytes were accepted"
            );
        }
    }

    #[test]
    fn whatever_a_header_says_tensors_lie_within_the_file() {
        let whole = file(
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}}"#,
            12,
        );
        let mut random = Random::new(8);
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(2) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, b"0198,[]{}\"-e"[random.below(12) as usize]),
                    2 => bytes[at] = b'0' + random.below(10) as u8,
                    _ => bytes[at] = random.bits() as u8,
                }
            }
            for (name, _, range) in parse(&bytes).into_iter().flatten() {
                assert!(bytes.get(range).is_some(), "{name}");
                taken += 1;
            }
        }
        assert!(taken > 1_000, "{taken} tensors were read");
    }

    #[test]
    fn an_index_names_files_of_its_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join("model.safetensors.index.json");
        for (map, good) in [
            (
                r#"{"a":"x.safetensors","b":"y.safetensors","c":"x.safetensors"}"#,
                true,
            ),
            (r#"{"a":"../x.safetensors"}"#, false),
            (r#"{"a":"/etc/passwd"}"#, false),
            (r#"{"a":".."}"#, false),
            (r#"{"a":""}"#, false),
            (r#"{"a":NaN}"#, false),
            (r"{}", false),
        ] {
            std::fs::write(
                &index,
                format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{map}}}"#),
            )
            .unwrap();
            assert_eq!(shards(&index).is_ok(), good, "{map}");
        }
    }
}

//! Reading files as documents.

use super::Passages;
use crate::Document;
use fxhash::FxHashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a folder's documents cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(String);

/// Returns the documents of all `.txt`, `.md` and `.jsonl` files (also `.markdown` and `.ndjson`) in `folder` and
/// below, in the order of their paths. Hidden files and folders are skipped, and links are not followed.
///
/// # Errors
/// Returns a [`ReadError`] when a file cannot be read, a line is not a document, or an id occurs twice.
pub fn documents(folder: &Path, passages: Passages) -> Result<Vec<Document>, ReadError> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort();
    let mut documents = Vec::new();
    let mut seen: FxHashMap<String, PathBuf> = FxHashMap::default();
    for file in files {
        for document in of_file(folder, &file, passages)? {
            if let Some(first) = seen.insert(document.id.clone(), file.clone()) {
                return Err(ReadError(format!(
                    "the id {:?} stands in {} and again in {}",
                    document.id,
                    first.display(),
                    file.display()
                )));
            }
            documents.push(document);
        }
    }
    Ok(documents)
}

#[derive(Clone, Copy)]
enum Format {
    Text,
    Markdown,
    Lines,
}

fn format(file: &Path) -> Option<Format> {
    let extension = file.extension()?.to_str()?.to_ascii_lowercase();
    match &*extension {
        "txt" => Some(Format::Text),
        "md" | "markdown" => Some(Format::Markdown),
        "jsonl" | "ndjson" => Some(Format::Lines),
        _ => None,
    }
}

fn unreadable(path: &Path, error: &io::Error) -> ReadError {
    ReadError(format!("{}: {error}", path.display()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ReadError> {
    let io = |error| unreadable(folder, &error);
    for entry in fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(io)?);
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if kind.is_dir() {
            collect(&path, files)?;
        } else if kind.is_file() && format(&path).is_some() {
            files.push(path);
        }
    }
    Ok(())
}

fn of_file(folder: &Path, file: &Path, passages: Passages) -> Result<Vec<Document>, ReadError> {
    let bytes = fs::read(file).map_err(|error| unreadable(file, &error))?;
    // Some programs begin a file with a byte order mark.
    let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes));
    let name = file.strip_prefix(folder).unwrap_or(file);
    let name = name.to_string_lossy();
    let numbered = |number: usize| format!("{name}#{number}");
    let titled = |(at, (title, text)): (usize, (String, String))| Document {
        id: numbered(at + 1),
        title,
        text,
        ..Document::default()
    };
    match format(file) {
        Some(Format::Markdown) => {
            let passages = passages.of_markdown(&text).into_iter();
            Ok(passages.enumerate().map(titled).collect())
        }
        Some(Format::Text) => {
            let passages = passages.of_text(&text).into_iter();
            let untitled = passages.map(|passage| (String::new(), passage));
            Ok(untitled.enumerate().map(titled).collect())
        }
        Some(Format::Lines) => {
            let lines = text.lines().enumerate();
            let lines = lines.filter(|(_, line)| !line.trim().is_empty());
            let document = |(at, line): (usize, &str)| {
                let mut fields: serde_json::Value = serde_json::from_str(line)?;
                if let Some(fields) = fields.as_object_mut() {
                    fields
                        .entry("id")
                        .or_insert_with(|| numbered(at + 1).into());
                }
                serde_json::from_value(fields)
            };
            lines
                .map(|(at, line)| {
                    document((at, line)).map_err(|error: serde_json::Error| {
                        let (file, number) = (file.display(), at + 1);
                        ReadError(format!("{file}, line {number}: {error}"))
                    })
                })
                .collect()
        }
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_by_its_files_formats_and_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("b.txt", "plain words");
        write("a/deep.md", "\u{feff}# Title\nbody\n");
        write(
            "c.jsonl",
            "\u{feff}{\"text\": \"t\", \"title\": \"T\"}\n\n{\"id\": \"own\", \"text\": \"u\", \"metadata\": {\"year\": 9}}\n",
        );
        write(".hidden.txt", "no");
        write("image.png", "no");
        let passages = Passages { words: 160 };
        let found = documents(folder.path(), passages).unwrap();
        let ids: Vec<&str> = found.iter().map(|document| &*document.id).collect();
        assert_eq!(ids, ["a/deep.md#1", "b.txt#1", "c.jsonl#1", "own"]);
        assert_eq!((&*found[0].title, &*found[0].text), ("Title", "body"));
        assert_eq!(found[3].metadata["year"], 9);

        write("d.jsonl", "{\"id\": \"own\", \"text\": \"again\"}");
        let twice = documents(folder.path(), passages).unwrap_err();
        assert!(twice.to_string().starts_with("the id \"own\" stands in"));
        write("d.jsonl", "{\"text\": \"fine\"}\n{\"title\": 3}");
        let line = documents(folder.path(), passages).unwrap_err();
        assert!(line.to_string().contains("d.jsonl, line 2:"), "{line}");
        let missing = folder.path().join("none");
        let none = documents(&missing, passages).unwrap_err();
        let named = format!("{}: ", missing.display());
        assert!(none.to_string().starts_with(&named), "{none}");
    }
}

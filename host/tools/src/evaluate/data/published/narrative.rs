//! NarrativeQA (Kocisky et al., 2018): a table of questions about stories. The stories are the summaries in a table
//! beside it, or the full texts in a folder, a file `ID.content` each.

use super::{Data, Reading, turn};
use crate::evaluate::data::Case;
use crate::evaluate::data::passages::{Passages, cut};
use crate::evaluate::data::{bytes_of, table};
use anyhow::{Context, Result, bail};
use fxhash::FxHashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

/// Returns the questions, each with the best passages of its story.
pub(super) fn read(csv: &[u8], reading: &Reading<'_>) -> Result<Data> {
    let rows = table::rows(csv, ',')?;
    let header = rows.first().context("the table is empty")?;
    let column = |name| table::column(header, name);
    let [story, question] = [column("document_id")?, column("question")?];
    let answers = [column("answer1")?, column("answer2")?];
    let Some(corpus) = reading.corpus else {
        bail!(
            "narrativeqa has questions without stories: --corpus must name summaries.csv, or a folder of ID.content"
        );
    };
    let summaries = if corpus.is_dir() {
        None
    } else {
        Some(summaries(corpus).with_context(|| format!("cannot read {}", corpus.display()))?)
    };
    let mut stories: FxHashMap<&str, Passages> = FxHashMap::default();
    let mut data = Data::default();
    for (row, number) in rows.iter().skip(1).zip(1..) {
        let value = |column: usize| row.get(column).map_or("", |value| value.trim());
        let answers: Vec<String> = (answers.iter())
            .map(|column| value(*column).to_owned())
            .filter(|answer| !answer.is_empty())
            .collect();
        let id = value(story);
        let passages = match stories.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let text = match &summaries {
                    Some(summaries) => summaries.get(id).cloned(),
                    None => full_text(corpus, id)?,
                };
                let text =
                    text.with_context(|| format!("row {}: there is no story {id:?}", number + 1))?;
                new.insert(Passages::of(cut(id, "", &text, reading.chunk_words)))
            }
        };
        let documents = passages.best(value(question), reading.k());
        if answers.is_empty() || documents.is_empty() {
            data.without_answers += 1;
            continue;
        }
        data.cases.push(Case {
            id: format!("question {number}"),
            turns: vec![turn(value(question).to_owned(), documents, answers)],
        });
    }
    Ok(data)
}

fn summaries(path: &Path) -> Result<FxHashMap<String, String>> {
    let rows = table::rows(&bytes_of(path)?, ',')?;
    let header = rows.first().context("the table is empty")?;
    let [id, summary] = [
        table::column(header, "document_id")?,
        table::column(header, "summary")?,
    ];
    let pairs = rows.iter().skip(1);
    let pairs =
        pairs.filter_map(|row| Some((row.get(id)?.trim().to_owned(), row.get(summary)?.clone())));
    Ok(pairs.collect())
}

/// Returns the text of a story, if there is one. An id is a hash in hexadecimal digits, and no path.
fn full_text(folder: &Path, id: &str) -> Result<Option<String>> {
    let path = folder.join(format!("{id}.content"));
    if !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) || !path.exists() {
        return Ok(None);
    }
    Ok(Some(
        String::from_utf8_lossy(&bytes_of(&path)?).into_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, reading};
    use super::*;

    const QAPS: &str = "document_id,set,question,answer1,answer2,question_tokenized,answer1_tokenized,answer2_tokenized\n\
        0025,train,\"Who rows, and where?\",Ann,Ann rows,q,a,a\n\
        0029,test,Who sleeps?,The cat,,q,a,a\n";

    #[test]
    fn questions_find_passages_of_their_story() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("summaries.csv");
        std::fs::write(&table, "document_id,set,summary,summary_tokenized\n0025,train,\"Ann rows a boat, \"\"Swan\"\".\nTo Arran.\",t\n0029,test,The cat sleeps.,t\n").unwrap();
        let data = read(QAPS.as_bytes(), &reading(Some(&table))).unwrap();
        assert_eq!(data.cases.len(), 2);
        let first = &data.cases[0].turns[0];
        assert_eq!((ids(first), first.answers.len()), (vec!["0025"], 2));
        assert!(first.documents[0].text.contains("\"Swan\".\nTo Arran."));
        assert_eq!(data.cases[1].turns[0].answers, ["The cat"]);

        for (id, text) in [("0025", "Ann rows."), ("0029", "A cat sleeps here.")] {
            std::fs::write(folder.path().join(format!("{id}.content")), text).unwrap();
        }
        let data = read(QAPS.as_bytes(), &reading(Some(folder.path()))).unwrap();
        assert_eq!(
            data.cases[1].turns[0].documents[0].text,
            "A cat sleeps here."
        );
    }

    #[test]
    fn a_story_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = read(QAPS.as_bytes(), &reading(Some(folder.path())))
            .err()
            .unwrap();
        assert!(
            error
                .to_string()
                .contains("row 2: there is no story \"0025\""),
            "{error}"
        );
        let error = read(QAPS.as_bytes(), &reading(None)).err().unwrap();
        assert!(error.to_string().contains("--corpus"), "{error}");
    }
}

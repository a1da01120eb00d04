//! MMLU (Hendrycks et al., 2021): a table without a header, a question with four choices and the letter of the right
//! one on each row. What is retrieved comes from a corpus beside it.

use super::{Data, Reading};
use crate::evaluate::data::{Case, Turn, table};
use anyhow::{Result, ensure};

/// Returns the questions with the best passages of the corpus.
pub(super) fn read(csv: &[u8], reading: &Reading<'_>) -> Result<Data> {
    let passages = reading.passages("mmlu")?;
    let mut data = Data::default();
    for (row, number) in table::rows(csv, ',')?.into_iter().zip(1..) {
        let columns = row.len();
        ensure!(
            columns == 6,
            "row {number} has {columns} columns, it must have 6: the question, four choices and a letter"
        );
        let [question, choices @ .., letter] = row.as_slice() else {
            continue;
        };
        let letter = letter.trim();
        ensure!(
            matches!(letter, "A" | "B" | "C" | "D"),
            "row {number}: {letter:?} is not one of A, B, C, D"
        );
        let documents = passages.best(question, reading.k());
        if documents.is_empty() {
            data.without_answers += 1;
            continue;
        }
        data.cases.push(Case {
            id: format!("question {number}"),
            turns: vec![Turn {
                question: question.clone(),
                documents,
                answers: vec![letter.to_owned()],
                answer_document: None,
                choices: choices.to_vec(),
            }],
        });
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, reading};
    use super::*;

    #[test]
    fn a_row_is_a_question_with_choices() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = folder.path().join("wiki.tsv");
        std::fs::write(
            &corpus,
            "id\ttext\ttitle\n1\tA ferry is a boat.\tFerry\n2\tA train runs on rails.\tTrain\n",
        )
        .unwrap();
        let file = "\"What is a ferry, then?\",a boat,a train,\"a car, say\",none,A\n";
        let data = read(file.as_bytes(), &reading(Some(&corpus))).unwrap();
        let turn = &data.cases[0].turns[0];
        assert_eq!(ids(turn)[0], "1");
        assert_eq!(turn.choices, ["a boat", "a train", "a car, say", "none"]);
        assert_eq!(turn.answers, ["A"]);
        for (file, words) in [
            ("q,a,b,c,A\n", "row 1 has 5 columns"),
            ("q,a,b,c,d,E\n", "row 1: \"E\" is not one of A, B, C, D"),
        ] {
            let error = read(file.as_bytes(), &reading(Some(&corpus)))
                .err()
                .unwrap();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}

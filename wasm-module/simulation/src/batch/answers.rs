//! Reads the output of an interrupted batch: which requests are answered, and where its last complete line ends.

use super::index::{BatchError, BatchIndex};
use super::line::{AnswerLine, BatchUsage, LineError};
use crate::BadLine;
use crate::lines::Lines;
use std::io::BufRead;

/// The answered requests of a batch, and counts of their answers. One bit is stored per request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchAnswers {
    answered: Vec<u64>,
    /// Requests that were served.
    pub served: u64,
    /// Requests that were refused, or failed permanently.
    pub failed: u64,
    /// Sum of the answers' token counts.
    pub usage: BatchUsage,
    /// Bytes up to the end of the last complete line. The rest was cut short when the writer was killed.
    pub whole_bytes: u64,
}

impl BatchAnswers {
    /// Returns a count without answers, for a batch of `requests` requests.
    #[must_use]
    pub fn none(requests: usize) -> Self {
        Self {
            answered: vec![0; requests.div_ceil(64)],
            ..Self::default()
        }
    }

    /// Adds the answers of an output, read from its beginning.
    ///
    /// # Errors
    /// Returns the reader's error; the inner error concerns a complete line. An incomplete last line is ignored.
    pub fn read(
        &mut self,
        reader: impl BufRead,
        index: &BatchIndex,
    ) -> std::io::Result<Result<(), BatchError>> {
        let mut lines = Lines::new(reader);
        self.whole_bytes = 0;
        loop {
            let number = lines.number() + 1;
            let Some(line) = lines.next()? else {
                return Ok(Ok(()));
            };
            let wrong = |reason: String| Ok(Err(BatchError { number, reason }));
            let line = match line {
                Ok(line) if !line.ends_with(b"\n") => return Ok(Ok(())),
                Ok(line) => line,
                Err(BadLine::TooLong { limit }) => {
                    return wrong(LineError::too_long(limit).to_string());
                }
                Err(_) => return Ok(Ok(())),
            };
            if !line.trim_ascii().is_empty() {
                let answer = match AnswerLine::parse(line) {
                    Ok(answer) => answer,
                    Err(error) => return wrong(error.to_string()),
                };
                let Some(line) = index.find(&answer.custom_id) else {
                    return wrong("no request of the batch has this `custom_id`".to_owned());
                };
                if self.is_answered(line) {
                    let reason = "the request with this `custom_id` is answered already";
                    return wrong(reason.to_owned());
                }
                self.add(line, answer.is_served(), answer.usage);
            }
            self.whole_bytes = lines.bytes();
        }
    }

    /// Counts the answer to a line.
    pub fn add(&mut self, line: u32, is_served: bool, usage: BatchUsage) {
        if let Some(word) = self.answered.get_mut(line as usize / 64) {
            *word |= 1 << (line % 64);
        }
        self.served += u64::from(is_served);
        self.failed += u64::from(!is_served);
        self.usage.add(usage);
    }

    /// Returns whether a line is answered.
    #[must_use]
    pub fn is_answered(&self, line: u32) -> bool {
        let word = self.answered.get(line as usize / 64);
        word.is_some_and(|word| word >> (line % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::tests::{LIMITS, line, read};
    use super::super::line::{BatchAnswer, answer_line};
    use super::*;

    fn answer(id: &str, status: u16) -> String {
        let answer = BatchAnswer::Response {
            status,
            request_id: "r",
            body: br#"{"usage":{"prompt_tokens":5}}"#,
        };
        String::from_utf8(answer_line(id, id, answer)).unwrap()
    }

    #[test]
    fn whole_lines_count_and_one_that_was_cut_short_does_not() {
        let text: String = (0..70).map(|id| line(&id.to_string(), &[])).collect();
        let (index, _) = read(&text, LIMITS);
        let whole = [answer("69", 200), answer("3", 400)].concat();
        for torn in ["", "{\"id\"", answer("5", 200).trim_end()] {
            let mut answers = BatchAnswers::none(index.len());
            let output = format!("{whole}{torn}");
            answers.read(output.as_bytes(), &index).unwrap().unwrap();
            assert_eq!(answers.whole_bytes, whole.len() as u64);
            assert_eq!((answers.served, answers.failed), (1, 1));
            assert_eq!(answers.usage.prompt_tokens, 10);
            let answered = (0..70).filter(|&line| answers.is_answered(line));
            assert!(answered.eq([3, 69]));
        }
    }

    #[test]
    fn an_output_of_another_batch_is_refused_by_line() {
        let (index, _) = read(&line("1", &[]), LIMITS);
        let refused = |output: &str| {
            let mut answers = BatchAnswers::none(index.len());
            let read = answers.read(output.as_bytes(), &index).unwrap();
            read.unwrap_err().to_string()
        };
        assert_eq!(
            refused(&answer("2", 200)),
            "line 1: no request of the batch has this `custom_id`"
        );
        assert_eq!(
            refused(&[answer("1", 200), answer("1", 200)].concat()),
            "line 2: the request with this `custom_id` is answered already"
        );
        assert_eq!(
            refused("[]\n"),
            "line 1: not a JSON object: error at column 1"
        );
        assert_eq!(
            refused("{\"custom_id\":\"1\",\"response\":7}\n"),
            "line 1: `response` must be an object with a `status_code`, or null"
        );
    }
}

//! Why the request of each line of a log could not begin like an earlier one.

use foreword_ordering::Config;
use foreword_ordering::head::{Diagnosis, Index, Limits};
use foreword_simulation::{BadLine, LogReader, Logged, LoggedKind};

/// Explains a log's lines, one after another.
pub(crate) struct Explaining {
    index: Index,
    reader: LogReader,
    config: Config,
    page_tokens: u32,
}

impl Explaining {
    /// Returns an empty explanation that compares each request with the last `requests` ones.
    pub(crate) fn new(
        requests: u32,
        page_tokens: u32,
        document_tokens: u32,
        config: Config,
    ) -> Self {
        let limits = Limits {
            requests,
            page_tokens,
            ..Limits::LOG
        };
        Self {
            index: Index::new(limits),
            reader: LogReader::new(document_tokens),
            config,
            page_tokens,
        }
    }

    /// Returns why the request of a line could not begin like an earlier one.
    ///
    /// # Errors
    /// Returns an error if the line is no request.
    pub(crate) fn line(&mut self, line: &[u8]) -> Result<Diagnosis, BadLine> {
        let logged = Logged::read(line)?;
        let body = logged.body.as_bytes();
        let mut diagnosis = match logged.kind()? {
            LoggedKind::Ranking => {
                let documents = self.reader.requests(body)?;
                let documents = documents
                    .first()
                    .map_or(&[][..], |request| &request.documents);
                self.index.explain_ranking(documents)
            }
            LoggedKind::Chat => {
                let found =
                    (self.index).explain_body(body, &self.config, &logged.tenant, &logged.engine);
                found.map_err(BadLine::Body)?
            }
        };
        if let Some((prompt, cached)) = logged.usage() {
            diagnosis.told(prompt, cached, self.page_tokens);
        }
        Ok(diagnosis)
    }
}

//! Diagnoses the requests of a log's lines: why each could not reuse all of an earlier prompt's prefix.

use foreword_ordering::Config;
use foreword_ordering::head::{Diagnosis, Index, Limits};
use foreword_simulation::{BadLine, LogReader, Logged, LoggedKind};
use fxhash::FxHashSet;

/// Diagnoses the requests of a log one after another: why each could not reuse an earlier prompt's prefix.
pub(crate) struct Explaining {
    index: Index,
    reader: LogReader,
    config: Config,
    page_tokens: u32,
    /// Names of the engines that have reported cached tokens so far. If one of these reports none for a request, the
    /// count is taken as 0, which vLLM and Gemini omit.
    reporting: FxHashSet<String>,
}

impl Explaining {
    /// Returns an instance that compares each request with at most `requests` requests before it, for an engine whose
    /// cache has pages of `page_tokens` tokens. `document_tokens` is the size assumed for documents whose size the log
    /// does not state.
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
            reporting: FxHashSet::default(),
        }
    }

    /// Returns the diagnosis of the request in a line of the log, and adds the request to those with which later ones
    /// are compared.
    ///
    /// # Errors
    /// Returns an error if the line is not a valid request.
    pub(crate) fn line(&mut self, line: &[u8]) -> Result<Diagnosis, BadLine> {
        let logged = Logged::read(line)?;
        let body = logged.body.as_bytes();
        let mut diagnosis = match logged.kind()? {
            LoggedKind::Ranking => {
                let requests = self.reader.requests(body)?;
                let documents = requests.first().map_or(&[][..], |first| &first.documents);
                self.index.explain_ranking(documents)
            }
            LoggedKind::Chat => {
                let found =
                    (self.index).explain_body(body, &self.config, &logged.tenant, &logged.engine);
                found.map_err(BadLine::Body)?
            }
        };
        if logged.cached_tokens.is_some() {
            self.reporting.insert(logged.engine.to_string());
        }
        let omitted = self.reporting.contains(&*logged.engine).then_some(0);
        let cached = logged.cached_tokens.or(omitted);
        if let Some((prompt, cached)) = logged.prompt_tokens.zip(cached) {
            diagnosis.apply_usage(prompt, cached, self.page_tokens);
        }
        Ok(diagnosis)
    }
}

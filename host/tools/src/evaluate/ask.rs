//! Asks every question under every arm (a document order and a core configuration), several at a time, and records the
//! answers.
//!
//! ```text
//!   cases × arms ──▶ plan: case after case, its arms in an order of its own, drawn with the seed
//!                      │ one by one, under one lock
//!                      ▼
//!   worker: body ──▶ the arm's own orderer ──▶ body ──▶ endpoint ──▶ journal
//!                      (or the gateway)                  │
//!     ▲                                                  │ the chat's next turn, with this answer in it
//!     └──────────────────────────────────────────────────┘
//! ```
//!
//! The arms of a case follow each other, so changing conditions, such as the machine's load, affect all arms. Each arm
//! has its own instance of the ordering core, which sees only the arm's requests, as a gateway's would. Chats begin in
//! the plan's order, so bodies of single-turn cases do not depend on `concurrency`; later turns are ordered as they
//! arrive.
//!
//! A resumed run first orders the recorded requests again, unanswered ones too, in the original order. So does scoring
//! ([`Questions::forced`]), which scores right answers as continuations of the prompts that were sent. A run that only
//! scores uses the first right answers in place of the model's.

use super::arm::Arm;
use super::choice::{self, ChosenBy};
use super::data::Case;
use super::journal::{Journal, Record};
use super::likelihood::Forced;
use super::prompt::Prompts;
use crate::client::{Client, Fault};
use anyhow::{Context, Result, anyhow, bail, ensure};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::random::Random;
use foreword_ordering::{Config, Orderer, Report, Tenant};
use fxhash::{FxHashMap, FxHashSet};
use indicatif::ProgressBar;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The questions to ask, the arms (ways to ask) under which to ask them, and the endpoint.
pub(super) struct Questions<'a> {
    pub(super) cases: &'a [Case],
    pub(super) arms: &'a [Arm],
    /// The ordering core's configuration for each element of `arms`, in the same order.
    pub(super) configs: Vec<Config>,
    pub(super) prompts: &'a Prompts,
    pub(super) client: &'a Client,
    /// URL of the endpoint's chat route.
    pub(super) url: &'a str,
    /// Name of each gateway, and URL of its chat route. Each gateway has an arm (way to ask) of its own.
    pub(super) gateways: &'a [(&'static str, String)],
    pub(super) seed: u64,
    pub(super) concurrency: usize,
}

/// The result of asking all questions under all arms (ways to ask).
#[derive(Debug, Default)]
pub(super) struct RunOutcome {
    /// The records of all requests, including those of earlier runs; unanswered ones have `is_failed` set.
    pub(super) records: Vec<Record>,
    /// Ids of the cases that the endpoint refused or failed to serve under at least one arm (way to ask).
    pub(super) left_out: FxHashSet<String>,
}

/// A case (question or chat) to ask under one arm (way to ask); both are indices, in [`Questions::cases`] and
/// [`Questions::arms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Job {
    case: usize,
    arm: usize,
}

impl Questions<'_> {
    /// Asks the questions that have no answer in `records` (the journal's content) under each arm (way to ask), and
    /// appends the answers to the journal.
    ///
    /// # Errors
    /// Returns an error if the endpoint serves no request of this client (such as by 401 or 404), if too many requests
    /// in a row are refused or fail, or if the journal cannot be written. Answers received before that are in the
    /// journal.
    pub(super) fn ask(
        &self,
        journal: &mut Journal,
        records: Vec<Record>,
        bar: &ProgressBar,
    ) -> Result<RunOutcome> {
        let mut run = Run {
            questions: self,
            plan: self.plan().into_iter(),
            chats: Chats::new(self),
            journal,
            bar,
            outcome: RunOutcome::default(),
            refused: 0,
            failed: 0,
            is_warned: false,
            stop: None,
        };
        run.recall(records)?;
        let run = Mutex::new(run);
        std::thread::scope(|scope| {
            for _ in 0..self.concurrency {
                scope.spawn(|| self.work(&run));
            }
        });
        let run = run.into_inner().unwrap_or_else(PoisonError::into_inner);
        match run.stop {
            Some(error) => Err(error),
            None => Ok(run.outcome),
        }
    }

    /// Returns the records of a run that only scores right answers and does not ask the model: each turn's first right
    /// answer is recorded as if the model had given it.
    ///
    /// # Errors
    /// Returns an error if a turn that is not its chat's last has no right answer.
    pub(super) fn unasked(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for job in self.plan() {
            let case = &self.cases[job.case];
            for (turn, asked) in case.turns.iter().enumerate() {
                let answer = asked.answers.first().cloned();
                ensure!(
                    answer.is_some() || turn + 1 == case.turns.len(),
                    "{:?} has a turn without an answer that others follow, so it cannot be scored alone",
                    case.id
                );
                records.push(Record {
                    case: case.id.clone(),
                    turn,
                    arm: self.arms[job.arm].name().to_owned(),
                    at: records.len() as u64,
                    answer: answer.unwrap_or_default(),
                    is_forced: true,
                    ..Record::default()
                });
            }
        }
        Ok(records)
    }

    /// Returns the requests that score right answers: for each answered record whose turn has a right answer, the
    /// record's index in `records`, and a request for the likelihood of the turn's first right answer as the
    /// continuation of the record's prompt. Also adds the ordering core's report to each record of a turn that the
    /// model was not asked ([`Record::is_forced`]).
    ///
    /// # Errors
    /// Returns an error if a record belongs to no question.
    pub(super) fn forced(&self, records: &mut [Record]) -> Result<Vec<(usize, Forced)>> {
        let mut chats = Chats::new(self);
        let mut order: Vec<usize> = (0..records.len()).collect();
        order.sort_by_key(|&index| records[index].at);
        let mut forced = Vec::new();
        for index in order {
            let record = &mut records[index];
            let (job, request) = chats.recall(record)?;
            if record.is_failed {
                continue;
            }
            chats.answer(job, record.answer.clone());
            if record.is_forced {
                record.note(request.report.as_ref());
            }
            let right = self.cases[job.case].turns[record.turn].answers.first();
            if let Some(right) = right.filter(|right| !right.trim().is_empty()) {
                let url = self.url_of(self.arms[job.arm]);
                forced.push((index, Forced::new(&request.body, right, url)?));
            }
        }
        Ok(forced)
    }

    /// Returns the URL of the chat route to which the requests of an arm (way to ask) are sent: its gateway's, if it
    /// has one.
    fn url_of(&self, arm: Arm) -> &str {
        let is_asked = |(name, _): &&(&'static str, String)| arm == Arm::Gateway(name);
        let gateway = self.gateways.iter().find(is_asked);
        gateway.map_or(self.url, |(_, url)| url)
    }

    /// Returns the number of requests needed to ask all cases under all arms (ways to ask): one for each turn.
    pub(super) fn requests(&self) -> usize {
        let plan = self.plan().into_iter();
        plan.map(|job| self.cases[job.case].turns.len()).sum()
    }

    /// Returns a job for every case under every arm (way to ask) that applies to it, in the order in which they are
    /// asked: case by case, the arms of a case in random order.
    fn plan(&self) -> Vec<Job> {
        let mut random = Random::new(self.seed);
        let mut plan = Vec::new();
        for (case, asked) in self.cases.iter().enumerate() {
            let asks = |arm: &Arm| !arm.is_position() || asked.has_positions();
            let arms = (0..self.arms.len()).filter(|&arm| asks(&self.arms[arm]));
            let mut arms: Vec<_> = arms.collect();
            random.shuffle(&mut arms);
            plan.extend(arms.into_iter().map(|arm| Job { case, arm }));
        }
        plan
    }

    fn work(&self, run: &Mutex<Run<'_>>) {
        let lock = || run.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut locked = lock();
            let Some(job) = locked.next() else { return };
            let chat = self.chat(job, locked, &lock);
            if let Err(error) = chat {
                lock().stop.get_or_insert(error);
            }
        }
    }

    /// Asks those turns of a chat that have no answer yet, one after another, and records the answers. Builds the first
    /// request under `locked`, so that chats begin in the plan's order. Releases the lock while it waits for an answer,
    /// and takes it again with `lock`.
    fn chat<'r, 's: 'r>(
        &self,
        job: Job,
        mut locked: MutexGuard<'r, Run<'s>>,
        lock: &impl Fn() -> MutexGuard<'r, Run<'s>>,
    ) -> Result<()> {
        let (case, arm) = (&self.cases[job.case], self.arms[job.arm]);
        for turn in locked.chats.answers(job).len()..case.turns.len() {
            if locked.stop.is_some() {
                return Ok(());
            }
            let request = locked.chats.request(job)?;
            drop(locked);
            let answer = self.client.ask(self.url_of(arm), &request.body);
            locked = lock();
            let mut record = Record {
                case: case.id.clone(),
                turn,
                arm: arm.name().to_owned(),
                at: request.at,
                sent: format!("{:016x}", Fingerprint::of(&[&request.body]).0),
                ..Record::default()
            };
            match answer {
                Ok(answer) => {
                    let mut streamed = answer.read;
                    let choices = case.turns[turn].choices.len();
                    if choices > 0 {
                        let (chosen, by) = choice::chosen(&streamed, choices);
                        streamed.text = chosen;
                        record.by_text = by == ChosenBy::Text;
                    }
                    record.answer = streamed.text;
                    record.finish = streamed.finish;
                    record.ttft_us = micros(streamed.first);
                    record.total_us = micros(answer.total);
                    record.usage = streamed.usage;
                    record.note(request.report.as_ref());
                    locked.keep(job, record, answer.is_reported)?;
                }
                Err(fault) => {
                    record.is_failed = true;
                    return locked.fail(job, record, fault);
                }
            }
        }
        Ok(())
    }
}

impl Record {
    /// Copies the counts of documents in the ordering core's report on the request into this record; does nothing if
    /// `report` is `None`.
    fn note(&mut self, report: Option<&Report>) {
        if let Some(report) = report {
            self.documents = report.documents;
            self.moved = report.moved;
            self.deduplicated = report.deduplicated;
            self.hinted = report.hinted;
        }
    }
}

/// The state from which each chat's next request is built: the answers received so far, and one instance of the
/// ordering core for each arm (way to ask).
struct Chats<'a> {
    questions: &'a Questions<'a>,
    /// Indices of the cases in [`Questions::cases`], by their ids.
    places: FxHashMap<&'a str, usize>,
    /// The instances of the ordering core, one for each arm (way to ask) of [`Questions::arms`]. Each has seen the
    /// arm's requests so far, so it orders as a gateway would.
    orderers: Vec<Orderer>,
    /// Number of requests ordered so far, over all arms (ways to ask).
    at: u64,
    /// For each chat (a case and the arm, or way to ask, under which it is asked), the answers received so far, one for
    /// each answered turn.
    answers: FxHashMap<Job, Vec<String>>,
}

/// The state that the workers share while they ask questions.
struct Run<'a> {
    questions: &'a Questions<'a>,
    plan: std::vec::IntoIter<Job>,
    chats: Chats<'a>,
    journal: &'a mut Journal,
    bar: &'a ProgressBar,
    outcome: RunOutcome,
    /// Number of requests that the endpoint refused (4xx) since the last answer.
    refused: u32,
    /// Number of requests that failed in all attempts (such as by 5xx or a broken connection) since the last answer.
    failed: u32,
    is_warned: bool,
    /// The error that ends the run; `None` while the run continues.
    stop: Option<anyhow::Error>,
}

/// A request for the next answer of a chat, with its documents ordered, ready to be sent.
struct Request {
    body: Vec<u8>,
    /// The ordering core's report on the request; `None` if the request goes through a gateway instead, or if the
    /// ordering core skipped it, such as for lack of documents.
    report: Option<Report>,
    /// Position of this request, from 0, in the sequence of all requests that were ordered.
    at: u64,
}

impl<'a> Chats<'a> {
    fn new(questions: &'a Questions<'a>) -> Self {
        let cases = questions.cases.iter().enumerate();
        let configs = questions.configs.iter().cloned();
        Self {
            questions,
            places: cases.map(|(at, case)| (case.id.as_str(), at)).collect(),
            orderers: configs.map(Orderer::new).collect(),
            at: 0,
            answers: FxHashMap::default(),
        }
    }

    /// Orders a recorded request again, so that the ordering core of its arm (way to ask) has the same state as after
    /// the original request. Returns the record's case and arm, and the request.
    ///
    /// # Errors
    /// Returns an error if the record's question or arm is not asked, or if the record is not its chat's next turn.
    fn recall(&mut self, record: &Record) -> Result<(Job, Request)> {
        let questions = self.questions;
        let of = |what: &str| format!("the kept answer to {:?} {what}", record.case);
        let case = self.places.get(record.case.as_str());
        let (Some(&case), Some(arm)) = (case, record.arm(questions.arms)) else {
            bail!(of("belongs to no question that is asked"));
        };
        let job = Job { case, arm };
        let turn = self.answers(job).len();
        ensure!(
            record.turn == turn && turn < questions.cases[case].turns.len(),
            of("is not its chat's next one")
        );
        self.at = record.at;
        Ok((job, self.request(job)?))
    }

    fn answers(&self, job: Job) -> &[String] {
        self.answers.get(&job).map_or(&[], Vec::as_slice)
    }

    fn answer(&mut self, job: Job, answer: String) {
        self.answers.entry(job).or_default().push(answer);
    }

    /// Returns the next request of a chat (a case and the arm, or way to ask, under which it is asked), with its
    /// documents ordered. This changes the state of the arm's ordering core.
    fn request(&mut self, job: Job) -> Result<Request> {
        let questions = self.questions;
        let (case, arm) = (&questions.cases[job.case], questions.arms[job.arm]);
        let answers: Vec<&str> = self.answers(job).iter().map(String::as_str).collect();
        let body = questions.prompts.body(case, arm, &answers);
        let at = self.at;
        self.at += 1;
        let (body, report) = if arm.is_gateway() {
            (body, None)
        } else {
            match self.orderers[job.arm].rewrite(Tenant::default(), &body) {
                Ok(rewrite) => {
                    let body = rewrite.body.unwrap_or(body);
                    let body = match arm.hint_place() {
                        Some(place) => place.moved(&body)?,
                        None => body,
                    };
                    (body, Some(rewrite.report))
                }
                // The original body is sent, as at the gateway. A separate check has made sure that documents are
                // found.
                Err(_) => (body, None),
            }
        };
        Ok(Request { body, report, at })
    }
}

impl Run<'_> {
    /// Orders the recorded requests again, in the order of the earlier run, so that the ordering cores have the same
    /// state as when that run stopped. Adds the records to the outcome and the answers to the progress bar; sends
    /// nothing.
    fn recall(&mut self, mut records: Vec<Record>) -> Result<()> {
        records.sort_by_key(|record| record.at);
        for record in records {
            let (job, _) = self.chats.recall(&record)?;
            if record.is_failed {
                self.outcome.records.push(record);
            } else {
                self.answer(job, record);
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Job> {
        if self.stop.is_some() {
            return None;
        }
        loop {
            let job = self.plan.next()?;
            let case = &self.questions.cases[job.case];
            let is_done = self.chats.answers(job).len() == case.turns.len();
            if !is_done && !self.outcome.left_out.contains(&case.id) {
                return Some(job);
            }
        }
    }

    fn keep(&mut self, job: Job, record: Record, is_reported: bool) -> Result<()> {
        let arm = self.questions.arms[job.arm];
        if arm.is_gateway() && !is_reported && !self.is_warned {
            self.is_warned = true;
            self.bar.suspend(|| {
                eprintln!("warning: {} does not say what it did (x-foreword): is the filter on this route?", arm.name());
            });
        }
        self.journal.append(&record)?;
        (self.refused, self.failed) = (0, 0);
        self.answer(job, record);
        Ok(())
    }

    fn answer(&mut self, job: Job, record: Record) {
        self.chats.answer(job, record.answer.clone());
        self.outcome.records.push(record);
        self.bar.inc(1);
    }

    /// Writes the unanswered request to the journal and leaves its case out of the results. Returns an error, which
    /// ends the run, if the endpoint serves no request of this client, or if too many requests in a row were refused or
    /// failed.
    fn fail(&mut self, job: Job, record: Record, fault: Fault) -> Result<()> {
        self.journal.append(&record)?;
        self.outcome.records.push(record);
        let (count, limit) = match &fault {
            Fault::Denied(_) => return Err(anyhow!(fault)),
            Fault::Refused(_) => (&mut self.refused, MAX_REFUSED),
            Fault::Failed { .. } => (&mut self.failed, MAX_FAILED),
        };
        *count += 1;
        let is_over = *count >= limit;
        let case = &self.questions.cases[job.case];
        let arm = self.questions.arms[job.arm].name();
        if is_over {
            let records = self.outcome.records.iter();
            let kept = records.filter(|record| !record.is_failed).count();
            return Err(anyhow!(fault)).with_context(|| {
                format!("{limit} requests in a row were not answered; {kept} answers are kept, and the same command goes on from there; the last one ({:?}, {arm})", case.id)
            });
        }
        if self.outcome.left_out.insert(case.id.clone()) {
            let id = &case.id;
            (self.bar).suspend(|| eprintln!("left out: {id:?} ({arm}): {fault}"));
        }
        Ok(())
    }
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Number of consecutive refused requests at which the run ends, since the endpoint seems to refuse every request.
const MAX_REFUSED: u32 = 20;
/// Number of consecutive failed requests, each after all retries, at which the run ends, since the endpoint seems to be
/// down.
const MAX_FAILED: u32 = 3;

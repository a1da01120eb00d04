//! Computes the figures of each arm (a way to ask the questions), and their differences from those in retrieval order.
//!
//! Only cases answered under every arm count, so that all arms cover the same questions. The arms that put the answer's
//! document in a given position apply only to cases whose answer's document is known, and are compared with retrieval
//! order over these. With a baseline, every arm is also compared with it. The likelihood of right answers covers the
//! cases whose answers were scored under every arm.

use super::arm::Arm;
use super::bootstrap::{self, Interval, RESAMPLES, Verdict};
use super::data::Case;
use super::journal::Record;
use super::score::{Score, score};
use fxhash::FxHashMap;

/// The figures of one arm (a way to ask the questions), over those cases (questions and chats) that were answered under
/// all arms.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) arm: Arm,
    /// Number of cases (questions and chats) over which the figures are computed: those answered under every arm (way
    /// to ask).
    pub(super) cases: usize,
    /// Number of answers that the model gave under this arm (way to ask); 0 if right answers were only scored.
    pub(super) asked: usize,
    /// Number of the model's answers that were compared with right answers, because the data file states them.
    pub(super) scored: usize,
    /// Share of the scored answers that equal a right one after normalisation, in percent.
    pub(super) exact_match: Estimate,
    /// Share of the scored answers that contain the words of a right one, in percent.
    pub(super) contains: Estimate,
    pub(super) f1: Estimate,
    /// Share of the judged answers that the judge (a model) finds right, in percent; `None` if no answer was judged.
    pub(super) judged: Option<Estimate>,
    /// Number of multiple-choice answers read from the answer's text, because the endpoint reported no
    /// log-probabilities of the letters.
    pub(super) by_text: u64,
    /// Prompt tokens (cached ones included) of all requests of the arm (way to ask), divided by the sum of their times
    /// to the first token, in tokens per second; `None` if the endpoint does not report token counts.
    pub(super) prefill: Option<f64>,
    /// Prompt tokens of all requests of the arm (way to ask); `None` if the endpoint does not report them.
    pub(super) prompt_tokens: Option<u64>,
    pub(super) cached_tokens: Option<u64>,
    /// Share of the prompt tokens that were cached, in percent; `None` if the endpoint does not report it.
    pub(super) reused: Option<f64>,
    /// Median time from sending a request to the answer's first token, in milliseconds.
    pub(super) ttft_median: f64,
    pub(super) ttft_p95: f64,
    pub(super) ttft_mean: f64,
    /// Number of documents that the ordering core found in all requests of the arm (way to ask); 0 for gateways.
    pub(super) documents: u64,
    /// Number of documents, in all requests of the arm (way to ask), that the ordering core sent at another position
    /// than the client did; 0 for gateways.
    pub(super) moved: u64,
    /// Number of documents that the ordering core replaced by a reference to an earlier turn in all requests of the arm
    /// (way to ask); 0 for gateways.
    pub(super) deduplicated: u64,
    /// Number of requests of the arm (way to ask) to which the ordering core added an order hint (a sentence with the
    /// retriever's ranking); 0 for gateways.
    pub(super) hinted: u64,
    /// Number of answers under this arm (way to ask) that were truncated at the limit of the option `--max-tokens`.
    pub(super) cut: usize,
    /// Mean log-probability per token of right answers under this arm (way to ask), in nats, over the cases whose right
    /// answers were scored under every arm; `None` if there are none.
    pub(super) answer_logprob: Option<AnswerLikelihood>,
    /// Mean log-probability of whole right answers under this arm (way to ask), in nats, over the cases whose right
    /// answers were scored under every arm; `None` if there are none.
    pub(super) answer_nats: Option<AnswerLikelihood>,
    /// The figures of this arm (way to ask) minus those in retrieval order, over the same cases. `None` for retrieval
    /// order itself, if retrieval order was not asked for these cases, or if no answers were requested.
    pub(super) difference: Option<Difference>,
    /// The figures of this arm (way to ask) minus those of the baseline (the arm that the option `--baseline` names).
    /// `None` if no baseline was given, for the baseline itself, or if no answers were requested.
    pub(super) from_baseline: Option<Difference>,
}

/// A figure and its 95 % confidence interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    pub(super) value: f64,
    pub(super) interval: Interval,
}

/// Mean log-probability of right answers under an arm (way to ask), in nats, and its differences from other arms. It is
/// either per token or of whole answers; the field of [`Figure`] that contains it decides.
#[derive(Clone, Debug)]
pub(super) struct AnswerLikelihood {
    pub(super) mean: f64,
    /// Number of cases (questions and chats) over which the mean is computed.
    pub(super) cases: usize,
    /// The mean log-probability under this arm (way to ask) minus that in retrieval order over the same cases, in nats,
    /// with its interval and a verdict on its sign. `None` for retrieval order itself, or if no question was asked in
    /// retrieval order.
    pub(super) less_retrieval: Option<(Estimate, Verdict)>,
    /// The mean log-probability under this arm (way to ask) minus that of the baseline (the arm that the option
    /// `--baseline` names) over the same cases, in nats, with its interval and a verdict on its sign. `None` if no
    /// baseline was given, or for the baseline itself.
    pub(super) less_baseline: Option<(Estimate, Verdict)>,
}

/// The figures of one arm (way to ask) minus those of another arm, over the same cases.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    /// The share of answers that match a right one exactly under one arm (way to ask) minus that under the other, in
    /// percentage points, and the verdict on this difference.
    pub(super) exact_match: (Estimate, Verdict),
    pub(super) contains: (Estimate, Verdict),
    pub(super) f1: (Estimate, Verdict),
    /// The share of answers that the judge (a model) finds right under one arm (way to ask) minus that under the other,
    /// in percentage points, and the verdict on this difference; `None` if no answer was judged.
    pub(super) judged: Option<(Estimate, Verdict)>,
    pub(super) reused: Option<Estimate>,
    /// The median time to the first token under one arm (way to ask) minus that under the other, in milliseconds.
    pub(super) ttft: Estimate,
}

/// The results of one case (a question or chat) under one arm (way to ask), as sums over its turns.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// Number of the case's turns that were answered (or scored) under the arm (way to ask). If the case has more
    /// turns, it is left out.
    turns: usize,
    /// Number of the case's turns to which the model gave an answer.
    asked: usize,
    /// Number of the model's answers that were compared with right ones.
    scored: f64,
    exact_match: f64,
    contains: f64,
    f1: f64,
    /// Number of the case's turns for which the endpoint scored the right answer: reported its log-probability as the
    /// continuation of the prompt.
    likely: f64,
    /// Number of the case's turns that have a right answer which the endpoint did not score.
    unlikely: usize,
    /// Sum over the scored right answers of the mean log-probability of their tokens, in nats.
    per_token: f64,
    /// Sum over the scored right answers of their log-probability, in nats.
    nats: f64,
    /// Number of answers that the judge (a model) judged.
    judged: f64,
    /// Number of answers that the judge found right.
    judged_right: f64,
    by_text: u64,
    /// Prompt tokens of all the case's requests; `None` if an answer does not report them.
    prompt: Option<u64>,
    cached: Option<u64>,
    ttft_us: Vec<u64>,
    documents: u64,
    moved: u64,
    deduplicated: u64,
    hinted: u64,
    cut: usize,
}

/// Returns the figures of `arms`, in this order, over the cases that were answered under every arm (way to ask). Each
/// arm is compared with retrieval order and, if it is given, with `baseline`, which must be one of the arms. `seed` is
/// for the confidence intervals.
pub(super) fn compare(
    cases: &[Case],
    arms: &[Arm],
    baseline: Option<Arm>,
    records: &[Record],
    seed: u64,
) -> Vec<Figure> {
    let sums = sums(cases, arms, records);
    let complete = |case: &&Case, wanted: fn(&Arm) -> bool| {
        let mut wanted = arms.iter().filter(|arm| wanted(arm));
        wanted.all(|arm| sums.contains_key(&(case.id.as_str(), *arm)))
    };
    let all = cases
        .iter()
        .filter(|case| complete(case, |arm| !arm.is_position()));
    let all: Vec<&Case> = all.collect();
    let mut placed = all.clone();
    placed.retain(|case| complete(case, |arm| arm.is_position()));
    // Cases whose answers were scored under every arm.
    let is_measured = |case: &Case, is_position: bool| {
        let asking = |arm: &&Arm| is_position || !arm.is_position();
        let mut sums = (arms.iter().filter(asking)).map(|arm| &sums[&(case.id.as_str(), *arm)]);
        sums.all(|sums| sums.likely > 0.0 && sums.unlikely == 0)
    };
    let mut measured = [all.clone(), placed.clone()];
    measured[0].retain(|case| is_measured(case, false));
    measured[1].retain(|case| is_measured(case, true));
    let figure = |arm: Arm| {
        let cases = if arm.is_position() { &placed } else { &all };
        let own = of(&sums, arm, cases);
        let against = |other: Arm| {
            let baseline = of(&sums, other, cases);
            let is_paired = arm != other && baseline.len() == own.len();
            let is_asked = own.iter().any(|sums| sums.asked > 0);
            (is_paired && is_asked).then(|| difference(&own, &baseline, seed))
        };
        let measured = &measured[usize::from(arm.is_position())];
        let likelihood = |value: fn(&Sums) -> f64| {
            let own = of(&sums, arm, measured);
            let less = |other: Arm| {
                let other = (arm != other).then(|| of(&sums, other, measured))?;
                less(&own, &other, value, seed)
            };
            (!own.is_empty()).then(|| AnswerLikelihood {
                mean: mean(&own, &(0..own.len()).collect::<Vec<_>>(), value),
                cases: own.len(),
                less_retrieval: less(Arm::Retrieval),
                less_baseline: baseline.and_then(less),
            })
        };
        Figure {
            answer_logprob: likelihood(|sums| sums.per_token),
            answer_nats: likelihood(|sums| sums.nats),
            difference: against(Arm::Retrieval),
            from_baseline: baseline.and_then(against),
            ..alone(arm, &own, seed)
        }
    };
    arms.iter().map(|&arm| figure(arm)).collect()
}

/// Returns the results ([`Sums`]) of each of `cases` under `arm`, in the order of `cases`. Cases without results under
/// this arm (way to ask) are left out.
fn of<'a>(
    sums: &'a FxHashMap<(&'a str, Arm), Sums>,
    arm: Arm,
    cases: &[&'a Case],
) -> Vec<&'a Sums> {
    let found = cases.iter().map(|case| sums.get(&(case.id.as_str(), arm)));
    found.flatten().collect()
}

/// Returns the results ([`Sums`]) of each case under each arm (way to ask), by the case's id and the arm. A case is
/// left out under an arm if one of its turns was not answered under that arm.
fn sums<'a>(
    cases: &'a [Case],
    arms: &[Arm],
    records: &[Record],
) -> FxHashMap<(&'a str, Arm), Sums> {
    let by_id: FxHashMap<&str, &Case> = cases.iter().map(|case| (&*case.id, case)).collect();
    let mut answered: FxHashMap<(&str, Arm), Sums> = FxHashMap::default();
    // Endpoints that report cached tokens may omit a zero (vLLM, Gemini).
    let are_reported = (records.iter()).any(|record| record.usage.cached_tokens.is_some());
    for record in records {
        let case = by_id.get(record.case.as_str());
        let (Some(case), Some(arm)) = (case, record.arm(arms)) else {
            continue;
        };
        let arm = arms[arm];
        let Some(turn) = case.turns.get(record.turn) else {
            continue;
        };
        let sums = answered.entry((&case.id, arm)).or_insert_with(|| Sums {
            prompt: Some(0),
            cached: Some(0),
            ..Sums::default()
        });
        sums.turns += 1;
        match record.likelihood {
            Some(likelihood) => {
                sums.likely += 1.0;
                sums.per_token += likelihood.per_token();
                sums.nats += likelihood.nats;
            }
            None => sums.unlikely += usize::from(!turn.answers.is_empty()),
        }
        sums.documents += u64::from(record.documents);
        sums.moved += u64::from(record.moved);
        sums.deduplicated += u64::from(record.deduplicated);
        sums.hinted += u64::from(record.hinted);
        if record.is_forced {
            continue;
        }
        sums.asked += 1;
        if !turn.answers.is_empty() {
            let score = match turn.choices.is_empty() {
                true => score(&record.answer, &turn.answers),
                false => Score::of_choice(&record.answer, &turn.answers),
            };
            sums.scored += 1.0;
            sums.exact_match += score.exact_match;
            sums.contains += score.contains;
            sums.f1 += score.f1;
        }
        let usage = record.usage;
        let add = |sum: Option<u64>, count: Option<u64>| Some(sum? + count?);
        sums.prompt = add(sums.prompt, usage.prompt_tokens);
        let omitted = usage.prompt_tokens.filter(|_| are_reported).map(|_| 0);
        sums.cached = add(sums.cached, usage.cached_tokens.or(omitted));
        sums.ttft_us.push(record.ttft_us);
        sums.judged += f64::from(u8::from(record.judged.is_some()));
        sums.judged_right += f64::from(u8::from(record.judged == Some(true)));
        sums.by_text += u64::from(record.by_text);
        sums.cut += usize::from(record.finish.as_deref() == Some("length"));
    }
    answered.retain(|(id, _), sums| sums.turns == by_id[id].turns.len());
    answered
}

fn alone(arm: Arm, own: &[&Sums], seed: u64) -> Figure {
    let every: Vec<usize> = (0..own.len()).collect();
    let rate =
        |of: Part, all: Part| Estimate::of(own.len(), seed, |drawn| percent(own, drawn, of, all));
    let total = |of: fn(&Sums) -> Option<u64>| own.iter().map(|sums| of(sums)).sum();
    let count = |of: fn(&Sums) -> u64| own.iter().map(|sums| of(sums)).sum();
    Figure {
        arm,
        cases: own.len(),
        asked: own.iter().map(|sums| sums.asked).sum(),
        scored: own.iter().map(|sums| sums.scored).sum::<f64>() as usize,
        exact_match: rate(|sums| sums.exact_match, SCORED),
        contains: rate(|sums| sums.contains, SCORED),
        f1: rate(|sums| sums.f1, SCORED),
        judged: (own.iter().any(|sums| sums.judged > 0.0)).then(|| rate(RIGHT, JUDGED)),
        by_text: count(|sums| sums.by_text),
        prefill: prefill(own),
        prompt_tokens: total(|sums| sums.prompt),
        cached_tokens: total(|sums| sums.cached),
        reused: reused(own, &every),
        ttft_median: ttft(own, &every, 0.5),
        ttft_p95: ttft(own, &every, 0.95),
        ttft_mean: ttft_mean(own),
        documents: count(|sums| sums.documents),
        moved: count(|sums| sums.moved),
        deduplicated: count(|sums| sums.deduplicated),
        hinted: count(|sums| sums.hinted),
        cut: own.iter().map(|sums| sums.cut).sum(),
        answer_logprob: None,
        answer_nats: None,
        difference: None,
        from_baseline: None,
    }
}

/// Returns the sum of `value` over the drawn cases, divided by the number of their right answers that were scored.
/// `drawn` has indices in `sums`.
fn mean(sums: &[&Sums], drawn: &[usize], value: Part) -> f64 {
    let of = |part: Part| drawn.iter().map(|&case| part(sums[case])).sum::<f64>();
    of(value) / of(|sums| sums.likely).max(1.0)
}

/// Returns the mean of `value` per scored right answer under one arm, or way to ask (`own`), minus that under another
/// (`other`), with its confidence interval and the verdict on its sign; `None` if the two do not have equally many
/// cases.
fn less(own: &[&Sums], other: &[&Sums], value: Part, seed: u64) -> Option<(Estimate, Verdict)> {
    let less = |drawn: &[usize]| mean(own, drawn, value) - mean(other, drawn, value);
    (own.len() == other.len()).then(|| {
        let estimate = Estimate::of(own.len(), seed, less);
        (estimate, Verdict::of_sign(estimate.interval, own.len()))
    })
}

fn difference(own: &[&Sums], baseline: &[&Sums], seed: u64) -> Difference {
    let every: Vec<usize> = (0..own.len()).collect();
    let estimate = |statistic: &dyn Fn(&[usize]) -> f64| Estimate::of(own.len(), seed, statistic);
    let between = |own: &[&Sums], baseline: &[&Sums], of: Part, all: Part| {
        let less =
            |drawn: &[usize]| percent(own, drawn, of, all) - percent(baseline, drawn, of, all);
        let estimate = Estimate::of(own.len(), seed, less);
        let is_right = |sums: &&Sums| of(sums) > 0.0;
        let counts = |(own, other): &(&&Sums, &&Sums)| all(own) > 0.0 && all(other) > 0.0;
        let cases = own.iter().zip(baseline).filter(counts).count();
        let verdict = if own.iter().chain(baseline).any(is_right) {
            Verdict::of(estimate.interval, cases)
        } else {
            Verdict::NothingRight
        };
        (estimate, verdict)
    };
    let compared = |of: Part, all: Part| between(own, baseline, of, all);
    // A judge may be unclear about an answer: both arms must cover the same questions.
    let judged = || -> (Vec<&Sums>, Vec<&Sums>) {
        let pairs = own.iter().zip(baseline);
        let is_whole = |sums: &&Sums| sums.judged == sums.scored;
        let pairs = pairs.filter(|(own, other)| is_whole(own) && is_whole(other));
        pairs.map(|(own, other)| (*own, *other)).unzip()
    };
    let both_told = reused(own, &every).is_some() && reused(baseline, &every).is_some();
    let share = |sums: &[&Sums], drawn: &[usize]| reused(sums, drawn).unwrap_or_default();
    Difference {
        exact_match: compared(|sums| sums.exact_match, SCORED),
        contains: compared(|sums| sums.contains, SCORED),
        f1: compared(|sums| sums.f1, SCORED),
        judged: (own.iter().chain(baseline))
            .any(|sums| sums.judged > 0.0)
            .then(judged)
            .map(|(own, baseline)| between(&own, &baseline, RIGHT, JUDGED)),
        reused: both_told.then(|| estimate(&|drawn| share(own, drawn) - share(baseline, drawn))),
        ttft: estimate(&|drawn| ttft(own, drawn, 0.5) - ttft(baseline, drawn, 0.5)),
    }
}

/// A function that selects one number of a case's [`Sums`].
type Part = fn(&Sums) -> f64;

const SCORED: Part = |sums| sums.scored;
const JUDGED: Part = |sums| sums.judged;
const RIGHT: Part = |sums| sums.judged_right;

impl Estimate {
    /// Returns the value of `statistic` for all of the `cases` cases, with its 95 % confidence interval. `statistic`
    /// gets the indices of the cases for which to compute the value.
    fn of(cases: usize, seed: u64, statistic: impl Fn(&[usize]) -> f64) -> Self {
        let every: Vec<usize> = (0..cases).collect();
        let value = statistic(&every);
        let [interval] = bootstrap::intervals(cases, RESAMPLES, seed, |drawn| [statistic(drawn)]);
        Self { value, interval }
    }
}

/// Returns the sum of `of` over the drawn cases (indices in `sums`), in percent of the sum of `all` over them; 0 if the
/// latter is 0.
fn percent(sums: &[&Sums], drawn: &[usize], of: Part, all: Part) -> f64 {
    let sum = |part: Part| drawn.iter().map(|&case| part(sums[case])).sum::<f64>();
    let (of, all) = (sum(of), sum(all));
    if all > 0.0 { 100.0 * of / all } else { 0.0 }
}

/// Returns the prompt tokens of all requests of the cases, divided by the sum of their times to the first token, in
/// tokens per second. `None` if an answer does not report its prompt tokens, or if there are no requests.
fn prefill(sums: &[&Sums]) -> Option<f64> {
    let tokens: Option<u64> = sums.iter().map(|sums| sums.prompt).sum();
    let micros: u64 = sums.iter().flat_map(|sums| &sums.ttft_us).sum();
    (micros > 0).then(|| tokens.map(|tokens| tokens as f64 * 1e6 / micros as f64))?
}

/// Returns the share of the drawn cases' prompt tokens that were cached, in percent; `None` if the endpoint does not
/// report them. `drawn` has indices in `sums`.
fn reused(sums: &[&Sums], drawn: &[usize]) -> Option<f64> {
    let (mut cached, mut prompt) = (0, 0);
    for &case in drawn {
        cached += sums[case].cached?;
        prompt += sums[case].prompt?;
    }
    (prompt > 0).then(|| 100.0 * cached as f64 / prompt as f64)
}

/// Returns the quantile `share` (0 to 1) of the times to first token of the drawn cases' requests, in milliseconds, by
/// nearest rank; 0 if there are no requests. `drawn` has indices in `sums`.
fn ttft(sums: &[&Sums], drawn: &[usize], share: f64) -> f64 {
    let times = drawn.iter().flat_map(|&case| &sums[case].ttft_us);
    let mut times: Vec<u64> = times.copied().collect();
    if times.is_empty() {
        return 0.0;
    }
    let rank = (share * times.len() as f64).ceil() as usize;
    let at = rank.clamp(1, times.len()) - 1;
    *times.select_nth_unstable(at).1 as f64 / 1000.0
}

/// Returns the mean time to first token of all requests of the cases, in milliseconds; 0 if there are no requests.
fn ttft_mean(sums: &[&Sums]) -> f64 {
    let times = || sums.iter().flat_map(|sums| &sums.ttft_us);
    times().sum::<u64>() as f64 / 1000.0 / times().count().max(1) as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::data::{Document, Turn};
    use super::super::journal::tests::record;
    use super::*;
    use std::sync::Arc;

    /// Returns cases of one turn with three documents, to which the right answer is `yes`.
    pub(in crate::evaluate) fn cases(count: usize) -> Vec<Case> {
        let document = Arc::new(Document {
            id: "1".into(),
            title: String::new(),
            text: "yes".into(),
        });
        (0..count)
            .map(|at| Case {
                id: at.to_string(),
                turns: vec![Turn {
                    question: "?".into(),
                    documents: vec![Arc::clone(&document); 3],
                    answers: vec!["yes".into()],
                    answer_document: Some(0),
                    choices: Vec::new(),
                }],
            })
            .collect()
    }

    /// Returns records of `count` answers, the first `right` of which are right.
    pub(in crate::evaluate) fn answered(arm: Arm, count: usize, right: usize) -> Vec<Record> {
        let answer = |at| if at < right { "yes" } else { "no" };
        (0..count)
            .map(|at| record(&at.to_string(), 0, arm, answer(at)))
            .collect()
    }

    fn of(figures: &[Figure], arm: Arm) -> &Figure {
        figures.iter().find(|figure| figure.arm == arm).unwrap()
    }

    #[test]
    fn scores_tokens_and_times_are_those_of_the_answers() {
        let cases = cases(40);
        let mut records = answered(Arm::Retrieval, 40, 10);
        records.extend(answered(Arm::Ordered, 40, 30));
        for (at, record) in records.iter_mut().enumerate() {
            record.ttft_us = 1_000 * (at as u64 % 40 + 1);
            record.finish = (at % 40 == 3).then(|| "length".into());
        }
        // A zero that the endpoint omits.
        records[0].usage.cached_tokens = None;
        let figures = compare(&cases, &[Arm::Retrieval, Arm::Ordered], None, &records, 1);
        let baseline = of(&figures, Arm::Retrieval);
        assert_eq!((baseline.cases, baseline.scored, baseline.cut), (40, 40, 1));
        assert_eq!(baseline.exact_match.value, 25.0);
        assert_eq!((baseline.ttft_median, baseline.ttft_p95), (20.0, 38.0));
        assert_eq!(baseline.prompt_tokens, Some(4_000));
        assert_eq!(baseline.reused, Some(39.0));
        assert!(baseline.difference.is_none());
        let difference = of(&figures, Arm::Ordered).difference.as_ref().unwrap();
        let (exact_match, verdict) = &difference.exact_match;
        assert_eq!((exact_match.value, *verdict), (50.0, Verdict::Better));
        assert!(exact_match.interval.low > 30.0 && exact_match.interval.high < 70.0);
        assert_eq!(difference.ttft.value, 0.0);
        assert_eq!(difference.reused.unwrap().value, 1.0);
    }

    #[test]
    fn pairs_make_differences_certain_that_two_samples_would_not() {
        // Both are right in the same 150 of 300; each rate's own interval is more than ten points wide.
        let cases = cases(300);
        let mut records = answered(Arm::Retrieval, 300, 150);
        records.extend(answered(Arm::Reversed, 300, 150));
        let figures = compare(&cases, &[Arm::Retrieval, Arm::Reversed], None, &records, 0);
        let reversed = of(&figures, Arm::Reversed);
        let width = reversed.exact_match.interval.high - reversed.exact_match.interval.low;
        assert!(width > 10.0);
        let (_, verdict) = reversed.difference.as_ref().unwrap().exact_match;
        assert_eq!(verdict, Verdict::Within);
    }

    #[test]
    fn only_cases_answered_under_every_arm_count() {
        let cases = cases(6);
        let mut records = answered(Arm::Retrieval, 6, 6);
        records.extend(answered(Arm::Ordered, 4, 4));
        records.extend(answered(Arm::First, 2, 2));
        records.push(record("unknown", 0, Arm::Ordered, "yes"));
        records[0].usage.prompt_tokens = None;
        records[0].usage.cached_tokens = None;
        let arms = [Arm::Retrieval, Arm::Ordered, Arm::First];
        let figures = compare(&cases, &arms, None, &records, 0);
        let counts: Vec<_> = figures.iter().map(|figure| figure.cases).collect();
        assert_eq!(counts, [4, 4, 2]);
        assert_eq!(of(&figures, Arm::Retrieval).reused, None);
        let difference = of(&figures, Arm::First).difference.as_ref().unwrap();
        assert!(difference.reused.is_none());
        assert_eq!(difference.exact_match.1, Verdict::NotEnough);
        assert!(compare(&cases, &arms, None, &[], 0)[1].difference.is_none());
    }

    #[test]
    fn a_chat_counts_when_it_was_answered_to_its_end() {
        let mut cases = cases(1);
        let turn = cases[0].turns[0].clone();
        cases[0].turns.push(Turn {
            answers: Vec::new(),
            ..turn.clone()
        });
        cases[0].turns.push(turn);
        let arms = [Arm::Retrieval];
        let mut records = vec![
            record("0", 0, Arm::Retrieval, "yes"),
            record("0", 1, Arm::Retrieval, "whatever"),
        ];
        assert_eq!(compare(&cases, &arms, None, &records, 0)[0].cases, 0);
        records.push(record("0", 2, Arm::Retrieval, "no"));
        let figure = &compare(&cases, &arms, None, &records, 0)[0];
        assert_eq!((figure.cases, figure.scored), (1, 2));
        assert_eq!(figure.exact_match.value, 50.0);
        assert_eq!(figure.prompt_tokens, Some(300));
    }

    #[test]
    fn where_nothing_is_right_nothing_is_said() {
        let cases = cases(400);
        let mut records = answered(Arm::Retrieval, 400, 0);
        records.extend(answered(Arm::Random, 400, 0));
        let figures = compare(&cases, &[Arm::Retrieval, Arm::Random], None, &records, 0);
        let (_, verdict) = of(&figures, Arm::Random).difference.as_ref().unwrap().f1;
        assert_eq!(verdict, Verdict::NothingRight);
    }
}

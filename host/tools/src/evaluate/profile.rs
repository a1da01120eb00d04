//! A model's rank profile: how much likelier the right answer is when the document of a given rank (in the retriever's
//! order) is in a given place of the prompt.
//!
//! ```text
//!   question ──▶ orders: rotations of a shuffle, so that every rank takes every place equally often
//!                  │ likelihood of the right answer, in nats a token
//!                  ▼
//!   y[question, order] = a[question] + Σ over documents of b[class of rank, class of place]    (least squares)
//!                  │ intervals: questions are drawn with replacement
//!                  ▼
//!   b: a table of ranks and places ──▶ what a placement of the best documents costs ──▶ `ordering.rank`
//! ```
//!
//! An order puts one document in each place, so the data determine `b` except for one number per rank and one per
//! place, which cancel out between orders of the same documents. These are chosen so that the last class of ranks has 0
//! everywhere and every other rank has a mean of 0 over places: `b` is a place's effect on a rank, relative to a
//! document of the last class there.

use super::arm::Arm;
use super::bootstrap::{self, Interval, MIN_CASES};
use super::data::{Case, Turn};
use super::likelihood::{Forced, Likelihood};
use super::prompt::Prompts;
use anyhow::{Context, Result, ensure};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::policy::{Place, Placement};
use foreword_ordering::random::Random;
use foreword_ordering::{Config, Orderer, Tenant};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A model's rank profile: the effect of a document's place on the right answer's log-probability, by the document's
/// rank, in nats per token of the answer. It is the content of `rank-profile.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankProfile {
    /// Version of the format of `rank-profile.json`.
    format: u32,
    /// Name of the model that was measured.
    pub(crate) model: String,
    /// Name of the template (`tags`, `numbered`, …) in which the documents were written into the prompt.
    template: String,
    /// Number of documents of the measured question that has the most documents.
    pub(super) documents: usize,
    /// Number of questions measured.
    pub(super) questions: usize,
    /// Names of the classes of documents' ranks in the retriever's order (`1`, `2`, `3`, `others`), which are the rows
    /// of the table.
    ranks: Vec<String>,
    /// Names of the classes of places (`first`, `second`, `middle`, …), which are the columns of the table.
    places: Vec<String>,
    /// Effect of a document's place on the right answer, by the class of its rank, then by the class of the place, in
    /// nats per token; `None` for classes that do not exist among [`Self::documents`] documents.
    table: Vec<Vec<Option<PlaceEffect>>>,
    /// The compared ways to place the retriever's best documents, with their costs. The first ones leave the most
    /// documents to the ordering policy.
    pub(super) placements: Vec<Placed>,
    /// The placement of the retriever's best documents to configure: of those whose loss is not shown to be greater
    /// than the least loss, the one that leaves the most documents to the ordering policy. `None` if there are too few
    /// questions to choose.
    pub(super) chosen: Option<Placement>,
}

/// An effect in nats per token of the right answer, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PlaceEffect {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// A way to place the retriever's best documents, and its cost: the right answer's loss of log-probability relative to
/// retrieval order, in nats per token, with the other documents in random order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Placed {
    #[serde(flatten)]
    pub(super) placement: Placement,
    #[serde(flatten)]
    pub(super) loss: PlaceEffect,
}

/// An order of a question's documents, and the log-probability of the right answer after them, in nats per token.
#[derive(Clone, Debug)]
struct Measured {
    /// The documents' ranks, 0 for the best, in the order of the prompt.
    order: Vec<usize>,
    per_token: f64,
}

const FORMAT: u32 = 1;
const RANKS: [&str; 4] = ["1", "2", "3", "others"];
const PLACES: [&str; 5] = ["first", "second", "middle", "second last", "last"];
const CELLS: usize = RANKS.len() * PLACES.len();

/// Number of times that the questions are drawn, with replacement, for the confidence intervals; the profile is fitted
/// to each draw.
const DRAWS: usize = 2_000;

/// Number of ways to place the retriever's best documents that are compared.
const RULES: usize = Placement::COMPARED.len();

type Table = [f64; CELLS];

/// The orders in which documents are sent for a rank profile: for each request, the index of its question and the ranks
/// of its documents in the order of the prompt.
pub(super) struct Orders {
    asked: Vec<(usize, Vec<usize>)>,
    /// Number of documents of the question that has the most documents.
    documents: usize,
}

impl Orders {
    /// Returns the orders in which each question's documents are sent, and for each order the request that scores the
    /// right answer after documents in this order. A question gets `orders` orders, or as many as it has documents if
    /// `orders` is `None`. Of a chat, only the first turn is used.
    ///
    /// # Errors
    /// Returns an error if no question has an answer and two documents.
    pub(super) fn new(
        cases: &[Case],
        prompts: &Prompts,
        config: &Config,
        url: &str,
        orders: Option<usize>,
        seed: u64,
    ) -> Result<(Self, Vec<Forced>)> {
        let mut orderer = Orderer::new(config.clone());
        let (mut asked, mut forced) = (Vec::new(), Vec::new());
        let mut documents = 0;
        for (number, case) in cases.iter().enumerate() {
            let Some((turn, right)) = case.turns.first().zip(case.turns[0].answers.first()) else {
                continue;
            };
            let count = turn.documents.len();
            if count < 2 || right.trim().is_empty() {
                continue;
            }
            documents = documents.max(count);
            let mut random = Random::new(seed ^ Fingerprint::of(&[case.id.as_bytes()]).0);
            for order in balanced(count, orders.unwrap_or(count), &mut random) {
                let ordered = Case {
                    id: case.id.clone(),
                    turns: vec![Turn {
                        documents: order.iter().map(|&at| turn.documents[at].clone()).collect(),
                        ..turn.clone()
                    }],
                };
                let body = prompts.body(&ordered, Arm::Retrieval, &[]);
                let rewritten = orderer.rewrite(Tenant::default(), &body).ok();
                let body = rewritten.and_then(|rewrite| rewrite.body).unwrap_or(body);
                forced.push(Forced::new(&body, right, url)?);
                asked.push((number, order));
            }
        }
        ensure!(
            !asked.is_empty(),
            "--profile needs questions with an answer and two documents or more"
        );
        Ok((Self { asked, documents }, forced))
    }

    /// Fits the rank profile to the `likelihoods` of the right answers, which are in the order of the requests of
    /// [`Orders::new`]. A request without a likelihood is left out.
    pub(super) fn profile(
        self,
        likelihoods: &[Option<Likelihood>],
        model: &str,
        template: &str,
        seed: u64,
    ) -> RankProfile {
        let mut questions: Vec<(usize, Vec<Measured>)> = Vec::new();
        for ((number, order), likelihood) in self.asked.into_iter().zip(likelihoods) {
            let Some(likelihood) = likelihood else {
                continue;
            };
            let per_token = likelihood.per_token();
            let measured = Measured { order, per_token };
            match questions.last_mut().filter(|(last, _)| *last == number) {
                Some((_, orders)) => orders.push(measured),
                None => questions.push((number, vec![measured])),
            }
        }
        let questions = questions.iter().map(|(_, orders)| Sums::of(orders));
        let questions: Vec<Sums> = questions.collect();
        profile(&questions, self.documents, model, template, seed)
    }
}

fn profile(
    questions: &[Sums],
    documents: usize,
    model: &str,
    template: &str,
    seed: u64,
) -> RankProfile {
    let every: Vec<usize> = (0..questions.len()).collect();
    let table = fitted(questions, &every, documents);
    let rules = rules(documents);
    let losses =
        |table: &Table| rules.map(|rule| rule.map_or(0.0, |rule| loss(rule, table, documents)));
    let own = losses(&table);
    let of_rule = |index: &usize| rules[*index].is_some();
    let best = (0..RULES).filter(of_rule);
    let best = best.min_by(|&a, &b| own[a].total_cmp(&own[b])).unwrap_or(0);
    let intervals: [Interval; CELLS + 2 * RULES] =
        bootstrap::intervals(questions.len(), DRAWS, seed, |drawn| {
            let table = fitted(questions, drawn, documents);
            let losses = losses(&table);
            std::array::from_fn(|at| match at {
                at if at < CELLS => table[at],
                at if at < CELLS + RULES => losses[at - CELLS],
                at => losses[at - CELLS - RULES] - losses[best],
            })
        });
    let worth = |value: f64, Interval { low, high }| PlaceEffect { value, low, high };
    let exists = |rank: usize, place: usize| {
        rank < documents && (0..documents).any(|at| place_class(at, documents) == place)
    };
    let row = |rank: usize| {
        let cell = |place| {
            let at = rank * PLACES.len() + place;
            exists(rank, place).then(|| worth(table[at], intervals[at]))
        };
        (0..PLACES.len()).map(cell).collect()
    };
    // The interval of the loss relative to the best placement includes 0 or less.
    let is_as_good = |index: &usize| intervals[CELLS + RULES + index].low <= 0.0;
    let indices = || (0..RULES).filter(of_rule);
    let freest = indices().find(is_as_good).and_then(|index| rules[index]);
    let equally_free = |index: &usize| {
        rules[*index].map(|rule| rule.documents) == freest.map(|rule| rule.documents)
    };
    let chosen = indices().filter(is_as_good).filter(equally_free);
    let chosen = chosen.min_by(|&a, &b| own[a].total_cmp(&own[b]));
    let placements = indices().filter_map(|index| {
        let loss = worth(own[index], intervals[CELLS + index]);
        rules[index].map(|placement| Placed { placement, loss })
    });
    RankProfile {
        format: FORMAT,
        model: model.to_owned(),
        template: template.to_owned(),
        documents,
        questions: questions.len(),
        ranks: RANKS.map(str::to_owned).to_vec(),
        places: PLACES.map(str::to_owned).to_vec(),
        table: (0..RANKS.len()).map(row).collect(),
        placements: placements.collect(),
        chosen: (chosen.filter(|_| questions.len() >= MIN_CASES)).and_then(|index| rules[index]),
    }
}

/// Returns `count` orders of `documents` documents, as lists of ranks (0 for the best): evenly spaced rotations of a
/// shuffle, and of further shuffles once all rotations are used.
fn balanced(documents: usize, count: usize, random: &mut Random) -> Vec<Vec<usize>> {
    let mut orders = Vec::with_capacity(count);
    while orders.len() < count {
        let mut shuffled: Vec<usize> = (0..documents).collect();
        random.shuffle(&mut shuffled);
        let rotations = (count - orders.len()).min(documents);
        for rotation in 0..rotations {
            let mut order = shuffled.clone();
            order.rotate_left(rotation * documents / rotations);
            orders.push(order);
        }
    }
    orders
}

fn rank_class(rank: usize) -> usize {
    rank.min(RANKS.len() - 1)
}

/// Returns the class (index in [`PLACES`]) of a place, counted from 0, among `documents` places. Of three places, the
/// second counts as the middle.
fn place_class(place: usize, documents: usize) -> usize {
    match (place, documents - 1 - place) {
        (0, _) => 0,
        (_, 0) => 4,
        _ if documents == 3 => 2,
        (1, _) => 1,
        (_, 1) => 3,
        _ => 2,
    }
}

fn cell(rank: usize, place: usize, documents: usize) -> usize {
    rank_class(rank) * PLACES.len() + place_class(place, documents)
}

/// One question's contribution to the normal equations of the least-squares fit, relative to the question's means. Only
/// the lower triangle of `squares` is used.
struct Sums {
    squares: [[f64; CELLS]; CELLS],
    products: Table,
}

impl Sums {
    fn of(orders: &[Measured]) -> Self {
        let rows: Vec<Table> = (orders.iter())
            .map(|measured| {
                let mut row = [0.0; CELLS];
                for (place, &rank) in measured.order.iter().enumerate() {
                    row[cell(rank, place, measured.order.len())] += 1.0;
                }
                row
            })
            .collect();
        let count = rows.len().max(1) as f64;
        let mean_row: Table =
            std::array::from_fn(|at| rows.iter().map(|row| row[at]).sum::<f64>() / count);
        let mean = orders.iter().map(|order| order.per_token).sum::<f64>() / count;
        let mut sums = Self {
            squares: [[0.0; CELLS]; CELLS],
            products: [0.0; CELLS],
        };
        for (row, measured) in rows.iter().zip(orders) {
            let centred: Table = std::array::from_fn(|at| row[at] - mean_row[at]);
            for at in 0..CELLS {
                sums.products[at] += centred[at] * (measured.per_token - mean);
                for other in 0..=at {
                    sums.squares[at][other] += centred[at] * centred[other];
                }
            }
        }
        sums
    }
}

/// Fits the effects of places, by rank, to the drawn questions (indices in `questions`) by least squares, and
/// normalises them as [`normalised`] does. `documents` is the number of documents of the question that has the most.
#[expect(
    clippy::needless_range_loop,
    reason = "a matrix is addressed by row and column"
)]
fn fitted(questions: &[Sums], drawn: &[usize], documents: usize) -> Table {
    let mut squares = [[0.0; CELLS]; CELLS];
    let mut products = [0.0; CELLS];
    for &question in drawn {
        let sums = &questions[question];
        for at in 0..CELLS {
            products[at] += sums.products[at];
            for other in 0..=at {
                squares[at][other] += sums.squares[at][other];
            }
        }
    }
    normalised(solved(squares, products), documents)
}

/// Solves the normal equations by Cholesky's decomposition; uses the lower triangle of `squares`. A small ridge keeps
/// values that the data do not determine near 0.
#[expect(
    clippy::needless_range_loop,
    reason = "a matrix is addressed by row and column"
)]
fn solved(mut squares: [[f64; CELLS]; CELLS], mut products: Table) -> Table {
    let trace: f64 = (0..CELLS).map(|at| squares[at][at]).sum();
    for at in 0..CELLS {
        squares[at][at] += RIDGE * (trace / CELLS as f64).max(1.0);
    }
    for at in 0..CELLS {
        for below in at..CELLS {
            let known: f64 = (0..at).map(|k| squares[at][k] * squares[below][k]).sum();
            let rest = squares[below][at] - known;
            squares[below][at] = if below == at {
                rest.max(f64::MIN_POSITIVE).sqrt()
            } else {
                rest / squares[at][at]
            };
        }
    }
    for at in 0..CELLS {
        let known: f64 = (0..at).map(|k| squares[at][k] * products[k]).sum();
        products[at] = (products[at] - known) / squares[at][at];
    }
    for at in (0..CELLS).rev() {
        let known: f64 = (at + 1..CELLS).map(|k| squares[k][at] * products[k]).sum();
        products[at] = (products[at] - known) / squares[at][at];
    }
    products
}

/// Ridge, as a multiple of the mean diagonal element of the normal equations: far below any question's contribution and
/// far above rounding.
const RIDGE: f64 = 1e-9;

/// Normalises a table of effects, which has a row for each class of ranks and a column for each class of places: first
/// subtracts the row of the last class that occurs with `documents` documents from all rows, then from each row its
/// mean over the places of the documents. Rows of classes that do not occur become 0.
fn normalised(mut table: Table, documents: usize) -> Table {
    let last = rank_class(documents.saturating_sub(1));
    let reference: [f64; PLACES.len()] =
        std::array::from_fn(|place| table[last * PLACES.len() + place]);
    for (rank, row) in table.chunks_exact_mut(PLACES.len()).enumerate() {
        if rank > last {
            row.fill(0.0);
            continue;
        }
        for (worth, reference) in row.iter_mut().zip(reference) {
            *worth -= reference;
        }
        let places = (0..documents).map(|place| place_class(place, documents));
        let mean = places.map(|place| row[place]).sum::<f64>() / documents.max(1) as f64;
        row.iter_mut().for_each(|worth| *worth -= mean);
    }
    table
}

/// Returns the placements of the retriever's best documents to compare. The first ones leave the most documents to the
/// ordering policy. An entry is `None` if its placement would fix all `documents` documents.
fn rules(documents: usize) -> [Option<Placement>; RULES] {
    Placement::COMPARED
        .map(|placement| (usize::from(placement.documents) < documents).then_some(placement))
}

/// Returns a placement's cost: how much less likely the right answer is than in retrieval order, in nats per token,
/// with the documents that the placement leaves free in a random order.
fn loss(placement: Placement, table: &Table, documents: usize) -> f64 {
    let split = placement.split(documents);
    let worth = |place: usize, rank: usize| table[cell(rank, place, documents)];
    let behind = documents - split.trailing.len();
    let leading = split.leading.iter().zip(0..);
    let trailing = split.trailing.iter().zip(behind..);
    let favoured = leading.chain(trailing);
    let favoured = favoured.map(|(&rank, place)| worth(place, rank.into()));
    let favoured: f64 = favoured.sum();
    let free = split.leading.len()..behind;
    let others = usize::from(split.shared)..documents;
    let shared: f64 = free
        .clone()
        .flat_map(|place| others.clone().map(move |rank| (place, rank)))
        .map(|(place, rank)| worth(place, rank))
        .sum();
    let usual: f64 = (0..documents).map(|rank| worth(rank, rank)).sum();
    usual - favoured - shared / free.len().max(1) as f64
}

/// Describes a placement in words, such as `the best 2 last`.
pub(super) fn words(placement: Placement) -> String {
    match (placement.documents, placement.place) {
        (0, _) => "all free".to_owned(),
        (1, place) => format!("the best one {}", place.name()),
        (documents, Place::Ends) => format!("the best {documents} at both ends"),
        (documents, place) => format!("the best {documents} {}", place.name()),
    }
}

/// Returns a placement as the JSON value of the setting `ordering.rank`.
pub(super) fn setting(placement: Placement) -> String {
    match placement.place {
        Place::Free => r#"{"place": "free"}"#.to_owned(),
        place => {
            let (place, documents) = (place.name(), placement.documents);
            format!(r#"{{"place": "{place}", "documents": {documents}}}"#)
        }
    }
}

impl RankProfile {
    /// Reads a rank profile from a file `rank-profile.json`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not a profile of this version.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let failed = || format!("cannot read the rank profile {}", path.display());
        let text = std::fs::read(path).with_context(failed)?;
        let profile: Self = serde_json::from_slice(&text).with_context(failed)?;
        let is_whole = profile.table.len() == RANKS.len()
            && profile.table.iter().all(|row| row.len() == PLACES.len());
        ensure!(
            profile.format == FORMAT && is_whole,
            "{} is no rank profile of format {FORMAT}",
            path.display()
        );
        Ok(profile)
    }

    /// Writes the rank profile to a file as JSON.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        foreword_report::files::write(path, &text)
    }

    /// Returns how much less likely the right answer is than in retrieval order, in nats per token, if the documents
    /// are in this `order` (their ranks, 0 for the best, in the order of the prompt). Negative if it is likelier.
    pub(crate) fn loss(&self, order: &[usize]) -> f64 {
        let worth = |rank: usize, place: usize| {
            let cell = cell(rank, place, order.len());
            let worth = self.table[cell / PLACES.len()][cell % PLACES.len()];
            worth.map_or(0.0, |worth| worth.value)
        };
        let moved = order.iter().enumerate();
        let losses = moved.map(|(place, &rank)| worth(place, place) - worth(rank, place));
        losses.sum()
    }

    /// Returns the rows of the profile's table: the name of each class of ranks, with its effects in the order of
    /// [`Self::columns`]. Left out are classes of ranks that no question with [`Self::documents`] documents has.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&str, Vec<PlaceEffect>)> {
        let rows = self.ranks.iter().zip(&self.table);
        rows.map(|(rank, row)| (rank.as_str(), row.iter().copied().flatten().collect()))
            .filter(|(_, row): &(_, Vec<PlaceEffect>)| !row.is_empty())
    }

    /// Returns the names of the classes of places that exist among [`Self::documents`] documents.
    pub(super) fn columns(&self) -> impl Iterator<Item = &str> {
        let exists = |place: usize| self.table.iter().any(|row| row[place].is_some());
        let places = self.places.iter().enumerate();
        let places = places.filter(move |(place, _)| exists(*place));
        places.map(|(_, name)| name.as_str())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the sums of a model whose answers are likelier by `first` or `last` nats per token if the best document
    /// is in that place.
    fn questions(count: usize, documents: usize, first: f64, last: f64) -> Vec<Sums> {
        let mut random = Random::new(5);
        (0..count)
            .map(|_| {
                let hardness = random.unit();
                let orders = balanced(documents, 2 * documents, &mut random);
                let measured = orders.into_iter().map(|order| {
                    let of_best = match order.iter().position(|&rank| rank == 0).unwrap() {
                        0 => first,
                        place if place + 1 == documents => last,
                        _ => 0.0,
                    };
                    Measured {
                        per_token: of_best - hardness + 0.02 * (random.unit() - 0.5),
                        order,
                    }
                });
                Sums::of(&measured.collect::<Vec<_>>())
            })
            .collect()
    }

    pub(crate) fn example(first: f64, last: f64) -> RankProfile {
        profile(&questions(60, 5, first, last), 5, "m", "tags", 1)
    }

    #[test]
    fn every_rank_stands_in_every_place_equally_often() {
        let mut random = Random::new(3);
        for (documents, count) in [(5, 5), (5, 10), (3, 9), (2, 2)] {
            let orders = balanced(documents, count, &mut random);
            assert_eq!(orders.len(), count);
            for place in 0..documents {
                for rank in 0..documents {
                    let times = orders.iter().filter(|order| order[place] == rank).count();
                    assert_eq!(times, count / documents);
                }
            }
        }
        let few = balanced(10, 3, &mut random);
        assert!(few.iter().all(|order| order.len() == 10));
        assert_eq!((few.len(), few[0][4], few[0][7]), (3, few[1][1], few[2][1]));
    }

    #[test]
    fn places_have_classes_however_many_there_are() {
        let classes = |documents| -> Vec<usize> {
            (0..documents)
                .map(|place| place_class(place, documents))
                .collect()
        };
        assert_eq!(classes(7), [0, 1, 2, 2, 2, 3, 4]);
        assert_eq!(classes(5), [0, 1, 2, 3, 4]);
        assert_eq!(classes(4), [0, 1, 3, 4]);
        assert_eq!(classes(3), [0, 2, 4]);
        assert_eq!(classes(2), [0, 4]);
        assert_eq!(classes(1), [0]);
    }

    #[test]
    fn the_table_shows_what_places_are_worth_whatever_the_questions_are() {
        for documents in [2, 3, 5, 8] {
            let questions = questions(200, documents, 0.3, 0.1);
            let every: Vec<usize> = (0..200).collect();
            let table = fitted(&questions, &every, documents);
            let own: Vec<f64> = (0..documents)
                .map(|place| table[cell(0, place, documents)])
                .collect();
            let mean = 0.4 / documents as f64;
            for (place, worth) in own.iter().enumerate() {
                let true_worth = match place {
                    0 => 0.3,
                    place if place + 1 == documents => 0.1,
                    _ => 0.0,
                };
                assert!(
                    (worth - true_worth + mean).abs() < 0.01,
                    "{documents}: {own:?}"
                );
            }
            let last = rank_class(documents - 1);
            for (at, worth) in table.iter().enumerate().skip(PLACES.len()) {
                assert!(worth.abs() < 0.01, "{documents}: {at} {worth}");
                assert!(at / PLACES.len() != last || worth.abs() < 1e-9);
            }
        }
    }

    #[test]
    fn an_orders_loss_is_against_retrieval_order() {
        let profile = example(0.3, 0.1);
        assert_eq!(profile.loss(&[0, 1, 2, 3, 4]), 0.0);
        let near = |order: &[usize], loss: f64| {
            let found = profile.loss(order);
            assert!((found - loss).abs() < 0.01, "{order:?}: {found}");
        };
        near(&[1, 2, 3, 4, 0], 0.2);
        near(&[1, 0, 2, 3, 4], 0.3);
        near(&[0, 4, 3, 2, 1], 0.0);
    }

    #[test]
    fn the_freest_placement_that_costs_least_is_chosen() {
        let chosen = |first, last| example(first, last).chosen.map(setting);
        assert_eq!(
            chosen(0.0, 0.3).unwrap(),
            r#"{"place": "last", "documents": 1}"#
        );
        assert_eq!(
            chosen(0.3, 0.0).unwrap(),
            r#"{"place": "first", "documents": 1}"#
        );
        assert_eq!(chosen(0.0, 0.0).unwrap(), r#"{"place": "free"}"#);
        let profile = example(0.0, 0.3);
        let losses: Vec<f64> = profile
            .placements
            .iter()
            .map(|placed| placed.loss.value)
            .collect();
        // Retrieval order has the best document first, which has no effect; a random order has it last in a fifth of
        // cases.
        assert!((losses[0] + 0.06).abs() < 0.01, "{losses:?}");
        assert!((losses[1] + 0.3).abs() < 0.01, "{losses:?}");
        let few = super::profile(&questions(29, 5, 0.0, 0.3), 5, "m", "tags", 1);
        assert!(few.chosen.is_none(), "too few questions");
    }

    #[test]
    fn placements_are_those_of_the_gateway() {
        let places = |place, favoured, documents| {
            let split = Placement {
                place,
                documents: favoured,
            }
            .split(documents);
            let shown = |ranks: &[u16]| ranks.iter().map(u16::to_string).collect::<String>();
            let free = documents - split.leading.len() - split.trailing.len();
            shown(&split.leading) + &"-".repeat(free) + &shown(&split.trailing)
        };
        assert_eq!(places(Place::Free, 0, 4), "----");
        assert_eq!(places(Place::Last, 2, 5), "---10");
        assert_eq!(places(Place::First, 2, 5), "01---");
        assert_eq!(places(Place::Ends, 3, 6), "1---20");
        let names: Vec<_> = rules(2).into_iter().flatten().map(setting).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-profile.json");
        let profile = example(0.2, 0.1);
        profile.write(&path).unwrap();
        let read = RankProfile::read(&path).unwrap();
        assert!((read.loss(&[4, 3, 2, 1, 0]) - profile.loss(&[4, 3, 2, 1, 0])).abs() < 1e-12);
        assert_eq!(read.chosen, profile.chosen);
        std::fs::write(
            &path,
            std::fs::read_to_string(&path)
                .unwrap()
                .replace("\"format\": 1", "\"format\": 2"),
        )
        .unwrap();
        assert!(RankProfile::read(&path).is_err());
    }
}

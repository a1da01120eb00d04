//! For each placement of the best documents: a log's reuse, and the loss of quality that a [`RankProfile`] predicts.
//!
//! Each placement is replayed under the policy `foresight`. A loss is predicted for the exact order of each group of
//! documents that is ordered together; the mean is over groups of at least two documents. A placement is on the
//! frontier if none with more reuse has as little loss.

use crate::evaluate::RankProfile;
use anyhow::Result;
use foreword_ordering::Config;
use foreword_ordering::policy::{Place, Placement, PolicyKind};
use foreword_report::both_widths;
use foreword_report::plot::{BASELINE, BEST, GRID, OTHERS, Width, drawn, label};
use foreword_report::progress;
use foreword_report::words::{escaped, percent, rounded};
use foreword_simulation::{Capacity, CompactTrace, Replay};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use serde_json::{Value, json};
use std::fmt::Write;

/// Reuse and expected loss of answer quality for each way to place the retriever's best documents, and for retrieval
/// order; those with the most reuse come first.
#[derive(Clone, Debug)]
pub(super) struct Frontier {
    model: String,
    points: Vec<Point>,
}

#[derive(Clone, Debug)]
struct Point {
    /// The number of the retriever's best documents that keep a fixed place, and that place. `None` for retrieval
    /// order, in which no document moves.
    placement: Option<Placement>,
    /// Share (0 to 1) of document tokens found in the cache.
    reuse: f64,
    /// Expected loss of the right answer's log-probability relative to retrieval order, in nats per token: the mean
    /// over all groups of at least two documents that are ordered together. Negative if the answer becomes likelier.
    loss: f64,
    /// True if every placement with more reuse has a greater expected loss: this one is on the frontier.
    is_efficient: bool,
}

impl Frontier {
    /// Simulates the requests of `trace` once in retrieval order, and once for each of [`Placement::COMPARED`] under
    /// the policy `foresight`, with a cache of size `capacity`. `profile` predicts the loss of quality; `config`
    /// returns a policy's configuration.
    pub(super) fn new(
        trace: &CompactTrace,
        capacity: Capacity,
        profile: &RankProfile,
        config: impl Fn(PolicyKind) -> Result<Config>,
    ) -> Result<Self> {
        let bar = progress::bar("places", Placement::COMPARED.len() + 1)?;
        let placements = Placement::COMPARED.map(Some);
        let mut points = Vec::new();
        for placement in std::iter::once(None).chain(placements) {
            let config = match placement {
                None => config(PolicyKind::Retrieval)?.with_placement(Placement::FREE),
                Some(placement) => config(PolicyKind::Foresight)?.with_placement(placement),
            };
            points.push(replayed(trace, capacity, profile, placement, &config));
            bar.inc(1);
        }
        bar.finish_and_clear();
        points.sort_by(|a, b| b.reuse.total_cmp(&a.reuse));
        let mut least = f64::INFINITY;
        for point in &mut points {
            point.is_efficient = point.loss < least;
            least = least.min(point.loss);
        }
        Ok(Self {
            model: profile.model.clone(),
            points,
        })
    }

    /// Returns the placements with reuse and loss as JSON.
    pub(super) fn to_json(&self) -> Value {
        let entry = |point: &Point| {
            json!({
                "rank": point.placement,
                "reuse": rounded(point.reuse, 1e6),
                "loss": rounded(point.loss, 1e6),
                "efficient": point.is_efficient,
            })
        };
        let points: Vec<Value> = self.points.iter().map(entry).collect();
        json!({"model": self.model, "placements": points})
    }

    /// Returns the placements with reuse and loss as lines for a terminal.
    pub(super) fn to_table(&self) -> String {
        let mut table = format!(
            "\n{:<18}{:>8}{:>22}   expected of {}, in nats a token; * on the frontier\n",
            "best documents", "reused", "the answer loses", self.model
        );
        for point in &self.points {
            let mark = if point.is_efficient { "*" } else { "" };
            let [name, reuse, loss] = point.cells();
            let _ = writeln!(table, "{name:<18}{reuse:>8}{loss:>22} {mark}");
        }
        table
    }

    /// Returns the report's section on placements (a plot and a table) as HTML.
    pub(super) fn to_html(&self) -> Result<String> {
        let words = "Reuse against expected loss, by placement";
        let plot = both_widths(words, |width| self.plot(width))?;
        let mut rows = String::new();
        for point in &self.points {
            let [name, reuse, loss] = point.cells();
            let place = if point.is_efficient {
                "on the frontier"
            } else {
                ""
            };
            let _ = writeln!(
                rows,
                "<tr><th>{name}</th><td>{reuse}</td><td>{loss}</td><td class=\"words\">{place}</td></tr>"
            );
        }
        Ok(format!(
            "<figure>\n<h2>Reuse against expected loss</h2>\n<figcaption>Each point is a place for the retriever’s best documents, \
             under <code>foresight</code>. Right: more reuse. Up: the model finds the right answer less likely than in retrieval \
             order, by the rank profile of {}; the free documents’ order counts too.</figcaption>\n{plot}\n</figure>\n\
             <div class=\"card\">\n<table>\n<thead><tr><th>ordering.rank</th><th>reused</th><th>nats a token lost</th><th></th>\
             </tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n",
            escaped(&self.model)
        ))
    }

    fn plot(&self, width: Width) -> Result<String> {
        let (pixels, height) = (width.pixels(), width.height());
        let right = i32::try_from(pixels)? - RIGHT;
        let bottom = i32::try_from(height)? - EDGE;
        let losses = || self.points.iter().map(|point| point.loss).chain([0.0]);
        let low = losses().fold(f64::INFINITY, f64::min);
        let span = (losses().fold(f64::NEG_INFINITY, f64::max) - low).max(1e-9);
        let reuse = self.points.iter().map(|point| point.reuse);
        let most = reuse.fold(1e-9, f64::max);
        let x = |reuse: f64| LEFT + (f64::from(right - LEFT) * reuse / most).round() as i32;
        let y =
            |loss: f64| bottom - (f64::from(bottom - EDGE) * (loss - low) / span).round() as i32;
        let words = |side| label(14, side);
        drawn("frontier", (pixels, height), |area| {
            let zero = [(LEFT, y(0.0)), (right, y(0.0))];
            area.draw(&PathElement::new(zero, GRID.stroke_width(2)))?;
            area.draw(&Text::new("0", (LEFT - 8, y(0.0)), words(HPos::Right)))?;
            let efficient = self.points.iter().filter(|point| point.is_efficient);
            let frontier = efficient.map(|point| (x(point.reuse), y(point.loss)));
            let frontier: Vec<_> = frontier.collect();
            area.draw(&PathElement::new(frontier, BEST.stroke_width(1)))?;
            for point in &self.points {
                let at = (x(point.reuse), y(point.loss));
                let colour = match (point.placement, point.is_efficient) {
                    (None, _) => BASELINE,
                    (_, true) => BEST,
                    (_, false) => OTHERS,
                };
                area.draw(&Circle::new(at, 5, colour.filled()))?;
                // Points off the frontier are close together; the table names them.
                if point.is_efficient || point.placement.is_none() {
                    let name = (at.0 + 9, at.1);
                    area.draw(&Text::new(point.name(), name, words(HPos::Left)))?;
                }
            }
            Ok(())
        })
    }
}

/// Margin to the left of the frontier's plot, in pixels.
const LEFT: i32 = 28;
/// Margin to the right of the frontier's plot, in pixels, with room for the names at the right of their points.
const RIGHT: i32 = 130;
/// Margin above and below the frontier's plot, in pixels.
const EDGE: i32 = 16;

impl Point {
    fn name(&self) -> String {
        match self.placement {
            None => "retrieval order".to_owned(),
            Some(Placement { place, documents }) => match place {
                Place::Free => "free".to_owned(),
                place => format!("{}:{documents}", place.name()),
            },
        }
    }

    /// Returns the cells of this placement's row in the table: its name, such as `last:1`; the share of document tokens
    /// found in the cache, in percent; the expected loss of log-probability in nats per token, with its sign.
    fn cells(&self) -> [String; 3] {
        let loss = format!("{:+.3}", self.loss);
        [self.name(), percent(self.reuse), loss]
    }
}

fn replayed(
    trace: &CompactTrace,
    capacity: Capacity,
    profile: &RankProfile,
    placement: Option<Placement>,
    config: &Config,
) -> Point {
    let mut replay = Replay::of(config.policy(), capacity);
    let (mut loss, mut counted) = (0.0, 0_u64);
    for at in 0..trace.requests() {
        for part in trace.request(at) {
            let order = replay.decide(&part);
            replay.serve(&part, &order);
            if order.len() > 1 {
                let ranks: Vec<usize> = order.iter().map(|&rank| rank.into()).collect();
                loss += profile.loss(&ranks);
                counted += 1;
            }
        }
    }
    Point {
        placement,
        reuse: replay.reuse().share(),
        loss: loss / counted.max(1) as f64,
        is_efficient: false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulate::tests::generated;
    use super::*;
    use crate::evaluate::profile_example;

    fn frontier(gain_of_last: f64) -> Frontier {
        let (trace, _) = generated(300);
        let profile = profile_example(0.0, gain_of_last);
        let config = |kind: PolicyKind| {
            let raw = foreword_ordering::RawConfig {
                policy: kind.name().into(),
                ..Default::default()
            };
            Ok(Config::try_from(raw)?)
        };
        Frontier::new(&trace, Capacity::UNBOUNDED, &profile, config).unwrap()
    }

    #[test]
    fn a_model_that_reads_the_end_pays_for_freedom() {
        let frontier = frontier(0.2);
        let of = |name: &str| {
            let mut points = frontier.points.iter();
            points.find(|point| point.name() == name).unwrap()
        };
        assert_eq!(of("retrieval order").loss, 0.0);
        assert!(of("free").reuse > of("last:1").reuse);
        assert!(of("last:1").reuse > of("retrieval order").reuse);
        assert!(of("last:1").loss < of("free").loss);
        assert!(
            of("last:1").loss < 0.0,
            "the best one stands where the model reads"
        );
        assert!(of("free").is_efficient && of("last:1").is_efficient);
        assert!(!of("retrieval order").is_efficient);
        let table = frontier.to_table();
        assert_eq!(
            table.lines().count(),
            2 + 1 + Placement::COMPARED.len(),
            "{table}"
        );
        let json = frontier.to_json();
        assert_eq!(json["placements"][0]["rank"]["place"], "free");
    }

    #[test]
    fn a_model_that_reads_all_places_alike_loses_nothing() {
        for Point { loss, .. } in frontier(0.0).points {
            assert!(loss.abs() < 0.02, "{loss}");
        }
    }

    #[test]
    fn the_section_names_every_place_at_both_widths() {
        let section = frontier(0.2).to_html().unwrap();
        assert_eq!(section.matches("<svg").count(), 2);
        for name in ["retrieval order", "free", "last:1"] {
            assert!(section.matches(name).count() >= 3, "{name}");
        }
        assert!(section.contains("ends:3") && !section.contains("NaN"));
    }
}

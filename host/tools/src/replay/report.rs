//! The report of `foreword replay`, one self-contained HTML file.

use super::boundary::Boundary;
use super::figures::{Figures, cells, microseconds};
use super::frontier::Frontier;
use super::plots;
use super::simulate::PolicyOutcome;
use anyhow::Result;
use foreword_report::words::{escaped, grouped, percent};
use foreword_report::{both_widths, tile};
use std::fmt::Write;

const TITLE: &str = "Foreword replay: what ordering would save";

/// Returns the results of `foreword replay` as an HTML page.
pub(super) fn page(figures: &Figures) -> Result<String> {
    let bars = both_widths("Reuse by policy", |width| plots::bars(figures, width))?;
    let reuse = both_widths("Reuse over requests", |width| plots::reuse(figures, width))?;
    let words = "Tokens computed over requests";
    let computed = both_widths(words, |width| plots::computed(figures, width))?;
    let frontier = figures.frontier.as_ref().map(Frontier::to_html);
    let boundary = figures.boundary.as_ref().map(Boundary::to_html);
    let values = [
        ("trace", escaped(&figures.trace)),
        ("requests", grouped(figures.requests as u64)),
        ("documents", grouped(figures.documents as u64)),
        ("skipped", grouped(figures.skipped)),
        ("cache", escaped(&figures.cache())),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("bound", percent(figures.bound.share)),
        ("bound_kind", bound_kind(figures).to_owned()),
        ("tiles", tiles(figures)),
        ("legend", legend(figures)),
        ("bars", bars),
        ("reuse", reuse),
        ("computed", computed),
        ("rows", rows(figures)),
        ("frontier", frontier.transpose()?.unwrap_or_default()),
        ("boundary", boundary.unwrap_or_default()),
    ];
    let template = include_str!("report.html");
    Ok(foreword_report::page(TITLE, "", template, &values))
}

fn bound_kind(figures: &Figures) -> &'static str {
    if figures.bound.sampled {
        "estimated from a sample of the requests"
    } else {
        "exact"
    }
}

fn tiles(figures: &Figures) -> String {
    let Some(best) = figures.best() else {
        return String::new();
    };
    let compared = |what: &str, value: fn(&PolicyOutcome) -> String| {
        let was = figures.baseline().map(value);
        let was = was.map(|was| format!("{was} in retrieval order"));
        tile(what, &value(best), &was.unwrap_or_default())
    };
    let reused = |outcome: &PolicyOutcome| percent(outcome.reuse.share());
    let computed = |outcome: &PolicyOutcome| grouped(outcome.computed());
    let p99 = format!("99th percentile {}", microseconds(best.p99_us));
    [
        compared("Document tokens reused", reused),
        compared("Document tokens computed", computed),
        tile("Time to decide, mean", &microseconds(best.mean_us), &p99),
    ]
    .concat()
}

fn legend(figures: &Figures) -> String {
    let mut entries = String::new();
    let (best, baseline) = (figures.best(), figures.baseline());
    if let Some(best) = best {
        let _ = write!(entries, "<span class=\"best\">{}</span>", best.name);
    }
    if let Some(baseline) = baseline
        && best.is_none_or(|best| best.name != baseline.name)
    {
        let _ = write!(entries, "<span class=\"baseline\">{}</span>", baseline.name);
    }
    format!("<div class=\"legend\">{entries}</div>")
}

fn rows(figures: &Figures) -> String {
    let best = figures.best().map(|outcome| outcome.name);
    let baseline = figures.baseline().map(|outcome| outcome.name);
    let mut rows = String::new();
    for outcome in &figures.outcomes {
        let class = if best == Some(outcome.name) {
            " class=\"best\""
        } else if baseline == Some(outcome.name) {
            " class=\"baseline\""
        } else {
            ""
        };
        let [share, reused, computed, mean, p99] = cells(outcome);
        let name = outcome.name;
        let _ = writeln!(
            rows,
            "<tr{class}><th>{name}</th><td>{share}</td><td class=\"wide\">{reused}</td>\
             <td class=\"wide\">{computed}</td><td>{mean}</td><td>{p99}</td></tr>"
        );
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::example;
    use super::*;
    use foreword_ordering::policy::PolicyKind;

    #[test]
    fn the_page_is_filled_escaped_and_needs_nothing_from_outside() {
        let mut figures = example(200, &PolicyKind::ALL);
        figures.trace.push_str(" {{rows}}");
        let page = page(&figures).unwrap();
        assert_eq!(page.matches("{{").count(), page.matches("{{rows}}").count());
        assert!(page.contains("some &lt;log&gt;.jsonl"));
        assert_eq!(page.matches("<svg").count(), 6);
        let links = page.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!links.contains(outside), "{outside}");
        }
    }

    #[test]
    fn elements_are_closed_in_order() {
        let page = page(&example(50, &PolicyKind::ALL)).unwrap();
        let body = page.split_once("<body>").unwrap().1;
        let mut open = vec!["body"];
        for tag in body.split('<').skip(1) {
            let tag = &tag[..tag.find('>').expect("a tag ends")];
            let name = tag.trim_start_matches('/');
            let name = name.split([' ', '\n', '/']).next().unwrap();
            if tag.starts_with('/') {
                if name != "html" {
                    assert_eq!(open.pop(), Some(name));
                }
            } else if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "left open: {open:?}");
    }

    #[test]
    fn one_policy_alone_makes_a_page() {
        for kind in [PolicyKind::Retrieval, PolicyKind::Sorted] {
            assert!(page(&example(1, &[kind])).unwrap().contains(kind.name()));
        }
    }
}

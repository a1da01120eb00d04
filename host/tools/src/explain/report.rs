//! The report of `foreword explain`: one self-contained HTML file.

use super::causes::Row;
use super::remedy::Part;
use super::{Findings, plots};
use anyhow::Result;
use foreword_ordering::head::Cause;
use foreword_report::both_widths;
use foreword_report::words::{escaped, grouped, percent};
use std::fmt::Write;

const TITLE: &str = "Foreword explain: why prefixes are not reused";

/// Returns the results of `foreword explain` as an HTML page.
pub(super) fn page(findings: &Findings) -> Result<String> {
    let causes = &findings.causes;
    let rows: Vec<Row> = findings.rows.iter().map(|(row, _)| *row).collect();
    let unbroken = causes.quiet(Cause::None);
    let first_seen = causes.quiet(Cause::FirstSeen);
    let plot = both_widths("Tokens lost by cause", |width| plots::tokens(&rows, width))?;
    let values = [
        ("requests", grouped(causes.requests)),
        ("prompt_tokens", grouped(causes.prompt_tokens)),
        ("lost", grouped(causes.lost_tokens())),
        ("lost_share", percent(causes.share(causes.lost_tokens()))),
        ("reused", grouped(causes.reused_tokens)),
        ("reused_share", percent(causes.share(causes.reused_tokens))),
        ("broken", grouped(causes.requests - unbroken - first_seen)),
        ("unbroken", grouped(unbroken)),
        ("first_seen", grouped(first_seen)),
        ("plot", plot),
        ("rows", table(findings)),
        ("remedies", remedies(findings)),
        ("log", escaped(&findings.log)),
        ("skipped", grouped(findings.skipped)),
        ("page_tokens", grouped(findings.page_tokens.into())),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let template = include_str!("report.html");
    Ok(foreword_report::page(TITLE, "", template, &values))
}

fn table(findings: &Findings) -> String {
    let mut rows = String::new();
    for (row, _) in &findings.rows {
        let _ = writeln!(
            rows,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td class=\"wide\">{}</td></tr>",
            row.name(),
            row.segment,
            grouped(row.sum.requests),
            grouped(row.sum.tokens),
            percent(findings.causes.share(row.sum.tokens)),
        );
    }
    rows
}

fn remedies(findings: &Findings) -> String {
    let mut list = String::from("<dl>\n");
    let mut told: Vec<&str> = Vec::new();
    for (row, remedy) in &findings.rows {
        if told.contains(&remedy.words) {
            continue;
        }
        told.push(remedy.words);
        let (cause, words) = (escaped(&row.name()), escaped(remedy.words));
        let _ = write!(list, "<dt>{cause}</dt><dd>{words}");
        if let Some(line) = remedy.part.map(Part::configuration) {
            let _ = write!(list, "<br><code>{}</code>", escaped(&line));
        }
        if let Some(gain) = findings.gain_of(remedy) {
            let _ = write!(list, "<br>It would {}.", gain.in_words());
        }
        list.push_str("</dd>\n");
    }
    list.push_str("</dl>");
    list
}

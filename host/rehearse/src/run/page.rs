//! Writes the results of a rehearsal as an HTML page.

use super::figures::{Figures, Of};
use super::table::change;
use foreword_report::row;
use foreword_report::words::{escaped, grouped};
use std::fmt::Write as _;

const TITLE: &str = "Foreword rehearse: what a module would do";

/// Returns the report's page.
pub(super) fn page(figures: &Figures) -> String {
    let of = &figures.new;
    let values = [
        ("log", escaped(&figures.log)),
        ("module", escaped(&of.module)),
        ("config", config(of)),
        ("workers", grouped(figures.workers.max(1) as u64)),
        ("requests", grouped(of.played.rows.len() as u64)),
        ("skipped", grouped(of.played.skipped())),
        ("changed", grouped(of.changed() as u64)),
        ("answered", grouped(of.answered() as u64)),
        ("traps", grouped(of.played.faults() as u64)),
        ("fuel_p50", grouped(of.fuel.p50)),
        ("fuel_p99", grouped(of.fuel.p99)),
        ("calls_p50", grouped(of.calls.p50)),
        ("calls_p99", grouped(of.calls.p99)),
        ("memory", grouped(of.played.totals.memory_peak_bytes)),
        ("outcomes", outcomes(of)),
        ("callbacks", callbacks(of)),
        ("faults", faults(figures)),
        ("against", against(figures)),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    foreword_report::page(TITLE, "", include_str!("page.html"), &values)
}

fn config(of: &Of) -> String {
    match &*of.config {
        "" => "none".to_owned(),
        config => escaped(config),
    }
}

fn outcomes(of: &Of) -> String {
    let outcomes = of.played.outcomes.iter();
    let rows = outcomes.map(|(name, count)| row(&escaped(name), &[grouped(*count)]));
    rows.collect()
}

fn callbacks(of: &Of) -> String {
    let rows = of.played.totals.callbacks.iter().map(|(name, used)| {
        let mean = used.fuel / used.count.max(1);
        row(name, &[used.count, mean, used.most_fuel].map(grouped))
    });
    rows.collect()
}

fn faults(figures: &Figures) -> String {
    let faults = figures.faults(&figures.new);
    if faults.is_empty() {
        return "<p>Every callback ended as it should.</p>".to_owned();
    }
    let mut list = String::from("<ul>\n");
    for named in faults {
        let (at, fault) = (escaped(&named.at), escaped(&named.fault.to_string()));
        let _ = writeln!(list, "<li>{at}: {fault}</li>");
    }
    list.push_str("</ul>");
    list
}

fn against(figures: &Figures) -> String {
    let Some(against) = &figures.against else {
        return String::new();
    };
    let (old, new) = (&against.old, &figures.new);
    let mut html = format!(
        "<div class=\"card\">\n<h2>Against {}</h2>\n<p>Configuration: {}. {} of {} requests differ.</p>\n<table>\n\
         <thead><tr><th></th><th>old</th><th>new</th><th></th></tr></thead>\n<tbody>\n",
        escaped(&old.module),
        config(old),
        grouped(against.differences.len() as u64),
        grouped(new.played.rows.len() as u64),
    );
    for (name, [old, new]) in figures.compared(against, "instructions") {
        html += &row(&name, &[grouped(old), grouped(new), change(old, new)]);
    }
    html.push_str("</tbody>\n</table>\n");
    if !against.differences.is_empty() {
        html.push_str("<table>\n<thead><tr><th>request</th><th>differs in</th><th>old</th><th>new</th></tr></thead>\n<tbody>\n");
        for difference in against.differences.iter().take(LISTED) {
            let [old, new] = difference.fuel.map(grouped);
            let cells = [difference.what.join(", "), old, new];
            html += &row(&escaped(&figures.at(difference.place)), &cells);
        }
        html.push_str("</tbody>\n</table>\n");
        if against.differences.len() > LISTED {
            let more = grouped((against.differences.len() - LISTED) as u64);
            let _ = writeln!(
                html,
                "<p class=\"soft\">… and {more} more; <code>--json</code> has them all.</p>"
            );
        }
    }
    html.push_str("</div>");
    html
}

/// Maximum number of differences that are listed.
const LISTED: usize = 500;

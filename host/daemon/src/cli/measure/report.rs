//! Writes the results of `foreword measure` as an HTML page.

use super::arm::Arm;
use super::figures::{Part, Row};
use super::plots;
use super::results::{CELLS, Experiment, Results, cells};
use anyhow::Result;
use foreword_report::words::{escaped, grouped, percent};
use foreword_report::{both_widths, filled, row, tile};

const TITLE: &str = "Foreword measure: what ordering saves in time";

/// Returns the report's page.
pub(super) fn page(results: &Results) -> Result<String> {
    let parts = [
        results.orders.as_ref().map(orders).transpose()?,
        sweeps(&results.sweeps)?,
        throughput(results),
    ];
    let values = [
        ("model", escaped(&results.setting.model)),
        ("device", escaped(&results.device)),
        ("parts", parts.into_iter().flatten().collect::<String>()),
        ("queries", results.setting.queries.to_string()),
        ("seeds", results.setting.seeds.to_string()),
        ("trace", results.setting.trace()),
        ("place", results.setting.place.name().to_owned()),
        ("k", results.setting.k.to_string()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    Ok(foreword_report::page(
        TITLE,
        STYLE,
        include_str!("report.html"),
        &values,
    ))
}

/// Wraps the heads of wide tables, and lets them scroll on a phone.
const STYLE: &str = ".scroll { overflow-x: auto; }\n.scroll thead th { white-space: normal; }\n";

fn orders(orders: &Experiment) -> Result<String> {
    let steady = orders.rows(Part::Steady);
    let tables: String = (Part::ALL.into_iter())
        .map(|part| {
            let (title, words) = match part {
                Part::All => ("All requests", "The first five of each seed do not count."),
                Part::Steady => ("Steady state", "The second half of each trace."),
            };
            tables(title, words, &orders.rows(part))
        })
        .collect();
    let values = [
        ("tiles", tiles(&steady)),
        ("legend", LEGEND.to_owned()),
        (
            "distributions",
            both_widths("Times to the first token by arm", |width| {
                plots::distributions(orders, width)
            })?,
        ),
        ("tables", tables),
        ("kv_tokens", grouped(orders.workload.kv_tokens)),
    ];
    Ok(filled(include_str!("orders.html"), &values))
}

const LEGEND: &str = "<div class=\"legend\"><span class=\"baseline\">retrieval order</span><span class=\"best\">foresight, with hint</span><span class=\"soft\">others</span></div>";

fn tiles(rows: &[Row]) -> String {
    let of = |arm| rows.iter().find(|row| row.arm == arm);
    let (Some(shipped), Some(retrieval)) = (of(Arm::SHIPPED), of(Arm::RETRIEVAL)) else {
        return String::new();
    };
    let tile = |what: &str, cell: fn(&Row) -> String| {
        let was = format!("{} in retrieval order", cell(retrieval));
        tile(what, &cell(shipped), &was)
    };
    [
        tile("Time to first token, median", |row| {
            format!("{:.0} ms", 1e3 * row.p50.mean)
        }),
        tile("Time to first token, mean", |row| {
            format!("{:.0} ms", 1e3 * row.mean.mean)
        }),
        tile("Prompt tokens reused", |row| percent(row.saved_tokens)),
    ]
    .concat()
}

/// Heads of the cells with times, which are the first after the arm's name.
const TIMES: [&str; 7] = [
    "mean, ms",
    "median, ms",
    "p95, ms",
    "mean below retrieval",
    "median below retrieval",
    "faster than retrieval",
    "below .6 of the median without a cache",
];
/// Heads of the other cells.
const WORK: [&str; 5] = [
    "tokens reused",
    "requests that benefited",
    "tokens of the hint",
    "ordering, µs",
    "building, µs",
];
const _: () = assert!(1 + TIMES.len() + WORK.len() == CELLS);

/// Returns two tables of the rows: one of times, and one of the work behind them.
fn tables(title: &str, words: &str, rows: &[Row]) -> String {
    format!(
        "<div class=\"card\"><h2>{title}</h2><p class=\"soft\">{words}</p>\n{}</div>\n<div class=\"card\"><h2>{title}: work</h2>\n{}</div>\n",
        table(rows, &TIMES, 1),
        table(rows, &WORK, 1 + TIMES.len())
    )
}

/// Returns a table of the rows' cells from `first` on, one for each of `heads`.
fn table(rows: &[Row], heads: &[&str], first: usize) -> String {
    let lines: String = (rows.iter())
        .map(|row| {
            let cells = cells(row);
            let class = match row.arm {
                Arm::SHIPPED => " class=\"best\"",
                Arm::RETRIEVAL => " class=\"baseline\"",
                _ => "",
            };
            let shown = cells.iter().skip(first).take(heads.len());
            let shown: String = shown.map(|cell| format!("<td>{cell}</td>")).collect();
            format!("<tr{class}><th>{}</th>{shown}</tr>\n", cells[0])
        })
        .collect();
    let heads: String = heads
        .iter()
        .map(|head| format!("<th>{head}</th>"))
        .collect();
    format!(
        "<div class=\"scroll\"><table>\n<thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{lines}</tbody>\n</table></div>\n"
    )
}

/// Returns a plot for each sweep over numbers, and a table of all sweeps; `None` without sweeps.
fn sweeps(sweeps: &[Experiment]) -> Result<Option<String>> {
    if sweeps.is_empty() {
        return Ok(None);
    }
    let mut html = String::from("<h1>Sweeps</h1>\n");
    for (name, words) in [
        ("overlap", "share of documents in common"),
        ("at once", "requests at once"),
        ("k", "documents in a request"),
        ("pool", "tokens of KV state"),
    ] {
        let points: Vec<&Experiment> = sweeps.iter().filter(|sweep| sweep.name == name).collect();
        if points.len() < 2 {
            continue;
        }
        let svg = both_widths(
            &format!("Mean time to the first token by {words}"),
            |width| plots::sweep(&points, words, width),
        )?;
        html.push_str(&format!(
            "<figure><h2>By {words}</h2>\n{LEGEND}\n{svg}</figure>\n"
        ));
    }
    let heads: String = Arm::FEW
        .iter()
        .map(|arm| format!("<th>{}</th>", arm.name()))
        .collect();
    let lines: String = (sweeps.iter())
        .map(|sweep| {
            let rows = sweep.rows(Part::All);
            let means: Vec<String> = (rows.iter())
                .map(|row| format!("{:.1} / {:.1}", 1e3 * row.p50.mean, 1e3 * row.mean.mean))
                .collect();
            row(&format!("{} {}", sweep.name, sweep.label()), &means)
        })
        .collect();
    html.push_str(&format!(
        "<div class=\"card\"><h2>Median / mean, ms</h2><div class=\"scroll\"><table>\n<thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{lines}</tbody>\n</table></div></div>\n"
    ));
    Ok(Some(html))
}

fn throughput(results: &Results) -> Option<String> {
    let lines: String = (results.throughput.iter())
        .flat_map(|experiment| {
            experiment.outcomes.iter().map(|outcome| {
                let (requests, tokens) = experiment.rates(outcome);
                let at_once = experiment.workload.at_once;
                let head = format!("{}, {at_once} at once", outcome.arm.name());
                row(&head, &[format!("{requests:.2}"), grouped(tokens as u64)])
            })
        })
        .collect();
    (!lines.is_empty()).then(|| {
        format!(
            "<div class=\"card\"><h2>Throughput, answers of 50 tokens</h2><div class=\"scroll\"><table>\n<thead><tr><th></th><th>requests/s</th><th>tokens/s, prompts included</th></tr></thead>\n<tbody>\n{lines}</tbody>\n</table></div></div>\n"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::example;
    use super::*;

    #[test]
    fn the_page_is_filled_escaped_and_needs_nothing_from_outside() {
        let page = page(&example()).unwrap();
        assert!(
            !page.contains("{{") && !page.contains("}}"),
            "a placeholder is left"
        );
        assert!(page.contains("a &lt;device&gt;"));
        for words in ["foresight+hint", "Steady state", "Throughput"] {
            assert!(page.contains(words), "{words}");
        }
        let links = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!links.contains("http:") && !links.contains("https:") && !links.contains("src="));
    }
}

//! The report: one self-contained HTML file, filled from the figures.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use foreword_report::both_widths;
use foreword_report::words::{escaped, grouped, percent};

use super::arm::Arm;
use super::figures::Figures;
use super::plots;
use super::replay::Said;
use super::summary::Summary;
use crate::workspace::Workspace;

/// Returns the folder of everything that a demo writes; ignored by git.
pub(super) fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("demo-report")
}

/// Returns the path of the page.
pub(super) fn path(workspace: &Workspace) -> PathBuf {
    folder(workspace).join("index.html")
}

/// Writes the page, replacing an older one.
pub(super) fn write(workspace: &Workspace, figures: &Figures) -> Result<()> {
    let path = path(workspace);
    fs::create_dir_all(folder(workspace))
        .with_context(|| format!("creating {}", folder(workspace).display()))?;
    fs::write(&path, page(figures)?).with_context(|| format!("writing {}", path.display()))
}

const TITLE: &str = "Foreword demo: what ordering brought";

fn page(figures: &Figures) -> Result<String> {
    let (retrieval, ordered) = (
        figures.summary(Arm::Retrieval),
        figures.summary(Arm::Ordered),
    );
    let setting = &figures.setting;
    let command = format!(
        "cargo xtask demo --requests {} --top-k {} --kv-tokens {} --time-requests {} --profile {}",
        retrieval.requests,
        setting.top_k,
        setting.kv_tokens,
        figures.time.ordered.len(),
        setting.profile
    );
    let values = [
        ("requests", retrieval.requests.to_string()),
        ("top_k", setting.top_k.to_string()),
        ("ordered_share", percent(ordered.share())),
        ("retrieval_share", percent(retrieval.share())),
        (
            "ordered_computed",
            grouped(ordered.prompt_tokens - ordered.cached_tokens),
        ),
        (
            "retrieval_computed",
            grouped(retrieval.prompt_tokens - retrieval.cached_tokens),
        ),
        ("ordered_p50", milliseconds(ordered.ttft_p50_ms)),
        ("retrieval_p50", milliseconds(retrieval.ttft_p50_ms)),
        ("time", time(figures)?),
        ("legend", LEGEND.to_owned()),
        (
            "reuse",
            both_widths("Reuse over requests", |width| plots::reuse(figures, width))?,
        ),
        (
            "ttft",
            both_widths("Distribution of times to first token", |width| {
                plots::time_to_first_token(figures, width)
            })?,
        ),
        (
            "computed",
            both_widths("Tokens computed over requests", |width| {
                plots::computed(figures, width)
            })?,
        ),
        ("ordered_right", percent(ordered.exact_match())),
        ("retrieval_right", percent(retrieval.exact_match())),
        ("said", said(figures)),
        ("rows", rows(&retrieval, &ordered)),
        ("gain", format!("{:.2}", figures.gain())),
        ("checked", figures.answers.checked.to_string()),
        ("equal", figures.answers.equal.to_string()),
        ("command", escaped(&command)),
        ("commit", escaped(&setting.commit)),
        ("machine", escaped(&setting.machine)),
        ("profile", escaped(&setting.profile)),
        ("kv_tokens", grouped(u64::from(setting.kv_tokens))),
    ];
    let (style, template) = (include_str!("report.css"), include_str!("report.html"));
    Ok(foreword_report::page(TITLE, style, template, &values))
}

const LEGEND: &str = r#"<div class="legend"><span class="baseline">retrieval order</span><span class="best">ordered</span></div>"#;

/// Returns the second part: what the same filter saves in time where a prompt takes long. Empty if it was left out.
fn time(figures: &Figures) -> Result<String> {
    if figures.time.ordered.is_empty() {
        return Ok(String::new());
    }
    let [retrieval, ordered] = figures.time_summaries();
    let row = |name: &str, cell: fn(&Summary) -> String| {
        format!(
            "<tr><th>{name}</th><td>{}</td><td>{}</td></tr>\n",
            cell(&retrieval),
            cell(&ordered)
        )
    };
    let rows = [
        row("time to first token, mean", |summary| {
            milliseconds(summary.ttft_mean_ms)
        }),
        row("time to first token, median", |summary| {
            milliseconds(summary.ttft_p50_ms)
        }),
        row("time to first token, 95th percentile", |summary| {
            milliseconds(summary.ttft_p95_ms)
        }),
        row("prompt tokens", |summary| grouped(summary.prompt_tokens)),
        row("of these computed", |summary| grouped(summary.computed())),
        row("share reused", |summary| percent(summary.share())),
    ];
    let values = [
        ("requests", retrieval.requests.to_string()),
        ("legend", LEGEND.to_owned()),
        (
            "saved",
            percent(1.0 - ordered.ttft_mean_ms / retrieval.ttft_mean_ms.max(f64::MIN_POSITIVE)),
        ),
        ("sooner", percent(figures.time.sooner())),
        ("rows", rows.concat()),
        (
            "ttft",
            both_widths(
                "Distribution of times to first token, larger model",
                |width| plots::time_on_shape(figures, width),
            )?,
        ),
        (
            "waited",
            both_widths("Seconds waited for first tokens, summed up", |width| {
                plots::waited(figures, width)
            })?,
        ),
    ];
    Ok(foreword_report::filled(include_str!("time.html"), &values))
}

/// Returns the table's body: a line per figure and a column per arm, so that it fits a phone.
fn rows(retrieval: &Summary, ordered: &Summary) -> String {
    let row = |name: &str, cell: fn(&Summary) -> String| {
        format!(
            "<tr><th>{name}</th><td>{}</td><td>{}</td></tr>\n",
            cell(retrieval),
            cell(ordered)
        )
    };
    [
        row("requests", |summary| summary.requests.to_string()),
        row("prompt tokens", |summary| grouped(summary.prompt_tokens)),
        row("of these cached", |summary| grouped(summary.cached_tokens)),
        row("share reused", |summary| percent(summary.share())),
        row("time to first token, median", |summary| {
            milliseconds(summary.ttft_p50_ms)
        }),
        row("time to first token, 95th percentile", |summary| {
            milliseconds(summary.ttft_p95_ms)
        }),
        row("time to last token, 95th percentile", |summary| {
            milliseconds(summary.total_p95_ms)
        }),
        row("right answers", |summary| summary.right.to_string()),
        row("exact match", |summary| percent(summary.exact_match())),
    ]
    .concat()
}

/// Formats the first questions with both arms' answers.
fn said(figures: &Figures) -> String {
    let [retrieval, ordered] = &figures.said;
    let answer = |class: &str, said: &Said| {
        let mark = if said.is_right() { "right" } else { "wrong" };
        format!(
            "<p><span class=\"{class}\">{}</span> <span class=\"{mark}\">{mark}</span></p>\n",
            escaped(&said.answer)
        )
    };
    let pairs = retrieval.iter().zip(ordered);
    pairs
        .map(|(retrieval, ordered)| {
            format!(
                "<div class=\"said\"><p><b>{}</b></p>\n{}{}<p class=\"soft\">expected: {}</p></div>\n",
                escaped(&ordered.question),
                answer("baseline", retrieval),
                answer("best", ordered),
                escaped(&ordered.expected)
            )
        })
        .collect()
}

fn milliseconds(value: f64) -> String {
    format!("{value:.1} ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::figures::tests::example;

    #[test]
    fn the_page_is_filled_escaped_and_needs_nothing_from_outside() {
        let page = page(&example(200)).unwrap();
        assert!(
            !page.contains("{{") && !page.contains("}}"),
            "a placeholder is left"
        );
        assert!(page.contains("Some &lt;Processor&gt;"));
        assert!(page.contains("KT-47</span> <span class=\"right\">"));
        assert!(page.contains("&lt;none&gt;</span> <span class=\"wrong\">"));
        assert_eq!(page.matches("<svg").count(), 10);
        let links = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!links.contains("http:") && !links.contains("https:") && !links.contains("src="));
    }
}

//! Writes the results of `foreword evaluate` as an HTML page.

use super::bootstrap::{MIN_CASES, MIN_CASES_WITHIN, RESAMPLES, Verdict};
use super::compare::{Difference, Estimate, Figure};
use super::figures::{Figures, cells, likelihood_less, milliseconds, share, with_interval};
use super::plots;
use super::profile::{self, Placed};
use anyhow::Result;
use foreword_report::words::{escaped, grouped};
use foreword_report::{both_widths, tile};
use std::fmt::Write;

const TITLE: &str = "Foreword evaluate: are answers as good";

/// Returns the HTML page with an evaluation's results.
pub(super) fn page(figures: &Figures) -> Result<String> {
    let hidden = if figures.is_asked() { "" } else { " hidden" };
    let compared = compared(figures, |figure| figure.difference.as_ref());
    let values = [
        ("data", escaped(&figures.data)),
        ("model", escaped(&figures.model)),
        ("endpoint", escaped(&figures.endpoint)),
        ("run", escaped(&figures.run)),
        ("seed", figures.seed.to_string()),
        ("concurrency", figures.concurrency.to_string()),
        ("questions", grouped(figures.cases as u64)),
        ("left_out", grouped(figures.left_out as u64)),
        ("without_answers", grouped(figures.without_answers as u64)),
        ("cut", cut(figures)),
        ("caches", caches(figures).to_owned()),
        ("resamples", grouped(RESAMPLES as u64)),
        ("min_cases", MIN_CASES.to_string()),
        ("min_cases_within", MIN_CASES_WITHIN.to_string()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("tiles", tiles(figures)),
        ("differences", differences(figures)?),
        ("likelihood", likelihood(figures)?),
        ("positions", positions(figures)?),
        ("profile", profile(figures)?),
        ("served", served(figures)?),
        ("hidden", hidden.to_owned()),
        ("rows", rows(figures)),
        ("compared", compared),
        ("baseline", baseline(figures)),
    ];
    let template = include_str!("report.html");
    Ok(foreword_report::page(TITLE, "", template, &values))
}

fn caches(figures: &Figures) -> &'static str {
    if figures.salted {
        "one for each arm, by cache_salt, where the engine honours it; all share the engine’s memory"
    } else {
        "shared by the arms: what one computed, another reused; read reuse and times with care"
    }
}

/// Returns the number of answers truncated at `--max-tokens` for each arm (way to ask) that has some, or `none`.
fn cut(figures: &Figures) -> String {
    let cut = figures.arms.iter().filter(|figure| figure.cut > 0);
    let cut = cut.map(|figure| format!("{} {}", figure.arm.name(), grouped(figure.cut as u64)));
    match &*cut.collect::<Vec<_>>() {
        [] => "none".into(),
        cut => cut.join(", "),
    }
}

/// Returns the figures of the arm (way to ask) that the report highlights, the one closest to the filter: the last
/// gateway if there is one, otherwise the first of `dedup+hint`, `ordered+hint` and `ordered` that was asked; `None` if
/// there is none of these.
fn filter(figures: &Figures) -> Option<&Figure> {
    use super::arm::Arm::{DedupHint, Ordered, OrderedHint};
    let gateway = figures.arms.iter().rfind(|figure| figure.arm.is_gateway());
    let core = [DedupHint, OrderedHint, Ordered].into_iter();
    let mut core = core.filter_map(|arm| figures.arms.iter().find(|figure| figure.arm == arm));
    gateway.or_else(|| core.next())
}

fn tiles(figures: &Figures) -> String {
    let Some(filter) = filter(figures) else {
        return String::new();
    };
    let baseline = figures.retrieval();
    let tile = |what: &str, value: fn(&Figure) -> String| {
        let was = baseline.map(|baseline| format!("{} in retrieval order", value(baseline)));
        tile(what, &value(filter), &was.unwrap_or_default())
    };
    let name = filter.arm.name();
    let mut tiles = String::new();
    if figures.is_asked() {
        tiles += &tile(&format!("Exact match, {name}"), |figure| {
            share(figure.exact_match.value)
        });
        let reused = |figure: &Figure| figure.reused.map_or("—".into(), share);
        tiles += &tile("Prompt tokens reused", reused);
        let ttft = |figure: &Figure| milliseconds(figure.ttft_median);
        tiles += &tile("Time to first token, median", ttft);
    }
    if filter.answer_logprob.is_some() {
        let what = format!("Right answer, nats a token, {name}");
        tiles += &tile(&what, |figure| {
            let logprob = figure.answer_logprob.as_ref();
            logprob.map_or("—".into(), |logprob| format!("{:.3}", logprob.mean))
        });
    }
    tiles
}

fn differences(figures: &Figures) -> Result<String> {
    let mut arms = figures.arms.iter();
    if arms.all(|figure| figure.difference.is_none()) {
        return Ok(String::new());
    }
    let exact_match = both_widths("Exact match less retrieval order", |width| {
        plots::exact_match_differences(figures, width)
    })?;
    let f1 = both_widths("F1 less retrieval order", |width| {
        plots::f1_differences(figures, width)
    })?;
    Ok(format!(
        "<figure>\n<h2>Exact match, less that of retrieval order</h2>\n<figcaption>In points, with 95 % intervals; the \
         band is ±1 point.</figcaption>\n{exact_match}\n</figure>\n<figure>\n<h2>F1, less that of retrieval order</h2>\n\
         <figcaption>The same.</figcaption>\n{f1}\n</figure>\n"
    ))
}

/// Returns the HTML section on the log-probabilities of right answers; empty if they were not measured.
fn likelihood(figures: &Figures) -> Result<String> {
    let mut rows = String::new();
    for figure in &figures.arms {
        let (Some(logprob), Some(nats)) = (&figure.answer_logprob, &figure.answer_nats) else {
            continue;
        };
        let (less, verdict) = likelihood_less(logprob.less_retrieval);
        let less_baseline = figures.baseline.map(|_| {
            let (less, verdict) = likelihood_less(logprob.less_baseline);
            format!("<td>{less}</td><td class=\"words wide\">{verdict}</td>")
        });
        let _ = writeln!(
            rows,
            "<tr{}><th>{}</th><td class=\"wide\">{}</td><td class=\"wide\">{:.3}</td><td>{}</td>\
             <td class=\"words wide\">{}</td>{}<td class=\"wide\">{:.3}</td></tr>",
            class(figure),
            figure.arm.name(),
            grouped(logprob.cases as u64),
            logprob.mean,
            less,
            verdict,
            less_baseline.unwrap_or_default(),
            nats.mean,
        );
    }
    if rows.is_empty() {
        return Ok(rows);
    }
    let less_baseline = figures.baseline.map(|arm| {
        let name = arm.name();
        format!("<th>less {name} [95 %]</th><th class=\"wide\"></th>")
    });
    let words = "Log-probability of the right answer less retrieval order";
    let plot = both_widths(words, |width| plots::likelihood(figures, width))?;
    Ok(format!(
        "<figure>\n<h2>How likely the model finds the right answer, less retrieval order</h2>\n<figcaption>Mean \
         log-probability of the first right answer, forced on the model, in nats a token, with 95 % intervals. To the left \
         of 0 the model finds it less likely.</figcaption>\n{plot}\n</figure>\n<div class=\"card\">\n<table>\n<thead><tr>\
         <th>arm</th><th class=\"wide\">questions</th><th class=\"wide\">nats a token</th><th>less retrieval [95 %]</th>\
         <th class=\"wide\"></th>{}<th class=\"wide\">nats</th></tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table>\n</div>\n",
        less_baseline.unwrap_or_default()
    ))
}

fn positions(figures: &Figures) -> Result<String> {
    let Some(any) = figures.positions().find(|figure| figure.asked > 0) else {
        return Ok(String::new());
    };
    let questions = grouped(any.cases as u64);
    let words = "Exact match by the place of the answer’s document";
    let plot = both_widths(words, |width| plots::positions(figures, width))?;
    Ok(format!(
        "<figure>\n<h2>Where the answer’s document stands</h2>\n<figcaption>Exact match over the {questions} questions \
         whose answer stands in one known document, put first, in the middle and last, the others in retrieval order. A \
         model that is weakest in the middle is lost there.</figcaption>\n{plot}\n</figure>\n"
    ))
}

/// Returns the HTML section on the rank profile (the effect of a document's place on the right answer, by the
/// document's rank); empty if it was not measured.
fn profile(figures: &Figures) -> Result<String> {
    let Some(profile) = &figures.profile else {
        return Ok(String::new());
    };
    let words = "What places are worth to documents, by rank";
    let plot = both_widths(words, |width| plots::profile(profile, width))?;
    let mut rows = String::new();
    for Placed { placement, loss } in &profile.placements {
        let is_chosen = profile.chosen == Some(*placement);
        let _ = writeln!(
            rows,
            "<tr><th>{}</th><td>{}</td><td class=\"words\">{}</td></tr>",
            profile::words(*placement),
            loss.words(),
            if is_chosen { "chosen" } else { "" }
        );
    }
    let chosen = profile.chosen.map(|rule| {
        let setting = escaped(&profile::setting(rule));
        format!("<p>To be written: <code>\"rank\": {setting}</code></p>\n")
    });
    let chosen = chosen.unwrap_or_default();
    let (questions, documents) = (profile.questions, profile.documents);
    Ok(format!(
        "<figure>\n<h2>Where the model reads</h2>\n<figcaption>What it is worth to the right answer, in nats a token, that the \
         document of a rank stands in a place, against a document of the last row there: {} questions of up to {documents} documents, each in \
         several balanced orders. Filled: the 95 % interval leaves out 0.</figcaption>\n{plot}\n</figure>\n<div class=\"card\">\n\
         <h2>What placements cost</h2>\n<p class=\"soft\">Nats a token lost against retrieval order, with the documents that are free in a \
         random order. Chosen is the placement with the most freedom that is not shown to cost more than the best one.</p>\n{chosen}\
         <table>\n<thead><tr><th>ordering.rank</th><th>lost [95 %]</th><th></th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n",
        grouped(questions as u64)
    ))
}

/// Returns the HTML section on prompt tokens reused and times to first token; a note if the model was not asked for
/// answers.
fn served(figures: &Figures) -> Result<String> {
    if !figures.is_asked() {
        let nothing = "<p class=\"soft\">Nothing was asked; right answers were scored alone.</p>";
        return Ok(nothing.to_owned());
    }
    let words = "Time to the first token by arm";
    let ttft = both_widths(words, |width| plots::ttft(figures, width))?;
    Ok(format!(
        "<figure>\n<h2>Prompt tokens reused</h2>\n<figcaption>Share of all prompt tokens that the engine found in its \
         cache, as it says itself.</figcaption>\n{}\n</figure>\n<figure>\n<h2>Time to the first token</h2>\n\
         <figcaption>Median, from sending the request to the first word of the answer.</figcaption>\n{ttft}\n</figure>",
        reused(figures)?
    ))
}

fn reused(figures: &Figures) -> Result<String> {
    if figures.orders().all(|figure| figure.reused.is_none()) {
        let unknown = "<p class=\"soft\">The endpoint does not tell how much it reused \
            (<code>usage.prompt_tokens_details.cached_tokens</code>).</p>";
        return Ok(unknown.to_owned());
    }
    both_widths("Reuse by arm", |width| plots::reused(figures, width))
}

fn class(figure: &Figure) -> &'static str {
    match figure.arm {
        super::arm::Arm::Retrieval => " class=\"baseline\"",
        _ => "",
    }
}

fn rows(figures: &Figures) -> String {
    let mut rows = String::new();
    for figure in &figures.arms {
        let [questions, exact_match, contains, f1, reused, median, p95] = cells(figure);
        let (class, arm) = (class(figure), figure.arm.name());
        let _ = writeln!(
            rows,
            "<tr{class}><th>{arm}</th><td class=\"wide\">{questions}</td><td>{exact_match}</td><td>{contains}</td><td>{f1}</td>\
             <td class=\"wide\">{reused}</td><td class=\"wide\">{median}</td><td class=\"wide\">{p95}</td></tr>"
        );
    }
    rows
}

/// Returns the HTML table of differences from the baseline (the arm, or way to ask, that the option `--baseline`
/// names); empty if none was given or no answers were requested.
fn baseline(figures: &Figures) -> String {
    let rows = compared(figures, |figure| figure.from_baseline.as_ref());
    let Some(baseline) = figures.baseline.filter(|_| !rows.is_empty()) else {
        return String::new();
    };
    format!(
        "<div class=\"card\">\n<h2>Less {}</h2>\n<table>\n<thead><tr><th>arm</th><th>exact match [95 %]</th>\
         <th></th><th>contains [95 %]</th><th></th><th class=\"wide\">F1 [95 %]</th><th class=\"wide\"></th><th class=\"wide\">TTFT [95 %]</th></tr>\
         </thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n",
        baseline.name()
    )
}

fn compared(figures: &Figures, of: fn(&Figure) -> Option<&Difference>) -> String {
    let score = |(estimate, verdict): &(Estimate, Verdict), wide: bool| {
        format!(
            "<td{0}>{1}</td><td class=\"words{2}\">{3}</td>",
            if wide { " class=\"wide\"" } else { "" },
            with_interval(estimate),
            if wide { " wide" } else { "" },
            verdict.words()
        )
    };
    let mut rows = String::new();
    for figure in &figures.arms {
        let Some(difference) = of(figure) else {
            continue;
        };
        let _ = writeln!(
            rows,
            "<tr><th>{}</th>{}{}{}<td class=\"wide\">{} ms</td></tr>",
            figure.arm.name(),
            score(&difference.exact_match, false),
            score(&difference.contains, false),
            score(&difference.f1, true),
            with_interval(&difference.ttft),
        );
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::arm::Arm;
    use super::super::figures::tests::{example, example_with};
    use super::super::profile;
    use super::*;

    #[test]
    fn the_page_is_filled_escaped_and_needs_nothing_from_outside() {
        let arms = Arm::all().collect::<Vec<_>>();
        let mut figures = example_with(&arms, Some(Arm::OrderedHint), 12);
        figures.model.push_str(" {{rows}}");
        figures.profile = Some(profile::tests::example(0.2, 0.0));
        let page = page(&figures).unwrap();
        assert_eq!(page.matches("{{").count(), page.matches("{{rows}}").count());
        assert!(page.contains("some &lt;data&gt;.json"));
        assert!(page.contains("<th>less ordered+hint [95 %]</th>"));
        let (_, less) = page.split_once("<h2>Less ordered+hint</h2>").unwrap();
        let (less, _) = less.split_once("</table>").unwrap();
        // A heading, and a row for each of the other arms.
        assert_eq!(less.matches("<tr><th>").count(), arms.len(), "{less}");
        assert_eq!(page.matches("<svg").count(), 14);
        assert!(!page.contains(" hidden>"));
        let links = page
            .replace("http://www.w3.org/2000/svg", "")
            .replace("http://localhost:8000/v1/chat/completions", "");
        for outside in [
            "http:", "https:", "src=", "@import", "url(", "<script", " style=",
        ] {
            assert!(!links.contains(outside), "{outside}");
        }
    }

    #[test]
    fn an_evaluation_of_one_arm_makes_a_page() {
        for arm in [Arm::Retrieval, Arm::Random, Arm::GATEWAY] {
            let mut figures = example(&[arm], 1);
            assert!(!page(&figures).unwrap().contains("<h2>Less ordered"));
            assert!(page(&figures).unwrap().contains(arm.name()));
            figures.arms[0].reused = None;
            assert!(page(&figures).unwrap().contains("does not tell"));
        }
    }
}

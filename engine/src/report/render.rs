//! Reports of runs as HTML.

use std::fmt::Write;

use serde_json::Value;

use super::assets::{ICON, PAGE, SCRIPTS, STYLES};
use super::view::RunView;

/// An element that each report has near its start, and other files do not.
pub const REPORT_MARK: &str = r#"<meta name="generator" content="rankine report">"#;
/// The policy forbids whatever is not in the file itself.
const POLICY: &str = concat!(
    r#"<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; "#,
    r#"script-src 'unsafe-inline'; img-src data:">"#
);
/// The most points of all series of a report. A point takes about 27 bytes.
const POINTS_MAX: usize = 45_000;
const SERIES_POINTS_MIN: usize = 64;
const SERIES_PER_RUN: usize = 5;

/// Returns one HTML file that shows the runs, and compares them if there are several. It loads nothing.
///
/// The series of many runs are thinned, so that the file stays below 2 MB.
pub fn render(runs: &[RunView]) -> String {
    let mut page = PAGE.text.to_owned();
    let icon = tag_of_icon(&format!("data:image/svg+xml,{}", percent_encoded(ICON.text)));
    page = replaced(&page, &tag_of_icon(ICON.name), &format!("{POLICY}\n{REPORT_MARK}\n{icon}"));
    for style in STYLES {
        let tag = format!("<link rel=\"stylesheet\" href=\"{}\">", style.name);
        page = replaced(&page, &tag, &format!("<style>\n{}</style>", style.text));
    }
    for (at, script) in SCRIPTS.into_iter().enumerate() {
        let mut text = String::new();
        // The data come first: the scripts look for them.
        if at == 0 {
            text = format!("<script type=\"application/json\" id=\"runs\">{}</script>\n", embedded(runs));
        }
        text += &format!("<script>\n{}</script>", script.text);
        page = replaced(&page, &format!("<script src=\"{}\"></script>", script.name), &text);
    }
    page
}

fn tag_of_icon(target: &str) -> String {
    format!("<link rel=\"icon\" href=\"{target}\">")
}

fn replaced(page: &str, tag: &str, by: &str) -> String {
    let (before, after) = page.split_once(tag).expect("the page names each of its files");
    [before, by, after].concat()
}

/// Returns the runs as JSON that HTML cannot mistake for markup.
fn embedded(runs: &[RunView]) -> String {
    let points = (POINTS_MAX / SERIES_PER_RUN / runs.len().max(1)).max(SERIES_POINTS_MIN);
    let thinned = |run: &RunView| {
        let mut run = serde_json::to_value(run).expect("the keys of a view are strings");
        let series = run.get_mut("series").and_then(Value::as_object_mut);
        series.into_iter().flat_map(|series| series.values_mut()).for_each(|one| thin(one, points));
        run
    };
    let json = Value::Array(runs.iter().map(thinned).collect()).to_string();
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            // Of JSON, only strings have these characters.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(escaped, "\\u{:04x}", u32::from(char)).expect("a string has room");
            }
            char => escaped.push(char),
        }
    }
    escaped
}

/// Reduces a series in JSON to about this number of points: the smallest and the largest one of neighbours, and the
/// last one.
fn thin(series: &mut Value, points: usize) {
    let values = series["values"].as_array().cloned().unwrap_or_default();
    if values.len() <= points {
        return;
    }
    let of = |at: &usize| values[*at].as_f64().unwrap_or(f64::NAN);
    let places: Vec<usize> = (0..values.len()).collect();
    let mut kept: Vec<usize> = Vec::new();
    for neighbours in places.chunks((2 * values.len()).div_ceil(points)) {
        let finite = || neighbours.iter().filter(|at| of(at).is_finite());
        let smallest = finite().min_by(|one, other| of(one).total_cmp(&of(other)));
        let largest = finite().max_by(|one, other| of(one).total_cmp(&of(other)));
        kept.extend(smallest.into_iter().chain(largest));
    }
    kept.extend(places.last());
    kept.sort_unstable();
    kept.dedup();
    for name in ["steps", "values"] {
        let chosen = kept.iter().map(|&at| series[name][at].take()).collect();
        series[name] = Value::Array(chosen);
    }
}

fn percent_encoded(text: &str) -> String {
    let encoded = text.trim_end().bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'/' | b'=' | b':' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    });
    encoded.collect()
}

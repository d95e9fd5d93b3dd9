//! Reports of runs as HTML.

use std::fmt::Write;

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
/// The most tables of all runs of a report. A table takes about 200 bytes, and so does a setting of one.
const TABLES_MAX: usize = 1_000;
const TABLES_PER_RUN_MIN: usize = 20;

/// Returns one HTML file that shows the runs, and compares them if there are several. It loads nothing.
///
/// The series of many runs are thinned, and of many tables the largest are listed, so that the file stays below 2 MB.
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
    let curves: usize = runs.iter().map(RunView::curves).sum();
    let points = (POINTS_MAX / curves.max(1)).max(SERIES_POINTS_MIN);
    let mut runs = runs.to_vec();
    let tables = (TABLES_MAX / runs.len().max(1)).max(TABLES_PER_RUN_MIN);
    for run in &mut runs {
        run.thin(points);
        run.limit_tables(tables);
    }
    let json = serde_json::to_string(&runs).expect("the keys of a view are strings");
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

fn percent_encoded(text: &str) -> String {
    let encoded = text.trim_end().bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'/' | b'=' | b':' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    });
    encoded.collect()
}

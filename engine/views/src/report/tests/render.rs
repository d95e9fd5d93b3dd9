//! Tests of reports as HTML.

use rankine_model::evaluation::{HeadScores, ScoreHistogram};
use serde_json::Value;

use crate::report::assets::assets;
use crate::report::{HeadView, POINTS_MAX, REPORT_MARK, RunView, Series, TableView, WarningView, render};

/// The runs that a report embeds.
fn embedded(report: &str) -> &str {
    let (_, data) = report.split_once(r#"<script type="application/json" id="runs">"#).expect("it has data");
    data.split_once("</script>").expect("the data end").0
}

/// A run with the longest series, and the scores of two heads.
fn long_run() -> RunView {
    let mut run = RunView { name: "long".to_owned(), ..RunView::default() };
    let mut series = Series::default();
    for step in 0..100_000 {
        series.push(step * 1000, (step as f64).sin() / 3.0);
    }
    run.series.loss = series;
    run.series.samples_per_second = run.series.loss.clone();
    run.series.dense_learning_rate = run.series.loss.clone();
    let evaluation = run.evaluations.of("evaluation");
    evaluation.auc = run.series.loss.clone();
    evaluation.log_loss = run.series.loss.clone();
    for label in ["click", "buy"] {
        let counts: Vec<_> = (0..512).map(|bin| f64::from(bin) * 1234.0).collect();
        run.scores.push(HeadScores {
            label: label.to_owned(),
            logit_offset: 0.0,
            scores: ScoreHistogram { negatives: counts.clone(), positives: counts },
        });
    }
    run
}

#[test]
fn texts_of_a_run_cannot_become_markup() {
    const HOSTILE: &str = "<script>alert(1)</script><!-- & \u{2028}\u{2029} \"'\\";
    let mut run = RunView { name: HOSTILE.to_owned(), ..RunView::default() };
    run.tables.push(TableView { name: HOSTILE.to_owned(), ..TableView::default() });
    run.warnings.push(WarningView { text: HOSTILE.to_owned(), ..WarningView::default() });
    run.evaluations
        .of(HOSTILE)
        .heads
        .push(HeadView { label: Some(HOSTILE.to_owned()), ..HeadView::default() });
    run.settings.insert(HOSTILE.to_owned(), HOSTILE.to_owned());
    let report = render(&[run]);
    let data = embedded(&report);
    assert!(!data.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "{data}");
    assert!(!report.contains("alert(1)</script>"));
    let runs: Value = serde_json::from_str(data).expect("it is JSON");
    assert_eq!(runs[0]["name"], HOSTILE);
    assert_eq!(runs[0]["tables"][0]["name"], HOSTILE);
    assert_eq!(runs[0]["settings"][HOSTILE], HOSTILE);
}

#[test]
fn a_report_loads_nothing() {
    let report = render(&[RunView::default()]);
    for load in [" src=", "@import", "url(", "href=\"page", "href=\"uplot", "href=\"http", "href=\"/"] {
        assert!(!report.contains(load), "{load}");
    }
    assert!(report.contains(r#"content="default-src 'none'; style-src 'unsafe-inline'; script-src"#));
    assert_eq!(report.matches("<script").count(), report.matches("</script>").count());
    assert!(report.find(REPORT_MARK).is_some_and(|at| at < 1024));
    assert!(report.contains("Permission is hereby granted"), "the licence of uPlot");
    // One element with data, and one for each script.
    assert_eq!(report.matches("</script>").count(), 4);
}

#[test]
fn the_live_page_names_all_its_files_and_has_no_inline_script_or_style() {
    let page = assets().next().expect("the page is the first one").text;
    for asset in assets().skip(1) {
        assert_eq!(page.matches(&format!("\"{}\"", asset.name)).count(), 1, "{}", asset.name);
    }
    assert_eq!(page.matches("<script").count(), page.matches("<script src=").count());
    assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("onload"));
    // The policy of the live page allows neither, and texts are never parsed as HTML.
    for asset in assets() {
        for word in ["innerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
            assert!(!asset.text.contains(word), "{}: {word}", asset.name);
        }
    }
}

#[test]
fn reports_of_many_long_runs_are_small() {
    let run = long_run();
    let points = run.series.loss.points().count();
    assert!(points > POINTS_MAX / 2, "{points}");
    let of = |runs: usize| render(&vec![run.clone(); runs]);
    let kept = |report: &str| {
        let runs: Value = serde_json::from_str(embedded(report)).expect("it is JSON");
        let loss = &runs[0]["series"]["loss"];
        let steps = loss["steps"].as_array().expect("it is a list").clone();
        assert_eq!(steps.len(), loss["values"].as_array().expect("it is a list").len());
        assert_eq!(steps.last(), Some(&Value::from(99_999_000)));
        steps.len()
    };
    let (one, many) = (of(1), of(16));
    assert_eq!(kept(&one), points);
    assert!(kept(&many) < points / 2);
    assert!(one.len() < 1_000_000, "{}", one.len());
    assert!(many.len() < 2_000_000, "{}", many.len());
}

/// Ten thousand tables, each with settings of its own, beside the longest series.
#[test]
fn reports_of_many_tables_list_the_largest() {
    let mut run = long_run();
    for number in 0..10_000_u64 {
        run.tables.push(TableView {
            name: format!("a column with a long name, as joins of logs have them, {number:05}"),
            rows: number + 1,
            dim: 128,
            bytes: 512 * (number + 1),
            placement: Some("column-wise".into()),
            host_rows: None,
            distinct_ratio: Some(0.123_456_789),
            load_ratio: None,
            top_share: Some(0.987_654_321),
        });
        run.settings.insert(
            format!("table.{number}.columns"),
            format!("[\"a column with a long name {number:05}\"]"),
        );
        run.settings.insert(format!("table.{number}.learning_rate_factor"), "0.1234".into());
    }
    run.settings.insert("train.epochs".into(), "3".into());
    for (count, kept) in [(1, 1000), (16, 62)] {
        let report = render(&vec![run.clone(); count]);
        assert!(report.len() < 2_000_000, "{count} runs: {}", report.len());
        let runs: Value = serde_json::from_str(embedded(&report)).expect("it is JSON");
        let (tables, others) =
            (runs[0]["tables"].as_array().expect("it is a list"), &runs[0]["further_tables"]);
        assert_eq!((tables.len(), others["count"].as_u64()), (kept, Some(10_000 - kept as u64)));
        let of_largest =
            |table: &Value| table["rows"].as_u64().is_some_and(|rows| rows > 10_000 - kept as u64);
        assert!(tables.iter().all(of_largest));
        let least = 10_000 - kept as u64;
        let sum = least * (least + 1) / 2;
        assert_eq!((others["rows"].as_u64(), others["bytes"].as_u64()), (Some(sum), Some(512 * sum)));
        assert_eq!(runs[0]["further_settings"].as_u64(), Some(20_000 - kept as u64));
        assert_eq!(runs[0]["settings"]["train.epochs"], "3");
    }
    // A few tables are all listed, in the order of the columns.
    run.tables.truncate(3);
    run.settings.clear();
    let runs: Value = serde_json::from_str(embedded(&render(&[run]))).expect("it is JSON");
    assert_eq!(runs[0]["tables"][0]["rows"], 1);
    assert!(runs[0].get("further_tables").is_none() && runs[0].get("further_settings").is_none());
}

#[test]
fn thinned_series_keep_their_extremes() {
    let mut run = RunView::default();
    for step in 0..2000 {
        run.series.loss.push(step, if step == 777 { 9.0 } else { 1.0 + step as f64 * 1e-6 });
    }
    let report = render(&vec![run; 50]);
    let runs: Value = serde_json::from_str(embedded(&report)).expect("it is JSON");
    let loss = &runs[49]["series"]["loss"];
    let steps = loss["steps"].as_array().expect("it is a list");
    assert!(steps.len() < 200, "{}", steps.len());
    let at = steps.iter().position(|step| *step == 777).expect("the largest value is kept");
    assert_eq!(loss["values"][at], 9.0);
    assert_eq!(loss["values"][0], 1.0);
    assert!(steps.is_sorted_by_key(|step| step.as_u64()));
}

//! Corrections for downsampled negatives, with the best logits that generated rows can have.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use rankine_engine::ranker::{Ranker, RawColumn, RawColumnValues};
use rankine_model::HeadSpec;
use rankine_model::evaluation::{Evaluation, JudgedHead, Metrics};
use rankine_model::logit::{bce, sigmoid};
use rankine_reader::generate::{GenerateSpec, Shape, samples_with_logits};
use rankine_reader::{Part, Samples, Schema};

use crate::support::films::{CSV_NAMES, CSV_SETS, columns_of, convert, csv_rows};
use crate::support::{Place, SHAPE, SUCCESS, job, numbers, run, train};

const KEPT: f64 = 0.1;

/// Metrics of logits that a model of downsampled rows has, if it is so.
fn metrics(
    schema: &Schema,
    trained_on: Option<f64>,
    evaluated_on: Option<f64>,
    samples: &[(f64, f32)],
) -> Metrics {
    let with = |negatives_kept| {
        let mut schema = schema.clone();
        schema.labels[0].negatives_kept = negatives_kept;
        schema
    };
    let head = HeadSpec { label: schema.labels[0].name.clone(), label_number: 0, weight: 1.0 };
    let heads = JudgedHead::of_heads(&[head], &with(trained_on), &with(evaluated_on));
    let mut evaluation = Evaluation::new(&heads);
    let labels = vec![samples.iter().map(|sample| sample.1).collect()];
    let batch = Samples { len: samples.len(), labels, ..Samples::default() };
    evaluation.add(&batch, &samples.iter().map(|sample| sample.0 as f32).collect::<Vec<_>>());
    evaluation.metrics()[0].metrics.unwrap()
}

/// The best model of all rows has the teacher's logits. Among the rows that are kept the odds of a positive are 1/r
/// times as high, so the best model of these has logits that are higher by ln(1/r).
#[test]
fn the_best_model_of_downsampled_rows_has_the_metrics_of_the_best_one_of_all_rows() {
    let place = Place::new();
    let shape = Shape::load(&place.file("shape.toml", SHAPE)).unwrap();
    let spec = GenerateSpec { shape, rows_cap: None, samples: 1, eval_samples: 0, alpha: 1.05, seed: 11 };
    let (samples, logits) = samples_with_logits(&spec, Part::Train, 0..200_000).unwrap();
    let schema = spec.shape.schema(None);
    let all: Vec<_> = logits.into_iter().zip(samples.labels[0].iter().copied()).collect();
    let expected = metrics(&schema, None, None, &all);
    let mut draw = numbers(5);
    let kept = |(_, label): &(f64, f32)| *label == 1.0 || draw() % 1000 < (KEPT * 1000.0) as u64;
    let learnt = |(logit, label): (f64, f32)| (logit - KEPT.ln(), label);
    let sampled: Vec<_> = all.iter().copied().filter(kept).map(learnt).collect();
    assert!(sampled.len() * 2 < all.len(), "most rows are negatives that are not kept");

    // Each negative's terms count 1/r times with the probability r: their variance is (1 - r) / r times their square.
    // A quotient of two sums varies by its terms less the quotient.
    let deviation = |term: &dyn Fn(f64, f64) -> f64| {
        let negatives = all.iter().filter(|sample| sample.1 == 0.0);
        let squares: f64 = negatives.map(|&(logit, _)| term(bce(logit, 0.0), sigmoid(logit)).powi(2)).sum();
        (squares * (1.0 - KEPT) / KEPT).sqrt()
    };
    let (count, positives) = (all.len() as f64, all.iter().filter(|sample| sample.1 == 1.0).count() as f64);
    let loss_deviation = deviation(&|loss, _| loss - expected.log_loss) / count;
    let rate_deviation = deviation(&|_, _| expected.label_rate) / count;
    let calibration_deviation = deviation(&|_, probability| probability) / positives;
    #[track_caller]
    fn close(found: f64, expected: f64, deviation: f64) {
        assert!((found - expected).abs() < 4.0 * deviation, "{found} and {expected}, deviation {deviation}");
        // A test that admits anything would not notice a wrong sign.
        assert!(deviation < 0.01 * expected, "{deviation} of {expected}");
    }

    let found = metrics(&schema, Some(KEPT), Some(KEPT), &sampled);
    close(found.log_loss, expected.log_loss, loss_deviation);
    close(found.label_rate, expected.label_rate, rate_deviation);
    close(found.calibration.unwrap(), expected.calibration.unwrap(), calibration_deviation);
    // Before the correction it is calibrated, too, but for the rates of the rows as they are.
    let uncorrected = metrics(&schema, None, None, &sampled);
    assert_eq!(found.calibration_uncorrected, uncorrected.calibration);
    assert!(
        uncorrected.label_rate > 2.0 * expected.label_rate
            && (uncorrected.calibration.unwrap() - 1.0).abs() < 0.02
    );
    assert_eq!(uncorrected.calibration_uncorrected, None);

    // The same model on all rows: no row is left out, so the metrics are exact but for the rounding of logits.
    let on_all: Vec<_> = all.iter().copied().map(learnt).collect();
    let whole = metrics(&schema, Some(KEPT), None, &on_all);
    assert!((whole.log_loss - expected.log_loss).abs() < 1e-6);
    assert!((whole.calibration.unwrap() - expected.calibration.unwrap()).abs() < 1e-6);
    assert!(whole.calibration_uncorrected.unwrap() > 2.0);
    // A model of all rows, judged on downsampled ones.
    let own: Vec<_> = sampled.iter().map(|&(logit, label)| (logit + KEPT.ln(), label)).collect();
    let judged = metrics(&schema, None, Some(KEPT), &own);
    close(judged.log_loss, expected.log_loss, loss_deviation);
    for other in [found.auc, whole.auc, judged.auc] {
        assert!((other.unwrap() - expected.auc.unwrap()).abs() < 0.01);
    }
}

/// A ranker scores with the bits of `rankine predict`; without the correction, logits differ by what it adds.
#[test]
fn rankers_and_predictions_are_corrected_alike_and_training_is_not() {
    let place = Place::new();
    let rows = csv_rows(1200, 3);
    convert(&place, &rows);
    train(&place, &job(&place), "plain", &CSV_SETS).with(SUCCESS);
    let shares = ["rating=0.25", "bought=1"];
    let convert_again =
        ["convert", "csv", &place.word("log.csv"), "--schema", &place.word("schema.toml"), "--eval"]
            .map(str::to_owned)
            .into_iter()
            .chain([place.word("eval.csv"), "--out".into(), place.word("sampled")])
            .chain(shares.iter().flat_map(|share| ["--negatives-kept".to_owned(), (*share).to_owned()]));
    run(convert_again).with(SUCCESS);
    let sampled = format!("data.dir={:?}", place.word("sampled"));
    train(&place, &job(&place), "run", &[&CSV_SETS[..], &[&sampled]].concat()).with(SUCCESS);
    assert!(
        crate::support::weights(&place, "plain") == crate::support::weights(&place, "run"),
        "training changed"
    );
    let model = |run: &str| std::fs::read_to_string(place.path(run).join("model/model.json")).unwrap();
    assert!(model("run").contains("negatives_kept") && !model("plain").contains("negatives_kept"));

    let predict = |run_dir: &str, more: &[&str]| -> Vec<Vec<f64>> {
        let out = place.word("out.csv");
        let args = ["predict", "--run", &place.word(run_dir), &place.word("eval.csv"), "--out", &out];
        run([&args[..], more].concat()).with(SUCCESS);
        let text = std::fs::read_to_string(&out).unwrap();
        let row = |line: &str| line.split(',').skip(1).map(|field| field.parse().unwrap()).collect();
        text.lines().skip(1).map(row).collect()
    };
    let (corrected, own) = (predict("run", &[]), predict("run", &["--no-correction"]));
    assert_eq!(own, predict("plain", &[]));
    let log_odds = |p: f64| (p / (1.0 - p)).ln();
    for (corrected, own) in corrected.iter().zip(&own) {
        // Of a probability p, 1 - p is rounded by 2^-54, and its logarithm by that over 1 - p.
        assert!((log_odds(corrected[0]) - log_odds(own[0]) - 0.25f64.ln()).abs() < 1e-9);
        assert_eq!(corrected[1], own[1]);
    }
    let ranker = Ranker::load(place.path("run")).unwrap();
    let eval = &rows[rows.len() - 500..];
    let columns = columns_of(eval, ',');
    let columns: Vec<_> = CSV_NAMES[3..]
        .iter()
        .zip(&columns[3..])
        .map(|(name, texts)| RawColumn { name, offsets: None, values: RawColumnValues::Texts(texts) })
        .collect();
    let mut scores = vec![0.0; 2 * eval.len()];
    ranker.score_raw(eval.len(), &columns, &mut scores).unwrap();
    assert_eq!(scores, corrected.concat());
}

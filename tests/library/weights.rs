//! Bags whose ids have weights: trained on any number of ranks, resumed, pushed, scored and judged.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;

use rankine_engine::ranker::{Features, Ids, Ranker};
use rankine_reader::{Part, Samples};

use crate::columns::{self, numbers_of, samples, texts};
use crate::support::films::columns_of;
use crate::support::{self, BAD_DATA, Place, SUCCESS, USAGE, numbers, run, summary, train, weights};

const SCHEMA: &str = r#"
[label]
column = "click"

[[dense]]
column = "age"

[[categorical]]
column = "tags"
weights = "w"
separator = "|"
vocabulary = { kind = "hash", rows = 50 }

[[categorical]]
column = "genres"
weights = "shares"
separator = "|"
pooling = "mean"
vocabulary = { kind = "identity", rows = 12 }

[[categorical]]
column = "last"
separator = "|"
vocabulary = { kind = "hash", rows = 50 }
"#;
const NAMES: [&str; 7] = ["click", "age", "tags", "w", "genres", "shares", "last"];
/// Columns with weights and without share a table.
const SETS: [&str; 2] = ["train.shuffle=false", "table=[{ columns = ['tags', 'last'] }]"];

/// Rows whose label depends on the weights: tags t0 to t4 speak for a click, others against it.
fn rows(count: usize, seed: u64) -> Vec<String> {
    let mut next = numbers(seed);
    let row = |_| {
        let tags: Vec<_> = (0..next() % 4).map(|_| next() % 10).collect();
        let w: Vec<_> = tags.iter().map(|_| (next() % 9) as f64 / 4.0).collect();
        let score: f64 = tags.iter().zip(&w).map(|(tag, w)| if *tag < 5 { *w } else { -w }).sum();
        let genres: Vec<_> = (0..next() % 3).map(|_| (next() % 12).to_string()).collect();
        let shares: Vec<_> = genres.iter().map(|_| format!("0.{}", next() % 4)).collect();
        let click = u8::from(score + (next() % 3) as f64 - 1.0 > 0.0);
        let joined = |texts: Vec<String>| texts.join("|");
        format!(
            "{click},{}.5,{},{},{},{},t{}",
            next() % 3,
            joined(tags.iter().map(|tag| format!("t{tag}")).collect()),
            joined(w.iter().map(f64::to_string).collect()),
            genres.join("|"),
            shares.join("|"),
            next() % 10
        )
    };
    (0..count).map(row).collect()
}

/// Converts rows into the dataset `data`; the last 500 are its evaluation part.
fn convert(place: &Place, rows: &[String]) {
    let header = NAMES.join(",");
    let (train, eval) = rows.split_at(rows.len() - 500);
    let log = place.file("log.csv", format!("{header}\n{}\n", train.join("\n")));
    let eval = place.file("eval.csv", format!("{header}\n{}\n", eval.join("\n")));
    let schema = place.file("schema.toml", SCHEMA);
    let data = place.word("data");
    run(["convert", "csv", &log, "--schema", &schema, "--eval", &eval, "--out", &data]).with(SUCCESS);
}

fn ids(samples: &Samples) -> Vec<Ids<'_>> {
    let bags = samples.categorical.iter().enumerate();
    bags.map(|(number, bags)| match number {
        2 => Ids::Bags { offsets: &bags.offsets, ids: &bags.ids },
        _ => Ids::Weighted { offsets: &bags.offsets, ids: &bags.ids, weights: &bags.weights },
    })
    .collect()
}

#[test]
fn ranks_learn_from_weights_what_one_rank_does() {
    let place = Place::new();
    convert(&place, &rows(3000, 7));
    let job = support::job(&place);
    let cpu = "device.kind=cpu";
    let wide = "model={ kind = 'wide-deep', embedding_dim = 4, top_mlp = [16] }";
    for (model, sets) in [("dlrm", &[][..]), ("wide", &[wide])] {
        let sets = [&SETS[..], &["train.epochs=2", cpu], sets].concat();
        train(&place, &job, model, &sets).with(SUCCESS);
        let expected = numbers_of(&weights(&place, model));
        let auc = |name: &str| summary(&place, name)["eval"]["auc"].as_f64().unwrap();
        // The label depends on the weights.
        assert!(auc(model) > 0.85, "{}", auc(model));
        for ranks in ["device.ranks=2", "device.ranks=4"] {
            for placement in ["replicated", "hybrid", "row-wise", "table-wise", "column-wise"] {
                for exchange in ["rows", "pooled"] {
                    let name = format!("{model}-{ranks}-{placement}-{exchange}");
                    let placement = format!("embedding.placement='{placement}'");
                    let exchange = format!("embedding.exchange='{exchange}'");
                    let sets = [&sets[..], &[ranks, &placement, &exchange]].concat();
                    train(&place, &job, &name, &sets).with(SUCCESS);
                    let found = numbers_of(&weights(&place, &name));
                    assert_eq!(found.len(), expected.len());
                    for (found, expected) in found.iter().zip(&expected) {
                        assert!((found - expected).abs() <= 1e-3, "{name}: {found} {expected}");
                    }
                    assert!((auc(&name) - auc(model)).abs() < 1e-4, "{name}");
                }
            }
        }
    }
}

#[test]
fn scores_of_any_form_of_rows_are_the_evaluated_ones() {
    let place = Place::new();
    let rows = rows(2500, 3);
    convert(&place, &rows);
    train(&place, &support::job(&place), "run", &SETS).with(SUCCESS);
    let predict = |rows: &[&str]| {
        let (run_dir, out) = (place.word("run"), place.word("predictions.csv"));
        run([&["predict", "--run", &run_dir, "--out", &out, "--quiet"], rows].concat()).with(SUCCESS);
        let text = fs::read_to_string(&out).unwrap();
        fs::remove_file(&out).unwrap();
        text.lines()
            .skip(1)
            .map(|line| line.split_once(',').unwrap().1.parse().unwrap())
            .collect::<Vec<f64>>()
    };
    let expected = predict(&["--data", &place.word("data")]);
    assert_eq!(predict(&[&place.word("eval.csv")]), expected);
    let ranker = Ranker::load(place.path("run")).unwrap();
    assert_eq!(ranker.raw_columns().unwrap(), ["age", "tags", "w", "genres", "shares", "last"]);

    let mut mapped = Vec::new();
    for samples in samples(&place, Part::Eval) {
        let mut scores = vec![f64::NAN; samples.len];
        let features = Features { rows: samples.len, dense: &samples.dense, categorical: &ids(&samples) };
        ranker.score(&features, &mut scores).unwrap();
        mapped.extend(scores);
    }
    assert_eq!(mapped, expected);
    let fields = columns_of(&rows[2000..], ',');
    let columns: Vec<_> = NAMES.iter().zip(&fields).map(|(name, values)| texts(name, values)).collect();
    let mut raw = vec![f64::NAN; 500];
    ranker.score_raw(500, &columns, &mut raw).unwrap();
    assert_eq!(raw, expected);

    // The log loss of the scores is the one of the evaluation.
    let log_loss =
        |(score, row): (&f64, &String)| -if row.starts_with('1') { score.ln() } else { (-score).ln_1p() };
    let mean = expected.iter().zip(&rows[2000..]).map(log_loss).sum::<f64>() / 500.0;
    let judged = summary(&place, "run")["eval"]["log_loss"].as_f64().unwrap();
    assert!((mean - judged).abs() < 1e-6, "{mean} {judged}");

    // An id with weight 0 is as if it were absent; weights of a mean are relative, weights of a sum are not.
    let score = |tags, w, genres, shares| {
        let bag = |ids, weights: &'static [f32], offsets| Ids::Weighted { offsets, ids, weights };
        let categorical =
            [bag(tags, w, &[0, 2]), bag(genres, shares, &[0, 2]), Ids::Bags { offsets: &[0, 0], ids: &[] }];
        let mut scores = [f64::NAN];
        ranker
            .score(&Features { rows: 1, dense: &[1.0], categorical: &categorical }, &mut scores)
            .map(|()| scores[0])
    };
    let one = score(&[3, 7], &[0.5, 0.0], &[1, 2], &[0.25, 0.75]).unwrap();
    assert_eq!(score(&[3, 9], &[0.5, 0.0], &[1, 2], &[0.25, 0.75]).unwrap(), one);
    assert_eq!(score(&[3, 7], &[0.5, 0.0], &[1, 2], &[1.0, 3.0]).unwrap(), one);
    assert_ne!(score(&[3, 7], &[0.75, 0.0], &[1, 2], &[1.0, 3.0]).unwrap(), one);
    assert_ne!(score(&[3, 7], &[0.5, 0.0], &[1, 2], &[3.0, 1.0]).unwrap(), one);
    let refused = |outcome: Result<f64, _>| {
        outcome.map_err(|error: rankine_engine::ranker::ScoreError| error.to_string()).unwrap_err()
    };
    for (weights, words) in [
        (&[0.5, -1.0][..], "column tags, row 0: -1 is not a weight"),
        (&[f32::NAN, 1.0], "column tags, row 0: NaN is not a weight"),
        (&[0.5], "column tags: 1 weights for 2 ids; expected one per id"),
    ] {
        let found = refused(score(&[3, 7], weights, &[1, 2], &[1.0, 1.0]));
        assert!(found.contains(words), "{found}");
    }
    let samples = &samples(&place, Part::Eval)[0];
    let categorical = ids(samples);
    let bags = |number: usize| {
        let bags = &samples.categorical[number];
        Ids::Bags { offsets: &bags.offsets, ids: &bags.ids }
    };
    let weighted = Ids::Weighted {
        offsets: &samples.categorical[2].offsets,
        ids: &samples.categorical[2].ids,
        weights: &[],
    };
    for (categorical, words) in [
        ([bags(0), categorical[1], categorical[2]], "column tags: its ids have weights in the dataset"),
        ([categorical[0], categorical[1], weighted], "column last: weights were given"),
    ] {
        let features = Features { rows: samples.len, dense: &samples.dense, categorical: &categorical };
        let found = ranker.score(&features, &mut vec![0.0; samples.len]).unwrap_err().to_string();
        assert!(found.contains(words), "{found}");
    }
}

#[test]
fn pushed_and_resumed_trainings_give_the_bits_of_a_whole_one() {
    let (place, rows) = (Place::new(), rows(2500, 5));
    convert(&place, &rows);
    let rows = (&NAMES[..], &rows[..2000]);
    columns::pushed_and_resumed_trainings_give_the_bits_of_a_whole_one(&place, rows, &SETS, ids);
}

#[test]
fn commands_show_and_refuse_weights() {
    let place = Place::new();
    convert(&place, &rows(1000, 1));
    let data = place.word("data");
    run(["inspect", &data]).with(SUCCESS).stdout_says("ids with weights: `tags`, `genres`");
    let tables = run(["inspect", &data, "--json"]).with(SUCCESS).json()["tables"].clone();
    let weighted = |number: usize| tables[number]["weighted"].as_bool();
    assert_eq!([0, 1, 2].map(weighted), [Some(true), Some(true), None]);

    let schema = place.word("schema.toml");
    let bad = place.file("bad.csv", format!("{}\n1,2,t1|t2,1,1,1,\n", NAMES.join(",")));
    run(["convert", "csv", &bad, "--schema", &schema, "--out", &place.word("bad")]).with(BAD_DATA).says(&[
        "bad.csv line 2, column w: 1 weight for 2 categories of tags: each category needs one",
        "--on-bad skip or quarantine",
    ]);

    // A dataset without the weights does not fit the model.
    let job = support::job(&place);
    train(&place, &job, "run", &SETS).with(SUCCESS);
    let plain = SCHEMA.replace("weights = \"w\"\n", "");
    let (plain, log) = (place.file("plain.toml", plain), place.word("log.csv"));
    let other = place.word("other");
    run(["convert", "csv", &log, "--schema", &plain, "--out", &other]).with(SUCCESS);
    let (run_dir, out) = (place.word("run"), place.word("out.csv"));
    run(["predict", "--run", &run_dir, "--data", &other, "--part", "train", "--out", &out])
        .with(USAGE)
        .says(&["column tags has ids without weights, but the model was trained on ids with them"]);
    let set = format!("eval.set=[{{ name = 'other', data = {other:?} }}]");
    train(&place, &job, "judged", &[&set]).with(USAGE).says(&["column tags has ids without weights"]);

    run(["check", &job]).with(SUCCESS);
    run(["plan", &job]).with(SUCCESS);
    run(["plan", &job, "--set", "device.kind=cuda"]).with(SUCCESS);
}

//! Sequences with attention: converted, trained on any number of ranks, resumed, pushed, scored and judged.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;

use rankine_engine::ranker::{Features, Ids, Ranker, ScoreError};
use rankine_reader::{Part, Samples};

use crate::columns::{self, numbers_of, samples, texts};
use crate::support::films::columns_of;
use crate::support::{self, BAD_DATA, Place, SUCCESS, USAGE, numbers, run, summary, train, weights};

/// Reads at most four positions, of histories of up to five.
const SCHEMA: &str = r#"
[label]
column = "click"

[[dense]]
column = "age"

[[categorical]]
column = "item"
vocabulary = { kind = "exact", min_count = 1 }

[[categorical]]
column = "shop"
vocabulary = { kind = "hash", rows = 30 }

[[categorical]]
column = "items"
separator = "|"
vocabulary = { kind = "shared", with = "item" }

[[categorical]]
column = "shops"
separator = "|"
vocabulary = { kind = "hash", rows = 30 }

[[sequence]]
name = "clicks"
columns = ["items", "shops"]
max = 4
"#;
const NAMES: [&str; 6] = ["click", "age", "item", "shop", "items", "shops"];
const SHARED: &str = "table=[{ columns = ['item', 'items'] }, { columns = ['shop', 'shops'] }]";
const DIN: &str =
    "attention=[{ kind = 'din', sequence = 'clicks', query = ['item', 'shop'], hidden = [12, 6] }]";
const DOT: &str = "attention=[{ kind = 'dot', sequence = 'clicks', query = ['item', 'shop'] }]";
const MEAN: &str = "attention=[{ kind = 'mean', sequence = 'clicks' }]";
const POSITIONS: &str = "attention.0.position_embedding=true";
const CPU: &str = "device.kind=cpu";
const SETS: [&str; 4] = ["train.shuffle=false", SHARED, DIN, CPU];

/// Rows with a click if most items of a user's history that are of the kind of the one on offer were bought in shop s1,
/// not s0. Kinds are the remainders of items by 5.
fn rows(count: usize, seed: u64) -> Vec<String> {
    let mut next = numbers(seed);
    let row = |_| {
        let item = next() % 20;
        let items: Vec<_> = (0..next() % 6).map(|_| next() % 20).collect();
        let shops: Vec<_> = items.iter().map(|_| next() % 2).collect();
        let last = items.iter().zip(&shops).rev().take(4).filter(|(other, _)| *other % 5 == item % 5);
        let score: i64 = last.map(|(_, shop)| 2 * *shop as i64 - 1).sum();
        let click = u8::from(if score == 0 { next().is_multiple_of(2) } else { score > 0 });
        let joined = |letter: &str, numbers: &[u64]| {
            numbers.iter().map(|number| format!("{letter}{number}")).collect::<Vec<_>>().join("|")
        };
        let (items, shops) = (joined("i", &items), joined("s", &shops));
        format!("{click},{}.5,i{item},s{},{items},{shops}", next() % 3, next() % 2)
    };
    (0..count).map(row).collect()
}

/// Converts rows into the dataset `data`; the last 500 are its evaluation part.
fn convert(place: &Place, rows: &[String]) {
    convert_by(place, SCHEMA, rows);
}

fn convert_by(place: &Place, schema: &str, rows: &[String]) {
    let header = NAMES.join(",");
    let (train, eval) = rows.split_at(rows.len() - 500);
    let log = place.file("log.csv", format!("{header}\n{}\n", train.join("\n")));
    let eval = place.file("eval.csv", format!("{header}\n{}\n", eval.join("\n")));
    let schema = place.file("schema.toml", schema);
    let data = place.word("data");
    run(["convert", "csv", &log, "--schema", &schema, "--eval", &eval, "--out", &data]).with(SUCCESS);
}

fn ids(samples: &Samples) -> Vec<Ids<'_>> {
    let bags = samples.categorical.iter().enumerate();
    bags.map(|(number, bags)| match number {
        0 | 1 => Ids::Fixed(&bags.ids),
        _ => Ids::Bags { offsets: &bags.offsets, ids: &bags.ids },
    })
    .collect()
}

fn auc(place: &Place, name: &str) -> f64 {
    summary(place, name)["eval"]["auc"].as_f64().unwrap()
}

#[test]
fn ranks_learn_attention_as_one_rank_does() {
    let place = Place::new();
    convert(&place, &rows(3000, 7));
    let job = support::job(&place);
    let wide = "model={ kind = 'wide-deep', embedding_dim = 4, top_mlp = [16] }";
    for (model, ranks, sets) in
        [("dlrm", "device.ranks=4", &[POSITIONS][..]), ("wide", "device.ranks=2", &[wide, DOT])]
    {
        let sets = [&SETS[..], sets].concat();
        train(&place, &job, model, &sets).with(SUCCESS);
        let expected = numbers_of(&weights(&place, model));
        for placement in ["replicated", "hybrid", "row-wise", "table-wise", "column-wise"] {
            for exchange in ["rows", "pooled"] {
                let name = format!("{model}-{placement}-{exchange}");
                let placement = format!("embedding.placement='{placement}'");
                let exchange = format!("embedding.exchange='{exchange}'");
                let sets = [&sets[..], &[ranks, &placement, &exchange]].concat();
                train(&place, &job, &name, &sets).with(SUCCESS);
                let found = numbers_of(&weights(&place, &name));
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found - expected).abs() <= 1e-3, "{name}: {found} {expected}");
                }
                assert!((auc(&place, &name) - auc(&place, model)).abs() < 1e-4, "{name}");
            }
        }
    }
}

/// Sums and means of a history do not say which items were bought where.
#[test]
fn attention_learns_more_than_pooling() {
    let place = Place::new();
    convert(&place, &rows(12_500, 11));
    let job = support::job(&place);
    for kind in ["dcnv2", "dlrm"] {
        let model = match kind {
            "dcnv2" => "model={ kind = 'dcnv2', embedding_dim = 8, cross_layers = 1, top_mlp = [16] }",
            _ => "model={ kind = 'dlrm', embedding_dim = 8, bottom_mlp = [8], top_mlp = [16] }",
        };
        let sets = |attention| [SHARED, attention, CPU, model, "train.epochs=8"];
        let pooled = [SHARED, CPU, model, "train.epochs=8"];
        train(&place, &job, &format!("{kind}-din"), &sets(DIN)).with(SUCCESS);
        train(&place, &job, &format!("{kind}-mean"), &sets(MEAN)).with(SUCCESS);
        train(&place, &job, &format!("{kind}-pooled"), &pooled).with(SUCCESS);
        let [din, mean, pooled] =
            ["din", "mean", "pooled"].map(|name| auc(&place, &format!("{kind}-{name}")));
        assert!(din > mean + 0.02 && din > pooled + 0.02, "{kind}: {din} {mean} {pooled}");
    }
}

/// Columns of a history are found by their vocabularies.
#[test]
fn init_writes_a_job_with_attention_that_trains() {
    let place = Place::new();
    let (before, shops) = SCHEMA.rsplit_once("kind = \"hash\", rows = 30").unwrap();
    let schema = format!("{before}kind = \"shared\", with = \"shop\"{shops}");
    convert_by(&place, &schema, &rows(6000, 5));
    let (data, out) = (place.word("data"), place.word("starter.toml"));
    run(["init", "--data", &data, "--quick", "--out", &out]).with(SUCCESS);
    let text = fs::read_to_string(&out).unwrap();
    for lines in [
        "query = [\"item\",\"shop\"]",
        "\ncolumns = [\"item\",\"items\"]",
        "\ncolumns = [\"shop\",\"shops\"]",
    ] {
        assert!(text.replace(", ", ",").contains(lines), "{lines}: {text}");
    }
    train(&place, &out, "attended", &[CPU]).with(SUCCESS);
    train(&place, &out, "pooled", &[CPU, "attention=[]"]).with(SUCCESS);
    let [attended, pooled] = ["attended", "pooled"].map(|name| auc(&place, name));
    assert!(attended > pooled + 0.02, "{attended} {pooled}");
    // With the option that it shows.
    train(&place, &out, "positions", &[POSITIONS, CPU]).with(SUCCESS);
    assert!(auc(&place, "positions") > pooled + 0.02);
}

/// Only the vectors of positions can tell which click was the last one.
#[test]
fn positions_are_learned_from() {
    let place = Place::new();
    let mut next = numbers(3);
    let row = |_| {
        let (item, length) = (next() % 20, 1 + next() % 5);
        let items: Vec<_> = (0..length).map(|_| next() % 20).collect();
        let shops: Vec<_> = items.iter().map(|_| next() % 2).collect();
        // The last click decides.
        let click = (items[items.len() - 1] % 2 == item % 2) != next().is_multiple_of(10);
        let joined = |letter: &str, numbers: &[u64]| {
            numbers.iter().map(|number| format!("{letter}{number}")).collect::<Vec<_>>().join("|")
        };
        let (items, shops) = (joined("i", &items), joined("s", &shops));
        format!("{},{}.5,i{item},s{},{items},{shops}", u8::from(click), next() % 3, next() % 2)
    };
    convert(&place, &(0..12_500).map(row).collect::<Vec<_>>());
    let job = support::job(&place);
    let model = "model={ kind = 'dlrm', embedding_dim = 8, bottom_mlp = [8], top_mlp = [32] }";
    for (kind, attention) in [("din", DIN), ("dot", DOT)] {
        let sets = [SHARED, attention, CPU, model, "train.epochs=8"];
        let positions = [&sets[..], &[POSITIONS]].concat();
        train(&place, &job, kind, &sets).with(SUCCESS);
        train(&place, &job, &format!("{kind}-positions"), &positions).with(SUCCESS);
        let [without, with] = [kind, &format!("{kind}-positions")].map(|name| auc(&place, name));
        assert!(with > without + 0.03, "{kind}: {with} {without}");
    }
}

/// Generated sequences are labeled by a model of attention, whose AUC is the best possible one.
#[test]
fn din_comes_near_the_best_possible_auc() {
    let place = Place::new();
    let shape =
        "name = 'small'\ndense = 0\nrows = [30, 8]\nsequence = [{ query = ['C1', 'C2'], max = 12 }]\n";
    place.file("shape.toml", shape);
    let job = "
        name = 'small'
        data.generate = { shape = 'SHAPE', samples = 40000, eval_samples = 10000 }
        model = { kind = 'dlrm', embedding_dim = 8, top_mlp = [16] }
        attention = [{ kind = 'din', sequence = 'S1', query = ['C1', 'C2'], hidden = [16] }]
        table = [{ columns = ['C1', 'S1_C1'] }, { columns = ['C2', 'S1_C2'] }]
        optimizer.dense = { kind = 'adam', learning_rate = 0.01 }
        optimizer.sparse = { kind = 'adam', learning_rate = 0.02 }
        train = { batch_size = 128, epochs = 4 }";
    let job = place.file("small.toml", job.replace("SHAPE", &place.word("shape.toml")));
    assert_din_is_within(&place, &job, 2, 0.02);
    if support::is_long() {
        // The job whose figures are in docs/benchmarks.md.
        let job = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sequences.toml");
        (1..=3).for_each(|seed| assert_din_is_within(&Place::new(), job, seed, 0.003));
    }
}

/// Trains with `din` and with the mean, with a seed of data and weights.
fn assert_din_is_within(place: &Place, job: &str, seed: u64, difference: f64) {
    let data = format!("data.dir='{}'", place.word("data"));
    let (data_seed, seed) = (format!("data.generate.seed={seed}"), format!("seed={seed}"));
    let sets = [&data, &data_seed, &seed, CPU];
    train(place, job, "din", &sets).with(SUCCESS);
    let mean = "attention=[{ kind = 'mean', sequence = 'S1' }]";
    train(place, job, "mean", &[&sets[..], &[mean]].concat()).with(SUCCESS);
    let best = summary(place, "din")["eval"]["auc_achievable"].as_f64().unwrap();
    let [din, mean] = ["din", "mean"].map(|name| auc(place, name));
    assert!(din > best - difference && din > mean + 0.01, "{seed}: {best}, din {din}, mean {mean}");
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

    // Of longer histories, the last four positions count; an empty one is a history like others.
    let score = |items: &[u64], shops: &[u64]| {
        let ends = [items, shops].map(|bag| [0, bag.len() as u32]);
        let bag = |number: usize, ids| Ids::Bags { offsets: &ends[number], ids };
        let categorical = [Ids::Fixed(&[3]), Ids::Fixed(&[4]), bag(0, items), bag(1, shops)];
        let mut scores = [f64::NAN];
        ranker
            .score(&Features { rows: 1, dense: &[1.0], categorical: &categorical }, &mut scores)
            .map(|()| scores[0])
    };
    let four = score(&[1, 2, 5, 7], &[1, 2, 3, 3]).unwrap();
    assert_eq!(score(&[9, 3, 1, 2, 5, 7], &[8, 8, 1, 2, 3, 3]).unwrap(), four);
    assert_ne!(score(&[1, 2, 5], &[1, 2, 3]).unwrap(), four);
    assert!(score(&[], &[]).unwrap().is_finite());
    let refused = score(&[1, 2], &[1]).map_err(|error: ScoreError| error.to_string()).unwrap_err();
    let words = "column shops, row 0: 1 ids, but column items of the same sequence has 2";
    assert!(refused.contains(words), "{refused}");
    let uneven = [texts("age", &["1"]), texts("item", &["i1"]), texts("shop", &["s1"])];
    let uneven = [&uneven[..], &[texts("items", &["i1|i2"]), texts("shops", &["s1"])]].concat();
    let refused = ranker.score_raw(1, &uneven, &mut [0.0]).unwrap_err().to_string();
    let words = "column shops, row 0: 1 category, but column items of the same sequence has 2";
    assert!(refused.contains(words), "{refused}");
}

#[test]
fn pushed_and_resumed_trainings_give_the_bits_of_a_whole_one() {
    let (place, rows) = (Place::new(), rows(2500, 5));
    convert(&place, &rows);
    let rows = (&NAMES[..], &rows[..2000]);
    columns::pushed_and_resumed_trainings_give_the_bits_of_a_whole_one(&place, rows, &SETS, ids);
}

/// `item` and `items` share a vocabulary; `shop` and `shops` have one each. The 500 rows of the training part count.
fn items_are_counted_in_their_own_history(place: &Place, rows: &[String]) {
    let (mut samples, mut found) = ([0.0, 0.0], [0.0, 0.0]);
    for row in &rows[..500] {
        let fields: Vec<_> = row.split(',').collect();
        let items: Vec<_> = fields[4].split('|').collect();
        let click = usize::from(fields[0] == "1");
        samples[click] += 1.0;
        // The last four positions count.
        found[click] += f64::from(u8::from(items.iter().rev().take(4).any(|item| *item == fields[2])));
    }
    let [negatives, positives] = [0, 1].map(|click: usize| found[click] / samples[click]);
    let share = (found[0] + found[1]) / 500.0;
    assert!(share > 0.05 && positives != negatives, "{share} {positives} {negatives}");
    let data = place.word("data");
    let percent = |share: f64| format!("{:.2}%", share * 100.0);
    run(["inspect", &data]).with(SUCCESS).stdout_says(&format!(
        "`item` is in `items` of clicks in {} of the first 500 samples (positives {}, negatives {})",
        percent(share),
        percent(positives),
        percent(negatives)
    ));
    let found = run(["inspect", &data, "--json"]).with(SUCCESS).json()["own_history"].clone();
    let expected = serde_json::json!([{
        "sequence": "clicks", "column": "items", "query": "item", "samples": 500, "share": share,
        "share_of_positives": positives, "share_of_negatives": negatives,
    }]);
    assert_eq!(found, expected);
}

#[test]
fn commands_show_and_refuse_sequences() {
    let place = Place::new();
    convert(&place, &rows(1000, 1));
    let data = place.word("data");
    run(["inspect", &data])
        .with(SUCCESS)
        .stdout_says("sequence clicks: `items`, `shops`, the last 4 positions");
    let sequences = run(["inspect", &data, "--json"]).with(SUCCESS).json()["sequences"].clone();
    assert_eq!(sequences[0]["columns"].as_array().unwrap().len(), 2);
    items_are_counted_in_their_own_history(&place, &rows(1000, 1));

    let schema = place.word("schema.toml");
    let bad = place.file("bad.csv", format!("{}\n1,2,i1,s1,i1|i2,s1\n", NAMES.join(",")));
    run(["convert", "csv", &bad, "--schema", &schema, "--out", &place.word("bad")]).with(BAD_DATA).says(&[
        "bad.csv line 2, column shops: 1 category, but column items of the same sequence has 2",
        "--on-bad skip or quarantine",
    ]);

    let job = support::job(&place);
    train(&place, &job, "run", &SETS).with(SUCCESS);
    // The columns of a sequence are permuted together.
    let run_dir = place.word("run");
    let importance =
        run(["eval", "--run", &run_dir, "--data", &data, "--importance", "--json"]).with(SUCCESS);
    let columns = importance.json()["importance"]["columns"].clone();
    let found = columns.as_array().unwrap().iter().find(|column| column["column"] == "clicks").unwrap();
    assert_eq!(found["kind"], "sequence");
    assert!(!columns.as_array().unwrap().iter().any(|column| column["column"] == "items"));

    // A dataset without the sequence does not fit the model.
    let plain = place.file("plain.toml", SCHEMA.split("[[sequence]]").next().unwrap());
    let (log, other) = (place.word("log.csv"), place.word("other"));
    run(["convert", "csv", &log, "--schema", &plain, "--out", &other]).with(SUCCESS);
    let out = place.word("out.csv");
    run(["predict", "--run", &run_dir, "--data", &other, "--part", "train", "--out", &out])
        .with(USAGE)
        .says(&["it has no sequences, but the model was trained on the sequence clicks of items and shops"]);

    for (sets, words) in [
        (DIN.replace("clicks", "click"), "the dataset has no sequence `click`: did you mean `clicks`?"),
        (
            DIN.replace("'item', ", ""),
            "the query has 1 column, and the sequence `clicks` has 2: name one for each",
        ),
        (DIN.replace("'item'", "'itm'"), "the dataset has no categorical column `itm`: did you mean `item`?"),
        (DIN.replace("'item'", "'items'"), "the column `items` is part of the sequence `clicks`"),
    ] {
        run(["check", &job, "--set", &sets, "--set", CPU]).with(USAGE).says(&[words]);
    }
    let dims = "table=[{ columns = ['item'], dim = 3 }]";
    let model = "model={ kind = 'dcnv2', embedding_dim = 8, cross_layers = 1, top_mlp = [16] }";
    let words = "vectors of `item` have 3 elements, and vectors of `items` have 8";
    run(["check", &job, "--set", DIN, "--set", dims, "--set", model, "--set", CPU])
        .with(USAGE)
        .says(&[words]);
    // Ids out of range cannot be left out of one of several columns.
    let skip = "guard.ids_out_of_range=skip";
    train(&place, &job, "skip", &[&SETS[..], &[skip]].concat())
        .with(USAGE)
        .says(&["cannot be removed: it is part of the sequence clicks"]);

    // A build without GPUs knows what they do not support.
    for (sets, table) in [
        ("embedding.exchange=pooled", "table `items`, whose rows attention reads"),
        (
            "table=[{ columns = ['shop', 'shops'], exchange = 'pooled' }]",
            "table `shop, shops`, whose rows attention reads",
        ),
    ] {
        let words =
            ["exchange = \"pooled\" is not supported on GPUs for ", table, "set device.kind to \"cpu\""];
        let gpus = ["--set", "device.kind=cuda", "--set", "device.ranks=2"];
        for command in ["check", "plan"] {
            run([&[command, &job, "--set", DIN, "--set", sets][..], &gpus].concat()).with(USAGE).says(&words);
        }
    }
    run(["check", &job, "--set", DIN, "--set", CPU]).with(SUCCESS);
    run(["plan", &job, "--set", DIN, "--set", CPU]).with(SUCCESS);
}

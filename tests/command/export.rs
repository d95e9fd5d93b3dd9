//! A trained model in a run folder, a checkpoint and an export: all make the same predictions, the export also without
//! the others, and so does the forward pass of `docs/reference/checkpoint-format.md`.

use std::fs;
use std::path::Path;
use std::process::Command;

use rankine_base::sealed;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part};
use serde_json::{Value, json};

use crate::support::films::{CSV_SCHEMA, csv_rows};
use crate::support::{
    BAD_DATA, Ended, FAILED, Place, SHAPE, SUCCESS, USAGE, criteo_rows, generate, job, json_file, numbers,
    python, run, train, weights,
};

const TRAIN: usize = 3000;
const EVAL: usize = 700;
/// The last checkpoint is of the last step, and incremental to that of step 10.
const SETS: [&str; 5] = [
    "eval.batch_size=256",
    "train.max_steps=20",
    "checkpoint.every_steps=10",
    "checkpoint.incremental=true",
    "checkpoint.keep=9",
];

/// Each kind of model, with its sizes.
const KINDS: [(&str, &str); 5] = [
    ("dlrm", "bottom_mlp = [16, 4]"),
    ("dcnv2", "bottom_mlp = [16, 4], cross_layers = 2, cross_rank = 3"),
    ("dcnv2", "bottom_mlp = [16, 4], cross_layers = 2"),
    ("deepfm", "bottom_mlp = [16, 4]"),
    ("wide-deep", ""),
];

fn model(kind: &str, sizes: &str) -> String {
    let comma = if sizes.is_empty() { "" } else { ", " };
    format!("model={{ kind = '{kind}', embedding_dim = 4, top_mlp = [16, 8]{comma}{sizes} }}")
}

/// A run on converted rows in Criteo's format, and the raw rows to predict.
struct TrainedRun {
    place: Place,
    data: String,
    rows: String,
}

impl TrainedRun {
    fn new(sets: &[&str]) -> Self {
        let place = Place::new();
        let rows = criteo_rows(TRAIN + EVAL, 5);
        let log = place.file("log.tsv", rows[..TRAIN].join("\n") + "\n");
        let eval = place.file("eval.tsv", rows[TRAIN..].join("\n") + "\n");
        let data = place.word("data");
        let args = ["convert", "criteo-tsv", &log, "--out", &data, "--eval", &eval, "--min-count", "2"];
        run(args).with(SUCCESS);
        train(&place, &job(&place), "run", &[&SETS, sets].concat()).with(SUCCESS);
        Self { place, data, rows: eval }
    }

    fn word(&self, name: &str) -> String {
        self.place.word(name)
    }

    fn export(&self, from: &str, to: &str) -> Ended {
        run(["ckpt", "export", &self.word(from), "--out", &self.word(to)])
    }

    fn predict(&self, from: &str) -> Ended {
        let (from, out) = (self.word(from), self.word("out.csv"));
        run(["predict", "--run", &from, "--out", &out, &self.rows])
    }

    /// Returns a model's predictions for the raw rows.
    #[track_caller]
    fn predictions(&self, from: &str) -> String {
        self.predict(from).with(SUCCESS);
        let out = self.place.path("out.csv");
        let text = fs::read_to_string(&out).expect("predictions were written");
        fs::remove_file(out).expect("the file can be removed");
        text
    }

    fn remove(&self, name: &str) {
        fs::remove_dir_all(self.place.path(name)).expect("the folder exists");
    }
}

#[test]
fn run_last_checkpoint_and_export_predict_the_same_bits() {
    for sets in [&[][..], &["embedding.dtype=bf16", "model.kind=wide-deep", "model.bottom_mlp=[]"]] {
        let trained = TrainedRun::new(sets);
        let expected = trained.predictions("run");
        assert_eq!(expected.lines().count(), 1 + EVAL);
        trained.export("run", "export").with(SUCCESS).stdout_says("step 20");
        for from in ["run/model", "run/checkpoints/step-20", "export"] {
            assert!(trained.predictions(from) == expected, "{from} has other predictions");
        }
        let earlier = trained.predictions("run/checkpoints/step-10");
        assert!(earlier != expected, "steps 10 and 20 have the same predictions");
        let metrics = |from: &str| run(["eval", "--run", &trained.word(from), "--json"]).with(SUCCESS).json();
        for from in ["run/model", "run/checkpoints/step-20", "export"] {
            assert_eq!(metrics(from), metrics("run"), "{from}");
        }
        // The incremental checkpoint of step 20 as a full one.
        let (checkpoint, full) = (trained.word("run/checkpoints/step-20"), trained.word("full"));
        run(["ckpt", "reshard", &checkpoint, "--ranks", "2", "--out", &full]).with(SUCCESS);
        assert!(trained.predictions("full/checkpoints/step-20") == expected);
    }
}

#[test]
fn an_export_predicts_without_its_run_and_its_dataset() {
    let trained = TrainedRun::new(&[]);
    let expected = trained.predictions("run");
    trained.export("run/checkpoints/step-20", "export").with(SUCCESS);
    trained.export("export", "again").with(SUCCESS);
    trained.remove("run");
    trained.remove("data");
    fs::remove_file(trained.place.path("log.tsv")).unwrap();
    for from in ["export", "again"] {
        assert!(trained.predictions(from) == expected, "{from} has other predictions without its run");
    }
    // An export also evaluates datasets without its run.
    let (data, eval) = (trained.word("new"), trained.rows.clone());
    run(["convert", "criteo-tsv", &eval, "--out", &data]).with(SUCCESS);
    let ended = run(["eval", "--run", &trained.word("export"), "--data", &data]).with(USAGE);
    ended.says(&["does not fit the model"]);
}

#[test]
fn an_export_handles_ids_beyond_a_table_like_its_run() {
    let place = Place::new();
    let rows: [u64; 6] = [40, 30, 20, 12, 8, 3];
    let mut next = numbers(4);
    let mut records = |count: usize, wild: bool| {
        let mut bytes = Vec::new();
        for number in 0..count {
            bytes.extend((next() as u32 % 2).to_le_bytes());
            (0..4).for_each(|_| bytes.extend(((next() % 64) as f32 / 16.0).to_le_bytes()));
            for (column, rows) in rows.iter().enumerate() {
                let id = if wild && column == 1 && number % 5 == 0 { 1000 } else { next() % rows };
                bytes.extend((id as u32).to_le_bytes());
            }
        }
        bytes
    };
    let log = place.file("train.bin", records(3000, false));
    let wild = place.file("eval.bin", records(100, true));
    let shape = place.file("shape.toml", SHAPE);
    let raw = format!("data.raw={{ shape = {shape:?}, train = [{log:?}], eval = [{wild:?}] }}");
    let text = fs::read_to_string(job(&place)).unwrap().replace("data.dir", "#");
    let job = place.file("raw.toml", text);
    for policy in
        ["guard.ids_out_of_range=skip", "table=[{ columns = ['C2'], ids_out_of_range = 'oov', oov_row = 7 }]"]
    {
        let run_dir = if policy.starts_with("guard") { "skip" } else { "oov" };
        train(&place, &job, run_dir, &[&SETS[..], &[&raw, policy]].concat()).with(SUCCESS);
        let export = place.word(&format!("{run_dir}-export"));
        run(["ckpt", "export", &place.word(run_dir), "--out", &export]).with(SUCCESS);
        let predict = |from: &str| {
            let out = place.word("out.csv");
            let report = run(["predict", "--run", from, "--out", &out, &wild, "--json"]).with(SUCCESS).json();
            assert_eq!(report["ids_out_of_range"]["C2"], 20, "{report:#}");
            fs::read_to_string(out).unwrap()
        };
        let expected = predict(&place.word(run_dir));
        fs::remove_dir_all(place.path(run_dir)).unwrap();
        assert!(predict(&export) == expected, "{policy}: the export handles ids in another way");
        let report = run(["eval", "--run", &export, "--raw", &wild, "--json"]).with(SUCCESS).json();
        assert_eq!(report["ids_out_of_range"]["C2"], 20, "{report:#}");
    }
}

#[test]
fn a_checkpoint_finds_its_vocabularies_or_names_the_way_out() {
    let trained = TrainedRun::new(&[]);
    let expected = trained.predictions("run");
    let moved = trained.place.path("moved");
    fs::rename(&trained.data, &moved).unwrap();
    // Without the dataset, the run's copies are read.
    assert!(trained.predictions("run/checkpoints/step-20") == expected);
    trained.remove("run/model");
    let words = ["step-20 needs the vocabularies", "vocabulary/C1.tsv", "rankine export", "--data DATASET"];
    trained.predict("run/checkpoints/step-20").with(USAGE).says(&words);
    trained.export("run/checkpoints/step-20", "export").with(USAGE).says(&words[..1]);
    assert!(!trained.place.path("export").exists());
    // The vocabularies of another dataset are refused.
    let other = criteo_rows(500, 8).join("\n") + "\n";
    let log = trained.place.file("other.tsv", other);
    run(["convert", "criteo-tsv", &log, "--out", &trained.data]).with(SUCCESS);
    let ended = trained.predict("run/checkpoints/step-20").with(USAGE);
    ended.says(&[
        "step-20 needs the vocabularies",
        "it is not the vocabulary that the model was trained with",
    ]);
    let (checkpoint, export) = (trained.word("run/checkpoints/step-20"), trained.word("export"));
    let args = ["ckpt", "export", &checkpoint, "--out", &export, "--data"];
    run([&args[..], &[&trained.data]].concat())
        .with(USAGE)
        .says(&["not the dataset that the checkpoint was trained on"]);
    let moved = trained.word("moved");
    run([&args[..], &[&moved]].concat()).with(SUCCESS);
    assert!(trained.predictions("export") == expected);
}

#[test]
fn a_folder_without_a_model_is_named_for_what_it_is() {
    let trained = TrainedRun::new(&[]);
    let place = &trained.place;
    trained.export("run", "export").with(SUCCESS);
    fs::create_dir(place.path("empty")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("pipe"), rustix::fs::Mode::RUSR).unwrap();
    let eval = |name: &str| run(["eval", "--run", &trained.word(name)]);
    let ckpt = |name: &str| {
        run(["ckpt", "reshard", &trained.word(name), "--ranks", "2", "--out", &trained.word("new")])
    };
    let expected = ["no model at", "expected the folder of a finished run, a checkpoint", "or an export"];
    for (name, what) in [
        ("no/such", "there is no such folder"),
        ("log.tsv", "it is a file"),
        ("log.tsv/below", "log.tsv is a file"),
        ("pipe", "it is a pipe"),
        ("data", "it is a dataset"),
        ("empty", "it is an empty folder"),
        ("run/checkpoints", "step-20 is the latest"),
    ] {
        let predicted = run(["predict", "--run", &trained.word(name), "--out", "/dev/null", &trained.rows]);
        for ended in [eval(name), predicted] {
            ended.with(USAGE).says(&expected).says(&[&trained.word(name), what]);
        }
    }
    for (name, what) in [
        ("no/such", "there is no such folder"),
        ("data", "it is a dataset"),
        ("export", "it is an export, which has weights but no optimizer state"),
    ] {
        ckpt(name).with(USAGE).says(&["no checkpoint at", what, "expected the folder of a run"]);
    }
    // An unfinished run and an incomplete checkpoint.
    trained.remove("run/model");
    eval("run").with(USAGE).says(&["it is a run that has not finished", "checkpoints/step-20"]);
    fs::remove_file(place.path("run/checkpoints/step-20/manifest.json")).unwrap();
    eval("run/checkpoints/step-20").with(USAGE).says(&["an incomplete checkpoint without manifest.json"]);
    trained.remove("run/checkpoints");
    ckpt("run").with(USAGE).says(&["it is a run without checkpoints"]);
    eval("run").with(USAGE).says(&["it has no checkpoint either"]);
}

#[test]
fn exports_are_verified_inspected_and_compared() {
    let trained = TrainedRun::new(&[]);
    trained.export("run", "export").with(SUCCESS);
    let [export, model, last, first] =
        ["export", "run/model", "run/checkpoints/step-20", "run/checkpoints/step-10"]
            .map(|name| trained.word(name));
    let text = run(["ckpt", "inspect", &export]).with(SUCCESS).stdout;
    assert!(text.contains("export of the model of step 20\n") && text.contains("embedding.C1: "), "{text}");
    assert_eq!(run(["ckpt", "inspect", &export, "--json"]).with(SUCCESS).json()["model"]["steps"], 20);
    for other in [&model, &last] {
        run(["ckpt", "diff", &export, other]).with(SUCCESS).stdout_says("embedding.C1: the same");
    }
    let ended = run(["ckpt", "diff", &export, &first]).with(FAILED);
    ended.stdout_says("steps 20 and 10").stdout_says("dense parameters: ").says(&["differ"]);
    run(["ckpt", "verify", &export, &model]).with(SUCCESS).stdout_says("files and");
    for name in ["model.safetensors", "vocabulary/C3.tsv"] {
        let path = trained.place.path("export").join(name);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        run(["ckpt", "verify", &export]).with(BAD_DATA).says(&[name, "is damaged"]);
        fs::write(&path, whole).unwrap();
    }
}

/// Models of format 2 have no job, but the run folder has.
#[test]
fn models_of_format_2_are_read_from_their_run_folder() {
    let trained = TrainedRun::new(&[]);
    let expected = trained.predictions("run");
    let path = trained.place.path("run/model/model.json");
    let mut content = json_file(&path)["content"].clone();
    content.as_object_mut().unwrap().remove("job").expect("a model has its job");
    fs::write(&path, sealed::to_json("rankine model", 2, &content)).unwrap();
    for from in ["run", "run/model"] {
        assert!(trained.predictions(from) == expected, "{from}");
    }
    fs::rename(trained.place.path("run/model"), trained.place.path("moved")).unwrap();
    trained.predict("moved").with(USAGE).says(&["was exported without its job", "export it again"]);
}

/// Returns the samples of a dataset's evaluation part, in the form that the documented forward pass takes.
fn samples_as_json(data: &Path) -> Value {
    let dataset = Dataset::open(data).expect("it was converted");
    let part = dataset.part(Part::Eval).expect("it has an evaluation part");
    let mut dense = Vec::new();
    let mut bags = vec![Vec::new(); dataset.schema().categorical.len()];
    for batch in BatchStream::open(part, &StreamOptions::one_epoch(100)).expect("it can be read") {
        let batch = batch.expect("it is not damaged");
        let samples = &batch.samples;
        for sample in 0..samples.len {
            let columns = samples.dense_columns;
            let values = &samples.dense[sample * columns..][..columns];
            dense.push(values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>());
            for (bags, column) in bags.iter_mut().zip(&samples.categorical) {
                bags.push(column.bag(sample).to_vec());
            }
        }
    }
    json!({ "dense": dense, "bags": bags })
}

/// Runs the documented forward pass, and again with absolute values of all weights and numbers, which bounds the
/// rounding errors. A logit is a sum of products, apart from ReLUs, which increase no error. A product with k roundings
/// errs by a factor of at most (1 + 2^-24)^k, so with K roundings on the longest path the logit errs by at most
/// ((1 + 2^-24)^K - 1) times the sum of the products' absolute values.
const DRIVER: &str = "
import json, sys
import numpy as np
import forward

spec, of = forward.load(sys.argv[1])
given = json.load(open(sys.argv[2]))
dense, bags = np.array(given['dense']), given['bags']
logits = forward.logits(spec, of, dense, bags)
most = forward.logits(spec, {name: np.abs(x) for name, x in of.items()}, np.abs(dense), bags)
corrected = forward.probabilities(logits, forward.corrections(sys.argv[1]))
result = {'probabilities': corrected.tolist(), 'most': most.tolist()}
json.dump(result, open(sys.argv[3], 'w'))
";

/// Returns the number of roundings on the longest path to a logit, from the model's sizes and the largest bag.
fn roundings(spec: &Value, largest_bag: usize) -> usize {
    let number = |value: &Value| value.as_u64().expect("it is a number") as usize;
    let list = |value: &Value| value.as_array().expect("it is a list").clone();
    let widths = |key: &str| list(&spec[key]).iter().map(number).collect::<Vec<_>>();
    let columns = number(&spec["dense_columns"]);
    let dim = number(&spec["tables"][0]["dim"]);
    // One product, the sum of all products, and the bias.
    let layers = |inputs: usize, widths: &[usize]| -> usize {
        std::iter::once(&inputs).chain(widths).take(widths.len()).map(|inputs| inputs + 1).sum()
    };
    let bottom = widths("bottom_mlp");
    // The factor of a mean, the product with it, and the sums.
    let vector = layers(columns, &bottom).max(largest_bag + 2);
    let vectors = 1 + list(&spec["features"]).len();
    let elements = bottom.last().copied().unwrap_or(columns) + (vectors - 1) * dim;
    let pairs = vectors * (vectors - 1) / 2;
    let pair = 2 * vector + dim + 1;
    let (input, width) = match spec["interaction"]["kind"].as_str().expect("a kind has a name") {
        "dot" => (pair, dim + pairs),
        "cross" => {
            let rank = spec["interaction"]["rank"].as_u64().map_or(0, |rank| rank as usize + 1);
            let count = number(&spec["interaction"]["layers"]);
            // W x, its product with x0, and the sum with x.
            ((0..count).fold(vector, |x, _| x + elements + 1 + rank + vector + 2), elements)
        }
        _ => (vector, elements),
    };
    let top = widths("top_mlp");
    let last = top.last().copied().unwrap_or(width);
    // Terms that bypass the top MLP: first-order terms of all columns, and the sum of pairs.
    let bypass = columns + largest_bag + vectors + 4 + pair + pairs;
    input.max(vector) + layers(width, &top) + last + 1 + bypass
}

#[test]
fn the_documented_forward_pass_agrees_with_predict() {
    if !python::has_numpy() {
        return;
    }
    let place = Place::new();
    let header = "rating,bought,weight,last,film,age,tags\n";
    let rows = csv_rows(TRAIN + EVAL, 3);
    let log = place.file("log.csv", format!("{header}{}\n", rows[..TRAIN].join("\n")));
    let eval = place.file("eval.csv", format!("{header}{}\n", rows[TRAIN..].join("\n")));
    let (schema, data) = (place.file("schema.toml", CSV_SCHEMA), place.word("data"));
    let args = ["convert", "csv", &log, "--schema", &schema, "--eval", &eval, "--out", &data];
    run([&args[..], &["--negatives-kept", "rating=0.2"]].concat()).with(SUCCESS);
    let given = samples_as_json(Path::new(&data));
    place.file("given.json", given.to_string());
    let largest_bag = given["bags"].as_array().unwrap().iter().flat_map(|column| column.as_array().unwrap());
    let largest_bag = largest_bag.map(|bag| bag.as_array().unwrap().len()).max().unwrap();
    assert!(largest_bag > 1, "bags of several rows are pooled");

    let forward = python::documented("def logits(");
    place.file("reader.py", python::documented("def table("));
    place.file("driver.py", DRIVER);
    let job = job(&place);
    // Two columns share a table, and each of two labels has a head.
    let shared = "table=[{ columns = ['film', 'last'] }]";
    for (number, (kind, sizes)) in KINDS.into_iter().enumerate() {
        let (run_dir, set) = (format!("run-{number}"), model(kind, sizes));
        // A hundred steps: the weights of all parts differ from their initial values.
        train(&place, &job, &run_dir, &["train.epochs=4", shared, &set]).with(SUCCESS);
        let (dir, out) = (place.word(&run_dir), place.word("predicted.csv"));
        run(["predict", "--run", &dir, "--data", &data, "--out", &out]).with(SUCCESS);
        let predicted: Vec<Vec<f64>> = fs::read_to_string(&out)
            .unwrap()
            .lines()
            .skip(1)
            .map(|line| line.split(',').skip(1).map(|field| field.parse().unwrap()).collect())
            .collect();
        assert_eq!(predicted.len(), EVAL);
        let spec = json_file(&place.path(&run_dir).join("model/model.json"))["content"]["spec"].clone();
        let factor = (1.0 + f64::from(f32::EPSILON) / 2.0).powi(roundings(&spec, largest_bag) as i32) - 1.0;
        // The largest difference from the predictions, in units of the bound on rounding errors.
        let distance = |script: &str| {
            place.file("forward.py", script);
            let mut command = Command::new("python3");
            command
                .arg("driver.py")
                .arg(place.path(&run_dir).join("model"))
                .args(["given.json", "result.json"]);
            let output =
                command.current_dir(place.path("")).env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
            assert!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stderr));
            let result = json_file(&place.path("result.json"));
            let number = |key: &str, row: usize, head: usize| result[key][row][head].as_f64().unwrap();
            let (mut largest, mut bounds) = (0.0_f64, Vec::new());
            for (row, probabilities) in predicted.iter().enumerate() {
                for (head, probability) in probabilities.iter().enumerate() {
                    // The slope of the logistic function is at most 1/4; it and the file are in double precision.
                    let allowed = factor * number("most", row, head) / 4.0 + 1e-15;
                    bounds.push(allowed);
                    largest = largest.max((number("probabilities", row, head) - probability).abs() / allowed);
                }
            }
            bounds.sort_by(f64::total_cmp);
            let median = bounds[bounds.len() / 2];
            assert!(median < 2e-3, "{kind}, {sizes}: a bound of {median} is too loose");
            largest
        };
        let of_document = distance(&forward);
        assert!(of_document <= 1.0, "{kind}, {sizes}: the error is {of_document} times the bound");
        let spread = predicted.iter().map(|row| row[0]).fold(0.0, f64::max)
            - predicted.iter().map(|row| row[0]).fold(1.0, f64::min);
        assert!(spread > 0.05, "{kind}: predictions hardly differ");
        // The comparison detects another order of pairs or vectors.
        if kind == "dlrm" {
            let order = "for i in range(len(vectors)) for j in range(i)]";
            assert!(forward.contains(order), "the document has the order of pairs");
            let other =
                forward.replace(order, "for j in range(len(vectors)) for i in range(j + 1, len(vectors))]");
            let other = distance(&other);
            assert!(other > 10.0, "another order of pairs goes unnoticed: {other}");
        }
    }
}

#[test]
fn an_export_has_the_weights_and_metadata_of_the_run() {
    let place = Place::new();
    generate(&place, SHAPE, 4000, 100);
    train(&place, &job(&place), "run", &SETS).with(SUCCESS);
    let out = place.word("export/model");
    fs::create_dir(place.path("export")).unwrap();
    run(["ckpt", "export", &place.word("run"), "--out", &out]).with(SUCCESS);
    assert!(weights(&place, "export") == weights(&place, "run"));
    let [run_model, export] =
        ["run/model/model.json", "export/model/model.json"].map(|name| fs::read(place.path(name)).unwrap());
    assert!(run_model == export, "model.json of the export differs from the run's");
}

#[test]
fn a_run_is_exported_for_other_systems() {
    let trained = TrainedRun::new(&[]);
    let export = |from: &str, to: &str, options: &[&str]| {
        let (from, to) = (trained.word(from), trained.word(to));
        run([&["export", &from, "--out", &to, "--format"], options].concat())
    };
    let bytes = |name: &str| fs::read(trained.place.path(name)).unwrap();
    export("run", "padded", &["onnx"]).with(SUCCESS).stdout_says("exported the model of step 20 to ");
    export("run/model", "offsets", &["onnx", "--bags", "offsets", "--numbers", "mapped"]).with(SUCCESS);
    export("run", "raw", &["onnx", "--bags", "padded", "--numbers", "raw"]).with(SUCCESS);
    export("run", "films\"", &["triton"]).with(SUCCESS);
    // No column has bags of different sizes, so both layouts are the same graph; transforms are more nodes.
    assert!(bytes("padded/model.onnx") == bytes("offsets/model.onnx"));
    assert!(bytes("padded/model.onnx").len() < bytes("raw/model.onnx").len());
    let repeated = ["offsets/weights.bin", "raw/weights.bin", "films\"/1/weights.bin"];
    assert!(repeated.iter().all(|name| bytes(name) == bytes("padded/weights.bin")));
    assert!(bytes("films\"/1/model.onnx") == bytes("padded/model.onnx"));

    let config = String::from_utf8(bytes("films\"/config.pbtxt")).unwrap();
    for line in [
        "name: \"films\\\"\"\n",
        "  { name: \"dense\" data_type: TYPE_FP32 dims: [ 13 ] },\n",
        "  { name: \"C26\" data_type: TYPE_INT64 dims: [ 1 ] }\n]\noutput [\n",
        "  { name: \"probability\" data_type: TYPE_FP32 dims: [ 1 ] }\n]\n",
        "    inputs { key: \"C1\" value: { data_type: TYPE_INT64 dims: [ 1 ] zero_data: true } }\n",
    ] {
        assert!(config.contains(line), "{line} is not in {config}");
    }
    let saved = json_file(&trained.place.path("run/model/model.json"))["content"].clone();
    let mapping = json_file(&trained.place.path("films\"/mapping.json"));
    for key in ["schema", "format", "vocabularies"] {
        assert_eq!(mapping[key], saved[key]);
    }
    assert!(bytes("films\"/vocabulary/C26.tsv") == bytes("run/model/vocabulary/C26.tsv"));

    export("run", "saved", &["safetensors"]).with(SUCCESS);
    assert!(bytes("saved/model.safetensors") == bytes("run/model/model.safetensors"));
    for (options, words) in [
        (["safetensors", "--bags", "padded"], "--bags needs --format onnx: leave it out"),
        (["triton", "--bags", "offsets"], "--bags needs --format onnx: leave it out"),
        (["safetensors", "--numbers", "raw"], "--numbers needs --format onnx or triton: leave it out"),
    ] {
        export("run", "refused", &options).with(USAGE).says(&[words]);
    }

    // A run that has not finished; vocabularies are needed for Triton alone.
    trained.remove("run/model");
    export("run", "latest", &["onnx"]).with(SUCCESS).stdout_says("step 20");
    assert!(bytes("latest/weights.bin") == bytes("padded/weights.bin"));
    trained.remove("data");
    export("run/checkpoints/step-10", "earlier", &["onnx"]).with(SUCCESS).stdout_says("step 10");
    assert!(bytes("earlier/weights.bin") != bytes("padded/weights.bin"));
    export("run", "refused", &["triton"]).with(USAGE).says(&["needs the vocabularies of its dataset"]);
    assert!(!trained.place.path("refused").exists());
}

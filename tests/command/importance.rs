//! `rankine eval --importance`: the column that determines a label costs most of the AUC, noise costs nothing.

use serde_json::Value;

use crate::support::{Ended, Place, SUCCESS, USAGE, numbers, run, train};

/// `signal` determines `click`, and `number` determines `large`; `same` is constant, and the others are noise.
const SCHEMA: &str = r#"
[[label]]
column = "click"
[[label]]
column = "large"
[[dense]]
column = "number"
transform = "standardize"
[[dense]]
column = "other"
[[categorical]]
column = "noise"
[[categorical]]
column = "signal"
[[categorical]]
column = "same"
[[categorical]]
column = "tags"
separator = "|"
"#;

fn rows(count: usize) -> String {
    let mut next = numbers(3);
    let row = |_| {
        let (signal, number) = (next() % 12, next() % 100);
        let tags: Vec<_> = (0..next() % 4).map(|_| format!("t{}", next() % 9)).collect();
        let (click, large) = (u8::from(signal < 5), u8::from(number >= 50));
        format!("{click},{large},{number},{},n{},s{signal},x,{}\n", next() % 100, next() % 12, tags.join("|"))
    };
    "click,large,number,other,noise,signal,same,tags\n".to_owned() + &(0..count).map(row).collect::<String>()
}

/// Converts the rows, and trains a model of a kind on them.
fn trained(kind: &str, sets: &[&str]) -> Place {
    let place = Place::new();
    let (log, schema) = (place.file("log.csv", rows(5000)), place.file("schema.toml", SCHEMA));
    let (data, job) = (place.word("data"), place.word("job.toml"));
    run(["convert", "csv", &log, "--schema", &schema, "--out", &data, "--split", "last:0.3"]).with(SUCCESS);
    run(["init", "--data", &data, "--quick", "--model", kind, "--out", &job]).with(SUCCESS);
    let short = ["train.epochs=8", "train.batch_size=64", "eval.batch_size=256"];
    train(&place, &job, "run", &[&short, sets].concat()).with(SUCCESS);
    place
}

fn eval(place: &Place, args: &[&str]) -> Ended {
    run([&["eval", "--run", &place.word("run")], args].concat())
}

fn importance(place: &Place, args: &[&str]) -> Value {
    eval(place, &[&["--importance", "--json"], args].concat()).with(SUCCESS).json()
}

/// Returns the losses of AUC of a column, for the first head and the second one.
#[track_caller]
fn auc_losses(of: &Value, column: &str) -> [f64; 2] {
    let columns = of["importance"]["columns"].as_array().expect("a list");
    let found = columns.iter().find(|one| one["column"] == column).expect("the column is listed");
    assert_eq!(found["auc_loss"], found["heads"]["click"]["auc_loss"]);
    ["click", "large"].map(|head| found["heads"][head]["auc_loss"].as_f64().expect("a number"))
}

#[test]
fn each_kind_of_model_depends_on_the_columns_that_determine_the_labels() {
    for kind in ["dlrm", "dcnv2", "deepfm", "wide-deep"] {
        let place = trained(kind, &[]);
        let plain = eval(&place, &["--json"]).with(SUCCESS).json();
        let found = importance(&place, &[]);
        // To the last bit: numbers are written with all of their digits.
        assert_eq!(found["importance"]["undisturbed"], plain, "{kind}");
        assert_eq!((&found["auc"], &found["heads"]), (&plain["auc"], &plain["heads"]));
        assert_eq!(found["importance"]["samples"], 1500);
        let columns = found["importance"]["columns"].as_array().expect("a list");
        assert_eq!((columns.len(), &columns[0]["column"]), (6, &"signal".into()), "{kind}: {found:#}");
        let [click, large] = auc_losses(&found, "signal");
        assert!(click > 0.3 && large.abs() < 0.03, "{kind}: {found:#}");
        assert!(columns[0]["log_loss_increase"].as_f64() > Some(0.3), "{kind}: {found:#}");
        let [click, large] = auc_losses(&found, "number");
        assert!(click.abs() < 0.03 && large > 0.3, "{kind}: {found:#}");
        for noise in ["noise", "other", "tags"] {
            let losses = auc_losses(&found, noise);
            assert!(losses.iter().all(|loss| loss.abs() < 0.03), "{kind}, {noise}: {found:#}");
        }
        assert_eq!(auc_losses(&found, "same"), [0.0, 0.0], "{kind}");
        let losses: Vec<_> = columns.iter().map(|column| column["auc_loss"].as_f64()).collect();
        assert!(losses.is_sorted_by(|one, next| one >= next), "{kind}: {found:#}");
    }
}

#[test]
fn the_seed_decides_and_samples_are_bounded() {
    let place = trained("deepfm", &[]);
    let first = importance(&place, &["--threads", "1"]);
    assert_eq!(importance(&place, &["--seed", "0", "--importance-samples", "1500"]), first);
    let other = importance(&place, &["--seed", "1"]);
    assert_ne!(other["importance"]["columns"], first["importance"]["columns"]);
    assert!((auc_losses(&other, "signal")[0] - auc_losses(&first, "signal")[0]).abs() < 0.05);
    let few = importance(&place, &["--importance-samples", "400"]);
    assert_eq!(few["importance"]["samples"], 400);
    assert_eq!(
        (&few["importance"]["undisturbed"]["heads"]["click"]["samples"], &few["auc"]),
        (&400.into(), &first["auc"])
    );
    assert!((auc_losses(&few, "signal")[0] - auc_losses(&first, "signal")[0]).abs() < 0.1);

    eval(&place, &["--importance", "--part", "train"])
        .with(SUCCESS)
        .stdout_says("importance of columns: values permuted among 3500 samples, seed 0\ncolumn  kind         AUC loss")
        .stdout_says("\nsignal  categorical   0.");
    let data = place.word("data");
    let several = importance(&place, &["--data", &data, "--data", &place.word("data/../data")]);
    assert_eq!(several["sets"][&data]["importance"], first["importance"]);
    eval(&place, &["--seed", "1"]).with(USAGE).says(&["--importance"]);
    eval(&place, &["--importance", &place.word("log.csv")]).with(USAGE).says(&["cannot be used with"]);
}

#[test]
fn buckets_move_with_their_number() {
    let place = trained("deepfm", &["feature=[{ column = 'number', buckets = 10 }]"]);
    let found = importance(&place, &[]);
    assert_eq!(found["importance"]["columns"].as_array().expect("a list").len(), 6, "{found:#}");
    // If either stayed where it was, the model would still know which numbers are large.
    let [click, large] = auc_losses(&found, "number");
    assert!(click.abs() < 0.03 && large > 0.4, "{found:#}");
}

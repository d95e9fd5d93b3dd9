//! The job file from outside: what is read, what is refused and in which words.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rankine_embedding::Topology;
use rankine_reader::io::IoMode;
use rankine_reader::raw::{RawDense, RawIds};

use super::*;

const NO_SETS: [&str; 0] = [];

const SOUND: &str = r#"name = "criteo"
seed = 7

[data]
dir = "data/criteo"

[model]
kind = "dlrm"
embedding_dim = 16
bottom_mlp = [64, 16]
top_mlp = [128, 64]

[optimizer.dense]
kind = "sgd"
learning_rate = 24

[optimizer.sparse]
kind = "adagrad"
learning_rate = 0.02
epsilon = 1e-6

[train]
batch_size = 512
"#;

fn errors(text: &str, sets: &[&str]) -> String {
    Job::from_toml("job.toml", text, sets).unwrap_err().to_string()
}

/// The errors of the sound job with a piece of its text replaced.
fn errors_with(piece: &str, replacement: &str) -> String {
    assert!(SOUND.contains(piece), "{piece}");
    errors(&SOUND.replacen(piece, replacement, 1), &[])
}

#[test]
fn what_is_not_written_has_its_default() {
    let job = Job::from_toml("job.toml", SOUND, &NO_SETS).unwrap();
    assert_eq!((job.name.as_str(), job.seed), ("criteo", 7));
    assert_eq!(job.data, Data { dir: Some("data/criteo".into()), ..Data::default() });
    let zero = NonNegative::default();
    assert_eq!(
        job.optimizer.dense,
        Optimizer::Sgd(Sgd { learning_rate: NonNegative::new(24.0).unwrap(), weight_decay: zero })
    );
    assert_eq!(
        job.optimizer.sparse,
        Optimizer::Adagrad(Adagrad {
            learning_rate: NonNegative::new(0.02).unwrap(),
            weight_decay: zero,
            initial_accumulator: zero,
            epsilon: Positive::new(1e-6).unwrap(),
        })
    );
    assert_eq!(job.optimizer.schedule, Schedule::Constant);
    assert_eq!((job.optimizer.wide, job.optimizer.dense_clip_norm), (None, None));
    assert_eq!((&job.tables, &job.heads), (&vec![], &vec![]));
    assert_eq!((job.train.epochs.get(), job.train.max_steps, job.train.shuffle), (1, None, true));
    assert_eq!((job.train.log_every_steps.get(), job.train.shuffle_window_blocks.get()), (100, 16));
    assert_eq!((job.eval.every_steps, job.eval.batch_size.get(), job.eval.target_auc), (None, 8192, None));
    assert_eq!((job.reader.mode, job.reader.queue_depth.get()), (IoMode::Auto, 16));
    assert_eq!((job.device.kind, job.device.threads), (DeviceKind::Auto, None));
    assert_eq!((job.topology(), job.device.dense_update), (Ok(Topology::ONE), DenseUpdate::Replicated));
    assert_eq!(
        job.embedding,
        Embedding {
            placement: Placement::Auto,
            exchange: Exchange::Auto,
            dtype: Dtype::Fp32,
            frequent_rows: None,
            sample_samples: None
        }
    );
}

#[test]
fn sets_replace_add_and_make_tables() {
    let job = Job::from_toml(
        "job.toml",
        // The bad value in the file does not matter, since it is replaced.
        &SOUND.replace("batch_size = 512", "batch_size = 0"),
        &[
            "train.batch_size=1024",
            "eval.every_steps=10",
            "name=another one",
            "data.dir=a/b.c=d",
            "model.top_mlp=[8]",
            "optimizer.sparse={ kind = 'sgd', learning_rate = 1 }",
            "optimizer.schedule=constant",
            " device . threads = 3",
        ],
    )
    .unwrap();
    assert_eq!(job.train.batch_size.get(), 1024);
    assert_eq!(job.eval.every_steps, Count::new(10));
    assert_eq!(job.name.as_str(), "another one");
    assert_eq!(job.data.dir, Some(PathBuf::from("a/b.c=d")));
    assert_eq!(job.model.top_mlp(), [Width::new(8).unwrap()]);
    assert_eq!(job.optimizer.sparse.name(), "sgd");
    assert_eq!(job.device.threads, ThreadCount::new(3));
}

#[test]
fn the_last_set_of_a_key_wins() {
    let job = Job::from_toml("job.toml", SOUND, &["seed=1", "seed=2"]).unwrap();
    assert_eq!(job.seed, 2);
}

#[test]
fn errors_show_the_place_and_the_way_out() {
    let cases = [
        (
            "batch_size",
            "bach_size",
            "\
job.toml:23:1: unknown key `bach_size` in [train]
   |
23 | bach_size = 512
   | ^^^^^^^^^
   = did you mean `batch_size`?
   = known keys: batch_size, epochs, max_steps, log_every_steps, shuffle, shuffle_window_blocks",
        ),
        (
            "batch_size = 512",
            "batch_size = 0",
            "\
job.toml:23:14: `train.batch_size`: expected a whole number from 1 to 16777216, found 0
   |
23 | batch_size = 0
   |              ^",
        ),
        (
            "batch_size = 512",
            "",
            "\
job.toml:22:1: missing key `batch_size` in [train]
   |
22 | [train]
   | ^^^^^^^",
        ),
        (
            "kind = \"adagrad\"",
            "kind = \"adagard\"",
            "\
job.toml:18:8: unknown value `adagard` for `optimizer.sparse.kind`
   |
18 | kind = \"adagard\"
   |        ^^^^^^^^^
   = did you mean `adagrad`?
   = known values: sgd, momentum, adagrad, rowwise-adagrad, adam, ftrl",
        ),
        (
            "learning_rate = 24",
            "learning_rate = 24\nepsilon = 1e-8",
            "\
job.toml:16:1: the kind `sgd` has no key `epsilon` in [optimizer.dense]
   |
16 | epsilon = 1e-8
   | ^^^^^^^
   = only with kind `adagrad` or `rowwise-adagrad` or `adam`",
        ),
        (
            "learning_rate = 24",
            "learning_rate = 24\nmomentun = 0.9",
            "\
job.toml:16:1: unknown key `momentun` in [optimizer.dense]
   |
16 | momentun = 0.9
   | ^^^^^^^^
   = known keys: kind, learning_rate, weight_decay",
        ),
        (
            "name = \"criteo\"",
            "\tname = \"a/b\"",
            "\
job.toml:1:9: `name`: the name contains a slash, and run folders start with it
  |
1 | \tname = \"a/b\"
  | \t       ^^^^^",
        ),
        // Wide characters take two columns, and an accent that combines takes none.
        (
            "name = \"criteo\"",
            "name = \"\u{6f22}\u{5b57}e\u{301}/\"",
            "\
job.toml:1:8: `name`: the name contains a slash, and run folders start with it
  |
1 | name = \"\u{6f22}\u{5b57}e\u{301}/\"
  |        ^^^^^^^^",
        ),
        (
            "[data]\ndir = \"data/criteo\"",
            "data = { dir = \"\u{6f22}\u{5b57}e\u{301}\u{1f600}\", dirr = 1 }",
            "\
job.toml:4:25: unknown key `dirr` in [data]
  |
4 | data = { dir = \"\u{6f22}\u{5b57}e\u{301}\u{1f600}\", dirr = 1 }
  |                           ^^^^
  = did you mean `dir`?
  = known keys: dir, shape, raw, generate",
        ),
        ("name = \"criteo\"", "", "job.toml: missing key `name`"),
        (
            "name = \"criteo\"",
            "name = \"\u{e9}\" \u{1b}",
            "\
job.toml:1:12: invalid TOML: unexpected key or value, expected newline, `#`
  |
1 | name = \"\u{e9}\" \u{fffd}
  |            ^",
        ),
        (
            "[train]",
            "[traim]",
            "\
job.toml:22:2: unknown key `traim`
   |
22 | [traim]
   |  ^^^^^
   = did you mean `train`?
   = known keys: name, seed, data, model, table, head, embedding, optimizer, train, eval, checkpoint, guard, reader, \
             device",
        ),
        (
            "[64, 16]",
            "[64, 8]",
            "\
job.toml:10:14: the bottom MLP must end with embedding_dim (16), not 8: its output interacts with the \
embeddings
   |
10 | bottom_mlp = [64, 8]
   |              ^^^^^^^",
        ),
    ];
    for (piece, replacement, expected) in cases {
        assert_eq!(errors_with(piece, replacement), expected);
    }
}

#[test]
fn impossible_values_are_refused_in_plain_words() {
    let cases = [
        ("batch_size = 512", "batch_size = 512.0", "expected a whole number from 1 to 16777216, found 512.0"),
        ("batch_size = 512", "batch_size = -1", "expected a whole number from 1 to 16777216, found -1"),
        ("batch_size = 512", "batch_size = 16777217", "found 16777217"),
        ("batch_size = 512", "batch_size = \"many\"", "found the string \"many\""),
        (
            "batch_size = 512",
            "batch_size = 1\nepochs = 0",
            "`train.epochs`: expected a whole number of 1 or more, found 0",
        ),
        (
            "batch_size = 512",
            "batch_size = 1\nshuffle = 1",
            "`train.shuffle`: expected true or false, found 1",
        ),
        (
            "learning_rate = 24",
            "learning_rate = -0.5",
            "expected a number of 0 or more, within single precision, found -0.5",
        ),
        (
            "learning_rate = 24",
            "learning_rate = nan",
            "expected a number of 0 or more, within single precision, found NaN",
        ),
        (
            "learning_rate = 24",
            "learning_rate = 1e39",
            "expected a number of 0 or more, within single precision, found 1e39",
        ),
        (
            "learning_rate = 24",
            "learning_rate = inf",
            "expected a number of 0 or more, within single precision, found inf",
        ),
        ("kind = \"sgd\"", "", "missing key `kind` in [optimizer.dense]"),
        ("kind = \"sgd\"", "kind = 3", "`optimizer.dense.kind`: expected a name, found a number"),
        ("name = \"criteo\"", "name = \"\"", "the name is empty"),
        ("name = \"criteo\"", "name = \"..\"", "the name starts with a dot"),
        ("seed = 7", "seed = -7", "`seed`: expected a whole number of 0 or more, found -7"),
        ("seed = 7", "seed = 0xfffffffffffffffff", "the number does not fit in 64 bits"),
        ("seed = 7", "seed = 7\nseed = 8", "job.toml:3:1: invalid TOML: duplicate key"),
        ("dir = \"data/criteo\"", "dir = 1979-05-27", "`data.dir`: expected a path, found a date or time"),
        ("dir = \"data/criteo\"", "dir = \"\"", "job.toml:5:7: the path is empty"),
        ("[64, 16]", "[64, 0]", "`model.bottom_mlp`: expected a whole number from 1 to 65536, found 0"),
        ("[64, 16]", "64", "`model.bottom_mlp`: expected a list, found 64"),
        (
            "[train]",
            "[eval]\ntarget_auc = 0.5\n[train]",
            "expected a number above 0.5 and at most 1, found 0.5",
        ),
        (
            "[train]",
            "[eval]\ntarget_auc = 1.5\n[train]",
            "expected a number above 0.5 and at most 1, found 1.5",
        ),
        (
            "[train]",
            "[reader]\nmode = \"uring\"\n[train]",
            "known values: auto, uring-direct, uring-buffered, pread, mmap",
        ),
        (
            "[train]\nbatch_size",
            "[reader]\nqueue_depth = 0\n[train]\nbatch_size",
            "expected a whole number from 1 to 128",
        ),
        (
            "[train]",
            "[data.generate]\nshape = \"dlrm-dcn\"\nsamples = 3\n[train]",
            "did you mean `dlrm-dcnv2`?",
        ),
        (
            "dir = \"data/criteo\"",
            "raw = { shape = \"dlrm\", train = [\"day\"], dense = \"half\" }",
            "known values: float, int",
        ),
        (
            "dir = \"data/criteo\"",
            "raw = { shape = \"dlrm\", train = [] }",
            "job.toml:5:33: the list of training files is empty",
        ),
        ("dir = \"data/criteo\"", "raw = { shape = \"dlrm\" }", "missing key `train` in [data.raw]"),
        ("dir = \"data/criteo\"", "", "no samples: set data.dir to a folder"),
        (
            "dir = \"data/criteo\"",
            "dir = \"a\"\nraw = { shape = \"dlrm\", train = [\"b\"] }",
            "data.dir and data.raw are both set",
        ),
        (
            "dir = \"data/criteo\"",
            "raw = { shape = \"dlrm\", train = [\"b\"] }\ngenerate = { shape = \"dlrm\", samples = 1 }",
            "raw files cannot be generated",
        ),
        ("[train]", "[[eval]]\n[train]", "`eval`: expected a table, found a list"),
        (
            "[optimizer.sparse]",
            "[optimizer.schedule]\nkind = \"constant\"\npower = 2\n[optimizer.sparse]",
            "the kind `constant` has no key `power` in [optimizer.schedule]",
        ),
    ];
    for (piece, replacement, expected) in cases {
        let actual = errors_with(piece, replacement);
        assert!(actual.contains(expected), "{replacement}\n{actual}");
    }
}

#[test]
fn a_job_may_use_all_that_there_is() {
    let text = SOUND
        .replace("kind = \"dlrm\"", "kind = \"dcnv2\"\ncross_layers = 2\ncross_rank = 8")
        .replace("[optimizer.dense]", "[optimizer]\ndense_clip_norm = 2\n[optimizer.dense]")
        .replace("kind = \"sgd\"", "kind = \"momentum\"\nnesterov = true")
        + r#"
[[table]]
columns = ["C1", "C2"]
dim = 8
optimizer = { kind = "rowwise-adagrad", learning_rate = 0.5, weight_decay = 1e-4 }

[[table]]
columns = ["C3"]
name = "third"
learning_rate_factor = 0.1
placement = "column-wise"
exchange = "pooled"
dtype = "fp16"

[[table]]
columns = ["C4"]
placement = "hybrid"
frequent_rows = 7

[embedding]
placement = "row-wise"
dtype = "bf16"
frequent_rows = 1000
sample_samples = 5000

[device]
ranks = 6
nodes = 3
dense_update = "sharded"

[[head]]
label = "click"

[[head]]
label = "buy"
weight = 3

[optimizer.schedule]
kind = "cosine"
decay_steps = 1000
"#;
    let job = Job::from_toml("job.toml", &text, &["table.1.dim=32", "head.0.weight=2.5"]).unwrap();
    let Model::Dcnv2(model) = &job.model else { panic!("{:?}", job.model) };
    assert_eq!((model.cross_layers.get(), model.cross_rank.map(Width::get)), (2, Some(8)));
    let Optimizer::Momentum(dense) = &job.optimizer.dense else { panic!("{:?}", job.optimizer.dense) };
    assert_eq!((dense.momentum.get(), dense.nesterov), (0.9, true));
    assert_eq!(job.optimizer.dense_clip_norm.map(Positive::get), Some(2.0));
    let [first, second, third] = &job.tables[..] else { panic!("{:?}", job.tables) };
    assert_eq!((first.name(), first.dim.map(Width::get)), ("C1+C2".into(), Some(8)));
    let own = first.optimizer.as_ref().unwrap();
    assert_eq!((own.name(), own.learning_rate(), own.weight_decay()), ("rowwise-adagrad", 0.5, 1e-4));
    assert_eq!((second.name(), second.dim.map(Width::get)), ("third".into(), Some(32)));
    assert_eq!((first.placement, first.exchange), (None, None));
    assert_eq!((second.placement, second.exchange), (Some(Placement::ColumnWise), Some(Exchange::Pooled)));
    let Embedding { placement, exchange, dtype, frequent_rows, sample_samples } = job.embedding;
    assert_eq!((frequent_rows, third.frequent_rows), (Count::new(1000), Count::new(7)));
    assert_eq!((dtype, first.dtype, second.dtype), (Dtype::Bf16, None, Some(Dtype::Fp16)));
    assert_eq!((placement, exchange, sample_samples), (Placement::RowWise, Exchange::Auto, Count::new(5000)));
    assert_eq!((job.topology(), job.device.dense_update), (Topology::new(6, 3), DenseUpdate::Sharded));
    assert_eq!((first.learning_rate_factor.get(), second.learning_rate_factor.get()), (1.0, 0.1));
    let heads: Vec<_> = job.heads.iter().map(|head| (head.label.as_str(), head.weight.get())).collect();
    assert_eq!(heads, [("click", 2.5), ("buy", 3.0)]);
    assert_eq!(job.optimizer.schedule.factor(500), 0.5);
    assert_eq!(Job::from_toml("effective.toml", &job.to_toml(), &NO_SETS).unwrap(), job);
}

/// The errors of the sound job with some lines more.
#[track_caller]
fn assert_refused(lines: &str, sets: &[&str], expected: &str) {
    let actual = errors(&format!("{SOUND}{lines}"), sets);
    assert!(actual.contains(expected), "{lines}\n{actual}");
}

#[test]
fn tables_and_heads_are_refused_with_their_place() {
    let table = "[[table]]\ncolumns = [\"C1\"]\n";
    assert_refused(
        &format!("{table}dimm = 3\n"),
        &[],
        "job.toml:26:1: unknown key `dimm` in [table.0]\n   |\n26 | dimm = 3",
    );
    assert_refused(
        &format!("{table}{table}"),
        &[],
        "job.toml:27:11: column C1 already belongs to an earlier [[table]]",
    );
    assert_refused("[[table]]\ncolumns = [\"A\", \"A\"]\n", &[], "column A is listed twice");
    assert_refused("[[table]]\ncolumns = []\n", &[], "a table needs at least one column");
    let twice = format!("{table}name = \"x\"\n[[table]]\ncolumns = [\"C2\"]\nname = \"x\"\n");
    assert_refused(&twice, &[], "job.toml:29:8: another table has the name x");
    assert_refused(
        &format!("{table}dim = 8\n"),
        &[],
        "job.toml:26:7: 8 is not model.embedding_dim (16): dlrm multiplies the vectors of all columns",
    );
    assert_refused(
        "[[table]]\ncolumns = [\"A\"]\noptimizer = { kind = \"adam\", learning_rate = 1, beta2 = 1.0 }\n",
        &[],
        "`table.0.optimizer.beta2`: expected a number from 0 to below 1, found 1.0",
    );
    assert_refused(
        "[[table]]\ncolumns = [\"A\"]\noptimizer = { kind = \"sgd\", learning_rate = 1, beta2 = 0.9 }\n",
        &[],
        "the kind `sgd` has no key `beta2` in [table.0.optimizer]",
    );
    assert_refused(
        &format!("{table}placement = \"replicated\"\nexchange = \"rows\"\n"),
        &[],
        "job.toml:27:12: every rank stores the whole of a replicated table",
    );
    assert_refused(
        "[table]\ncolumns = [\"A\"]\n",
        &[],
        "write the headers of its tables with two brackets, `[[...]]`",
    );
    assert_refused(
        "[[head]]\nlabel = \"A\"\n[[head]]\nlabel = \"A\"\n",
        &[],
        "job.toml:27:9: label A already has a head",
    );
    assert_refused(
        "[[head]]\nlabel = \"A\"\nweight = 0\n",
        &[],
        "`head.0.weight`: expected a number above 0",
    );
    let of_two = "`2` is not an index of this list of 2: indices start at 0";
    assert_refused(&format!("{table}[[table]]\ncolumns = [\"B\"]\n"), &["table.2.dim=4"], of_two);
    assert_refused(table, &["table.first.dim=4"], "`first` is not an index of this list of 1");
    assert_refused(table, &["table.0.dim=0"], "--set table.0.dim=0: `table.0.dim`: expected a whole number");
}

#[test]
fn rules_and_schedules_are_refused_with_their_way_out() {
    let set = |set: &str, expected: &str| assert_refused("", &[set], expected);
    set(
        "optimizer.dense={ kind = 'rowwise-adagrad', learning_rate = 1 }",
        "rowwise-adagrad keeps one sum per table row, and dense parameters have no rows: use adagrad",
    );
    set(
        "optimizer.wide={ kind = 'ftrl', learning_rate = 1 }",
        "the model dlrm has no wide part: remove optimizer.wide, or use deepfm or wide-deep",
    );
    set("optimizer.dense_clip_norm=0", "expected a number above 0, within single precision, found 0");
    let schedule = |settings: &str, expected: &str| {
        set(&format!("optimizer.schedule={{ {settings} }}"), expected);
    };
    let either = "a step schedule needs either every_steps or milestones";
    schedule("kind = 'step', factor = 0.5", either);
    schedule("kind = 'step', factor = 0.5, every_steps = 3, milestones = [5]", either);
    schedule("kind = 'step', factor = 0.5, milestones = [5, 5]", "each milestone must be later");
    schedule("kind = 'step', factor = 2, every_steps = 5", "expected a number from 0 to 1, found 2");
    schedule(
        "kind = 'cosine', warmup_steps = 10, decay_start_step = 9, decay_steps = 5",
        "the decay starts at step 9, before the warm-up ends at step 10",
    );
    schedule("kind = 'cosine', decay_steps = 5, power = 2", "only with kind `warmup-polynomial`");
    set("model.kind=wide-dep", "did you mean `wide-deep`?");
    set("model.cross_layers=3", "the kind `dlrm` has no key `cross_layers` in [model]");
    set("model.kind=dcnv2", "missing key `cross_layers` in [model]");
}

#[test]
fn each_contradiction_is_found_and_its_neighbour_is_none() {
    let job = |sets: &[&str]| Job::from_toml("job.toml", SOUND, sets).map_err(|error| error.to_string());
    let refused = |sets: &[&str], expected: &str| {
        let text = job(sets).unwrap_err();
        assert!(text.contains(expected), "{sets:?}: {text}");
    };
    let sound = |sets: &[&str]| drop(job(sets).unwrap());
    // A barrier needs time to report which rank is missing.
    refused(&["guard.barrier_timeout_s=40"], "40 s is not longer than guard.barrier_timeout_s (40 s)");
    refused(&["guard.silence_timeout_s=29"], "--set guard.silence_timeout_s=29: 29 s is not longer than");
    sound(&["guard.barrier_timeout_s=39.9"]);
    sound(&["eval.target_auc=0.8", "eval.every_steps=1"]);
    refused(&["eval.target_auc=0.8"], "set eval.every_steps");
    let table = |settings: &str| format!("table=[{{ columns = [\"A\"], {settings} }}]");
    refused(&[&table("name = \"\"")], "the name is empty");
    refused(&[&table("name = \"a\\u0007\"")], "the name contains a control character");
    sound(&[&table("placement = \"replicated\", exchange = \"auto\"")]);
    sound(&[&table("placement = \"row-wise\", exchange = \"rows\"")]);
    for (placement, mixed) in
        [("replicated", false), ("table-wise", false), ("column-wise", false), ("hybrid", true)]
    {
        let set = table(&format!("placement = \"{placement}\", frequent_rows = 3"));
        match mixed {
            true => sound(&[&set]),
            false => {
                refused(&[&set], &format!("a {placement} table has no frequent rows: remove frequent_rows"))
            }
        }
    }
    sound(&[&table("placement = \"auto\", frequent_rows = 3")]);
    sound(&[&table("dim = 16")]);
    refused(&[&table("dim = 17")], "17 is not model.embedding_dim (16): dlrm multiplies");
    sound(&[&table("dim = 17"), "model.kind=wide-deep"]);
    // The same name, given and made of the columns.
    let named = "table=[{ columns = [\"A\", \"B\"] }, { columns = [\"C\"], name = \"A+B\" }]";
    refused(&[named], "another table has the name A+B");
    refused(&["model.bottom_mlp=[64, 15]"], "the bottom MLP must end with embedding_dim (16), not 15");
    sound(&["model.bottom_mlp=[]"]);
    sound(&["model.bottom_mlp=[64, 15]", "model.kind=wide-deep"]);
    sound(&["optimizer.wide={ kind = 'ftrl', learning_rate = 1 }", "model.kind=deepfm"]);
    sound(&["optimizer.sparse={ kind = 'rowwise-adagrad', learning_rate = 1 }"]);
    let raw = "data={ raw = { shape = 'dlrm', train = ['a'] }, shape = 'dlrm' }";
    refused(&[raw], "data.raw.shape already sets the shape: remove data.shape");
    sound(&["data={ dir = 'd', shape = 'dlrm' }"]);
    let decay = |start: u64| {
        format!(
            "optimizer.schedule={{ kind = 'warmup-polynomial', warmup_steps = 5, decay_start_step = {start}, \
             decay_steps = 1 }}"
        )
    };
    refused(&[&decay(4)], "the decay starts at step 4, before the warm-up ends at step 5");
    sound(&[&decay(5)]);
    sound(&[
        "optimizer.schedule={ kind = 'cosine', warmup_steps = 5, decay_start_step = 5, decay_steps = 1 }",
    ]);
    sound(&["optimizer.schedule={ kind = 'step', factor = 0.5, milestones = [5, 6] }"]);
    refused(
        &["optimizer.schedule={ kind = 'step', factor = 0.5, milestones = [5, 4] }"],
        "each milestone must be later",
    );
    // Ranks that are counted later are not checked now.
    sound(&["device.nodes=3", "device.ranks=auto"]);
    sound(&["device.tune=true"]);
}

#[test]
fn an_error_of_a_set_names_the_set() {
    let cases = [
        (
            "train.bach_size=5",
            "\
--set train.bach_size=5: unknown key `bach_size` in [train]
  |
  | train.bach_size=5
  |       ^^^^^^^^^
  = did you mean `batch_size`?
  = known keys: batch_size, epochs, max_steps, log_every_steps, shuffle, shuffle_window_blocks",
        ),
        (
            "train.batch_size=0",
            "\
--set train.batch_size=0: `train.batch_size`: expected a whole number from 1 to 16777216, found 0
  |
  | train.batch_size=0
  |                  ^",
        ),
        (
            "model.bottom_mlp=[3]",
            "\
--set model.bottom_mlp=[3]: the bottom MLP must end with embedding_dim (16), not 3: its output \
interacts with the embeddings
  |
  | model.bottom_mlp=[3]
  |                  ^^^",
        ),
        (
            "name.x=3",
            "\
--set name.x=3: `name`: expected a name, found a table
  |
  | name.x=3
  | ^^^^",
        ),
        (
            "train",
            "\
--set train: --set needs KEY=VALUE, such as train.batch_size=1024
  |
  | train
  | ^^^^^",
        ),
        ("=3", "--set =3: `` is not a key: write TABLE.KEY=VALUE"),
        // The set is right, and the file's key no longer is.
        (
            "optimizer.sparse.kind=sgd",
            "\
job.toml:20:1: the kind `sgd` has no key `epsilon` in [optimizer.sparse]
   |
20 | epsilon = 1e-6
   | ^^^^^^^
   = only with kind `adagrad` or `rowwise-adagrad` or `adam`",
        ),
    ];
    for (set, expected) in cases {
        assert_eq!(errors(SOUND, &[set]), expected);
    }
}

#[test]
fn algorithms_are_timed_or_taken_from_a_record() {
    let text = errors(SOUND, &["device.tune=true", "device.tuning='runs/a/tuning.json'"]);
    assert!(text.contains("device.tuning='runs/a/tuning.json': device.tune times"), "{text}");
    Job::from_toml("job.toml", SOUND, &["device.tuning='runs/a/tuning.json'"]).unwrap();
}

#[test]
fn all_contradictions_are_reported_at_once() {
    let sets = [
        "model.embedding_dim=32",
        "optimizer.schedule={ kind = 'warmup-polynomial', warmup_steps = 10, decay_start_step = 9, decay_steps = 1 }",
        "eval.target_auc=0.8",
    ];
    let expected = "\
3 problems with the job

job.toml:10:14: the bottom MLP must end with embedding_dim (32), not 16: its output interacts with the \
embeddings
   |
10 | bottom_mlp = [64, 16]
   |              ^^^^^^^^

--set optimizer.schedule={ kind = 'warmup-polynomial', warmup_steps = 10, decay_start_step = 9, decay_steps = 1 }: \
the decay starts at step 9, before the warm-up ends at step 10
  |
  | optimizer.schedule={ kind = 'warmup-polynomial', warmup_steps = 10, decay_start_step = 9, decay_steps = 1 }
  |                                                                                        ^

--set eval.target_auc=0.8: training ends at the first evaluation that reaches the target: set eval.every_steps
  |
  | eval.target_auc=0.8
  |                 ^^^";
    assert_eq!(errors(SOUND, &sets), expected);
}

#[test]
fn a_conflict_found_later_points_at_its_key_or_the_table_around_it() {
    let file = JobFile::parse("job.toml", SOUND, &NO_SETS).unwrap();
    let location = |key| file.error(&[Conflict::new(key, "")]).problems()[0].location().to_owned();
    assert_eq!(location("model.bottom_mlp"), "job.toml:10:14");
    assert_eq!(location("train.max_steps"), "job.toml:22:1");
    assert_eq!(location("eval.every_steps"), "job.toml");
}

#[test]
fn ranks_and_placements_are_refused_with_their_place() {
    assert_refused(
        "[device]\nranks = 6\nnodes = 4\n",
        &[],
        "job.toml:26:9: 4 nodes cannot have equal parts of 6 ranks",
    );
    assert_refused(
        "",
        &["device.nodes=2"],
        "--set device.nodes=2: 2 nodes cannot have equal parts of 1 rank,",
    );
    assert_refused(
        "[device]\nranks = 0\n",
        &[],
        "expected a whole number from 1 to 4096, or \"auto\", found 0",
    );
    assert_refused("", &["device.ranks=all"], "from 1 to 4096, or \"auto\", found the string \"all\"");
    assert_refused(
        "[embedding]\nplacement = \"rowwise\"\n",
        &[],
        "unknown value `rowwise` for `embedding.placement`",
    );
    let folder = "dir = \"data/criteo\"";
    let with_shape = SOUND.replace(folder, &format!("{folder}\nshape = \"dlrm\""));
    assert!(Job::from_toml("job.toml", &with_shape, &NO_SETS).is_ok());
    let generate = ["data.generate.shape=dlrm", "data.generate.samples=5"];
    let refused = errors(&with_shape, &generate);
    assert!(refused.contains("job.toml:6:9: data.generate.shape already sets the shape"), "{refused}");
    assert_refused("[embedding]\nexchange = \"hybrid\"\n", &[], "= known values: auto, rows, pooled");
    assert_refused(
        "[[table]]\ncolumns = [\"C1\"]\nplacement = \"row-wise\"\nfrequent_rows = 10\n",
        &[],
        "a row-wise table has no frequent rows: remove",
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Job::load(Path::new("no/such/job.toml"), &NO_SETS).unwrap_err();
    assert!(error.to_string().starts_with("cannot read the job file no/such/job.toml: "), "{error}");
    assert!(error.problems().is_empty());
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let cases = [
        format!("{}x = 1", "a.".repeat(100_000)),
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}", "{a=".repeat(100_000)),
        format!("[{}a]", "a.".repeat(100_000)),
    ];
    for text in cases {
        assert!(errors(&text, &[]).contains("recursion") || errors(&text, &[]).contains("recurse"));
    }
    let set = format!("{}x=1", "a.".repeat(100_000));
    assert!(errors(SOUND, &[&set]).contains("is not a key"));
}

#[test]
fn the_jobs_in_configs_are_valid() {
    for path in jobs_in_configs() {
        if let Err(error) = Job::load(&path, &NO_SETS) {
            panic!("{error}");
        }
    }
}

/// The jobs that ship with Rankine. Their folder also has schema files.
pub(super) fn jobs_in_configs() -> Vec<PathBuf> {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut paths: Vec<_> = fs::read_dir(configs).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        path.to_str().is_some_and(|path| path.ends_with(".toml") && !path.ends_with("-schema.toml"))
    });
    assert!(paths.len() >= 4, "{paths:?}");
    paths
}

proptest! {
    #[test]
    fn no_text_panics(text in ".*", set in ".*") {
        let _ = Job::from_toml("job.toml", &text, &NO_SETS).map_err(|error| error.to_string());
        let _ = Job::from_toml("job.toml", SOUND, &[set]).map_err(|error| error.to_string());
    }

    /// Nearly sound jobs get further than noise does.
    #[test]
    fn no_damage_panics(
        at in 0..SOUND.len(),
        removed in 0usize..20,
        inserted in "[a-z_=.\\[\\]{}\"'#0-9\\n\u{e4} -]{0,6}",
    ) {
        let end = (at + removed).min(SOUND.len());
        let text = format!("{}{inserted}{}", &SOUND[..at], &SOUND[end..]);
        let _ = Job::from_toml("job.toml", &text, &NO_SETS).map_err(|error| error.to_string());
    }

    #[test]
    fn an_effective_job_loads_back_equal(job in any_job()) {
        let text = job.to_toml();
        let again = Job::from_toml("effective.toml", &text, &NO_SETS)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(again, job);
    }
}

fn placement() -> impl Strategy<Value = Placement> {
    prop_oneof![
        Just(Placement::Auto),
        Just(Placement::Replicated),
        Just(Placement::Hybrid),
        Just(Placement::RowWise),
        Just(Placement::TableWise),
        Just(Placement::ColumnWise),
    ]
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::Fp32), Just(Dtype::Bf16), Just(Dtype::Fp16)]
}

fn exchange() -> impl Strategy<Value = Exchange> {
    prop_oneof![Just(Exchange::Auto), Just(Exchange::Rows), Just(Exchange::Pooled)]
}

fn any_job() -> impl Strategy<Value = Job> {
    let count = || (1..=i64::MAX as u64).prop_map(|n| Count::new(n).unwrap());
    let non_negative = || (0.0..1e38).prop_map(|x| NonNegative::new(x).unwrap());
    let decay = || (0.0..0.999_999).prop_map(|x| Decay::new(x).unwrap());
    let fraction = || (0.0..=1.0).prop_map(|x| Fraction::new(x).unwrap());
    let positive = || (1e-37..1e38).prop_map(|x| Positive::new(x).unwrap());
    let width = || (1u32..=65_536).prop_map(|n| Width::new(n).unwrap());
    let rates = move || (non_negative(), non_negative());
    let optimizer = move || {
        prop_oneof![
            rates().prop_map(|(learning_rate, weight_decay)| Optimizer::Sgd(Sgd {
                learning_rate,
                weight_decay
            })),
            (rates(), decay(), any::<bool>()).prop_map(
                |((learning_rate, weight_decay), momentum, nesterov)| {
                    Optimizer::Momentum(Momentum { learning_rate, weight_decay, momentum, nesterov })
                }
            ),
            (rates(), non_negative(), positive()).prop_map(
                |((learning_rate, weight_decay), initial_accumulator, epsilon)| {
                    Optimizer::Adagrad(Adagrad { learning_rate, weight_decay, initial_accumulator, epsilon })
                }
            ),
            (rates(), decay(), decay(), positive()).prop_map(
                |((learning_rate, weight_decay), beta1, beta2, epsilon)| {
                    Optimizer::Adam(Adam { learning_rate, weight_decay, beta1, beta2, epsilon })
                }
            ),
            (rates(), non_negative(), non_negative(), non_negative()).prop_map(
                |((learning_rate, weight_decay), beta, l1, l2)| {
                    Optimizer::Ftrl(Ftrl { learning_rate, weight_decay, beta, l1, l2 })
                }
            ),
        ]
    };
    // What is for tables alone, too.
    let table_optimizer = move || {
        let rowwise = (rates(), non_negative(), positive()).prop_map(
            |((learning_rate, weight_decay), initial_accumulator, epsilon)| {
                Optimizer::RowwiseAdagrad(RowwiseAdagrad {
                    learning_rate,
                    weight_decay,
                    initial_accumulator,
                    epsilon,
                })
            },
        );
        prop_oneof![4 => optimizer(), 1 => rowwise]
    };
    let schedule = prop_oneof![
        Just(Schedule::Constant),
        (any::<u32>(), any::<u32>(), count(), positive(), fraction()).prop_map(
            |(warmup_steps, plateau, decay_steps, power, end_factor)| {
                Schedule::WarmupPolynomial(WarmupPolynomial {
                    warmup_steps: warmup_steps.into(),
                    decay_start_step: u64::from(warmup_steps) + u64::from(plateau),
                    decay_steps,
                    power,
                    end_factor,
                })
            }
        ),
        (fraction(), proptest::option::of(count()), any::<u32>()).prop_map(
            |(factor, every_steps, warmup_steps)| {
                let milestones = if every_steps.is_none() { [1, 2, u64::MAX / 2].as_slice() } else { &[] };
                Schedule::Step(Step {
                    factor,
                    every_steps,
                    milestones: milestones.iter().map(|&step| Count::new(step).unwrap()).collect(),
                    warmup_steps: warmup_steps.into(),
                })
            }
        ),
        (any::<u32>(), proptest::option::of(any::<u32>()), count(), fraction()).prop_map(
            |(warmup_steps, plateau, decay_steps, end_factor)| {
                Schedule::Cosine(Cosine {
                    warmup_steps: warmup_steps.into(),
                    decay_start_step: plateau.map(|steps| u64::from(warmup_steps) + u64::from(steps)),
                    decay_steps,
                    end_factor,
                })
            }
        ),
    ];
    let shape = prop_oneof![
        Just(Shape::Dlrm),
        Just(Shape::DlrmDcnv2),
        "[a-z \"'\\\\]{0,9}/[a-z]{1,9}".prop_map(|path| Shape::File(path.into())),
    ];
    let generate =
        (shape, proptest::option::of(count()), count(), any::<u64>(), non_negative(), any::<u64>()).prop_map(
            |(shape, rows_cap, samples, eval_samples, alpha, seed)| Generate {
                shape,
                rows_cap,
                samples,
                eval_samples,
                alpha,
                seed,
            },
        );
    let folder = ("[^\\x00]{1,20}", proptest::option::of(generate)).prop_map(
        |(dir, generate): (String, Option<Generate>)| Data {
            shape: (generate.is_none() && dir.len() % 2 == 0).then_some(Shape::DlrmDcnv2),
            dir: Some(dir.into()),
            raw: None,
            generate,
        },
    );
    let paths = |least| proptest::collection::vec("[^\\x00]{1,20}".prop_map(PathBuf::from), least..3);
    let raw =
        (prop_oneof![Just(Shape::Dlrm), Just(Shape::DlrmDcnv2)], proptest::option::of(count()), paths(1))
            .prop_flat_map(move |(shape, rows_cap, train)| {
                (Just(shape), Just(rows_cap), Just(train), paths(0), count(), any::<bool>(), any::<bool>())
            })
            .prop_map(|(shape, rows_cap, train, eval, labels, int, global)| {
                let dense = if int { RawDense::Int } else { RawDense::Float };
                let ids = if global { RawIds::GlobalOffset } else { RawIds::PerTable };
                Data {
                    raw: Some(Raw { shape, rows_cap, train, eval, labels, dense, ids }),
                    ..Data::default()
                }
            });
    let data = prop_oneof![folder, raw];
    let widths = move || proptest::collection::vec(width(), 0..4);
    let cross = (width(), proptest::option::of(width()));
    let model = (0..4, width(), widths(), widths(), cross).prop_map(
        |(kind, embedding_dim, mut bottom_mlp, top_mlp, (cross_layers, cross_rank))| {
            if let Some(last) = bottom_mlp.last_mut() {
                *last = embedding_dim;
            }
            match kind {
                0 => Model::Dlrm(Dlrm { embedding_dim, bottom_mlp, top_mlp }),
                1 => Model::DeepFm(DeepFm { embedding_dim, bottom_mlp, top_mlp }),
                2 => Model::WideDeep(WideDeep { embedding_dim, bottom_mlp, top_mlp }),
                _ => Model::Dcnv2(Dcnv2 { embedding_dim, bottom_mlp, cross_layers, cross_rank, top_mlp }),
            }
        },
    );
    let tables = proptest::collection::vec(
        (
            1usize..4,
            proptest::option::of("[a-z\"' ]{1,5}"),
            proptest::option::of(table_optimizer()),
            non_negative(),
            proptest::option::of(placement()),
            proptest::option::of(exchange()),
            proptest::option::of(dtype()),
            proptest::option::of(count()),
        ),
        0..4,
    )
    .prop_map(|tables| {
        let numbered = tables.into_iter().enumerate();
        let of_tables = numbered.map(
            |(
                number,
                (columns, name, optimizer, learning_rate_factor, placement, exchange, dtype, frequent_rows),
            )| Table {
                columns: (0..columns).map(|column| format!("{number} \"{column}\"")).collect(),
                name: name.map(|name| format!("{name}{number}")),
                dim: None,
                optimizer,
                learning_rate_factor,
                dtype,
                placement,
                exchange: exchange.filter(|_| placement != Some(Placement::Replicated)),
                ids_out_of_range: placement.map(|_| IdPolicy::Oov),
                oov_row: placement.map(|_| 7),
                frequent_rows: frequent_rows
                    .filter(|_| matches!(placement, None | Some(Placement::Auto | Placement::Hybrid))),
            },
        );
        of_tables.collect::<Vec<_>>()
    });
    let heads = proptest::collection::vec(positive(), 0..3).prop_map(|weights| {
        let head = |(number, weight)| Head { label: format!("label {number}"), weight };
        weights.into_iter().enumerate().map(head).collect::<Vec<_>>()
    });
    let train =
        (1u32..=16_777_216, count(), proptest::option::of(count()), count(), any::<bool>(), 1u32..=65_536)
            .prop_map(|(batch_size, epochs, max_steps, log_every_steps, shuffle, window)| Train {
                batch_size: BatchSize::new(batch_size).unwrap(),
                epochs,
                max_steps,
                log_every_steps,
                shuffle,
                shuffle_window_blocks: WindowBlocks::new(window).unwrap(),
            });
    let eval =
        proptest::option::of((count(), proptest::option::of(0.500_001..=1.0))).prop_map(|every| Eval {
            every_steps: every.map(|(steps, _)| steps),
            target_auc: every.and_then(|(_, auc)| auc).map(|auc| AucTarget::new(auc).unwrap()),
            ..Eval::default()
        });
    let mode = prop_oneof![
        Just(IoMode::Auto),
        Just(IoMode::UringDirect),
        Just(IoMode::UringBuffered),
        Just(IoMode::Pread),
        Just(IoMode::Mmap),
    ];
    let reader = (mode, 1u32..=128)
        .prop_map(|(mode, depth)| Reader { mode, queue_depth: QueueDepth::new(depth).unwrap() });
    let checkpoint =
        (
            proptest::option::of(count()),
            proptest::option::of(positive()),
            count(),
            any::<bool>(),
            count(),
            prop_oneof![Just(OnFailure::Stop), Just(OnFailure::Continue)],
        )
            .prop_map(|(every_steps, every_minutes, keep, incremental, full_every, on_failure)| {
                Checkpoint { every_steps, every_minutes, keep, incremental, full_every, on_failure }
            });
    let kind = prop_oneof![Just(DeviceKind::Auto), Just(DeviceKind::Cpu), Just(DeviceKind::Cuda)];
    let precision = prop_oneof![
        Just(Precision::Fp32),
        Just(Precision::Tf32),
        Just(Precision::Bf16),
        Just(Precision::Fp16),
        Just(Precision::Fp8)
    ];
    let kind = (kind, precision);
    let device = (kind, proptest::option::of(1u32..=4096), 1u32..=64, 1u32..=64, any::<bool>()).prop_map(
        |((kind, precision), threads, per_node, nodes, sharded)| Device {
            kind,
            precision,
            tune: sharded,
            tuning: (!sharded).then(|| "runs/a \"b\"/tuning.json".into()),
            machine: sharded.then(|| "runs/a \"b\"/machine.toml".into()),
            threads: threads.and_then(ThreadCount::new),
            ranks: RankCount::new(per_node * nodes).map_or(Ranks::Auto, Ranks::Count),
            nodes: if sharded { Ranks::Auto } else { Ranks::Count(RankCount::new(nodes).unwrap()) },
            dense_update: if sharded { DenseUpdate::Sharded } else { DenseUpdate::Replicated },
        },
    );
    let counts = || proptest::option::of(count());
    let embedding = (placement(), exchange(), dtype(), counts(), counts()).prop_map(
        |(placement, exchange, dtype, frequent_rows, sample_samples)| Embedding {
            placement,
            exchange,
            dtype,
            frequent_rows,
            sample_samples,
        },
    );
    let optimizers = (
        optimizer(),
        table_optimizer(),
        proptest::option::of(table_optimizer()),
        proptest::option::of(positive()),
        schedule,
    )
        .prop_map(|(dense, sparse, wide, dense_clip_norm, schedule)| Optimizers {
            dense,
            sparse,
            wide,
            dense_clip_norm,
            schedule,
        });
    let name = "[^./\\\\\\pC][^/\\\\\\pC]{0,20}".prop_map(|name| name.parse().unwrap());
    let model = (model, tables, heads, optimizers).prop_map(|(model, mut tables, heads, mut optimizer)| {
        if !model.is_wide() {
            optimizer.wide = None;
        }
        for (table, dim) in tables.iter_mut().zip([1, 65_536]).filter(|_| !model.wants_equal_dims()) {
            table.dim = Width::new(dim);
        }
        (model, tables, heads, optimizer)
    });
    let guard = (prop_oneof![Just(NonFinite::Stop), Just(NonFinite::Skip)], count()).prop_map(
        |(non_finite, skipped_in_a_row_max)| Guard {
            non_finite,
            skipped_in_a_row_max,
            step_timeout_s: Seconds::new(0.5).filter(|_| non_finite == NonFinite::Skip),
            barrier_timeout_s: Seconds::new(7.25).unwrap(),
            silence_timeout_s: Seconds::new(8.0).unwrap(),
            ids_out_of_range: if non_finite == NonFinite::Stop { IdPolicy::Fail } else { IdPolicy::Skip },
        },
    );
    let saving = (eval, checkpoint, guard);
    (name, any::<u64>(), data, model, embedding, train, saving, reader, device).prop_map(
        |(
            name,
            seed,
            data,
            (model, tables, heads, optimizer),
            embedding,
            train,
            (eval, checkpoint, guard),
            reader,
            device,
        )| Job {
            name,
            seed,
            data,
            model,
            tables,
            heads,
            embedding,
            optimizer,
            train,
            eval,
            checkpoint,
            guard,
            reader,
            device,
        },
    )
}

/// What is shown of a job is bounded, however many contradictions a line of any length has.
#[test]
fn not_every_contradiction_and_not_all_of_a_line_are_shown() {
    let text = format!("head = [{}]\n{SOUND}", "{ label = \"click\" }, ".repeat(301));
    let error = Job::from_toml("job.toml", &text, &NO_SETS).unwrap_err();
    assert_eq!(error.problems().len(), 101);
    let text = error.to_string();
    assert!(text.contains("200 more problems are not shown"), "{text}");
    assert!(text.contains("label click already has a head"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() < 500), "{text}");
    assert!(text.contains("1 | ...") && text.contains("label = \"click\" }, "), "{text}");
}

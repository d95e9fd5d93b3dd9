//! Values that are refused, in which words and with which place.

use super::*;

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
   = known keys: batch_size, epochs, max_steps, log_every_steps, shuffle, shuffle_window_blocks, \
validation, init_from, init_optimizer_state, early_stopping, average",
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
            "batch_size = 512",
            "batch_size = 512\n[embedding]\ndtype = \"bf61\"",
            "\
job.toml:25:9: unknown value `bf61` for `embedding.dtype`
   |
25 | dtype = \"bf61\"
   |         ^^^^^^
   = did you mean `bf16`?
   = known values: fp32, bf16, fp16",
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
  = known keys: dir, shape, raw, cache, generate",
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
   = known keys: name, seed, data, model, feature, attention, table, head, embedding, optimizer, train, eval, \
checkpoint, guard, reader, device, network, metrics",
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
        // Above the largest signed number of 64 bits.
        (
            "batch_size = 512",
            "batch_size = 9223372036854775808",
            "`train.batch_size`: expected a whole number from 1 to 16777216, found 9223372036854775808",
        ),
        (
            "[train]",
            "[eval]\ntarget_auc = 9223372036854775808\n[train]",
            "`eval.target_auc`: expected a number above 0.5 and at most 1, found 9223372036854775808",
        ),
        (
            "[train]",
            "[metrics]\nlisten = 9223372036854775808\n[train]",
            "`metrics.listen`: expected an IP address or a host name with a port, such as 127.0.0.1:9464, or a port, \
             found the string \"9223372036854775808\"",
        ),
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
        (
            "dir = \"data/criteo\"",
            "dir = 1979-05-27",
            "`data.dir`: expected a path, or a list of at least one path, found a date or time",
        ),
        ("dir = \"data/criteo\"", "dir = \"\"", "job.toml:5:7: the path is empty"),
        ("[64, 16]", "[64, 0]", "`model.bottom_mlp`: expected a whole number from 1 to 65536, found 0"),
        ("[64, 16]", "64", "`model.bottom_mlp`: expected a list, found 64"),
        (
            "[train]",
            "[train]\nvalidation = \"last:2\"",
            "`last:2` is not a split (the share must be above 0 and below 1)",
        ),
        (
            "[train]",
            "[train.early_stopping]\nmetric = \"loss\"\npatience = 1\n[train]",
            "unknown value `loss` for `train.early_stopping.metric`",
        ),
        ("[train]", "[train.early_stopping]\n[train]", "missing key `patience` in [train.early_stopping]"),
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
        (
            "dir = \"data/criteo\"",
            "raw = { shape = \"dlrm\", train = [\"b\"] }\ncache = \"gpu\"",
            "raw files are not kept on GPUs: convert them",
        ),
        (
            "dir = \"data/criteo\"",
            "dir = \"data/criteo\"\ncache = \"gpu\"\n[device]\nkind = \"cpu\"",
            "\"gpu\" keeps the training part on GPUs, and device.kind is \"cpu\"",
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
        "job.toml:27:11: column `C1` already belongs to an earlier [[table]]",
    );
    assert_refused("[[table]]\ncolumns = [\"A\", \"A\"]\n", &[], "column `A` is listed twice");
    assert_refused("[[table]]\ncolumns = []\n", &[], "a table needs at least one column");
    let twice = format!("{table}name = \"x\"\n[[table]]\ncolumns = [\"C2\"]\nname = \"x\"\n");
    assert_refused(&twice, &[], "job.toml:29:8: another table has the name `x`");
    assert_refused(
        &format!("{table}dim = 8\n"),
        &[],
        "job.toml:26:7: dim must equal model.embedding_dim (16), not 8: dlrm multiplies the vectors of all",
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
    let mean = "[[attention]]\nkind = \"mean\"\nsequence = \"S\"\n";
    assert_refused(
        &format!("{mean}{mean}"),
        &[],
        "job.toml:29:12: the sequence `S` already has an [[attention]]",
    );
    let hidden = "the kind `mean` has no key `hidden` in [attention.0]";
    assert_refused(&format!("{mean}hidden = [36]\n"), &[], hidden);
    let positions = "the kind `mean` has no key `position_embedding` in [attention.0]";
    assert_refused(&format!("{mean}position_embedding = true\n"), &[], positions);
    let widths = "`attention.0.hidden`: expected a whole number from 1 to 65536";
    let din = "[[attention]]\nkind = \"din\"\nsequence = \"S\"\nquery = [\"A\"]\nhidden = [0]\n";
    assert_refused(din, &[], widths);
    assert_refused(
        "[[head]]\nlabel = \"A\"\n[[head]]\nlabel = \"A\"\n",
        &[],
        "job.toml:27:9: the label `A` already has a head",
    );
    assert_refused(
        "[[head]]\nlabel = \"A\"\nweight = 0\n",
        &[],
        "`head.0.weight`: expected a number above 0",
    );
    let of_two = "index `2` is out of range: the list has 2 elements; indices start at 0";
    assert_refused(&format!("{table}[[table]]\ncolumns = [\"B\"]\n"), &["table.2.dim=4"], of_two);
    assert_refused(
        table,
        &["table.first.dim=4"],
        "`first` is not an index: this is a list of 1 element; indices start at 0",
    );
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
  = known keys: batch_size, epochs, max_steps, log_every_steps, shuffle, shuffle_window_blocks, \
validation, init_from, init_optimizer_state, early_stopping, average",
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

//! Jobs that are built in code, next to the same jobs in files.

use super::*;

/// A built job that lacks nothing.
fn sound() -> Settings<Job> {
    Job::builder("criteo")
        .set("seed", 7)
        .data("data/criteo")
        .model(Dlrm::new(16).bottom([64, 16]).top([128, 64]))
        .dense(Sgd::rate(24.0))
        .sparse(Adagrad::rate(0.02).set("epsilon", 1e-6))
        .batch_size(512)
}

/// [`SOUND`] with a piece of its text replaced, and lines more.
#[track_caller]
fn in_file(piece: &str, replacement: &str, lines: &str) -> Result<Job, JobError> {
    assert!(SOUND.contains(piece), "{piece}");
    Job::from_toml("job.toml", &format!("{}{lines}", SOUND.replacen(piece, replacement, 1)), &NO_SETS)
}

#[test]
fn a_built_job_is_that_of_the_file() {
    assert_eq!(sound().build().unwrap(), in_file("", "", "").unwrap());
}

#[test]
fn every_kind_of_model_is_built() {
    fn check<K: Kind<Model>>(model: Settings<K>, sizes: &str) {
        let file = in_file("kind = \"dlrm\"", &format!("kind = \"{}\"\n{sizes}", K::NAME), "").unwrap();
        assert_eq!(file.model.kind().name, K::NAME);
        assert_eq!(sound().model(model.bottom([64, 16]).top([128, 64])).build().unwrap(), file);
    }
    check(Dlrm::new(16), "");
    check(Dcnv2::new(16, 3), "cross_layers = 3");
    check(Dcnv2::new(16, 3).set("cross_rank", 8), "cross_layers = 3\ncross_rank = 8");
    check(DeepFm::new(16), "");
    check(WideDeep::new(16), "");
}

#[test]
fn every_kind_of_optimizer_is_built() {
    fn check<K: Kind<Optimizer>>(optimizer: Settings<K>, settings: &str) {
        let kind = "kind = \"adagrad\"\nlearning_rate = 0.02\nepsilon = 1e-6";
        let replacement = format!("kind = \"{}\"\nlearning_rate = 0.1\n{settings}", K::NAME);
        let file = in_file(kind, &replacement, "").unwrap();
        assert_eq!(file.optimizer.sparse.name(), K::NAME);
        assert_eq!(sound().sparse(optimizer).build().unwrap(), file);
    }
    check(Sgd::rate(0.1), "");
    check(Momentum::rate(0.1).set("nesterov", true), "nesterov = true");
    check(Adagrad::rate(0.1).set("initial_accumulator", 1), "initial_accumulator = 1");
    check(RowwiseAdagrad::rate(0.1).set("weight_decay", 0.5), "weight_decay = 0.5");
    check(Adam::rate(0.1).set("beta1", 0.8), "beta1 = 0.8");
    check(Ftrl::rate(0.1).set("l1", 1e-3), "l1 = 0.001");
}

#[test]
fn every_kind_of_schedule_is_built() {
    fn check<K: Kind<Schedule>>(schedule: Settings<K>, settings: &str) {
        let lines = format!("[optimizer.schedule]\nkind = \"{}\"\n{settings}", K::NAME);
        let file = in_file("", "", &lines).unwrap();
        assert_eq!(file.optimizer.schedule.name(), K::NAME);
        assert_eq!(sound().schedule(schedule).build().unwrap(), file);
    }
    check(
        WarmupPolynomial::settings().set("warmup_steps", 5).set("decay_start_step", 9).set("decay_steps", 20),
        "warmup_steps = 5\ndecay_start_step = 9\ndecay_steps = 20",
    );
    check(Step::settings().set("factor", 0.1).set("milestones", [3, 7]), "factor = 0.1\nmilestones = [3, 7]");
    check(Cosine::settings().set("decay_steps", 20), "decay_steps = 20");
}

#[test]
fn tables_heads_and_all_other_keys_are_built() {
    let built = sound()
        .model(WideDeep::new(16).top([128]))
        .table(Table::of(["C1", "C2"]).dim(8).optimizer(Ftrl::rate(0.5)))
        .table(Table::of(["C3"]).set("placement", "row-wise"))
        .feature(Feature::of("age", 64))
        .feature(Feature::of("age", [18.5, 25.0]).name("group"))
        .feature(Feature::of("price", "log"))
        .attention(DinAttention::new("clicks", ["C1", "C2"]).hidden([80, 40]).position_embedding(true))
        .attention(DotAttention::new("carts", ["C3"]).position_embedding(true))
        .attention(DotAttention::new("views", ["C3"]))
        .attention(MeanAttention::new("buys"))
        .head(Head::of("click"))
        .head(Head::of("buy").weight(0.5))
        .wide(Ftrl::rate(0.25))
        .epochs(3)
        .set("table.1.dim", 4)
        .set("eval.every_steps", 10)
        .set("checkpoint.keep", 5)
        .set("guard.non_finite", "skip")
        .set("device.ranks", "auto")
        .set("device.threads", 2)
        .set("metrics.listen", 9464)
        .set("reader.queue_depth", 8)
        .set("embedding.dtype", "bf16")
        .set("data.generate.shape", "dlrm")
        .set("data.generate.samples", 1000)
        .build()
        .unwrap();
    let text = r#"
        name = "criteo"
        seed = 7
        data = { dir = "data/criteo", generate = { shape = "dlrm", samples = 1000 } }
        model = { kind = "wide-deep", embedding_dim = 16, top_mlp = [128] }
        table = [
            { columns = ["C1", "C2"], dim = 8, optimizer = { kind = "ftrl", learning_rate = 0.5 } },
            { columns = ["C3"], placement = "row-wise", dim = 4 },
        ]
        feature = [
            { column = "age", buckets = 64 },
            { column = "age", buckets = [18.5, 25], name = "group" },
            { column = "price", buckets = "log" },
        ]
        attention = [
            { kind = "din", sequence = "clicks", query = ["C1", "C2"], hidden = [80, 40], position_embedding = true },
            { kind = "dot", sequence = "carts", query = ["C3"], position_embedding = true },
            { kind = "dot", sequence = "views", query = ["C3"], position_embedding = false },
            { kind = "mean", sequence = "buys" },
        ]
        head = [{ label = "click" }, { label = "buy", weight = 0.5 }]
        optimizer.dense = { kind = "sgd", learning_rate = 24 }
        optimizer.sparse = { kind = "adagrad", learning_rate = 0.02, epsilon = 1e-6 }
        optimizer.wide = { kind = "ftrl", learning_rate = 0.25 }
        train = { batch_size = 512, epochs = 3 }
        eval.every_steps = 10
        checkpoint.keep = 5
        guard.non_finite = "skip"
        device = { ranks = "auto", threads = 2 }
        metrics.listen = 9464
        reader.queue_depth = 8
        embedding.dtype = "bf16"
    "#;
    assert_eq!(built, Job::from_toml("job.toml", text, &NO_SETS).unwrap());
}

/// The message and the hints of an error, without its place.
fn words(error: &JobError) -> Vec<String> {
    let words = |problem: &Problem| {
        let text = problem.to_string();
        let text = text.strip_prefix(problem.location()).expect("the place comes first").to_owned();
        text.lines()
            .enumerate()
            .filter(|(line, text)| *line == 0 || text.trim_start().starts_with("= "))
            .map(|(_, text)| text.trim().to_owned())
            .collect::<Vec<_>>()
    };
    error.problems().iter().flat_map(words).collect()
}

#[test]
fn a_mistake_has_the_words_of_the_file() {
    let dlrm = || Dlrm::new(16).bottom([64, 16]);
    let cases = [
        (sound().batch_size(0), in_file("batch_size = 512", "batch_size = 0", "")),
        (sound().set("train.bach_size", 3), in_file("", "", "bach_size = 3")),
        (sound().dense(Sgd::rate(-1.0)), in_file("learning_rate = 24", "learning_rate = -1.0", "")),
        (sound().dense(Sgd::rate(f64::NAN)), in_file("learning_rate = 24", "learning_rate = nan", "")),
        (
            sound().dense(Sgd::rate(24.0).set("epsilon", 1e-8)),
            in_file("learning_rate = 24", "learning_rate = 24\nepsilon = 1e-8", ""),
        ),
        (
            sound().dense(RowwiseAdagrad::rate(24.0)),
            in_file("kind = \"sgd\"", "kind = \"rowwise-adagrad\"", ""),
        ),
        (sound().model(dlrm()), in_file("top_mlp = [128, 64]", "", "")),
        (sound().model(dlrm().top([0])), in_file("top_mlp = [128, 64]", "top_mlp = [0]", "")),
        (
            sound().model(Dlrm::new(8).bottom([64, 16]).top([128, 64])),
            in_file("embedding_dim = 16", "embedding_dim = 8", ""),
        ),
        (sound().set("name", "a/b"), in_file("name = \"criteo\"", "name = \"a/b\"", "")),
        (sound().set("device.kind", "gpu"), in_file("", "", "[device]\nkind = \"gpu\"")),
        (
            sound().wide(Sgd::rate(1.0)),
            in_file("", "", "[optimizer.wide]\nkind = \"sgd\"\nlearning_rate = 1.0"),
        ),
        (
            sound().table(Table::of(["a", "a"])).head(Head::of("x")).head(Head::of("x")),
            in_file(
                "",
                "",
                "[[table]]\ncolumns = [\"a\", \"a\"]\n[[head]]\nlabel = \"x\"\n[[head]]\nlabel = \"x\"",
            ),
        ),
    ];
    for (built, file) in cases {
        let (built, file) = (built.build().unwrap_err(), file.unwrap_err());
        assert_eq!(words(&built), words(&file));
        assert!(built.problems().iter().all(|problem| problem.location().starts_with("job ")), "{built}");
    }
}

#[test]
fn a_mistake_names_the_job_and_quotes_the_setting() {
    let error = sound().batch_size(0).build().unwrap_err().to_string();
    let expected = "`train.batch_size`: expected a whole number from 1 to 16777216, found 0";
    assert!(error.starts_with("job criteo:") && error.contains(expected), "{error}");
    assert!(error.contains("| batch_size = 0\n"), "{error}");
}

#[test]
fn values_that_no_file_can_have_are_errors() {
    let error = |settings: Settings<Job>| settings.build().unwrap_err().to_string();
    let none: Option<u32> = None;
    assert!(error(sound().set("train.max_steps", none)).starts_with("job criteo: `train.max_steps`: "));
    let wrong = sound().dense(Sgd::rate(1.0).set("weight_decay", none)).set("data.dir.x", 1);
    let wrong = error(wrong);
    assert!(wrong.starts_with("2 problems with the job"), "{wrong}");
    assert!(wrong.contains("`optimizer.dense.weight_decay`") && wrong.contains("`data.dir.x`"), "{wrong}");
    let far = sound().table(Table::of(["a"])).set("table.2.dim", 4);
    assert_eq!(
        error(far),
        "job criteo: `table.2.dim`: index `2` is out of range: the list has 1 element; indices start at 0"
    );
}

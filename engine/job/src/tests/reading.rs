//! What is read: defaults, `--set`, jobs with every key, and files that cannot be read.

use super::*;
use crate::Shape;

#[test]
fn what_is_not_written_has_its_default() {
    let job = Job::from_toml("job.toml", SOUND, &NO_SETS).unwrap();
    assert_eq!((job.name.as_str(), job.seed), ("criteo", 7));
    assert_eq!(job.data, Data { dir: Some(Folders::one("data/criteo")), ..Data::default() });
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
    assert_eq!(
        (job.eval.every_steps, job.eval.batch_size, job.eval.target_auc),
        (None, EvalBatchSize::Auto, None)
    );
    assert_eq!(job.eval.batch_size_on_cpu(), 8192);
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
            sample_samples: None,
            device_memory: None,
            host_memory: None,
            refresh_steps: None,
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
    assert_eq!(job.data.dir, Some(Folders::one("a/b.c=d")));
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
tier = "host"

[embedding]
placement = "row-wise"
dtype = "bf16"
frequent_rows = 1000
sample_samples = 5000
device_memory = "96GB"
host_memory = "1.5 TiB"
refresh_steps = 10_000

[device]
ranks = 6
nodes = 3
dense_update = "sharded"
bind = "off"
feed = "broadcast"
copies = "between-exchanges"

[[head]]
label = "click"

[[head]]
label = "buy"
weight = 3

[[attention]]
kind = "din"
sequence = "clicks"
query = ["C1"]

[optimizer.schedule]
kind = "cosine"
decay_steps = 1000
"#;
    let job = Job::from_toml("job.toml", &text, &["table.1.dim=32", "head.0.weight=2.5"]).unwrap();
    let [Attention::Din(attention)] = &job.attention[..] else { panic!("{:?}", job.attention) };
    assert_eq!((attention.sequence.as_str(), &attention.query[..]), ("clicks", &["C1".to_owned()][..]));
    assert_eq!(attention.hidden, [Width::new(36).unwrap()]);
    assert!(!attention.position_embedding);
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
    let Embedding { placement, exchange, dtype, frequent_rows, sample_samples, .. } = &job.embedding;
    assert_eq!((*frequent_rows, third.frequent_rows), (Count::new(1000), Count::new(7)));
    assert_eq!((*dtype, first.dtype, second.dtype), (Dtype::Bf16, None, Some(Dtype::Fp16)));
    assert_eq!(
        (*placement, *exchange, *sample_samples),
        (Placement::RowWise, Exchange::Auto, Count::new(5000))
    );
    let budgets =
        [job.embedding.device_memory.clone(), job.embedding.host_memory.clone().map(MemoryBudget::Bytes)];
    let bytes = budgets.map(|budget| match budget {
        Some(MemoryBudget::Bytes(bytes)) => bytes.get(),
        other => panic!("{other:?}"),
    });
    assert_eq!(bytes, [96_000_000_000, 3 << 39]);
    assert_eq!(job.embedding.refresh_steps, Count::new(10_000));
    assert_eq!((first.tier, third.tier), (Tier::Auto, Tier::Host));
    assert_eq!((job.topology(), job.device.dense_update), (Topology::new(6, 3), DenseUpdate::Sharded));
    assert_eq!((job.device.bind, job.device.feed), (ThreadBinding::Off, BlockFeed::Broadcast));
    assert_eq!(job.device.copies, CopyTiming::BetweenExchanges);
    assert_eq!((first.learning_rate_factor.get(), second.learning_rate_factor.get()), (1.0, 0.1));
    let heads: Vec<_> = job.heads.iter().map(|head| (head.label.as_str(), head.weight.get())).collect();
    assert_eq!(heads, [("click", 2.5), ("buy", 3.0)]);
    assert_eq!(job.optimizer.schedule.factor(500), 0.5);
    assert_eq!(Job::from_toml("effective.toml", &job.to_toml(), &NO_SETS).unwrap(), job);
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

#[test]
fn shapes_are_names_or_paths() {
    for (text, shape) in [
        ("churn", Shape::Churn),
        ("dlrm", Shape::Dlrm),
        ("dlrm-dcnv2", Shape::DlrmDcnv2),
        ("sequences", Shape::Sequences),
        ("a/dlrm", Shape::File("a/dlrm".into())),
        ("dlrm.toml", Shape::File("dlrm.toml".into())),
    ] {
        assert_eq!(text.parse(), Ok(shape.clone()));
        assert_eq!(shape.to_string(), text);
    }
    assert!("dlmr".parse::<Shape>().unwrap_err().why.contains("did you mean `dlrm`?"));
}

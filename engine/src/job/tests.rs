//! The job file from outside: what is read, what is refused and in which words.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

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
    assert_eq!(job.data, Data { dir: "data/criteo".into(), generate: None });
    assert_eq!(job.optimizer.dense, Optimizer::Sgd(Sgd { learning_rate: NonNegative::new(24.0).unwrap() }));
    assert_eq!(
        job.optimizer.sparse,
        Optimizer::Adagrad(Adagrad {
            learning_rate: NonNegative::new(0.02).unwrap(),
            initial_accumulator: NonNegative::new(0.0).unwrap(),
            epsilon: Positive::new(1e-6).unwrap(),
        })
    );
    assert_eq!(job.optimizer.schedule, Schedule::Constant);
    assert_eq!((job.train.epochs.get(), job.train.max_steps, job.train.shuffle), (1, None, true));
    assert_eq!((job.train.log_every_steps.get(), job.train.shuffle_window_blocks.get()), (100, 16));
    assert_eq!((job.eval.every_steps, job.eval.batch_size.get(), job.eval.target_auc), (None, 8192, None));
    assert_eq!((job.reader.mode, job.reader.queue_depth.get()), (ReadMode::Auto, 16));
    assert_eq!((job.device.kind, job.device.threads), (DeviceKind::Auto, None));
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
    assert_eq!(job.data.dir, PathBuf::from("a/b.c=d"));
    assert_eq!(job.model.top_mlp, [Width::new(8).unwrap()]);
    assert_eq!(job.optimizer.sparse.name(), "sgd");
    assert_eq!(job.device.threads, ThreadCount::new(3));
}

#[test]
fn the_last_set_of_a_key_wins() {
    let job = Job::from_toml("job.toml", SOUND, &["seed=1", "seed=2"]).unwrap();
    assert_eq!(job.seed, 2);
}

proptest! {
    #[test]
    fn no_text_panics(text in ".*", set in ".*") {
        let _ = Job::from_toml("job.toml", &text, &NO_SETS).map_err(|error| error.to_string());
        let _ = Job::from_toml("job.toml", SOUND, &[set]).map_err(|error| error.to_string());
    }

    /// Nearly sound jobs get further than noise does.
    #[test]
    fn no_damage_panics(at in 0..SOUND.len(), removed in 0usize..20, inserted in "[a-z_=.\\[\\]{}\"'#0-9\\n\u{e4} -]{0,6}") {
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

fn any_job() -> impl Strategy<Value = Job> {
    let count = || (1..=i64::MAX as u64).prop_map(|n| Count::new(n).unwrap());
    let non_negative = || (0.0..1e300).prop_map(|x| NonNegative::new(x).unwrap());
    let positive = || (1e-300..1e300).prop_map(|x| Positive::new(x).unwrap());
    let width = || (1u32..=65_536).prop_map(|n| Width::new(n).unwrap());
    let optimizer = || {
        prop_oneof![
            non_negative().prop_map(|learning_rate| Optimizer::Sgd(Sgd { learning_rate })),
            (non_negative(), non_negative(), positive()).prop_map(
                |(learning_rate, initial_accumulator, epsilon)| {
                    Optimizer::Adagrad(Adagrad { learning_rate, initial_accumulator, epsilon })
                }
            ),
        ]
    };
    let schedule = prop_oneof![
        Just(Schedule::Constant),
        (any::<u32>(), any::<u32>(), count(), positive(), 0.0..=1.0).prop_map(
            |(warmup_steps, plateau, decay_steps, power, end_factor)| {
                Schedule::WarmupPolynomial(WarmupPolynomial {
                    warmup_steps: warmup_steps.into(),
                    decay_start_step: u64::from(warmup_steps) + u64::from(plateau),
                    decay_steps,
                    power,
                    end_factor: Fraction::new(end_factor).unwrap(),
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
    let data = ("[^\\x00]{1,20}", proptest::option::of(generate))
        .prop_map(|(dir, generate)| Data { dir: dir.into(), generate });
    let model = (width(), proptest::collection::vec(width(), 0..4), proptest::collection::vec(width(), 0..4))
        .prop_map(|(embedding_dim, mut bottom_mlp, top_mlp)| {
            if let Some(last) = bottom_mlp.last_mut() {
                *last = embedding_dim;
            }
            Model { kind: ModelKind::Dlrm, embedding_dim, bottom_mlp, top_mlp }
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
        Just(ReadMode::Auto),
        Just(ReadMode::UringDirect),
        Just(ReadMode::UringBuffered),
        Just(ReadMode::Pread),
        Just(ReadMode::Mmap),
    ];
    let reader = (mode, 1u32..=1024)
        .prop_map(|(mode, depth)| Reader { mode, queue_depth: QueueDepth::new(depth).unwrap() });
    let kind = prop_oneof![Just(DeviceKind::Auto), Just(DeviceKind::Cpu), Just(DeviceKind::Cuda)];
    let device = (kind, proptest::option::of(1u32..=4096))
        .prop_map(|(kind, threads)| Device { kind, threads: threads.and_then(ThreadCount::new) });
    let optimizers = (optimizer(), optimizer(), schedule).prop_map(|(dense, sparse, schedule)| Optimizers {
        dense,
        sparse,
        schedule,
    });
    let name = "[^./\\\\\\pC][^/\\\\\\pC]{0,20}".prop_map(|name| name.parse().unwrap());
    (name, any::<u64>(), data, model, optimizers, train, eval, reader, device).prop_map(
        |(name, seed, data, model, optimizer, train, eval, reader, device)| Job {
            name,
            seed,
            data,
            model,
            optimizer,
            train,
            eval,
            reader,
            device,
        },
    )
}

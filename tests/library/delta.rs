//! Deltas: a model that is changed while it scores has the bits of the later model.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rankine_engine::delta::{DeltaSummary, write_delta};
use rankine_engine::ranker::{ApplyError, Ranker, RawColumn, RawColumnValues};

use crate::support::dynamic::place;
use crate::support::{Place, SUCCESS, numbers, run, train, tree, word};

/// The steps of checkpoints that deltas lead from and to; the run ends after 94.
const STEPS: [u64; 4] = [20, 40, 60, 80];
/// A user who has lost the row in step 80, and one who never had one.
const GONE: &str = "user number 5";
const NOBODY: &str = "nobody";

/// A run whose users come and go, and the deltas from each of its checkpoints to the next model.
struct Chain {
    place: Place,
    models: Vec<PathBuf>,
    deltas: Vec<(PathBuf, DeltaSummary)>,
}

impl Chain {
    fn new(sets: &[&str]) -> Self {
        let (place, job) = place();
        train(&place, &job, "run", sets).with(SUCCESS);
        let steps = STEPS.iter().map(|step| place.path(&format!("run/checkpoints/step-{step}")));
        let models: Vec<_> = steps.chain([place.path("run")]).collect();
        let deltas = models.windows(2).enumerate().map(|(number, pair)| {
            let out = place.path(&format!("delta-{number}"));
            let summary = write_delta(&pair[0], &pair[1], &out).unwrap();
            (out, summary)
        });
        let deltas = deltas.collect();
        Self { models, deltas, place }
    }
}

/// Users of all times, items and days, and users and items without a row.
fn requests() -> [Vec<String>; 3] {
    let mut next = numbers(3);
    let users: Vec<_> = (0..70).map(|user| format!("user number {user}")).collect();
    let users = [users, vec![NOBODY.into(), GONE.into()]].concat();
    let items = users.iter().map(|_| format!("i{}", next() % 60)).collect();
    let days = users.iter().map(|_| (next() % 7).to_string()).collect();
    [users, items, days]
}

fn scores(ranker: &Ranker) -> Vec<f64> {
    let columns = requests();
    let columns = columns.each_ref().map(|column| column.iter().map(String::as_str).collect::<Vec<_>>());
    score(ranker, columns.each_ref().map(Vec::as_slice))
}

/// Returns what `rankine predict` scores.
fn predicted(place: &Place, model: &Path) -> Vec<f64> {
    let [users, items, days] = requests();
    let rows =
        users.iter().zip(&items).zip(&days).map(|((user, items), day)| format!("{user},{items},{day}\n"));
    let rows = place.file("requests.csv", format!("user,items,day\n{}", rows.collect::<String>()));
    let out = place.word("predicted.csv");
    run(["predict", "--run", &word(model), &rows, "--out", &out]).with(SUCCESS);
    let text = fs::read_to_string(&out).unwrap();
    text.lines().skip(1).map(|line| line.rsplit_once(',').unwrap().1.parse().unwrap()).collect()
}

fn score(ranker: &Ranker, [users, items, days]: [&[&str]; 3]) -> Vec<f64> {
    let column = |name, texts| RawColumn { name, values: RawColumnValues::Texts(texts), offsets: None };
    let offsets: Vec<_> = (0..=items.len() as u32).collect();
    let columns = [
        column("user", users),
        RawColumn { offsets: Some(&offsets), ..column("items", items) },
        column("day", days),
    ];
    let mut scores = vec![f64::NAN; users.len()];
    ranker.score_raw(users.len(), &columns, &mut scores).unwrap();
    scores
}

fn user(ranker: &Ranker, name: &str) -> f64 {
    score(ranker, [&[name], &["i1"], &["2"]])[0]
}

#[test]
fn a_chain_of_deltas_gives_the_bits_of_the_last_model() {
    let half = "embedding.dtype=bf16";
    let ttl = "table.0.rows={ capacity = 60, evict = 'ttl', ttl_steps = 15 }";
    let dcn = "model={ kind = 'dcnv2', embedding_dim = 4, cross_layers = 2, top_mlp = [8] }";
    for sets in [&[][..], &[half], &[ttl], &[dcn, ttl]] {
        let Chain { models, deltas, place } = Chain::new(sets);
        let ranker = Ranker::load(&models[0]).unwrap();
        let mut before = scores(&ranker);
        for ((delta, summary), model) in deltas.iter().zip(&models[1..]) {
            ranker.apply(delta).unwrap();
            let (after, fresh) = (scores(&ranker), Ranker::load(model).unwrap());
            assert_eq!(after, scores(&fresh), "{sets:?}: {}", delta.display());
            assert_eq!(after, predicted(&place, model), "{sets:?}: {}", delta.display());
            assert_ne!(after, before);
            assert_eq!((ranker.steps(), summary.result.steps), (fresh.steps(), fresh.steps()));
            assert!(summary.rows > 0, "{summary:?}");
            before = after;
        }
        let all = |of: fn(&DeltaSummary) -> u64| deltas.iter().map(|(_, summary)| of(summary)).sum::<u64>();
        assert!(all(|summary| summary.admitted) > 5 && all(|summary| summary.evicted) > 5, "{deltas:?}");
        assert_eq!(user(&ranker, GONE), user(&ranker, NOBODY), "an evicted id scores as an unseen one");
        assert_ne!(user(&Ranker::load(&models[0]).unwrap(), GONE), user(&ranker, NOBODY));

        // A model is the same wherever it is saved.
        let export = place.path("export");
        let words = ["--format", "safetensors", "--out"];
        run([&["export", &word(&models[0])][..], &words, &[&word(&export)]].concat()).with(SUCCESS);
        let ranker = Ranker::load(&export).unwrap();
        deltas.iter().for_each(|(delta, _)| ranker.apply(delta).unwrap());
        assert_eq!(scores(&ranker), before);
        let whole = write_delta(&export, &models[4], place.path("whole")).unwrap();
        assert_eq!((whole.base, whole.result), (deltas[0].1.base, deltas[3].1.result));
        let ranker = Ranker::load(&models[0]).unwrap();
        ranker.apply(place.path("whole")).unwrap();
        assert_eq!(scores(&ranker), before);
    }
}

#[test]
fn a_delta_is_smaller_than_the_model_and_the_same_for_any_number_of_threads() {
    let Chain { models, deltas, place } = Chain::new(&["table.1.rows.capacity=20k"]);
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let again = place.path("again");
    one.install(|| write_delta(&models[3], &models[4], &again)).unwrap();
    assert_eq!(tree(&again), tree(&deltas[3].0));
    let model = fs::metadata(models[4].join("model/model.safetensors")).unwrap().len();
    assert!(10 * deltas[3].1.bytes < model, "{} of {model} bytes", deltas[3].1.bytes);
    // A delta between equal models has no rows, and changes nothing.
    let none = write_delta(&models[4], &models[4], place.path("none")).unwrap();
    assert_eq!((none.rows, none.admitted, none.evicted), (0, 0, 0));
    let ranker = Ranker::load(&models[4]).unwrap();
    let before = scores(&ranker);
    ranker.apply(place.path("none")).unwrap();
    assert_eq!(scores(&ranker), before);
}

#[test]
fn a_request_sees_one_model_while_deltas_are_applied() {
    let Chain { models, deltas, place: _place } = Chain::new(&[]);
    let expected: Vec<_> = models.iter().map(|model| scores(&Ranker::load(model).unwrap())).collect();
    let ranker = Ranker::load(&models[0]).unwrap();
    let done = AtomicBool::new(false);
    let seen: [AtomicU32; 5] = Default::default();
    thread::scope(|scope| {
        let serve = || {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let scores = scores(&ranker);
                let which = expected.iter().position(|expected| scores == *expected);
                let which = which.expect("the scores are one model's");
                assert!(which >= last, "model {which} after model {last}");
                last = which;
                seen[which].fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(serve)).collect();
        // Each model is in use when the next one replaces it.
        let began = Instant::now();
        let seen_in_time = |model: usize| {
            while seen[model].load(Ordering::Relaxed) < 5 && began.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(1));
            }
            seen[model].load(Ordering::Relaxed) >= 5
        };
        let deltas = deltas.iter().enumerate();
        let applied = deltas.map(|(number, (delta, _))| seen_in_time(number) && ranker.apply(delta).is_ok());
        let applied = applied.collect::<Vec<_>>() == [true; 4] && seen_in_time(4);
        done.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(applied, "{seen:?}");
    });
}

#[test]
fn of_several_appliers_one_succeeds() {
    let Chain { models, deltas, place: _place } = Chain::new(&[]);
    let ranker = Ranker::load(&models[0]).unwrap();
    let delta = &deltas[0].0;
    let applied: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| ranker.apply(delta).is_ok())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(applied.iter().filter(|&&applied| applied).count(), 1);
    assert_eq!(scores(&ranker), scores(&Ranker::load(&models[1]).unwrap()));
}

#[test]
fn a_delta_of_another_model_and_a_damaged_one_change_nothing() {
    let Chain { models, deltas, place } = Chain::new(&[]);
    let ranker = Ranker::load(&models[1]).unwrap();
    let before = scores(&ranker);
    let refusal = |path: &Path, words: &str| {
        let error = ranker.apply(path).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((scores(&ranker), ranker.steps()), (before.clone(), 40));
        error
    };
    refusal(
        &deltas[0].0,
        "changes the model of step 20, but the model of step 40, to which it leads, is scoring",
    );
    let other = refusal(&deltas[2].0, "changes the model of step 60, but the model of step 40 is scoring");
    assert!(matches!(other, ApplyError::OtherBase { base: 60, .. }));
    refusal(&place.path("missing"), "no delta at");
    refusal(&models[2], "no delta at");
    // Any byte that differs is found before anything changes.
    let (delta, copy) = (&deltas[1].0, place.path("copy"));
    let mut next = numbers(5);
    let files = tree(delta);
    let damage: Vec<_> = files
        .iter()
        .flat_map(|(name, bytes)| {
            let mut at = |share: u64| (next() % (bytes.len() as u64 / share).max(1)) as usize;
            [0, at(1), at(1), at(1), at(1), at(4), at(16), bytes.len() - 1].map(|place| (name, place))
        })
        .collect();
    for (name, at) in damage {
        fs::create_dir_all(&copy).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(copy.join(name), bytes).unwrap());
        let mut bytes = files[name].clone();
        bytes[at] ^= 4;
        fs::write(copy.join(name), &bytes).unwrap();
        refusal(&copy, "");
        bytes.truncate(at / 2);
        fs::write(copy.join(name), bytes).unwrap();
        refusal(&copy, "");
        fs::remove_file(copy.join(name)).unwrap();
        refusal(&copy, "");
    }
    ranker.apply(delta).unwrap();
    assert_eq!(scores(&ranker), scores(&Ranker::load(&models[2]).unwrap()));
    // A model of the same step, whose weights differ.
    let (job, short) = (place.word("job.toml"), "train.max_steps=80");
    train(&place, &job, "other", &["optimizer.sparse.learning_rate=0.2", short]).with(SUCCESS);
    let ranker = Ranker::load(place.path("other/checkpoints/step-80")).unwrap();
    let error = ranker.apply(&deltas[3].0).unwrap_err();
    assert!(error.to_string().contains("another model of that step is scoring"), "{error}");
    train(&place, &job, "larger", &["table.1.rows.capacity=2k", short]).with(SUCCESS);
    let ranker = Ranker::load(place.path("larger/checkpoints/step-80")).unwrap();
    let error = ranker.apply(&deltas[3].0).unwrap_err();
    assert!(error.to_string().contains("one of other columns or sizes is scoring"), "{error}");
}

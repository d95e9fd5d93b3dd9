//! Settings that contradict each other.

use super::*;

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
    refused(&["eval.target_auc=0.8"], "set eval.every");
    sound(&["eval.target_auc=0.8", "eval.every='epoch'"]);
    refused(&["eval.every=0.5", "eval.every_steps=1"], "set only one of them");
    sound(&["train.early_stopping={ patience = 2 }", "eval.every_steps=1"]);
    refused(&["train.early_stopping={ patience = 2 }"], "early stopping compares evaluations");
    sound(&["train.average={ kind = 'ema', every_steps = 10, decay = 0.5 }"]);
    refused(
        &["train.average={ kind = 'last', every_steps = 10, decay = 0.5 }"],
        "all snapshots count the same: remove decay",
    );
    let refit = "train.early_stopping={ patience = 2, refit = true }";
    sound(&[refit, "eval.every_steps=1", "train.validation='last:0.1'"]);
    refused(
        &[refit, "eval.every_steps=1"],
        "no samples are held out, so the model is already trained on all of them",
    );
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
    sound(&["embedding.device_memory=auto", "embedding.host_memory=128GB"]);
    sound(&["embedding.host_memory=128GB", &table("tier = \"host\"")]);
    refused(
        &["embedding.host_memory=128GB"],
        "no rows are kept in host memory: set embedding.device_memory, too",
    );
    refused(
        &["embedding.host_memory=128GB", &table("tier = \"device\"")],
        "no rows are kept in host memory: set embedding.device_memory, too",
    );
    sound(&["embedding.device_memory=auto", "embedding.refresh_steps=1000"]);
    refused(
        &["embedding.refresh_steps=1000", &table("tier = \"host\"")],
        "which rows GPUs store is not chosen by look-ups: set it, too",
    );
    refused(&["embedding.device_memory=most"], "a size such as 512MiB, 1.5GiB or 80GB, or \"auto\"");
    refused(&["embedding.host_memory=auto"], "a size such as 512MiB, 1.5GiB or 80GB");
    sound(&[&table("dim = 16")]);
    refused(&[&table("dim = 17")], "dim must equal model.embedding_dim (16), not 17: dlrm multiplies");
    sound(&[&table("dim = 17"), "model.kind=wide-deep"]);
    // The same name, given and made of the columns.
    let named = "table=[{ columns = [\"A\", \"B\"] }, { columns = [\"C\"], name = \"A+B\" }]";
    refused(&[named], "another table has the name `A+B`");
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
fn algorithms_are_timed_or_taken_from_a_record() {
    let text = errors(SOUND, &["device.tune=true", "device.tuning='runs/a/tuning.json'"]);
    assert!(text.contains("device.tuning='runs/a/tuning.json': device.tune times"), "{text}");
    Job::from_toml("job.toml", SOUND, &["device.tuning='runs/a/tuning.json'"]).unwrap();
}

#[test]
fn only_gpus_can_require_sums_by_the_network() {
    let text = errors(SOUND, &["network.collnet='require'", "device.kind='cpu'"]);
    assert!(text.contains("\"require\" needs GPUs on several nodes"), "{text}");
    let with = |sets: &[&str]| Job::from_toml("job.toml", SOUND, sets).unwrap();
    for (collnet, requires_gpus) in [("off", false), ("auto", false), ("require", true)] {
        let collnet = format!("network.collnet='{collnet}'");
        assert_eq!(with(&[&collnet]).requires_gpus(), requires_gpus, "{collnet}");
    }
    assert_eq!(with(&[]).network.collnet, CollNet::Off);
    with(&["network.collnet='auto'", "device.kind='cpu'"]);
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
the decay starts at step 9, before the warm-up ends at step 10: raise decay_start_step, or lower warmup_steps
  |
  | optimizer.schedule={ kind = 'warmup-polynomial', warmup_steps = 10, decay_start_step = 9, decay_steps = 1 }
  |                                                                                        ^

--set eval.target_auc=0.8: training ends at the first evaluation that reaches the target: set eval.every
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
        "job.toml:26:9: 6 ranks cannot be divided evenly among 4 nodes",
    );
    assert_refused(
        "",
        &["device.nodes=2"],
        "--set device.nodes=2: 1 rank cannot be divided evenly among 2 nodes:",
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

/// What is shown of a job is bounded, however many contradictions a line of any length has.
#[test]
fn not_every_contradiction_and_not_all_of_a_line_are_shown() {
    let text = format!("head = [{}]\n{SOUND}", "{ label = \"click\" }, ".repeat(301));
    let error = Job::from_toml("job.toml", &text, &NO_SETS).unwrap_err();
    assert_eq!(error.problems().len(), 101);
    let text = error.to_string();
    assert!(text.contains("200 more problems are not shown"), "{text}");
    assert!(text.contains("label `click` already has a head"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() < 500), "{text}");
    assert!(text.contains("1 | ...") && text.contains("label = \"click\" }, "), "{text}");
}

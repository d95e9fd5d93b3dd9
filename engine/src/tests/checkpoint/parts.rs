//! The parts of a checkpoint: pieces, shards, and the base of an incremental one.

use rankine_base::sealed;
use rankine_checkpoint::{index, manifest};
use rankine_embedding::rows::RowSet;
use rankine_topology::Rank;

use super::*;

/// Saves the part of a model's state that `choose` selects.
fn save_part(
    files: &Arc<dyn Files>,
    model: &CpuModel,
    manifest: &Manifest,
    choose: impl Fn(RankState<'_>) -> Result<ShardFiles, CheckpointError> + Sync,
) -> PublishedCheckpoint {
    let draft = Draft::begin(Arc::clone(files), Path::new(DIR), manifest.train.step).unwrap();
    let shards = model.on_each_rank(|_, state| choose(state)).unwrap();
    draft.publish(manifest.clone(), shards, &[]).unwrap()
}

fn open(files: &Arc<dyn Files>, step: u64) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(files, &Path::new(DIR).join(step_name(step)))
}

/// Dense parameters and rows of more than 8 MiB each are restored exactly, state included.
#[test]
fn what_takes_several_pieces_comes_back() {
    let (_, files) = simulated();
    let mut spec = spec();
    // 12 bytes per parameter with Adam's state, and 40 per row with Adagrad's.
    spec.top_mlp = vec![850, 850];
    spec.tables[0].rows = 300_000;
    let learning = learning(spec);
    let manifest =
        Manifest { tables: TableState::all(&learning), spec: learning.spec.clone(), ..manifest(1, None) };
    let mut model = CpuModel::initialized(&learning, 3);
    model.train_step(&batches()[0], 1.0).unwrap();
    save_part(&files, &model, &manifest, |state| {
        let path = draft_path(Path::new(DIR), 1);
        write_shard(&*files, &path, Rank(0), &manifest, (&state, &Chosen::all(&state)))
    });
    let checkpoint = open(&files, 1).unwrap();
    let pieces = &checkpoint.shards()[0].pieces;
    let dense = |piece: &&PieceEntry| matches!(piece.contents, PieceContents::Dense { .. });
    let rows = |piece: &&PieceEntry| matches!(piece.contents, PieceContents::Rows { table: 0, .. });
    assert_eq!((pieces.iter().filter(dense).count(), pieces.iter().filter(rows).count()), (2, 2));
    checkpoint.verify().unwrap();
    let mut back = CpuModel::initialized(&learning, 4);
    assert_ne!(fingerprint(&back), fingerprint(&model));
    let dense = checkpoint.dense().unwrap();
    back.restore(1, &dense, Vec::new(), |rows| checkpoint.load_rows(rows)).unwrap();
    assert_eq!(fingerprint(&back), fingerprint(&model));
}

/// A checkpoint has all parts of a model; otherwise it is damaged.
#[test]
fn what_lacks_parts_of_the_model_is_refused() {
    let (_, files) = simulated();
    let whole = |step| manifest(step, None);
    let (rows_alone, dense_alone) = (whole(1), whole(2));
    let path = |step| draft_path(Path::new(DIR), step);
    save_part(&files, &fresh(), &rows_alone, |state| {
        let chosen = Chosen::all(&state);
        let state = RankState { dense: Vec::new(), ..state };
        write_shard(&*files, &path(1), Rank(0), &rows_alone, (&state, &chosen))
    });
    save_part(&files, &fresh(), &dense_alone, |state| {
        let mut chosen = Chosen::all(&state);
        chosen.rows.retain(|choice| choice.part != 1);
        write_shard(&*files, &path(2), Rank(0), &dense_alone, (&state, &chosen))
    });
    for (step, words) in [(1, "have 0 dense parameters"), (2, "have only 0 elements of embedding.T1")] {
        let error = open(&files, step).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(words), "{error}");
    }
}

/// Steps 2 and 4 of a training; the second checkpoint is incremental and builds on the first.
fn addition(files: &Arc<dyn Files>) -> (CpuModel, Base) {
    let (batches, mut model) = (batches(), fresh());
    model.train_step(&batches[0], 1.0).unwrap();
    let base = Base { step: 2, xxh3: save(files, &model, 2, None).unwrap().xxh3 };
    model.begin_tracking();
    model.train_step(&batches[1], 1.0).unwrap();
    save(files, &model, 4, Some(base.clone())).unwrap();
    (model, base)
}

/// An incremental checkpoint can only be used with its own base.
#[test]
fn an_addition_is_refused_with_another_base() {
    let (_, files) = simulated();
    let (model, base) = addition(&files);
    assert_eq!(fingerprint(&loaded(&open(&files, 4).unwrap())), fingerprint(&model));
    // Another one of the same step and model.
    files.rename(&Path::new(DIR).join("step-2"), Path::new("elsewhere")).unwrap();
    save(&files, &fresh(), 2, None).unwrap();
    let error = open(&files, 4).unwrap_err();
    assert!(
        error.is_damage()
            && error.to_string().contains("it builds on a step-2 checkpoint that is not the existing one"),
        "{error}"
    );
    // An incremental checkpoint on top of an incremental one.
    let addition =
        Base { step: 4, xxh3: save(&files, &model, 6, Some(base)).map(|saved| saved.xxh3).unwrap() };
    save(&files, &model, 8, Some(Base { step: 6, ..addition })).unwrap();
    let error = open(&files, 8).unwrap_err();
    assert!(
        error.is_damage()
            && error.to_string().contains("it builds on a step-6 checkpoint that is not the existing one"),
        "{error}"
    );
    // A checkpoint of another model with equally many parameters.
    let mut renamed = manifest(9, None);
    renamed.spec.tables[0].name = "renamed".into();
    renamed.tables[0].table.name = "renamed".into();
    let path = draft_path(Path::new(DIR), 9);
    let saved = save_part(&files, &fresh(), &renamed, |state| {
        write_shard(&*files, &path, Rank(0), &renamed, (&state, &Chosen::all(&state)))
    });
    save(&files, &model, 10, Some(Base { step: 9, xxh3: saved.xxh3 })).unwrap();
    let error = open(&files, 10).unwrap_err();
    assert!(
        error.is_damage() && error.to_string().contains("it builds on a checkpoint of a different model"),
        "{error}"
    );
}

/// Damage in the base is damage of the incremental checkpoints.
#[test]
fn an_addition_to_a_damaged_checkpoint_is_passed_over() {
    let (disk, files) = simulated();
    let (model, _) = addition(&files);
    save(&files, &model, 1, None).unwrap();
    assert_eq!(latest(&files, Path::new(DIR)).unwrap().0.unwrap().manifest().train.step, 4);
    flip_a_bit(&disk, 2);
    let (found, damaged) = latest(&files, Path::new(DIR)).unwrap();
    assert_eq!(found.unwrap().manifest().train.step, 1);
    assert_eq!(damaged.iter().map(|damaged| damaged.step).collect::<Vec<_>>(), [4, 2]);
}

/// A step has one name: other spellings of the number name something else.
#[test]
fn other_spellings_are_no_checkpoints() {
    let (_, files) = three();
    for name in ["step-07", "step-+9", "step-", "step--8", "step-9 ", "Step-10", "step-11.partial"] {
        files.create_dir(&Path::new(DIR).join(name)).unwrap();
    }
    let steps: Vec<_> = list(&*files, Path::new(DIR)).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [6, 4, 2]);
}

/// The report of a published checkpoint has its step, path, size in bytes and checksum.
#[test]
fn publishing_reports_the_checkpoint() {
    let (_, files) = simulated();
    let saved = save(&files, &fresh(), 3, None).unwrap();
    let bytes = files.tree_bytes(&saved.path).unwrap();
    let checkpoint = open(&files, 3).unwrap();
    assert_eq!((saved.step, saved.bytes, saved.xxh3, saved.base), (3, bytes, checkpoint.xxh3(), None));
    let totals = checkpoint.verify().unwrap();
    let pieces = checkpoint.shards()[0].pieces.len();
    // The manifest, the job, the shard and its index.
    assert_eq!(totals, Totals { files: 4, pieces, bytes });
}

/// Changes a file of a checkpoint; returns its new length and checksum.
fn rewrite(disk: &Simulated, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> (u64, Checksum) {
    let mut of_file = (0, Checksum(0));
    disk.change(path, |bytes| {
        change(bytes);
        of_file = (bytes.len() as u64, Checksum::of(bytes));
    });
    of_file
}

/// Changes what the index of the first shard and the manifest say, with checksums that hold.
fn reseal(disk: &Simulated, step: u64, of_shard: impl Fn(&mut ShardIndex), of_all: impl Fn(&mut Manifest)) {
    let dir = Path::new(DIR).join(step_name(step));
    let (index_bytes, xxh3) = rewrite(disk, &dir.join("shard-00000.json"), |bytes| {
        let mut content = sealed::from_json(index::KIND, index::FORMAT, bytes).unwrap();
        of_shard(&mut content);
        *bytes = sealed::to_json(index::KIND, index::FORMAT, &content).into_bytes();
    });
    rewrite(disk, &dir.join(MANIFEST_NAME), |bytes| {
        let mut content: Manifest = sealed::from_json(manifest::KIND, manifest::FORMAT, bytes).unwrap();
        (content.shards[0].bytes, content.shards[0].xxh3) = (index_bytes, xxh3);
        of_all(&mut content);
        *bytes = sealed::to_json(manifest::KIND, manifest::FORMAT, &content).into_bytes();
    });
}

/// Descriptions with valid checksums that do not fit the model are refused before anything is read by them.
#[test]
fn what_a_manifest_or_an_index_says_wrongly_is_refused() {
    type OfShard = fn(&mut ShardIndex);
    type OfAll = fn(&mut Manifest);
    fn rows(index: &mut ShardIndex, change: impl Fn(&mut SavedRows, &mut (usize, usize))) {
        let of_first_table = index.pieces.iter_mut().find_map(|piece| match &mut piece.contents {
            PieceContents::Rows { table: 0, rows, columns, .. } => Some((rows, columns)),
            _ => None,
        });
        let (rows, columns) = of_first_table.unwrap();
        change(rows, columns);
    }
    fn first(rows: &mut SavedRows) -> &mut u64 {
        let SavedRows::Every { first, .. } = rows else { panic!("{rows:?}") };
        first
    }
    let none_of_shard: OfShard = |_| ();
    let none_of_all: OfAll = |_| ();
    let cases: [(&str, OfShard, OfAll); 10] = [
        ("does not belong to this model", |index| rows(index, |rows, _| *first(rows) += 1), none_of_all),
        ("does not belong to this model", |index| rows(index, |_, columns| *columns = (1, 5)), none_of_all),
        ("does not belong to this model", |index| rows(index, |_, columns| *columns = (2, 2)), none_of_all),
        (
            "does not belong to this model",
            |index| {
                let PieceContents::Dense { dense_first, .. } = &mut index.pieces[0].contents else {
                    panic!("{index:?}")
                };
                *dense_first += 1;
            },
            none_of_all,
        ),
        ("is the index of another shard", |index| index.name = "shard-00001.safetensors".into(), none_of_all),
        ("is not in the checkpoint's folder", none_of_shard, |all| all.files[0].name = "../job.toml".into()),
        ("is not in the checkpoint's folder", none_of_shard, |all| all.files[0].name = ".job.toml".into()),
        ("not those of the model", none_of_shard, |all| all.tables[0].table.rows -= 1),
        ("no optimizer keeps that much state", none_of_shard, |all| {
            all.dense.state = ["a", "b", "c"].map(Into::into).into()
        }),
        ("exceed what a training run can count", none_of_shard, |all| all.train.position.epoch = u64::MAX),
    ];
    for (number, (words, of_shard, of_all)) in cases.into_iter().enumerate() {
        let (disk, files) = three();
        reseal(&disk, 6, none_of_shard, none_of_all);
        open(&files, 6).unwrap().verify().unwrap();
        reseal(&disk, 6, of_shard, of_all);
        let error = open(&files, 6).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(words), "case {number}: {error}");
    }
}

/// An incremental checkpoint need not have all rows, but has those that its file has, and no others.
#[test]
fn what_the_index_of_an_addition_says_wrongly_is_refused() {
    type OfShard = fn(&mut ShardIndex);
    let cases: [(&str, OfShard); 2] = [
        ("its pieces have", |index| index.pieces.truncate(index.pieces.len() - 1)),
        // Equally many bytes: 2 weights, 6 values of state and a row number instead of 4, 4 and a row number.
        ("does not belong to this model", |index| {
            let first_table = index.pieces.iter_mut().find_map(|piece| match &mut piece.contents {
                PieceContents::Rows { table: 0, columns, states, .. } => Some((columns, states)),
                _ => None,
            });
            let (columns, states) = first_table.unwrap();
            (*columns, *states) = ((0, 2), 3);
        }),
    ];
    for (words, of_shard) in cases {
        let (disk, files) = simulated();
        addition(&files);
        reseal(&disk, 4, of_shard, |_| ());
        let error = open(&files, 4).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(words), "{error}");
    }
}

/// The row numbers in a piece of an incremental checkpoint are in the table, and ascend.
#[test]
fn lists_of_rows_are_checked() {
    for (what, wrong) in [("twice", 0u64), ("behind the last", ROWS[0])] {
        let (disk, files) = simulated();
        addition(&files);
        let checkpoint = open(&files, 4).unwrap();
        let index = &checkpoint.shards()[0];
        let is_list = |piece: &PieceEntry| {
            matches!(piece.contents, PieceContents::Rows { table: 0, .. }) && piece.contents.is_listed()
        };
        let number = index.pieces.iter().position(is_list).unwrap();
        let (begin, bytes) = (index.begins()[number] as usize, index.pieces[number].bytes as usize);
        let PieceContents::Rows { rows, .. } = index.pieces[number].contents else { unreachable!() };
        let last = begin + 8 * (rows.len() as usize - 1);
        let mut sum = Checksum(0);
        disk.change(&checkpoint.path().join(&index.name), |file| {
            // The last row becomes the first one again, or one that does not exist.
            let row = if wrong == 0 { file[begin..begin + 8].to_vec() } else { wrong.to_le_bytes().to_vec() };
            file[last..last + 8].copy_from_slice(&row);
            sum = Checksum::of(&file[begin..begin + bytes]);
        });
        reseal(&disk, 4, |index| index.pieces[number].xxh3 = sum, |_| ());
        let error = open(&files, 4).unwrap().verify().unwrap_err();
        assert!(
            error.is_damage() && error.to_string().contains("its rows are not in order"),
            "{what}: {error}"
        );
    }
}

#[test]
fn a_piece_has_the_rows_of_its_set() {
    for (rows, count) in [
        (RowSet::all(0), 0),
        (RowSet::all(7), 7),
        (RowSet::from(Vec::new()), 0),
        (RowSet::from(vec![4, 9]), 2),
    ] {
        let saved = SavedRows::of(&rows);
        assert_eq!((saved.len(), saved.is_empty()), (count, count == 0), "{rows:?}");
    }
}

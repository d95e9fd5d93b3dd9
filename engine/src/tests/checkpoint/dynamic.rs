//! Dynamic tables: ids, scores and counts are saved with the rows.

use rankine_embedding::DynamicRows;
use rankine_embedding::membership::{Eviction, SavedMembership};
use rankine_topology::Rank;

use super::*;

/// A model two of whose tables have fewer rows than ids.
fn dynamic() -> Model {
    let mut spec = spec();
    let rows = [
        DynamicRows { capacity: 9, admit_after: 2, evict: Eviction::Lfu },
        DynamicRows { capacity: 15, admit_after: 1, evict: Eviction::Ttl { steps: 2 } },
    ];
    for (table, rows) in [0, 2].into_iter().zip(rows) {
        spec.tables[table].rows = rows.table_rows();
        spec.tables[table].dynamic = Some(rows);
    }
    learning(spec)
}

fn begin(seed: u64) -> CpuModel {
    CpuModel::initialized(&dynamic(), seed)
}

fn manifest_of(step: u64, base: Option<Base>) -> Manifest {
    let model = dynamic();
    Manifest { tables: TableState::all(&model), spec: model.spec, ..manifest(step, base) }
}

/// Saves a model, as `change` changes what is chosen of it.
fn save_changed(
    files: &Arc<dyn Files>,
    model: &CpuModel,
    (step, base): (u64, Option<Base>),
    change: impl Fn(&mut Vec<TableKeys>) + Sync,
) -> PublishedCheckpoint {
    let draft = Draft::begin(Arc::clone(files), Path::new(DIR), step).unwrap();
    let manifest = manifest_of(step, base);
    let shards = model.on_each_rank(|_, state| {
        let mut chosen = if manifest.base.is_some() { Chosen::changed(&state)? } else { Chosen::all(&state) };
        change(Arc::make_mut(&mut chosen.keys));
        write_shard(&**files, draft.path(), Rank(0), &manifest, (&state, &chosen))
    });
    draft.publish(manifest, shards.unwrap(), &[]).unwrap()
}

fn open(files: &Arc<dyn Files>, step: u64) -> Checkpoint {
    Checkpoint::open(files, &Path::new(DIR).join(step_name(step))).unwrap()
}

fn memberships(model: &CpuModel) -> Vec<SavedMembership> {
    model.memberships().map(|(_, membership)| membership.saved()).collect()
}

/// The model of a checkpoint. The seed decides how rows begin that ids get later.
fn resumed(checkpoint: &Checkpoint, seed: u64) -> CpuModel {
    let mut model = begin(seed);
    let (dense, memberships) = (checkpoint.dense().unwrap(), checkpoint.memberships().unwrap());
    let steps = checkpoint.manifest().train.step;
    model.restore(steps, &dense, memberships, |rows| checkpoint.load_rows(rows)).unwrap();
    model
}

/// The bytes of a checkpoint's shard.
fn shard(files: &Arc<dyn Files>, step: u64) -> Vec<u8> {
    let path = Path::new(DIR).join(step_name(step)).join("shard-00000.safetensors");
    let input = files.open(&path).unwrap();
    let mut bytes = vec![0; input.size().unwrap() as usize];
    assert_eq!(input.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Training goes on to the bit from full and from incremental checkpoints, and an incremental one holds what changed:
/// with its base, it has all bytes of a full one.
#[test]
fn training_resumes_to_the_bit() {
    let (_, files) = simulated();
    let (batches, mut model) = (batches(), begin(3));
    let mut base = None;
    for step in 1..=9 {
        model.train_step(&batches[step as usize - 1], 1.0).unwrap();
        match step {
            3 => {
                let xxh3 = save_changed(&files, &model, (3, None), |_| {}).xxh3;
                base = Some(Base { step: 3, xxh3 });
                model.begin_tracking();
            }
            4 | 6 => drop(save_changed(&files, &model, (step, base.clone()), |_| {})),
            _ => {}
        }
        if step == 6 {
            let incremental = open(&files, 6);
            incremental.verify().unwrap();
            let loaded = resumed(&incremental, 99);
            save_changed(&files, &model, (16, None), |_| {});
            save_changed(&files, &loaded, (17, None), |_| {});
            assert!(shard(&files, 16) == shard(&files, 17), "replaying changes gives the full checkpoint");
        }
    }
    let counts: Vec<_> = model.dynamic_tables().into_iter().map(|table| table.counts).collect();
    assert!(counts.iter().all(|counts| counts.evicted > 3 && counts.admitted > 10), "{counts:?}");
    for step in [3, 4, 6] {
        let mut again = resumed(&open(&files, step), 3);
        for batch in &batches[step as usize..9] {
            again.train_step(batch, 1.0).unwrap();
        }
        assert_eq!(memberships(&again), memberships(&model), "from step {step}");
        assert_eq!(fingerprint(&again), fingerprint(&model), "from step {step}");
    }
}

/// A row that lost its id since the base is free, whatever id the base has there.
#[test]
fn rows_that_lost_their_ids_are_free() {
    let (_, files) = simulated();
    let mut model = begin(3);
    batches().iter().take(3).for_each(|batch| drop(model.train_step(batch, 1.0).unwrap()));
    let xxh3 = save_changed(&files, &model, (3, None), |_| {}).xxh3;
    model.begin_tracking();
    model.train_step(&batches()[3], 1.0).unwrap();
    let of_base = memberships(&model).swap_remove(1).keys;
    save_changed(&files, &model, (4, Some(Base { step: 3, xxh3 })), |keys| {
        let keys = &mut keys[1].saved.keys;
        keys.freed.extend(keys.rows.pop());
        keys.keys.truncate(keys.rows.len());
        keys.scores.truncate(keys.rows.len());
    });
    let (_, membership) = open(&files, 4).memberships().unwrap().swap_remove(1);
    let found = membership.saved().keys;
    assert_eq!(found.rows.len() + 1, of_base.rows.len());
    assert!(found.rows.iter().all(|row| of_base.rows.contains(row)) && found.freed.is_empty());
}

/// Ids that do not belong to the table are damage.
#[test]
fn wrong_ids_are_refused() {
    let (_, files) = simulated();
    let mut model = begin(3);
    batches().iter().take(4).for_each(|batch| drop(model.train_step(batch, 1.0).unwrap()));
    type Change = fn(&mut SavedMembership);
    let changes: [(&str, Change); 5] = [
        ("row 0 is no row of a key", |saved| saved.keys.rows[0] = 0),
        ("is no row of a key", |saved| saved.keys.rows[1] = 1 << 60),
        ("occurs twice", |saved| saved.keys.keys[1] = saved.keys.keys[0]),
        ("occurs twice", |saved| saved.keys.rows[1] = saved.keys.rows[0]),
        ("there is no shard 7", |saved| saved.sketches.shards[0] = 7),
    ];
    for (step, (words, change)) in (1..).zip(changes) {
        save_changed(&files, &model, (step, None), |keys| change(&mut keys[0].saved));
        let error = open(&files, step).memberships().unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(words), "{words}: {error}");
    }
}

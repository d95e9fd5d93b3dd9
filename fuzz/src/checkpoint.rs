//! A checkpoint: its manifest, the index of its shard, the shard, and the job beside them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine::checkpoint::{self, Disk, Files, StoredRows};
use rankine::job::Job;
use rankine::training::{TrainOptions, train};
use rankine_embedding::rows::Rows;
use serde_json::Value;

use super::dataset::small;
use super::sealed::{Seal, checksum, compact, set, vouch};
use super::{Place, Reader, said, sections};

/// The files of a checkpoint, whole or an addition to one that is there. Manifest and index are without what seals
/// them; all checksums and lengths are right.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    base: Value,
    seals: [Seal; 2],
    seeds: Vec<(&'static str, Vec<u8>)>,
    _place: Place,
}

const MANIFEST: &str = "manifest.json";
const INDEX: &str = "shard-00000.json";
const SHARD: &str = "shard-00000.safetensors";
const JOB: &str = "job.toml";

impl Reader for Checkpoint {
    const NAME: &'static str = "checkpoint";

    fn new(place: Place) -> Self {
        let run = train_small(&place, &["checkpoint.every_steps=1", "checkpoint.incremental=true"]);
        let [base, dir] = ["step-1", "step-2"].map(|name| run.join("checkpoints").join(name));
        let read = |dir: &Path, name| fs::read(dir.join(name)).unwrap();
        let seed = |dir: &Path| {
            let [manifest, index] = [MANIFEST, INDEX].map(|name| compact(&Seal::of(&read(dir, name)).1));
            let job = String::from_utf8(read(dir, JOB)).unwrap();
            // Not with a path of one machine.
            let job = job.replace(place.path("data").to_str().unwrap(), "data");
            sections::join(&[&manifest, &index, &read(dir, SHARD), job.as_bytes()])
        };
        Self {
            base: checksum(&read(&base, MANIFEST)),
            seals: [MANIFEST, INDEX].map(|name| Seal::of(&read(&dir, name)).0),
            seeds: vec![("whole", seed(&base)), ("addition", seed(&dir))],
            dir,
            _place: place,
        }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let [manifest, index, shard, job] = sections::split(bytes);
        let mut manifest: Value = serde_json::from_slice(manifest).map_err(said)?;
        let mut index: Value = serde_json::from_slice(index).map_err(said)?;
        right_index(&mut index, shard);
        let index = self.seals[1].seal(&index);
        set(&mut manifest, "/base/xxh3", self.base.clone());
        vouch(&mut manifest, "/shards", INDEX, index.as_bytes());
        vouch(&mut manifest, "/files", JOB, job);
        let manifest = self.seals[0].seal(&manifest);
        for (name, bytes) in
            [(MANIFEST, manifest.as_bytes()), (INDEX, index.as_bytes()), (SHARD, shard), (JOB, job)]
        {
            fs::write(self.dir.join(name), bytes).unwrap();
        }
        read_checkpoint(&self.dir)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        self.seeds.clone()
    }
}

/// Has an index state the checksums of its shard's header and pieces.
fn right_index(index: &mut Value, shard: &[u8]) {
    set(index, "/bytes", shard.len());
    let mut begin = index["header_bytes"].as_u64().unwrap_or(0);
    let of = |begin: u64, end: u64| shard.get(begin as usize..end as usize).map(checksum);
    if let Some(sum) = of(0, begin) {
        set(index, "/header_xxh3", sum);
    }
    for piece in index["pieces"].as_array_mut().into_iter().flatten() {
        let end = begin.saturating_add(piece["bytes"].as_u64().unwrap_or(0));
        if let Some(sum) = of(begin, end) {
            set(piece, "/xxh3", sum);
        }
        begin = end;
    }
}

/// Everything of a checkpoint, as a rank that is alone would read it.
pub fn read_checkpoint(dir: &Path) -> Result<(), String> {
    let files: Arc<dyn Files> = Arc::new(Disk);
    let checkpoint = checkpoint::Checkpoint::open(&files, dir).map_err(said)?;
    let rows = StoredRows::new(&checkpoint).map_err(said)?;
    checkpoint.dense().map_err(said)?;
    for (number, part) in rows.parts().iter().enumerate() {
        rows.read(number, 0..part.rows.len(), &mut Vec::new()).map_err(said)?;
    }
    if let Some(job) = checkpoint.text(JOB).map_err(said)? {
        Job::from_toml(JOB, &job, &[] as &[&str]).map_err(said)?;
    }
    checkpoint.verify().map(drop).map_err(said)
}

/// Trains a small model for two steps, and returns the run's folder.
pub fn train_small(place: &Place, sets: &[&str]) -> PathBuf {
    let data = small(place);
    let text = format!(
        "name = \"small\"\ndata.dir = {data:?}\n\
         model = {{ kind = \"dlrm\", embedding_dim = 2, bottom_mlp = [2], top_mlp = [2] }}\n\
         optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.03 }}\n\
         optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}\n\
         train = {{ batch_size = 4, max_steps = 2 }}\ndevice.threads = 1\n"
    );
    let job = Job::from_toml("job.toml", &text, sets).unwrap();
    let run = place.path("run");
    train(&job, TrainOptions { run_dir: Some(&run), ..TrainOptions::default() }, &mut ()).unwrap();
    run
}

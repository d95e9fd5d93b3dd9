//! A checkpoint: its manifest, the index of its shard, the shard, and its job.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine::job::Job;
use rankine_checkpoint as checkpoint;
use rankine_checkpoint::{Disk, Files, StoredRows};
use rankine_embedding::rows::Rows;
use rankine_engine::training::{TrainOptions, train};
use serde_json::Value;

use super::dataset::small;
use super::sealed::{Seal, checksum, compact, set, set_checksum};
use super::{Reader, TempFolder, error_text, sections};

/// The files of a checkpoint, either complete or an addition to an existing one. Manifest and index are the content
/// without the seal; all checksums and lengths are valid.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    base: Value,
    seals: [Seal; 2],
    seeds: Vec<(&'static str, Vec<u8>)>,
    _folder: TempFolder,
}

const MANIFEST: &str = "manifest.json";
const INDEX: &str = "shard-00000.json";
const SHARD: &str = "shard-00000.safetensors";
const JOB: &str = "job.toml";
/// Tables with ids that come, go, and are counted in two steps.
pub const DYNAMIC: &str = "table=[
    { columns = ['user'], rows = { capacity = 2, admit_after = 2, evict = 'lru' } },
    { columns = ['row'], rows = { capacity = 3, evict = 'lru' } },
]";

impl Reader for Checkpoint {
    const NAME: &'static str = "checkpoint";

    fn new(folder: TempFolder) -> Self {
        let run = train_small(&folder, &[DYNAMIC, "checkpoint.every_steps=1", "checkpoint.incremental=true"]);
        let [base, dir] = ["step-1", "step-2"].map(|name| run.join("checkpoints").join(name));
        let read = |dir: &Path, name| fs::read(dir.join(name)).unwrap();
        let seed = |dir: &Path| {
            let [manifest, index] = [MANIFEST, INDEX].map(|name| compact(&Seal::of(&read(dir, name)).1));
            let job = String::from_utf8(read(dir, JOB)).unwrap();
            // The path of one machine must not be in a seed.
            let job = job.replace(folder.path("data").to_str().unwrap(), "data");
            sections::join(&[&manifest, &index, &read(dir, SHARD), job.as_bytes()])
        };
        Self {
            base: checksum(&read(&base, MANIFEST)),
            seals: [MANIFEST, INDEX].map(|name| Seal::of(&read(&dir, name)).0),
            seeds: vec![("whole", seed(&base)), ("addition", seed(&dir))],
            dir,
            _folder: folder,
        }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let [manifest, index, shard, job] = sections::split(bytes);
        let mut manifest: Value = serde_json::from_slice(manifest).map_err(error_text)?;
        let mut index: Value = serde_json::from_slice(index).map_err(error_text)?;
        correct_checksums(&mut index, shard);
        let index = self.seals[1].seal(&index);
        set(&mut manifest, "/base/xxh3", self.base.clone());
        set_checksum(&mut manifest, "/shards", INDEX, index.as_bytes());
        set_checksum(&mut manifest, "/files", JOB, job);
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

/// Sets the checksums of the shard's header and pieces in an index.
pub fn correct_checksums(index: &mut Value, shard: &[u8]) {
    set(index, "/bytes", shard.len());
    let mut start = index["header_bytes"].as_u64().unwrap_or(0);
    let of = |start: u64, end: u64| shard.get(start as usize..end as usize).map(checksum);
    if let Some(sum) = of(0, start) {
        set(index, "/header_xxh3", sum);
    }
    for piece in index["pieces"].as_array_mut().into_iter().flatten() {
        let end = start.saturating_add(piece["bytes"].as_u64().unwrap_or(0));
        if let Some(sum) = of(start, end) {
            set(piece, "/xxh3", sum);
        }
        start = end;
    }
}

/// Reads everything of a checkpoint, as a single rank would.
pub fn read_checkpoint(dir: &Path) -> Result<(), String> {
    let files: Arc<dyn Files> = Arc::new(Disk);
    let checkpoint = checkpoint::Checkpoint::open(&files, dir).map_err(error_text)?;
    let rows = StoredRows::new(&checkpoint).map_err(error_text)?;
    checkpoint.dense().map_err(error_text)?;
    checkpoint.memberships().map_err(error_text)?;
    for (number, part) in rows.parts().iter().enumerate() {
        rows.read(number, 0..part.rows.len(), &mut Vec::new()).map_err(error_text)?;
    }
    if let Some(job) = checkpoint.text(JOB).map_err(error_text)? {
        Job::from_toml(JOB, &job, &[] as &[&str]).map_err(error_text)?;
    }
    checkpoint.verify().map(drop).map_err(error_text)
}

/// Trains a small model for two steps, and returns the run folder.
pub fn train_small(folder: &TempFolder, sets: &[&str]) -> PathBuf {
    let model = "{ kind = \"dlrm\", embedding_dim = 2, bottom_mlp = [2], top_mlp = [2] }";
    train_on(folder, &small(folder), model, sets)
}

/// Trains a small model of a dataset for two steps, and returns the run folder.
pub fn train_on(folder: &TempFolder, data: &Path, model: &str, sets: &[&str]) -> PathBuf {
    let text = format!(
        "name = \"small\"\ndata.dir = {data:?}\nmodel = {model}\n\
         optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.03 }}\n\
         optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}\n\
         train = {{ batch_size = 4, max_steps = 2 }}\ndevice.threads = 1\n"
    );
    let job = Job::from_toml("job.toml", &text, sets).unwrap();
    let run = folder.path("run");
    train(&job, TrainOptions { run_dir: Some(&run), ..TrainOptions::default() }, &mut ()).unwrap();
    run
}

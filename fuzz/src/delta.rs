//! A delta: its manifest, the index of its shard, and the shard. It is applied to a model, which then scores.

use std::fs;
use std::path::PathBuf;

use rankine_engine::delta::write_delta;
use rankine_engine::ranker::{Ranker, RawColumn, RawColumnValues};
use serde_json::Value;

use super::checkpoint::{DYNAMIC, correct_checksums, train_small};
use super::sealed::{Seal, compact, set, set_checksum};
use super::{Reader, TempFolder, error_text, sections};

/// The files of a delta. Manifest and index are the content without the seal; all checksums and lengths are valid, and
/// the base is the model that it is applied to.
#[derive(Debug)]
pub struct Delta {
    dir: PathBuf,
    model: PathBuf,
    models: Value,
    seals: [Seal; 2],
    seed: Vec<u8>,
    _folder: TempFolder,
}

const MANIFEST: &str = "delta.json";
const INDEX: &str = "shard-00000.json";
const SHARD: &str = "shard-00000.safetensors";

impl Reader for Delta {
    const NAME: &'static str = "delta";

    fn new(folder: TempFolder) -> Self {
        let run = train_small(&folder, &[DYNAMIC, "checkpoint.every_steps=1"]);
        let (model, dir) = (run.join("checkpoints/step-1"), folder.path("delta"));
        write_delta(&model, &run, &dir).unwrap();
        let [manifest, index] = [MANIFEST, INDEX].map(|name| Seal::of(&fs::read(dir.join(name)).unwrap()));
        let shard = fs::read(dir.join(SHARD)).unwrap();
        let seed = sections::join(&[&compact(&manifest.1), &compact(&index.1), &shard]);
        let models = manifest.1["models"].clone();
        Self { dir, model, models, seals: [manifest.0, index.0], seed, _folder: folder }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let [manifest, index, shard] = sections::split(bytes);
        let mut manifest: Value = serde_json::from_slice(manifest).map_err(error_text)?;
        let mut index: Value = serde_json::from_slice(index).map_err(error_text)?;
        correct_checksums(&mut index, shard);
        let index = self.seals[1].seal(&index);
        for name in ["base", "columns"] {
            set(&mut manifest, &format!("/models/{name}"), self.models[name].clone());
        }
        set_checksum(&mut manifest, "/shards", INDEX, index.as_bytes());
        let manifest = self.seals[0].seal(&manifest);
        for (name, bytes) in [(MANIFEST, manifest.as_bytes()), (INDEX, index.as_bytes()), (SHARD, shard)] {
            fs::write(self.dir.join(name), bytes).unwrap();
        }
        let ranker = Ranker::load(&self.model).map_err(error_text)?;
        ranker.apply(&self.dir).map_err(error_text)?;
        let texts = |name, texts| RawColumn { name, values: RawColumnValues::Texts(texts), offsets: None };
        let columns = [
            RawColumn { name: "price", values: RawColumnValues::Numbers(&[1.5, f64::NAN]), offsets: None },
            texts("user", &["user 1", "user 9"]),
            RawColumn { offsets: Some(&[0, 1, 2]), ..texts("tags", &["a", "b"]) },
            texts("row", &["9", "0"]),
        ];
        ranker.score_raw(2, &columns, &mut [0.0; 2]).map_err(error_text)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![("whole", self.seed.clone())]
    }
}

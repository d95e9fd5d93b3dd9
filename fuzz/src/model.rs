//! A saved model: its manifest, weights, a vocabulary, and rows to predict.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rankine_base::sealed::Checksum;
use rankine_checkpoint::striped_checksum;
use rankine_engine::prediction::{PredictionOptions, Predictions, RowOptions, predict_rows};
use rankine_reader::convert::BadLimit;
use rankine_saved::SavedModel;
use serde_json::Value;

use super::checkpoint::train_small;
use super::sealed::{Seal, compact, set, set_checksum};
use super::{Reader, TempFolder, error_text, sections};

/// The files of a model and a file of rows; the manifest is the content without the seal, and its checksums and
/// lengths are valid.
#[derive(Debug)]
pub struct Model {
    dir: PathBuf,
    seal: Seal,
    seed: Vec<u8>,
    folder: TempFolder,
}

const MANIFEST: &str = "model.json";
const WEIGHTS: &str = "model.safetensors";
const VOCABULARY: &str = "vocabulary/user.tsv";
const ROWS: &[u8] = b"price,user,tags,row\n3.25,user 1,a|c,9\n,unknown,,0\n";

impl Reader for Model {
    const NAME: &'static str = "model";

    fn new(folder: TempFolder) -> Self {
        let dir = train_small(&folder, &[]).join("model");
        let (seal, manifest) = Seal::of(&fs::read(dir.join(MANIFEST)).unwrap());
        let [weights, vocabulary] = [WEIGHTS, VOCABULARY].map(|name| fs::read(dir.join(name)).unwrap());
        let seed = sections::join(&[&compact(&manifest), &weights, &vocabulary, ROWS]);
        Self { dir, seal, seed, folder }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let [manifest, weights, vocabulary, rows] = sections::split(bytes);
        let mut manifest: Value = serde_json::from_slice(manifest).map_err(error_text)?;
        set(&mut manifest, "/weights/bytes", weights.len());
        let stripe_bytes = manifest.pointer("/weights_stripe_bytes").and_then(Value::as_u64).unwrap_or(0);
        let sum = match stripe_bytes as usize {
            0 => Checksum::of(weights),
            stripe_bytes => striped_checksum(weights, stripe_bytes),
        };
        set(&mut manifest, "/weights/xxh3", sum.to_string());
        set_checksum(&mut manifest, "/vocabularies", VOCABULARY, vocabulary);
        for (name, bytes) in
            [(MANIFEST, self.seal.seal(&manifest).as_bytes()), (WEIGHTS, weights), (VOCABULARY, vocabulary)]
        {
            fs::write(self.dir.join(name), bytes).unwrap();
        }
        let rows = self.folder.file("rows", rows);
        let out = self.folder.path("predictions.csv");
        let outcome = read_model(&self.dir, &rows, &out);
        let _ = fs::remove_file(out);
        outcome
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![("whole", self.seed.clone())]
    }
}

/// Opens and loads a model, and predicts rows with it.
pub fn read_model(dir: &Path, rows: &Path, out: &Path) -> Result<(), String> {
    let saved = SavedModel::open(dir).map_err(error_text)?;
    let encoder = saved.encoder(dir).map_err(error_text)?;
    let model = saved.load(dir).map_err(error_text)?;
    let Some(format) = &saved.format else { return Ok(()) };
    let mut predictions =
        Predictions::create(model, &saved.schema, PredictionOptions::default(), out).map_err(error_text)?;
    let options =
        RowOptions { batch_size: 16, threads: NonZeroUsize::MIN, bad_limit: Some(BadLimit::Percent(100.0)) };
    let silent = |_: &'static str, _: u64, _: u64| ();
    predict_rows(&mut predictions, &[rows.to_owned()], format, &encoder, &options, &silent)
        .map_err(error_text)?;
    predictions.finish().map(drop).map_err(error_text)
}

//! The files of a fit's vocabulary: its text and its index, which is mapped and in which categories are looked up.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use rankine_reader::convert::{ConvertOptions, Encoder, RawReader, SchemaFile, fit_csv};
use rankine_reader::ids::IdRules;
use serde_json::Value;

use super::sealed::{Seal, set, set_checksum};
use super::{Reader, TempFolder, error_text, sections};

/// A folder with a fit. Its manifest states the checksums and the rows of the files as they are.
#[derive(Debug)]
pub struct Fit {
    dir: PathBuf,
    rows: PathBuf,
    seal: Seal,
    content: Value,
    _folder: TempFolder,
}

const MANIFEST: &str = "fit.json";
const VOCABULARY: &str = "vocabulary/c.tsv";
const INDEX: &str = "vocabulary/c.index";
const SCHEMA: &str = "label = { column = \"y\" }\ncategorical = [{ column = \"c\" }]";
/// Categories of all kinds.
const ROWS: &str =
    "y,c\n1,\n0,a\n1,68fd1e64\n0,five5\n1,eleven chars\n0,more than fifteen bytes\n0,68fd1e64\n";
/// Where an index has the rows of the table.
const TABLE_ROWS: std::ops::Range<usize> = 16..24;

impl Reader for Fit {
    const NAME: &'static str = "fit";

    fn new(folder: TempFolder) -> Self {
        let (rows, dir) = (folder.file("rows.csv", ROWS), folder.path("fit"));
        let schema = SchemaFile::parse("schema.toml", SCHEMA).unwrap();
        fit_csv(&ConvertOptions::new(vec![rows.clone()], dir.clone()), &schema, 1, &()).unwrap();
        let (seal, content) = Seal::of(&fs::read(dir.join(MANIFEST)).unwrap());
        Self { dir, rows, seal, content, _folder: folder }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let [vocabulary, index] = sections::split(bytes);
        let mut content = self.content.clone();
        for (list, name, bytes) in [("/vocabularies", VOCABULARY, vocabulary), ("/indexes", INDEX, index)] {
            set_checksum(&mut content, list, name, bytes);
            fs::write(self.dir.join(name), bytes).unwrap();
        }
        if let Some(rows) = index.get(TABLE_ROWS).and_then(|rows| rows.try_into().ok()) {
            set(&mut content, "/schema/categorical/0/rows", u64::from_le_bytes(rows));
        }
        fs::write(self.dir.join(MANIFEST), self.seal.seal(&content)).unwrap();
        let fit = rankine_reader::Fit::open(&self.dir).map_err(error_text)?;
        let encoder = Encoder::of_fit(&fit).map_err(error_text)?;
        // Whatever is accepted gives rows of the table.
        let reader = RawReader {
            format: &fit.origin().format,
            schema: fit.schema(),
            encoder: &encoder,
            ids: &IdRules::default(),
            labelled: true,
            keep: &[],
            threads: NonZeroUsize::MIN,
        };
        let column = &fit.schema().categorical[0];
        let read = reader.read(std::slice::from_ref(&self.rows), &(), |chunk| {
            let ids = &chunk.samples.categorical[0].ids;
            assert!(ids.iter().all(|&id| column.admits(id)), "{ids:?} are not in the {}", column.table());
            Ok::<_, rankine_base::Error>(())
        });
        read.map(drop).map_err(error_text)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let [vocabulary, index] = [VOCABULARY, INDEX].map(|name| fs::read(self.dir.join(name)).unwrap());
        vec![("whole", sections::join(&[&vocabulary, &index]))]
    }
}

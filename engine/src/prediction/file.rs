//! The file of predictions: CSV with a column `row` and one column per head. It appears only when it is complete.

use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use rankine_reader::publish::PartialFile;

use super::error::PredictError;

/// A file of predictions that is being written.
#[derive(Debug)]
pub(super) struct PredictionFile {
    path: PathBuf,
    out: csv::Writer<PartialFile>,
}

impl PredictionFile {
    /// Creates the file with its header.
    pub(super) fn create<'a>(
        path: &Path,
        labels: impl Iterator<Item = &'a str>,
    ) -> Result<Self, PredictError> {
        let mut this =
            Self { path: path.to_owned(), out: csv::Writer::from_writer(PartialFile::create(path)?) };
        this.put(iter::once("row").chain(labels))?;
        Ok(this)
    }

    /// Appends a row. Numbers are the shortest that read back as the same double.
    pub(super) fn write(
        &mut self,
        row: u64,
        probabilities: impl Iterator<Item = f64>,
    ) -> Result<(), PredictError> {
        self.put(iter::once(row.to_string()).chain(probabilities.map(|probability| probability.to_string())))
    }

    fn put(&mut self, fields: impl Iterator<Item: AsRef<[u8]>>) -> Result<(), PredictError> {
        let written = self.out.write_record(fields);
        written.map_err(|error| PredictError::Write { path: self.path.clone(), source: error.into() })
    }

    /// Gives the file its name, after it is on disk.
    pub(super) fn publish(self) -> Result<(), PredictError> {
        let Self { path, out } = self;
        let out = out.into_inner().map_err(|error| {
            let source = io::Error::other(error.to_string());
            PredictError::Write { path, source }
        })?;
        Ok(out.publish()?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn numbers_read_back_and_a_failure_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.csv");
        let labels = || ["click", "buy, \"now\""].into_iter();
        drop(PredictionFile::create(&path, labels()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let probabilities = [1.0 / 3.0, 1e-17];
        let mut file = PredictionFile::create(&path, labels()).unwrap();
        file.write(7, probabilities.into_iter()).unwrap();
        assert!(!path.exists());
        file.publish().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (header, row) = text.split_once('\n').unwrap();
        assert_eq!(header, "row,click,\"buy, \"\"now\"\"\"");
        let fields: Vec<_> = row.trim_end().split(',').collect();
        assert_eq!(fields[0], "7");
        assert_eq!(
            fields[1..].iter().map(|field| field.parse().unwrap()).collect::<Vec<f64>>(),
            probabilities
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

//! The predictions: CSV with a column `row`, the raw columns to keep, and one column per head. A file appears only when
//! it is complete.

use std::io::{self, BufWriter, Write};
use std::iter;
use std::path::{Path, PathBuf};

use rankine_base::publish::{OwnOutput, PartialFile};
use rankine_base::url::is_url;
use rankine_reader::store::Upload;

use super::error::PredictError;

/// The path that stands for standard output.
pub const STANDARD_OUTPUT: &str = "-";

/// The name of the first column, which has the number of each row.
const ROW_COLUMN: &str = "row";
/// Earlier predictions, which further ones replace.
const PREDICTIONS: OwnOutput =
    OwnOutput { what: "a file of predictions", is_own: are_predictions, way_out: "replace it with --force" };

/// Predictions that are being written.
#[derive(Debug)]
pub(super) struct PredictionFile {
    path: PathBuf,
    out: csv::Writer<Destination>,
}

/// Where predictions are written.
#[derive(Debug)]
enum Destination {
    File(PartialFile),
    Object(Box<Upload>),
    StandardOutput(BufWriter<io::Stdout>),
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Object(object) => object.write(bytes),
            Self::StandardOutput(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Object(object) => object.flush(),
            Self::StandardOutput(out) => out.flush(),
        }
    }
}

impl PredictionFile {
    /// Creates the file with its header: the number of the row, the raw columns to keep, and the heads by their labels.
    /// A head whose label is also kept is named `LABEL_prediction`. `force` replaces any file, not only earlier
    /// predictions.
    pub(super) fn create<'a>(
        path: &Path,
        force: bool,
        keep: &[String],
        labels: impl Iterator<Item = &'a str>,
    ) -> Result<Self, PredictError> {
        let head = |label: &str| match keep.iter().any(|column| column == label) {
            true => format!("{label}_prediction"),
            false => label.to_owned(),
        };
        let columns: Vec<_> =
            iter::once(ROW_COLUMN.to_owned()).chain(keep.iter().cloned()).chain(labels.map(head)).collect();
        // A label `row` has always been possible: without columns to keep, the file is what it was.
        let twice = |number: &usize| columns[..*number].contains(&columns[*number]);
        if let Some(number) = (1..columns.len()).find(twice).filter(|_| !keep.is_empty()) {
            return Err(PredictError::Column { column: columns[number].clone() });
        }
        let destination = match path == Path::new(STANDARD_OUTPUT) {
            true => Destination::StandardOutput(BufWriter::new(io::stdout())),
            false if is_url(path) => Destination::Object(Box::new(Upload::create(path, force)?)),
            false if force => Destination::File(PartialFile::create(path)?),
            false => Destination::File(PREDICTIONS.create(path)?),
        };
        let mut this = Self { path: path.to_owned(), out: csv::Writer::from_writer(destination) };
        this.put(columns.iter())?;
        Ok(this)
    }

    /// Appends a row. Numbers are the shortest that read back as the same double.
    pub(super) fn write<'a>(
        &mut self,
        row: u64,
        kept: impl Iterator<Item = &'a [u8]>,
        probabilities: impl Iterator<Item = f64>,
    ) -> Result<(), PredictError> {
        self.field(row.to_string())?;
        kept.into_iter().try_for_each(|text| self.field(text))?;
        self.put(probabilities.map(|probability| probability.to_string()))
    }

    /// Appends fields and ends the row.
    fn put(&mut self, mut fields: impl Iterator<Item: AsRef<[u8]>>) -> Result<(), PredictError> {
        fields.try_for_each(|field| self.field(field))?;
        let ended = self.out.write_record(None::<&[u8]>);
        ended.map_err(|error| self.cannot_write(error))
    }

    fn field(&mut self, field: impl AsRef<[u8]>) -> Result<(), PredictError> {
        self.out.write_field(field).map_err(|error| self.cannot_write(error))
    }

    fn cannot_write(&self, error: csv::Error) -> PredictError {
        let source = match error.into_kind() {
            // The command ends quietly if the reader of a pipe has left.
            csv::ErrorKind::Io(error) => error,
            other => io::Error::other(format!("{other:?}")),
        };
        match source.downcast::<rankine_base::Error>() {
            Ok(of_object) => of_object.into(),
            Err(source) => PredictError::Write { path: self.path.clone(), source },
        }
    }

    /// Completes the predictions: a file gets its name, after it is on disk.
    pub(super) fn publish(self) -> Result<(), PredictError> {
        let Self { path, mut out } = self;
        out.flush().map_err(|source| PredictError::Write { path: path.clone(), source })?;
        let out = out.into_inner().map_err(|error| {
            let source = io::Error::other(error.to_string());
            PredictError::Write { path, source }
        })?;
        match out {
            Destination::File(file) => Ok(file.publish()?),
            Destination::Object(object) => Ok(object.complete()?),
            // Flushed above.
            Destination::StandardOutput(_) => Ok(()),
        }
    }
}

/// Returns whether a file that starts with these bytes has predictions: a first column of row numbers, and a last one
/// of probabilities.
fn are_predictions(start: &[u8]) -> bool {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(start);
    let mut records = reader.byte_records().map_while(Result::ok);
    // A model has at least one head.
    let is_header = |header: &csv::ByteRecord| header.len() > 1 && &header[0] == ROW_COLUMN.as_bytes();
    let Some(header) = records.next().filter(is_header) else { return false };
    let Some(first) = records.next() else { return true };
    let number = |field: &[u8]| str::from_utf8(field).ok()?.parse::<f64>().ok();
    let is_row = first[0].iter().all(u8::is_ascii_digit) && !first[0].is_empty();
    // A row that is longer than the start is cut off.
    let is_cut = first.len() < header.len() || records.next().is_none() && !start.ends_with(b"\n");
    is_row && (is_cut || number(&first[first.len() - 1]).is_some_and(|last| (0.0..=1.0).contains(&last)))
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
        drop(PredictionFile::create(&path, false, &[], labels()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let probabilities = [1.0 / 3.0, 1e-17];
        let mut file = PredictionFile::create(&path, false, &[], labels()).unwrap();
        file.write(7, iter::empty(), probabilities.into_iter()).unwrap();
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

    #[test]
    fn only_predictions_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.csv");
        let long = "x".repeat(5000);
        for (keep, text) in [(&["a"][..], Some("an \"item\",\n")), (&["a"], Some(&long)), (&[], None)] {
            let keep: Vec<_> = keep.iter().map(|&name| name.to_owned()).collect();
            for row in [None, Some(7)] {
                let mut file =
                    PredictionFile::create(&path, false, &keep, ["click", "buy"].into_iter()).unwrap();
                if let Some(row) = row {
                    let kept = text.iter().map(|text| text.as_bytes());
                    file.write(row, kept, [0.25, 1e-17].into_iter()).unwrap();
                }
                file.publish().unwrap();
            }
        }
        for other in [
            "row",
            "row\n1\n",
            "row,label\n1,2.5\n",
            "row,label\n1,no\n",
            "row,label\nfirst,0.5\n",
            "row,label\n,0.5\n",
            "id,label\n1,0.5\n",
            "\"rows\",label\n1,0.5\n",
            "rowing is fun\n",
            "{\"format\":1}\n",
            "\n",
        ] {
            fs::write(&path, other).unwrap();
            let refused =
                PredictionFile::create(&path, false, &[], ["click"].into_iter()).map(drop).unwrap_err();
            let words =
                "exists and is not a file of predictions: choose another file, or replace it with --force";
            assert!(refused.to_string().ends_with(words), "{other:?}: {refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), other);
            let forced = PredictionFile::create(&path, true, &[], ["click"].into_iter()).unwrap();
            forced.publish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "row,click\n");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn kept_columns_precede_the_heads_and_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.csv");
        let create = |keep: &[&str]| {
            let keep: Vec<_> = keep.iter().map(|name| (*name).to_owned()).collect();
            PredictionFile::create(&path, false, &keep, ["click", "buy"].into_iter())
        };
        let mut file = create(&["user", "buy"]).unwrap();
        let kept = [&b"a, \"b\"\n\xff"[..], b""];
        file.write(3, kept.into_iter(), [0.5, 0.25].into_iter()).unwrap();
        file.publish().unwrap();
        let expected = b"row,user,buy,click,buy_prediction\n3,\"a, \"\"b\"\"\n\xff\",,0.5,0.25\n";
        assert_eq!(fs::read(&path).unwrap(), expected);
        for (keep, twice) in [
            (&["user", "user"][..], "user"),
            (&["row"], "row"),
            (&["buy", "buy_prediction"], "buy_prediction"),
        ] {
            assert!(
                matches!(create(keep), Err(PredictError::Column { column }) if column == twice),
                "{keep:?}"
            );
        }
    }
}

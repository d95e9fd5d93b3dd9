//! The texts of raw columns that are copied next to predictions.

use std::ops::Range;
use std::path::Path;

use rankine_base::error::{Error, Result};
use rankine_base::nearest::{no_column, quoted};

use crate::convert::rows::fault::BadRow;

/// The texts of some raw columns, row by row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptTexts {
    /// Texts per row.
    columns: usize,
    bytes: Vec<u8>,
    /// The end of each text in `bytes`.
    ends: Vec<usize>,
}

impl KeptTexts {
    /// Creates texts of no rows, with this number of columns.
    pub fn new(columns: usize) -> Self {
        Self { columns, ..Self::default() }
    }

    /// Returns the texts of a row, in the order of the columns. Without columns there are none, for any row.
    ///
    /// # Panics
    /// If there are columns, and no such row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = &[u8]> {
        let first = row * self.columns;
        (first..first + self.columns).map(|text| &self.bytes[self.start(text)..self.ends[text]])
    }

    /// Appends some rows of others, which have the same columns.
    pub fn append(&mut self, other: &Self, rows: Range<usize>) {
        let texts = rows.start * other.columns..rows.end * other.columns;
        let (from, base) = (other.start(texts.start), self.bytes.len());
        let ends = &other.ends[texts];
        self.bytes.extend_from_slice(&other.bytes[from..ends.last().map_or(from, |&end| end)]);
        self.ends.extend(ends.iter().map(|end| base + end - from));
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends a text; as many as there are columns make a row.
    pub(crate) fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    fn start(&self, text: usize) -> usize {
        text.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

/// Returns the good ones of the rows numbered from 0, given the bad ones in order.
pub(crate) fn good_rows<R>(rows: impl Iterator<Item = R>, bad: &[BadRow]) -> impl Iterator<Item = R> {
    let mut bad = bad.iter().map(|bad| bad.row).peekable();
    (0..).zip(rows).filter(move |(number, _)| bad.next_if_eq(number).is_none()).map(|(_, row)| row)
}

/// Returns the numbers of some columns among the columns of a file; `purpose`, such as "to keep", is for messages.
///
/// # Errors
/// [`Error::Columns`] for the first one that the file lacks, or has twice.
pub(crate) fn positions(
    file: &Path,
    names: &[String],
    columns: &[String],
    purpose: &str,
) -> Result<Vec<usize>> {
    let position = |column: &String| {
        let mut found = (0..names.len()).filter(|&number| names[number] == *column);
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(second)) => Err(Error::columns(
                Some(column),
                format!(
                    "{} has two columns named {}, so it is unclear which one {purpose}; the second is field {}",
                    file.display(),
                    quoted(column),
                    second + 1
                ),
            )),
            (None, _) => {
                let lacks = no_column(column, &format!(" {purpose}"), names, |_| false);
                Err(Error::columns(Some(column), format!("{} {lacks}", file.display())))
            }
        }
    };
    columns.iter().map(position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(rows: &[[&str; 2]]) -> KeptTexts {
        let mut texts = KeptTexts::new(2);
        rows.iter().flatten().for_each(|text| texts.push(text.as_bytes()));
        texts
    }

    #[test]
    fn rows_are_appended_by_their_number() {
        let all = texts(&[["a", ""], ["", "bc"], ["d", "e"]]);
        let mut some = texts(&[["x", "yz"]]);
        some.append(&all, 1..3);
        some.append(&all, 1..1);
        assert_eq!(some, texts(&[["x", "yz"], ["", "bc"], ["d", "e"]]));
        assert_eq!(some.row(1).collect::<Vec<_>>(), [&b""[..], b"bc"]);
        some.clear();
        some.append(&all, 0..1);
        assert_eq!(some, texts(&[["a", ""]]));
        let mut none = KeptTexts::new(0);
        none.append(&KeptTexts::new(0), 0..7);
        assert_eq!(none.row(5).count(), 0);
    }

    #[test]
    fn columns_are_found_by_name() {
        let names = ["user", "film", "user"].map(str::to_owned);
        let find = |column: &str| positions(Path::new("log.csv"), &names, &[column.to_owned()], "to keep");
        assert_eq!(find("film").unwrap(), [1]);
        let words = "log.csv has two columns named `user`";
        assert!(find("user").unwrap_err().to_string().starts_with(words));
        assert_eq!(
            find("flim").unwrap_err().to_string(),
            "log.csv has no column `flim` to keep (did you mean `film`?); it has `user`, `film`, `user`"
        );
    }
}

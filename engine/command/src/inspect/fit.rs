//! `rankine inspect` of a fit: its columns, their transforms, and the categories of its vocabularies.

use std::cmp::Reverse;
use std::fmt::{self, Display};
use std::path::Path;

use rankine_reader::origin::Conversion;
use rankine_reader::schema::{Hotness, VocabularyKind};
use rankine_reader::{Fit, Schema, vocabulary};
use serde::Serialize;

use super::{FREQUENT_ROWS, FrequentRow, columns_of, shown};
use crate::table::TextTable;
use crate::{CommandError, output};

#[derive(Serialize)]
struct FitInspection<'a> {
    path: &'a Path,
    kind: &'static str,
    tables: Vec<FittedTable>,
    schema: &'a Schema,
    origin: &'a Conversion,
}

#[derive(Serialize)]
struct FittedTable {
    name: String,
    /// Absent if the vocabulary is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    hotness: Hotness,
    vocabulary: VocabularyKind,
    /// Look-ups of the training part that the vocabulary counts, by all columns that share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    lookups: Option<u64>,
    most_frequent: Vec<FrequentRow>,
}

/// Shows a fit; reading it checks all of its files.
pub(super) fn inspect(path: &Path, json: bool) -> Result<(), CommandError> {
    let fit = Fit::open(path)?;
    fit.check_indexes()?;
    let report = FitInspection {
        path,
        kind: "fit",
        tables: tables(&fit)?,
        schema: fit.schema(),
        origin: fit.origin(),
    };
    if json { output::json(&report) } else { output::text(&report) }
}

fn tables(fit: &Fit) -> rankine_base::Result<Vec<FittedTable>> {
    let table = |column: &rankine_reader::schema::Categorical| {
        let mut table = FittedTable {
            name: column.name.clone(),
            rows: column.rows,
            hotness: column.hotness,
            vocabulary: column.vocabulary.clone(),
            lookups: None,
            most_frequent: Vec::new(),
        };
        if let VocabularyKind::Exact { .. } = column.vocabulary {
            let owner = column.shares.as_ref().unwrap_or(&column.name);
            let listed = fit.checked_file(&vocabulary::file_name(owner))?;
            let listed = String::from_utf8_lossy(&listed);
            let lines = (0..).zip(listed.lines()).filter_map(|(row, line)| {
                let (category, count) = line.rsplit_once('\t')?;
                Some((row, category, count.parse::<u64>().ok()?))
            });
            let mut rows: Vec<(u64, &str, u64)> = lines.collect();
            let lookups: u64 = rows.iter().map(|(_, _, count)| count).sum();
            rows.sort_by_key(|&(_, _, count)| Reverse(count));
            let frequent = rows.iter().take(FREQUENT_ROWS).filter(|(_, _, count)| *count > 0);
            let frequent = frequent.map(|&(row, category, count)| FrequentRow {
                row,
                category: Some(category.to_owned()),
                lookups: count,
                share: count as f64 / lookups as f64,
            });
            table.most_frequent = frequent.collect();
            table.lookups = Some(lookups);
        }
        Ok(table)
    };
    fit.schema().categorical.iter().map(table).collect()
}

impl Display for FitInspection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conversion { format, split, rows, .. } = self.origin;
        writeln!(f, "fit      {}", self.path.display())?;
        write!(f, "  learned from {}, split {split}: {} rows read, ", format.name(), rows.read)?;
        writeln!(f, "{} trained on, {} held out, {} bad", rows.train, rows.eval, rows.bad)?;
        writeln!(f, "  no samples: `rankine convert {} ... --like {}`", format.name(), self.path.display())?;
        writeln!(f, "{}\n", columns_of(self.schema))?;
        if !self.tables.is_empty() {
            let headings = ["table", "rows", "ids/bag", "vocabulary", "most frequent rows"];
            let mut lines = TextTable::new(headings, &[0, 3, 4]);
            for table in &self.tables {
                let frequent: Vec<_> = table.most_frequent.iter().map(ToString::to_string).collect();
                lines.row([
                    &table.name,
                    &shown(table.rows, "open"),
                    &table.hotness,
                    &table.vocabulary,
                    &frequent.join(", "),
                ]);
            }
            writeln!(f, "{lines}")?;
        }
        if !self.schema.dense.is_empty() {
            let mut lines = TextTable::new(["dense column", "stored"], &[0, 1]);
            self.schema.dense.iter().for_each(|column| lines.row([&column.name, &column.transform]));
            write!(f, "{lines}")?;
        }
        Ok(())
    }
}

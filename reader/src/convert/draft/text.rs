//! The text of a drafted schema file.

use std::fmt::{self, Write};

use rankine_base::escape::escape;
use rankine_base::nearest::quoted;

use crate::convert::draft::Sample;
use crate::convert::draft::column::Observed;
use crate::convert::draft::guess::{Guess, Section, guess};
use crate::convert::draft::label::{LabelGuess, is_named};
use crate::convert::rows::raw_type::RawType;
use crate::origin::CsvFormat;
use crate::schema::is_column_name;

/// What stands where the label should be.
const NO_LABEL: &str = "
# No label was found: no column is named like one, and neither the first nor the last column has two values.
# Name the column to predict, here or with `rankine init-schema --label COLUMN`:
# [label]
# column = \"...\"
# at_least = 1
";

/// Returns a string in TOML.
pub(super) fn toml(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// Writes a schema file.
pub(super) fn write(sample: &Sample, label: Option<&LabelGuess>) -> Result<String, fmt::Error> {
    let Sample { columns, repeated, csv, .. } = sample;
    let mut out = String::new();
    head(&mut out, sample)?;
    csv.iter().try_for_each(|csv| format(&mut out, csv))?;
    match label {
        Some(label) => label_section(&mut out, columns, label)?,
        None => out += NO_LABEL,
    }
    let mut left_out = String::new();
    for (at, column) in columns.iter().enumerate() {
        if label.is_some_and(|label| label.column == at) {
            continue;
        }
        let guess = match label {
            Some(_) if is_named(column) => Guess::left_out(
                "it is named like a label: an input that is known too late would spoil the model",
            ),
            _ => guess(column),
        };
        match &guess.section {
            Section::Dense(transform) => {
                section(&mut out, "[dense]", (columns, at), &guess.why)?;
                writeln!(out, "transform = {transform}")?;
            }
            Section::Categorical { vocabulary, separator } => {
                section(&mut out, "[categorical]", (columns, at), &guess.why)?;
                if let Some(separator) = separator {
                    writeln!(out, "separator = {}", toml(separator))?;
                }
                if separator.is_some() || column.column.values == RawType::List {
                    writeln!(out, "pooling = \"mean\"")?;
                }
                writeln!(out, "vocabulary = {vocabulary}")?;
            }
            Section::LeftOut => writeln!(left_out, "# {}: {}", quoted(&column.column.name), guess.why)?,
        }
    }
    for name in repeated {
        writeln!(left_out, "# {}: several columns have this name", quoted(name))?;
    }
    if !left_out.is_empty() {
        write!(out, "\n# Left out:\n{left_out}")?;
    }
    Ok(out)
}

/// Writes what was read, and what to do with the file.
fn head(out: &mut String, sample: &Sample) -> fmt::Result {
    let Sample { rows, bad, complete, csv, first, files, .. } = sample;
    let format = if csv.is_some() { "csv" } else { "parquet" };
    let mut file = String::new();
    escape(first.as_bytes(), &mut file);
    let more = if *files > 1 { format!(" and {} more files", files - 1) } else { String::new() };
    let which = if *complete { format!("all {rows} rows") } else { format!("the first {rows} rows only") };
    writeln!(out, "# Guessed by `rankine init-schema` from {which} of {file}{more}.")?;
    if *bad > 0 {
        writeln!(out, "# {bad} further rows could not be read: see --on-bad of `rankine convert`.")?;
    }
    writeln!(out, "# Check the label and what is left out, and then:")?;
    writeln!(out, "# rankine convert {format} {file} --schema THIS_FILE --split last:0.1 --out DATASET")
}

fn format(out: &mut String, csv: &CsvFormat) -> fmt::Result {
    writeln!(out, "\n[format]\ndelimiter = {}", toml(&csv.delimiter.to_string()))?;
    if csv.trim {
        writeln!(out, "# The fields of the first line have white space around them.\ntrim = true")?;
    }
    let Some(names) = &csv.columns else { return writeln!(out, "header = true") };
    let names: Vec<_> = names.iter().map(|name| toml(name)).collect();
    writeln!(out, "# The first line is a row: replace these names, here and below.")?;
    writeln!(out, "header = false\ncolumns = [{}]", names.join(", "))
}

fn label_section(out: &mut String, columns: &[Observed], label: &LabelGuess) -> fmt::Result {
    section(out, "label", (columns, label.column), &label.why)?;
    label.rule.iter().try_for_each(|rule| writeln!(out, "{rule}"))?;
    match columns[label.column].empty {
        0 => Ok(()),
        empty => writeln!(out, "# Rows without a value: {empty}.\nmissing = \"mask\""),
    }
}

/// Writes the beginning of a section about one of the columns, under a comment.
fn section(out: &mut String, kind: &str, (columns, at): (&[Observed], usize), why: &str) -> fmt::Result {
    let name = &columns[at].column.name;
    writeln!(out, "\n# {why}\n[{kind}]\ncolumn = {}", toml(name))?;
    if is_column_name(name) {
        return Ok(());
    }
    let allowed = |char: char| if char.is_alphanumeric() || " -_".contains(char) { char } else { '_' };
    let mut other = format!("{}_{}", name.chars().map(allowed).collect::<String>(), at + 1);
    while columns.iter().any(|column| column.column.name == other) {
        other.push('_');
    }
    writeln!(out, "name = {} # The name of a column must also be the name of a file.", toml(&other))
}

//! `rankine init-schema`: drafts a schema file for a conversion.

use std::io::Write;
use std::path::{Path, PathBuf};

use rankine_base::publish::{PartialFile, refuse_inputs, replace_file};
use rankine_base::{Error, InvalidValue};
use rankine_job::Count;
use rankine_reader::convert::{DraftOptions, SCHEMA, STANDARD_INPUT, draft_schema};

use super::editors::schema_line;
use super::{CommandError, Exit, inputs, output};

/// Draft a schema file for `rankine convert csv` or `rankine convert parquet`
///
/// Reads the first rows of the files and guesses the label, dense and categorical columns, transforms, vocabularies and
/// separators. Comments in the file say why, and which columns are left out: check them before the conversion. The
/// guesses need up to 70 bytes of memory per row and column.
///
/// Files are CSV or other delimited text, plain or compressed with gzip or zstd, or Parquet. A FILE may be a pattern in
/// quotes, such as 'day_*.csv', or a folder. The first line of the schema file is a comment that names a JSON Schema,
/// with which editors complete and check it. The JSON Schema is written to $XDG_DATA_HOME/rankine (default:
/// ~/.local/share/rankine).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine init-schema ratings.csv
  rankine init-schema 'day_*.csv.gz' --label bought --out ads.toml
  rankine init-schema log.tsv --header no --out log.toml
  rankine convert csv log.tsv --schema log.toml --split last:0.1 --out data/log")]
pub(crate) struct Args {
    /// Input files of one format, patterns or folders; the first rows are read
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Column to predict [default: one named like a label, or the last or first column if it has two values]
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,

    /// Character between the fields of CSV, such as ';' or '\t' [default: the one of , tab ; | that makes most fields]
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter)]
    delimiter: Option<char>,

    /// Whether CSV files start with a line of column names; auto takes a first line without numbers for one
    #[arg(long, value_name = "WHETHER", default_value = "auto", value_parser = ["auto", "yes", "no"])]
    header: String,

    /// Maximum number of rows to read
    #[arg(long, value_name = "N", default_value = "100000", value_parser = super::arguments::count)]
    rows: Count,

    /// Schema file to write, which must not exist without --force [default: standard output]
    #[arg(long, value_name = "SCHEMA.toml")]
    out: Option<PathBuf>,

    /// Replace the file of --out
    #[arg(long, requires = "out")]
    force: bool,
}

fn delimiter(text: &str) -> Result<char, InvalidValue> {
    let text = if text == r"\t" { "\t" } else { text };
    let mut chars = text.chars();
    chars
        .next()
        .filter(|char| char.is_ascii() && chars.next().is_none())
        .ok_or_else(|| InvalidValue::expected(text, r"one ASCII character, such as ';', or \t for a tab"))
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    if args.files.iter().any(|path| path == Path::new(STANDARD_INPUT)) {
        let what = "the front of a file is read more than once, and standard input, -, can be read only once: write \
                    the rows to a file, which may be compressed";
        return Err(CommandError::new(Exit::Usage, what));
    }
    let files = inputs::expand(&args.files)?;
    if let Some(out) = &args.out {
        refuse_inputs(out, files.iter().map(PathBuf::as_path))?;
    }
    // What stands in the way is found out first.
    let new = args.out.as_deref().filter(|_| !args.force).map(PartialFile::create_new).transpose();
    let new = new.map_err(|error| match error {
        Error::Exists { path, .. } => Error::Exists {
            path,
            why: "already exists: replace it with --force, or choose another name".into(),
        },
        error => error,
    })?;
    let draft = draft_schema(&DraftOptions {
        files: &files,
        label: args.label.as_deref(),
        delimiter: args.delimiter,
        header: (args.header != "auto").then_some(args.header == "yes"),
        rows: args.rows.get(),
    })?;
    if draft.label.is_none() {
        tracing::warn!(
            "no label was found: name the column to predict with --label, or in the file; a conversion needs one"
        );
    }
    let text = schema_line("schema", SCHEMA) + &draft.text;
    let Some(out) = &args.out else { return output::text(text) };
    match new {
        None => replace_file(out, text.as_bytes())?,
        Some(mut file) => {
            let written = file.write_all(text.as_bytes());
            let failed =
                |error| CommandError::new(Exit::Failed, format!("cannot write {}: {error}", out.display()));
            written.map_err(failed)?;
            file.publish()?;
        }
    }
    let (out, format) = (out.display(), draft.format);
    let label = draft.label.as_deref().unwrap_or("none");
    let next = format!("rankine convert {format} FILE --schema {out} --split last:0.1 --out DATASET");
    output::text(format_args!("schema  {out}\nlabel   {label}\nnext    {next}\n"))
}

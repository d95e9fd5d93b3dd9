//! Arguments and work of the commands that learn from raw rows: `rankine convert` and `rankine fit`.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use rankine_base::Stop;
use rankine_base::publish::refuse_inputs;
use rankine_engine::source::{self, SourceError};
use rankine_job::{Count, ThreadCount};
use rankine_reader::convert::{
    self, BadLimit, ColumnVocabulary, ConvertOptions, CriteoColumns, DenseMode, KnownColumns, NegativesKept,
    OnBad, RowSplit, STANDARD_INPUT, SchemaFile, VocabularyChoice,
};
use rankine_reader::schema::DenseDtype;

use super::progress::Bars;
use super::{CommandError, Exit, inputs, monitoring};

/// What a command makes of raw rows, by the format of the rows.
pub(super) struct RowWork<'a, R> {
    pub(super) criteo: fn(&ConvertOptions, &CriteoColumns, &dyn convert::Progress) -> rankine_base::Result<R>,
    pub(super) csv: NamedColumnWork<R>,
    pub(super) parquet: NamedColumnWork<R>,
    /// For rows with the columns of an old dataset, a fit or a model.
    pub(super) like:
        fn(&LikeArgs, &ConvertOptions, KnownColumns, &dyn convert::Progress) -> rankine_base::Result<R>,
    pub(super) block_samples: Option<NonZeroU32>,
    pub(super) stop: &'a Stop,
    pub(super) bars: &'a Bars<'a>,
}

/// Work on rows of named columns.
type NamedColumnWork<R> =
    fn(&ConvertOptions, &SchemaFile, u64, &dyn convert::Progress) -> rankine_base::Result<R>;

/// Arguments for Criteo's rows.
#[derive(Debug, clap::Args)]
pub(super) struct CriteoArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,

    #[command(flatten)]
    counts: CountArgs,

    #[command(flatten)]
    pub(super) like: LikeArgs,

    /// How often a category must occur in the training part to get its own row; rarer categories share row 0
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::arguments::count)]
    #[arg(conflicts_with = "like")]
    min_count: Count,

    /// Transform of numbers: log (of 1 + |x| with the sign of x, then standardized) or mlperf (log of x + 1)
    #[arg(long, value_name = "MODE", default_value = "log", conflicts_with = "like")]
    dense: DenseMode,

    /// Type in which numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f16", conflicts_with = "like")]
    dense_dtype: DenseDtype,

    /// How categories are mapped to ids: exact (a list of all categories), hash:ROWS, open (keys, for dynamic tables),
    /// or identity:ROWS
    #[arg(long, value_name = "KIND", default_value = "exact", conflicts_with = "like")]
    vocabulary: VocabularyChoice,

    /// Vocabulary of one column, such as C3=hash:100000; may be repeated
    #[arg(long = "column", value_name = "NAME=KIND", conflicts_with = "like")]
    columns: Vec<ColumnVocabulary>,
}

/// Arguments for formats with named columns.
#[derive(Debug, clap::Args)]
pub(super) struct NamedColumnArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,

    /// Schema file: the columns to convert, and how; needed without --like
    #[arg(long, value_name = "FILE", required_unless_present = "like", conflicts_with = "like")]
    schema: Option<PathBuf>,

    #[command(flatten)]
    pub(super) like: LikeArgs,

    /// How often a category must occur in the training part to get its own row, in exact columns that do not set
    /// min_count; rarer categories share row 0
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::arguments::count)]
    #[arg(conflicts_with = "like")]
    min_count: Count,

    /// Type in which numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f32", conflicts_with = "like")]
    dense_dtype: DenseDtype,

    #[command(flatten)]
    counts: CountArgs,
}

/// Arguments for formats whose categories are counted.
#[derive(Debug, clap::Args)]
pub(super) struct CountArgs {
    /// Memory for counting categories, such as 512MiB or 2GiB; beyond it, counts are kept in temporary files
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = rankine_base::size::parse_size)]
    memory: u64,
}

/// Arguments for further rows of an existing dataset.
#[derive(Debug, clap::Args)]
pub(super) struct LikeArgs {
    /// Existing dataset or fit, or run, checkpoint or export, whose columns, transforms and vocabularies the new
    /// dataset keeps, so that a model trained on it fits; categories without a row are unknown
    #[arg(long, value_name = "DATASET|FIT|RUN")]
    pub(super) like: Option<PathBuf>,

    /// With --like, add rows after the old ones for new categories, and add up the counts of old and new rows
    #[arg(long, requires = "like")]
    pub(super) grow: bool,
}

/// Arguments for all formats.
#[derive(Debug, clap::Args)]
pub(super) struct CommonArgs {
    /// Input files, patterns or folders, read in the given order
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Folder of the new dataset, which must not exist
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,

    /// Rows for evaluation: last:0.2 for the last fifth, random:0.1:SEED for a random tenth, hash:COLUMN:0.1 for a
    /// tenth of a column's values, after:COLUMN:VALUE for rows with greater values, or none
    #[arg(long, value_name = "SPLIT", default_value = "none")]
    split: RowSplit,

    /// Input files, patterns or folders for evaluation only; list the other files before this option
    #[arg(long, value_name = "FILE", num_args = 1..)]
    eval: Vec<PathBuf>,

    /// What to do with bad rows: fail, skip, or quarantine (skip them, and keep them in a file)
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    on_bad: OnBad,

    /// Maximum number of skipped rows before the command fails: a number, or a share such as 0.1%
    #[arg(long, value_name = "N|P%", default_value_t = BadLimit::default())]
    bad_limit: BadLimit,

    /// Share of the negatives (label 0) that the files were left with, if they were downsampled, such as 0.1; of one
    /// label with LABEL=SHARE; may be repeated. It replaces the share in the schema file or in --like; 1 means all
    #[arg(long, value_name = "SHARE")]
    negatives_kept: Vec<NegativesKept>,

    /// Number of CPU threads [default: all that this process may use]
    #[arg(long, value_name = "N", value_parser = super::arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print the report as JSON instead of text
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) monitoring: monitoring::Args,
}

impl CommonArgs {
    /// Returns the options of some work.
    pub(super) fn options<R>(
        self,
        dense_dtype: DenseDtype,
        work: &RowWork<'_, R>,
    ) -> Result<ConvertOptions, CommandError> {
        let named = || self.files.iter().chain(&self.eval);
        if named().any(|path| path == Path::new(STANDARD_INPUT)) {
            let what = "a conversion reads its input more than once, and standard input, -, can be read only once: \
                        write the rows to a file, which may be compressed";
            return Err(CommandError::new(Exit::Usage, what));
        }
        // A folder of input would otherwise also have the output, and the next conversion would read that.
        refuse_inputs(&self.out, named())?;
        Ok(ConvertOptions {
            split: self.split,
            eval: inputs::expand(&self.eval)?,
            on_bad: self.on_bad,
            bad_limit: self.bad_limit,
            threads: rankine_job::thread_count(self.threads),
            dense_dtype,
            block_samples: work.block_samples,
            negatives_kept: self.negatives_kept,
            stop: work.stop.clone(),
            ..ConvertOptions::new(inputs::expand(&self.files)?, self.out)
        })
    }
}

impl<R> RowWork<'_, R> {
    /// Works on Criteo's rows, and returns also the output's folder.
    pub(super) fn on_criteo(&self, args: CriteoArgs) -> Result<(R, PathBuf), CommandError> {
        let options = args.common.options(args.dense_dtype, self)?.with_memory(args.counts.memory);
        if args.like.like.is_some() {
            return self.on_known("criteo-tsv", options, &args.like);
        }
        let columns = CriteoColumns {
            min_count: args.min_count.get(),
            dense: args.dense,
            vocabulary: args.vocabulary,
            columns: args.columns,
        };
        Ok(((self.criteo)(&options, &columns, self.bars)?, options.out))
    }

    /// Works on rows of CSV.
    pub(super) fn on_csv(&self, args: NamedColumnArgs) -> Result<(R, PathBuf), CommandError> {
        self.on_named("csv", self.csv, args)
    }

    /// Works on rows of Parquet.
    pub(super) fn on_parquet(&self, args: NamedColumnArgs) -> Result<(R, PathBuf), CommandError> {
        self.on_named("parquet", self.parquet, args)
    }

    fn on_named(
        &self,
        format: &'static str,
        work: NamedColumnWork<R>,
        args: NamedColumnArgs,
    ) -> Result<(R, PathBuf), CommandError> {
        let options = args.common.options(args.dense_dtype, self)?.with_memory(args.counts.memory);
        let Some(path) = &args.schema else {
            return self.on_known(format, options, &args.like);
        };
        let schema = SchemaFile::load(path)?;
        refuse_inputs(&options.out, [path])?;
        Ok((work(&options, &schema, args.min_count.get(), self.bars)?, options.out))
    }

    /// Works on rows of the format of this name with the columns of an old dataset, a fit or a model.
    pub(super) fn on_known(
        &self,
        format: &'static str,
        options: ConvertOptions,
        args: &LikeArgs,
    ) -> Result<(R, PathBuf), CommandError> {
        let known = known_columns(args.like.as_deref().unwrap_or(Path::new("")))?;
        known.check_format(format)?;
        Ok(((self.like)(args, &options, known, self.bars)?, options.out))
    }
}

/// Opens the columns of a dataset, a fit or a model.
fn known_columns(path: &Path) -> Result<KnownColumns, CommandError> {
    source::known_columns(path).map_err(|error| match error {
        SourceError::Other { path, found, .. } => {
            let what = format!(
                "--like {}: {found}; expected the folder of a dataset, of a finished run, of a checkpoint, of an \
                 export or of a fit",
                path.display()
            );
            CommandError::new(Exit::Usage, what)
        }
        other => other.into(),
    })
}

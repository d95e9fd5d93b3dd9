//! The columns of a conversion's output once the training part has been read: their schema, with what encodes rows.

use std::fs;
use std::path::Path;

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::publish::{PartialDir, sync_dir};
use rankine_base::stop::Stop;

use crate::convert::bad::NO_ROWS;
use crate::convert::known::{Inherited, VocabularyFiles};
use crate::convert::learn::learn;
use crate::convert::pass::Pass;
use crate::convert::plan::options::ConvertOptions;
use crate::convert::plan::{ColumnStatistics, Plan};
use crate::convert::rows::source::RowSource;
use crate::convert::rows::split::RowSplit;
use crate::convert::write::encode::Encoder;
use crate::dataset::FileManifest;
use crate::origin::RowCounts;
use crate::schema::{Label, Schema};
use crate::statistics::TableStatistics;
use crate::vocabulary::{self, Lookup, Vocabulary};
use crate::write::CheckedFile;

/// Columns that are complete.
pub(crate) struct LearntColumns {
    pub(crate) schema: Schema,
    pub(crate) encoder: Encoder,
    /// What was learnt; the encoder has the vocabularies.
    pub(crate) statistics: ColumnStatistics,
    /// The name and the schema of the dataset whose columns were kept, if there is one.
    pub(crate) old: Option<(String, Schema)>,
    /// How often rows were looked up in the old dataset, if that is to be added.
    pub(crate) earlier: Option<Vec<TableStatistics>>,
    /// For each categorical column, whether the counts of its vocabulary are the look-ups that the statistics should
    /// have: not if vocabularies of an old dataset count rows that its statistics do not.
    counted: Vec<bool>,
    /// The files of the vocabularies, if they are kept from a fit.
    files: Option<VocabularyFiles>,
}

impl LearntColumns {
    /// Learns what the plan requires. If this is the `only_pass` over the rows, it reads them even if there is nothing
    /// to learn, and names bad rows in `dir`.
    pub(crate) fn learn<S: RowSource>(
        pass: &Pass<'_, S>,
        plan: &Plan,
        inherited: Option<Inherited>,
        dir: &Path,
        only_pass: bool,
    ) -> Result<Self> {
        let labels = pass.options.labels(&plan.draft.labels)?;
        let before = Before::of(plan, inherited);
        let vocabularies = before.vocabularies;
        let statistics = match only_pass || plan.must_learn() {
            true => pass.source.if_unchanged(learn(pass, plan, vocabularies, dir, only_pass))?,
            false => ColumnStatistics::before(&plan.draft, vocabularies),
        };
        Self::of(plan, labels, before.columns, statistics)
    }

    /// Completes the columns with what was learnt.
    pub(crate) fn of(
        plan: &Plan,
        labels: Vec<Label>,
        before: ColumnsBefore,
        mut statistics: ColumnStatistics,
    ) -> Result<Self> {
        let ColumnsBefore { old, earlier, counted, files } = before;
        let mut schema = Schema { labels, ..plan.schema(&statistics)? };
        if let Some((_, old)) = &old {
            // Equal schemas, if the rows allow it.
            schema.keep_larger_bags(old);
        }
        let encoder = Encoder::new(&schema, std::mem::take(&mut statistics.vocabularies))?;
        Ok(Self { schema, encoder, statistics, old, earlier, counted, files })
    }

    /// Writes the vocabularies, or links to the files of the fit that has them, if its file system can.
    pub(crate) fn write_vocabularies(&self, dir: &PartialDir, stop: &Stop) -> Result<Vec<FileManifest>> {
        let folder = dir.path().join(vocabulary::FOLDER);
        fs::create_dir(&folder).context("create", &folder)?;
        let mut files = Vec::new();
        if let Some(VocabularyFiles { dir: fit, files }) = &self.files {
            let link = |file: &FileManifest| fs::hard_link(fit.join(&file.name), dir.path().join(&file.name));
            if files.iter().try_for_each(link).is_ok() {
                sync_dir(&folder)?;
                return Ok(files.clone());
            }
            // Some may have been linked.
            for name in files.iter().map(|file| dir.path().join(&file.name)).filter(|path| path.exists()) {
                fs::remove_file(&name).context("remove", &name)?;
            }
        }
        for (number, column) in self.schema.categorical.iter().enumerate() {
            if let Some(vocabulary) = self.encoder.vocabulary(number).filter(|_| column.shares.is_none()) {
                let mut file = CheckedFile::create(dir.path(), &vocabulary::file_name(&column.name))?;
                vocabulary.to_tsv(|piece| {
                    stop.check()?;
                    file.write(piece)
                })?;
                files.push(file.finish()?);
            }
        }
        sync_dir(&folder)?;
        Ok(files)
    }

    /// Writes an index beside each vocabulary of a fit.
    pub(crate) fn write_indexes(&self, dir: &PartialDir, stop: &Stop) -> Result<Vec<FileManifest>> {
        let mut files = Vec::new();
        for (number, column) in self.schema.categorical.iter().enumerate() {
            let own = self.encoder.vocabulary(number).filter(|_| column.shares.is_none());
            if let Some(vocabulary) = own.and_then(Lookup::loaded) {
                let mut file = CheckedFile::create(dir.path(), &vocabulary::index_name(&column.name))?;
                vocabulary.to_index(|piece| {
                    stop.check()?;
                    file.write(piece)
                })?;
                files.push(file.finish()?);
            }
        }
        sync_dir(&dir.path().join(vocabulary::FOLDER))?;
        Ok(files)
    }

    /// Returns the categorical columns whose look-ups in the training part are the counts of their vocabularies.
    pub(crate) fn known_counts(&self) -> impl Iterator<Item = (usize, &[u64])> {
        let columns = &self.schema.categorical;
        // The counts of a shared vocabulary cover all columns that share it.
        let is_shared = |name: &String| columns.iter().any(|other| other.shares.as_ref() == Some(name));
        let counts = move |(number, column): (usize, &crate::schema::Categorical)| {
            let own = self.counted[number] && column.shares.is_none() && !is_shared(&column.name);
            Some((number, self.encoder.vocabulary(number).filter(|_| own)?.loaded()?.counts()))
        };
        columns.iter().enumerate().filter_map(counts)
    }
}

/// What is known before rows are read.
pub(crate) struct Before {
    /// One entry per categorical column: the vocabulary that exists.
    pub(crate) vocabularies: Vec<Option<Lookup>>,
    pub(crate) columns: ColumnsBefore,
}

/// What [`LearntColumns`] keep of an old dataset; see there.
pub(crate) struct ColumnsBefore {
    old: Option<(String, Schema)>,
    earlier: Option<Vec<TableStatistics>>,
    counted: Vec<bool>,
    files: Option<VocabularyFiles>,
}

impl Before {
    pub(crate) fn of(plan: &Plan, inherited: Option<Inherited>) -> Self {
        let (old, vocabularies, earlier, files) = match inherited {
            Some(Inherited { name, schema, vocabularies, statistics, files }) => {
                (Some((name, schema)), vocabularies, statistics, files)
            }
            None => (None, vec![None; plan.draft.categorical.len()], None, None),
        };
        let counted = counted_by(&vocabularies, old.is_some(), earlier.as_deref());
        Self { vocabularies, columns: ColumnsBefore { old, earlier, counted, files } }
    }
}

/// Returns for each categorical column whether the counts of its vocabulary, once learnt, are the look-ups that the
/// statistics should have: not if `vocabularies` of an old dataset count rows that its statistics do not.
fn counted_by(
    vocabularies: &[Option<Lookup>],
    inherited: bool,
    earlier: Option<&[TableStatistics]>,
) -> Vec<bool> {
    let counted = |(number, vocabulary): (usize, &Option<Lookup>)| {
        // A fit, whose vocabularies may be mapped, has no statistics.
        let loaded = vocabulary.as_ref().and_then(Lookup::loaded);
        let lookups = loaded.into_iter().flat_map(Vocabulary::counts).sum::<u64>();
        !inherited || earlier.is_some_and(|earlier| earlier[number].lookups == lookups)
    };
    vocabularies.iter().enumerate().map(counted).collect()
}

/// Checks that there are rows to train on.
///
/// # Errors
/// [`Error::BadRows`] if no row is good; [`Error::Setting`] if all good rows are held out.
pub(crate) fn check_trained(rows: &RowCounts, options: &ConvertOptions) -> Result<()> {
    let &RowCounts { read, bad, eval, train, .. } = rows;
    if train > 0 {
        return Ok(());
    }
    Err(match read - bad {
        _ if read == 0 => Error::bad_rows(None, None, NO_ROWS),
        0 => Error::bad_rows(
            None,
            None,
            match read {
                1 => "no rows are left for training: the only row read is bad".into(),
                _ => format!("no rows are left for training: all {read} rows read are bad"),
            },
        ),
        _ if options.split == RowSplit::default() => Error::setting(
            "--eval",
            "no rows are left for training: the files other than those of --eval have no good rows; check that \
             these are the files you mean",
        ),
        _ => Error::setting(
            "--split",
            format!(
                "no rows are left for training: {} read, {bad} of them bad and {eval} held out for evaluation \
                 (--split {}); hold out fewer",
                if read == 1 { "1 row was".into() } else { format!("{read} rows were") },
                options.split
            ),
        ),
    })
}

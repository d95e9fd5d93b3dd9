//! Several datasets as one: opened together, merged into a collection, or one of them beside another.

use std::path::Path;

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::publish::PartialDir;
use rankine_base::url::{refuse, without_file_scheme};

use crate::convert::KnownColumns;
use crate::dataset::{
    COLLECTION_NAME, Collection, Dataset, FileManifest, Folders, Shard, first_repeated, open_folders,
};
use crate::schema::{Label, VocabularyKind};
use crate::statistics;
use crate::write::{write_file, write_popularity};

/// Opens datasets, collections among them, as one: its parts have the samples of all, in this order.
///
/// Transforms must be the same. Vocabularies may hold different numbers of categories if the rows that two datasets
/// both have stand for the same categories, as after `convert --like --grow`.
///
/// # Errors
/// As [`Dataset::open`]; [`Error::Columns`] if two of them do not fit together; [`Error::Unsuitable`] if one is listed
/// twice; [`Error::Setting`] if there is none.
pub fn open_all<P: AsRef<Path>>(dirs: &[P]) -> Result<Dataset> {
    if let [dir] = dirs {
        return Dataset::open(dir.as_ref());
    }
    let first = without_file_scheme(dirs.first().map_or(Path::new(""), AsRef::as_ref));
    Ok(Dataset::of_folders(&first, together(dirs)?))
}

/// Makes a collection of datasets, which stay where they are.
///
/// # Errors
/// As [`open_all`] and [`PartialDir::create`].
pub fn merge<P: AsRef<Path>>(dirs: &[P], out: &Path) -> Result<Dataset> {
    let folders = together(dirs)?;
    refuse(out, "a new collection")?;
    let target = std::path::absolute(out).context("find", out)?;
    let partial = PartialDir::create(out)?;
    let statistics = statistics::to_bytes(&folders.statistics()?);
    let statistics = write_file(partial.path(), statistics::FILE_NAME, &statistics)?;
    if let Some(popularity) = folders.popularities()? {
        write_popularity(partial.path(), &folders.manifest, &popularity)?;
    }
    let collection = Collection::of(&folders, &target, statistics)?;
    write_file(partial.path(), COLLECTION_NAME, collection.to_json().as_bytes())?;
    partial.publish()?;
    Dataset::open(out)
}

/// Returns a dataset as a model that was trained on another one reads it, with the numbers of the columns that have
/// categories which that one lacks: their ids are out of range and stand for unknown categories. Returns `None` if one
/// of the two is not the other with new categories, as after `convert --like --grow`.
///
/// # Errors
/// [`Error::Damaged`] or [`Error::Io`] for a vocabulary.
pub fn with_tables_of(dataset: &Dataset, trained: &Dataset) -> Result<Option<(Dataset, Vec<usize>)>> {
    let [own, theirs] = [KnownColumns::of(dataset)?, KnownColumns::of(trained)?];
    if own.growth(&theirs).is_err() && theirs.growth(&own).is_err() {
        return Ok(None);
    }
    let columns = dataset.schema().categorical.iter().zip(&trained.schema().categorical);
    let grown: Vec<_> = columns.enumerate().filter(|(_, (own, trained))| own.rows > trained.rows).collect();
    // No row of another column stands for unknown categories.
    if grown.iter().any(|(_, (own, _))| !matches!(own.vocabulary, VocabularyKind::Exact { .. })) {
        return Ok(None);
    }
    let grown = grown.into_iter().map(|(number, _)| number).collect();
    Ok(Some((dataset.clone().with_rows_of(trained.schema()), grown)))
}

/// Opens the shards of datasets and collections, and checks that they fit together.
pub(crate) fn together<P: AsRef<Path>>(dirs: &[P]) -> Result<Folders> {
    let mut shards = Vec::new();
    for dir in dirs {
        shards.extend(open_folders(dir.as_ref())?.into_shards());
    }
    let folders: Vec<_> = shards.iter().map(|shard| &shard.dir).collect();
    if let Some(dir) = first_repeated(&folders) {
        let what = format!("the dataset {} is listed twice: list it once", dir.display());
        return Err(Error::unsuitable(dir, what));
    }
    let rows = |shard: &Shard| {
        shard.manifest.schema.categorical.iter().filter_map(|column| column.rows).sum::<u64>()
    };
    let Some(most) = shards.iter().map(rows).max() else {
        return Err(Error::setting("shards", "a collection needs at least one dataset"));
    };
    let reference = shards.iter().position(|shard| rows(shard) == most).expect("one has the most");
    let mut known = None;
    for shard in shards.iter().filter(|shard| shard.dir != shards[reference].dir) {
        check_alike(shard, &shards[reference], &mut known)?;
    }
    Ok(Folders::of(shards, reference, None))
}

/// Checks that samples of a shard mean the same under the columns and vocabularies of the reference; `known` has those
/// once they were read.
fn check_alike(shard: &Shard, reference: &Shard, known: &mut Option<KnownColumns>) -> Result<()> {
    let [of_shard, of_reference] = [shard, reference].map(|shard| &shard.manifest);
    let vocabularies = |files: &[FileManifest]| {
        files.iter().filter(|file| file.name != statistics::FILE_NAME).cloned().collect::<Vec<_>>()
    };
    let (a, b) = (&of_shard.schema, &of_reference.schema);
    let (shard_dir, reference_dir) = (shard.dir.display(), reference.dir.display());
    let unfit = |what: String| {
        let what =
            format!("the datasets A = {shard_dir} and B = {reference_dir} do not fit together: {what}");
        Err(Error::columns(None, what))
    };
    let refuse = |what: String| {
        unfit(format!("{what}. Convert the rows of A with `rankine convert ... --like {reference_dir}`"))
    };
    if a.weight != b.weight {
        return refuse("only one of them has sample weights, or under another name".into());
    }
    if a.sequences != b.sequences {
        return refuse("their sequences differ".into());
    }
    if a.dense_dtype != b.dense_dtype {
        return refuse(format!("numbers are {} in A and {} in B", a.dense_dtype, b.dense_dtype));
    }
    let differs = |(a, b): &(&Label, &Label)| a.name == b.name && a.share_kept() != b.share_kept();
    if let Some((a, b)) = a.labels.iter().zip(&b.labels).find(differs) {
        return unfit(format!(
            "negatives_kept of label {} is {} in A and {} in B, so a model of both would be right for neither. Keep \
             the same share of the negatives in both",
            a.name,
            a.share_kept(),
            b.share_kept()
        ));
    }
    if a == b && vocabularies(&of_shard.files) == vocabularies(&of_reference.files) {
        return Ok(());
    }
    let open = |shard: &Shard| KnownColumns::of(&Dataset::open(&shard.dir)?);
    let mine = open(shard)?;
    let theirs = match known {
        Some(known) => known,
        None => known.insert(open(reference)?),
    };
    mine.growth(theirs).map(drop).or_else(|difference| refuse(difference.to_string()))
}

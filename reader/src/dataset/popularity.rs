//! How often the rows of a dataset are looked up: the file of its folder, or the sum over its shards.

use std::path::Path;

use rankine_base::error::Result;

use super::folder::Folders;
use super::{Dataset, Manifest, Source};
use crate::part::Part;
use crate::popularity::{Counted, Popularity, PopularityClasses, PopularityFile, PopularitySum};

impl Dataset {
    /// Returns the folder with the files of the whole dataset; `None` for raw files and for several datasets that are
    /// no collection.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match &self.source {
            Source::Folders(folders) => folders.folder(),
            Source::Raw(_) | Source::Columns(_) => None,
        }
    }

    /// Returns the rows of each stored categorical column's table by how often the training part looks them up; `None`
    /// if nobody counted them: see [`crate::counting::count`]. For several datasets, or a collection without counts,
    /// adds up the counts of all shards.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a file is not what was written; [`Error::TooLarge`]; [`Error::Io`].
    #[doc(hidden)]
    pub fn popularity_classes(&self) -> Result<Option<Vec<PopularityClasses>>> {
        match &self.source {
            Source::Folders(folders) => folders.popularity_classes(),
            Source::Raw(_) | Source::Columns(_) => Ok(None),
        }
    }

    /// Returns how often the training part looks up each row of a stored categorical column's table. Takes a byte per
    /// row, and eight more while shards are added up.
    ///
    /// # Errors
    /// As [`Dataset::popularity_classes`].
    #[doc(hidden)]
    pub fn popularity(&self, column: usize) -> Result<Option<Popularity>> {
        match &self.source {
            Source::Folders(folders) => folders.popularity(column),
            Source::Raw(_) | Source::Columns(_) => Ok(None),
        }
    }

    /// Returns how often the training part looks up each row of a table that these stored categorical columns share,
    /// the sum over all of them. Takes a byte per row, and eight more while several columns are added up.
    ///
    /// # Errors
    /// As [`Dataset::popularity_classes`].
    #[doc(hidden)]
    pub fn shared_popularity(&self, columns: &[usize]) -> Result<Option<Popularity>> {
        if let [column] = columns {
            return self.popularity(*column);
        }
        let mut sum = PopularitySum::default();
        for &column in columns {
            let Some(popularity) = self.popularity(column)? else { return Ok(None) };
            sum.add(&popularity)?;
        }
        sum.finish().map(Some)
    }

    /// Reads and checks the popularity of all rows in the dataset's folder; returns whether there is one.
    pub(crate) fn verify_popularity(&self) -> Result<bool> {
        match &self.source {
            Source::Folders(folders) => folders.verify_popularity(),
            Source::Raw(_) | Source::Columns(_) => Ok(false),
        }
    }
}

impl Manifest {
    /// Returns what identifies the samples of the training part; `None` without one.
    pub(crate) fn counted(&self) -> Option<Counted> {
        let index_xxh3 = self.parts.get(&Part::Train)?.index_xxh3.0;
        Some(Counted { tag: Self::tag(&self.schema), index_xxh3 })
    }
}

impl Folders {
    /// Opens the popularity in the folder of all shards together, if there is one.
    fn own_popularity(&self) -> Result<Option<PopularityFile>> {
        match self.folder() {
            Some(folder) => open_popularity(folder, &self.manifest),
            None => Ok(None),
        }
    }

    /// Opens the files that count the rows: one for all shards together, or one per shard with a training part; none
    /// if some rows were not counted.
    fn popularity_files(&self) -> Result<Vec<PopularityFile>> {
        if let Some(own) = self.own_popularity()? {
            return Ok(vec![own]);
        }
        let shards = self.shards().iter().filter(|shard| shard.manifest.parts.contains_key(&Part::Train));
        let files =
            shards.map(|shard| open_popularity(&shard.dir, &shard.manifest)).collect::<Result<Vec<_>>>()?;
        Ok(files.into_iter().collect::<Option<_>>().unwrap_or_default())
    }

    fn popularity_classes(&self) -> Result<Option<Vec<PopularityClasses>>> {
        let mut files = self.popularity_files()?;
        if files.len() <= 1 {
            return Ok(files.pop().map(PopularityFile::into_classes));
        }
        let columns = 0..self.manifest.schema.stored_categorical().len();
        let classes = columns.map(|column| Ok(self.summed_popularity(&files, column)?.classes().clone()));
        classes.collect::<Result<_>>().map(Some)
    }

    fn popularity(&self, column: usize) -> Result<Option<Popularity>> {
        let files = self.popularity_files()?;
        if files.is_empty() { Ok(None) } else { self.summed_popularity(&files, column).map(Some) }
    }

    /// Returns the popularity of all columns.
    pub(crate) fn popularities(&self) -> Result<Option<Vec<Popularity>>> {
        let files = self.popularity_files()?;
        let columns = 0..self.manifest.schema.stored_categorical().len();
        let summed = || columns.map(|column| self.summed_popularity(&files, column)).collect::<Result<_>>();
        if files.is_empty() { Ok(None) } else { summed().map(Some) }
    }

    /// Adds up the popularity of a column over all files.
    fn summed_popularity(&self, files: &[PopularityFile], column: usize) -> Result<Popularity> {
        let rows = self.manifest.schema.stored_categorical()[column].rows.unwrap_or(0);
        if let [file] = files
            && file.rows(column) == Some(rows)
        {
            return file.table(column);
        }
        let mut sum = PopularitySum::new(rows)?;
        files.iter().try_for_each(|file| sum.add(&file.table(column)?))?;
        sum.finish()
    }

    fn verify_popularity(&self) -> Result<bool> {
        let own = self.own_popularity()?;
        own.as_ref().map_or(Ok(()), PopularityFile::verify)?;
        Ok(own.is_some())
    }
}

/// Opens the popularity that a folder has of the training part of a dataset.
fn open_popularity(folder: &Path, manifest: &Manifest) -> Result<Option<PopularityFile>> {
    match manifest.counted() {
        Some(counted) => PopularityFile::open(folder, counted, manifest.schema.stored_categorical()),
        None => Ok(None),
    }
}

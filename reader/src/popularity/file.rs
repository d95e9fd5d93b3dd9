//! `popularity.bin`, as specified in `docs/reference/dataset-format.md`.
//!
//! The manifest does not list it, so that it can be added to a complete dataset and removed again. It states what it
//! counts and has its own checksums instead. Its head has the classes of all tables, so that most readers need not read
//! the codes.

use std::path::{Path, PathBuf};

use rankine_base::error::{Error, Result};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::{
    CODES, Codes, Popularity, PopularityClasses, RUN_BYTES, RUN_SHIFT, TailBucket, counts_of, with_capacity,
};
use crate::schema::Categorical;
use crate::store::{self, Version};

/// The file that holds the popularity of all columns, in the schema's order.
pub const FILE_NAME: &str = "popularity.bin";
const MAGIC: [u8; 8] = *b"RKNPOPUL";
const VERSION: u64 = 1;
/// Bytes from the magic to the number of tables.
const START_BYTES: usize = 56;
/// Position of the checksum of all other bytes of the head.
const CHECKSUM_AT: usize = 40;
/// Bytes of a table before its classes, and of a class.
const TABLE_BYTES: u64 = 40;
const CLASS_BYTES: u64 = 24;

/// The samples that a file counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The tag of the dataset.
    pub(crate) tag: u64,
    /// The checksum of the training part's index.
    pub(crate) index_xxh3: u64,
}

/// Writes the file: calls `write` with its bytes, piece by piece.
pub(crate) fn write(
    counted: Counted,
    tables: &[Popularity],
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut records = Vec::new();
    let mut put = |value: u64| records.extend_from_slice(&value.to_le_bytes());
    for Popularity { classes, codes } in tables {
        let (kind, bytes, xxh3) = match codes {
            Codes::Bytes(bytes) => (0, bytes.len() as u64, xxh3_64(bytes)),
            Codes::Runs(runs) => {
                let mut hash = Xxh3Default::new();
                runs.iter().for_each(|run| hash.update(&run.to_le_bytes()));
                (1, runs.len() as u64 * RUN_BYTES, hash.digest())
            }
        };
        let listed = || (0..).zip(&*classes.0).filter(|(_, class)| class.rows > 0);
        [classes.rows(), kind, bytes, xxh3, listed().count() as u64].into_iter().for_each(&mut put);
        for (code, class) in listed() {
            [code, class.rows, class.lookups].into_iter().for_each(&mut put);
        }
    }
    let mut head = MAGIC.to_vec();
    let head_bytes = (START_BYTES + records.len()) as u64;
    let fields = [VERSION, counted.tag, counted.index_xxh3, head_bytes, 0, tables.len() as u64];
    fields.into_iter().for_each(|field| head.extend_from_slice(&field.to_le_bytes()));
    head.extend_from_slice(&records);
    let checksum = head_checksum(&head);
    head[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&checksum.to_le_bytes());
    write(&head)?;
    for table in tables {
        match &table.codes {
            Codes::Bytes(bytes) => write(bytes)?,
            Codes::Runs(runs) => {
                for some in runs.chunks(1 << 16) {
                    write(&some.iter().flat_map(|run| run.to_le_bytes()).collect::<Vec<_>>())?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the checksum of all bytes of the head but the checksum.
fn head_checksum(head: &[u8]) -> u64 {
    let mut hash = Xxh3Default::new();
    hash.update(&head[..CHECKSUM_AT]);
    hash.update(&head[CHECKSUM_AT + 8..]);
    hash.digest()
}

/// A file whose head was read and checked.
#[derive(Debug)]
pub(crate) struct PopularityFile {
    path: PathBuf,
    version: Version,
    tables: Vec<TableHead>,
}

/// What the head says of a table.
#[derive(Debug)]
struct TableHead {
    rows: u64,
    classes: PopularityClasses,
    is_runs: bool,
    offset: u64,
    bytes: u64,
    xxh3: u64,
}

impl PopularityFile {
    /// Opens the file in a folder; returns `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if it is not what was written, or counts other samples or columns.
    pub(crate) fn open(dir: &Path, counted: Counted, columns: &[Categorical]) -> Result<Option<Self>> {
        let path = dir.join(FILE_NAME);
        let version = match store::version(&path) {
            Ok(version) => version,
            Err(error) if store::is_missing(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let damaged = |what| damaged(&path, what);
        if version.bytes < START_BYTES as u64 {
            return Err(damaged("it ends too early".into()));
        }
        let read = |end| store::read_range(&path, &version, 0..end);
        let start = read(START_BYTES as u64)?;
        let head_bytes = field(&start, 4);
        let most = columns.len() as u64 * (TABLE_BYTES + CODES as u64 * CLASS_BYTES) + START_BYTES as u64;
        if start[..8] != MAGIC {
            return Err(damaged("it does not start with RKNPOPUL".into()));
        }
        if field(&start, 1) != VERSION {
            let what = format!("it has version {}, but this program reads {VERSION}", field(&start, 1));
            return Err(damaged(what));
        }
        if !(START_BYTES as u64..=most.min(version.bytes)).contains(&head_bytes) {
            return Err(damaged(format!("its head cannot have {head_bytes} bytes")));
        }
        let head = read(head_bytes)?;
        let tables = parse(&head, counted, columns, version.bytes).map_err(damaged)?;
        Ok(Some(Self { path, version, tables }))
    }

    /// Returns the classes of each table.
    pub(crate) fn into_classes(self) -> Vec<PopularityClasses> {
        self.tables.into_iter().map(|table| table.classes).collect()
    }

    /// Returns the number of rows of a table.
    pub(crate) fn rows(&self, number: usize) -> Option<u64> {
        self.tables.get(number).map(|table| table.rows)
    }

    /// Reads the codes of a table.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if they are not what was written; [`Error::TooLarge`] if the memory cannot be
    /// allocated.
    pub(crate) fn table(&self, number: usize) -> Result<Popularity> {
        let Some(table) = self.tables.get(number) else {
            return Err(damaged(&self.path, format!("it has no table {number}")));
        };
        let bytes = store::read_range(&self.path, &self.version, table.offset..table.offset + table.bytes)?;
        table.decode(bytes)?.map_err(|what| damaged(&self.path, what))
    }

    /// Reads and checks all tables.
    ///
    /// # Errors
    /// As [`PopularityFile::table`].
    pub(crate) fn verify(&self) -> Result<()> {
        (0..self.tables.len()).try_for_each(|number| self.table(number).map(drop))
    }
}

fn damaged(path: &Path, what: String) -> Error {
    let dir = path.parent().unwrap_or(Path::new("")).display();
    Error::damaged(path, None, format!("{what}. Make it again with `rankine inspect {dir} --count`"))
}

/// Returns the u64 at this position, counted in u64s.
fn field(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"))
}

/// Parses the head of a file of `file_bytes` bytes.
fn parse(
    head: &[u8],
    counted: Counted,
    columns: &[Categorical],
    file_bytes: u64,
) -> Result<Vec<TableHead>, String> {
    if head_checksum(head) != field(head, 5) {
        return Err("the checksum of its head is wrong".into());
    }
    if (Counted { tag: field(head, 2), index_xxh3: field(head, 3) }) != counted {
        return Err("it counts the samples of another dataset".into());
    }
    if field(head, 6) != columns.len() as u64 {
        return Err("it does not have one table per categorical column".into());
    }
    let mut rest = &head[START_BYTES..];
    let mut take = || {
        let (first, after) = rest.split_first_chunk::<8>().ok_or("its head ends too early")?;
        rest = after;
        Ok::<u64, String>(u64::from_le_bytes(*first))
    };
    let mut offset = head.len() as u64;
    let mut tables = Vec::new();
    for column in columns {
        let (rows, kind, bytes, xxh3, listed) = (take()?, take()?, take()?, take()?, take()?);
        let mut classes = PopularityClasses::default();
        for _ in 0..listed {
            let (code, rows, lookups) = (take()?, take()?, take()?);
            let class = usize::try_from(code).ok().and_then(|code| classes.0.get_mut(code));
            let Some(class @ TailBucket { rows: 0, .. }) = class else {
                return Err(format!("it has no code {code} or has it twice, in column {}", column.name));
            };
            let (lowest, highest) = counts_of(code as u8);
            let [least, most] = [lowest, highest].map(|count| u128::from(count) * u128::from(rows));
            if rows == 0 || !(least..=most).contains(&u128::from(lookups)) {
                let what = format!("{rows} rows of code {code} cannot have {lookups} look-ups");
                return Err(format!("{what}, as it states for column {}", column.name));
            }
            *class = TailBucket { rows, lookups };
        }
        // Keys of an open vocabulary are not counted.
        let table_rows = column.rows.unwrap_or(0);
        let sum =
            |of: fn(&TailBucket) -> u64| classes.0.iter().try_fold(0_u64, |sum, c| sum.checked_add(of(c)));
        if sum(|class| class.rows) != Some(rows) || rows != table_rows || sum(|class| class.lookups).is_none()
        {
            return Err(format!("it does not count the {table_rows} rows of column {}", column.name));
        }
        let fits = match kind {
            0 => bytes == rows,
            1 => bytes.is_multiple_of(RUN_BYTES),
            _ => false,
        };
        let end = offset.checked_add(bytes).filter(|&end| fits && end <= file_bytes);
        let Some(end) = end else {
            return Err(format!("it cannot have {bytes} bytes of kind {kind} for column {}", column.name));
        };
        tables.push(TableHead { rows, classes, is_runs: kind == 1, offset, bytes, xxh3 });
        offset = end;
    }
    if !rest.is_empty() || offset != file_bytes {
        return Err("its length does not match its tables".into());
    }
    Ok(tables)
}

impl TableHead {
    /// Checks the bytes of the table's codes. The outer error is about memory.
    fn decode(&self, bytes: Vec<u8>) -> Result<Result<Popularity, String>> {
        if xxh3_64(&bytes) != self.xxh3 {
            return Ok(Err("the checksum of a table's codes is wrong".into()));
        }
        let codes = if self.is_runs {
            let mut runs = with_capacity(self.bytes / RUN_BYTES)?;
            runs.extend((0..bytes.len() / RUN_BYTES as usize).map(|at| field(&bytes, at)));
            let lengths = || runs.iter().map(|run| run >> RUN_SHIFT);
            let sum = lengths().try_fold(0_u64, u64::checked_add);
            if sum != Some(self.rows) || lengths().any(|rows| rows == 0) {
                return Ok(Err("the runs of a table's codes do not have its rows".into()));
            }
            Codes::Runs(runs)
        } else {
            Codes::Bytes(bytes)
        };
        let popularity = Popularity { classes: self.classes.clone(), codes };
        let mut rows = [0_u64; CODES];
        popularity.each_run(|code, _, run| rows[usize::from(code)] += run);
        if !rows.iter().eq(self.classes.0.iter().map(|class| &class.rows)) {
            return Ok(Err("it does not have each code as often as its head states".into()));
        }
        Ok(Ok(popularity))
    }
}

//! Raw rows: Criteo's TSV, CSV, HugeCTR's records. The converted datasets must be readable.

use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use rankine_reader::convert::{
    BadLimit, ConvertOptions, CriteoColumns, OnBad, RowFormat, SchemaFile, convert_criteo, convert_csv,
    convert_hugectr_raw, rehearse,
};
use rankine_reader::generate::Shape;
use rankine_reader::raw::{RawDense, RawFormat, RawIds};
use rankine_reader::schema::DenseDtype;
use rankine_reader::{self as reader, Dataset};

use super::{Reader, TempFolder, error_text, read_dataset, stream_dataset};

/// Options of a conversion that skips bad rows.
pub fn lenient(file: PathBuf, out: PathBuf) -> ConvertOptions {
    ConvertOptions {
        on_bad: OnBad::Quarantine,
        bad_limit: BadLimit::Percent(100.0),
        threads: NonZeroUsize::MIN,
        ..ConvertOptions::new(vec![file], out)
    }
    .with_memory(1 << 20)
}

fn silent(_: &'static str, _: u64, _: u64) {}

/// A file of rows and its converted dataset, which is removed afterwards.
#[derive(Debug)]
struct Conversion {
    folder: TempFolder,
}

impl Conversion {
    fn convert<T>(
        &self,
        rows: &[u8],
        convert: impl FnOnce(&ConvertOptions) -> rankine_base::Result<T>,
    ) -> Result<(), String> {
        let (file, out) = (self.folder.file("rows", rows), self.folder.path("out"));
        let outcome = convert(&lenient(file, out.clone())).map_err(error_text);
        if outcome.is_ok() {
            read_dataset(&out)
                .unwrap_or_else(|error| panic!("the converted dataset cannot be read: {error}"));
        }
        let _ = fs::remove_dir_all(&out);
        outcome.map(drop)
    }

    /// Returns the row format for reading further rows, after converting these.
    fn row_format<T>(
        &self,
        rows: &[u8],
        convert: impl FnOnce(&ConvertOptions) -> rankine_base::Result<T>,
    ) -> (RowFormat, reader::Schema) {
        let (file, out) = (self.folder.file("rows", rows), self.folder.path("out"));
        convert(&lenient(file, out.clone())).map(drop).unwrap_or_else(|error| panic!("{error}"));
        let dataset = Dataset::open(&out).unwrap();
        fs::remove_dir_all(&out).unwrap();
        (dataset.row_format().unwrap(), dataset.schema().clone())
    }
}

/// How rows of text are read, selected by the first byte of an input: converted, or read in chunks of the given
/// length.
#[derive(Debug, Clone, Copy)]
enum ReadMode {
    Convert,
    Rehearse { chunk_bytes: usize },
}

impl ReadMode {
    fn of(first: u8) -> Self {
        match first & 7 {
            0 => Self::Convert,
            way => Self::Rehearse { chunk_bytes: 16 << way },
        }
    }
}

/// Criteo's TSV. The first byte selects how it is read, and whether it is first compressed in two pieces.
#[derive(Debug)]
pub struct Criteo {
    conversion: Conversion,
    columns: CriteoColumns,
    form: (RowFormat, reader::Schema),
}

impl Criteo {
    const COMPRESSED: u8 = 8;

    fn rows() -> String {
        let mut rows = String::new();
        for row in 0..4 {
            rows += &format!("{}\t{}\t-1\t\t7", row % 2, 10 * row);
            rows += &"\t5".repeat(9);
            rows += &format!("\t68fd1e6{row}\t\t{}\n", ["ff"; 24].join("\t"));
        }
        rows
    }
}

impl Reader for Criteo {
    const NAME: &'static str = "criteo";

    fn new(folder: TempFolder) -> Self {
        let columns = CriteoColumns { vocabulary: "hash:50".parse().unwrap(), ..CriteoColumns::default() };
        let columns = CriteoColumns { columns: vec!["C1=exact".parse().unwrap()], ..columns };
        let conversion = Conversion { folder };
        let convert = |options: &ConvertOptions| convert_criteo(options, &columns, &silent);
        let form = conversion.row_format(Self::rows().as_bytes(), convert);
        Self { conversion, columns, form }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let (&first, rows) = bytes.split_first().ok_or("the input is empty")?;
        let rows = if first & Self::COMPRESSED != 0 { compressed(rows) } else { rows.to_vec() };
        match ReadMode::of(first) {
            ReadMode::Convert => {
                self.conversion.convert(&rows, |options| convert_criteo(options, &self.columns, &silent))
            }
            ReadMode::Rehearse { chunk_bytes } => {
                let file = self.conversion.folder.file("rows", rows);
                rehearse(&file, &self.form.0, &self.form.1, chunk_bytes).map(drop).map_err(error_text)
            }
        }
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let rows = Self::rows();
        let with = |first: u8, rows: &[u8]| [&[first], rows].concat();
        vec![
            ("converted", with(b'p', rows.as_bytes())),
            ("compressed-and-converted", with(b'x', rows.as_bytes())),
            ("in-chunks", with(b'u', rows.as_bytes())),
            ("compressed-and-in-chunks", with(b'~', rows.as_bytes())),
            ("of-gzip", with(b'w', &compressed(rows.as_bytes()))),
        ]
    }
}

/// Two members, as written by `cat a.gz b.gz`.
fn compressed(rows: &[u8]) -> Vec<u8> {
    let (one, other) = rows.split_at(rows.len() / 2);
    let mut file = Vec::new();
    for piece in [one, other] {
        let mut encoder = GzEncoder::new(&mut file, Compression::fast());
        encoder.write_all(piece).and_then(|()| encoder.finish().map(drop)).expect("memory takes everything");
    }
    file
}

/// Schemas of CSV, the first of which uses all features.
pub const CSV_SCHEMAS: [&str; 5] = [
    "\
label = { column = \"label\" }
weight = { column = \"weight\" }
dense = [{ column = \"price\", transform = [\"log1p\", \"standardize\"] }]
categorical = [
    { column = \"user\", vocabulary = { kind = \"exact\", min_count = 2 } },
    { column = \"tags\", vocabulary = { kind = \"hash\", rows = 100 }, separator = \"|\" },
    { column = \"row\", vocabulary = { kind = \"identity\", rows = 10 } },
]
",
    "\
format = { delimiter = \";\", header = false, quote = false, columns = [\"clicked\", \"price\", \"user\"] }
label = { column = \"clicked\", at_least = 4 }
dense = [{ column = \"price\" }]
categorical = [{ column = \"user\" }]
",
    "\
label = [
    { column = \"clicked\", equals = \"yes\", missing = \"mask\" },
    { column = \"bought\", missing = \"mask\" },
]
categorical = [{ column = \"tags\", separator = \", \", vocabulary = { kind = \"exact\", min_count = 1 } }]
",
    "\
label = { column = \"label\" }
[[categorical]]
column = \"tags\"
separator = \"|\"
weights = \"w\"
vocabulary = { kind = \"hash\", rows = 100 }
[[categorical]]
column = \"row\"
separator = \"|\"
weights = \"shares\"
pooling = \"mean\"
vocabulary = { kind = \"identity\", rows = 10 }
",
    "\
label = { column = \"label\" }
[[categorical]]
column = \"item\"
vocabulary = { kind = \"exact\", min_count = 1 }
[[categorical]]
column = \"items\"
separator = \"|\"
vocabulary = { kind = \"shared\", with = \"item\" }
[[categorical]]
column = \"rows\"
separator = \" \"
vocabulary = { kind = \"identity\", rows = 10 }
[[categorical]]
column = \"items\"
name = \"item_keys\"
separator = \"|\"
vocabulary = { kind = \"open\" }
[[sequence]]
name = \"clicks\"
columns = [\"items\", \"rows\"]
max = 2
keep = \"first\"
",
];

/// CSV. The first byte selects the schema and how it is read.
#[derive(Debug)]
pub struct Csv {
    conversion: Conversion,
    schemas: Vec<SchemaFile>,
    forms: Vec<(RowFormat, reader::Schema)>,
}

/// First bytes from this one on select the schema with a sequence.
const SEQUENCE: u8 = 128;

/// Rows of each of [`CSV_SCHEMAS`].
pub const CSV_ROWS: [&str; 5] = [
    "label,weight,price,user,tags,row\n1,1.5,3.25,\"user \"\"1\"\"\",a|b|c,9\n0,1,,u,,0\n0,0.5,-1e3,u,a,3\n",
    "5;1.5;\"u\n3;;v\n",
    "clicked,bought,tags\nyes,1,\"a, b, c\"\nno,,\n,0,a\n",
    "w,label,tags,row,shares\n0.5|2,1,a|b,1|2,0|1e-3\n,0,,,\n0,0,b,0,3\n",
    "label,items,rows,item\n1,a|b|c,1 2 9,a\n0,,,b\n1,c,0,c\n",
];

impl Csv {
    /// Returns the byte for a schema and a mode.
    fn first(schema: u8, way: u8) -> u8 {
        if schema < 4 { b'@' + 8 * schema + way } else { SEQUENCE + way }
    }
}

impl Reader for Csv {
    const NAME: &'static str = "csv";

    fn new(folder: TempFolder) -> Self {
        let conversion = Conversion { folder };
        let schema = |text: &str| SchemaFile::parse("schema.toml", text).unwrap_or_else(|e| panic!("{e}"));
        let schemas: Vec<_> = CSV_SCHEMAS.iter().map(|text| schema(text)).collect();
        let form = |(schema, rows): (&SchemaFile, &str)| {
            conversion.row_format(rows.as_bytes(), |options| convert_csv(options, schema, 1, &silent))
        };
        let forms = schemas.iter().zip(CSV_ROWS).map(form).collect();
        Self { conversion, schemas, forms }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let (&first, rows) = bytes.split_first().ok_or("the input is empty")?;
        let number = if first < SEQUENCE { usize::from(first >> 3) % 4 } else { 4 };
        let (schema, form) = (&self.schemas[number], &self.forms[number]);
        match ReadMode::of(first) {
            ReadMode::Convert => {
                self.conversion.convert(rows, |options| convert_csv(options, schema, 1, &silent))
            }
            ReadMode::Rehearse { chunk_bytes } => {
                let file = self.conversion.folder.file("rows", rows);
                rehearse(&file, &form.0, &form.1, chunk_bytes).map(drop).map_err(error_text)
            }
        }
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let [every, plain, labels, weights, sequence] = CSV_ROWS;
        let marked = "\u{feff}label,weight,price,user,tags,row\r\n1,1,1,\"a\r\nb\",,1\r\n0,1,1,u,,2\r\n";
        let with = |schema, way, rows: &str| [&[Self::first(schema, way)], rows.as_bytes()].concat();
        vec![
            ("every-column", with(0, 0, every)),
            ("every-column-in-chunks", with(0, 4, every)),
            ("line-ends-and-mark", with(0, 0, marked)),
            ("line-ends-and-mark-in-chunks", with(0, 3, marked)),
            ("no-header", with(1, 0, plain)),
            ("no-header-in-chunks", with(1, 1, plain)),
            ("labels", with(2, 0, labels)),
            ("labels-in-chunks", with(2, 2, labels)),
            ("weights", with(3, 0, weights)),
            ("weights-in-chunks", with(3, 2, weights)),
            ("sequence", with(4, 0, sequence)),
            ("sequence-in-chunks", with(4, 2, sequence)),
        ]
    }
}

/// HugeCTR's raw records. The first byte selects the fields, and whether they are converted and also read directly.
#[derive(Debug)]
pub struct Raw {
    conversion: Conversion,
    formats: Vec<RawFormat>,
}

impl Reader for Raw {
    const NAME: &'static str = "raw";

    fn new(folder: TempFolder) -> Self {
        let dlrm = Shape::load("dlrm").unwrap();
        let shape = Shape { dense: 2, rows: vec![5, 7, 300], hotness: vec![1, 3, 1], ..dlrm.clone() };
        let plain = RawFormat::new(shape.clone());
        let numbered = RawFormat {
            dense: RawDense::Int,
            ids: RawIds::GlobalOffset,
            labels: 2,
            ..RawFormat::new(Shape { dense: 1, ..shape })
        };
        let labels = RawFormat::new(Shape { dense: 0, rows: vec![3], hotness: Vec::new(), ..dlrm });
        Self { conversion: Conversion { folder }, formats: vec![plain, numbered, labels] }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let (&first, records) = bytes.split_first().ok_or("the input is empty")?;
        let format = &self.formats[usize::from(first >> 3) % 4 % self.formats.len()];
        let file = self.conversion.folder.file("rows", records);
        match ReadMode::of(first) {
            ReadMode::Convert => {
                let converted =
                    self.conversion.convert(records, |options| convert_hugectr_raw(options, format, &silent));
                let read = Dataset::raw(format, &[file], &[]).map_err(error_text);
                read.and_then(|dataset| stream_dataset(&dataset)).and(converted)
            }
            ReadMode::Rehearse { chunk_bytes } => {
                let form = RowFormat::HugectrRaw(format.clone());
                let schema = format.schema(DenseDtype::F32);
                rehearse(&file, &form, &schema, chunk_bytes).map(drop).map_err(error_text)
            }
        }
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let records = |first: u8, rows: &[&[u32]]| {
            let fields = rows.concat().into_iter().flat_map(u32::to_le_bytes);
            [first].into_iter().chain(fields).collect()
        };
        let one = 1.0f32.to_bits();
        let floats: [&[u32]; 2] = [&[one, one, 0, 4, 6, 0, 1, 299], &[0, 0, one, 0, 0, 0, 0, 0]];
        vec![
            ("floats", records(b'@', &floats)),
            ("floats-read", records(b'A', &floats)),
            ("integers", records(b'H', &[&[1, 0, 9, 4, 5, 6, 11, 12], &[0, 1, !0, 0, 5, 5, 5, 311]])),
            ("ids", records(b'P', &[&[1, 2], &[0, 0], &[one, 1]])),
        ]
    }
}

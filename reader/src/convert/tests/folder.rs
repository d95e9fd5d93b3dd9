//! Helpers shared by the tests of conversion.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use crate::block::Block;
use crate::convert::CriteoColumns;
use crate::convert::text::lines::Limits;
use crate::dataset::Dataset;
use crate::part::Part;
use crate::samples::Samples;
use crate::schema::{DenseDtype, Schema};

#[path = "../../../tests/support/samples.rs"]
mod samples;

/// Small enough that every test crosses chunk boundaries, and some lines do too.
pub(crate) const SMALL: Limits =
    Limits { chunk_bytes: 4096, line_bytes_max: 2000, readers: NonZeroUsize::MIN };

/// A temporary folder.
pub(crate) struct TestFolder {
    dir: tempfile::TempDir,
}

impl TestFolder {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }
}

/// Returns the samples of a part; none if it is absent.
pub(crate) fn samples_of(dir: &Path, part: Part) -> Samples {
    samples::samples_of(&Dataset::open(dir).unwrap(), part)
}

/// A valid row of a log, with made-up values.
pub(crate) const GOOD_LINE: &str = "\
    0\t3\t-1\t8\t12\t940\t6\t21\t3\t77\t1\t5\t\t4\t52e6b438\tf2a74de4\t269e0d37\t6513270e\ta6a3a450\t\
    0c5c7fd0\t128b2f33\td23f0824\t892f902b\t1818e811\t5d9dc9f8\t9531985d\t0ed90475\te8e25d94\t81e74ef5\t\
    36f675cc\t099950d8\t1600a35a\t6f03675a\t\t11e20b8f\t3d9c1724\t1738f7d9\t8d116ece\t6cad4a26\t0f21ddb6";

/// Returns the schema of a conversion with default options; its exact tables have no rows yet.
pub(crate) fn schema() -> Schema {
    CriteoColumns::default().plan(DenseDtype::F16).draft
}

/// Returns the line with another value in one of its fields.
pub(crate) fn with_field(line: &str, field: usize, value: &str) -> String {
    let mut fields: Vec<&str> = line.split('\t').collect();
    if let Some(old) = fields.get_mut(field) {
        *old = value;
    }
    fields.join("\t")
}

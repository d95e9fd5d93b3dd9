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

/// A valid row of the log.
pub(crate) const GOOD_LINE: &str = "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\t\
    fb936136\t7b4723c4\t25c83c98\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t\
    2824a5f6\t1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\t\
    c5c50484\te8b83407\t9727dd16";

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

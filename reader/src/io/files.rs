//! The files to read, some of which may be objects.

use std::path::PathBuf;
use std::sync::Arc;

use crate::store::Objects;

/// The files to read.
#[derive(Debug, Clone)]
pub struct ReadFiles {
    pub(super) paths: Arc<[PathBuf]>,
    pub(super) objects: Objects,
}

impl ReadFiles {
    /// Names files, some of which are objects.
    pub(crate) fn new(paths: &[PathBuf], objects: &Objects) -> Self {
        Self { paths: paths.into(), objects: objects.clone() }
    }
}

impl<P: Into<Arc<[PathBuf]>>> From<P> for ReadFiles {
    fn from(paths: P) -> Self {
        Self { paths: paths.into(), objects: Objects::default() }
    }
}

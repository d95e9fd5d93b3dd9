//! A build without CUDA has no GPUs to watch.

use super::super::catalog::Catalog;
use super::FAMILIES;

/// Exports nothing.
#[derive(Debug)]
pub(in super::super) struct GpuCollector;

impl GpuCollector {
    pub(in super::super) fn new() -> Self {
        Self
    }

    /// Only the reference lists what other builds export.
    pub(in super::super) fn register(&self, catalog: &mut Catalog) {
        catalog.families.extend(FAMILIES);
    }

    pub(in super::super) fn watch(&self, _: Vec<(usize, String)>) {}
}

//! A build without CUDA has no GPUs to watch.

use super::FAMILIES;
use crate::monitoring::catalog::Catalog;

/// Exports nothing.
#[derive(Debug)]
pub(in crate::monitoring) struct GpuCollector;

impl GpuCollector {
    pub(in crate::monitoring) fn new() -> Self {
        Self
    }

    /// Only the reference lists what other builds export.
    pub(in crate::monitoring) fn register(&self, catalog: &mut Catalog) {
        catalog.families.extend(FAMILIES);
    }

    pub(in crate::monitoring) fn watch(&self, _: Vec<(usize, String)>) {}
}

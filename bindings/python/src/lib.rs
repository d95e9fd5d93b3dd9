//! The compiled part of the Python package `rankine`. `python/rankine/_rankine.pyi` documents what it exports, and
//! `python/rankine/__init__.py` defines the exceptions that it raises.

mod array;
mod arrow;
mod convert;
mod dataset;
mod error;
mod evaluate;
mod job;
mod mapped;
mod ranker;
mod rows_file;
mod shards;
mod table;
mod train;
mod trainer;
mod value;
mod worker;

use pyo3::pymodule;

#[pymodule]
mod _rankine {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::convert::convert;
    #[pymodule_export]
    use super::dataset::{Batch, Batches, Dataset};
    #[pymodule_export]
    use super::evaluate::evaluate;
    #[pymodule_export]
    use super::ranker::Ranker;
    #[pymodule_export]
    use super::shards::{Partial, commit, encode, fit, learn};
    #[pymodule_export]
    use super::train::train;
    #[pymodule_export]
    use super::trainer::Trainer;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

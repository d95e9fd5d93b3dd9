//! Which algorithms the library's products use, and the record of them.

use std::collections::BTreeMap;

use cudarc::cublaslt::sys as lt;
use serde::{Deserialize, Serialize};

use crate::runtime::{Error, Result};

/// Where the algorithms of products come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Algorithms {
    /// Always the same with the same library on the same GPU: the one measured to be the fastest, or without a
    /// measurement the first one of the library's heuristics.
    #[default]
    Known,
    /// Those of a record, and the known ones for products that it does not name.
    Recorded(Tuning),
    /// The fastest: the candidates of the heuristics are timed when a product is planned. Two trainings may choose
    /// different ones, and round differently.
    Timed,
}

/// The algorithms that products use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// The GPU, as the driver names it.
    pub gpu: String,
    /// The version number of cuBLASLt. Other versions do not know its algorithms.
    pub library: usize,
    /// The library's representation of each product's algorithm: eight words in hexadecimal digits.
    pub algorithms: BTreeMap<String, String>,
}

impl Tuning {
    /// The measured algorithms, one record per GPU and library version.
    pub(super) fn known(gpu: &str, library: usize) -> Self {
        let all: Vec<Self> = serde_json::from_str(include_str!("known.json")).expect("a test reads it");
        let found = all.into_iter().find(|known| known.gpu == gpu && known.library == library);
        found.unwrap_or_else(|| Self { gpu: gpu.into(), library, algorithms: BTreeMap::new() })
    }

    /// # Errors
    /// If the record is for another GPU or another version of the library.
    pub(super) fn check(&self, gpu: &str, library: usize) -> Result<()> {
        if (self.gpu.as_str(), self.library) == (gpu, library) {
            return Ok(());
        }
        Err(Error::Tuning(format!(
            "it was made on {} with cuBLASLt {}; this is {gpu} with cuBLASLt {library}",
            self.gpu, self.library
        )))
    }

    /// Returns the algorithm recorded for a product.
    ///
    /// # Errors
    /// If it is malformed.
    pub(super) fn get(&self, product: &str) -> Result<Option<lt::cublasLtMatmulAlgo_t>> {
        let Some(words) = self.algorithms.get(product) else { return Ok(None) };
        let parsed =
            words.split(' ').map(|word| u64::from_str_radix(word, 16)).collect::<Result<Vec<_>, _>>();
        let data = parsed.ok().and_then(|words| words.try_into().ok());
        let data = data.ok_or_else(|| {
            Error::Tuning(format!("the algorithm of {product} is not eight words in hexadecimal digits"))
        })?;
        Ok(Some(lt::cublasLtMatmulAlgo_t { data }))
    }

    pub(super) fn set(&mut self, product: String, algorithm: &lt::cublasLtMatmulAlgo_t) {
        let words = algorithm.data.map(|word| format!("{word:x}"));
        self.algorithms.insert(product, words.join(" "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_can_be_read() {
        let all: Vec<Tuning> = serde_json::from_str(include_str!("known.json")).unwrap();
        for known in all {
            let read = Tuning::known(&known.gpu, known.library);
            assert_eq!(read, known, "a GPU and a version occur once");
            for product in known.algorithms.keys() {
                assert!(known.get(product).unwrap().is_some());
            }
        }
    }

    #[test]
    fn algorithms_come_back_as_they_went() {
        let mut tuning = Tuning { gpu: "a GPU".into(), library: 130_100, ..Tuning::default() };
        let algorithm = lt::cublasLtMatmulAlgo_t { data: [0, 1, u64::MAX, 3, 4, 5, 6, 7] };
        tuning.set("a product".into(), &algorithm);
        assert_eq!(tuning.get("a product").unwrap().map(|algorithm| algorithm.data), Some(algorithm.data));
        assert!(tuning.get("another one").unwrap().is_none());
        assert!(tuning.check("a GPU", 130_100).is_ok());
        let refused = tuning.check("a GPU", 130_200).unwrap_err().to_string();
        assert!(refused.contains("cuBLASLt 130100") && refused.contains("cuBLASLt 130200"), "{refused}");
        tuning.algorithms.insert("a product".into(), "1 2 x".into());
        assert!(tuning.get("a product").unwrap_err().to_string().contains("hexadecimal"));
    }
}

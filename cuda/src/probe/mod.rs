//! Reports which GPU libraries this machine has: the file, the version, and why a library cannot be used.
//!
//! The report is for a person who wonders why a GPU is not used, so every failure keeps the loader's own message for
//! every name that was tried. Nothing here panics, and nothing stays initialized except the driver, which has no
//! inverse of `cuInit`.

use std::fmt;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

mod collnet;
mod driver;
pub(crate) mod library;
pub(crate) mod specs;

pub use collnet::{CollNetMissing, collnet_plugin};
pub use driver::{Driver, VisibleGpu, uuid_text};

use library::{FoundLibrary, LibrarySpec};
use specs::{CUBLAS_LT, CUPTI, DRIVER, NCCL};

/// The libraries that were found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// The driver's library and the GPUs that it shows.
    pub driver: Presence<Driver>,
    /// Matrix multiplication.
    pub cublas_lt: Presence<Library>,
    /// Collectives.
    pub nccl: Presence<Library>,
    /// Traces of GPU activity.
    pub cupti: Presence<Library>,
}

/// A library that was found, or why it was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence<T> {
    /// It was found.
    Found(T),
    /// It was not found under any name.
    Missing(Vec<Attempt>),
}

/// A name under which a library was not found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The name, or the path.
    pub candidate: String,
    /// The candidate, and the loader's own message about it.
    pub why: String,
}

impl Attempt {
    /// Returns whether the file does not exist, rather than existing but failing to load.
    pub fn is_absence(&self) -> bool {
        // If a file is missing that the candidate depends on, the loader names that one instead.
        self.why
            .strip_prefix(&self.candidate)
            .is_some_and(|words| words.starts_with(": cannot open shared object file: No such file"))
    }
}

/// A library that could be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Library {
    /// The name under which it was found.
    pub name: String,
    /// The file, if the system reports it.
    pub path: Option<PathBuf>,
    /// Its version, or why it could not be read.
    #[serde(serialize_with = "value_or_error")]
    pub version: Result<Version, CallError>,
    /// Why it is not used: its version is not supported.
    pub refused: Option<String>,
}

/// A function of a library failed, or the library lacks it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The library has no such function.
    #[error("{why}")]
    Missing {
        /// The loader's own message, which names the function.
        why: String,
    },
    /// The function returned an error.
    #[error("{call}: {words} (error {status})")]
    Failed {
        /// The function.
        call: &'static str,
        /// The library's message.
        words: String,
        /// The status that it returned.
        status: i32,
    },
    /// The function returned an error that the library does not describe.
    #[error("{call} returned {status}")]
    Returned {
        /// The function.
        call: &'static str,
        /// The status that it returned.
        status: i32,
    },
}

/// A version number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
    /// The patch version; `None` for the driver, whose version is that of the newest CUDA it supports.
    pub patch: Option<u32>,
}

impl Version {
    /// Decodes `cuDriverGetVersion`: `1000 * major + 10 * minor`.
    fn of_driver(number: u32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10, patch: None }
    }

    /// Decodes `cublasLtGetVersion` from CUDA 12 on, `ncclGetVersion` from 2.9 on, and `cuptiGetVersion` from CUDA 13
    /// on: `10000 * major + 100 * minor + patch`.
    fn of_library(number: u32) -> Self {
        Self { major: number / 10_000, minor: number % 10_000 / 100, patch: Some(number % 100) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.patch.map_or(Ok(()), |patch| write!(f, ".{patch}"))
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Serializes a value as itself, and an error as `{"error": "..."}`.
fn value_or_error<T: Serialize, S: Serializer>(
    value: &Result<T, CallError>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Ok(value) => value.serialize(serializer),
        Err(why) => serializer.collect_map([("error", why.to_string())]),
    }
}

/// Searches for the libraries where training does, and queries those that are found.
///
/// Loading the driver and counting GPUs takes up to a few seconds on a machine with many.
pub fn probe() -> Probe {
    let driver = |found: &FoundLibrary| Driver {
        library: DRIVER.describe(found),
        devices: driver::devices(&found.loaded),
    };
    Probe {
        driver: presence(&DRIVER, driver),
        cublas_lt: presence(&CUBLAS_LT, |found| CUBLAS_LT.describe(found)),
        nccl: presence(&NCCL, |found| NCCL.describe(found)),
        cupti: presence(&CUPTI, |found| CUPTI.describe(found)),
    }
}

fn presence<T>(spec: &LibrarySpec, describe: impl FnOnce(&FoundLibrary) -> T) -> Presence<T> {
    match spec.find() {
        Ok(found) => Presence::Found(describe(&found)),
        Err(attempts) => Presence::Missing(attempts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_headers_define_them() {
        assert_eq!(Version::of_driver(13000).to_string(), "13.0");
        assert_eq!(Version::of_driver(12080).to_string(), "12.8");
        assert_eq!(Version::of_library(130_002).to_string(), "13.0.2");
        assert_eq!(Version::of_library(120_805).to_string(), "12.8.5");
        assert_eq!(Version::of_library(22_803).to_string(), "2.28.3");
    }

    /// On a machine with the libraries this checks the other half: each library that is found has a file and a
    /// version.
    #[test]
    fn every_library_is_found_or_its_absence_explained() {
        fn check<T>(presence: &Presence<T>, library: impl Fn(&T) -> &Library) {
            match presence {
                Presence::Found(found) => {
                    let library = library(found);
                    assert!(library.path.as_ref().is_some_and(|path| path.exists()), "{library:?}");
                    assert!(library.version.as_ref().is_ok_and(|version| version.major > 0), "{library:?}");
                }
                Presence::Missing(attempts) => {
                    assert!(attempts.len() >= 2);
                    assert!(
                        attempts.iter().all(|attempt| attempt.why.starts_with(&attempt.candidate)),
                        "{attempts:?}"
                    );
                }
            }
        }

        let probe = probe();
        check(&probe.driver, |driver| &driver.library);
        check(&probe.cublas_lt, |library| library);
        check(&probe.nccl, |library| library);
        check(&probe.cupti, |library| library);
    }
}

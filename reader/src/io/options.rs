//! Options for reading.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use rankine_base::error::{Error, InvalidValue, Result};

/// A method of reading, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// io_uring bypassing the page cache (`O_DIRECT`): the disk writes into the slabs.
    UringDirect,
    /// io_uring through the page cache.
    UringBuffered,
    /// Threads that call `pread`, through the page cache.
    Pread,
    /// Threads that copy from memory maps. The last resort: a disk error under a map is a signal that ends the
    /// process, while all other rungs report it.
    Mmap,
    /// Threads that each wait for a request to an object store, or read a cached block. The only rung for urls.
    ObjectStore,
}

impl Rung {
    /// All rungs for files, best first.
    pub const ALL: [Self; 4] = [Self::UringDirect, Self::UringBuffered, Self::Pread, Self::Mmap];

    /// Returns the rung's name, as spelled in job files and commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::UringDirect => "uring-direct",
            Self::UringBuffered => "uring-buffered",
            Self::Pread => "pread",
            Self::Mmap => "mmap",
            Self::ObjectStore => "object-store",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The rung to read with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoMode {
    /// The best rung that works; for files in memory (tmpfs), several threads that copy.
    #[default]
    Auto,
    /// [`Rung::UringDirect`] or an error.
    UringDirect,
    /// [`Rung::UringBuffered`] or an error.
    UringBuffered,
    /// [`Rung::Pread`] or an error.
    Pread,
    /// [`Rung::Mmap`] or an error.
    Mmap,
}

impl IoMode {
    /// All modes.
    pub const ALL: [Self; 5] = [Self::Auto, Self::UringDirect, Self::UringBuffered, Self::Pread, Self::Mmap];

    /// Returns the rung that this mode requires; `None` for the best that works.
    pub fn rung(self) -> Option<Rung> {
        match self {
            Self::Auto => None,
            Self::UringDirect => Some(Rung::UringDirect),
            Self::UringBuffered => Some(Rung::UringBuffered),
            Self::Pread => Some(Rung::Pread),
            Self::Mmap => Some(Rung::Mmap),
        }
    }

    /// Returns the mode's name, as spelled in job files and commands.
    pub fn name(self) -> &'static str {
        self.rung().map_or("auto", Rung::name)
    }
}

impl From<Rung> for IoMode {
    fn from(rung: Rung) -> Self {
        match rung {
            Rung::UringDirect => Self::UringDirect,
            Rung::UringBuffered => Self::UringBuffered,
            Rung::Pread => Self::Pread,
            Rung::Mmap => Self::Mmap,
            // No mode requires it: the files do.
            Rung::ObjectStore => Self::Auto,
        }
    }
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IoMode {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            InvalidValue::is_not(
                text,
                "a read mode: choose auto, uring-direct, uring-buffered, pread or mmap",
            )
        })
    }
}

/// The maximum number of reads in flight.
pub const DEPTH_MAX: u32 = 128;

/// Options for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct IoOptions {
    /// The rung.
    pub mode: IoMode,
    /// Reads in flight, 1 to [`DEPTH_MAX`]. A block is one read, usually of 1 to 2 MiB, so few keep a disk busy.
    pub depth: u32,
}

impl Default for IoOptions {
    fn default() -> Self {
        Self { mode: IoMode::Auto, depth: 16 }
    }
}

impl IoOptions {
    pub(crate) fn validate(&self) -> Result<()> {
        if self.depth == 0 || self.depth > DEPTH_MAX {
            let what = format!(
                "a depth of {} reads in flight is not possible: it must be 1 to {DEPTH_MAX}",
                self.depth
            );
            return Err(Error::setting("depth", what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_one_spelling() {
        for mode in IoMode::ALL {
            assert_eq!(mode.name().parse::<IoMode>().unwrap(), mode);
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
            assert_eq!(mode.rung().map_or(IoMode::Auto, IoMode::from), mode);
        }
        for rung in Rung::ALL {
            assert_eq!(serde_json::to_string(&rung).unwrap(), format!("\"{rung}\""));
        }
        assert!("io_uring".parse::<IoMode>().is_err());
    }
}

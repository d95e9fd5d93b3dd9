//! A file system that fails one operation, to rehearse failures.

use std::io;
use std::path::Path;
use std::process;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rankine_base::{InvalidValue, hooks};

use super::files::{Files, Input, Output};

/// The failure of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this error of the operating system.
    Error(i32),
    /// It is interrupted once.
    Interrupted,
    /// A write accepts one byte less than it is given (a direct one: one sector less), unless that is nothing; other
    /// operations succeed.
    Short,
    /// The process is killed before it, as by `kill -9`.
    Kill,
}

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
/// Bytes of the smallest disk sectors.
const SECTOR: usize = 512;

/// `N:KIND`: the operation's number, from 1, and `kill`, `eio`, `einval`, `enospc`, `eintr` or `short`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rehearsal(u64, Fault);

impl FromStr for Rehearsal {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let parsed = text.split_once(':').and_then(|(number, kind)| {
            let fault = match kind {
                "kill" => Fault::Kill,
                "eio" => Fault::Error(EIO),
                "einval" => Fault::Error(EINVAL),
                "enospc" => Fault::Error(ENOSPC),
                "eintr" => Fault::Interrupted,
                "short" => Fault::Short,
                _ => return None,
            };
            Some(Self(number.parse().ok()?, fault))
        });
        parsed.ok_or_else(|| {
            let expected =
                "a fault: use NUMBER:KIND, where KIND is kill, eio, einval, enospc, eintr or short";
            InvalidValue::is_not(text, expected)
        })
    }
}

/// Files that fail one operation.
#[derive(Debug)]
pub struct FaultyFiles {
    files: Arc<dyn Files>,
    counter: Arc<Counter>,
}

/// Counts operations, and decides which one fails.
#[derive(Debug)]
struct Counter {
    done: AtomicU64,
    at: u64,
    fault: Fault,
}

impl FaultyFiles {
    /// Operation number `at`, from 1, fails; with 0 none does.
    pub fn new(files: Arc<dyn Files>, at: u64, fault: Fault) -> Self {
        Self { files, counter: Arc::new(Counter { done: AtomicU64::new(0), at, fault }) }
    }

    /// Fails the operation that the environment variable `RANKINE_TEST_FAULT` names as `NUMBER:KIND`. Returns the files
    /// as they are if it is not set, and in builds without the feature `test-hooks`.
    ///
    /// # Errors
    /// If the variable has another form.
    pub fn by_environment(files: Arc<dyn Files>) -> Result<Arc<dyn Files>, InvalidValue> {
        let Some(text) = hooks::variable(hooks::FAULT) else { return Ok(files) };
        let Rehearsal(at, fault) = text.to_string_lossy().parse()?;
        Ok(Arc::new(Self::new(files, at, fault)))
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.counter.done.load(Ordering::SeqCst)
    }
}

impl Counter {
    /// Counts an operation. Returns whether it is to be a short one.
    fn count(&self) -> io::Result<bool> {
        if self.done.fetch_add(1, Ordering::SeqCst) + 1 != self.at {
            return Ok(false);
        }
        match self.fault {
            Fault::Error(code) => Err(io::Error::from_raw_os_error(code)),
            Fault::Interrupted => Err(io::ErrorKind::Interrupted.into()),
            Fault::Short => Ok(true),
            // No unwinding, flushing or dropping, as with `kill -9`.
            Fault::Kill => process::abort(),
        }
    }
}

impl Files for FaultyFiles {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.counter.count()?;
        self.files.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.counter.count()?;
        Ok(Box::new(FaultyOutput(self.files.create(path)?, Arc::clone(&self.counter))))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.counter.count()?;
        self.files.sync_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.counter.count()?;
        self.files.rename(from, to)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.counter.count()?;
        self.files.remove_dir(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        self.counter.count()?;
        self.files.names(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Input>> {
        self.counter.count()?;
        Ok(Box::new(FaultyInput(self.files.open(path)?, Arc::clone(&self.counter))))
    }

    fn tree_bytes(&self, path: &Path) -> io::Result<u64> {
        self.counter.count()?;
        self.files.tree_bytes(path)
    }
}

struct FaultyOutput(Box<dyn Output>, Arc<Counter>);

impl Output for FaultyOutput {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let short = self.1.count()? && !bytes.is_empty();
        self.0.write_at(if short { &bytes[..bytes.len() - 1] } else { bytes }, offset)
    }

    fn write_direct_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let short = self.1.count()? && bytes.len() > SECTOR;
        self.0.write_direct_at(if short { &bytes[..bytes.len() - SECTOR] } else { bytes }, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.count()?;
        self.0.sync()
    }
}

struct FaultyInput(Box<dyn Input>, Arc<Counter>);

impl Input for FaultyInput {
    fn size(&self) -> io::Result<u64> {
        self.1.count()?;
        self.0.size()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let short = self.1.count()? && bytes.len() > 1;
        let len = bytes.len() - usize::from(short);
        self.0.read_at(&mut bytes[..len], offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named() {
        assert_eq!("3:kill".parse(), Ok(Rehearsal(3, Fault::Kill)));
        assert_eq!("12:enospc".parse(), Ok(Rehearsal(12, Fault::Error(ENOSPC))));
        for wrong in ["", "3", "kill:3", "3:", "-1:eio", "3:kil"] {
            assert!(wrong.parse::<Rehearsal>().is_err(), "{wrong}");
        }
    }
}

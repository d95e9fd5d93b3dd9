//! Finding and loading one library.

use std::error::Error as _;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use super::{Attempt, Library, Version};

/// Where CUDA's installer puts its libraries, for machines whose loader was not told.
const DIRS: [&str; 3] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/extras/CUPTI/lib64",
];

/// A library that is loaded, and stays so: the driver and NCCL keep threads and thread-local state that would outlive
/// their code.
#[derive(Debug)]
pub(crate) struct Loaded {
    name: String,
    library: ManuallyDrop<libloading::Library>,
}

/// Loads the first of some names that can be loaded: each on the loader's own path, then in [`DIRS`].
pub(crate) fn load(names: &[&str]) -> Result<Loaded, Vec<Attempt>> {
    let in_dirs =
        DIRS.iter().flat_map(|dir| names.iter().map(|name| Path::new(dir).join(name).display().to_string()));
    let candidates = names.iter().map(|&name| name.to_owned()).chain(in_dirs);
    let mut attempts = Vec::new();
    for candidate in candidates {
        // SAFETY: loading runs the library's initializers. The names are those of NVIDIA's libraries, which are made to
        // be loaded at any time from any thread, and the places are those that only the machine's owner can write to.
        match unsafe { libloading::Library::new(&candidate) } {
            Ok(library) => return Ok(Loaded { name: candidate, library: ManuallyDrop::new(library) }),
            Err(error) => attempts.push(Attempt { why: loader_words(&error, &candidate), candidate }),
        }
    }
    Err(attempts)
}

/// What the loader itself said. The file that it names may be another one, which the candidate needs.
fn loader_words(error: &libloading::Error, candidate: &str) -> String {
    let words = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
    if words.starts_with(candidate) { words } else { format!("{candidate}: {words}") }
}

impl Loaded {
    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be the type of a function pointer, and of the very function that has this name.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        // SAFETY: the caller vouches for the type. The pointer may be copied out of the `Symbol`, whose lifetime only
        // guards against unloading, since the library is never unloaded.
        unsafe { self.library.get::<F>(name) }
            .map(|symbol| *symbol)
            .map_err(|error| error.source().map_or_else(|| error.to_string(), |source| source.to_string()))
    }

    /// The library in words; `symbol` is a function that it has, by whose address its file is found.
    pub(super) fn describe(self, symbol: &CStr, version: Result<Version, String>) -> Library {
        // SAFETY: any function pointer may be held as one of this type so long as it is not called, and it is not.
        let address = unsafe { self.symbol::<unsafe extern "C" fn()>(symbol) };
        let path = address.ok().and_then(|function| file_at(function as usize));
        Library { name: self.name, path, version }
    }
}

/// The file that is mapped at an address.
fn file_at(address: usize) -> Option<PathBuf> {
    file_in_maps(&std::fs::read_to_string("/proc/self/maps").ok()?, address)
}

/// Finds it in the text of `/proc/self/maps`, whose lines are `7f00-7f10 r-xp 00000000 fd:01 42    /path of/file`.
fn file_in_maps(maps: &str, address: usize) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let path = rest.find('/').map(|at| PathBuf::from(&rest[at..]));
        path.filter(|_| (start..end).contains(&address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_library_has_the_loaders_words_for_every_place() {
        let attempts = load(&["librankine-absent.so.1", "librankine-absent.so"]).err().unwrap();
        assert_eq!(attempts.len(), 2 + 2 * DIRS.len());
        assert_eq!(attempts[0].candidate, "librankine-absent.so.1");
        for attempt in &attempts {
            assert!(attempt.why.starts_with(&attempt.candidate), "{attempt:?}");
            assert!(attempt.is_absence(), "{attempt:?}");
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_told_from_an_absent_one() {
        let attempts = load(&["/proc/self/status"]).err().unwrap();
        assert!(attempts[0].why.contains("invalid ELF header"), "{attempts:?}");
        assert!(!attempts[0].is_absence());
    }

    #[test]
    fn a_library_is_found_with_its_file_and_its_functions() {
        let loaded = load(&["libc.so.6"]).ok().unwrap();
        // SAFETY: every function pointer may be held as this type so long as it is not called.
        let missing = unsafe { loaded.symbol::<unsafe extern "C" fn()>(c"rankine_absent") };
        assert!(missing.unwrap_err().contains("rankine_absent"));
        let library = loaded.describe(c"malloc", Err("not asked".into()));
        assert_eq!(library.name, "libc.so.6");
        assert!(library.path.is_some_and(|path| path.exists()));
    }

    #[test]
    fn the_file_of_an_address_is_read_from_the_map() {
        let maps = "1000-2000 r--p 00000000 fd:01 42    /lib/a.so\n2000-3000 r-xp 00001000 fd:01 43    /my lib/b.so\n\
                    3000-4000 rw-p 00000000 00:00 0\n";
        assert_eq!(file_in_maps(maps, 0x1fff), Some("/lib/a.so".into()));
        assert_eq!(file_in_maps(maps, 0x2000), Some("/my lib/b.so".into()));
        assert_eq!(file_in_maps(maps, 0x3000), None);
        assert_eq!(file_in_maps("nonsense\n-\n1-", 0), None);
    }
}

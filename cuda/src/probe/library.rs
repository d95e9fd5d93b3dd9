//! Finding and loading libraries. [`super::probe`] reports the results of this search, and all computing code uses
//! them.

use std::env::consts;
use std::error::Error as _;
use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use super::{Attempt, CallError, Library, Version};

/// Where packages of PyPI put CUDA's libraries and NCCL, below `site-packages`.
const IN_SITE_PACKAGES: [&str; 2] = ["nvidia/cu13/lib", "nvidia/nccl/lib"];

/// Returns the folders to search after the loader's own path: where pip puts NVIDIA's libraries next to the `program`
/// or the Python module that runs this code, and where CUDA's installer and Debian's packages put them.
fn folders(architecture: &str, program: Option<&Path>) -> Vec<PathBuf> {
    let (installed, packaged) = match architecture {
        // Servers with ARM processors, such as Grace.
        "aarch64" => ("sbsa-linux", "/usr/lib/aarch64-linux-gnu"),
        _ => ("x86_64-linux", "/usr/lib/x86_64-linux-gnu"),
    };
    let mut folders = program.map(in_site_packages).unwrap_or_default();
    folders.extend([
        "/usr/local/cuda/lib64".into(),
        format!("/usr/local/cuda/targets/{installed}/lib").into(),
        "/usr/local/cuda/extras/CUPTI/lib64".into(),
        packaged.into(),
    ]);
    folders
}

/// Returns the folders of NVIDIA's libraries that exist in the Python environment of a file: a command in `bin`, or a
/// module in `lib/python3.N/site-packages/PACKAGE`.
fn in_site_packages(file: &Path) -> Vec<PathBuf> {
    let above = |levels| file.ancestors().nth(levels).map(Path::to_owned);
    let versions = above(2).and_then(|environment| fs::read_dir(environment.join("lib")).ok());
    let versions = versions.into_iter().flatten().flatten().map(|entry| entry.path().join("site-packages"));
    let candidates = above(2).into_iter().chain(versions);
    let folders = candidates.flat_map(|folder| IN_SITE_PACKAGES.map(|name| folder.join(name)));
    let mut folders: Vec<_> = folders.filter(|folder| folder.is_dir()).collect();
    folders.sort();
    folders
}

/// A library to search for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LibrarySpec {
    /// Its names, the best first.
    pub(super) names: &'static [&'static str],
    /// A function that every version of it has.
    pub(super) symbol: &'static CStr,
    pub(super) version: fn(&LoadedLibrary) -> Result<Version, CallError>,
    pub(super) needed: VersionRange,
}

/// The supported versions of a library.
#[derive(Debug, Clone, Copy)]
pub(super) struct VersionRange {
    pub(super) major: u32,
    pub(super) minor: u32,
    /// Whether later major versions are supported too.
    pub(super) later_majors: bool,
}

impl VersionRange {
    pub(super) fn admits(self, version: Version) -> bool {
        let major_fits = version.major == self.major || (self.later_majors && version.major > self.major);
        major_fits && (version.major, version.minor) >= (self.major, self.minor)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, later_majors } = self;
        match later_majors {
            true => write!(f, "{major}.{minor} or later"),
            false => write!(f, "{major}.{minor} or a later {major}.x"),
        }
    }
}

/// A loaded library, which is never unloaded: the driver and NCCL keep threads and thread-local state that would
/// outlive their code.
#[derive(Debug)]
pub(crate) struct LoadedLibrary {
    name: String,
    library: ManuallyDrop<libloading::Library>,
}

/// A library that was found, whether its version is supported or not.
#[derive(Debug)]
pub(crate) struct FoundLibrary {
    pub(crate) loaded: LoadedLibrary,
    pub(crate) version: Result<Version, CallError>,
    /// Why it cannot be used.
    pub(crate) refused: Option<String>,
}

/// Why no library can be used.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// Nothing was found under any name.
    Missing(Vec<Attempt>),
    /// The version found is not supported.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only what computes refuses"))]
    Refused { version: Option<Version>, why: String },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { why, .. } => f.write_str(why),
            Self::Missing(attempts) => {
                // A file that exists but cannot be loaded is more informative than missing ones.
                let broken = attempts.iter().find(|attempt| !attempt.is_absence());
                let first = broken.or(attempts.first());
                f.write_str(first.map_or("it has no name", |attempt| &attempt.why))
            }
        }
    }
}

impl LibrarySpec {
    /// Searches for the library: each name on the loader's own path, then in [`folders`]. The first one with a
    /// supported version is used; if there is none, the first one of any version, with `refused` set.
    ///
    /// # Errors
    /// The attempts, if nothing can be loaded.
    pub(crate) fn find(&self) -> Result<FoundLibrary, Vec<Attempt>> {
        let folders = folders(consts::ARCH, file_at(folders as *const () as usize).as_deref());
        let in_folders = folders.iter().flat_map(|folder| self.names.iter().map(|name| folder.join(name)));
        let in_folders = in_folders.map(|path| path.display().to_string());
        let candidates = self.names.iter().map(|&name| name.to_owned()).chain(in_folders);
        let (mut attempts, mut unfit) = (Vec::new(), None);
        for candidate in candidates {
            match LoadedLibrary::open(candidate) {
                Ok(loaded) => {
                    let found = self.judge(loaded);
                    if found.refused.is_none() {
                        return Ok(found);
                    }
                    unfit.get_or_insert(found);
                }
                Err(attempt) => attempts.push(attempt),
            }
        }
        unfit.ok_or(attempts)
    }

    /// Loads the library for use.
    ///
    /// # Errors
    /// [`LoadError`].
    pub(crate) fn load(&self) -> Result<LoadedLibrary, LoadError> {
        match self.find() {
            Ok(FoundLibrary { loaded, refused: None, .. }) => Ok(loaded),
            Ok(FoundLibrary { version, refused: Some(why), .. }) => {
                Err(LoadError::Refused { version: version.ok(), why })
            }
            Err(attempts) => Err(LoadError::Missing(attempts)),
        }
    }

    /// The same library under other names.
    #[cfg(test)]
    pub(crate) fn named(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }

    fn judge(&self, loaded: LoadedLibrary) -> FoundLibrary {
        let version = (self.version)(&loaded);
        let (file, needed) = (loaded.file(self.symbol), self.needed);
        let refused = match &version {
            Ok(version) if needed.admits(*version) => None,
            Ok(version) => Some(format!("{file} has version {version}, but {needed} is needed")),
            Err(why) => Some(format!("{file} does not report its version ({why}), and {needed} is needed")),
        };
        FoundLibrary { loaded, version, refused }
    }

    /// Describes what was found.
    pub(super) fn describe(&self, found: &FoundLibrary) -> Library {
        Library {
            name: found.loaded.name.clone(),
            path: found.loaded.path(self.symbol),
            version: found.version.clone(),
            refused: found.refused.clone(),
        }
    }
}

/// The loader's own message. The file that it names may be another one, which the candidate depends on.
fn loader_words(error: &libloading::Error, candidate: &str) -> String {
    let words = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
    if words.starts_with(candidate) { words } else { format!("{candidate}: {words}") }
}

impl LoadedLibrary {
    pub(super) fn open(candidate: String) -> Result<Self, Attempt> {
        // SAFETY: loading runs the library's initializers. The names are those of NVIDIA's libraries, which may be
        // loaded at any time from any thread, and the folders are writable only by whoever installed them.
        match unsafe { libloading::Library::new(&candidate) } {
            Ok(library) => Ok(Self { name: candidate, library: ManuallyDrop::new(library) }),
            Err(error) => Err(Attempt { why: loader_words(&error, &candidate), candidate }),
        }
    }

    /// Returns a function of the library.
    ///
    /// # Safety
    /// `F` must be the function pointer type of the function with this name.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Result<F, CallError> {
        // SAFETY: the caller vouches for the type. The pointer may be copied out of the `Symbol`, whose lifetime only
        // guards against unloading, since the library is never unloaded.
        unsafe { self.library.get::<F>(name) }.map(|symbol| *symbol).map_err(|error| CallError::Missing {
            why: error.source().map_or_else(|| error.to_string(), |source| source.to_string()),
        })
    }

    /// The address of a function of the library.
    pub(crate) fn address(&self, symbol: &CStr) -> Option<usize> {
        // SAFETY: any function pointer may be held as one of this type as long as it is not called, and it is not.
        let function = unsafe { self.symbol::<unsafe extern "C" fn()>(symbol) };
        function.ok().map(|function| function as usize)
    }

    /// The library's file, found by the address of one of its functions.
    fn path(&self, symbol: &CStr) -> Option<PathBuf> {
        file_at(self.address(symbol)?)
    }

    /// The same, or the library's name if the system does not report the file.
    pub(crate) fn file(&self, symbol: &CStr) -> String {
        self.path(symbol).map_or_else(|| self.name.clone(), |path| path.display().to_string())
    }
}

/// Returns the file that is mapped at an address.
pub(crate) fn file_at(address: usize) -> Option<PathBuf> {
    file_in_maps(&fs::read_to_string("/proc/self/maps").ok()?, address)
}

/// Searches the text of `/proc/self/maps`, whose lines are `7f00-7f10 r-xp 00000000 fd:01 42    /path of/file`.
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

    fn any_version(_: &LoadedLibrary) -> Result<Version, CallError> {
        Ok(Version { major: 13, minor: 0, patch: None })
    }

    /// Leaks the names, which must be static.
    fn spec(names: &[String], version: fn(&LoadedLibrary) -> Result<Version, CallError>) -> LibrarySpec {
        let names: Vec<&'static str> = names.iter().map(|name| &*name.clone().leak()).collect();
        let needed = VersionRange { major: 13, minor: 0, later_majors: false };
        LibrarySpec { names: names.leak(), symbol: c"malloc", version, needed }
    }

    #[test]
    fn a_missing_library_has_the_loaders_message_for_every_path() {
        let names = ["librankine-absent.so.1", "librankine-absent.so"].map(str::to_owned);
        let attempts = spec(&names, any_version).find().unwrap_err();
        assert_eq!(attempts.len(), 2 + 2 * folders(consts::ARCH, None).len());
        assert_eq!(attempts[0].candidate, "librankine-absent.so.1");
        for attempt in &attempts {
            assert!(attempt.why.starts_with(&attempt.candidate), "{attempt:?}");
            assert!(attempt.is_absence(), "{attempt:?}");
        }
        let words = spec(&names, any_version).load().unwrap_err().to_string();
        assert!(words.starts_with("librankine-absent.so.1: cannot open"), "{words}");
    }

    #[test]
    fn an_invalid_file_is_distinguished_from_a_missing_one() {
        let names = ["librankine-absent.so", "/proc/self/status"].map(str::to_owned);
        let attempts = spec(&names, any_version).find().unwrap_err();
        assert!(attempts[1].why.contains("invalid ELF header"), "{attempts:?}");
        assert!(!attempts[1].is_absence());
        let words = spec(&names, any_version).load().unwrap_err().to_string();
        assert!(words.contains("invalid ELF header"), "{words}");
    }

    #[test]
    fn a_library_is_found_with_its_file_and_its_functions() {
        let spec = spec(&["libc.so.6".to_owned()], any_version);
        let found = spec.find().unwrap();
        // SAFETY: every function pointer may be held as this type so long as it is not called.
        let missing = unsafe { found.loaded.symbol::<unsafe extern "C" fn()>(c"rankine_absent") };
        assert!(missing.unwrap_err().to_string().contains("rankine_absent"));
        let library = spec.describe(&found);
        assert_eq!((library.name.as_str(), library.refused), ("libc.so.6", None));
        assert!(library.path.is_some_and(|path| path.exists()));
    }

    fn temporary_folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("rankine-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Compiles libraries that report the given versions, with the linker's own driver.
    fn libraries(dir: &Path, versions: &[u32]) -> Vec<String> {
        let make = |version: &u32| {
            let (source, out) = (dir.join("fake.c"), dir.join(format!("libfake.so.{version}")));
            let text = format!("unsigned long cublasLtGetVersion(void) {{ return {version}; }}");
            fs::write(&source, text).unwrap();
            let mut compiler = std::process::Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-o"]).arg(&out).arg(&source);
            assert!(compiler.status().unwrap().success(), "cc makes a shared library");
            out.display().to_string()
        };
        versions.iter().map(make).collect()
    }

    #[test]
    fn an_unsupported_version_is_passed_over_for_a_supported_one() {
        let dir = temporary_folder("libraries");
        let names = libraries(&dir, &[120_805, 140_000, 130_002]);
        let of = |names: &[String]| LibrarySpec {
            symbol: c"cublasLtGetVersion",
            ..spec(names, crate::probe::specs::cublas_lt_version)
        };
        let found = of(&names).find().unwrap();
        assert_eq!(
            (found.loaded.name, found.version.unwrap().to_string()),
            (names[2].clone(), "13.0.2".into())
        );
        assert!(found.refused.is_none());

        // If none is supported, the report has the first one, with the message that training ends with.
        let unfit = of(&names[..2]);
        let words = unfit.describe(&unfit.find().unwrap()).refused.unwrap();
        assert!(
            words.ends_with("libfake.so.120805 has version 12.8.5, but 13.0 or a later 13.x is needed"),
            "{words}"
        );
        assert_eq!(unfit.load().unwrap_err().to_string(), words);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn each_architecture_has_its_folders() {
        let of = |architecture| {
            folders(architecture, None).iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let common = ["/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64"];
        for (architecture, own) in [
            ("x86_64", ["/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu"]),
            ("aarch64", ["/usr/local/cuda/targets/sbsa-linux/lib", "/usr/lib/aarch64-linux-gnu"]),
        ] {
            let found = of(architecture);
            assert_eq!(found.len(), 4);
            assert!(
                own.iter().chain(&common).all(|&name| found.iter().any(|found| found == name)),
                "{found:?}"
            );
        }
    }

    #[test]
    fn libraries_of_the_python_environment_are_found_from_the_command_and_from_the_module() {
        let dir = temporary_folder("environment");
        let site = dir.join("lib/python3.12/site-packages");
        let cublas = site.join("nvidia/cu13/lib");
        fs::create_dir_all(&cublas).unwrap();
        for file in [dir.join("bin/rankine"), site.join("rankine/_rankine.abi3.so")] {
            assert_eq!(in_site_packages(&file), std::slice::from_ref(&cublas), "{}", file.display());
            assert_eq!(folders("x86_64", Some(&file))[0], cublas, "before the folders of the machine");
        }
        // NCCL is optional, and its folder is another one.
        let nccl = site.join("nvidia/nccl/lib");
        fs::create_dir_all(&nccl).unwrap();
        assert_eq!(in_site_packages(&dir.join("bin/rankine")), [cublas, nccl]);
        assert_eq!(in_site_packages(Path::new("/")), Vec::<PathBuf>::new());
        fs::remove_dir_all(dir).unwrap();
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

//! Builds of Rankine: a version, the commit of the sources, and how they were compiled.
//!
//! The engine's build script finds out all but the checksum, which is computed when it is first needed.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::sealed::Checksum;

/// A build of Rankine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The version.
    pub version: String,
    /// The Git commit of the sources; `None` if it is unknown, as in an archive of them.
    pub commit: Option<String>,
    /// Whether the sources differ from the commit.
    pub dirty: bool,
    /// The features, in alphabetical order.
    pub features: Vec<String>,
    /// The target's triple.
    pub target: String,
    /// The version of the compiler.
    pub rustc: String,
    /// The checksum of the file that has the code: the executable, or the shared object of a library. Absent if the
    /// commit identifies the code; `None` also if the file cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
}

impl Build {
    /// Returns this build with the checksum of its file, unless the commit identifies the code.
    pub fn identified(self) -> Self {
        let checksum = || {
            let sum = own_file().and_then(checksum_of);
            sum.inspect_err(|error| tracing::debug!("cannot compute the checksum of this build: {error}"))
                .ok()
        };
        Self { checksum: if self.is_identified() { None } else { checksum() }, ..self }
    }

    /// Whether no other code has the same description.
    fn is_identified(&self) -> bool {
        self.checksum.is_some() || (self.commit.is_some() && !self.dirty)
    }

    /// Whether both are certainly the same code.
    pub fn is_same(&self, other: &Self) -> bool {
        self == other && self.is_identified()
    }

    /// Returns the first digits of the commit, and whether the sources differ from it.
    fn short_commit(&self) -> String {
        let Some(commit) = &self.commit else { return "unknown commit".into() };
        format!("{}{}", commit.get(..12).unwrap_or(commit), if self.dirty { ", dirty" } else { "" })
    }

    /// Returns the version and the commit in a few words: `0.1.0 (1a2b3c4d5e6f, dirty)`.
    pub fn short(&self) -> String {
        format!("{} ({})", self.version, self.short_commit())
    }

    /// Returns the rest of the description, each part with its name.
    pub fn details(&self) -> [(&'static str, String); 4] {
        let mut commit = self.commit.clone().unwrap_or_else(|| "unknown".into());
        if self.dirty {
            commit += ", dirty";
        }
        if let Some(sum) = self.checksum {
            commit += &format!(", checksum {sum}");
        }
        [
            ("commit", commit),
            ("features", self.features.join(", ")),
            ("target", self.target.clone()),
            ("rustc", self.rustc.clone()),
        ]
    }

    /// Describes this build, with all that tells it from another one.
    pub fn unlike(&self, other: &Self) -> String {
        let mut words = self.to_string();
        if self.features != other.features {
            words += &format!(", features {}", self.features.join(","));
        }
        if self.target != other.target {
            words += &format!(", for {}", self.target);
        }
        if self.rustc != other.rustc {
            words += &format!(", compiled by rustc {}", self.rustc);
        }
        words
    }
}

/// The version, and what identifies the code: `0.1.0 (1a2b3c4d5e6f, dirty, checksum 0123456789abcdef)`.
impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.version, self.short_commit())?;
        match self.checksum {
            Some(sum) => write!(f, ", checksum {sum})"),
            None if self.is_identified() => f.write_str(")"),
            None => f.write_str(", unknown checksum)"),
        }
    }
}

/// Opens the file that this code was loaded from.
fn own_file() -> io::Result<File> {
    let address = own_file as fn() -> io::Result<File> as usize;
    let maps = fs::read("/proc/self/maps")?;
    let maps = String::from_utf8_lossy(&maps);
    let path = maps.lines().find_map(|line| path_at(line, address));
    let path = path.ok_or_else(|| io::Error::other("no file is mapped at the address of the code"))?;
    // The link leads to the file that runs, even if another one has its name by now.
    const EXECUTABLE: &str = "/proc/self/exe";
    let is_executable =
        fs::read_link(EXECUTABLE).is_ok_and(|executable| executable.to_string_lossy() == path);
    File::open(if is_executable { EXECUTABLE } else { path })
}

/// Returns the path of a mapping, a line of `/proc/self/maps`, if it contains the address. A file that was removed or
/// replaced has ` (deleted)` behind its path.
fn path_at(line: &str, address: usize) -> Option<&str> {
    let (first, rest) = line.split_once('-')?;
    let (end, rest) = rest.split_once(' ')?;
    let [first, end] = [first, end].map(|digits| usize::from_str_radix(digits, 16));
    let path = &rest[rest.find('/')?..];
    (first.ok()?..end.ok()?).contains(&address).then_some(path)
}

fn checksum_of(mut file: File) -> io::Result<Checksum> {
    let mut sum = Xxh3::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Checksum(sum.digest())),
            read => sum.update(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    fn build() -> Build {
        Build {
            version: "0.1.0".into(),
            commit: Some("1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d".into()),
            dirty: false,
            features: vec!["cli".into()],
            target: "x86_64-unknown-linux-gnu".into(),
            rustc: "1.95.0 (59807616e 2026-04-14)".into(),
            checksum: None,
        }
    }

    #[test]
    fn a_build_is_the_same_if_all_of_it_is_and_its_code_is_identified() {
        let clean = build();
        let dirty = |sum| Build { dirty: true, checksum: sum, ..build() };
        let [one, other] = [1, 2].map(|sum| dirty(Some(Checksum(sum))));
        assert!(clean.is_same(&clean) && one.is_same(&one.clone()));
        assert!(!one.is_same(&other) && !clean.is_same(&one));
        // Of these nobody knows.
        let unknown = Build { commit: None, ..build() };
        assert!(!dirty(None).is_same(&dirty(None)) && !unknown.is_same(&unknown.clone()));
        for change in [
            |build: &mut Build| build.version = "0.1.1".into(),
            |build: &mut Build| build.commit = Some("2".repeat(40)),
            |build: &mut Build| build.features.push("cuda".into()),
            |build: &mut Build| build.target = "aarch64-unknown-linux-gnu".into(),
            |build: &mut Build| build.rustc = "1.91.0".into(),
        ] {
            let mut changed = build();
            change(&mut changed);
            assert!(!clean.is_same(&changed), "{changed:?}");
        }
    }

    #[test]
    fn a_build_is_described_by_what_tells_it_from_another() {
        let clean = build();
        assert_eq!(clean.to_string(), "0.1.0 (1a2b3c4d5e6f)");
        let dirty = Build { dirty: true, checksum: Some(Checksum(0xab)), ..build() };
        assert_eq!(dirty.unlike(&clean), "0.1.0 (1a2b3c4d5e6f, dirty, checksum 00000000000000ab)");
        let unknown = Build { commit: None, ..build() };
        assert_eq!(unknown.to_string(), "0.1.0 (unknown commit, unknown checksum)");
        let cuda = Build { features: vec!["cli".into(), "cuda".into()], ..build() };
        assert_eq!(cuda.unlike(&clean), "0.1.0 (1a2b3c4d5e6f), features cli,cuda");
        let other = Build { target: "riscv".into(), rustc: "1.91.0".into(), ..build() };
        assert_eq!(other.unlike(&clean), "0.1.0 (1a2b3c4d5e6f), for riscv, compiled by rustc 1.91.0");
    }

    #[test]
    fn an_unknown_commit_is_identified_by_the_file() {
        // The executable of the tests is the file that has the code.
        let bytes = fs::read(env::current_exe().unwrap()).unwrap();
        assert_eq!(checksum_of(own_file().unwrap()).unwrap(), Checksum::of(&bytes));
        let dirty = Build { dirty: true, ..build() };
        assert_eq!(dirty.identified().checksum, Some(Checksum::of(&bytes)));
        assert_eq!(build().identified().checksum, None);
    }

    #[test]
    fn code_is_found_in_the_mapping_of_its_address() {
        let line = "7f10-7f20 r-xp 00002000 08:02 1735                     /opt/a b/lib.so";
        for (address, path) in [
            (0x7f0f, None),
            (0x7f10, Some("/opt/a b/lib.so")),
            (0x7f1f, Some("/opt/a b/lib.so")),
            (0x7f20, None),
        ] {
            assert_eq!(path_at(line, address), path, "{address:x}");
        }
        assert_eq!(path_at("7f10-7f20 rw-p 00000000 00:00 0 ", 0x7f10), None);
    }

    #[test]
    fn builds_are_stored_and_read_back() {
        for build in [build(), Build { commit: None, checksum: Some(Checksum(7)), ..build() }] {
            let text = serde_json::to_string(&build).unwrap();
            assert_eq!(
                text.contains("\"checksum\":\"0000000000000007\""),
                build.checksum.is_some(),
                "{text}"
            );
            assert_eq!(serde_json::from_str::<Build>(&text).unwrap(), build);
        }
    }
}

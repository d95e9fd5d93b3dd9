//! The secret that the processes of a job share, and the keys derived from it.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The variable that holds the secret itself.
const SECRET: &str = "RANKINE_SECRET";
/// The variable that names a file with the secret.
const SECRET_FILE: &str = "RANKINE_SECRET_FILE";
/// Shorter secrets can be guessed offline from a recorded handshake.
const BYTES_MIN: usize = 16;
const BYTES_MAX: usize = 4096;

/// Why the secret of a job is not available. Messages never contain any of the secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Two variables that exclude each other are set.
    #[error("{first} and {second} are both set: unset one of them")]
    Both {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A secret that can be guessed.
    #[error(
        "the secret in {place} has {bytes} bytes: it must have {min} to {max}; `openssl rand -hex 32` prints one"
    )]
    Length {
        /// The variable or the file.
        place: String,
        /// Its length, without white space around it.
        bytes: usize,
        /// The least length.
        min: usize,
        /// The greatest length.
        max: usize,
    },
    /// The file cannot be read.
    #[error("cannot read the secret file {} ({place}): {source}", path.display())]
    File {
        /// The variable or argument that names the file.
        place: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// The file is not private.
    #[error("the secret file {} ({place}, mode {mode:03o}) is refused: {why}", path.display())]
    Permissions {
        /// The variable or argument that names the file.
        place: &'static str,
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// What is wrong with it, and how to fix it.
        why: String,
    },
}

/// The key of a shared secret. The secret itself is not kept, and the key is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: [u8; blake3::KEY_LEN],
    given: bool,
}

impl Secret {
    /// No secret: the key is public, so that tags detect errors and authenticate nothing.
    pub fn none() -> Self {
        Self { key: key(b""), given: false }
    }

    /// A secret in memory, without surrounding white space.
    ///
    /// # Errors
    /// [`SecretError::Length`] for fewer than 16 or more than 4096 bytes. `place` names the origin of the secret.
    pub fn new(secret: &[u8], place: &str) -> Result<Self, SecretError> {
        let secret = secret.trim_ascii();
        if !(BYTES_MIN..=BYTES_MAX).contains(&secret.len()) {
            let place = place.to_owned();
            return Err(SecretError::Length { place, bytes: secret.len(), min: BYTES_MIN, max: BYTES_MAX });
        }
        Ok(Self { key: key(secret), given: true })
    }

    /// The secret of `file`; without one, that of `RANKINE_SECRET_FILE` or `RANKINE_SECRET`; otherwise none.
    ///
    /// # Errors
    /// [`SecretError`] if both variables are set, if the secret is too short, or if the file can't be read or other
    /// users can read it.
    pub fn find(file: Option<&Path>) -> Result<Self, SecretError> {
        if let Some(file) = file {
            return Self::of_file(file, "--secret-file");
        }
        match (std::env::var_os(SECRET), std::env::var_os(SECRET_FILE)) {
            (None, None) => Ok(Self::none()),
            (Some(secret), None) => Self::new(secret.as_encoded_bytes(), SECRET),
            (None, Some(file)) => Self::of_file(&PathBuf::from(file), SECRET_FILE),
            (Some(_), Some(_)) => Err(SecretError::Both { first: SECRET, second: SECRET_FILE }),
        }
    }

    /// Whether there is a secret.
    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// The tag of some bytes. Comparing tags takes constant time.
    pub(super) fn tag(&self, label: &str, bytes: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // The length separates the label from the bytes.
        hasher.update(&(label.len() as u64).to_le_bytes()).update(label.as_bytes()).update(bytes);
        hasher.finalize()
    }

    fn of_file(path: &Path, place: &'static str) -> Result<Self, SecretError> {
        let failed = |source| SecretError::File { place, path: path.to_owned(), source };
        // Opening a FIFO would block.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let own_user = rustix::process::geteuid().as_raw();
        let refused = |why: String| {
            Err(SecretError::Permissions { place, path: path.to_owned(), mode: metadata.mode() & 0o777, why })
        };
        let (owner, mode) = (metadata.uid(), metadata.mode());
        if !metadata.is_file() {
            return refused("it is not a regular file".into());
        }
        if owner != own_user && owner != 0 {
            return refused(format!("it belongs to user {owner}, not to this process's user or root"));
        }
        // Kubernetes mounts a secret as a file of root that the pod's group can read.
        let others = if owner == 0 { 0o027 } else { 0o077 };
        if mode & others != 0 {
            return refused("other users can read or change it; make it private with chmod 600".into());
        }
        let mut secret = Vec::new();
        file.take(BYTES_MAX as u64 + 1024).read_to_end(&mut secret).map_err(failed)?;
        Self::new(&secret, &path.display().to_string())
    }
}

/// Never the key.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.given { "Secret(given)" } else { "Secret(none)" })
    }
}

fn key(secret: &[u8]) -> [u8; blake3::KEY_LEN] {
    blake3::derive_key("Rankine 2026: secret of processes that meet", secret)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TEXT: &str = "correct horse battery staple";

    #[test]
    fn a_secret_is_trimmed_and_never_printed() {
        let secret = Secret::new(format!("  {TEXT}\n").as_bytes(), "a test").unwrap();
        assert_eq!(secret, Secret::new(TEXT.as_bytes(), "a test").unwrap());
        assert_ne!(secret, Secret::new(b"correct horse battery stapler", "a test").unwrap());
        assert_ne!(secret, Secret::none());
        assert_eq!(format!("{secret:?} {:?}", Secret::none()), "Secret(given) Secret(none)");
    }

    #[test]
    fn short_and_endless_secrets_are_refused() {
        for (secret, words) in [
            (vec![b'x'; 15], "has 15 bytes"),
            (Vec::new(), "has 0 bytes"),
            (vec![b' '; 40], "has 0 bytes"),
            (vec![b'x'; 4097], "has 4097 bytes"),
        ] {
            let error = Secret::new(&secret, SECRET).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("openssl rand -hex 32"), "{error}");
        }
        for bytes in [16, 4096] {
            assert!(Secret::new(&vec![b'x'; bytes], SECRET).unwrap().is_given());
        }
        assert!(!Secret::none().is_given());
    }

    #[test]
    fn a_secret_file_that_others_can_read_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secret");
        fs::write(&path, TEXT).unwrap();
        for (mode, private) in [(0o600, true), (0o400, true), (0o644, false), (0o604, false), (0o620, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = Secret::find(Some(&path));
            assert_eq!(found.is_ok(), private, "{mode:o}: {found:?}");
            if let Err(error) = found {
                let error = error.to_string();
                assert!(error.contains("chmod 600") && error.contains(path.to_str().unwrap()), "{error}");
                assert!(!error.contains(TEXT), "{error}");
            }
        }
        fs::remove_file(&path).unwrap();
        assert!(Secret::find(Some(&path)).unwrap_err().to_string().contains("No such file"));
        assert!(Secret::find(Some(place.path())).unwrap_err().to_string().contains("not a regular file"));
    }
}

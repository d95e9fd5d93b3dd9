//! JSON that contains its own checksum, for the manifests that hold the checksums of all other files.
//!
//! `{"kind": ..., "format": ..., "xxh3": ..., "content": {...}}`, the checksum over the exact bytes of `content`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{InvalidValue, Malformed};

/// A 64-bit xxh3 checksum, 16 lowercase hexadecimal digits in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Checksum(pub u64);

impl Checksum {
    /// Returns the checksum of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }
}

impl TryFrom<String> for Checksum {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let sum = u64::from_str_radix(&text, 16).map(Self).ok();
        // Accepting capital digits would let a flipped bit go unnoticed.
        sum.filter(|sum| sum.to_string() == text)
            .ok_or_else(|| InvalidValue::is_not(&text, "a checksum of 16 hexadecimal digits"))
    }
}

impl From<Checksum> for String {
    fn from(sum: Checksum) -> Self {
        sum.to_string()
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    kind: std::borrow::Cow<'a, str>,
    format: u32,
    xxh3: Checksum,
    content: Box<RawValue>,
}

/// Returns the text of a sealed file; `kind` names its type, `format` its version.
pub fn to_json(kind: &str, format: u32, content: &impl Serialize) -> String {
    let content = serde_json::to_string_pretty(content).expect("manifests are plain data");
    let envelope = Envelope {
        kind: kind.into(),
        format,
        xxh3: Checksum::of(content.as_bytes()),
        content: RawValue::from_string(content).expect("it was just serialized"),
    };
    serde_json::to_string_pretty(&envelope).expect("an envelope is plain data") + "\n"
}

/// Why a sealed file was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealedError {
    /// Its bytes are not those that were written: it is not JSON, or lacks what each sealed file has.
    #[error("{why}")]
    NotSealed {
        /// The error of the JSON parser.
        why: String,
    },
    /// Its bytes are not those that were written: its checksum does not match.
    #[error("its checksum is {found} but should be {expected}")]
    Checksum {
        /// The checksum of its content.
        found: Checksum,
        /// The checksum that it states.
        expected: Checksum,
    },
    /// It is a sealed file of another kind.
    #[error("it is a {found} but should be a {expected}")]
    Kind {
        /// The kind that it states.
        found: String,
        /// The expected kind.
        expected: String,
    },
    /// Another version of Rankine wrote it, in a format that this one does not read. Its bytes may be intact.
    #[error(
        "it is a {kind} of format {found}, but this Rankine reads format {expected}: use the Rankine that wrote it"
    )]
    Format {
        /// Its kind.
        kind: String,
        /// The format that it states.
        found: u32,
        /// The format that this version reads.
        expected: u32,
    },
    /// Its checksum matches, but its content is not of this format: another version of Rankine wrote it.
    #[error(
        "its checksum matches, but this Rankine does not read its content ({why}): use the Rankine that wrote it"
    )]
    Content {
        /// The error of the JSON parser.
        why: String,
    },
}

impl SealedError {
    /// Returns whether the bytes are not those that were written. If false, another version of Rankine may read them.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::NotSealed { .. } | Self::Checksum { .. } | Self::Kind { .. })
    }
}

impl From<SealedError> for Malformed {
    fn from(error: SealedError) -> Self {
        error.to_string().into()
    }
}

/// Reads a sealed file of the given kind and version.
///
/// # Errors
/// See [`SealedError`].
pub fn from_json<T: DeserializeOwned>(kind: &str, format: u32, text: &[u8]) -> Result<T, SealedError> {
    /// The fields that all formats have in common.
    #[derive(Deserialize)]
    struct Head {
        kind: String,
        format: u32,
    }
    let damaged = |error: serde_json::Error| SealedError::NotSealed { why: error.to_string() };
    let head: Head = serde_json::from_slice(text).map_err(damaged)?;
    if head.kind != kind {
        return Err(SealedError::Kind { found: head.kind, expected: kind.into() });
    }
    if head.format != format {
        return Err(SealedError::Format { kind: head.kind, found: head.format, expected: format });
    }
    let envelope: Envelope<'_> = serde_json::from_slice(text).map_err(damaged)?;
    let (found, expected) = (Checksum::of(envelope.content.get().as_bytes()), envelope.xxh3);
    if found != expected {
        return Err(SealedError::Checksum { found, expected });
    }
    serde_json::from_str(envelope.content.get())
        .map_err(|error| SealedError::Content { why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_flipped_bit_is_noticed() {
        let content = BTreeMap::from([("rows".to_owned(), 12u64), ("seed".to_owned(), u64::MAX)]);
        let text = to_json("test", 3, &content);
        assert_eq!(from_json::<BTreeMap<String, u64>>("test", 3, text.as_bytes()), Ok(content));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The line feed at the end is the only byte without meaning.
            if bit / 8 < text.len() - 1 {
                let read = from_json::<BTreeMap<String, u64>>("test", 3, &bytes);
                assert!(read.is_err(), "{}", String::from_utf8_lossy(&bytes));
            }
        }
        assert!(from_json::<BTreeMap<String, u64>>("other", 3, text.as_bytes()).is_err());
    }

    #[test]
    fn another_version_is_not_damage() {
        let text = to_json("test", 3, &1u64);
        let error = from_json::<u64>("test", 4, text.as_bytes()).unwrap_err();
        assert_eq!(error, SealedError::Format { kind: "test".into(), found: 3, expected: 4 });
        // A newer format may have other fields besides the content.
        let newer = text.replacen("\"kind\"", "\"signed\": true, \"kind\"", 1);
        assert_eq!(from_json::<u64>("test", 4, newer.as_bytes()), Err(error));
        let error = from_json::<String>("test", 3, text.as_bytes()).unwrap_err();
        assert!(matches!(error, SealedError::Content { .. }), "{error:?}");
        for damaged in [&text.as_bytes()[1..], text.replacen("1\n", "2\n", 1).as_bytes(), newer.as_bytes()] {
            let error = from_json::<u64>("test", 3, damaged).unwrap_err();
            assert!(error.is_damage(), "{error:?}");
        }
    }
}

//! Files that carry a checksum of themselves, or of others: opened, and closed again around other content.

use rankine_reader::sealed::{Checksum, to_json};
use serde_json::Value;

/// How the files of a kind are sealed.
#[derive(Debug, Clone)]
pub struct Seal {
    kind: String,
    format: u32,
}

impl Seal {
    /// That of a file, and its content.
    pub fn of(file: &[u8]) -> (Self, Value) {
        let mut envelope: Value = serde_json::from_slice(file).expect("the file is sealed");
        let kind = envelope["kind"].as_str().expect("it has a kind").to_owned();
        let format = envelope["format"].as_u64().expect("it has a format") as u32;
        (Self { kind, format }, envelope["content"].take())
    }

    /// Seals content.
    pub fn seal(&self, content: &Value) -> String {
        to_json(&self.kind, self.format, content)
    }
}

/// The checksum of some bytes, as files state it.
pub fn checksum(bytes: &[u8]) -> Value {
    Checksum::of(bytes).to_string().into()
}

/// Sets a value of some content, where it has a place for it.
pub fn set(content: &mut Value, pointer: &str, value: impl Into<Value>) {
    if let Some(place) = content.pointer_mut(pointer) {
        *place = value.into();
    }
}

/// Has an entry of a list of files state the length and the checksum of these bytes, where the list has it.
pub fn vouch(content: &mut Value, list: &str, name: &str, bytes: &[u8]) {
    let Some(Value::Array(files)) = content.pointer_mut(list) else { return };
    if let Some(file) = files.iter_mut().find(|file| file["name"] == name) {
        set(file, "/bytes", bytes.len());
        set(file, "/xxh3", checksum(bytes));
    }
}

/// Content as text without what is only for the eye.
pub fn compact(content: &Value) -> Vec<u8> {
    serde_json::to_vec(content).expect("it is plain data")
}

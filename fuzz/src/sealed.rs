//! Files with checksums of themselves or of other files: opened, and sealed again with other content.

use rankine_base::sealed::{Checksum, to_json};
use serde_json::Value;

/// The kind and format of sealed files.
#[derive(Debug, Clone)]
pub struct Seal {
    kind: String,
    format: u32,
}

impl Seal {
    /// Returns the seal of a file, and its content.
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

/// Returns the checksum of some bytes as stated in files.
pub fn checksum(bytes: &[u8]) -> Value {
    Checksum::of(bytes).to_string().into()
}

/// Sets a value of some content if the pointer exists.
pub fn set(content: &mut Value, pointer: &str, value: impl Into<Value>) {
    if let Some(folder) = content.pointer_mut(pointer) {
        *folder = value.into();
    }
}

/// Sets the length and the checksum of these bytes in the entry of a list of files, if the entry exists.
pub fn set_checksum(content: &mut Value, list: &str, name: &str, bytes: &[u8]) {
    let Some(Value::Array(files)) = content.pointer_mut(list) else { return };
    if let Some(file) = files.iter_mut().find(|file| file["name"] == name) {
        set(file, "/bytes", bytes.len());
        set(file, "/xxh3", checksum(bytes));
    }
}

/// Returns content as text without white space.
pub fn compact(content: &Value) -> Vec<u8> {
    serde_json::to_vec(content).expect("it is plain data")
}

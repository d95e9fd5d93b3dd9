//! The first line of TOML files that commands write, which tells editors where their JSON Schema is.

use std::env;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rankine_base::publish::{create_folders, replace_file};

/// Writes the JSON Schema of files of a `kind` into the user's data folder, and returns the line that names it, with
/// its end. No address on the web has the schema of each version. Empty if it cannot be written: a file is complete
/// without.
pub(crate) fn schema_line(kind: &str, schema: &str) -> String {
    let given = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = given("XDG_DATA_HOME").or_else(|| Some(given("HOME")?.join(".local/share")));
    let Some(folder) = folder.map(|folder| folder.join("rankine")) else { return String::new() };
    let path = folder.join(format!("{kind}-{}.schema.json", env!("CARGO_PKG_VERSION")));
    if fs::read(&path).ok().as_deref() != Some(schema.as_bytes()) {
        let written = create_folders(&folder).and_then(|()| replace_file(&path, schema.as_bytes()));
        if let Err(error) = written {
            tracing::info!("the {kind} does not name a JSON Schema for editors: {error}");
            return String::new();
        }
    }
    format!("#:schema {}\n", file_url(&path))
}

/// Returns the URL of a file.
fn file_url(path: &Path) -> String {
    let character = |&byte: &u8| match byte {
        b'/' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    path.as_os_str().as_bytes().iter().map(character).fold("file://".into(), |url, next| url + &next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_bytes_has_a_url() {
        let url = file_url(Path::new("/data/a b/#1/100%/\u{f6}.json"));
        assert_eq!(url, "file:///data/a%20b/%231/100%25/%C3%B6.json");
    }
}

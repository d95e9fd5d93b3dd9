//! Urls of objects, which a path can hold: `s3://bucket/folder` is the path of a folder in a bucket.
//!
//! Only this module looks at the form of a path; whoever opens one asks [`is_url`] first.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The schemes of object stores.
pub const SCHEMES: [&str; 3] = ["s3", "gs", "az"];
/// The scheme of local files.
const FILE: &str = "file://";

/// An url of an object, or of the objects below a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectUrl<'a> {
    /// One of [`SCHEMES`].
    pub scheme: &'static str,
    /// The bucket, or the container of Azure.
    pub bucket: &'a str,
    /// The key of the object; empty for the whole bucket.
    pub key: &'a str,
}

/// Returns whether a path is an url of an object store.
pub fn is_url(path: &Path) -> bool {
    split(path).is_some()
}

/// Returns the scheme of a path, and what follows `://`.
fn split(path: &Path) -> Option<(&'static str, &str)> {
    let text = path.to_str()?;
    SCHEMES.into_iter().find_map(|scheme| Some((scheme, text.strip_prefix(scheme)?.strip_prefix("://")?)))
}

impl<'a> ObjectUrl<'a> {
    /// Parses a path; `None` if it is not an url.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if it has no bucket, or contains what no name of an object should: credentials, an empty
    /// segment, `.`, `..`, a query or a fragment.
    pub fn parse(path: &'a Path) -> Result<Option<Self>> {
        let Some((scheme, rest)) = split(path) else { return Ok(None) };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let key = key.strip_suffix('/').unwrap_or(key);
        // The url itself may hold a secret, so this message does not repeat it.
        if bucket.contains('@') || key.contains(['?', '#']) {
            let what = format!(
                "a url of the scheme {scheme}:// holds credentials, a query or a fragment: name only bucket and path, \
                 and set credentials in the environment"
            );
            return Err(Error::unsuitable(Path::new(scheme), what));
        }
        let is_name = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
        let is_bucket = bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !is_name(bucket) || !is_bucket || !(key.is_empty() || key.split('/').all(is_name)) {
            let what = format!(
                "{} is not the url of an object: write {scheme}://BUCKET/PATH, without empty segments, `.` and `..`",
                path.display()
            );
            return Err(Error::unsuitable(path, what));
        }
        Ok(Some(Self { scheme, bucket, key }))
    }
}

/// Returns a path as it is opened: `file:///data` is `/data`.
pub fn without_file_scheme(path: &Path) -> PathBuf {
    match path.to_str().and_then(|text| text.strip_prefix(FILE)) {
        Some(local) => {
            local.strip_prefix("localhost/").map_or_else(|| local.into(), |local| format!("/{local}").into())
        }
        None => path.to_owned(),
    }
}

/// Refuses an url where only a local path will do; `what` is what it names: "a run".
///
/// # Errors
/// [`Error::Unsuitable`].
pub fn refuse(path: &Path, what: &str) -> Result<()> {
    if !is_url(path) {
        return Ok(());
    }
    let message = format!(
        "{} is a url, but {what} must be on a file system, which can lock and rename: name a local path, and copy \
         from or to the bucket",
        path.display()
    );
    Err(Error::unsuitable(path, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<ObjectUrl<'_>>> {
        ObjectUrl::parse(Path::new(text))
    }

    #[test]
    fn an_url_has_a_bucket_and_a_key() {
        let url = |scheme, bucket, key| Some(ObjectUrl { scheme, bucket, key });
        assert_eq!(parse("s3://clicks/day=1/train").unwrap(), url("s3", "clicks", "day=1/train"));
        assert_eq!(parse("gs://clicks/").unwrap(), url("gs", "clicks", ""));
        assert_eq!(parse("az://clicks/a/").unwrap(), url("az", "clicks", "a"));
        for local in ["data", "/s3://a/b", "s3:/a", "s3", "./s3://a", "http://a/b"] {
            assert_eq!(parse(local).unwrap(), None, "{local}");
        }
        // Joining and naming a sibling keep the form.
        let dir = Path::new("s3://clicks/day=1");
        assert_eq!(dir.join("dataset.json").to_str(), Some("s3://clicks/day=1/dataset.json"));
        assert_eq!(dir.join("a/b").with_file_name("c").to_str(), Some("s3://clicks/day=1/a/c"));
    }

    #[test]
    fn names_that_leave_a_folder_are_refused() {
        for text in
            ["s3://", "s3:///a", "s3://a//b", "s3://a/../b", "s3://a/./b", "s3://a/b/..", "s3://a b/c"]
        {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("is not the url of an object"), "{text}: {error}");
        }
    }

    #[test]
    fn a_secret_in_an_url_is_not_repeated() {
        for text in ["s3://key:hunter2@bucket/a", "az://c/a?sig=hunter2", "s3://b/a#hunter2"] {
            let error = parse(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn a_file_url_is_a_path() {
        for (url, path) in [
            ("file:///data/a", "/data/a"),
            ("file://localhost/data", "/data"),
            ("data", "data"),
            ("s3://a/b", "s3://a/b"),
        ] {
            assert_eq!(without_file_scheme(Path::new(url)).to_str(), Some(path));
        }
    }

    #[test]
    fn a_run_at_an_url_is_refused() {
        assert!(refuse(Path::new("runs/a"), "a run").is_ok());
        let error = refuse(Path::new("s3://b/runs"), "a run").unwrap_err().to_string();
        assert!(error.starts_with("s3://b/runs is a url, but a run must be on a file system"), "{error}");
    }
}

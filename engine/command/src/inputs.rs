//! Input files as they are named on the command line: a pattern or a folder stands for files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use rankine_base::url::{is_url, without_file_scheme};
use rankine_reader::convert::STANDARD_INPUT;
use rankine_reader::{Dataset, Fit, store};

use super::{CommandError, Exit};

/// As in a shell: `*` matches neither a hidden file nor a separator.
const RULES: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Replaces patterns and folders by the files that they stand for, in the order of their names. A path that exists is
/// never a pattern, and `-` is standard input.
pub(crate) fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CommandError> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let path = &without_file_scheme(path);
        if is_url(path) {
            files.append(&mut objects(path)?);
            continue;
        }
        if path == Path::new(STANDARD_INPUT) || fs::symlink_metadata(path).is_ok() {
            add(path, &mut files)?;
            continue;
        }
        match path.to_str().filter(|text| text.contains(['*', '?', '['])) {
            Some(pattern) => matches(pattern)?.iter().try_for_each(|path| add(path, &mut files))?,
            // Opening it will say what is wrong.
            None => files.push(path.clone()),
        }
    }
    Ok(files)
}

/// Returns the objects that an url stands for: what it matches as a pattern, the object, or the objects of the folder.
fn objects(url: &Path) -> Result<Vec<PathBuf>, CommandError> {
    let text = url.to_str().expect("a url is text");
    if !text.contains(['*', '?', '[']) {
        if store::has_object(url)? {
            return Ok(vec![url.to_owned()]);
        }
        let mut found = store::list(url)?.objects;
        found.retain(|url| !is_skipped(url));
        if found.is_empty() {
            let what =
                format!("there is no object {text}, and none directly below it: check bucket and path");
            return Err(CommandError::new(Exit::Usage, what));
        }
        return Ok(found);
    }
    let (scheme, rest) = text.split_once("://").expect("a url has a scheme");
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let mut folders = vec![PathBuf::from(format!("{scheme}://{bucket}"))];
    let mut found = Vec::new();
    let mut segments = key.split('/').peekable();
    while let Some(segment) = segments.next() {
        if !segment.contains(['*', '?', '[']) {
            folders.iter_mut().for_each(|folder| folder.push(segment));
            if segments.peek().is_none() {
                for url in std::mem::take(&mut folders) {
                    found.extend(store::has_object(&url)?.then_some(url));
                }
            }
            continue;
        }
        let pattern = Pattern::new(segment).map_err(|error| {
            CommandError::new(Exit::Usage, format!("{text} is invalid as a pattern: {}", error.msg))
        })?;
        let matches = |url: &PathBuf| {
            let name = url.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| pattern.matches_with(name, RULES))
        };
        let mut next = Vec::new();
        for folder in &folders {
            let listing = store::list(folder)?;
            match segments.peek() {
                Some(_) => next.extend(listing.folders.into_iter().filter(matches)),
                None => found.extend(listing.objects.into_iter().filter(matches)),
            }
        }
        folders = next;
    }
    if found.is_empty() {
        let what = format!("no object matches {text}: check the bucket and the names");
        return Err(CommandError::new(Exit::Usage, what));
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns whether a file in a folder is not read: it is hidden, or a marker such as `_SUCCESS`.
fn is_skipped(path: &Path) -> bool {
    path.file_name().is_some_and(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')))
}

/// Appends a file, or the files of a folder.
fn add(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), CommandError> {
    if path == Path::new(STANDARD_INPUT) || !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    if Dataset::exists(path) {
        let path = path.display();
        let what = format!(
            "{path} is a dataset, not a folder of raw files: `rankine eval` and `rankine predict` read it with --data"
        );
        return Err(CommandError::new(Exit::Usage, what));
    }
    if Fit::exists(path) {
        let path = path.display();
        let what = format!("{path} is a fit, not a folder of raw files: name it with --like");
        return Err(CommandError::new(Exit::Usage, what));
    }
    let mut own = files_of(path).map_err(|error| {
        CommandError::new(Exit::Failed, format!("cannot read the folder {}: {error}", path.display()))
    })?;
    if own.is_empty() {
        let what = format!(
            "the folder {} has no files: files in folders below it are not read, nor files whose names begin with . \
             or _",
            path.display()
        );
        return Err(CommandError::new(Exit::Usage, what));
    }
    own.sort_unstable();
    files.append(&mut own);
    Ok(())
}

/// Returns the files of a folder. Names that begin with `.` or `_` are those of hidden files and of markers that other
/// programs leave, such as `_SUCCESS`.
fn files_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Links are followed.
        if !is_skipped(&entry.path()) && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Returns what a pattern matches, sorted.
fn matches(pattern: &str) -> Result<Vec<PathBuf>, CommandError> {
    let found = glob::glob_with(pattern, RULES).map_err(|error| {
        let what = format!("no file is named {pattern}, and as a pattern it is invalid: {}", error.msg);
        CommandError::new(Exit::Usage, what)
    })?;
    let mut paths = found.collect::<Result<Vec<_>, _>>().map_err(|error| {
        let (path, error) = (error.path().display(), error.error());
        CommandError::new(Exit::Failed, format!("cannot look for {pattern} in {path}: {error}"))
    })?;
    if paths.is_empty() {
        let what = format!(
            "no file is named {pattern}, and none matches it as a pattern: check the folder and the names"
        );
        return Err(CommandError::new(Exit::Usage, what));
    }
    paths.sort_unstable();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expands paths below a folder, and returns their names there.
    fn names(folder: &Path, paths: &[&str]) -> Result<Vec<String>, String> {
        let paths: Vec<_> = paths.iter().map(|path| folder.join(path)).collect();
        let files = expand(&paths).map_err(|error| error.to_string())?;
        let name = |file: &PathBuf| file.strip_prefix(folder).unwrap_or(file).display().to_string();
        Ok(files.iter().map(name).collect())
    }

    #[test]
    fn patterns_and_folders_stand_for_files_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        fs::create_dir_all(folder.join("logs/below")).unwrap();
        fs::create_dir_all(folder.join("empty")).unwrap();
        for name in ["day_2.csv", "day_1.csv", "day_10.csv", ".day_0.csv", "day_[1].csv", "eve_1.csv"] {
            fs::write(folder.join(name), "").unwrap();
        }
        for name in ["b", "a", ".hidden", "_SUCCESS", "below/c"] {
            fs::write(folder.join("logs").join(name), "").unwrap();
        }
        fs::write(folder.join("empty/_SUCCESS"), "").unwrap();
        let names = |paths: &[&str]| names(folder, paths);
        let days = ["day_1.csv", "day_10.csv", "day_2.csv", "day_[1].csv"];
        assert_eq!(names(&["day_*.csv"]).unwrap(), days);
        assert_eq!(names(&["*_1.csv"]).unwrap(), ["day_1.csv", "eve_1.csv"]);
        assert_eq!(names(&["day_[12].csv"]).unwrap(), ["day_1.csv", "day_2.csv"]);
        // A file of this name exists, although as a pattern it matches another one.
        assert_eq!(names(&["day_[1].csv"]).unwrap(), ["day_[1].csv"]);
        assert_eq!(names(&["logs"]).unwrap(), ["logs/a", "logs/b"]);
        // A pattern matches folders, too; the given order of arguments stays.
        assert_eq!(
            names(&["eve_?.csv", "log*", "day_2.csv"]).unwrap(),
            ["eve_1.csv", "logs/a", "logs/b", "day_2.csv"]
        );
        assert_eq!(names(&["missing.csv"]).unwrap(), ["missing.csv"]);
        assert_eq!(expand(&["-".into()]).unwrap(), [PathBuf::from("-")]);
        for (path, words) in [
            ("night_*.csv", "night_*.csv, and none matches it as a pattern"),
            ("day_[.csv", "as a pattern it is invalid"),
            ("empty", "empty has no files: "),
        ] {
            let error = names(&[path]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}

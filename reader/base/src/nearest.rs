//! "Did you mean": the known word nearest to an unknown one.

use crate::escape::escape;

/// Number of column names that a message lists.
const NAMES_SHOWN: usize = 30;

/// Returns the question ": did you mean `...`?", or nothing if no candidate is near.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|name| format!(": did you mean `{name}`?")).unwrap_or_default()
}

/// Describes a column that a file lacks, for a message that begins with the file's name. `purpose` follows the name of
/// the column, and `names` are the file's columns. A column that is `used` otherwise is not what was meant.
pub fn no_column(
    column: &str,
    purpose: &str,
    names: &[impl AsRef<str>],
    used: impl Fn(&str) -> bool,
) -> String {
    let unused = || names.iter().map(AsRef::as_ref).filter(|name| !used(name));
    let meant = nearest(column, unused()).or_else(|| with_words_of(column, unused()));
    let meant = meant.map_or_else(String::new, |name| format!(" (did you mean {}?)", quoted(name)));
    let shown: Vec<_> = names.iter().take(NAMES_SHOWN).map(|name| quoted(name.as_ref())).collect();
    let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
    format!("has no column {}{purpose}{meant}; it has {}{more}", quoted(column), shown.join(", "))
}

/// Quotes the name of a column, which may have any characters.
pub fn quoted(name: &str) -> String {
    let mut text = String::from("`");
    escape(name.as_bytes(), &mut text);
    text.push('`');
    text
}

/// Returns the only candidate that has all words of a name, or is some of them: `film_id` for `film`, as a column is
/// often renamed. Words are divided by signs.
fn with_words_of<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let words = |name: &str| -> Vec<String> {
        let words = name.split(|char: char| !char.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let own = words(name);
    let has =
        |words: &[String], part: &[String]| !part.is_empty() && part.iter().all(|word| words.contains(word));
    let mut near = candidates.filter(|other| {
        let other = words(other);
        has(&other, &own) || has(&own, &other)
    });
    near.next().filter(|_| near.next().is_none())
}

/// Returns the candidate nearest to `word`, or `None` if more than a third of the letters (at least one) would be
/// wrong.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A word longer than any key is not a typo, and its distances would take quadratic time.
    const CHARS_MAX: usize = 64;
    let chars = word.chars().take(CHARS_MAX + 1).count();
    if chars > CHARS_MAX {
        return None;
    }
    let (word, limit) = (word.to_ascii_lowercase(), (chars / 3).max(1));
    // The distance counts letters to insert, remove, replace or swap with their neighbour.
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &candidate.to_ascii_lowercase()), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_column_is_recognized_among_those_that_are_not_used() {
        let meant = |column: &str, names: &[&str], used: &[&str]| {
            let message = no_column(column, "", names, |name| used.contains(&name));
            message.split_once("(did you mean ").map(|(_, rest)| rest.split('`').nth(1).unwrap().to_owned())
        };
        assert_eq!(meant("age", &["ages", "aged"], &[]).as_deref(), Some("ages"));
        assert_eq!(meant("age", &["ages", "aged"], &["ages"]).as_deref(), Some("aged"));
        assert_eq!(meant("film", &["Film_ID", "user"], &[]).as_deref(), Some("Film_ID"));
        assert_eq!(meant("user.country", &["country", "film"], &[]).as_deref(), Some("country"));
        // Two names are as near, or none.
        assert_eq!(meant("film", &["film_id", "last_film"], &[]), None);
        assert_eq!(meant("film", &["filmography", "-"], &[]), None);
    }

    #[test]
    fn typos_are_recognized_and_other_words_are_not() {
        let keys = ["batch_size", "epochs", "max_steps", "log_every_steps"];
        let cases = [
            ("bach_size", Some("batch_size")),
            ("batch-size", Some("batch_size")),
            ("Epochs", Some("epochs")),
            ("epcohs", Some("epochs")),
            ("max_step", Some("max_steps")),
            // Three letters of ten may be wrong, four may not.
            ("bxxxh_size", Some("batch_size")),
            ("bxxxx_size", None),
            ("momentum", None),
            ("", None),
        ];
        for (word, expected) in cases {
            assert_eq!(nearest(word, keys), expected, "{word}");
        }
        assert_eq!(nearest("sdg", ["sgd", "adagrad"]), Some("sgd"));
        // Of several near candidates, the nearest.
        assert_eq!(nearest("batch_siz", ["batch_sizes", "batch_size", "batch_sizing"]), Some("batch_size"));
        assert_eq!(nearest(&"x".repeat(100_000), keys), None);
    }
}

//! "Did you mean": the known word nearest to one that is not known.

/// The candidate nearest to `word`, unless none is near: a third of the letters may be wrong, and one of a short word.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A longer word than any key is no slip, and its distances would take quadratic time.
    const CHARS_MAX: usize = 64;
    let word: Vec<char> = word.chars().take(CHARS_MAX + 1).collect();
    if word.len() > CHARS_MAX {
        return None;
    }
    let limit = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.chars().collect::<Vec<_>>()), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, remove, replace or swap with their neighbour (the optimal string alignment distance).
fn distance(a: &[char], b: &[char]) -> usize {
    // Rows of the classic table: the one before the last, the last, and the one being filled.
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1; b.len() + 1];
        for j in 0..b.len() {
            let replaced = last[j] + usize::from(!a[i].eq_ignore_ascii_case(&b[j]));
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                row[j + 1] = row[j + 1].min(before_last[j - 1] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognized_and_other_words_are_not() {
        let keys = ["batch_size", "epochs", "max_steps", "log_every_steps"];
        let cases = [
            ("bach_size", Some("batch_size")),
            ("batch-size", Some("batch_size")),
            ("Epochs", Some("epochs")),
            ("epcohs", Some("epochs")),
            ("max_step", Some("max_steps")),
            // Three letters of ten may be wrong, and four may not.
            ("bxxxh_size", Some("batch_size")),
            ("bxxxx_size", None),
            ("momentum", None),
            ("", None),
        ];
        for (word, expected) in cases {
            assert_eq!(nearest(word, keys), expected, "{word}");
        }
        assert_eq!(nearest("sdg", ["sgd", "adagrad"]), Some("sgd"));
        // Of two that are near, the nearer.
        assert_eq!(nearest("batch_siz", ["batch_sizes", "batch_size", "batch_sizing"]), Some("batch_size"));
        assert_eq!(nearest(&"x".repeat(100_000), keys), None);
    }
}

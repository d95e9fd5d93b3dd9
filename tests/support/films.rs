//! Ratings of films as CSV, and a schema file that uses every option for columns.

use super::numbers;

/// Returns rows of CSV: two labels, of which the first may be missing; a weight; two columns with a shared vocabulary;
/// and bags.
pub(crate) fn csv_rows(count: usize, seed: u64) -> Vec<String> {
    let mut next = numbers(seed);
    let row = |_| {
        let (last, film) = (next() % 30, next() % 40);
        let rating =
            if next().is_multiple_of(9) { String::new() } else { (1 + (film + next()) % 5).to_string() };
        let bought = u64::from(film.is_multiple_of(3) != next().is_multiple_of(8));
        let tags: Vec<_> = (0..next() % 4).map(|_| format!("t{}", next() % 9)).collect();
        let age = if next().is_multiple_of(11) { String::new() } else { format!("{}.5", next() % 80) };
        format!("{rating},{bought},{}.25,f{last},f{film},{age},{}", next() % 3, tags.join("|"))
    };
    (0..count).map(row).collect()
}

/// The schema of [`csv_rows`].
pub(crate) const CSV_SCHEMA: &str = r#"
[[label]]
column = "rating"
at_least = 4
missing = "mask"

[[label]]
column = "bought"

[weight]
column = "weight"

[[dense]]
column = "age"
transform = ["log1p", "standardize"]

[[categorical]]
column = "film"
vocabulary = { kind = "exact", min_count = 2 }

[[categorical]]
column = "last"
vocabulary = { kind = "shared", with = "film" }

[[categorical]]
column = "tags"
separator = "|"
pooling = "mean"
vocabulary = { kind = "hash", rows = 50 }
"#;

//! Ratings of films as CSV, and a schema file that uses every option for columns.

use super::{Place, SUCCESS, numbers, run};

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

/// The columns of [`csv_rows`], in order.
pub(crate) const CSV_NAMES: [&str; 7] = ["rating", "bought", "weight", "last", "film", "age", "tags"];

/// The settings of a job that trains on the rows in their order.
pub(crate) const CSV_SETS: [&str; 2] = ["train.shuffle=false", "table=[{ columns = ['film', 'last'] }]"];

/// Returns the fields of lines, column by column.
pub(crate) fn columns_of(rows: &[String], separator: char) -> Vec<Vec<&str>> {
    let rows: Vec<Vec<_>> = rows.iter().map(|row| row.split(separator).collect()).collect();
    (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column]).collect()).collect()
}

/// Converts rows into the dataset `data` of a place; the last 500 are its evaluation part.
pub(crate) fn convert(place: &Place, rows: &[String]) {
    let header = CSV_NAMES.join(",");
    let (train, eval) = rows.split_at(rows.len() - 500);
    let log = place.file("log.csv", format!("{header}\n{}\n", train.join("\n")));
    let eval = place.file("eval.csv", format!("{header}\n{}\n", eval.join("\n")));
    let schema = place.file("schema.toml", CSV_SCHEMA);
    let data = place.word("data");
    run(["convert", "csv", &log, "--schema", &schema, "--eval", &eval, "--out", &data]).with(SUCCESS);
}

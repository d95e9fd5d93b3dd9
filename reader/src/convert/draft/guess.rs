//! Guesses what becomes of a raw column: a dense or a categorical column, or nothing.

use rankine_base::escape::excerpt;

use crate::convert::draft::column::{Observed, SEPARATORS, WHOLE_MAX};
use crate::convert::number;
use crate::convert::rows::raw_type::RawType;

/// Fewer values say nothing about how many distinct ones there are.
const VALUES_MIN: u64 = 20;
/// A column with at least this share of distinct values names rows.
const DISTINCT_SHARE: f64 = 0.95;
/// Fewer distinct whole numbers are quantities or codes; with buckets, each of them has its own embedding.
const NUMBERED_MIN: u64 = 100;
/// A larger skewness suggests a logarithm, or counts.
const SKEWNESS_MAX: f64 = 1.0;
/// Exact vocabularies of more distinct values have a minimum count.
const EVERY_CATEGORY_MAX: u64 = 100;
/// From this many distinct values on, and a hash has a table of a known size.
const HASHED_FROM: u64 = 50_000;
/// The same, if at least half of the values are distinct.
const HASHED_FROM_DIVERSE: u64 = 10_000;
const HASH_ROWS: u64 = 1_000_000;
/// Seconds since 1970 in 1992 and 2039.
const SECONDS: [f64; 2] = [7e8, 2.2e9];

/// Last words of the names of whole numbers that name something.
const IDENTIFIERS: [&str; 4] = ["id", "code", "zip", "postcode"];

/// What becomes of a raw column.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// A dense column, with its `transform` in TOML.
    Dense(&'static str),
    /// A categorical column, with its `vocabulary` in TOML.
    Categorical { vocabulary: String, separator: Option<&'static str> },
    /// Nothing.
    LeftOut,
}

/// What becomes of a raw column, and why.
#[derive(Debug)]
pub(super) struct Guess {
    pub(super) section: Section,
    pub(super) why: String,
}

impl Guess {
    pub(super) fn left_out(why: impl Into<String>) -> Self {
        Self { section: Section::LeftOut, why: why.into() }
    }

    fn categorical(vocabulary: String, separator: Option<&'static str>, why: String) -> Self {
        Self { section: Section::Categorical { vocabulary, separator }, why }
    }
}

/// Returns the words of a name in lower case: `userId` has two, as `user_id`.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower = false;
    for char in name.chars() {
        if !char.is_alphanumeric() || char.is_uppercase() && lower {
            words.push(String::new());
        }
        lower = char.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| char.is_alphanumeric()) {
            word.extend(char.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Guesses what becomes of a column.
pub(super) fn guess(column: &Observed) -> Guess {
    let values = column.values();
    match &column.column.values {
        RawType::Unusable(why) => return Guess::left_out(format!("its values are {why}")),
        RawType::Time => return time("dates or times"),
        _ if values == 0 => return Guess::left_out("it is empty in all rows"),
        _ if column.rows > 1 && column.distinct() == 1 && column.empty == 0 => {
            return Guess::left_out("it has the same value in all rows");
        }
        RawType::List => return bags(column, None),
        RawType::Number => return dense(column, &Spread::of(&column.numbers)),
        RawType::Any | RawType::Integer if column.is_numeric() => return numbers(column),
        RawType::Any | RawType::Integer | RawType::Text => {}
    }
    if column.dates == values {
        return time("dates or times");
    }
    if 2 * column.bracketed > values {
        return Guess::left_out(
            "its fields are lists in brackets: rewrite them as categories with a separator",
        );
    }
    match separator(column) {
        Some(separator) => bags(column, Some(separator)),
        None => category(column, distinct(column)),
    }
}

fn time(what: &str) -> Guess {
    Guess::left_out(format!("it has {what}: add columns for the hour and the weekday to the files"))
}

/// Guesses what becomes of a column of numbers that may also be categories.
fn numbers(column: &Observed) -> Guess {
    let spread = Spread::of(&column.numbers);
    let [least, most] = [spread.least, spread.most];
    let (values, distinct_values) = (column.values(), column.distinct());
    if column.whole < values {
        return match least.abs().max(most) >= WHOLE_MAX {
            true => category(column, format!("{}, of numbers too large to be quantities", distinct(column))),
            false => dense(column, &spread),
        };
    }
    let is_identifier =
        words(&column.column.name).last().is_some_and(|word| IDENTIFIERS.contains(&word.as_str()));
    let within = |unit: f64| least > SECONDS[0] * unit && most < SECONDS[1] * unit;
    if !is_identifier && distinct_values > 2 && (within(1.0) || within(1000.0)) {
        return time("seconds or milliseconds since 1970");
    }
    let filled = distinct_values as f64 / (most - least + 1.0);
    let numbers_rows = column.numbers.windows(2).all(|pair| pair[0] < pair[1]) || filled >= DISTINCT_SHARE;
    // Such as users and items that are numbered.
    let numbered = filled >= 0.5
        && (NUMBERED_MIN..=values / 2).contains(&distinct_values)
        && spread.skewness.abs() < SKEWNESS_MAX;
    match is_identifier || numbered || is_unique(column) && numbers_rows {
        true => category(column, format!("{}, whole numbers like identifiers", distinct(column))),
        false => dense(column, &spread),
    }
}

/// The distribution of numbers.
struct Spread {
    least: f64,
    most: f64,
    skewness: f64,
    /// The skewness after `log1p`.
    log_skewness: f64,
}

impl Spread {
    fn of(numbers: &[f64]) -> Self {
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_skewness = skewness(numbers, |x| x.signum() * x.abs().ln_1p());
        Self { least, most, skewness: skewness(numbers, |x| x), log_skewness }
    }
}

/// Returns the third standardized moment of f(x); 0 if all are equal.
fn skewness(numbers: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    let count = numbers.len() as f64;
    let mean = numbers.iter().map(|&x| f(x)).sum::<f64>() / count;
    let moment = |power| numbers.iter().map(|&x| (f(x) - mean).powi(power)).sum::<f64>() / count;
    let variance = moment(2);
    if variance > 0.0 { moment(3) / variance.powf(1.5) } else { 0.0 }
}

fn dense(column: &Observed, spread: &Spread) -> Guess {
    if column.distinct() == 1 {
        return Guess::left_out("its numbers are all the same");
    }
    let Spread { least, most, skewness, log_skewness } = *spread;
    let mut why = format!("numbers from {least} to {most}");
    let transform = match skewness > SKEWNESS_MAX && log_skewness.abs() < skewness {
        true => {
            why += &format!(", skewed: skewness {skewness:.1}, and {log_skewness:.1} after log1p");
            r#"["log1p", "standardize"]"#
        }
        false => r#""standardize""#,
    };
    if column.empty > 0 {
        why += &format!("; {} empty, stored as the mean", share(column.empty, column.rows));
    }
    Guess { section: Section::Dense(transform), why }
}

/// Returns the separator of a column's categories. Blanks and commas also stand in names, so they must be worth it.
fn separator(column: &Observed) -> Option<&'static str> {
    let suits = |at: &usize| {
        let pieces = &column.pieces[*at];
        let (distinct, values) = (pieces.distinct().unwrap_or(usize::MAX) as u64, column.distinct());
        let limit = if *at < 2 { values } else { values / 2 };
        20 * pieces.fields >= column.values() && 20 * pieces.odd <= pieces.fields && distinct <= limit
    };
    (0..SEPARATORS.len()).find(suits).map(|at| SEPARATORS[at])
}

fn bags(column: &Observed, separator: Option<&'static str>) -> Guess {
    let pieces = separator.and_then(|one| {
        let at = SEPARATORS.iter().position(|&other| other == one)?;
        column.pieces[at].distinct()
    });
    let why = match (separator, pieces) {
        (Some(one), Some(pieces)) => {
            let fields = SEPARATORS.iter().zip(&column.pieces).find(|(other, _)| **other == one);
            let fields = fields.map_or(0, |(_, pieces)| pieces.fields);
            format!("{pieces} categories, separated by {one:?} in {} of rows", share(fields, column.rows))
        }
        _ => {
            let mean = column.listed as f64 / column.rows.max(1) as f64;
            format!("lists of {} distinct categories, {mean:.1} in a row on average", column.distinct())
        }
    };
    let distinct = pieces.map_or(column.distinct(), |pieces| pieces as u64);
    Guess::categorical(vocabulary(distinct, column.values()), separator, why)
}

/// Guesses what becomes of a column of categories, described by `what`.
fn category(column: &Observed, mut what: String) -> Guess {
    if is_unique(column) {
        let share = share(column.distinct(), column.values());
        return Guess::left_out(format!("{share} of values distinct: probably an identifier of rows"));
    }
    let (numbers, values) = (column.numbers.len() as u64, column.values());
    if numbers < values && 5 * numbers >= 4 * values {
        let frequent = column.frequent();
        let word = frequent.iter().find(|(text, _)| number::parse(text).is_none());
        let word = word.map_or_else(|| "that are not".into(), |(text, _)| excerpt(text));
        what +=
            &format!("; {} are numbers: for a dense column, empty the fields {word}", share(numbers, values));
    }
    let vocabulary = vocabulary(column.distinct(), values);
    if vocabulary == hash() {
        what += "; a hash bounds the table, and some categories share a row";
    } else if column.distinct() > EVERY_CATEGORY_MAX && column.once() > 0 {
        what += &format!("; {} occur once and share row 0", column.once());
    }
    Guess::categorical(vocabulary, None, what)
}

fn vocabulary(distinct: u64, values: u64) -> String {
    let diverse = distinct >= HASHED_FROM_DIVERSE && 2 * distinct >= values;
    match distinct {
        _ if distinct >= HASHED_FROM || diverse => hash(),
        0..=EVERY_CATEGORY_MAX => r#"{ kind = "exact", min_count = 1 }"#.into(),
        _ => r#"{ kind = "exact", min_count = 2 }"#.into(),
    }
}

fn hash() -> String {
    format!("{{ kind = \"hash\", rows = {HASH_ROWS} }}")
}

fn is_unique(column: &Observed) -> bool {
    column.values() >= VALUES_MIN && column.distinct() as f64 >= DISTINCT_SHARE * column.values() as f64
}

fn distinct(column: &Observed) -> String {
    format!("{} distinct values in {} rows", column.distinct(), column.rows)
}

/// Returns a share in percent.
fn share(part: u64, whole: u64) -> String {
    format!("{:.0}%", 100.0 * part as f64 / whole.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::rows::raw_type::RawColumnType;

    fn guessed(name: &str, values: RawType, texts: impl IntoIterator<Item = String>) -> Guess {
        let mut column = Observed::new(RawColumnType { name: name.into(), values });
        texts.into_iter().for_each(|text| column.add(text.as_bytes()));
        guess(&column)
    }

    #[track_caller]
    fn check(name: &str, of: impl Fn(u64) -> String, expected: &str) {
        let Guess { section, why } = guessed(name, RawType::Any, (0..1000).map(of));
        let found = match section {
            Section::Dense(transform) => format!("dense {transform}"),
            Section::Categorical { vocabulary, separator: None } => format!("categorical {vocabulary}"),
            Section::Categorical { separator: Some(separator), .. } => format!("bags {separator:?}"),
            Section::LeftOut => "left out".into(),
        };
        assert_eq!(found, expected, "{name}: {why}");
    }

    #[test]
    fn each_kind_of_column_is_recognized() {
        let log = "dense [\"log1p\", \"standardize\"]";
        let all = "categorical { kind = \"exact\", min_count = 1 }";
        let frequent = "categorical { kind = \"exact\", min_count = 2 }";
        check("x", |n| format!("{}", 1.5 * (n % 7) as f64), "dense \"standardize\"");
        check("x", |n| format!("{}", (n % 10 * (n % 10)).pow(3)), log);
        check("price", |n| (n % 9).to_string(), "dense \"standardize\"");
        check("hour", |n| (n % 24).to_string(), "dense \"standardize\"");
        check("hour_id", |n| (n % 24).to_string(), all);
        check("x", |n| (n * 7 % 300).to_string(), frequent);
        check("x", |n| (n % 99).to_string(), "dense \"standardize\"");
        check("x", |n| (3 * n * 7 % 915).to_string(), "dense \"standardize\"");
        check("id", |n| (n * n * 7).to_string(), "left out");
        check("x", |n| n.to_string(), "left out");
        check("salary", |n| (n * 7919 % 100_003).to_string(), "dense \"standardize\"");
        check("request", |n| format!("r{n}"), "left out");
        check("x", |n| format!("c{}", n % 10), all);
        check("x", |n| (880_000_000 + n * 97_003 % 1_000_000).to_string(), "left out");
        check("when", |n| format!("2024-01-{:02} 10:00:00", 1 + n % 28), "left out");
        check("tags", |n| format!("a{}|b{}", n % 5, n % 7), "bags \"|\"");
        check("tags", |n| format!("a{} b{}", n % 5, n % 7), "bags \" \"");
        check("city", |n| ["New York", "Los Angeles", "Rome"][n as usize % 3].into(), all);
        check("list", |n| format!("[1, {n}]"), "left out");
        check("x", |_| "same".into(), "left out");
        check("x", |_| String::new(), "left out");
        let large = |n: u64| (12_345_678_901_234_567_890 + n % 50).to_string();
        check("x", large, all);
    }

    #[test]
    fn reasons_are_given() {
        let numbers = (0..100).map(|n| if n % 10 == 0 { "NA".into() } else { format!("{}.5", n % 13) });
        let Guess { why, .. } = guessed("x", RawType::Any, numbers);
        assert!(why.ends_with("; 90% are numbers: for a dense column, empty the fields 'NA'"), "{why}");
        let unique = (0..100).map(|n| format!("r{}", n % 97));
        let Guess { why, .. } = guessed("x", RawType::Any, unique);
        assert_eq!(why, "97% of values distinct: probably an identifier of rows");
        let Guess { section, .. } =
            guessed("user", RawType::Text, (0..120_000).map(|n| format!("u{}", n / 2)));
        let vocabulary = "{ kind = \"hash\", rows = 1000000 }".to_owned();
        assert_eq!(section, Section::Categorical { vocabulary, separator: None });
        let Guess { section, .. } = guessed("is_new", RawType::Number, ["true", "false", ""].map(Into::into));
        assert_eq!(section, Section::Dense("\"standardize\""));
    }

    #[test]
    fn names_consist_of_words() {
        for name in ["user_id", "userId", "User ID", "user.id"] {
            assert_eq!(words(name), ["user", "id"], "{name}");
        }
        assert_eq!(words("I1"), ["i1"]);
    }
}

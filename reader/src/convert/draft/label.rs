//! Guesses the label: the column to predict, and which of its values count as 1.

use rankine_base::escape::excerpt;

use crate::convert::draft::column::Observed;
use crate::convert::draft::guess::words;
use crate::convert::rows::raw_type::RawType;

/// Names of labels, the likeliest first, without words such as `is`.
const NAMES: &str = "label target click clicked y conversion converted purchase purchased buy bought install installed \
                     like liked response outcome class positive rating ratings stars labels";
/// Texts that count as 1.
const POSITIVE: &str = "1 true t yes y click clicked buy bought purchase purchased positive pos like";
/// Numbers from the first one on that at most this share of rows reaches count as 1.
const POSITIVES_SHARE: f64 = 0.6;

/// A label.
#[derive(Debug)]
pub(super) struct LabelGuess {
    /// The number of the raw column.
    pub(super) column: usize,
    /// The key that says which values count as 1, in TOML; `None` if they are 0 and 1.
    pub(super) rule: Option<String>,
    pub(super) why: String,
}

/// Guesses the label among columns, or describes the values of the one that is `named`.
pub(super) fn label(columns: &[Observed], named: Option<usize>) -> Option<LabelGuess> {
    if let Some(column) = named {
        let (rule, values) = rule(&columns[column]);
        return Some(LabelGuess { column, rule, why: values });
    }
    let ends = [columns.len().checked_sub(1), Some(0).filter(|_| !columns.is_empty())];
    let found = by_name(columns).map(|column| (column, "found by its name")).or_else(|| {
        let two = |column: &usize| columns[*column].distinct() == 2 && is_possible(&columns[*column]);
        let column = ends.into_iter().flatten().find(two)?;
        let place = if column == 0 {
            "found as the first column, with two values"
        } else {
            "found as the last column, with two values"
        };
        Some((column, place))
    });
    let (column, place) = found?;
    let (rule, values) = rule(&columns[column]);
    Some(LabelGuess { column, rule, why: format!("{place}: {values}") })
}

/// Whether a column is named like a label.
pub(super) fn is_named(column: &Observed) -> bool {
    rank(column).is_some()
}

/// Returns the place of a column's name among the names of labels.
fn rank(column: &Observed) -> Option<usize> {
    let mut words = words(&column.column.name);
    words.retain(|word| !["is", "has", "was", "did"].contains(&word.as_str()));
    let [word] = &words[..] else { return None };
    NAMES.split(' ').position(|name| name == word)
}

fn by_name(columns: &[Observed]) -> Option<usize> {
    let named = (0..columns.len()).filter(|&at| is_possible(&columns[at]));
    named.filter_map(|at| Some((rank(&columns[at])?, at))).min().map(|(_, at)| at)
}

/// Whether a column may be a label: of numbers, or of at most two texts.
fn is_possible(column: &Observed) -> bool {
    let texts = matches!(column.column.values, RawType::Any | RawType::Text) && column.distinct() <= 2;
    column.values() > 0 && (texts || column.is_numeric())
}

/// Returns the key that says which values count as 1, and describes the values.
fn rule(column: &Observed) -> (Option<String>, String) {
    if !column.is_numeric() {
        return text_rule(column);
    }
    let mut numbers = column.numbers.clone();
    numbers.sort_by(f64::total_cmp);
    let mut distinct = numbers.clone();
    distinct.dedup();
    let reach =
        |least: f64| 1.0 - numbers.partition_point(|&number| number < least) as f64 / numbers.len() as f64;
    let described = |least: f64| format!("{:.2}% of its values count as 1", 100.0 * reach(least));
    if distinct.iter().all(|&number| number == 0.0 || number == 1.0) {
        let constant = if distinct.len() == 1 { "; all are equal in these rows" } else { "" };
        return (None, described(1.0) + constant);
    }
    let below = distinct[1..].iter().find(|&&least| reach(least) <= POSITIVES_SHARE);
    let least = *below.unwrap_or(&distinct[distinct.len() - 1]);
    let [first, last] = [distinct[0], distinct[distinct.len() - 1]];
    let why = format!("numbers from {first} to {last}; {}: check the threshold", described(least));
    (Some(format!("at_least = {least:?}")), why)
}

fn text_rule(column: &Observed) -> (Option<String>, String) {
    let frequent = column.frequent();
    let positive = |text: &[u8]| POSITIVE.split(' ').any(|word| text.eq_ignore_ascii_case(word.as_bytes()));
    let found = frequent.iter().find(|(text, _)| positive(text)).or(match frequent.len() {
        2 => frequent.last(),
        _ => frequent.first(),
    });
    let Some(&(text, count)) = found else {
        return (None, "no value was found".into());
    };
    let share = 100.0 * f64::from(count) / column.values() as f64;
    let why = format!("texts; {share:.2}% are {}, which counts as 1: check it", excerpt(text));
    (Some(format!("equals = {}", toml::Value::from(&*String::from_utf8_lossy(text)))), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::rows::raw_type::RawColumnType;

    fn column(name: &str, values: RawType, texts: &[&str]) -> Observed {
        let mut column = Observed::new(RawColumnType { name: name.into(), values });
        texts.iter().for_each(|text| column.add(text.as_bytes()));
        column
    }

    fn found(columns: &[Observed]) -> Option<(usize, Option<String>)> {
        label(columns, None).map(|label| (label.column, label.rule))
    }

    #[test]
    fn a_label_is_found_by_its_name_or_place() {
        let any = |name, texts| column(name, RawType::Any, texts);
        let number = any("x", &["3", "4", "5"]);
        let binary = any("z", &["0", "1", "1"]);
        let named = any("Is_Click", &["0", "1", "0"]);
        let text = any("target", &["a", "b", "c"]);
        assert_eq!(found(&[binary, text, named]), Some((2, None)));
        assert_eq!(found(&[any("z", &["0", "1"]), any("x", &["3", "4", "5"])]), Some((0, None)));
        assert_eq!(found(&[any("a", &["0", "1"]), any("b", &["0", "1"])]), Some((1, None)));
        assert_eq!(found(&[number]), None);
        assert_eq!(found(&[]), None);
        let stars = any("rating", &["1", "2", "3", "4", "4", "5", "5"]);
        assert_eq!(found(&[stars]), Some((0, Some("at_least = 4.0".into()))));
        let words = any("y", &["no", "no", "\"yes\""]);
        assert_eq!(found(&[words]), Some((0, Some(r#"equals = '"yes"'"#.into()))));
        let signs = any("y", &["-1", "1", "", "1"]);
        assert_eq!(found(&[signs]), Some((0, Some("at_least = 1.0".into()))));
        // Parquet compares texts with texts.
        let texts = column("label", RawType::Text, &["0", "1", "0"]);
        assert_eq!(found(&[texts]), Some((0, Some("equals = \"1\"".into()))));
    }
}

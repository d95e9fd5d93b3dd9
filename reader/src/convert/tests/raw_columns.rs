//! Columns of a program: each value is read as that of a file would be, or refused with its column and row.

use crate::convert::raw_columns::{RawColumn, RawColumnError, RawColumnValues, RawColumns, RawLabels};
use crate::convert::rows::{RawRows, RawValues};
use crate::convert::*;
use crate::generate::Shape;
use crate::raw::RawFormat;
use crate::schema::{DenseDtype, Schema};

#[cfg(feature = "parquet")]
use RawColumnValues::Exact;
use RawColumnValues::{Integers, Numbers, Texts};

/// What a program's columns are read for.
struct Model {
    schema: Schema,
    format: RowFormat,
}

impl Model {
    fn csv(schema: &str) -> Self {
        let plan = SchemaFile::parse("s.toml", schema).unwrap().csv_plan(1, DenseDtype::F32).unwrap();
        Self { schema: plan.draft, format: plan.format }
    }

    /// Columns of one kind of Criteo's: `I1` and `C1`.
    fn criteo() -> Self {
        let mut schema = CriteoColumns::default().plan(DenseDtype::F32).draft;
        schema.dense.truncate(1);
        schema.categorical.truncate(1);
        Self { schema, format: RowFormat::CriteoTsv }
    }

    /// One column `C1` of bags of three ids below 10.
    fn records() -> Self {
        let shape: Shape = toml::from_str("name = \"x\"\ndense = 0\nrows = [10]\nhotness = [3]\n").unwrap();
        let format = RawFormat::new(shape);
        Self { schema: format.schema(DenseDtype::F32), format: RowFormat::HugectrRaw(format) }
    }

    fn append(
        &self,
        labels: RawLabels,
        rows: usize,
        columns: &[RawColumn<'_>],
    ) -> Result<RawRows, RawColumnError> {
        let mut raw = RawRows::new(&self.schema);
        let columns = RawColumns { schema: &self.schema, format: &self.format, labels, rows, columns };
        let appended = raw.append_columns(&columns);
        if appended.is_err() {
            assert_eq!((raw.len(), raw.dense.iter().map(Vec::len).sum::<usize>()), (0, 0));
        }
        appended.map(|()| raw)
    }
}

fn column<'a>(name: &'a str, values: RawColumnValues<'a>) -> RawColumn<'a> {
    RawColumn { name, values, offsets: None }
}

fn bags<'a>(name: &'a str, values: RawColumnValues<'a>, offsets: &'a [u32]) -> RawColumn<'a> {
    RawColumn { name, values, offsets: Some(offsets) }
}

fn ids(rows: &RawRows) -> &[u64] {
    match &rows.categories[0].values {
        RawValues::Rows(ids) => ids,
        RawValues::Keys(_) => panic!("the column has row numbers"),
    }
}

#[test]
fn numbers_of_criteo_are_integers() {
    let model = Model::criteo();
    let append = |numbers| {
        let columns = [column("I1", numbers), column("C1", Texts(&["a", "b", "c"]))];
        model.append(RawLabels::Ignored, 3, &columns)
    };
    for numbers in [Numbers(&[-3.0, f64::NAN, 7.0]), Texts(&["-3", "", "7"])] {
        let rows = append(numbers).unwrap();
        assert!(rows.dense[0][0] == -3.0 && rows.dense[0][1].is_nan() && rows.dense[0][2] == 7.0);
    }
    assert_eq!(append(Integers(&[-3, 0, 7])).unwrap().dense[0], [-3.0, 0.0, 7.0]);
    for (numbers, shown) in [
        (Numbers(&[1.0, 2.0, 2.5]), "2.5"),
        (Numbers(&[1.0, 2.0, f64::INFINITY]), "inf"),
        (Texts(&["1", "2", "2.5"]), "\"2.5\""),
        (Texts(&["1", "2", "two"]), "\"two\""),
    ] {
        let error = append(numbers).unwrap_err().to_string();
        assert_eq!(error, format!("column I1, row 2: {shown} is not a 64-bit integer"));
    }
}

/// As in files: the category of a date is its text, its number counts days, and a text is refused as a number.
#[cfg(feature = "parquet")]
#[test]
fn types_are_read_as_in_parquet() {
    let schema = "label = { column = \"l\", equals = \"yes\" }\ndense = [{ column = \"n\" }]\n\
                  categorical = [{ column = \"c\" }]";
    let plan = SchemaFile::parse("s.toml", schema).unwrap();
    let plan = plan.parquet_plan(1, DenseDtype::F32, &[false]).unwrap();
    let model = Model { schema: plan.draft, format: plan.format };
    let append = |label, number, category: RawColumnValues<'_>| {
        let columns = [column("l", label), column("n", number), column("c", category)];
        model.append(RawLabels::Needed, 1, &columns).map_err(|error| error.to_string())
    };
    let date = Exact(ValueType::Date, &[Some(20_512)]);
    let cents = Exact(ValueType::Decimal { scale: 2 }, &[Some(-1230)]);
    for (number, expected) in [(date, 20_512.0), (cents, -12.3), (Integers(&[7]), 7.0)] {
        assert_eq!(append(Texts(&["yes"]), number, Texts(&["x"])).unwrap().dense[0], [expected]);
    }
    let missing = append(Texts(&["yes"]), Exact(ValueType::Date, &[None]), Texts(&["x"])).unwrap();
    assert!(missing.dense[0][0].is_nan());
    for (category, expected) in [
        (date, "2026-02-28"),
        (cents, "-12.30"),
        (Exact(ValueType::Integer, &[Some(u64::MAX as i128)]), "18446744073709551615"),
        (Exact(ValueType::Date, &[None]), ""),
    ] {
        let rows = append(Texts(&["yes"]), date, category).unwrap();
        let text = [expected];
        let same = append(Texts(&["yes"]), date, Texts(&text)).unwrap();
        assert_eq!(format!("{:?}", rows.categories), format!("{:?}", same.categories), "{expected}");
    }
    for (label, number, category, words) in [
        (
            Texts(&["yes"]),
            Texts(&["7"]),
            date,
            "column n has strings, but the model needs numbers (integers,",
        ),
        (
            Texts(&["yes"]),
            date,
            Numbers(&[1.5]),
            "column c has floating-point numbers, but the model needs cat",
        ),
        (Integers(&[1]), date, date, "column l has integers, but the model needs strings"),
    ] {
        let error = append(label, number, category).unwrap_err();
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn bags_of_fixed_size_have_exactly_that_many_ids() {
    let model = Model::records();
    let append = |ids: &[i64], offsets: &[u32]| {
        model.append(RawLabels::Ignored, offsets.len() - 1, &[bags("C1", Integers(ids), offsets)])
    };
    assert_eq!(ids(&append(&[1, 2, 3, 4, 5, 9], &[0, 3, 6]).unwrap()), [1, 2, 3, 4, 5, 9]);
    for (offsets, found) in [(&[0, 3, 5], 2), (&[0, 3, 7], 4), (&[0, 3, 3], 0)] {
        let values: Vec<i64> = (0..i64::from(offsets[2])).collect();
        let error = append(&values, offsets).unwrap_err();
        let expected = "3, as in training".to_owned();
        assert_eq!(error, RawColumnError::BagSize { column: "C1".into(), row: 1, expected, found });
    }
    // Ids out of range are left to the rules of the job.
    assert_eq!(ids(&append(&[1, 10, 99], &[0, 3]).unwrap()), [1, 10, 99]);
    // Without offsets, each row has one.
    let error = model.append(RawLabels::Ignored, 2, &[column("C1", Integers(&[1, 2]))]).unwrap_err();
    assert!(matches!(error, RawColumnError::BagSize { row: 0, found: 1, .. }), "{error}");
}

#[test]
fn offsets_rise_from_zero_to_the_number_of_values() {
    let model = Model::csv(
        "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\nseparator = \"|\"\n\
         vocabulary = { kind = \"identity\", rows = 10 }\n",
    );
    let append =
        |offsets: &[u32]| model.append(RawLabels::Ignored, 2, &[bags("c", Integers(&[4, 5, 6]), offsets)]);
    let rows = append(&[0, 1, 3]).unwrap();
    assert_eq!((ids(&rows), rows.categories[0].largest_bag()), (&[4, 5, 6][..], 2));
    assert_eq!(ids(&append(&[0, 0, 3]).unwrap()), [4, 5, 6]);
    // A bag has at most as many categories as one of a file.
    let most = vec![1; BAG_MAX as usize + 1];
    let append_most = |count: u32| {
        let offsets = [0, count];
        let column = bags("c", Integers(&most[..count as usize]), &offsets);
        model.append(RawLabels::Ignored, 1, &[column])
    };
    assert_eq!(ids(&append_most(BAG_MAX).unwrap()).len(), BAG_MAX as usize);
    let error = append_most(BAG_MAX + 1).unwrap_err();
    assert!(matches!(error, RawColumnError::BagSize { row: 0, .. }), "{error}");
    for offsets in [[1, 1, 3], [0, 1, 2], [0, 1, 4], [0, 4, 3]] {
        let error = append(&offsets).unwrap_err();
        assert_eq!(error, RawColumnError::Offsets { column: "c".into(), values: 3 }, "{offsets:?}");
    }
    for offsets in [&[0, 3][..], &[0, 1, 2, 3], &[]] {
        let error = append(offsets).unwrap_err();
        let found = offsets.len().saturating_sub(1);
        assert_eq!(error, RawColumnError::Rows { column: "c".into(), expected: 2, found });
    }
}

/// Only rows of a file that is trimmed have space around their categories.
#[test]
fn texts_are_divided_as_those_of_a_file() {
    let schema = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\nseparator = \"|\"\n\
                  vocabulary = { kind = \"identity\", rows = 10 }\n";
    let append = |schema: &str, texts: &[&str]| {
        Model::csv(schema).append(RawLabels::Ignored, texts.len(), &[column("c", Texts(texts))])
    };
    let rows = append(schema, &["4|5", "", "6"]).unwrap();
    assert_eq!((ids(&rows), rows.categories[0].largest_bag()), (&[4, 5, 6][..], 2));
    let error = append(schema, &["4|5", "6 |7"]).unwrap_err();
    assert!(matches!(&error, RawColumnError::Value { row: 1, value, .. } if value == "\"6 \""), "{error}");
    let trimmed = format!("{schema}[format]\ntrim = true\n");
    assert_eq!(ids(&append(&trimmed, &["4| 5", "6 |7"]).unwrap()), [4, 5, 6, 7]);
}

#[test]
fn row_numbers_are_those_of_the_table() {
    let model = Model::csv(
        "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\n\
         vocabulary = { kind = \"identity\", rows = 10 }\n",
    );
    let append = |values| model.append(RawLabels::Ignored, 2, &[column("c", values)]);
    for values in [Integers(&[0, 9]), Texts(&["0", "9"])] {
        assert_eq!(ids(&append(values).unwrap()), [0, 9]);
    }
    for (values, shown) in [
        (Integers(&[0, 10]), "10"),
        (Integers(&[0, -1]), "-1"),
        (Texts(&["0", "10"]), "\"10\""),
        (Texts(&["0", ""]), "\"\""),
    ] {
        let error = append(values).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("column c, row 1: {shown} is not the number of one of its table's 10 rows")
        );
    }
    let error = append(Numbers(&[0.0, 1.0])).unwrap_err();
    assert!(matches!(error, RawColumnError::Type { .. }), "{error}");
}

#[test]
fn labels_and_weights_are_read_only_if_they_are_needed() {
    let schema = "label = { column = \"l\", at_least = 4 }\nweight = { column = \"w\" }\n\
                  [[dense]]\ncolumn = \"x\"\n";
    let model = Model::csv(schema);
    let columns = |labels, weights| {
        let x = column("x", Numbers(&[0.5, f64::NAN, 1.5]));
        [column("l", labels), column("w", weights), x]
    };
    let needed = |labels, weights| model.append(RawLabels::Needed, 3, &columns(labels, weights));
    let rows = needed(Integers(&[3, 4, 5]), Numbers(&[0.0, 2.0, 0.5])).unwrap();
    assert_eq!((&rows.labels[0][..], &rows.weights[..]), (&[0.0, 1.0, 1.0][..], &[0.0, 2.0, 0.5][..]));
    let rows = needed(Texts(&["4", "3.5", "4.0"]), Texts(&["1", "2", "3"])).unwrap();
    assert_eq!((&rows.labels[0][..], &rows.weights[..]), (&[1.0, 0.0, 1.0][..], &[1.0, 2.0, 3.0][..]));
    for (labels, weights, column, row) in [
        (Numbers(&[4.0, 4.0, f64::NAN]), Numbers(&[1.0; 3]), "l", 2),
        (Texts(&["4", "", "4"]), Numbers(&[1.0; 3]), "l", 1),
        (Integers(&[4; 3]), Numbers(&[1.0, -1.0, 1.0]), "w", 1),
        (Integers(&[4; 3]), Numbers(&[1.0, 1.0, f64::NAN]), "w", 2),
        (Integers(&[4; 3]), Texts(&["", "1", "1"]), "w", 0),
    ] {
        let error = needed(labels, weights).unwrap_err();
        let named = match &error {
            RawColumnError::Value { column, row, .. } => (&**column, *row),
            other => panic!("{other}"),
        };
        assert_eq!(named, (column, row), "{error}");
    }
    // Ignored columns may hold anything, or be absent: labels are unknown and weights 1.
    let with = columns(Texts(&["no", "label", ""]), Texts(&["no", "weight", ""]));
    for columns in [&with[..], &with[2..]] {
        let rows = model.append(RawLabels::Ignored, 3, columns).unwrap();
        assert!(rows.labels[0].iter().all(|label| label.is_nan()) && rows.labels[0].len() == 3);
        assert_eq!(rows.weights, [1.0; 3]);
    }
    let missing = model.append(RawLabels::Needed, 3, &with[1..]).unwrap_err();
    assert!(matches!(&missing, RawColumnError::Missing { name, .. } if name == "l"), "{missing}");
}

#[test]
fn a_missing_label_that_is_masked_is_unknown() {
    let schema =
        "[[label]]\ncolumn = \"l\"\nequals = \"buy\"\nmissing = \"mask\"\n[[dense]]\ncolumn = \"x\"\n";
    let model = Model::csv(schema);
    let columns = [column("l", Texts(&["buy", "", "sell"])), column("x", Integers(&[1, 2, 3]))];
    let rows = model.append(RawLabels::Needed, 3, &columns).unwrap();
    let labels = &rows.labels[0];
    assert!(labels[0] == 1.0 && labels[1].is_nan() && labels[2] == 0.0, "{labels:?}");
    // An integer is the same as its digits.
    let model = Model::csv("[[label]]\ncolumn = \"l\"\nequals = \"5\"\n[[dense]]\ncolumn = \"x\"\n");
    let columns = [column("l", Integers(&[5, 50, -5])), column("x", Integers(&[1, 2, 3]))];
    let rows = model.append(RawLabels::Needed, 3, &columns).unwrap();
    assert_eq!(rows.labels[0], [1.0, 0.0, 0.0]);
}

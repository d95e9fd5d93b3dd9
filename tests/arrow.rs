//! Record batches of Arrow, scored and trained on: the bits of slices, and what is refused.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::path::Path;
use std::slice::from_ref;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, ListBuilder, StringBuilder, UInt64Builder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, DurationSecondArray, FixedSizeListArray, Float32Array,
    Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, UInt8Array, UInt64Array,
};
use arrow_schema::{DataType, Field, TimeUnit};
use expect_test::expect;
use rankine::prelude::*;
use support::films::{CSV_NAMES, CSV_SETS, columns_of, convert, csv_rows};
use support::{Place, SUCCESS, generate, train, weights};

mod support;

/// Columns with one id and with several.
const MIXED: &str = "\
name = \"mixed\"
dense = 2
rows = [40, 300, 20, 12]
hotness = [1, 3, 1, 2]
";

fn job(place: &Place, sets: &[&str]) -> Job {
    Job::load(Path::new(&support::job(place)), sets).unwrap()
}

fn start(place: &Place, sets: &[&str], run_dir: &str) -> Trainer {
    let options = TrainerOptions { run_dir: Some(place.path(run_dir)), ..TrainerOptions::default() };
    Trainer::start(&job(place, sets), options, ()).unwrap()
}

fn batch<const N: usize>(columns: [(&str, ArrayRef); N]) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

/// The samples of a part of the dataset `data`, in batches of the file's order.
fn batches(place: &Place, part: Part, batch_size: usize) -> Vec<Samples> {
    let dataset = Dataset::open(&place.path("data")).unwrap();
    let stream = StreamOptions::one_epoch(batch_size);
    let batches = BatchStream::open(dataset.part(part).unwrap(), &stream).unwrap();
    batches.map(|batch| std::mem::take(&mut batch.unwrap().samples)).collect()
}

/// Rows of CSV as columns of many types.
fn typed(rows: &[String]) -> RecordBatch {
    let fields = columns_of(rows, ',');
    let number = |text: &&str| text.parse::<f64>().ok();
    let ratings: Int32Array = fields[0].iter().map(|text| text.parse::<i32>().ok()).collect();
    let bought: BooleanArray = fields[1].iter().map(|&text| Some(text == "1")).collect();
    let weights: Float32Array = fields[2].iter().map(|text| text.parse::<f32>().ok()).collect();
    let last: DictionaryArray<Int32Type> = fields[3].iter().copied().collect();
    let ages: Float64Array = fields[5].iter().map(number).collect();
    let mut tags = ListBuilder::new(StringBuilder::new());
    for text in &fields[6] {
        text.split('|').filter(|tag| !tag.is_empty()).for_each(|tag| tags.values().append_value(tag));
        tags.append(true);
    }
    batch([
        ("tags", Arc::new(tags.finish()) as ArrayRef),
        ("film", Arc::new(StringArray::from(fields[4].clone()))),
        ("last", Arc::new(last)),
        ("rating", Arc::new(ratings)),
        ("bought", Arc::new(bought)),
        ("weight", Arc::new(weights)),
        ("age", Arc::new(ages)),
    ])
}

/// A run `read` on the first 2000 rows of CSV in their order, in a place; and the rows.
fn trained_on_csv() -> (Place, Vec<String>) {
    let (place, rows) = (Place::new(), csv_rows(2500, 3));
    convert(&place, &rows);
    train(&place, &support::job(&place), "read", &CSV_SETS).with(SUCCESS);
    (place, rows)
}

#[test]
fn raw_batches_have_the_bits_of_their_rows() {
    let (place, rows) = trained_on_csv();
    let mut trainer = start(&place, &CSV_SETS, "pushed");
    for rows in rows[..2000].chunks(128) {
        trainer.push_arrow(&ArrowRows::try_from(&typed(rows)).unwrap()).unwrap();
    }
    trainer.finish().unwrap();
    assert!(weights(&place, "pushed") == weights(&place, "read"), "weights differ");

    // More rows than the ranker scores at a time.
    let ranker = Ranker::load(place.path("read")).unwrap();
    let many: Vec<String> = rows[2000..].iter().cycle().take(66_000).cloned().collect();
    let columns = typed(&many);
    let without_labels = columns.project(&[0, 1, 2, 6]).unwrap();
    let mut scores = vec![f64::NAN; 2 * many.len()];
    let pieces = |batches: &[RecordBatch]| -> Vec<ArrowRows> {
        batches.iter().map(|batch| batch.try_into().unwrap()).collect()
    };
    ranker.score_arrow(&pieces(from_ref(&without_labels)), &mut scores).unwrap();
    let fields = columns_of(&rows[2000..], ',');
    let column = |at: usize| RawColumn {
        name: CSV_NAMES[at],
        values: RawColumnValues::Texts(&fields[at]),
        offsets: None,
    };
    let mut expected = vec![f64::NAN; 1000];
    ranker.score_raw(500, &[3, 4, 5, 6].map(column), &mut expected).unwrap();
    assert!(scores.chunks(1000).all(|scores| scores == &expected[..scores.len()]), "scores differ");

    // Row 65999 of them is in the second piece.
    let ages = Float64Array::from_iter_values(
        (0..66_000).map(|row| if row == 65_999 { f64::INFINITY } else { 1.0 }),
    );
    let columns = [("age", 6), ("tags", 0), ("film", 1), ("last", 2)];
    let columns = columns.map(|(name, at)| match name {
        "age" => (name, Arc::new(ages.clone()) as ArrayRef),
        _ => (name, Arc::clone(typed(&many).column(at))),
    });
    let refused = ranker.score_arrow(&pieces(&[batch(columns.clone())]), &mut scores);
    expect!["column age, row 65999: inf is not a number of at most 3.4028235e38"]
        .assert_eq(&refused.unwrap_err().to_string());
    let few = without_labels.slice(0, 3);
    let refused = ranker.score_arrow(&pieces(from_ref(&few)), &mut scores[..5]).unwrap_err();
    assert_eq!(refused.to_string(), "the output has room for 5 scores, but 6 are needed (rows times heads)");

    // Several pieces are scored as one, and their rows count on.
    let mut of_pieces = vec![f64::NAN; 1000];
    ranker
        .score_arrow(&pieces(&[few.clone(), few.slice(0, 0), without_labels.slice(3, 497)]), &mut of_pieces)
        .unwrap();
    assert!(of_pieces == expected, "scores differ");
    let refused = ranker.score_arrow(&pieces(&[few, batch(columns)]), &mut [0.0; 2 * 66_003]).unwrap_err();
    expect!["column age, row 66002: inf is not a number of at most 3.4028235e38"]
        .assert_eq(&refused.to_string());
}

/// Samples as columns of many types.
fn mapped(schema: &Schema, samples: &Samples) -> RecordBatch {
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    for (number, column) in schema.categorical.iter().enumerate() {
        let bags = &samples.categorical[number];
        let narrow = || bags.ids.iter().map(|&id| id as i32);
        let ids: ArrayRef = match column.hotness {
            Hotness::Fixed(1) if number % 2 == 0 => Arc::new(UInt64Array::from(bags.ids.clone())),
            Hotness::Fixed(1) => Arc::new(Int32Array::from_iter_values(narrow())),
            Hotness::Fixed(count) => {
                let field = Arc::new(Field::new_list_field(DataType::Int32, true));
                let ids = Arc::new(Int32Array::from_iter_values(narrow()));
                Arc::new(FixedSizeListArray::new(field, count as i32, ids, None))
            }
            Hotness::Ragged { .. } => {
                let mut lists = ListBuilder::new(UInt64Builder::new());
                for row in 0..samples.len {
                    bags.bag(row).iter().for_each(|&id| lists.values().append_value(id));
                    lists.append(true);
                }
                Arc::new(lists.finish())
            }
        };
        columns.push((column.name.clone(), ids));
        if column.weighted {
            let mut lists = ListBuilder::new(Float64Builder::new());
            for row in 0..samples.len {
                let range = bags.offsets[row] as usize..bags.offsets[row + 1] as usize;
                bags.weights[range].iter().for_each(|&weight| lists.values().append_value(weight.into()));
                lists.append(true);
            }
            columns.push((format!("{}.weights", column.name), Arc::new(lists.finish())));
        }
    }
    for (label, values) in schema.labels.iter().zip(&samples.labels) {
        let values = values.iter().map(|&value| (!value.is_nan()).then_some(value as u8));
        columns.push((label.name.clone(), Arc::new(values.collect::<UInt8Array>())));
    }
    if let Some(weight) = &schema.weight {
        columns.push((weight.clone(), Arc::new(Float32Array::from(samples.weights.clone()))));
    }
    for (number, column) in schema.dense.iter().enumerate() {
        let values = samples.dense.iter().skip(number).step_by(samples.dense_columns);
        columns.push((
            column.name.clone(),
            match number % 2 {
                0 => Arc::new(Float32Array::from_iter_values(values.copied())),
                _ => Arc::new(Float64Array::from_iter_values(values.map(|&value| value.into()))),
            },
        ));
    }
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Trains on the batches of the dataset `data`, and compares the weights with those of the run `read`, and the scores
/// of the evaluation part with those of slices.
fn mapped_batches_have_the_bits_of_the_dataset(place: &Place, sets: &[&str]) {
    let mut trainer = start(place, sets, "pushed");
    for samples in batches(place, Part::Train, 128) {
        let batch = mapped(trainer.schema(), &samples);
        trainer.push_mapped_batch(&batch).unwrap();
    }
    trainer.finish().unwrap();
    assert!(weights(place, "pushed") == weights(place, "read"), "weights differ");
    let ranker = Ranker::load(place.path("read")).unwrap();
    for samples in batches(place, Part::Eval, 77) {
        let mut scores = vec![f64::NAN; samples.len * ranker.labels().len()];
        let bags = samples.categorical.iter();
        let columns = ranker.schema().categorical;
        let ids = bags.zip(&columns).map(|(bags, column)| match column.weighted {
            true => Ids::Weighted { offsets: &bags.offsets, ids: &bags.ids, weights: &bags.weights },
            false => Ids::Bags { offsets: &bags.offsets, ids: &bags.ids },
        });
        let ids: Vec<_> = ids.collect();
        let features = Features { rows: samples.len, dense: &samples.dense, categorical: &ids };
        ranker.score(&features, &mut scores).unwrap();
        // A piece of a larger batch, too, whose values start in the middle of their memory.
        let batch = mapped(&ranker.schema(), &samples);
        for first in [0, 5] {
            let expected = &scores[first * ranker.labels().len()..];
            let mut found = vec![f64::NAN; expected.len()];
            ranker.score_mapped_batch(&batch.slice(first, samples.len - first), &mut found).unwrap();
            assert!(found == expected, "scores differ");
        }
    }
}

#[test]
fn mapped_batches_have_the_bits_of_a_conversion() {
    let (place, _) = trained_on_csv();
    mapped_batches_have_the_bits_of_the_dataset(&place, &CSV_SETS);
}

#[test]
fn mapped_batches_have_the_bits_of_generated_data() {
    let place = Place::new();
    generate(&place, MIXED, 2000, 300);
    train(&place, &support::job(&place), "read", &["train.shuffle=false"]).with(SUCCESS);
    mapped_batches_have_the_bits_of_the_dataset(&place, &["train.shuffle=false"]);
}

/// Lists with weights, mapped and raw, have the bits of the text that was converted.
#[test]
fn lists_of_weights_have_the_bits_of_a_conversion() {
    const SCHEMA: &str = "label = { column = \"click\" }\n[[categorical]]\ncolumn = \"tags\"\nweights = \"w\"\n\
        separator = \"|\"\nvocabulary = { kind = \"hash\", rows = 50 }\n[[categorical]]\ncolumn = \"film\"\n";
    let (place, mut next) = (Place::new(), support::numbers(3));
    let rows: Vec<(u64, Vec<String>, Vec<f64>, String)> = (0..1300)
        .map(|_| {
            let tags: Vec<_> = (0..next() % 4).map(|_| format!("t{}", next() % 30)).collect();
            let weights = tags.iter().map(|_| (next() % 5) as f64 / 2.0).collect();
            (next() % 2, tags, weights, format!("f{}", next() % 9))
        })
        .collect();
    let text = |rows: &[(u64, Vec<String>, Vec<f64>, String)]| {
        let line = |(click, tags, weights, film): &(u64, Vec<String>, Vec<f64>, String)| {
            let weights: Vec<_> = weights.iter().map(f64::to_string).collect();
            format!("{click},{},{},{film}\n", tags.join("|"), weights.join("|"))
        };
        format!("click,tags,w,film\n{}", rows.iter().map(line).collect::<String>())
    };
    let (log, eval) =
        (place.file("log.csv", text(&rows[..1000])), place.file("eval.csv", text(&rows[1000..])));
    let (schema, data) = (place.file("schema.toml", SCHEMA), place.word("data"));
    support::run(["convert", "csv", &log, "--eval", &eval, "--schema", &schema, "--out", &data])
        .with(SUCCESS);
    let sets = ["train.shuffle=false", "model={ kind = 'dlrm', embedding_dim = 4, top_mlp = [16] }"];
    train(&place, &support::job(&place), "read", &sets).with(SUCCESS);
    mapped_batches_have_the_bits_of_the_dataset(&place, &sets);

    let lists = |rows: &[(u64, Vec<String>, Vec<f64>, String)]| {
        let mut tags = ListBuilder::new(StringBuilder::new());
        let mut weights = ListBuilder::new(Float64Builder::new());
        for row in rows {
            row.1.iter().for_each(|tag| tags.values().append_value(tag));
            tags.append(true);
            row.2.iter().for_each(|&weight| weights.values().append_value(weight));
            weights.append(true);
        }
        let films = rows.iter().map(|row| Some(row.3.as_str()));
        batch([
            ("w", Arc::new(weights.finish()) as ArrayRef),
            ("tags", Arc::new(tags.finish())),
            ("film", Arc::new(films.collect::<StringArray>())),
            ("click", Arc::new(rows.iter().map(|row| Some(row.0)).collect::<UInt64Array>())),
        ])
    };
    let mut trainer = start(&place, &sets, "raw");
    for rows in rows[..1000].chunks(128) {
        trainer.push_arrow(&ArrowRows::try_from(&lists(rows)).unwrap()).unwrap();
    }
    trainer.finish().unwrap();
    assert!(weights(&place, "raw") == weights(&place, "read"), "weights differ");

    // A null of each list: neither may take the place of the other.
    let ranker = Ranker::load(place.path("read")).unwrap();
    let mut tags = ListBuilder::new(StringBuilder::new());
    let mut weights = ListBuilder::new(Float64Builder::new());
    tags.append_value([None, Some("t1")]);
    weights.append_value([Some(1.0), None]);
    let nulls = batch([
        ("w", Arc::new(weights.finish()) as ArrayRef),
        ("tags", Arc::new(tags.finish())),
        ("film", Arc::new(StringArray::from(vec!["f1"]))),
    ]);
    let refused = ranker.score_arrow(&[ArrowRows::try_from(&nulls).unwrap()], &mut [0.0]).unwrap_err();
    expect!["column w, row 0: NaN is not a weight: it must be 0, or a number from 1.5e-45 to 3.4e38"]
        .assert_eq(&refused.to_string());
    let mut samples = batches(&place, Part::Eval, 3).swap_remove(0);
    samples.categorical[0].weights[0] = -1.0;
    let refused = ranker.score_mapped_batch(&mapped(&ranker.schema(), &samples), &mut [0.0; 3]).unwrap_err();
    assert!(
        refused.to_string().contains("column tags, row")
            && refused.to_string().contains("-1 is not a weight")
    );
}

#[test]
fn batches_that_do_not_fit_are_refused_by_column_and_row() {
    let place = Place::new();
    generate(&place, MIXED, 2000, 300);
    let sets = ["guard.ids_out_of_range=fail", "train.shuffle=false"];
    train(&place, &support::job(&place), "read", &sets).with(SUCCESS);
    let mut trainer = start(&place, &sets, "pushed");
    let schema = trainer.schema().clone();
    let samples = batches(&place, Part::Train, 4).swap_remove(0);
    let good = mapped(&schema, &samples);
    let names: Vec<_> = good.schema().fields().iter().map(|field| field.name().clone()).collect();
    // Replaces a column, or removes it.
    let with = |at: usize, array: Option<ArrayRef>| {
        let columns = names.iter().zip(good.columns()).enumerate();
        let columns = columns.filter_map(|(number, (name, column))| {
            let column = if number == at { array.clone()? } else { Arc::clone(column) };
            Some((name.as_str(), column))
        });
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let integers = |values: [Option<i64>; 4]| Some(Arc::new(Int64Array::from_iter(values)) as ArrayRef);
    let lists = |rows: [Option<&[u64]>; 4]| {
        let mut lists = ListBuilder::new(UInt64Builder::new());
        rows.into_iter().for_each(|row| match row {
            Some(row) => {
                lists.values().append_slice(row);
                lists.append(true);
            }
            None => lists.append(false),
        });
        Some(Arc::new(lists.finish()) as ArrayRef)
    };
    let numbers = |values: [f32; 4]| Some(Arc::new(Float32Array::from_iter_values(values)) as ArrayRef);
    let texts = Some(Arc::new(StringArray::from(vec!["1"; 4])) as ArrayRef);
    let (label, dense) = (4, 5);
    let refused = [
        with(0, None),
        with(0, texts.clone()),
        with(0, integers([Some(1), None, Some(0), Some(0)])),
        with(0, integers([Some(1), Some(0), Some(-3), Some(0)])),
        with(0, integers([Some(1), Some(0), Some(0), Some(40)])),
        with(1, integers([Some(1), Some(0), Some(0), Some(2)])),
        with(1, lists([Some(&[1, 2, 3]), Some(&[1, 2]), Some(&[]), Some(&[4])])),
        with(1, lists([Some(&[1, 2, 3]), None, Some(&[1, 1, 1]), Some(&[4, 4, 4])])),
        with(1, lists([Some(&[1, 2, 3]), Some(&[4, 4, 4]), Some(&[1, 300, 1]), Some(&[4, 4, 4])])),
        with(label, texts.clone()),
        with(label, integers([Some(1), Some(0), Some(2), None])),
        with(dense, texts),
        with(dense, integers([Some(1), Some(0), None, Some(1)])),
        with(dense, numbers([0.0, 1.0, 2.0, f32::INFINITY])),
    ];
    let refused = refused.map(|batch| trainer.push_mapped_batch(&batch).unwrap_err().to_string());
    expect![[r#"
        there is no column C1
        column C1 has values of type Utf8, but the model needs integers
        column C1, row 1: null is not the number of a row of its table
        column C1, row 2: -3 is not the number of a row of its table
        column C1, row 3: id 40 is out of range: its table has 40 rows
        column C2: 4 ids for 4 rows of 3; expected 12
        column C2, row 1: 2 ids; expected 3, as in training
        column C2, row 1: null is not a list of ids
        column C2, row 2: id 300 is out of range: its table has 300 rows
        column label has values of type Utf8, but the model needs numbers
        column label, row 2: 2 is not a label: it must be 0 or 1, or NaN if it is missing
        column I1 has values of type Utf8, but the model needs numbers
        column I1, row 2: NaN is not finite; mapped features have no missing numbers
        column I1, row 3: inf is not finite; mapped features have no missing numbers"#]]
    .assert_eq(&refused.join("\n"));
    let fields = good.schema().fields().clone();
    let renamed = fields.iter().map(|field| match field.name().as_str() {
        "label" => Field::new("labels", field.data_type().clone(), true),
        _ => (**field).clone(),
    });
    let renamed = arrow_schema::Schema::new(renamed.collect::<Vec<_>>());
    let renamed = RecordBatch::try_new(Arc::new(renamed), good.columns().to_vec()).unwrap();
    let twice = arrow_schema::Schema::new([&fields[..], &fields[..1]].concat());
    let columns = [good.columns(), &good.columns()[..1]].concat();
    let twice = RecordBatch::try_new(Arc::new(twice), columns).unwrap();
    let refused = [renamed, twice].map(|batch| trainer.push_mapped_batch(&batch).unwrap_err().to_string());
    expect![[r#"
        the model has no column labels: did you mean `label`?
        column C1 is given twice"#]]
    .assert_eq(&refused.join("\n"));
    assert_eq!(trainer.steps(), 0);
    trainer.push_mapped_batch(&good).unwrap();
    // No label is needed to score.
    let ranker = Ranker::load(place.path("read")).unwrap();
    ranker.score_mapped_batch(&with(label, None), &mut [0.0; 4]).unwrap();
    let refused = ranker.score_mapped_batch(&with(1, None), &mut [0.0; 4]).unwrap_err();
    assert_eq!(refused.to_string(), "there is no column C2");
    let durations = Arc::new(DurationSecondArray::from(vec![1; 4])) as ArrayRef;
    let refused = ArrowRows::try_from(&batch([("days", durations)])).unwrap_err();
    let (found, expected) =
        (DataType::Duration(TimeUnit::Second), "numbers, strings, dates, times, or lists of them");
    assert_eq!(
        refused.to_string(),
        format!("column days has values of type {found}, but the model needs {expected}")
    );
}

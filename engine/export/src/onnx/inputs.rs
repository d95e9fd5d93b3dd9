//! From the inputs of a request to the vectors that a model computes with: numbers, ids, bags and buckets.

use rankine_base::Error;
use rankine_embedding::Pooling;
use rankine_reader::schema::{Categorical, DenseDtype, DenseFunction, Hotness};
use rankine_reader::{IdRules, OutOfRange, Schema};
use rankine_saved::Tensor;

use super::graph::{Attribute, Dim, Graph, data_type};
use super::proto::tensor_proto::DataType;
use super::{BagLayout, Numbers};

/// The bags of a categorical column, as values of the graph.
pub(super) struct Bags {
    /// Rows of the table, all of which exist unless an id is to fail.
    ids: String,
    /// The factor of each id's row: its weight or 1, and 0 for ids that do not count, with one dimension more than
    /// `ids`; `None` if all are 1.
    pub(super) factors: Option<String>,
    /// Whether ids have weights.
    weighted: bool,
    pub(super) arrangement: Arrangement,
}

/// How the ids of a column are arranged.
pub(super) enum Arrangement {
    /// `[N, ids]`: as many for each row; `None`: as many as the longest bag has.
    Rows(Option<usize>),
    /// `[ids of all rows]`.
    Flat {
        /// The row that each id belongs to, `[ids of all rows, 1]`.
        row_of: String,
        /// Where the ids of each row begin, and where the last row's end.
        offsets: String,
        /// The number of rows, `[1]`.
        rows: String,
    },
}

/// Adds the input with the numbers of all dense columns; returns them as they are stored. Without dense columns there
/// is no input.
pub(super) fn dense(graph: &mut Graph, schema: &Schema, numbers: Numbers) -> Result<Option<String>, Error> {
    if schema.dense.is_empty() {
        return Ok(None);
    }
    graph.enter("dense");
    let dims = [Dim::rows(), Dim::Fixed(schema.dense.len())];
    let (of, doc) = match numbers {
        Numbers::Mapped => {
            (DataType::Float, "The numbers of the dense columns, after the transforms of training")
        }
        Numbers::Raw => {
            (DataType::Double, "The numbers of the dense columns, as in the files; NaN is a missing value")
        }
    };
    let input = graph.input("dense", (of, &dims), doc)?;
    Ok(Some(match numbers {
        Numbers::Mapped => input,
        Numbers::Raw => transformed(graph, schema, &input),
    }))
}

/// Applies the transforms of all dense columns, in double precision as the conversion does.
fn transformed(graph: &mut Graph, schema: &Schema, raw: &str) -> String {
    let transforms: Vec<_> = schema.dense.iter().map(|column| column.transform).collect();
    let (zero, one) = (graph.doubles(&[0.0]), graph.doubles(&[1.0]));
    let mut value = raw.to_owned();
    for function in [DenseFunction::SignedLog1p, DenseFunction::MlperfLog] {
        let applies: Vec<_> = transforms.iter().map(|transform| transform.function == function).collect();
        if !applies.contains(&true) {
            continue;
        }
        let magnitude = match function {
            DenseFunction::MlperfLog => graph.node("Max", &[raw, &zero], &[]),
            DenseFunction::None | DenseFunction::SignedLog1p => graph.node("Abs", &[raw], &[]),
        };
        let more = graph.node("Add", &[&magnitude, &one], &[]);
        let mut of = graph.node("Log", &[&more], &[]);
        if function == DenseFunction::SignedLog1p {
            let sign = graph.node("Sign", &[raw], &[]);
            of = graph.node("Mul", &[&sign, &of], &[]);
        }
        let applies = graph.truths(&applies);
        value = graph.node("Where", &[&applies, &of, &value], &[]);
    }
    let means = graph.doubles(&transforms.iter().map(|transform| transform.mean).collect::<Vec<_>>());
    let deviations =
        graph.doubles(&transforms.iter().map(|transform| transform.deviation).collect::<Vec<_>>());
    let centred = graph.node("Sub", &[&value, &means], &[]);
    let standardized = graph.node("Div", &[&centred, &deviations], &[]);
    let value = graph.cast(&standardized, DataType::Float);
    let largest = schema.dense_dtype.largest();
    let (least, most) = (graph.numbers(&[], &[-largest]), graph.numbers(&[], &[largest]));
    let value = graph.node("Clip", &[&value, &least, &most], &[]);
    let is_missing = graph.node("IsNaN", &[raw], &[]);
    let missing = graph.numbers(&[], &[0.0]);
    let value = graph.node("Where", &[&is_missing, &missing, &value], &[]);
    stored(graph, &value, schema.dense_dtype)
}

/// Rounds numbers to the type in which a dataset stores them.
fn stored(graph: &mut Graph, value: &str, dtype: DenseDtype) -> String {
    match dtype {
        DenseDtype::F32 => value.to_owned(),
        DenseDtype::F16 => {
            let half = graph.cast(value, DataType::Float16);
            graph.cast(&half, DataType::Float)
        }
    }
}

/// Adds the inputs of all categorical columns, and computes those that are made of numbers; returns the bags of each.
/// `dense` are the numbers of the dense columns.
pub(super) fn bags(
    graph: &mut Graph,
    (schema, rules): (&Schema, &IdRules),
    (dense, layout): (Option<&str>, BagLayout),
) -> Result<Vec<Bags>, Error> {
    let columns = schema.categorical.iter().enumerate();
    let bags = columns.map(|(number, column)| {
        graph.enter(&column.name);
        match (column.buckets(), column.hotness) {
            (Some((of, boundaries)), _) => {
                let number = schema.dense.iter().position(|dense| dense.name == of);
                let (dense, number) = dense.zip(number).expect("a valid schema has the dense column");
                let number = graph.integers(&[number as i64]);
                let value = graph.gather(dense, &number, 1);
                let value = stored(graph, &value, schema.dense_dtype);
                Ok(buckets(graph, &value, boundaries))
            }
            (None, Hotness::Fixed(count)) => fixed(graph, column, count as usize, rules.of(number)),
            (None, Hotness::Ragged { .. }) if layout == BagLayout::Padded => {
                // The columns of a sequence are padded to one width.
                let width = schema.sequence_of(&column.name).map_or(&column.name, |sequence| &sequence.name);
                padded(graph, (column, width), rules.of(number))
            }
            (None, Hotness::Ragged { .. }) => flat(graph, column, rules.of(number)),
        }
    });
    bags.collect()
}

/// As many ids in each row.
fn fixed(graph: &mut Graph, column: &Categorical, count: usize, rule: OutOfRange) -> Result<Bags, Error> {
    let dims = [Dim::rows(), Dim::Fixed(count)];
    let ids = graph.input(&column.name, (DataType::Int64, &dims), "Rows of the column's table")?;
    let (ids, kept) = in_range(graph, &ids, (column, rule));
    let factors = kept.map(|kept| as_factors(graph, &kept));
    Ok(Bags { ids, factors, weighted: false, arrangement: Arrangement::Rows(Some(count)) })
}

/// Any number of ids in each row, followed by others, which do not count.
fn padded(graph: &mut Graph, (column, width): (&Categorical, &str), rule: OutOfRange) -> Result<Bags, Error> {
    let name = &column.name;
    let dims = [Dim::rows(), Dim::Any(format!("{width}.width"))];
    let doc = "Rows of the column's table, then any numbers up to the longest bag";
    let ids = graph.input(name, (DataType::Int64, &dims), doc)?;
    let doc = "The number of ids in each row";
    let count = graph.input(&format!("{name}.count"), (DataType::Int64, &[Dim::rows()]), doc)?;
    let weights = weights(graph, column, &dims)?;

    let width = graph.node("Shape", &[&ids], &[("start", Attribute::Integer(1))]);
    let width = graph.along("Squeeze", &width, 0);
    let (zero, one) = (graph.integer(0), graph.integer(1));
    let places = graph.node("Range", &[&zero, &width, &one], &[]);
    let count = graph.along("Unsqueeze", &count, 1);
    let present = graph.node("Less", &[&places, &count], &[]);
    // What follows the bag need not be ids.
    let ids = graph.node("Where", &[&present, &ids, &zero], &[]);
    let (ids, kept) = in_range(graph, &ids, (column, rule));
    let kept = match kept {
        Some(kept) => graph.node("And", &[&present, &kept], &[]),
        None => present,
    };
    let factors = factors(graph, Some(kept), weights);
    Ok(Bags { ids, factors, weighted: column.weighted, arrangement: Arrangement::Rows(None) })
}

/// Adds the input with the weights of ids, if they have some.
fn weights(graph: &mut Graph, column: &Categorical, dims: &[Dim]) -> Result<Option<String>, Error> {
    if !column.weighted {
        return Ok(None);
    }
    let doc = "The weight of each id, 0 or more";
    graph.input(&format!("{}.weights", column.name), (DataType::Float, dims), doc).map(Some)
}

/// Returns the factors of rows: the weights, or 1 without weights, of ids that count.
fn factors(graph: &mut Graph, kept: Option<String>, weights: Option<String>) -> Option<String> {
    let Some(weights) = weights else { return kept.map(|kept| as_factors(graph, &kept)) };
    let weights = match kept {
        // What follows the bag need not be numbers.
        Some(kept) => {
            let zero = graph.numbers(&[], &[0.0]);
            graph.node("Where", &[&kept, &weights, &zero], &[])
        }
        None => weights,
    };
    Some(graph.along("Unsqueeze", &weights, -1))
}

/// The ids of all rows one after the other, and where each row's begin.
fn flat(graph: &mut Graph, column: &Categorical, rule: OutOfRange) -> Result<Bags, Error> {
    let name = &column.name;
    let dims = [Dim::Any(format!("{name}.ids"))];
    let ids = graph.input(name, (DataType::Int64, &dims), "Rows of the column's table, of all rows")?;
    let doc = "Where the ids of each row begin, and where the last row's end: N + 1 numbers from 0";
    let dims = [Dim::Any("N+1".into())];
    let offsets = graph.input(&format!("{name}.offsets"), (DataType::Int64, &dims), doc)?;
    let weights = weights(graph, column, &[Dim::Any(format!("{name}.ids"))])?;

    // How many rows have ended before an id, or with none: the ends of rows are counted at each place, and summed.
    let (zero, one, last) = (graph.integers(&[0]), graph.integers(&[1]), graph.integers(&[i64::MAX]));
    let ends = graph.node("Slice", &[&offsets, &one, &last], &[]);
    let rows = graph.node("Shape", &[&ends], &[]);
    let total = graph.node("Shape", &[&ids], &[]);
    let places = graph.node("Add", &[&total, &one], &[]);
    let no_ends = graph.node("Expand", &[&zero, &places], &[]);
    let ones = graph.node("Expand", &[&one, &rows], &[]);
    let at = graph.along("Unsqueeze", &ends, 1);
    let counted = add_at(graph, &no_ends, &at, &ones);
    let axis = graph.integer(0);
    let ended = graph.node("CumSum", &[&counted, &axis], &[]);
    let row_of = graph.node("Slice", &[&ended, &zero, &total], &[]);
    let row_of = graph.along("Unsqueeze", &row_of, 1);

    let (ids, kept) = in_range(graph, &ids, (column, rule));
    let factors = factors(graph, kept, weights);
    let arrangement = Arrangement::Flat { row_of, offsets, rows };
    Ok(Bags { ids, factors, weighted: column.weighted, arrangement })
}

/// The bucket of a stored number of each row, `[N, 1]`: how many boundaries are not above it.
fn buckets(graph: &mut Graph, value: &str, boundaries: &[f32]) -> Bags {
    let boundaries = graph.numbers(&[1, boundaries.len()], boundaries);
    let reached = graph.node("GreaterOrEqual", &[value, &boundaries], &[]);
    let reached = graph.cast(&reached, DataType::Int64);
    let ids = graph.reduce("ReduceSum", &reached, 1);
    let ids = graph.along("Unsqueeze", &ids, 1);
    Bags { ids, factors: None, weighted: false, arrangement: Arrangement::Rows(Some(1)) }
}

/// Turns truth values into numbers, with one dimension more, so that each multiplies a row of a table.
fn as_factors(graph: &mut Graph, kept: &str) -> String {
    let kept = graph.cast(kept, DataType::Float);
    graph.along("Unsqueeze", &kept, -1)
}

/// Applies the rule for ids out of range. Returns ids, and which of them count unless all do.
fn in_range(
    graph: &mut Graph,
    ids: &str,
    (column, rule): (&Categorical, OutOfRange),
) -> (String, Option<String>) {
    // No vocabulary is open.
    let (zero, rows) = (graph.integer(0), graph.integer(column.rows.unwrap_or(0) as i64));
    let below = graph.node("Less", &[ids, &zero], &[]);
    let above = graph.node("GreaterOrEqual", &[ids, &rows], &[]);
    let outside = graph.node("Or", &[&below, &above], &[]);
    let instead = match rule {
        // No table has this row, so that the look-up fails. Negative ids would count from its end.
        OutOfRange::Fail => i64::MAX,
        OutOfRange::Row(row) => row as i64,
        OutOfRange::Leave => 0,
    };
    let instead = graph.integer(instead);
    let ids = graph.node("Where", &[&outside, &instead, ids], &[]);
    let kept = (rule == OutOfRange::Leave).then(|| graph.node("Not", &[&outside], &[]));
    (ids, kept)
}

/// Adds values at places, which may be the same.
pub(super) fn add_at(graph: &mut Graph, to: &str, places: &str, values: &str) -> String {
    graph.node("ScatterND", &[to, places, values], &[("reduction", Attribute::Text("add"))])
}

impl Bags {
    /// Looks up the row of each id, times its factor: `ids` with one dimension more, of the elements of a row.
    pub(super) fn rows(&self, graph: &mut Graph, table: &Tensor) -> String {
        let mut rows = graph.gather(&table.name, &self.ids, 0);
        if data_type(table.dtype) != DataType::Float {
            rows = graph.cast(&rows, DataType::Float);
        }
        match &self.factors {
            Some(factors) => graph.node("Mul", &[&rows, factors], &[]),
            None => rows,
        }
    }

    /// Returns a 1 for each id, with one dimension more.
    pub(super) fn ones(&self, graph: &mut Graph) -> String {
        let one = graph.numbers(&[], &[1.0]);
        let shape = graph.node("Shape", &[&self.ids], &[]);
        let ones = graph.node("Expand", &[&one, &shape], &[]);
        graph.along("Unsqueeze", &ones, -1)
    }

    /// Looks up the bags in a table, and pools them: `[N, elements of a row]`.
    pub(super) fn pool(&self, graph: &mut Graph, table: &Tensor, pooling: Pooling) -> String {
        let dim = table.shape[1];
        let rows = self.rows(graph, table);
        let sum = match &self.arrangement {
            Arrangement::Rows(Some(1)) => return graph.along("Squeeze", &rows, 1),
            Arrangement::Rows(_) if pooling == Pooling::Mean && self.factors.is_none() => {
                return graph.reduce("ReduceMean", &rows, 1);
            }
            Arrangement::Rows(_) => graph.reduce("ReduceSum", &rows, 1),
            Arrangement::Flat { row_of, rows: count, .. } => {
                let sums = zeros(graph, count, dim);
                add_at(graph, &sums, row_of, &rows)
            }
        };
        match pooling {
            Pooling::Sum => sum,
            Pooling::Mean => self.divided_by_factors(graph, &sum),
        }
    }

    /// Divides the sums of bags by the sums of their factors; the zeros of empty bags stay.
    fn divided_by_factors(&self, graph: &mut Graph, sums: &str) -> String {
        let one = graph.numbers(&[], &[1.0]);
        let factors = self.factors.clone().unwrap_or_else(|| self.ones(graph));
        let totals = match &self.arrangement {
            Arrangement::Rows(_) => graph.reduce("ReduceSum", &factors, 1),
            Arrangement::Flat { row_of, rows, .. } => {
                let none = zeros(graph, rows, 1);
                add_at(graph, &none, row_of, &factors)
            }
        };
        let totals = if self.weighted {
            let zero = graph.numbers(&[], &[0.0]);
            let is_zero = graph.node("Equal", &[&totals, &zero], &[]);
            graph.node("Where", &[&is_zero, &one, &totals], &[])
        } else {
            graph.node("Max", &[&totals, &one], &[])
        };
        graph.node("Div", &[sums, &totals], &[])
    }
}

/// Returns zeros, `[rows, columns]`.
pub(super) fn zeros(graph: &mut Graph, rows: &str, columns: usize) -> String {
    let (zero, columns) = (graph.numbers(&[], &[0.0]), graph.integers(&[columns as i64]));
    let shape = graph.node("Concat", &[rows, &columns], &[("axis", Attribute::Integer(0))]);
    graph.node("Expand", &[&zero, &shape], &[])
}

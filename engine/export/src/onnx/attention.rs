//! Attention over sequences as nodes of a graph: from the rows of positions to the vectors of a sequence's columns.
//!
//! Positions are arranged as the ids of bags are: `[N, width]` padded, or `[positions of all rows]`. Padding after the
//! positions has keys of zeros, so that its weights do not matter unless they are normalized.

use rankine_model::{AttentionSpec, AttentionUnit};
use rankine_reader::schema::Keep;

use super::graph::{Attribute, Graph};
use super::inputs::{Arrangement, Bags, add_at, zeros};
use super::network::Network;
use super::proto::tensor_proto::DataType;

/// A score so small that its power of e is 0.
const LEAST: f32 = -1e30;

impl Network<'_> {
    /// Returns the sums over the positions, `[N, dim]` for each attribute. `bags` has all features'; `query` is
    /// `[N, elements of a key]`.
    pub(super) fn attend(
        &mut self,
        attention: &AttentionSpec,
        bags: &[Bags],
        query: Option<&str>,
    ) -> Vec<String> {
        let spec = self.spec;
        let first = &bags[attention.features[0]];
        let rows = attention.features.iter().map(|&feature| {
            let table = format!("embedding.{}", spec.tables[spec.features[feature].table].name);
            self.graph.enter(&spec.features[feature].column);
            bags[feature].rows(self.graph, self.tensors[table.as_str()])
        });
        let mut rows: Vec<_> = rows.collect();
        if let Some(end) = attention.position_embedding {
            self.add_positions((attention, end), first, &mut rows);
        }
        let part = format!("attention.{}", attention.sequence);
        self.graph.enter(&part);
        let positions = Positions { keys: concat(self.graph, &rows, -1), bags: first };
        let weights = match (&attention.unit, query) {
            (AttentionUnit::Din { .. }, Some(query)) => {
                let queries = positions.spread(self.graph, query);
                let keys = &positions.keys;
                let difference = self.graph.node("Sub", &[&queries, keys], &[]);
                let product = self.graph.node("Mul", &[&queries, keys], &[]);
                let queries = positions.expanded(self.graph, &queries);
                let input = concat(self.graph, &[queries, keys.clone(), difference, product], -1);
                self.unit(&part, input)
            }
            (AttentionUnit::Dot { .. }, Some(query)) => {
                let queries = positions.spread(self.graph, query);
                let product = self.graph.node("Mul", &[&queries, &positions.keys], &[]);
                let sums = self.graph.reduce_to_one("ReduceSum", &product, -1);
                let scale = self.graph.numbers(&[], &[1.0 / (spec.key_elements(attention) as f32).sqrt()]);
                let scores = self.graph.node("Mul", &[&sums, &scale], &[]);
                positions.softmax(self.graph, &scores)
            }
            (AttentionUnit::Mean, _) | (_, None) => {
                let one = self.graph.numbers(&[1], &[1.0]);
                let counted = positions.counted(self.graph);
                let totals = positions.sum(self.graph, &counted, 1);
                let totals = self.graph.node("Max", &[&totals, &one], &[]);
                let shares = self.graph.node("Reciprocal", &[&totals], &[]);
                positions.spread(self.graph, &shares)
            }
        };
        self.graph.enter(&part);
        let dims = self.dims(attention);
        let sum = |(rows, dim): (&String, usize)| {
            let weighted = self.graph.node("Mul", &[rows, &weights], &[]);
            positions.sum(self.graph, &weighted, dim)
        };
        rows.iter().zip(dims).map(sum).collect()
    }

    /// Returns the elements of the rows of each attribute.
    fn dims(&self, attention: &AttentionSpec) -> Vec<usize> {
        let spec = self.spec;
        attention.features.iter().map(|&feature| spec.feature_dim(&spec.features[feature])).collect()
    }

    /// Adds the vectors of positions, which are counted from one end, to the rows of all attributes.
    fn add_positions(&mut self, (attention, end): (&AttentionSpec, Keep), bags: &Bags, rows: &mut [String]) {
        let part = format!("positions.{}", attention.sequence);
        self.graph.enter(&part);
        let graph = &mut *self.graph;
        let weight = format!("{part}.weight");
        let vectors = match &bags.arrangement {
            Arrangement::Rows(_) => {
                // Each position counts those up to it, or those from it on. Padding has the vector 0, times 0.
                let counted = bags.factors.clone().unwrap_or_else(|| bags.ones(graph));
                let axis = graph.integer(1);
                let reverse = [("reverse", Attribute::Integer((end == Keep::Last).into()))];
                let count = graph.node("CumSum", &[&counted, &axis], &reverse);
                let before = graph.node("Sub", &[&count, &counted], &[]);
                let before = graph.node("Mul", &[&before, &counted], &[]);
                let before = graph.along("Squeeze", &before, 2);
                let before = graph.cast(&before, DataType::Int64);
                let vectors = graph.gather(&weight, &before, 0);
                graph.node("Mul", &[&vectors, &counted], &[])
            }
            Arrangement::Flat { row_of, offsets, .. } => {
                let (zero, one) = (graph.integer(0), graph.integer(1));
                let row_of = graph.along("Squeeze", row_of, 1);
                let total = graph.node("Size", &[&row_of], &[]);
                let places = graph.node("Range", &[&zero, &total, &one], &[]);
                let before = match end {
                    Keep::First => {
                        let starts = graph.gather(offsets, &row_of, 0);
                        graph.node("Sub", &[&places, &starts], &[])
                    }
                    Keep::Last => {
                        let next = graph.node("Add", &[&row_of, &one], &[]);
                        let ends = graph.gather(offsets, &next, 0);
                        let last = graph.node("Sub", &[&ends, &one], &[]);
                        graph.node("Sub", &[&last, &places], &[])
                    }
                };
                graph.gather(&weight, &before, 0)
            }
        };
        let axis = self.graph.integers(&[-1]);
        let mut start = 0;
        for (rows, dim) in rows.iter_mut().zip(self.dims(attention)) {
            let (from, to) = (self.graph.integers(&[start]), self.graph.integers(&[start + dim as i64]));
            let own = self.graph.node("Slice", &[&vectors, &from, &to, &axis], &[]);
            *rows = self.graph.node("Add", &[rows, &own], &[]);
            start += dim as i64;
        }
    }

    /// Applies the layers of an activation unit along the last dimension, whatever the others are.
    fn unit(&mut self, part: &str, input: String) -> String {
        let prefix = format!("{part}.");
        let layers: Vec<_> =
            self.layers.iter().filter(|(name, _)| name.starts_with(&prefix)).cloned().collect();
        layers.iter().fold(input, |input, (name, layer)| {
            self.graph.enter(name);
            let weight = self.graph.node("Transpose", &[&format!("{name}.weight")], &[]);
            let product = self.graph.node("MatMul", &[&input, &weight], &[]);
            let output = self.graph.node("Add", &[&product, &format!("{name}.bias")], &[]);
            if layer.relu { self.graph.node("Relu", &[&output], &[]) } else { output }
        })
    }
}

/// The positions of a sequence.
struct Positions<'a> {
    /// `[N, width, elements of a key]` or `[positions, elements of a key]`.
    keys: String,
    /// The bags of one of its columns.
    bags: &'a Bags,
}

impl Positions<'_> {
    /// Repeats what each row has, `[N, elements]`, for its positions; `[N, 1, elements]` if these are padded.
    fn spread(&self, graph: &mut Graph, of_rows: &str) -> String {
        match &self.bags.arrangement {
            Arrangement::Rows(_) => graph.along("Unsqueeze", of_rows, 1),
            Arrangement::Flat { row_of, .. } => {
                let row_of = graph.along("Squeeze", row_of, 1);
                graph.gather(of_rows, &row_of, 0)
            }
        }
    }

    /// Gives what was spread the shape of the keys.
    fn expanded(&self, graph: &mut Graph, spread: &str) -> String {
        match &self.bags.arrangement {
            Arrangement::Rows(_) => {
                let shape = graph.node("Shape", &[&self.keys], &[]);
                graph.node("Expand", &[spread, &shape], &[])
            }
            Arrangement::Flat { .. } => spread.to_owned(),
        }
    }

    /// Returns 1 for each position and 0 for padding, with one dimension more.
    fn counted(&self, graph: &mut Graph) -> String {
        self.bags.factors.clone().unwrap_or_else(|| self.bags.ones(graph))
    }

    /// Adds up what the positions of each row have, in `dim` elements: `[N, dim]`.
    fn sum(&self, graph: &mut Graph, values: &str, dim: usize) -> String {
        match &self.bags.arrangement {
            Arrangement::Rows(_) => graph.reduce("ReduceSum", values, 1),
            Arrangement::Flat { row_of, rows, .. } => {
                let none = zeros(graph, rows, dim);
                add_at(graph, &none, row_of, values)
            }
        }
    }

    /// Returns the softmax of scores over the positions of each row.
    fn softmax(&self, graph: &mut Graph, scores: &str) -> String {
        let least = graph.numbers(&[], &[LEAST]);
        match &self.bags.arrangement {
            Arrangement::Rows(_) => {
                let counted = self.counted(graph);
                let is_counted = graph.cast(&counted, DataType::Bool);
                let scores = graph.node("Where", &[&is_counted, scores, &least], &[]);
                graph.node("Softmax", &[&scores], &[("axis", Attribute::Integer(1))])
            }
            Arrangement::Flat { row_of, rows, .. } => {
                let one = graph.integers(&[1]);
                let shape = graph.node("Concat", &[rows, &one], &[("axis", Attribute::Integer(0))]);
                let none = graph.node("Expand", &[&least, &shape], &[]);
                let reduction = [("reduction", Attribute::Text("max"))];
                let most = graph.node("ScatterND", &[&none, row_of, scores], &reduction);
                let most = self.spread(graph, &most);
                let less = graph.node("Sub", &[scores, &most], &[]);
                let powers = graph.node("Exp", &[&less], &[]);
                let totals = self.sum(graph, &powers, 1);
                let totals = self.spread(graph, &totals);
                graph.node("Div", &[&powers, &totals], &[])
            }
        }
    }
}

/// Puts values side by side along an axis.
fn concat(graph: &mut Graph, values: &[String], axis: i64) -> String {
    let values: Vec<_> = values.iter().map(String::as_str).collect();
    match values.as_slice() {
        &[one] => one.to_owned(),
        values => graph.node("Concat", values, &[("axis", Attribute::Integer(axis))]),
    }
}

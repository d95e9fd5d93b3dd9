//! The network of a model as nodes of a graph: layers, the interaction, and the logits.

use std::collections::HashMap;

use rankine_embedding::Pooling;
use rankine_model::{Interaction, Layer, ModelSpec};
use rankine_saved::Tensor;

use super::graph::{Attribute, Graph};
use super::inputs::Bags;

/// A model whose weights are part of the graph.
pub(super) struct Network<'a> {
    pub(super) graph: &'a mut Graph,
    pub(super) spec: &'a ModelSpec,
    pub(super) tensors: HashMap<&'a str, &'a Tensor>,
    pub(super) layers: Vec<(String, Layer)>,
}

impl<'a> Network<'a> {
    /// `tensors` are all weights of the model.
    pub(super) fn new(graph: &'a mut Graph, spec: &'a ModelSpec, tensors: &'a [Tensor]) -> Self {
        let tensors = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        Self { graph, spec, tensors, layers: spec.dense_layout().named_layers() }
    }

    /// Computes the logits, `[N, heads]`, from the numbers of the dense columns, unless there are none, and the bags of
    /// each categorical column.
    pub(super) fn logits(&mut self, dense: Option<&str>, bags: &[Bags]) -> String {
        let spec = self.spec;
        let mut vectors: Vec<_> = dense.map(|dense| self.part("bottom", dense)).into_iter().collect();
        vectors.extend(self.vectors_of_features(bags));
        self.graph.enter("interaction");
        let concatenated = self.concat(&vectors);
        let mut terms = Vec::new();
        let top_input = match spec.interaction {
            Interaction::Dot => {
                let products = self.products_of_pairs(&concatenated);
                let dense = dense.map(|_| vectors[0].clone());
                self.concat(&dense.into_iter().chain([products]).collect::<Vec<_>>())
            }
            Interaction::Cross { layers, .. } => self.cross(layers, concatenated),
            Interaction::FactorizationMachine => {
                let products = self.products_of_pairs(&concatenated);
                let sum = self.graph.reduce("ReduceSum", &products, 1);
                terms.push(self.graph.along("Unsqueeze", &sum, 1));
                concatenated
            }
            Interaction::Concat => concatenated,
        };
        terms.insert(0, self.part("top", &top_input));
        if spec.wide {
            for (feature, bags) in spec.features.iter().zip(bags) {
                let column = &feature.column;
                terms.push(self.pooled(&format!("wide.{column}"), (bags, feature.pooling), column));
            }
            terms.extend(dense.map(|dense| self.part("linear", dense)));
        }
        self.graph.enter("logits");
        let terms: Vec<_> = terms.iter().map(String::as_str).collect();
        if let &[top] = terms.as_slice() { top.to_owned() } else { self.graph.node("Sum", &terms, &[]) }
    }

    /// Computes the vector of each feature: pooled rows, or what attention over its sequence yields.
    fn vectors_of_features(&mut self, bags: &[Bags]) -> Vec<String> {
        let spec = self.spec;
        let mut vectors: Vec<_> = (spec.features.iter().zip(bags).enumerate())
            .map(|(number, (feature, bags))| match spec.attention_of(number) {
                Some(_) => String::new(),
                None => {
                    let table = format!("embedding.{}", spec.tables[feature.table].name);
                    self.pooled(&table, (bags, feature.pooling), &feature.column)
                }
            })
            .collect();
        for attention in &spec.attention {
            let query: Vec<_> =
                attention.unit.query().iter().map(|&feature| vectors[feature].clone()).collect();
            self.graph.enter(&format!("attention.{}", attention.sequence));
            let query = (!query.is_empty()).then(|| self.concat(&query));
            let sums = self.attend(attention, bags, query.as_deref());
            attention.features.iter().zip(sums).for_each(|(&feature, sum)| vectors[feature] = sum);
        }
        vectors
    }

    fn pooled(&mut self, table: &str, (bags, pooling): (&Bags, Pooling), part: &str) -> String {
        self.graph.enter(part);
        bags.pool(self.graph, self.tensors[table], pooling)
    }

    /// Applies the layers of a part, which may have none: `bottom.0`, `bottom.1`, ...
    fn part(&mut self, part: &str, input: &str) -> String {
        let prefix = format!("{part}.");
        let layers = self.layers.iter().filter(|(name, _)| name == part || name.starts_with(&prefix));
        layers.fold(input.to_owned(), |input, (name, layer)| {
            self.graph.enter(name);
            let mut inputs = vec![input, format!("{name}.weight")];
            inputs.extend(layer.bias.then(|| format!("{name}.bias")));
            let inputs: Vec<_> = inputs.iter().map(String::as_str).collect();
            let output = self.graph.node("Gemm", &inputs, &[("transB", Attribute::Integer(1))]);
            if layer.relu { self.graph.node("Relu", &[&output], &[]) } else { output }
        })
    }

    /// `x' = x0 * (W x + b) + x`, products element by element.
    fn cross(&mut self, layers: usize, x0: String) -> String {
        (0..layers).fold(x0.clone(), |x, number| {
            let linear = self.part(&format!("cross.{number}"), &x);
            let product = self.graph.node("Mul", &[&x0, &linear], &[]);
            self.graph.node("Add", &[&product, &x], &[])
        })
    }

    /// The dot products of vector 1 with 0, 2 with 0, 2 with 1, 3 with 0, ..., which have the same length.
    fn products_of_pairs(&mut self, concatenated: &str) -> String {
        let count = self.spec.vectors();
        let dim = self.spec.vector_elements() / count;
        // 0 stands for the number of rows.
        let shape = self.graph.integers(&[0, count as i64, dim as i64]);
        let vectors = self.graph.node("Reshape", &[concatenated, &shape], &[]);
        let swapped = [("perm", Attribute::Integers(&[0, 2, 1]))];
        let transposed = self.graph.node("Transpose", &[&vectors], &swapped);
        let products = self.graph.node("MatMul", &[&vectors, &transposed], &[]);
        let shape = self.graph.integers(&[0, (count * count) as i64]);
        let products = self.graph.node("Reshape", &[&products, &shape], &[]);
        let pairs = (0..count).flat_map(|i| (0..i).map(move |j| (i * count + j) as i64));
        let pairs = self.graph.integers(&pairs.collect::<Vec<_>>());
        self.graph.gather(&products, &pairs, 1)
    }

    /// Puts values side by side: the columns of one, then the next one's.
    fn concat(&mut self, values: &[String]) -> String {
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        match values.as_slice() {
            &[one] => one.to_owned(),
            values => self.graph.node("Concat", values, &[("axis", Attribute::Integer(1))]),
        }
    }
}

//! Tests of the graph's structure and of the weights beside it. That ONNX Runtime computes the probabilities of a
//! `Ranker` from them is tested in `bindings/python/tests/test_onnx.py`.

use std::collections::{HashMap, HashSet};
use std::fs;

use expect_test::{Expect, expect};
use rankine_embedding::{Dtype, Pooling, TableSpec};
use rankine_engine_cpu::CpuModel;
use rankine_model::{AttentionSpec, AttentionUnit, FeatureSpec, HeadSpec, Interaction, Model, ModelSpec};
use rankine_reader::schema::{
    self, Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Label, VocabularyKind,
};
use rankine_reader::{Columns, IdRules, OutOfRange, Schema};
use rankine_saved::{ModelMetadata, Weights};
use tempfile::TempDir;

use super::proto::tensor_proto::{DataLocation, DataType};
use super::proto::{AttributeProto, TensorProto};
use super::*;
use crate::{Format, export};

const INTERACTIONS: [Interaction; 5] = [
    Interaction::Dot,
    Interaction::Cross { layers: 2, rank: None },
    Interaction::Cross { layers: 2, rank: Some(3) },
    Interaction::FactorizationMachine,
    Interaction::Concat,
];

/// Two dense columns; a column with one id, one with three, one with any number, and one of buckets.
fn schema() -> Schema {
    let dense = |name: &str, function, mean, deviation| Dense {
        name: name.into(),
        transform: DenseTransform { function, mean, deviation },
    };
    let column = |name: &str, rows, hotness| Categorical {
        name: name.into(),
        rows: Some(rows),
        hotness,
        pooling: schema::Pooling::Sum,
        vocabulary: VocabularyKind::Identity,
        weighted: false,
        shares: None,
    };
    let buckets = VocabularyKind::Buckets { of: "price".into(), boundaries: vec![-1.0, 2.5] };
    Schema {
        labels: vec![Label::new("click"), Label::new("buy")],
        weight: None,
        dense: vec![
            dense("age", DenseFunction::SignedLog1p, 1.5, 0.5),
            dense("price", DenseFunction::None, 0.0, 1.0),
        ],
        dense_dtype: DenseDtype::F32,
        sequences: Vec::new(),
        categorical: vec![
            column("item", 50, Hotness::Fixed(1)),
            column("last", 40, Hotness::Fixed(3)),
            column("tags", 7, Hotness::Ragged { max: 9 }),
            Categorical { vocabulary: buckets, ..column("price_buckets", 3, Hotness::Fixed(1)) },
        ],
    }
}

/// A model of these columns: the first two share a table.
fn spec(interaction: Interaction, wide: bool) -> ModelSpec {
    let table = |name: &str, rows, dtype| TableSpec {
        name: format!("{name}_table"),
        rows,
        dim: 4,
        dtype,
        dynamic: None,
    };
    let feature = |(column, table): (&str, usize)| FeatureSpec {
        column: column.into(),
        table,
        pooling: if table == 0 { Pooling::Sum } else { Pooling::Mean },
        weighted: false,
    };
    let head =
        |(number, label): (usize, &str)| HeadSpec { label: label.into(), label_number: number, weight: 1.0 };
    ModelSpec {
        dense_columns: 2,
        bottom_mlp: vec![6, 4],
        interaction,
        wide,
        top_mlp: vec![5],
        heads: [(0, "click"), (1, "buy")].map(head).into(),
        tables: vec![
            table("item", 50, Dtype::Fp32),
            table("tags", 7, Dtype::Bf16),
            table("price", 3, Dtype::Fp16),
        ],
        features: [("item", 0), ("last", 0), ("tags", 1), ("price_buckets", 2)].map(feature).into(),
        attention: Vec::new(),
    }
}

/// Weights that nobody reads.
struct Unread(ModelSpec);

impl Weights for Unread {
    fn spec(&self) -> &ModelSpec {
        &self.0
    }

    fn try_for_each_run(
        &self,
        _: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        panic!("the graph needs no weights")
    }
}

fn described(
    spec: ModelSpec,
    schema: &Schema,
    rules: &[OutOfRange],
    inputs: OnnxInputs,
) -> Result<ModelProto, Error> {
    let ids = IdRules::new(schema, rules).unwrap();
    let corrections = &Correction::of_heads(&spec.heads, schema);
    with_metadata(schema, |metadata| {
        describe(&TrainedModel { weights: &Unread(spec), metadata, ids: &ids, corrections }, inputs)
    })
}

fn with_metadata<T>(schema: &Schema, take: impl FnOnce(&ModelMetadata<'_>) -> T) -> T {
    let columns = Columns { schema: schema.clone(), format: None, vocabularies: Vec::new() };
    let vocabulary = |name: &str| panic!("{name} is not needed");
    take(&ModelMetadata { steps: 7, job: "", columns: &columns, vocabulary: &vocabulary })
}

fn external(tensor: &TensorProto) -> bool {
    tensor.data_location == Some(DataLocation::External.into())
}

/// The value of a constant.
fn constant(tensor: &TensorProto) -> String {
    let raw = tensor.raw_data.as_deref().unwrap();
    let of = DataType::try_from(tensor.data_type.unwrap()).unwrap();
    let values: Vec<String> = match of {
        DataType::Int64 => {
            raw.chunks(8).map(|raw| i64::from_le_bytes(raw.try_into().unwrap()).to_string()).collect()
        }
        DataType::Float => {
            let values = raw.chunks(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap()));
            values.map(|value| format!("{value:?}")).collect()
        }
        DataType::Double => {
            let values = raw.chunks(8).map(|raw| f64::from_le_bytes(raw.try_into().unwrap()));
            values.map(|value| format!("{value:?}d")).collect()
        }
        DataType::Bool => raw.iter().map(|&byte| (byte == 1).to_string()).collect(),
        other => panic!("a constant of type {other:?}"),
    };
    let list = values.join(", ");
    if tensor.dims.is_empty() { list } else { format!("{:?}[{list}]", tensor.dims) }
}

fn attribute(attribute: &AttributeProto) -> String {
    let name = attribute.name.as_deref().unwrap();
    match (&attribute.i, &attribute.s) {
        (Some(value), None) => format!(" {name}={value}"),
        (None, Some(text)) => format!(" {name}={}", String::from_utf8_lossy(text)),
        _ => format!(" {name}={:?}", attribute.ints),
    }
}

/// The nodes whose names begin with a text, one line each, with the values of constants.
fn nodes(model: &ModelProto, begin: &str) -> String {
    let graph = model.graph.as_ref().unwrap();
    let constants = graph.initializer.iter().filter(|tensor| !external(tensor));
    let constants: HashMap<_, _> =
        constants.map(|tensor| (tensor.name.clone().unwrap(), constant(tensor))).collect();
    let nodes = graph.node.iter().filter(|node| node.name.as_deref().unwrap().starts_with(begin));
    let line = |node: &proto::NodeProto| {
        let input = |name: &String| constants.get(name).unwrap_or(name).clone();
        let inputs: Vec<_> = node.input.iter().map(input).collect();
        let attributes: String = node.attribute.iter().map(attribute).collect();
        let (output, op) = (&node.output[0], node.op_type.as_deref().unwrap());
        // Long lists take several lines.
        let comma = if inputs.iter().map(String::len).sum::<usize>() > 60 { ",\n    " } else { ", " };
        format!("{output} = {op}({}){attributes}\n", inputs.join(comma))
    };
    nodes.map(line).collect()
}

#[track_caller]
fn assert_nodes(model: &ModelProto, begin: &str, expected: &Expect) {
    expected.assert_eq(&nodes(model, begin));
}

const FAIL: [OutOfRange; 4] = [OutOfRange::Fail; 4];

/// ln 0.1 in single precision is -2.3025851. A head whose negatives were all kept gets 0.
#[test]
fn corrections_are_added_before_the_probability() {
    let mut schema = schema();
    schema.labels[1].negatives_kept = Some(0.1);
    let spec = || spec(Interaction::Concat, false);
    let model = described(spec(), &schema, &FAIL, OnnxInputs::default()).unwrap();
    let parts = ["/top.1/", "/correction/", "/probability/"];
    let expected = expect![[r#"
        /top.1/Gemm = Gemm(/top.0/Relu, top.1.weight, top.1.bias) transB=1
        logit = Add(/top.1/Gemm, [2][0.0, -2.3025851])
        /probability/Neg = Neg(logit)
        /probability/Exp = Exp(/probability/Neg)
        /probability/Add = Add(/probability/Exp, 1.0)
        probability = Reciprocal(/probability/Add)
    "#]];
    expected.assert_eq(&parts.map(|part| nodes(&model, part)).concat());
    // Without a share the graph is what it was.
    schema.labels[1].negatives_kept = None;
    let plain = described(spec(), &schema, &FAIL, OnnxInputs::default()).unwrap();
    assert_eq!(nodes(&plain, "/correction/"), "");
}

#[test]
fn every_kind_is_a_graph_without_gaps() {
    let skip = [OutOfRange::Row(3), OutOfRange::Leave, OutOfRange::Leave, OutOfRange::Fail];
    for (number, interaction) in INTERACTIONS.into_iter().enumerate() {
        let bags = [BagLayout::Padded, BagLayout::Offsets][number % 2];
        let numbers = [Numbers::Mapped, Numbers::Raw][number / 2 % 2];
        for (wide, rules) in [(false, &FAIL), (true, &skip)] {
            assert_without_gaps(&spec(interaction, wide), &schema(), rules, OnnxInputs { bags, numbers });
        }
    }
}

/// The attributes of a sequence are `last` and `tags`; `item` and the buckets are the query.
#[test]
fn every_kind_of_attention_is_a_graph_without_gaps() {
    let mut schema = schema();
    schema.categorical[1].hotness = Hotness::Ragged { max: 9 };
    let columns = ["last", "tags"].map(String::from).into();
    schema.sequences =
        vec![schema::Sequence { name: "seen".into(), columns, max: 9, keep: schema::Keep::Last }];
    let query = vec![0, 3];
    let units = [
        AttentionUnit::Din { query: query.clone(), hidden: vec![6, 3] },
        AttentionUnit::Dot { query },
        AttentionUnit::Mean,
    ];
    let ends = [None, Some(schema::Keep::Last), Some(schema::Keep::First)];
    let layouts = [BagLayout::Padded, BagLayout::Offsets];
    let cases: Vec<_> = ends.iter().flat_map(|&end| layouts.map(|bags| (end, bags))).collect();
    for unit in units {
        for &(position_embedding, bags) in &cases {
            let attention = vec![AttentionSpec {
                sequence: "seen".into(),
                features: vec![1, 2],
                length_max: 9,
                unit: unit.clone(),
                position_embedding,
            }];
            let spec = ModelSpec { attention, ..spec(Interaction::Dot, true) };
            let model = assert_without_gaps(&spec, &schema, &FAIL, OnnxInputs { bags, ..Default::default() });
            // Its columns have one width, or no width.
            let widths: HashSet<_> = model.graph.unwrap().input.iter().flat_map(dimensions).collect();
            assert_eq!(widths.contains("seen.width"), bags == BagLayout::Padded, "{widths:?}");
            assert!(!widths.contains("tags.width"));
        }
    }
}

/// The names of an input's dimensions.
fn dimensions(input: &proto::ValueInfoProto) -> Vec<String> {
    let proto::type_proto::Value::TensorType(tensor) = input.r#type.as_ref().unwrap().value.as_ref().unwrap();
    let dims = &tensor.shape.as_ref().unwrap().dim;
    let name = |dim: &proto::tensor_shape_proto::Dimension| match dim.value.as_ref().unwrap() {
        proto::tensor_shape_proto::dimension::Value::DimParam(name) => Some(name.clone()),
        proto::tensor_shape_proto::dimension::Value::DimValue(_) => None,
    };
    dims.iter().filter_map(name).collect()
}

/// Every value is computed before it is used, and once; every weight is used.
fn assert_without_gaps(
    spec: &ModelSpec,
    schema: &Schema,
    rules: &[OutOfRange],
    inputs: OnnxInputs,
) -> ModelProto {
    let model = described(spec.clone(), schema, rules, inputs).unwrap();
    let model = ModelProto::decode(&*model.encode_to_vec()).unwrap();
    let graph = model.graph.as_ref().unwrap();
    let given = graph.input.iter().map(|input| input.name.clone().unwrap());
    let stored = graph.initializer.iter().map(|tensor| tensor.name.clone().unwrap());
    let mut known: HashSet<_> = given.chain(stored).collect();
    let mut used = HashSet::new();
    for node in &graph.node {
        for input in &node.input {
            assert!(known.contains(input), "{spec:?}: {input} of {:?}", node.name);
            used.insert(input.clone());
        }
        assert!(known.insert(node.output[0].clone()), "{:?} twice", node.output);
    }
    let outputs: Vec<_> = graph.output.iter().map(|output| output.name.clone().unwrap()).collect();
    assert_eq!(outputs, ["logit", "probability"]);
    assert!(outputs.iter().all(|output| known.contains(output)));
    for tensor in Tensor::all_of(spec, ALIGN) {
        assert!(used.contains(&tensor.name), "{spec:?}: {}", tensor.name);
    }
    model
}

#[test]
fn weights_are_at_pages_and_have_the_bytes_of_the_model() {
    let schema = schema();
    let model = CpuModel::initialized(&Model::sgd(spec(Interaction::FactorizationMachine, true), 0.1), 3);
    let mut weights = Vec::new();
    let visited = model.try_for_each_run(&mut |run| {
        weights.extend_from_slice(run);
        Ok(())
    });
    visited.unwrap();
    let place = TempDir::new().unwrap();
    let dir = place.path().join("exported");
    let ids = IdRules::default();
    let exported = || {
        with_metadata(&schema, |metadata| {
            let corrections = &[Correction::NONE; 2];
            let exported = TrainedModel { weights: &model, metadata, ids: &ids, corrections };
            export(&dir, &exported, Format::Onnx(OnnxInputs::default()))
        })
    };
    exported().unwrap();
    let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [MODEL_NAME, WEIGHTS_NAME]);
    let bytes = fs::read(dir.join(WEIGHTS_NAME)).unwrap();
    let proto = ModelProto::decode(&*fs::read(dir.join(MODEL_NAME)).unwrap()).unwrap();
    let (mut weights, mut end) = (weights.as_slice(), 0);
    for tensor in proto.graph.unwrap().initializer.iter().filter(|tensor| external(tensor)) {
        let of = |key: &str| {
            let entry = tensor.external_data.iter().find(|entry| entry.key.as_deref() == Some(key));
            entry.unwrap().value.clone().unwrap()
        };
        let (begin, length): (usize, usize) = (of("offset").parse().unwrap(), of("length").parse().unwrap());
        assert_eq!((of("location"), begin % 4096), (WEIGHTS_NAME.to_owned(), 0), "{:?}", tensor.name);
        assert!(bytes[end..begin].iter().all(|&byte| byte == 0));
        end = begin + length;
        let elements = tensor.dims.iter().product::<i64>() as usize;
        let dtype = match DataType::try_from(tensor.data_type.unwrap()).unwrap() {
            DataType::Float => Dtype::Fp32,
            DataType::Bfloat16 => Dtype::Bf16,
            DataType::Float16 => Dtype::Fp16,
            other => panic!("a weight of type {other:?}"),
        };
        let (own, others) = weights.split_at(elements);
        let mut expected = vec![0; elements * dtype.bytes()];
        dtype.put_all(own, &mut expected);
        assert!(bytes[begin..end] == expected, "{:?}", tensor.name);
        weights = others;
    }
    assert!(weights.is_empty() && end == bytes.len());
    // A folder with anything in it is not replaced.
    let again = exported().unwrap_err();
    assert!(again.to_string().contains("already exists and is not empty"), "{again}");
}

/// Tables of 192 GB make the graph no larger.
#[test]
fn tables_have_any_size() {
    let mut spec = spec(Interaction::Dot, false);
    spec.tables.iter_mut().for_each(|table| table.rows = 6_000_000_000);
    let model = described(spec, &schema(), &FAIL, OnnxInputs::default()).unwrap();
    assert!(model.encoded_len() < 20_000, "{} bytes", model.encoded_len());
    let last = model.graph.unwrap().initializer.into_iter().rfind(external).unwrap();
    let values: Vec<_> = last.external_data.into_iter().map(|entry| entry.value.unwrap()).collect();
    assert_eq!(values[1..], ["144000032768", "48000000000"]);
}

#[test]
fn keys_of_open_vocabularies_are_refused() {
    let mut schema = schema();
    (schema.categorical[0].rows, schema.categorical[0].vocabulary) = (None, VocabularyKind::Open);
    let refused =
        described(spec(Interaction::Dot, false), &schema, &FAIL, OnnxInputs::default()).unwrap_err();
    let expected = format!("column {} has an open vocabulary", schema.categorical[0].name);
    assert!(refused.to_string().contains(&expected), "{refused}");
}

#[test]
fn inputs_have_one_name_each() {
    for (name, expected) in [("dense", "dense"), ("logit", "logit"), ("tags.count", "tags.count")] {
        let (mut schema, mut spec) = (schema(), spec(Interaction::Dot, false));
        schema.categorical[0].name = name.into();
        spec.features[0].column = name.into();
        let refused = described(spec, &schema, &FAIL, OnnxInputs::default()).unwrap_err().to_string();
        assert!(refused.contains(&format!("named `{expected}`")), "{refused}");
    }
}

#[test]
fn ids_are_looked_up_and_pooled() {
    let rules = [OutOfRange::Row(3), OutOfRange::Leave, OutOfRange::Leave, OutOfRange::Fail];
    let model = described(spec(Interaction::Dot, false), &schema(), &rules, OnnxInputs::default()).unwrap();
    assert_nodes(
        &model,
        "/item/",
        &expect![[r#"
        /item/Less = Less(item, 0)
        /item/GreaterOrEqual = GreaterOrEqual(item, 50)
        /item/Or = Or(/item/Less, /item/GreaterOrEqual)
        /item/Where = Where(/item/Or, 3, item)
        /item/Gather = Gather(embedding.item_table, /item/Where) axis=0
        /item/Squeeze = Squeeze(/item/Gather, [1][1])
    "#]],
    );
    assert_nodes(
        &model,
        "/last/",
        &expect![[r#"
        /last/Less = Less(last, 0)
        /last/GreaterOrEqual = GreaterOrEqual(last, 40)
        /last/Or = Or(/last/Less, /last/GreaterOrEqual)
        /last/Where = Where(/last/Or, 0, last)
        /last/Not = Not(/last/Or)
        /last/Cast = Cast(/last/Not) to=1
        /last/Unsqueeze = Unsqueeze(/last/Cast, [1][-1])
        /last/Gather = Gather(embedding.item_table, /last/Where) axis=0
        /last/Mul = Mul(/last/Gather, /last/Unsqueeze)
        /last/ReduceSum = ReduceSum(/last/Mul, [1][1]) keepdims=0
    "#]],
    );
    assert_nodes(
        &model,
        "/tags/",
        &expect![[r#"
        /tags/Shape = Shape(tags) start=1
        /tags/Squeeze = Squeeze(/tags/Shape, [1][0])
        /tags/Range = Range(0, /tags/Squeeze, 1)
        /tags/Unsqueeze = Unsqueeze(tags.count, [1][1])
        /tags/Less = Less(/tags/Range, /tags/Unsqueeze)
        /tags/Where = Where(/tags/Less, tags, 0)
        /tags/Less_1 = Less(/tags/Where, 0)
        /tags/GreaterOrEqual = GreaterOrEqual(/tags/Where, 7)
        /tags/Or = Or(/tags/Less_1, /tags/GreaterOrEqual)
        /tags/Where_1 = Where(/tags/Or, 0, /tags/Where)
        /tags/Not = Not(/tags/Or)
        /tags/And = And(/tags/Less, /tags/Not)
        /tags/Cast = Cast(/tags/And) to=1
        /tags/Unsqueeze_1 = Unsqueeze(/tags/Cast, [1][-1])
        /tags/Gather = Gather(embedding.tags_table, /tags/Where_1) axis=0
        /tags/Cast_1 = Cast(/tags/Gather) to=1
        /tags/Mul = Mul(/tags/Cast_1, /tags/Unsqueeze_1)
        /tags/ReduceSum = ReduceSum(/tags/Mul, [1][1]) keepdims=0
        /tags/ReduceSum_1 = ReduceSum(/tags/Unsqueeze_1, [1][1]) keepdims=0
        /tags/Max = Max(/tags/ReduceSum_1, 1.0)
        /tags/Div = Div(/tags/ReduceSum, /tags/Max)
    "#]],
    );
    assert_nodes(
        &model,
        "/price_buckets/",
        &expect![[r#"
        /price_buckets/Gather = Gather(dense, [1][1]) axis=1
        /price_buckets/GreaterOrEqual = GreaterOrEqual(/price_buckets/Gather, [1, 2][-1.0, 2.5])
        /price_buckets/Cast = Cast(/price_buckets/GreaterOrEqual) to=7
        /price_buckets/ReduceSum = ReduceSum(/price_buckets/Cast, [1][1]) keepdims=0
        /price_buckets/Unsqueeze = Unsqueeze(/price_buckets/ReduceSum, [1][1])
        /price_buckets/Gather_1 = Gather(embedding.price_table, /price_buckets/Unsqueeze) axis=0
        /price_buckets/Cast_1 = Cast(/price_buckets/Gather_1) to=1
        /price_buckets/Squeeze = Squeeze(/price_buckets/Cast_1, [1][1])
    "#]],
    );
}

#[test]
fn bags_of_offsets_are_summed_by_row() {
    let inputs = OnnxInputs { bags: BagLayout::Offsets, ..OnnxInputs::default() };
    let model = described(spec(Interaction::Concat, true), &schema(), &FAIL, inputs).unwrap();
    assert_nodes(
        &model,
        "/tags/",
        &expect![[r#"
        /tags/Slice = Slice(tags.offsets, [1][1], [1][9223372036854775807])
        /tags/Shape = Shape(/tags/Slice)
        /tags/Shape_1 = Shape(tags)
        /tags/Add = Add(/tags/Shape_1, [1][1])
        /tags/Expand = Expand([1][0], /tags/Add)
        /tags/Expand_1 = Expand([1][1], /tags/Shape)
        /tags/Unsqueeze = Unsqueeze(/tags/Slice, [1][1])
        /tags/ScatterND = ScatterND(/tags/Expand, /tags/Unsqueeze, /tags/Expand_1) reduction=add
        /tags/CumSum = CumSum(/tags/ScatterND, 0)
        /tags/Slice_1 = Slice(/tags/CumSum, [1][0], /tags/Shape_1)
        /tags/Unsqueeze_1 = Unsqueeze(/tags/Slice_1, [1][1])
        /tags/Less = Less(tags, 0)
        /tags/GreaterOrEqual = GreaterOrEqual(tags, 7)
        /tags/Or = Or(/tags/Less, /tags/GreaterOrEqual)
        /tags/Where = Where(/tags/Or, 9223372036854775807, tags)
        /tags/Gather = Gather(embedding.tags_table, /tags/Where) axis=0
        /tags/Cast = Cast(/tags/Gather) to=1
        /tags/Concat = Concat(/tags/Shape, [1][4]) axis=0
        /tags/Expand_2 = Expand(0.0, /tags/Concat)
        /tags/ScatterND_1 = ScatterND(/tags/Expand_2, /tags/Unsqueeze_1, /tags/Cast) reduction=add
        /tags/Shape_2 = Shape(/tags/Where)
        /tags/Expand_3 = Expand(1.0, /tags/Shape_2)
        /tags/Unsqueeze_2 = Unsqueeze(/tags/Expand_3, [1][-1])
        /tags/Concat_1 = Concat(/tags/Shape, [1][1]) axis=0
        /tags/Expand_4 = Expand(0.0, /tags/Concat_1)
        /tags/ScatterND_2 = ScatterND(/tags/Expand_4, /tags/Unsqueeze_1, /tags/Unsqueeze_2) reduction=add
        /tags/Max = Max(/tags/ScatterND_2, 1.0)
        /tags/Div = Div(/tags/ScatterND_1, /tags/Max)
        /tags/Gather_1 = Gather(wide.tags, /tags/Where) axis=0
        /tags/Concat_2 = Concat(/tags/Shape, [1][2]) axis=0
        /tags/Expand_5 = Expand(0.0, /tags/Concat_2)
        /tags/ScatterND_3 = ScatterND(/tags/Expand_5, /tags/Unsqueeze_1, /tags/Gather_1) reduction=add
        /tags/Shape_3 = Shape(/tags/Where)
        /tags/Expand_6 = Expand(1.0, /tags/Shape_3)
        /tags/Unsqueeze_3 = Unsqueeze(/tags/Expand_6, [1][-1])
        /tags/Concat_3 = Concat(/tags/Shape, [1][1]) axis=0
        /tags/Expand_7 = Expand(0.0, /tags/Concat_3)
        /tags/ScatterND_4 = ScatterND(/tags/Expand_7, /tags/Unsqueeze_1, /tags/Unsqueeze_3) reduction=add
        /tags/Max_1 = Max(/tags/ScatterND_4, 1.0)
        /tags/Div_1 = Div(/tags/ScatterND_3, /tags/Max_1)
    "#]],
    );
}

/// The weights of ids are factors of their rows, and a mean is divided by their sum unless that is 0.
#[test]
fn rows_are_multiplied_by_the_weights_of_ids() {
    let mut schema = schema();
    schema.categorical[2].weighted = true;
    let mut spec = spec(Interaction::Concat, false);
    spec.features[2].weighted = true;
    for (bags, expected) in [
        (
            BagLayout::Padded,
            expect![[r#"
        /tags/Shape = Shape(tags) start=1
        /tags/Squeeze = Squeeze(/tags/Shape, [1][0])
        /tags/Range = Range(0, /tags/Squeeze, 1)
        /tags/Unsqueeze = Unsqueeze(tags.count, [1][1])
        /tags/Less = Less(/tags/Range, /tags/Unsqueeze)
        /tags/Where = Where(/tags/Less, tags, 0)
        /tags/Less_1 = Less(/tags/Where, 0)
        /tags/GreaterOrEqual = GreaterOrEqual(/tags/Where, 7)
        /tags/Or = Or(/tags/Less_1, /tags/GreaterOrEqual)
        /tags/Where_1 = Where(/tags/Or, 0, /tags/Where)
        /tags/Not = Not(/tags/Or)
        /tags/And = And(/tags/Less, /tags/Not)
        /tags/Where_2 = Where(/tags/And, tags.weights, 0.0)
        /tags/Unsqueeze_1 = Unsqueeze(/tags/Where_2, [1][-1])
        /tags/Gather = Gather(embedding.tags_table, /tags/Where_1) axis=0
        /tags/Cast = Cast(/tags/Gather) to=1
        /tags/Mul = Mul(/tags/Cast, /tags/Unsqueeze_1)
        /tags/ReduceSum = ReduceSum(/tags/Mul, [1][1]) keepdims=0
        /tags/ReduceSum_1 = ReduceSum(/tags/Unsqueeze_1, [1][1]) keepdims=0
        /tags/Equal = Equal(/tags/ReduceSum_1, 0.0)
        /tags/Where_3 = Where(/tags/Equal, 1.0, /tags/ReduceSum_1)
        /tags/Div = Div(/tags/ReduceSum, /tags/Where_3)
    "#]],
        ),
        (
            BagLayout::Offsets,
            expect![[r#"
        /tags/Slice = Slice(tags.offsets, [1][1], [1][9223372036854775807])
        /tags/Shape = Shape(/tags/Slice)
        /tags/Shape_1 = Shape(tags)
        /tags/Add = Add(/tags/Shape_1, [1][1])
        /tags/Expand = Expand([1][0], /tags/Add)
        /tags/Expand_1 = Expand([1][1], /tags/Shape)
        /tags/Unsqueeze = Unsqueeze(/tags/Slice, [1][1])
        /tags/ScatterND = ScatterND(/tags/Expand, /tags/Unsqueeze, /tags/Expand_1) reduction=add
        /tags/CumSum = CumSum(/tags/ScatterND, 0)
        /tags/Slice_1 = Slice(/tags/CumSum, [1][0], /tags/Shape_1)
        /tags/Unsqueeze_1 = Unsqueeze(/tags/Slice_1, [1][1])
        /tags/Less = Less(tags, 0)
        /tags/GreaterOrEqual = GreaterOrEqual(tags, 7)
        /tags/Or = Or(/tags/Less, /tags/GreaterOrEqual)
        /tags/Where = Where(/tags/Or, 0, tags)
        /tags/Not = Not(/tags/Or)
        /tags/Where_1 = Where(/tags/Not, tags.weights, 0.0)
        /tags/Unsqueeze_2 = Unsqueeze(/tags/Where_1, [1][-1])
        /tags/Gather = Gather(embedding.tags_table, /tags/Where) axis=0
        /tags/Cast = Cast(/tags/Gather) to=1
        /tags/Mul = Mul(/tags/Cast, /tags/Unsqueeze_2)
        /tags/Concat = Concat(/tags/Shape, [1][4]) axis=0
        /tags/Expand_2 = Expand(0.0, /tags/Concat)
        /tags/ScatterND_1 = ScatterND(/tags/Expand_2, /tags/Unsqueeze_1, /tags/Mul) reduction=add
        /tags/Concat_1 = Concat(/tags/Shape, [1][1]) axis=0
        /tags/Expand_3 = Expand(0.0, /tags/Concat_1)
        /tags/ScatterND_2 = ScatterND(/tags/Expand_3, /tags/Unsqueeze_1, /tags/Unsqueeze_2) reduction=add
        /tags/Equal = Equal(/tags/ScatterND_2, 0.0)
        /tags/Where_2 = Where(/tags/Equal, 1.0, /tags/ScatterND_2)
        /tags/Div = Div(/tags/ScatterND_1, /tags/Where_2)
    "#]],
        ),
    ] {
        let inputs = OnnxInputs { bags, ..OnnxInputs::default() };
        let model = described(spec.clone(), &schema, &[OutOfRange::Leave; 4], inputs).unwrap();
        assert_nodes(&model, "/tags/", &expected);
        let inputs = model.graph.unwrap().input;
        assert!(inputs.iter().any(|input| input.name() == "tags.weights"));
    }
}

#[test]
fn raw_numbers_are_transformed() {
    let inputs = OnnxInputs { numbers: Numbers::Raw, ..OnnxInputs::default() };
    let half = Schema { dense_dtype: DenseDtype::F16, ..schema() };
    let model = described(spec(Interaction::Dot, false), &half, &FAIL, inputs).unwrap();
    assert_nodes(
        &model,
        "/dense/",
        &expect![[r#"
        /dense/Abs = Abs(dense)
        /dense/Add = Add(/dense/Abs, [1][1.0d])
        /dense/Log = Log(/dense/Add)
        /dense/Sign = Sign(dense)
        /dense/Mul = Mul(/dense/Sign, /dense/Log)
        /dense/Where = Where([2][true, false], /dense/Mul, dense)
        /dense/Sub = Sub(/dense/Where, [2][1.5d, 0.0d])
        /dense/Div = Div(/dense/Sub, [2][0.5d, 1.0d])
        /dense/Cast = Cast(/dense/Div) to=1
        /dense/Clip = Clip(/dense/Cast, -65504.0, 65504.0)
        /dense/IsNaN = IsNaN(dense)
        /dense/Where_1 = Where(/dense/IsNaN, 0.0, /dense/Clip)
        /dense/Cast_1 = Cast(/dense/Where_1) to=10
        /dense/Cast_2 = Cast(/dense/Cast_1) to=1
    "#]],
    );
}

#[test]
fn kinds_differ_in_their_interaction() {
    for (interaction, expected) in [
        (
            Interaction::Dot,
            expect![[r#"
            /interaction/Concat = Concat(/bottom.1/Relu,
                /item/Squeeze,
                /last/ReduceSum,
                /tags/Div,
                /price_buckets/Squeeze) axis=1
            /interaction/Reshape = Reshape(/interaction/Concat, [3][0, 5, 4])
            /interaction/Transpose = Transpose(/interaction/Reshape) perm=[0, 2, 1]
            /interaction/MatMul = MatMul(/interaction/Reshape, /interaction/Transpose)
            /interaction/Reshape_1 = Reshape(/interaction/MatMul, [2][0, 25])
            /interaction/Gather = Gather(/interaction/Reshape_1,
                [10][5, 10, 11, 15, 16, 17, 20, 21, 22, 23]) axis=1
            /interaction/Concat_1 = Concat(/bottom.1/Relu, /interaction/Gather) axis=1
            /top.0/Gemm = Gemm(/interaction/Concat_1, top.0.weight, top.0.bias) transB=1
            /top.0/Relu = Relu(/top.0/Gemm)
            logit = Gemm(/top.0/Relu, top.1.weight, top.1.bias) transB=1
            /probability/Neg = Neg(logit)
            /probability/Exp = Exp(/probability/Neg)
            /probability/Add = Add(/probability/Exp, 1.0)
            probability = Reciprocal(/probability/Add)
        "#]],
        ),
        (
            Interaction::Cross { layers: 2, rank: Some(3) },
            expect![[r#"
            /interaction/Concat = Concat(/bottom.1/Relu,
                /item/Squeeze,
                /last/ReduceSum,
                /tags/Div,
                /price_buckets/Squeeze) axis=1
            /cross.0.v/Gemm = Gemm(/interaction/Concat, cross.0.v.weight) transB=1
            /cross.0.u/Gemm = Gemm(/cross.0.v/Gemm, cross.0.u.weight, cross.0.u.bias) transB=1
            /cross.0.u/Mul = Mul(/interaction/Concat, /cross.0.u/Gemm)
            /cross.0.u/Add = Add(/cross.0.u/Mul, /interaction/Concat)
            /cross.1.v/Gemm = Gemm(/cross.0.u/Add, cross.1.v.weight) transB=1
            /cross.1.u/Gemm = Gemm(/cross.1.v/Gemm, cross.1.u.weight, cross.1.u.bias) transB=1
            /cross.1.u/Mul = Mul(/interaction/Concat, /cross.1.u/Gemm)
            /cross.1.u/Add = Add(/cross.1.u/Mul, /cross.0.u/Add)
            /top.0/Gemm = Gemm(/cross.1.u/Add, top.0.weight, top.0.bias) transB=1
            /top.0/Relu = Relu(/top.0/Gemm)
            logit = Gemm(/top.0/Relu, top.1.weight, top.1.bias) transB=1
            /probability/Neg = Neg(logit)
            /probability/Exp = Exp(/probability/Neg)
            /probability/Add = Add(/probability/Exp, 1.0)
            probability = Reciprocal(/probability/Add)
        "#]],
        ),
        (
            Interaction::FactorizationMachine,
            expect![[r#"
            /interaction/Concat = Concat(/bottom.1/Relu,
                /item/Squeeze,
                /last/ReduceSum,
                /tags/Div,
                /price_buckets/Squeeze) axis=1
            /interaction/Reshape = Reshape(/interaction/Concat, [3][0, 5, 4])
            /interaction/Transpose = Transpose(/interaction/Reshape) perm=[0, 2, 1]
            /interaction/MatMul = MatMul(/interaction/Reshape, /interaction/Transpose)
            /interaction/Reshape_1 = Reshape(/interaction/MatMul, [2][0, 25])
            /interaction/Gather = Gather(/interaction/Reshape_1,
                [10][5, 10, 11, 15, 16, 17, 20, 21, 22, 23]) axis=1
            /interaction/ReduceSum = ReduceSum(/interaction/Gather, [1][1]) keepdims=0
            /interaction/Unsqueeze = Unsqueeze(/interaction/ReduceSum, [1][1])
            /top.0/Gemm = Gemm(/interaction/Concat, top.0.weight, top.0.bias) transB=1
            /top.0/Relu = Relu(/top.0/Gemm)
            /top.1/Gemm = Gemm(/top.0/Relu, top.1.weight, top.1.bias) transB=1
            /linear/Gemm = Gemm(dense, linear.weight) transB=1
            logit = Sum(/top.1/Gemm,
                /interaction/Unsqueeze,
                /item/Squeeze_1,
                /last/ReduceSum_1,
                /tags/Div_1,
                /price_buckets/Squeeze_1,
                /linear/Gemm)
            /probability/Neg = Neg(logit)
            /probability/Exp = Exp(/probability/Neg)
            /probability/Add = Add(/probability/Exp, 1.0)
            probability = Reciprocal(/probability/Add)
        "#]],
        ),
    ] {
        let wide = interaction == Interaction::FactorizationMachine;
        let model = described(spec(interaction, wide), &schema(), &FAIL, OnnxInputs::default()).unwrap();
        let parts = ["/interaction/", "/cross.", "/top.", "/linear/", "/logits/", "/probability/"];
        expected.assert_eq(&parts.map(|part| nodes(&model, part)).concat());
    }
}

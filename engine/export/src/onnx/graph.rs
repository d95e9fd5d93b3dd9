//! A graph of ONNX under construction. Values are known by their names.

use std::collections::{HashMap, HashSet};

use rankine_base::Error;
use rankine_embedding::Dtype;
use rankine_saved::Tensor;

use super::WEIGHTS_NAME;
use super::proto::attribute_proto::AttributeType;
use super::proto::tensor_proto::{DataLocation, DataType};
use super::proto::tensor_shape_proto::{Dimension, dimension};
use super::proto::{
    AttributeProto, GraphProto, NodeProto, StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, type_proto,
};

/// A dimension of an input or output.
#[derive(Debug, Clone)]
pub(super) enum Dim {
    /// This many elements.
    Fixed(usize),
    /// Any number of elements, the same wherever the name stands.
    Any(String),
}

impl Dim {
    /// The rows of a request.
    pub(super) fn rows() -> Self {
        Self::Any("N".into())
    }
}

/// The value of a node's attribute.
pub(super) enum Attribute<'a> {
    Integer(i64),
    Integers(&'a [i64]),
    Text(&'a str),
}

/// The graph, and the names in it.
#[derive(Debug, Default)]
pub(super) struct Graph {
    proto: GraphProto,
    /// Inputs, outputs and weights, whose names are given.
    given: HashSet<String>,
    /// How many nodes have asked for each name.
    nodes: HashMap<String, usize>,
    /// Constants by type, dimensions and bytes.
    constants: HashMap<(DataType, Vec<i64>, Vec<u8>), String>,
    /// The part of the model that nodes are added for; their names begin with it.
    part: String,
}

impl Graph {
    /// Names the part of the model that the next nodes are added for.
    pub(super) fn enter(&mut self, part: &str) {
        part.clone_into(&mut self.part);
    }

    /// Adds an input.
    pub(super) fn input(
        &mut self,
        name: &str,
        (of, dims): (DataType, &[Dim]),
        doc: &str,
    ) -> Result<String, Error> {
        let input = ValueInfoProto { doc_string: Some(doc.into()), ..self.value_info(name, of, dims)? };
        self.proto.input.push(input);
        Ok(name.to_owned())
    }

    /// Makes a value that nodes compute an output, under another name.
    pub(super) fn output(
        &mut self,
        value: &str,
        (name, doc): (&str, &str),
        dims: &[Dim],
    ) -> Result<(), Error> {
        let info = self.value_info(name, DataType::Float, dims)?;
        self.proto.output.push(ValueInfoProto { doc_string: Some(doc.into()), ..info });
        let values =
            self.proto.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
        values.filter(|own| *own == value).for_each(|own| name.clone_into(own));
        Ok(())
    }

    /// Adds weights, which are in the file beside the model.
    pub(super) fn weights(&mut self, tensor: &Tensor) -> Result<(), Error> {
        self.give(&tensor.name)?;
        let bytes = tensor.bytes();
        let external_data = [
            ("location", WEIGHTS_NAME.to_owned()),
            ("offset", bytes.start.to_string()),
            ("length", (bytes.end - bytes.start).to_string()),
        ];
        self.proto.initializer.push(TensorProto {
            dims: tensor.shape.iter().map(|&size| size as i64).collect(),
            data_type: Some(data_type(tensor.dtype).into()),
            name: Some(tensor.name.clone()),
            external_data: external_data.map(|(key, value)| entry(key, value)).into(),
            data_location: Some(DataLocation::External.into()),
            ..TensorProto::default()
        });
        Ok(())
    }

    /// Returns a list of integers.
    pub(super) fn integers(&mut self, values: &[i64]) -> String {
        self.constant(DataType::Int64, vec![values.len() as i64], bytes(values, |value| value.to_le_bytes()))
    }

    /// Returns an integer.
    pub(super) fn integer(&mut self, value: i64) -> String {
        self.constant(DataType::Int64, Vec::new(), value.to_le_bytes().into())
    }

    /// Returns numbers with these dimensions.
    pub(super) fn numbers(&mut self, dims: &[usize], values: &[f32]) -> String {
        let dims = dims.iter().map(|&size| size as i64).collect();
        self.constant(DataType::Float, dims, bytes(values, |value| value.to_le_bytes()))
    }

    /// Returns a list of numbers in double precision.
    pub(super) fn doubles(&mut self, values: &[f64]) -> String {
        self.constant(DataType::Double, vec![values.len() as i64], bytes(values, |value| value.to_le_bytes()))
    }

    /// Returns a list of truth values.
    pub(super) fn truths(&mut self, values: &[bool]) -> String {
        self.constant(DataType::Bool, vec![values.len() as i64], bytes(values, |value| [u8::from(value)]))
    }

    fn constant(&mut self, of: DataType, dims: Vec<i64>, raw: Vec<u8>) -> String {
        let next = format!("/constant_{}", self.constants.len());
        let initializer = &mut self.proto.initializer;
        let name = self.constants.entry((of, dims, raw)).or_insert_with_key(|(of, dims, raw)| {
            initializer.push(TensorProto {
                dims: dims.clone(),
                data_type: Some((*of).into()),
                name: Some(next.clone()),
                raw_data: Some(raw.clone()),
                ..TensorProto::default()
            });
            next
        });
        name.clone()
    }

    /// Adds a node; returns its result.
    pub(super) fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute<'_>)]) -> String {
        // No column begins with a slash, so neither does any name that is given.
        let mut name = format!("/{}/{op}", self.part);
        let before = self.nodes.entry(name.clone()).or_default();
        if *before > 0 {
            name += &format!("_{before}");
        }
        *before += 1;
        self.proto.node.push(NodeProto {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![name.clone()],
            name: Some(name.clone()),
            op_type: Some(op.into()),
            attribute: attributes.iter().map(attribute).collect(),
        });
        name
    }

    /// Adds a node that converts to another type; returns its result.
    pub(super) fn cast(&mut self, value: &str, to: DataType) -> String {
        self.node("Cast", &[value], &[("to", Attribute::Integer(i32::from(to).into()))])
    }

    /// Adds a node whose last input says along which axis it works; returns its result.
    pub(super) fn along(&mut self, op: &str, value: &str, axis: i64) -> String {
        let axes = self.integers(&[axis]);
        self.node(op, &[value, &axes], &[])
    }

    /// Adds a node that reduces an axis, which disappears; returns its result.
    pub(super) fn reduce(&mut self, op: &str, value: &str, axis: i64) -> String {
        let axes = self.integers(&[axis]);
        self.node(op, &[value, &axes], &[("keepdims", Attribute::Integer(0))])
    }

    /// Adds a node that reduces an axis to one element; returns its result.
    pub(super) fn reduce_to_one(&mut self, op: &str, value: &str, axis: i64) -> String {
        let axes = self.integers(&[axis]);
        self.node(op, &[value, &axes], &[("keepdims", Attribute::Integer(1))])
    }

    /// Adds a node that takes elements along an axis; returns its result.
    pub(super) fn gather(&mut self, from: &str, indices: &str, axis: i64) -> String {
        self.node("Gather", &[from, indices], &[("axis", Attribute::Integer(axis))])
    }

    /// Returns the graph.
    pub(super) fn finish(self, name: &str) -> GraphProto {
        GraphProto { name: Some(name.into()), ..self.proto }
    }

    fn value_info(&mut self, name: &str, of: DataType, dims: &[Dim]) -> Result<ValueInfoProto, Error> {
        self.give(name)?;
        let dim = dims.iter().map(|dim| match dim {
            Dim::Fixed(size) => dimension::Value::DimValue(*size as i64),
            Dim::Any(name) => dimension::Value::DimParam(name.clone()),
        });
        let dim = dim.map(|value| Dimension { value: Some(value) }).collect();
        let shape = Some(TensorShapeProto { dim });
        let tensor = type_proto::Tensor { elem_type: Some(of.into()), shape };
        let of = TypeProto { value: Some(type_proto::Value::TensorType(tensor)) };
        Ok(ValueInfoProto { name: Some(name.into()), r#type: Some(of), doc_string: None })
    }

    /// Refuses a name that something else has.
    fn give(&mut self, name: &str) -> Result<(), Error> {
        if self.given.insert(name.to_owned()) {
            return Ok(());
        }
        let what = format!(
            "the ONNX model would have two inputs, outputs or weights named `{name}`, because a column has this \
             name: rename it in the dataset's schema, and train again"
        );
        Err(Error::columns(Some(name), what))
    }
}

/// Returns an entry of a list of properties.
pub(super) fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value) }
}

/// Returns the type of a table's elements.
pub(super) fn data_type(dtype: Dtype) -> DataType {
    match dtype {
        Dtype::Fp32 => DataType::Float,
        Dtype::Bf16 => DataType::Bfloat16,
        Dtype::Fp16 => DataType::Float16,
    }
}

fn attribute((name, value): &(&str, Attribute<'_>)) -> AttributeProto {
    let name = Some((*name).to_owned());
    let of = |of: AttributeType| Some(of.into());
    match *value {
        Attribute::Integer(value) => {
            AttributeProto { name, r#type: of(AttributeType::Int), i: Some(value), ..Default::default() }
        }
        Attribute::Integers(values) => AttributeProto {
            name,
            r#type: of(AttributeType::Ints),
            ints: values.to_vec(),
            ..Default::default()
        },
        Attribute::Text(text) => AttributeProto {
            name,
            r#type: of(AttributeType::String),
            s: Some(text.into()),
            ..Default::default()
        },
    }
}

fn bytes<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

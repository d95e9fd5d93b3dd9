//! From the tree to types: a serde deserializer whose errors are structured. They hold what serde knows, such as the
//! unknown key and the list of known keys, and the origin of the value.
//!
//! A choice with settings (`model` of a job, `vocabulary` of a schema) is written as a table whose `kind` is the
//! choice and whose other keys are its settings, or as only the name if all settings have defaults. The derived enums
//! do not handle this, so the table is taken apart here. (Serde's own `tag = "kind"` first copies the table into a
//! buffer, which loses the origins of its keys.)

use std::fmt::{self, Display};
use std::marker::PhantomData;

use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, Expected, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::tree::{Entry, Node, Origin, Value};

/// The key of a table that names the choice.
pub(super) const KIND: &str = "kind";

/// A list, or a value that stands for a list of one.
#[derive(Debug)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one value, or a list of values")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, one: D) -> Result<Self::Value, D::Error> {
                T::deserialize(one).map(|one| OneOrMany(vec![one]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, many: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(many)).map(OneOrMany)
            }
        }

        deserializer.deserialize_newtype_struct(ONE_OR_MANY, OneOrManyVisitor(PhantomData))
    }
}

#[cfg(any(test, feature = "json-schema"))]
impl<T: schemars::JsonSchema> schemars::JsonSchema for OneOrMany<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("OneOrMany{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let one = generator.subschema_for::<T>();
        schemars::json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

/// The name by which the deserializer of a tree knows that a list may be written as its only value.
const ONE_OR_MANY: &str = "OneOrMany";

/// Why a tree does not fit the type.
#[derive(Debug)]
pub(super) struct Misfit {
    pub reason: Reason,
    /// The innermost known origin of the error.
    pub origin: Option<Origin>,
    /// The path of the table or value, innermost key first.
    path_reversed: Vec<String>,
}

#[derive(Debug)]
pub(super) enum Reason {
    UnknownKey { key: String, known: &'static [&'static str] },
    UnknownChoice { found: String, known: &'static [&'static str] },
    MissingKey(&'static str),
    Other(String),
}

impl Misfit {
    fn new(reason: Reason) -> Self {
        Self { reason, origin: None, path_reversed: Vec::new() }
    }

    /// Returns the path of the table or value.
    pub(super) fn path(&self) -> Vec<String> {
        self.path_reversed.iter().rev().cloned().collect()
    }

    /// Sets the origin, unless a more precise one is known.
    fn at(mut self, origin: &Origin) -> Self {
        self.origin.get_or_insert_with(|| origin.clone());
        self
    }

    fn within(mut self, key: &str) -> Self {
        self.path_reversed.push(key.to_owned());
        self
    }
}

impl Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::UnknownKey { key, .. } => write!(f, "unknown key `{key}`"),
            Reason::UnknownChoice { found, .. } => write!(f, "unknown value `{found}`"),
            Reason::MissingKey(key) => write!(f, "missing key `{key}`"),
            Reason::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Misfit {}

impl Error for Misfit {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(Reason::Other(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        if found == Unexpected::Map && plain_words(expected) == "a list" {
            return Self::custom(
                "expected a list: write the headers of its tables with two brackets, `[[...]]`",
            );
        }
        Self::custom(format_args!("expected {}, found {}", plain_words(expected), described(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::new(Reason::UnknownKey { key: key.to_owned(), known })
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        Self::new(Reason::UnknownChoice { found: found.to_owned(), known })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(Reason::MissingKey(key))
    }
}

/// Describes what was expected in terms of TOML rather than Rust.
fn plain_words(expected: &dyn Expected) -> String {
    let words = expected.to_string();
    match words.as_str() {
        "u64" | "usize" => "a whole number of 0 or more".into(),
        "u32" => "a whole number from 0 to 4294967295".into(),
        "f64" => "a number".into(),
        "any valid TOML value" => "a value other than a date".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list".into(),
        "path string" => "a path".into(),
        _ if words.starts_with("struct ") => "a table".into(),
        _ => words,
    }
}

fn described(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(boolean) => format!("{boolean}"),
        Unexpected::Unsigned(number) => format!("{number}"),
        Unexpected::Signed(number) => format!("{number}"),
        // With a decimal point, so that 2.0 does not look like a whole number.
        Unexpected::Float(number) => format!("{number:?}"),
        Unexpected::Str(text) => format!("the string {text:?}"),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a table".into(),
        Unexpected::Other(what) => what.into(),
        other => format!("{other}"),
    }
}

fn unexpected(node: &Node) -> Unexpected<'_> {
    match &node.value {
        Value::String(text) => Unexpected::Str(text),
        Value::Integer(_) => Unexpected::Other("a number"),
        Value::Float(number) => Unexpected::Float(*number),
        Value::Boolean(boolean) => Unexpected::Bool(*boolean),
        Value::Datetime => Unexpected::Other("a date or time"),
        Value::Array(_) => Unexpected::Seq,
        Value::Table(_) => Unexpected::Map,
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let result = match &self.value {
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Integer(number) => match (i64::try_from(*number), u64::try_from(*number)) {
                (Ok(number), _) => visitor.visit_i64(number),
                (_, Ok(number)) => visitor.visit_u64(number),
                _ => Err(Misfit::custom("the number does not fit in 64 bits")),
            },
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
            Value::Datetime => Err(Misfit::invalid_type(unexpected(self), &visitor)),
            Value::Array(nodes) => visitor.visit_seq(Items(nodes.iter().enumerate())),
            Value::Table(entries) => visitor.visit_map(Fields::new(entries, false)),
        };
        result.map_err(|misfit| misfit.at(&self.origin))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match &self.value {
            Value::Array(_) if name == ONE_OR_MANY => self.deserialize_any(visitor),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        // Derived visitors would accept a list as a struct, field by field.
        match &self.value {
            Value::Table(_) => self.deserialize_any(visitor),
            _ => Err(Misfit::invalid_type(unexpected(self), &visitor).at(&self.origin)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let choice = match &self.value {
            Value::String(_) => Choice { kind: self, settings: &[], origin: &self.origin, path: None },
            Value::Table(entries) => match entries.iter().find(|entry| entry.key == KIND) {
                Some(entry) => {
                    Choice { kind: &entry.node, settings: entries, origin: &self.origin, path: Some(KIND) }
                }
                None => return Err(Misfit::missing_field(KIND).at(&self.origin)),
            },
            _ => return Err(Misfit::invalid_type(unexpected(self), &"a name").at(&self.origin)),
        };
        visitor.visit_enum(choice)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Items<'de>(std::iter::Enumerate<std::slice::Iter<'de, Node>>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        let Some((number, node)) = self.0.next() else { return Ok(None) };
        // Lists of numbers are short: a caret shows which one, so the list's key is enough.
        let element = matches!(node.value, Value::Table(_)).then(|| number.to_string());
        let read = seed.deserialize(node);
        read.map(Some).map_err(|misfit| match &element {
            Some(element) => misfit.within(element),
            None => misfit,
        })
    }
}

/// The entries of a table; for a choice, without its `kind`.
struct Fields<'de> {
    entries: std::slice::Iter<'de, Entry>,
    without_kind: bool,
    value: Option<&'de Entry>,
}

impl<'de> Fields<'de> {
    fn new(entries: &'de [Entry], without_kind: bool) -> Self {
        Self { entries: entries.iter(), without_kind, value: None }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        let without_kind = self.without_kind;
        let Some(entry) = self.entries.find(|entry| !(without_kind && entry.key == KIND)) else {
            return Ok(None);
        };
        self.value = Some(entry);
        let key = BorrowedStrDeserializer::new(&entry.key);
        seed.deserialize(key).map(Some).map_err(|misfit: Misfit| misfit.at(&entry.key_origin))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Misfit> {
        let entry =
            self.value.take().ok_or_else(|| Misfit::custom("a value was asked for before its key"))?;
        seed.deserialize(&entry.node).map_err(|misfit| misfit.within(&entry.key))
    }
}

/// A choice: its name, and the table with its settings.
struct Choice<'de> {
    kind: &'de Node,
    settings: &'de [Entry],
    origin: &'de Origin,
    /// The key of the name, if the choice is written as a table.
    path: Option<&'static str>,
}

impl<'de> EnumAccess<'de> for Choice<'de> {
    type Error = Misfit;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Misfit> {
        let located = |misfit: Misfit| {
            let misfit = misfit.at(&self.kind.origin);
            match self.path {
                Some(key) => misfit.within(key),
                None => misfit,
            }
        };
        let Value::String(name) = &self.kind.value else {
            return Err(located(Misfit::invalid_type(unexpected(self.kind), &"a name")));
        };
        let variant = seed.deserialize(BorrowedStrDeserializer::new(name)).map_err(located)?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Choice<'de> {
    type Error = Misfit;

    fn unit_variant(self) -> Result<(), Misfit> {
        match self.settings.iter().find(|entry| entry.key != KIND) {
            Some(entry) => Err(Misfit::unknown_field(&entry.key, &[KIND]).at(&entry.key_origin)),
            None => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Misfit> {
        let settings = MapAccessDeserializer::new(Fields::new(self.settings, true));
        seed.deserialize(settings).map_err(|misfit| misfit.at(self.origin))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Misfit> {
        Err(Misfit::invalid_type(Unexpected::Map, &visitor).at(self.origin))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        visitor.visit_map(Fields::new(self.settings, true)).map_err(|misfit| misfit.at(self.origin))
    }
}

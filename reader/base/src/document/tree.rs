//! A TOML file as a tree in which every key and value remembers where it is written: in the file, or in a `--set`.
//!
//! The deserializer of the `toml` crate knows positions only of the text that it parses. Here `--set` replaces parts of
//! the tree, and checks across keys need the position of a key after the types were built.

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};
use toml::{Spanned, de::DeString};

/// Where a key or value is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// Index of the text: 0 is the file, `i + 1` the `i`-th `--set` or setting of another document.
    pub source: usize,
    /// Byte range in that text. Empty for the whole file.
    pub span: Range<usize>,
}

/// A value and its origin. The origin of a table is its header.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub value: Value,
    pub origin: Origin,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    String(String),
    /// Holds any `i64` and `u64`; a number that fits neither is an error when it is read.
    Integer(i128),
    Float(f64),
    Boolean(bool),
    Datetime,
    Array(Vec<Node>),
    /// In the order of the text, so that the topmost error is reported.
    Table(Vec<Entry>),
}

/// A key of a table, with its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub key_origin: Origin,
    pub node: Node,
}

/// Why a text cannot be parsed.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub message: String,
    pub origin: Origin,
}

/// Most keys in the path of a `--set`: a job needs four, and reading the tree recurses. (The parser bounds the file.)
const PATH_KEYS_MAX: usize = 16;

impl Node {
    /// Parses a file.
    pub(super) fn parse(text: &str) -> Result<Self, SyntaxError> {
        let fragment = Fragment { source: 0, offset: 0 };
        let table = DeTable::parse(text).map_err(|error| fragment.syntax_error(&error, text))?;
        fragment.node(Spanned::new(0..0, DeValue::Table(table.into_inner())))
    }

    /// Parses `a.b=VALUE`, the `--set` with the index `source` among texts, and puts the value into the tree. A value
    /// that is not TOML is a string, so that paths and names need no quotes.
    ///
    /// With `place`, all that is added has this origin.
    pub(super) fn set(
        &mut self,
        argument: &str,
        source: usize,
        place: Option<&Origin>,
    ) -> Result<(), SyntaxError> {
        let whole = Fragment { source, offset: 0 };
        let Some((path, text)) = argument.split_once('=') else {
            return Err(SyntaxError {
                message: "--set needs KEY=VALUE, such as train.batch_size=1024".into(),
                origin: whole.origin(0..argument.len()),
            });
        };
        let blanks = text.len() - text.trim_start().len();
        let value = Fragment { source, offset: path.len() + 1 + blanks };
        let text = text.trim();
        let mut node = match DeValue::parse(text) {
            Ok(parsed) => value.node(parsed)?,
            Err(_) => Self { value: Value::String(text.to_owned()), origin: value.origin(0..text.len()) },
        };

        let mut keys = Vec::new();
        let mut start = 0;
        for part in path.split('.') {
            let leading = part.len() - part.trim_start().len();
            let (key, key_start) = (part.trim(), start + leading);
            if key.is_empty() || keys.len() == PATH_KEYS_MAX {
                return Err(SyntaxError {
                    message: format!("`{path}` is not a key: write TABLE.KEY=VALUE"),
                    origin: whole.origin(0..path.len()),
                });
            }
            keys.push((key, whole.origin(key_start..key_start + key.len())));
            start += part.len() + 1;
        }
        if let Some(place) = place {
            keys.iter_mut().for_each(|(_, origin)| *origin = place.clone());
            node.place_at(place);
        }
        self.put(&keys, node)
    }

    /// Gives this node and all below it one origin.
    fn place_at(&mut self, place: &Origin) {
        self.origin = place.clone();
        match &mut self.value {
            Value::Array(nodes) => nodes.iter_mut().for_each(|node| node.place_at(place)),
            Value::Table(entries) => entries.iter_mut().for_each(|entry| {
                entry.key_origin = place.clone();
                entry.node.place_at(place);
            }),
            _ => {}
        }
    }

    /// Replaces or adds the value at a path, and creates missing tables on the way. In a list a key is the index of an
    /// existing element, starting at 0.
    fn put(&mut self, path: &[(&str, Origin)], node: Self) -> Result<(), SyntaxError> {
        let Some(((key, key_origin), rest)) = path.split_first() else {
            *self = node;
            return Ok(());
        };
        if let Value::Array(nodes) = &mut self.value {
            let count = nodes.len();
            let element = key.parse().ok().and_then(|number: usize| nodes.get_mut(number));
            let Some(element) = element else {
                let message = format!("{}, and KEY=[...] replaces the whole list", not_an_index(key, count));
                return Err(SyntaxError { message, origin: key_origin.clone() });
            };
            return element.put(rest, node);
        }
        if !matches!(self.value, Value::Table(_)) {
            *self = Self { value: Value::Table(Vec::new()), origin: self.origin.clone() };
        }
        let Value::Table(entries) = &mut self.value else { return Ok(()) };
        let empty = Self { value: Value::Table(Vec::new()), origin: key_origin.clone() };
        let at = entries.iter().position(|entry| entry.key == *key).unwrap_or_else(|| {
            entries.push(Entry {
                key: (*key).to_owned(),
                key_origin: key_origin.clone(),
                node: empty.clone(),
            });
            entries.len() - 1
        });
        let entry = &mut entries[at];
        if rest.is_empty() {
            // Later errors about this key point at the argument.
            entry.key_origin = key_origin.clone();
        } else if !matches!(entry.node.value, Value::Table(_) | Value::Array(_)) {
            entry.node = empty;
        }
        entry.node.put(rest, node)
    }

    /// Removes the value at a dotted key, or the element of a list with that index. Returns whether there was one.
    pub(super) fn remove(&mut self, dotted: &str) -> bool {
        if let Some((key, rest)) = dotted.split_once('.') {
            return self.child_mut(key).is_some_and(|child| child.remove(rest));
        }
        match &mut self.value {
            Value::Table(entries) => {
                let count = entries.len();
                entries.retain(|entry| entry.key != dotted);
                entries.len() < count
            }
            Value::Array(nodes) => {
                let place = dotted.parse().ok().filter(|&place: &usize| place < nodes.len());
                place.map(|place| nodes.remove(place)).is_some()
            }
            _ => false,
        }
    }

    /// As [`Node::child`], to be changed.
    fn child_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.value {
            Value::Table(entries) => {
                entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
            }
            Value::Array(nodes) => nodes.get_mut(key.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// Returns the value of a key of this table, or the element of this list with that index.
    pub(super) fn child(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Table(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node),
            Value::Array(nodes) => nodes.get(key.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// Returns the entries of the table at a path.
    pub(super) fn entries_at(&mut self, path: &[String]) -> Option<&mut Vec<Entry>> {
        let Some((key, rest)) = path.split_first() else {
            return match &mut self.value {
                Value::Table(entries) => Some(entries),
                _ => None,
            };
        };
        self.child_mut(key)?.entries_at(rest)
    }

    /// Returns the origin of a dotted key: that of its value, or else of the innermost existing table around it. The
    /// index 0 is ignored where no list is written, as [`OneOrMany`](super::OneOrMany) allows.
    pub(super) fn origin_of(&self, dotted: &str) -> &Origin {
        let mut node = self;
        for key in dotted.split('.') {
            match node.child(key) {
                Some(child) => node = child,
                None if key == "0" && !matches!(node.value, Value::Array(_)) => {}
                None => break,
            }
        }
        &node.origin
    }
}

/// A text, or the rest of it from an offset on, whose spans become origins.
#[derive(Clone, Copy)]
struct Fragment {
    source: usize,
    offset: usize,
}

impl Fragment {
    fn origin(self, span: Range<usize>) -> Origin {
        Origin { source: self.source, span: span.start + self.offset..span.end + self.offset }
    }

    fn syntax_error(self, error: &Error, text: &str) -> SyntaxError {
        let end = text.trim_end().len();
        SyntaxError {
            message: format!("invalid TOML: {}", error.message()),
            origin: self.origin(error.span().unwrap_or(end..end)),
        }
    }

    fn node(self, spanned: Spanned<DeValue<'_>>) -> Result<Node, SyntaxError> {
        let origin = self.origin(spanned.span());
        let fail = |message: &str| SyntaxError { message: message.into(), origin: origin.clone() };
        let value = match spanned.into_inner() {
            DeValue::String(text) => Value::String(text.into_owned()),
            DeValue::Integer(integer) => Value::Integer(
                i128::from_str_radix(integer.as_str(), integer.radix())
                    .map_err(|_| fail("the number does not fit in 64 bits"))?,
            ),
            DeValue::Float(float) => Value::Float(float.as_str().parse().map_err(|_| fail("not a number"))?),
            DeValue::Boolean(boolean) => Value::Boolean(boolean),
            DeValue::Datetime(_) => Value::Datetime,
            DeValue::Array(array) => {
                Value::Array(array.into_iter().map(|node| self.node(node)).collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => {
                let mut entries = table
                    .into_iter()
                    .map(|(key, node)| self.entry(key, node))
                    .collect::<Result<Vec<_>, _>>()?;
                entries.sort_by_key(|entry| entry.key_origin.span.start);
                Value::Table(entries)
            }
        };
        Ok(Node { value, origin })
    }

    fn entry(self, key: Spanned<DeString<'_>>, node: Spanned<DeValue<'_>>) -> Result<Entry, SyntaxError> {
        let key_origin = self.origin(key.span());
        let node = self.node(node)?;
        Ok(Entry { key: key.into_inner().into_owned(), key_origin, node })
    }
}

/// Describes a key that is not the index of an element of a list.
pub fn not_an_index(key: &str, count: usize) -> String {
    let elements = if count == 1 { "element" } else { "elements" };
    match key.parse::<u64>() {
        Ok(_) => {
            format!("index `{key}` is out of range: the list has {count} {elements}; indices start at 0")
        }
        Err(_) => {
            format!("`{key}` is not an index: this is a list of {count} {elements}; indices start at 0")
        }
    }
}

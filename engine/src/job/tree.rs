//! A job file as a tree in which every key and value remembers the text that it stands in: the file, or a `--set`.
//!
//! The `toml` crate's own deserializer knows places only of what it parsed itself; here `--set` replaces parts, and the
//! checks across fields ask for the place of a key when the typed job is long made.

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};
use toml::{Spanned, de::DeString};

/// Where something stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// Which text: 0 is the file, `i + 1` the `i`-th `--set`.
    pub source: usize,
    /// Bytes of that text. Empty for the file as a whole.
    pub span: Range<usize>,
}

/// A value and its place. A table's place is its header.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub value: Value,
    pub origin: Origin,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    String(String),
    /// Wide enough for an `i64` and a `u64`; what fits neither is an error when it is read.
    Integer(i128),
    Float(f64),
    Boolean(bool),
    Datetime,
    Array(Vec<Node>),
    /// In the order of the text, so that the first error is the topmost.
    Table(Vec<Entry>),
}

/// A key of a table, with its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub key_origin: Origin,
    pub node: Node,
}

/// What keeps a text from being a tree.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub message: String,
    pub origin: Origin,
}

/// The keys of a `--set`'s path: a job needs four, and what reads the tree recurses. (The parser bounds the file.)
const PATH_KEYS_MAX: usize = 16;

impl Node {
    /// Parses a job file.
    pub(super) fn parse(text: &str) -> Result<Self, SyntaxError> {
        let place = Place { source: 0, offset: 0 };
        let table = DeTable::parse(text).map_err(|error| place.syntax_error(&error, text))?;
        place.node(Spanned::new(0..0, DeValue::Table(table.into_inner())))
    }

    /// Parses `a.b=VALUE`, the `index`-th `--set`, and puts the value in its place in the tree. What is no TOML value
    /// is a string, so that paths and names need no quotes.
    pub(super) fn set(&mut self, argument: &str, index: usize) -> Result<(), SyntaxError> {
        let source = index + 1;
        let whole = Place { source, offset: 0 };
        let Some((path, text)) = argument.split_once('=') else {
            return Err(SyntaxError {
                message: "--set takes KEY=VALUE, such as train.batch_size=1024".into(),
                origin: whole.origin(0..argument.len()),
            });
        };
        let blanks = text.len() - text.trim_start().len();
        let value = Place { source, offset: path.len() + 1 + blanks };
        let text = text.trim();
        let node = match DeValue::parse(text) {
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
        self.put(&keys, node)
    }

    /// Replaces or adds the value at a path, and makes tables on the way where there are none. In a list a key is the
    /// number of an element that is there, the first being 0.
    fn put(&mut self, path: &[(&str, Origin)], node: Self) -> Result<(), SyntaxError> {
        let Some(((key, key_origin), rest)) = path.split_first() else {
            *self = node;
            return Ok(());
        };
        if let Value::Array(nodes) = &mut self.value {
            let count = nodes.len();
            let element = key.parse().ok().and_then(|number: usize| nodes.get_mut(number));
            let Some(element) = element else {
                let message = format!(
                    "`{key}` is no element of this list of {count}: elements are numbered from 0, and the list as a \
                     whole is replaced by KEY=[...]"
                );
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
            // From here on the key is the argument's, for whoever complains of it.
            entry.key_origin = key_origin.clone();
        } else if !matches!(entry.node.value, Value::Table(_) | Value::Array(_)) {
            entry.node = empty;
        }
        entry.node.put(rest, node)
    }

    /// The value of a key of this table, or the element of that number of this list.
    pub(super) fn child(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Table(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node),
            Value::Array(nodes) => nodes.get(key.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// The entries of the table at a path, to be changed.
    pub(super) fn entries_at(&mut self, path: &[String]) -> Option<&mut Vec<Entry>> {
        let Some((key, rest)) = path.split_first() else {
            return match &mut self.value {
                Value::Table(entries) => Some(entries),
                _ => None,
            };
        };
        let child = match &mut self.value {
            Value::Table(entries) => &mut entries.iter_mut().find(|entry| entry.key == *key)?.node,
            Value::Array(nodes) => nodes.get_mut(key.parse::<usize>().ok()?)?,
            _ => return None,
        };
        child.entries_at(rest)
    }

    /// Where to point for a dotted key: at its value, or at the innermost table around it that is there.
    pub(super) fn place_of(&self, dotted: &str) -> &Origin {
        let mut node = self;
        for key in dotted.split('.') {
            match node.child(key) {
                Some(child) => node = child,
                None => break,
            }
        }
        &node.origin
    }
}

/// A text, or the piece of it from an offset on, whose spans are to become origins.
#[derive(Clone, Copy)]
struct Place {
    source: usize,
    offset: usize,
}

impl Place {
    fn origin(self, span: Range<usize>) -> Origin {
        Origin { source: self.source, span: span.start + self.offset..span.end + self.offset }
    }

    fn syntax_error(self, error: &Error, text: &str) -> SyntaxError {
        let end = text.trim_end().len();
        SyntaxError {
            message: format!("this is not TOML: {}", error.message()),
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
                    .map_err(|_| fail("this number does not fit 64 bits"))?,
            ),
            DeValue::Float(float) => {
                Value::Float(float.as_str().parse().map_err(|_| fail("this is not a number"))?)
            }
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

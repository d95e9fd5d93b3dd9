//! Settings of a job or of a part of it in code: the tables of a job file that has not been written.

use std::marker::PhantomData;

use rankine_base::document::{Conflict, not_an_index};
use serde::Serialize;
use toml::{Table as Map, Value};

/// Settings of a job or of a part of it, such as a model or an optimizer. They are checked when [`Settings::build`]
/// makes a [`Job`](super::Job) of them; a setting that is not made has the default of the job file.
#[derive(Debug, Clone)]
pub struct Settings<Of> {
    pub(super) map: Map,
    /// Values that a job file cannot have.
    pub(super) wrong: Vec<Conflict>,
    of: PhantomData<Of>,
}

/// One of the kinds of model, optimizer or schedule. Only the types of this crate are kinds.
pub trait Kind<Of>: Sized {
    /// The name in a job file.
    const NAME: &'static str;

    /// Returns the settings of this kind, none of which is made.
    fn settings() -> Settings<Self> {
        Settings::new().set("kind", Self::NAME)
    }
}

macro_rules! kinds {
    ($($of:ident: $($kind:ident $name:literal),*;)*) => {$($(
        impl $crate::settings::Kind<$of> for $kind {
            const NAME: &'static str = $name;
        }
    )*)*};
}

pub(crate) use kinds;

impl<Of> Settings<Of> {
    pub(super) fn new() -> Self {
        Self { map: Map::new(), wrong: Vec::new(), of: PhantomData }
    }

    /// Sets a key of the job file, relative to the table of these settings: `"train.epochs"` for a job, `"epsilon"` for
    /// an optimizer. The value is whatever serde writes as a value of TOML. In a list, a key is the index of an
    /// element, as in `--set`.
    pub fn set(mut self, key: &str, value: impl Serialize) -> Self {
        let put = Value::try_from(value)
            .map_err(|error| error.to_string())
            .and_then(|value| put(&mut self.map, key, value));
        if let Err(message) = put {
            self.wrong.push(Conflict::new(key, message));
        }
        self
    }

    /// Sets a part.
    pub(super) fn part<T>(mut self, key: &str, part: Settings<T>) -> Self {
        let wrong = part.wrong.into_iter();
        self.wrong.extend(
            wrong.map(|Conflict { key: own, message }| Conflict::new(format!("{key}.{own}"), message)),
        );
        self.set(key, part.map)
    }

    /// Adds an element to a list of parts.
    pub(super) fn element<T>(mut self, key: &str, part: Settings<T>) -> Self {
        let count = self.map.entry(key).or_insert(Value::Array(Vec::new())).as_array().map_or(0, Vec::len);
        self.part(&format!("{key}.{count}"), part)
    }
}

/// Puts a value at a dotted key, and creates missing tables on the way. In a list a key is the index of an element, or
/// of the first one that is missing.
fn put(map: &mut Map, key: &str, value: Value) -> Result<(), String> {
    let empty = || Value::Table(Map::new());
    let mut keys = key.split('.');
    let mut at = map.entry(keys.next().unwrap_or_default()).or_insert_with(empty);
    for key in keys {
        at = match at {
            Value::Array(list) => {
                let count = list.len();
                let number = key.parse().ok().filter(|&number: &usize| number <= count);
                let number = number.ok_or_else(|| not_an_index(key, count))?;
                if number == count {
                    list.push(empty());
                }
                &mut list[number]
            }
            Value::Table(map) => map.entry(key).or_insert_with(empty),
            other => return Err(format!("`{key}` is not a key of {other}")),
        };
    }
    *at = value;
    Ok(())
}

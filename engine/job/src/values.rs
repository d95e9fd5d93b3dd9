//! Values with a valid range: a batch of 0 samples or a learning rate of NaN is refused when the job file is read, so
//! that no other code has to check it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rankine_base::InvalidValue;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

/// Describes a value in the JSON Schema of job files.
#[cfg(any(test, feature = "json-schema"))]
macro_rules! schema {
    ($name:ident $json:tt) => {
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($json)
            }
        }
    };
}

/// Defines newtypes of whole numbers within a range.
macro_rules! whole_numbers {
    ($($(#[$doc:meta])* $name:ident($inner:ty) in $min:literal..=$max:literal: $expected:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(test, derive(serde::Serialize))]
        pub struct $name($inner);

        impl $name {
            /// The largest value.
            pub const MAX: $inner = $max;

            /// Returns the value as this type, or `None` if it is out of range.
            pub const fn new(value: $inner) -> Option<Self> {
                if value >= $min && value <= Self::MAX { Some(Self(value)) } else { None }
            }

            /// Returns the number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        #[cfg(any(test, feature = "json-schema"))]
        schema!($name { "type": "integer", "minimum": ($min as u64), "maximum": ($max as u64) });

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let make = |value: u64| Self::new(value.try_into().ok()?);
                deserializer.deserialize_u64(WholeVisitor { expected: $expected, make })
            }
        }
    )*};
}

/// Defines newtypes of finite numbers that satisfy a condition.
macro_rules! real_numbers {
    ($($(#[$doc:meta])* $name:ident(|$x:ident| $condition:expr): $expected:literal, $range:tt;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
        #[cfg_attr(test, derive(serde::Serialize))]
        pub struct $name(f64);

        impl $name {
            /// Returns the value as this type, or `None` if it is out of range or not finite.
            pub const fn new($x: f64) -> Option<Self> {
                if $x.is_finite() && $condition { Some(Self($x)) } else { None }
            }

            /// Returns the number.
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        #[cfg(any(test, feature = "json-schema"))]
        schema!($name $range);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_f64(RealVisitor { expected: $expected, make: Self::new })
            }
        }
    )*};
}

whole_numbers! {
    /// A number of things, at least one.
    Count(u64) in 1..=0x7fff_ffff_ffff_ffff: "a whole number of 1 or more";
    /// Samples in a batch.
    BatchSize(u32) in 1..=16_777_216: "a whole number from 1 to 16777216";
    /// Width of a layer or of an embedding.
    Width(u32) in 1..=65_536: "a whole number from 1 to 65536";
    /// Blocks in flight.
    QueueDepth(u32) in 1..=128: "a whole number from 1 to 128";
    /// Blocks that are shuffled together.
    WindowBlocks(u32) in 1..=65_536: "a whole number from 1 to 65536";
    /// Ranks or nodes.
    RankCount(u32) in 1..=4096: "a whole number from 1 to 4096";
    /// Models that are averaged.
    AverageCount(u32) in 2..=1000: "a whole number from 2 to 1000";
    /// Look-ups after which an id gets a row.
    AdmitAfter(u8) in 1..=255: "a whole number from 1 to 255";
    /// CPU threads.
    ThreadCount(u32) in 1..=4096: "a whole number from 1 to 4096";
}

impl Count {
    /// Returns the number as a count, or the nearest count if there is none of this number.
    pub fn nearest(number: u64) -> Self {
        Self(number.clamp(1, Self::MAX))
    }
}

impl Seconds {
    /// Returns the time as a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.get())
    }
}

real_numbers! {
    /// A time in seconds, up to a day.
    Seconds(|x| x >= 0.1 && x <= 86_400.0):
        "a number from 0.1 to 86400", { "type": "number", "minimum": 0.1, "maximum": 86400 };
    /// A number of 0 or more that is finite in single precision, in which weights are updated.
    NonNegative(|x| x >= 0.0 && x <= f32::MAX as f64): "a number of 0 or more, within single precision",
        { "type": "number", "minimum": 0 };
    /// A number above 0, also in single precision.
    Positive(|x| x as f32 > 0.0 && x <= f32::MAX as f64): "a number above 0, within single precision",
        { "type": "number", "exclusiveMinimum": 0 };
    /// A number from 0 to 1.
    Fraction(|x| x >= 0.0 && x <= 1.0): "a number from 0 to 1",
        { "type": "number", "minimum": 0, "maximum": 1 };
    /// Decay rate of a running mean: below 1, also in single precision.
    Decay(|x| x >= 0.0 && (x as f32) < 1.0): "a number from 0 to below 1",
        { "type": "number", "minimum": 0, "exclusiveMaximum": 1 };
    /// A target AUC: better than chance, and possible.
    AucTarget(|x| x > 0.5 && x <= 1.0): "a number above 0.5 and at most 1",
        { "type": "number", "exclusiveMinimum": 0.5, "maximum": 1 };
}

impl Default for NonNegative {
    fn default() -> Self {
        Self(0.0)
    }
}

/// A number of epochs above 0: `"epoch"`, which is 1, or a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epochs(Positive);

impl Epochs {
    /// One epoch.
    pub const ONE: Self = Self(Positive(1.0));

    /// Returns a number of epochs.
    pub fn new(epochs: f64) -> Option<Self> {
        Positive::new(epochs).map(Self)
    }

    /// Returns the number.
    pub const fn get(self) -> f64 {
        self.0.get()
    }
}

impl fmt::Display for Epochs {
    /// Formats the value as in a job file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ONE => f.write_str("\"epoch\""),
            Self(epochs) => write!(f, "{:?}", epochs.get()),
        }
    }
}

#[cfg(test)]
impl serde::Serialize for Epochs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(any(test, feature = "json-schema"))]
schema!(Epochs {
    "oneOf": [
        { "type": "string", "enum": ["epoch"] },
        { "type": "number", "exclusiveMinimum": 0 }
    ]
});

impl<'de> Deserialize<'de> for Epochs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EpochsVisitor;

        impl Visitor<'_> for EpochsVisitor {
            type Value = Epochs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"epoch\", or a number of epochs above 0")
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Epochs, E> {
                match value {
                    "epoch" => Ok(Epochs::ONE),
                    _ => Err(E::invalid_value(Unexpected::Str(value), &self)),
                }
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Epochs, E> {
                Epochs::new(value).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Epochs, E> {
                Epochs::new(value as f64).ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Epochs, E> {
                Epochs::new(value as f64).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
            }
        }

        deserializer.deserialize_any(EpochsVisitor)
    }
}

/// Defines numbers that a job may leave to Rankine.
macro_rules! numbers_or_auto {
    ($($(#[$doc:meta])* $name:ident($inner:ident), $(#[$auto:meta])* Auto: $expected:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $(#[$auto])*
            Auto,
            /// A fixed number.
            Count($inner),
        }

        impl $name {
            /// Returns the number, or `None` for `Auto`.
            pub fn count(self) -> Option<$inner> {
                match self {
                    Self::Auto => None,
                    Self::Count(count) => Some(count),
                }
            }
        }

        impl fmt::Display for $name {
            /// Formats the value as in a job file.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Auto => f.write_str("\"auto\""),
                    Self::Count(count) => count.fmt(f),
                }
            }
        }

        #[cfg(test)]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    Self::Auto => serializer.serialize_str("auto"),
                    Self::Count(count) => count.serialize(serializer),
                }
            }
        }

        #[cfg(any(test, feature = "json-schema"))]
        schema!($name {
            "oneOf": [
                { "type": "integer", "minimum": 1, "maximum": ($inner::MAX) },
                { "type": "string", "enum": ["auto"] }
            ]
        });

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let make = |value: u64| $inner::new(value.try_into().ok()?).map(Self::Count);
                deserializer.deserialize_any(OrAutoVisitor { expected: $expected, auto: Self::Auto, make })
            }
        }
    )*};
}

/// Reads a whole number, or the word.
struct OrAutoVisitor<V, F> {
    expected: &'static str,
    auto: V,
    make: F,
}

impl<V, F: Fn(u64) -> Option<V>> Visitor<'_> for OrAutoVisitor<V, F> {
    type Value = V;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V, E> {
        match value {
            "auto" => Ok(self.auto),
            _ => Err(E::invalid_value(Unexpected::Str(value), &self)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<V, E> {
        (self.make)(value).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<V, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(value), &self)),
        }
    }
}

numbers_or_auto! {
    /// Number of ranks or nodes: a number, or `"auto"`.
    Ranks(RankCount),
        /// Counted when training starts.
        Auto: "a whole number from 1 to 4096, or \"auto\"";
    /// Samples that are scored at a time: a number, or `"auto"`.
    EvalBatchSize(BatchSize),
        /// Chosen by the device.
        Auto: "a whole number from 1 to 16777216, or \"auto\"";
}

impl Ranks {
    /// One.
    pub const ONE: Self = Self::Count(RankCount(1));

    /// Returns the number; 1 for [`Ranks::Auto`].
    pub fn get(self) -> u32 {
        self.count().map_or(1, RankCount::get)
    }
}

/// Folders of datasets, at least one; in a job file a path, or a list of paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders(Vec<PathBuf>);

impl Folders {
    /// Returns a single folder.
    pub fn one(path: impl Into<PathBuf>) -> Self {
        Self(vec![path.into()])
    }

    /// Returns the paths, in their order.
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

#[cfg(test)]
impl serde::Serialize for Folders {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [path] => path.serialize(serializer),
            paths => paths.serialize(serializer),
        }
    }
}

#[cfg(any(test, feature = "json-schema"))]
schema!(Folders {
    "oneOf": [
        { "type": "string" },
        { "type": "array", "items": { "type": "string" }, "minItems": 1 }
    ]
});

impl<'de> Deserialize<'de> for Folders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FoldersVisitor;

        impl<'de> Visitor<'de> for FoldersVisitor {
            type Value = Folders;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or a list of at least one path")
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Folders, E> {
                Ok(Folders::one(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Folders, A::Error> {
                let mut paths = Vec::new();
                while let Some(path) = values.next_element()? {
                    paths.push(path);
                }
                if paths.is_empty() {
                    return Err(A::Error::invalid_length(0, &self));
                }
                Ok(Folders(paths))
            }
        }

        deserializer.deserialize_any(FoldersVisitor)
    }
}

struct WholeVisitor<F> {
    expected: &'static str,
    make: F,
}

impl<T, F: Fn(u64) -> Option<T>> Visitor<'_> for WholeVisitor<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        let made = u64::try_from(value).ok().and_then(&self.make);
        made.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        (self.make)(value).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
    }
}

struct RealVisitor<F> {
    expected: &'static str,
    make: F,
}

impl<T, F: Fn(f64) -> Option<T>> Visitor<'_> for RealVisitor<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        (self.make)(value).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))
    }

    /// Accepts a whole number for a real one: `learning_rate = 24`.
    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        (self.make)(value as f64).ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        (self.make)(value as f64).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
    }
}

/// Implements `Deserialize` with `FromStr`, whose error is the message.
macro_rules! from_string {
    ($name:ident: $expected:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct StringVisitor;

                impl Visitor<'_> for StringVisitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }

                deserializer.deserialize_str(StringVisitor)
            }
        }
    };
}

/// The name of a job. Run folders start with it, so it must be a valid file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobName(String);

impl JobName {
    /// Most bytes of a name: file systems allow 255, and the name of a run folder is longer.
    pub const BYTES_MAX: usize = 128;

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for JobName {
    type Err = InvalidValue;

    fn from_str(name: &str) -> Result<Self, InvalidValue> {
        let wrong = if name.is_empty() {
            "is empty"
        } else if name.len() > Self::BYTES_MAX {
            "is longer than 128 bytes"
        } else if name.starts_with('.') {
            "starts with a dot"
        } else if name.contains(['/', '\\']) {
            "contains a slash"
        } else if name.contains(char::is_control) {
            "contains a control character"
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(InvalidValue::new(name, format!("the name {wrong}, and run folders start with it")))
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

from_string!(JobName: "a name");

#[cfg(any(test, feature = "json-schema"))]
schema!(JobName { "type": "string", "pattern": "^[^./\\\\][^/\\\\]{0,127}$" });

/// The columns of a generated dataset: one of the built-in shapes, or a file that describes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Users and items that live for a few days, and a column whose categories stay.
    Churn,
    /// 13 dense columns and 26 one-hot tables, MLPerf's DLRM.
    Dlrm,
    /// The same columns with multi-hot bags, MLPerf's DLRM-DCNv2.
    DlrmDcnv2,
    /// Items, their shops and users, with a sequence of earlier items and shops.
    Sequences,
    /// A shape file.
    File(PathBuf),
}

impl FromStr for Shape {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "churn" => Ok(Self::Churn),
            "dlrm" => Ok(Self::Dlrm),
            "dlrm-dcnv2" => Ok(Self::DlrmDcnv2),
            "sequences" => Ok(Self::Sequences),
            // A typing mistake in the name of a built-in shape must not become "no such file".
            _ if text.contains('/') || Path::new(text).extension().is_some() => Ok(Self::File(text.into())),
            _ => {
                let suggestion =
                    rankine_base::did_you_mean(text, ["churn", "dlrm", "dlrm-dcnv2", "sequences"]);
                let what =
                    format!("churn, dlrm, dlrm-dcnv2, sequences or the path of a shape file{suggestion}");
                Err(InvalidValue::is_not(text, what))
            }
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Churn => f.write_str("churn"),
            Self::Dlrm => f.write_str("dlrm"),
            Self::DlrmDcnv2 => f.write_str("dlrm-dcnv2"),
            Self::Sequences => f.write_str("sequences"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

from_string!(Shape: "churn, dlrm, dlrm-dcnv2, sequences or the path of a shape file");

#[cfg(any(test, feature = "json-schema"))]
schema!(Shape { "type": "string" });

#[cfg(test)]
mod tests {
    use rankine_topology::RANKS_MAX;

    use super::*;

    #[test]
    fn ranges_include_their_ends_and_nothing_beyond() {
        /// The first and last values that are taken, and those next to them that are not.
        fn holds<T: PartialOrd + Copy + fmt::Debug, N>(
            new: impl Fn(T) -> Option<N>,
            taken: [T; 2],
            refused: &[T],
        ) {
            assert!(taken.iter().all(|value| new(*value).is_some()), "{taken:?}");
            let wrong = refused.iter().find(|value| new(**value).is_some());
            assert!(wrong.is_none(), "{wrong:?}");
        }
        let (least, most) = (f64::from(f32::from_bits(1)), f64::from(f32::MAX));
        let never = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        holds(Seconds::new, [0.1, 86_400.0], &[[0.099, 86_400.1, -1.0], never].concat());
        holds(NonNegative::new, [0.0, most], &[[-least, most * 1.000_001, -1.0], never].concat());
        assert_eq!(RankCount::MAX as usize, RANKS_MAX);
        // Half of the least number in single precision is rounded to 0.
        holds(Positive::new, [least, most], &[[0.0, least / 2.0, most * 1.000_001], never].concat());
        holds(Fraction::new, [0.0, 1.0], &[[-least, 1.0 + f64::EPSILON, -1.0], never].concat());
        // Within half of 2^-24 of 1, it is 1 in single precision.
        let below_one = 1.0 - 2.0f64.powi(-24);
        holds(Decay::new, [0.0, below_one], &[[-least, 1.0, 1.0 - 2.0f64.powi(-26)], never].concat());
        holds(AucTarget::new, [0.5 + f64::EPSILON, 1.0], &[[0.5, 1.0 + f64::EPSILON, 0.0], never].concat());

        holds(Count::new, [1, i64::MAX as u64], &[0, 1 << 63]);
        holds(BatchSize::new, [1, 1 << 24], &[0, (1 << 24) + 1]);
        holds(Width::new, [1, 1 << 16], &[0, (1 << 16) + 1]);
        holds(WindowBlocks::new, [1, 1 << 16], &[0, (1 << 16) + 1]);
        holds(QueueDepth::new, [1, 128], &[0, 129]);
        holds(RankCount::new, [1, 4096], &[0, 4097]);
        holds(ThreadCount::new, [1, 4096], &[0, 4097]);
        holds(AverageCount::new, [2, 1000], &[0, 1, 1001]);
        assert_eq!(Seconds::new(0.25).unwrap().duration(), Duration::from_millis(250));
    }

    #[test]
    fn a_job_has_a_name_that_a_folder_can_have() {
        let longest = "n".repeat(128);
        for name in ["a", "a.b", "caf\u{e9} 2", &longest] {
            assert_eq!(name.parse::<JobName>().unwrap().to_string(), name);
        }
        for (name, wrong) in [
            ("", "is empty"),
            (".a", "starts with a dot"),
            ("a/b", "contains a slash"),
            ("a\\b", "contains a slash"),
            ("a\nb", "contains a control character"),
            (&"n".repeat(129), "is longer than 128 bytes"),
            (&"\u{e9}".repeat(65), "is longer than 128 bytes"),
        ] {
            let error = name.parse::<JobName>().unwrap_err();
            assert!(error.why.contains(wrong), "{name}: {error}");
        }
    }

    #[test]
    fn numbers_are_given_or_left_to_rankine() {
        let (three, auto) = (Ranks::Count(RankCount::new(3).unwrap()), Ranks::Auto);
        assert_eq!((three.get(), three.to_string(), Ranks::ONE.get()), (3, "3".into(), 1));
        assert_eq!((auto.get(), auto.count(), auto.to_string()), (1, None, "\"auto\"".into()));
        let read = |text: &str| serde_json::from_str(text).map_err(|error| error.to_string());
        assert_eq!(read("\"auto\""), Ok(EvalBatchSize::Auto));
        assert_eq!(read("16777216").unwrap().count(), BatchSize::new(1 << 24));
        for wrong in ["0", "-1", "16777217", "\"all\"", "1.5"] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains("expected a whole number from 1 to 16777216, or \"auto\""), "{error}");
        }
    }

    #[test]
    fn epochs_are_a_number_above_0_or_the_word() {
        let read = |text: &str| serde_json::from_str::<Epochs>(text).map_err(|error| error.to_string());
        for (text, epochs) in [("2", 2.0), ("0.5", 0.5), ("\"epoch\"", 1.0)] {
            let expected = Epochs::new(epochs).unwrap();
            assert_eq!(read(text), Ok(expected));
            assert_eq!(serde_json::to_string(&expected).unwrap().parse(), Ok(epochs));
        }
        for wrong in ["0", "-1", "0.0", "\"epochs\"", "true"] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains("expected \"epoch\", or a number of epochs above 0"), "{error}");
        }
    }
}

//! The shape of synthetic data: dense columns, tables and bag sizes.

use std::path::Path;

use rankine_base::did_you_mean;
use rankine_base::document::{Conflict, Document};
use rankine_base::error::{Error, Result};
use rankine_base::files::read_text;
use serde::{Deserialize, Serialize};

use crate::schema::{
    Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, HOTNESS_MAX, Hotness, Keep, Label,
    Pooling, Schema, Sequence, VocabularyKind,
};

/// A shape as in its TOML file or in a manifest. Deserializing one checks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedShape")]
pub struct Shape {
    /// The shape's name.
    pub name: String,
    /// The number of dense columns, `I1`, `I2`, ...
    pub dense: usize,
    /// Rows of each table; the columns are `C1`, `C2`, ...
    pub rows: Vec<u64>,
    /// Ids per bag of each column; empty means 1 in every column.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hotness: Vec<u32>,
    /// Whether bags hold between 0 and `hotness` ids instead of exactly `hotness`.
    pub ragged: bool,
    /// How bags become vectors.
    pub pooling: Pooling,
    /// The sequences `S1`, `S2`, ...
    #[serde(rename = "sequence", skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<SequenceShape>,
    /// The columns whose categories come and go, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub churn: Option<ChurnShape>,
}

/// Columns whose categories come and go. They have an open vocabulary, and `rows` categories at a time. Samples are in
/// order of time: the training part has all days but the last one, which is the evaluation part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChurnShape {
    /// The columns, such as `C1`; none of them is in the query of a sequence.
    pub columns: Vec<String>,
    /// The days of both parts.
    #[cfg_attr(test, schemars(range(min = 2, max = DAYS_MAX)))]
    pub days: u32,
    /// How long each category lives.
    #[cfg_attr(test, schemars(range(min = 1, max = DAYS_MAX)))]
    pub lifetime_days: u32,
}

/// The most days of a [`ChurnShape`].
const DAYS_MAX: u32 = 10_000;

/// A sequence of a shape: for each column of its query, it has one with the same vocabulary. For `C2`, the sequence
/// `S1` has `S1_C2`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SequenceShape {
    /// The columns of the query, such as `C1`: each has one id in every sample.
    pub query: Vec<String>,
    /// The most positions of a sample; samples have between 0 and `max`.
    #[cfg_attr(test, schemars(range(min = 1, max = HOTNESS_MAX)))]
    pub max: u32,
}

/// The shape of synthetic data and of raw records: dense columns, tables and bag sizes.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(title = "Shape"))]
#[serde(deny_unknown_fields)]
struct UncheckedShape {
    /// The shape's name.
    name: String,
    /// The number of dense columns, `I1`, `I2`, ...
    #[cfg_attr(test, schemars(range(max = MAX_DENSE)))]
    dense: usize,
    /// Rows of each table; the columns are `C1`, `C2`, ...
    #[cfg_attr(test, schemars(inner(range(min = 1, max = MAX_ROWS))))]
    rows: Vec<u64>,
    /// Ids per bag of each column; by default 1.
    #[cfg_attr(test, schemars(inner(range(min = 1, max = HOTNESS_MAX))))]
    #[serde(default)]
    hotness: Vec<u32>,
    /// Whether bags hold between 0 and `hotness` ids instead of exactly `hotness`.
    #[serde(default)]
    ragged: bool,
    /// How bags become vectors.
    #[serde(default = "default_pooling")]
    pooling: Pooling,
    /// The sequences `S1`, `S2`, ...; raw records have none.
    #[serde(default, rename = "sequence")]
    sequences: Vec<SequenceShape>,
    /// Columns whose categories come and go; raw records have none.
    churn: Option<ChurnShape>,
}

impl TryFrom<UncheckedShape> for Shape {
    type Error = Conflict;

    fn try_from(
        UncheckedShape { name, dense, rows, hotness, ragged, pooling, sequences, churn }: UncheckedShape,
    ) -> Result<Self, Conflict> {
        let shape = Self { name, dense, rows, hotness, ragged, pooling, sequences, churn };
        shape.validate().map(|()| shape)
    }
}

fn default_pooling() -> Pooling {
    Pooling::Sum
}

/// The built-in shapes.
const BUILT_IN: [(&str, &str); 4] = [
    ("churn", include_str!("../shapes/churn.toml")),
    ("dlrm", include_str!("../shapes/dlrm.toml")),
    ("dlrm-dcnv2", include_str!("../shapes/dlrm-dcnv2.toml")),
    ("sequences", include_str!("../shapes/sequences.toml")),
];

impl Shape {
    /// Loads a built-in shape by its name, or the one in a file.
    ///
    /// # Errors
    /// As [`read_text`]; [`Error::Unsuitable`] if there is none; [`Error::Document`] if it is not a shape.
    pub fn load(name_or_path: &str) -> Result<Self> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return Self::from_toml(name, text);
        }
        let path = Path::new(name_or_path);
        if !path.exists() {
            let known = BUILT_IN.map(|(name, _)| name);
            let what = format!(
                "`{name_or_path}` is neither a file nor a built-in shape ({}){}",
                known.join(", "),
                did_you_mean(name_or_path, known)
            );
            return Err(Error::unsuitable(path, what));
        }
        Self::from_toml(name_or_path, &read_text(path)?)
    }

    /// Returns the built-in shapes.
    pub fn built_in() -> impl Iterator<Item = Self> {
        BUILT_IN
            .iter()
            .map(|(name, text)| Self::from_toml(name, text).unwrap_or_else(|what| panic!("{what}")))
    }

    /// Parses the text of a shape file that is called `name` in messages.
    fn from_toml(name: &str, text: &str) -> Result<Self> {
        let document = Document::parse(name, text)?;
        let shape: UncheckedShape = document.read()?;
        Ok(Self::try_from(shape).map_err(|conflict| document.problem(&conflict))?)
    }

    fn validate(&self) -> Result<(), Conflict> {
        let conflict = |key: &str, message: String| Err(Conflict::new(key, message));
        if !self.hotness.is_empty() && self.hotness.len() != self.rows.len() {
            let (tables, own) = (self.rows.len(), self.hotness.len());
            let values = if own == 1 { "value" } else { "values" };
            let message = format!("hotness has {own} {values}, but rows has {tables}: give one per table");
            return conflict("hotness", message);
        }
        if self.rows.is_empty() && self.dense == 0 {
            return conflict("rows", "there are neither tables nor dense columns".into());
        }
        if self.dense > MAX_DENSE {
            return conflict(
                "dense",
                format!("{} dense columns exceed the limit of {MAX_DENSE}", self.dense),
            );
        }
        if let Some(at) = self.rows.iter().position(|&rows| rows == 0 || rows > MAX_ROWS) {
            let message = format!("a table has {} rows; it must have 1 to {MAX_ROWS}", self.rows[at]);
            return conflict(&format!("rows.{at}"), message);
        }
        if let Some(at) = self.hotness.iter().position(|&hotness| hotness == 0 || hotness > HOTNESS_MAX) {
            let message = format!("a hotness of {} is not within 1 to {HOTNESS_MAX}", self.hotness[at]);
            return conflict(&format!("hotness.{at}"), message);
        }
        (0..)
            .zip(&self.sequences)
            .try_for_each(|(number, sequence)| self.validate_sequence(number, sequence))?;
        self.churn.as_ref().map_or(Ok(()), |churn| self.validate_churn(churn))
    }

    fn validate_churn(
        &self,
        ChurnShape { columns, days, lifetime_days }: &ChurnShape,
    ) -> Result<(), Conflict> {
        let conflict = |key: &str, what: String| Err(Conflict::new(format!("churn.{key}"), what));
        if !(2..=DAYS_MAX).contains(days) {
            return conflict("days", format!("{days} days are not within 2 to {DAYS_MAX}"));
        }
        if !(1..=DAYS_MAX).contains(lifetime_days) {
            return conflict("lifetime_days", format!("{lifetime_days} days are not within 1 to {DAYS_MAX}"));
        }
        if columns.is_empty() {
            return conflict("columns", "churn needs a column".into());
        }
        for (at, name) in columns.iter().enumerate() {
            let key = format!("columns.{at}");
            if self.column(name).is_none() {
                let last = self.rows.len();
                return conflict(&key, format!("there is no column `{name}`: columns are C1 to C{last}"));
            }
            if columns[..at].contains(name) {
                return conflict(&key, format!("{name} is listed twice"));
            }
            if self.sequences.iter().any(|sequence| sequence.query.contains(name)) {
                let what =
                    format!("{name} is in the query of a sequence, whose categories cannot come and go");
                return conflict(&key, what);
            }
        }
        Ok(())
    }

    fn validate_sequence(&self, number: usize, sequence: &SequenceShape) -> Result<(), Conflict> {
        let SequenceShape { query, max } = sequence;
        let conflict = |key: &str, what: String| Err(Conflict::new(format!("sequence.{number}.{key}"), what));
        if !(1..=HOTNESS_MAX).contains(max) {
            return conflict("max", format!("{max} positions are not within 1 to {HOTNESS_MAX}"));
        }
        if query.is_empty() {
            return conflict("query", "a sequence needs a column in its query".into());
        }
        for (at, name) in query.iter().enumerate() {
            let key = format!("query.{at}");
            let Some(column) = self.column(name) else {
                let last = self.rows.len();
                return conflict(&key, format!("there is no column `{name}`: columns are C1 to C{last}"));
            };
            if self.ragged || self.hotness_of(column) != 1 {
                let what =
                    format!("{name} must have one id in every sample: a hotness of 1, and no ragged bags");
                return conflict(&key, what);
            }
            if query[..at].contains(name) {
                return conflict(&key, format!("{name} is in the query twice"));
            }
        }
        Ok(())
    }

    /// Returns the number of a column, from 0, by its name.
    fn column(&self, name: &str) -> Option<usize> {
        (0..self.rows.len()).find(|&column| column_name(column) == name)
    }

    /// Returns the numbers of the columns whose categories come and go.
    pub(crate) fn churning(&self) -> Vec<usize> {
        let columns = self.churn.iter().flat_map(|churn| &churn.columns);
        columns.filter_map(|name| self.column(name)).collect()
    }

    /// Returns the categories that each categorical column of the schema has at a time: at most `cap`.
    pub(crate) fn categories(&self, cap: Option<u64>) -> Vec<u64> {
        let of = |column: usize| cap.map_or(self.rows[column], |cap| self.rows[column].min(cap));
        (0..self.rows.len()).chain(self.queries().concat()).map(of).collect()
    }

    /// Returns the numbers of the columns of each sequence's query.
    pub(crate) fn queries(&self) -> Vec<Vec<usize>> {
        let query =
            |sequence: &SequenceShape| sequence.query.iter().filter_map(|name| self.column(name)).collect();
        self.sequences.iter().map(query).collect()
    }

    /// Returns the maximum number of ids per bag of a column.
    pub fn hotness_of(&self, column: usize) -> u32 {
        self.hotness.get(column).copied().unwrap_or(1)
    }

    /// Returns the ids per sample over all columns, if bags have fixed sizes and there are no sequences.
    pub fn ids(&self) -> u64 {
        (0..self.rows.len()).map(|column| u64::from(self.hotness_of(column))).sum()
    }

    /// Returns the schema of this shape, with tables of at most `rows_cap` rows. The columns of sequences come last.
    pub fn schema(&self, rows_cap: Option<u64>) -> Schema {
        let transform = DenseTransform::plain(DenseFunction::MlperfLog);
        let (categories, churning) = (self.categories(rows_cap), self.churning());
        let categorical = |column: usize| {
            let is_open = churning.contains(&column);
            let hotness = self.hotness_of(column);
            Categorical {
                name: column_name(column),
                rows: (!is_open).then(|| categories[column]),
                hotness: if self.ragged { Hotness::Ragged { max: hotness } } else { Hotness::Fixed(hotness) },
                pooling: self.pooling,
                vocabulary: if is_open { VocabularyKind::Open } else { VocabularyKind::Identity },
                weighted: false,
                shares: None,
            }
        };
        let mut categorical: Vec<_> = (0..self.rows.len()).map(categorical).collect();
        let mut sequences = Vec::new();
        for ((number, query), &SequenceShape { max, .. }) in (1..).zip(self.queries()).zip(&self.sequences) {
            let name = format!("S{number}");
            let of_query = |&column: &usize| Categorical {
                name: format!("{name}_{}", categorical[column].name),
                hotness: Hotness::Ragged { max },
                shares: Some(categorical[column].name.clone()),
                ..categorical[column].clone()
            };
            let attributes: Vec<_> = query.iter().map(of_query).collect();
            let columns = attributes.iter().map(|column| column.name.clone()).collect();
            categorical.extend(attributes);
            sequences.push(Sequence { name, columns, max, keep: Keep::Last });
        }
        Schema {
            labels: vec![Label::new("label")],
            weight: None,
            dense: (1..=self.dense).map(|column| Dense { name: format!("I{column}"), transform }).collect(),
            dense_dtype: DenseDtype::F16,
            sequences,
            categorical,
        }
    }
}

/// Returns the name of the column of a table, whose number counts from 0.
fn column_name(column: usize) -> String {
    format!("C{}", column + 1)
}

/// Counting frequencies takes nine bytes per row, so this bounds memory to 36 GiB per table.
const MAX_ROWS: u64 = 1 << 32;
/// Each dense column has a name, and so takes memory although no line of the file describes it.
const MAX_DENSE: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_schema;

    #[test]
    fn the_json_schema_says_what_the_types_say() {
        let schema = json_schema::schema::<UncheckedShape>("shape");
        json_schema::assert_valid(&schema);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = json_schema::text(&schema);
        let test = "-p rankine-reader --lib shape";
        json_schema::assert_written(&root, &json_schema::document("shape"), &text, test);
        let violation = |text: &str| json_schema::violation(&json_schema::json(text), &schema);
        let shape = "name = \"x\"\ndense = 2\nrows = [5, 100]\n";
        let built_in = BUILT_IN.map(|(_, text)| text);
        for right in
            [&built_in[..], &[shape, &format!("{shape}hotness = [1, 4]\npooling = \"mean\"")]].concat()
        {
            Shape::from_toml("x.toml", right).unwrap();
            assert_eq!(violation(right), None, "{right}");
        }
        for wrong in [
            "name = \"x\"\ndense = 2",
            "name = \"x\"\ndense = 65537\nrows = []",
            "name = \"x\"\ndense = 2\nrows = [5, 0]",
            &format!("{shape}hotness = [0, 1]"),
            &format!("{shape}hotness = [1, 65537]"),
            &format!("{shape}ragged = 1"),
            &format!("{shape}pooling = \"max\""),
            &format!("{shape}hotnes = [1, 1]"),
            &format!("{shape}[[sequence]]\nquery = [\"C1\"]"),
            &format!("{shape}[[sequence]]\nquery = [\"C1\"]\nmax = 0"),
            &format!("{shape}[churn]\ncolumns = [\"C1\"]\ndays = 1\nlifetime_days = 1"),
            &format!("{shape}[churn]\ncolumns = [\"C1\"]\ndays = 2"),
        ] {
            Shape::from_toml("x.toml", wrong).unwrap_err();
            assert!(violation(wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn a_shape_gives_its_columns_names_rows_and_bags() {
        let text = "name='x'\ndense=2\nrows=[5,100,7]\nhotness=[1,4,2]\nragged=true\npooling='mean'";
        let shape = Shape::from_toml("x.toml", text).unwrap();
        let schema = shape.schema(Some(10));
        assert!(schema.names().eq(["label", "I1", "I2", "C1", "C2", "C3"]));
        let columns: Vec<_> =
            schema.categorical.iter().map(|column| (column.rows, column.hotness, column.pooling)).collect();
        let ragged = |max| Hotness::Ragged { max };
        let mean = Pooling::Mean;
        assert_eq!(
            columns,
            [(Some(5), ragged(1), mean), (Some(10), ragged(4), mean), (Some(7), ragged(2), mean)]
        );
        let rows =
            |schema: Schema| schema.categorical.iter().filter_map(|column| column.rows).collect::<Vec<_>>();
        assert_eq!(rows(shape.schema(None)), [5, 100, 7]);
        let fixed = Shape { ragged: false, ..shape }.schema(None);
        assert_eq!(fixed.categorical[1].hotness, Hotness::Fixed(4));
        assert_eq!(fixed.dense_dtype, DenseDtype::F16);
        assert_eq!(fixed.dense[0].transform, DenseTransform::plain(DenseFunction::MlperfLog));
        let plain = Shape::from_toml("x.toml", "name='x'\ndense=0\nrows=[5,6]").unwrap();
        assert_eq!((plain.pooling, plain.ragged, plain.ids()), (Pooling::Sum, false, 2));
    }

    #[test]
    fn a_sequence_has_the_rows_of_its_query() {
        let schema = Shape::load("sequences").unwrap().schema(Some(5000));
        schema.validate().unwrap();
        let [Sequence { name, columns, max, .. }] = &schema.sequences[..] else { panic!("one sequence") };
        assert_eq!((name.as_str(), &columns[..], *max), ("S1", &["S1_C1".into(), "S1_C2".into()][..], 50));
        let of =
            |column: usize| (schema.categorical[column].rows.unwrap(), schema.categorical[column].hotness);
        assert_eq!([of(0), of(1)], [(5000, Hotness::Fixed(1)), (1000, Hotness::Fixed(1))]);
        assert_eq!([of(3), of(4)], [5000, 1000].map(|rows| (rows, Hotness::Ragged { max: 50 })));
        assert_eq!(schema.categorical[4].shares.as_deref(), Some("C2"));
    }

    #[test]
    fn columns_with_churn_have_open_vocabularies() {
        let shape = Shape::load("churn").unwrap();
        let schema = shape.schema(Some(9000));
        schema.validate().unwrap();
        let tables: Vec<_> = schema.categorical.iter().map(Categorical::table).collect();
        assert_eq!(tables, ["keys (open)", "keys (open)", "100 rows (identity)"]);
        assert_eq!(shape.categories(Some(9000)), [9000, 5000, 100]);
        let text = serde_json::to_string(&shape).unwrap();
        assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape);
    }

    #[test]
    fn the_built_in_shapes_are_the_published_ones() {
        let dlrm = Shape::load("dlrm").unwrap();
        assert_eq!((dlrm.rows.len(), dlrm.rows.iter().sum::<u64>()), (26, 187_767_399));
        let dcnv2 = Shape::load("dlrm-dcnv2").unwrap();
        assert_eq!((dcnv2.rows.len(), dcnv2.rows.iter().sum::<u64>()), (26, 204_184_588));
        assert_eq!(dcnv2.hotness.iter().sum::<u32>(), 214);
        let error = Shape::load("dlmr").unwrap_err().to_string();
        assert!(
            error.ends_with("built-in shape (churn, dlrm, dlrm-dcnv2, sequences): did you mean `dlrm`?"),
            "{error}"
        );
        let sequence = |keys: &str| {
            format!("name='x'\ndense=1\nrows=[9,8]\nhotness=[1,1]\nragged=false\n[[sequence]]\n{keys}")
        };
        let churn = |keys: &str| format!("name='x'\ndense=1\nrows=[9,8]\n[churn]\n{keys}");
        for (bad, expected) in [
            ("", "x.toml: missing key `name`"),
            ("name='x'\ndense=1\nrow=[1]", "x.toml:3:1: unknown key `row`\n  |\n3 | row=[1]\n  | ^^^\n"),
            ("name='x'\ndense=1\nrow=[1]", "did you mean `rows`?"),
            ("name='x'\ndense=1\nrows=[1]\npooling='men'", "unknown value `men` for `pooling`"),
            ("name='x'\ndense=-1\nrows=[1]", "`dense`: expected a whole number of 0 or more, found -1"),
            ("name='x'\ndense=1\nrows=[3, 0]", "x.toml:3:10: a table has 0 rows"),
            (
                "name='x'\ndense=1\nrows=[1]\nhotness=[1,1]",
                "x.toml:4:9: hotness has 2 values, but rows has 1: give one per table",
            ),
            ("name='x'\ndense=0\nrows=[]", "neither tables nor dense"),
            ("name='x'\ndense=1\nrows=[4294967297]", "must have 1 to 4294967296"),
            ("name='x'\ndense=1\nrows=[1]\nhotness=[0]", "x.toml:4:10: a hotness of 0"),
            ("name='x'\ndense=1\nrows=[1]\nhotness=[65537]", "within 1 to 65536"),
            ("name='x'\ndense=1\nrows=[1]\nhotness=[4294967296]", "from 0 to 4294967295"),
            ("name='x'\ndense=65537\nrows=[1]", "the limit of 65536"),
            (&sequence("query=['C1']\nmax=0"), "x.toml:8:5: 0 positions are not within 1 to 65536"),
            (
                &churn("columns=['C1']\ndays=1\nlifetime_days=5"),
                "x.toml:6:6: 1 days are not within 2 to 10000",
            ),
            (
                &churn("columns=['C1']\ndays=9\nlifetime_days=0"),
                "x.toml:7:15: 0 days are not within 1 to 10000",
            ),
            (&churn("columns=[]\ndays=9\nlifetime_days=5"), "x.toml:5:9: churn needs a column"),
            (
                &churn("columns=['C2', 'C3']\ndays=9\nlifetime_days=5"),
                "x.toml:5:16: there is no column `C3`: columns are C1 to C2",
            ),
            (&churn("columns=['C1', 'C1']\ndays=9\nlifetime_days=5"), "C1 is listed twice"),
            (
                &(churn("columns=['C1']\ndays=9\nlifetime_days=5") + "\n[[sequence]]\nquery=['C1']\nmax=5"),
                "C1 is in the query of a sequence",
            ),
            (&sequence("query=[]\nmax=5"), "x.toml:7:7: a sequence needs a column in its query"),
            (
                &sequence("query=['C1','C3']\nmax=5"),
                "x.toml:7:13: there is no column `C3`: columns are C1 to C2",
            ),
            (&sequence("query=['C1','C1']\nmax=5"), "C1 is in the query twice"),
            (
                &sequence("query=['C2']\nmax=5").replace("hotness=[1,1]", "hotness=[1,2]"),
                "C2 must have one id",
            ),
            (
                &sequence("query=['C2']\nmax=5").replace("false", "true"),
                "C2 must have one id in every sample",
            ),
        ] {
            let error = Shape::from_toml("x.toml", bad).unwrap_err().to_string();
            assert!(error.contains(expected), "{bad}\n{error}");
        }
        for good in
            ["name='x'\ndense=65536\nrows=[]", "name='x'\ndense=0\nrows=[4294967296]\nhotness=[65536]"]
        {
            assert!(Shape::from_toml("x.toml", good).is_ok(), "{good}");
        }
        let many = r#"{"name": "x", "dense": 18446744073709551615, "rows": [18446744073709551615]}"#;
        let error = serde_json::from_str::<Shape>(many).unwrap_err().to_string();
        assert!(error.contains("dense columns exceed the limit of 65536"), "{error}");
    }
}

//! The policy for ids outside their tables, column by column.

use rankine_embedding::DynamicRows;
use rankine_reader::schema::{Categorical, VocabularyKind};
use rankine_reader::{OutOfRange, Schema, vocabulary};

use super::{Conflict, IdPolicy, Job, Table};

impl Job {
    /// Returns the rule for the ids of each categorical column. Columns with the same problem share one conflict.
    #[doc(hidden)]
    pub fn id_rules(&self, schema: &Schema) -> Result<Vec<OutOfRange>, Vec<Conflict>> {
        let mut rules = Vec::new();
        let mut problems: Vec<(IdProblem, Vec<&str>)> = Vec::new();
        for column in &schema.categorical {
            match id_rule(self, column) {
                Ok(rule) => rules.push(rule),
                Err(problem) => match problems.iter_mut().find(|(known, _)| *known == problem) {
                    Some((_, columns)) => columns.push(&column.name),
                    None => problems.push((problem, vec![&column.name])),
                },
            }
        }
        if problems.is_empty() {
            return Ok(rules);
        }
        Err(problems.iter().map(|(problem, columns)| problem.conflict(columns)).collect())
    }
}

impl Job {
    /// Returns the rows of the table of a `[[table]]`, if they are given to ids as they come.
    #[doc(hidden)]
    pub fn dynamic_rows(&self, table: &Table) -> Option<DynamicRows> {
        let policy = table.ids_out_of_range.unwrap_or(self.guard.ids_out_of_range);
        table.rows.as_ref().map(|rows| rows.of_table(policy))
    }

    /// Returns a conflict for each dynamic table, for something that does not support
    /// them.
    #[doc(hidden)]
    pub fn dynamic_conflicts(&self, message: impl Fn(&str) -> String) -> Vec<Conflict> {
        let tables = self.tables.iter().enumerate().filter(|(_, table)| table.rows.is_some());
        tables
            .map(|(number, table)| Conflict::new(format!("table.{number}.rows"), message(&table.name())))
            .collect()
    }
}

/// Why ids out of range have no row to be mapped to.
#[derive(PartialEq, Eq)]
enum IdProblem {
    /// Table `table` of the job names a row that its columns do not have.
    OovRowTooLarge { table: usize, oov_row: u64, rows: u64 },
    /// The column has no row for unknown categories. `key` is the policy that needs one.
    NoOovRow { key: String },
}

impl IdProblem {
    fn conflict(&self, columns: &[&str]) -> Conflict {
        let (named, have) = match columns {
            [column] => (format!("column {column}"), "has"),
            _ => (format!("columns {}", columns.join(", ")), "have"),
        };
        match self {
            Self::OovRowTooLarge { table, oov_row, rows } => Conflict::new(
                format!("table.{table}.oov_row"),
                format!("oov_row {oov_row} is out of range: the table of {named} has {rows} rows"),
            ),
            Self::NoOovRow { key } => Conflict::new(
                key,
                format!(
                    "{named} {have} no exact vocabulary, and so no row for unknown categories: name one with \
                     oov_row of a [[table]], or skip such ids with \"skip\""
                ),
            ),
        }
    }
}

fn id_rule(job: &Job, column: &Categorical) -> Result<OutOfRange, IdProblem> {
    // A bucket is always a row, and no key of an open vocabulary is out of range.
    let Some(rows) = column.rows.filter(|_| column.buckets().is_none()) else { return Ok(OutOfRange::Fail) };
    let own = job.table_of(&column.name);
    // Any id can have a row. The policy says what becomes of ids once there is none left.
    if own.is_some_and(|(_, table)| table.rows.is_some()) {
        return Ok(OutOfRange::Fail);
    }
    let (policy, key) = match own.and_then(|(number, table)| Some((number, table.ids_out_of_range?))) {
        Some((number, policy)) => (policy, format!("table.{number}.ids_out_of_range")),
        None => (job.guard.ids_out_of_range, "guard.ids_out_of_range".to_owned()),
    };
    match policy {
        IdPolicy::Fail => Ok(OutOfRange::Fail),
        IdPolicy::Skip => Ok(OutOfRange::Leave),
        IdPolicy::Oov => {
            match (own.and_then(|(table, own)| Some((table, own.oov_row?))), &column.vocabulary) {
                (Some((table, oov_row)), _) if oov_row >= rows => {
                    Err(IdProblem::OovRowTooLarge { table, oov_row, rows })
                }
                (Some((_, row)), _) => Ok(OutOfRange::Row(row)),
                (None, VocabularyKind::Exact { .. }) => Ok(OutOfRange::Row(vocabulary::OUT_OF_VOCABULARY)),
                (None, _) => Err(IdProblem::NoOovRow { key }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rankine_reader::schema::{DenseDtype, Hotness, Label, Pooling};

    use super::*;

    #[test]
    fn no_key_of_an_open_vocabulary_is_out_of_range() {
        let column = |name: &str, rows, vocabulary| Categorical {
            name: name.into(),
            rows,
            hotness: Hotness::Fixed(1),
            pooling: Pooling::Sum,
            vocabulary,
            weighted: false,
            shares: None,
        };
        let schema = Schema {
            labels: vec![Label::new("click")],
            weight: None,
            dense: Vec::new(),
            dense_dtype: DenseDtype::F32,
            sequences: Vec::new(),
            categorical: vec![
                column("user", None, VocabularyKind::Open),
                column("film", Some(9), VocabularyKind::Exact { min_count: 1 }),
                column("hour", Some(24), VocabularyKind::Identity),
            ],
        };
        let rules = |policy: &str| {
            let set = format!("guard.ids_out_of_range='{policy}'");
            let job = Job::from_toml("job.toml", crate::tests::SOUND, &[set]).unwrap();
            job.id_rules(&schema).map_err(|conflicts| conflicts[0].to_string())
        };
        assert_eq!(rules("skip"), Ok(vec![OutOfRange::Fail, OutOfRange::Leave, OutOfRange::Leave]));
        let refused = rules("oov").unwrap_err();
        assert!(
            refused.starts_with("guard.ids_out_of_range: column hour has no exact vocabulary"),
            "{refused}"
        );
    }
}

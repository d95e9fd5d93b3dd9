//! From the `[[attention]]` sections of a job to the attention of its model.

use rankine_job::{self as job, Conflict, Job};
use rankine_reader::Schema;
use rankine_reader::schema::Sequence;

use super::known;
use crate::attention::{AttentionSpec, AttentionUnit, POSITION_ELEMENTS_MAX};

/// Returns the attention of a job's model; `dim_of` returns the elements of the vectors of a categorical column. Adds
/// what does not suit the columns to `conflicts`.
pub(super) fn attention(
    job: &Job,
    schema: &Schema,
    dim_of: impl Fn(usize) -> usize,
    conflicts: &mut Vec<Conflict>,
) -> Vec<AttentionSpec> {
    let mut found = Vec::new();
    for (number, attention) in job.attention.iter().enumerate() {
        let key = |key: &str| format!("attention.{number}.{key}");
        let Some(sequence) = schema.sequences.iter().find(|one| one.name == attention.sequence()) else {
            let names: Vec<_> = schema.sequences.iter().map(|sequence| sequence.name.as_str()).collect();
            let wanted = attention.sequence();
            let what = format!("the dataset has no sequence `{wanted}`{}", known(wanted, "it has", &names));
            conflicts.push(Conflict::new(key("sequence"), what));
            continue;
        };
        let columns: Vec<_> = sequence.columns.iter().filter_map(|name| number_of(schema, name)).collect();
        let query = query(job, schema, attention, &mut |message| {
            conflicts.push(Conflict::new(key("query"), message));
        });
        let query_suits = match attention {
            job::Attention::Mean(_) => Ok(()),
            job::Attention::Din(_) | job::Attention::Dot(_) => {
                check_query(schema, sequence, (&columns, &query), &dim_of)
            }
        };
        if let (Err(message), true) = (query_suits, query.len() == attention.query().len()) {
            conflicts.push(Conflict::new(key("query"), message));
        }
        let unit = match attention {
            job::Attention::Din(din) => {
                let hidden = din.hidden.iter().map(|width| width.get() as usize).collect();
                AttentionUnit::Din { query, hidden }
            }
            job::Attention::Dot(_) => AttentionUnit::Dot { query },
            job::Attention::Mean(_) => AttentionUnit::Mean,
        };
        let length_max = sequence.max as usize;
        let elements: usize = columns.iter().map(|&column| dim_of(column)).sum();
        if attention.position_embedding() && length_max * elements > POSITION_ELEMENTS_MAX {
            let message = format!(
                "the vectors of {length_max} positions of {elements} elements are too large: at most \
                 {POSITION_ELEMENTS_MAX} elements in all are possible; set position_embedding = false, or convert \
                 with a smaller max of the sequence"
            );
            conflicts.push(Conflict::new(key("position_embedding"), message));
        }
        found.push(AttentionSpec {
            sequence: sequence.name.clone(),
            features: columns,
            length_max,
            unit,
            position_embedding: attention.position_embedding().then_some(sequence.keep),
        });
    }
    found
}

/// Returns the numbers of the columns of a query; `refuse` takes what is wrong with others.
fn query(
    job: &Job,
    schema: &Schema,
    attention: &job::Attention,
    refuse: &mut dyn FnMut(String),
) -> Vec<usize> {
    let attended = |column: &str| {
        let of = schema.sequences.iter().find(|one| one.columns.iter().any(|other| other == column))?;
        job.attention.iter().any(|attention| attention.sequence() == of.name).then_some(&of.name)
    };
    let mut numbers = Vec::new();
    for name in attention.query() {
        let Some(number) = number_of(schema, name) else {
            let names: Vec<_> = schema.categorical.iter().map(|column| column.name.as_str()).collect();
            refuse(format!(
                "the dataset has no categorical column `{name}`{}",
                known(name, "it has", &names)
            ));
            continue;
        };
        if let Some(sequence) = attended(name) {
            refuse(format!(
                "the column `{name}` is part of the sequence `{sequence}`, which has no vector of its own: name \
                 columns outside of sequences"
            ));
            continue;
        }
        numbers.push(number);
    }
    numbers
}

/// Checks that a query has a vector for each column of a sequence.
fn check_query(
    schema: &Schema,
    sequence: &Sequence,
    (columns, query): (&[usize], &[usize]),
    dim_of: &impl Fn(usize) -> usize,
) -> Result<(), String> {
    if columns.len() != query.len() {
        return Err(format!(
            "the query has {} {}, and the sequence `{}` has {}: name one for each of `{}`, in this order",
            query.len(),
            if query.len() == 1 { "column" } else { "columns" },
            sequence.name,
            columns.len(),
            sequence.columns.join("`, `")
        ));
    }
    match columns.iter().zip(query).find(|(column, query)| dim_of(**column) != dim_of(**query)) {
        None => Ok(()),
        Some((&column, &query)) => Err(format!(
            "vectors of `{}` have {} elements, and vectors of `{}` have {}: let both use one [[table]], or tables of \
             the same dim",
            schema.categorical[query].name,
            dim_of(query),
            schema.categorical[column].name,
            dim_of(column)
        )),
    }
}

fn number_of(schema: &Schema, name: &str) -> Option<usize> {
    schema.categorical.iter().position(|column| column.name == name)
}

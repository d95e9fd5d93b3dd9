//! The ids of dynamic tables: in a saved model, two tensors per table behind all
//! weights, `keys.TABLE` with the id of each row, and `has_key.TABLE`, which is 1 where a row has one.

use std::ops::Range;

use rankine_embedding::membership::{SavedKeys, SavedMembership};
use rankine_embedding::{DynamicRows, Membership};
use rankine_model::ModelSpec;
use safetensors::tensor;

/// A tensor of ids, and its place behind the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyTensor {
    pub(super) name: String,
    pub(super) dtype: tensor::Dtype,
    pub(super) shape: [usize; 1],
    /// Where its bytes are; weights end at the start of the first.
    pub(super) bytes: Range<u64>,
}

impl KeyTensor {
    /// Returns the tensors of all such tables of a model whose weights end there.
    pub(super) fn all_of(spec: &ModelSpec, weights_end: u64) -> Vec<Self> {
        let mut end = weights_end;
        let mut tensors = Vec::new();
        for (table, rows) in dynamic_tables(spec) {
            let name = &spec.tables[table].name;
            let rows = rows.table_rows();
            for (name, dtype, bytes) in [
                (format!("keys.{name}"), tensor::Dtype::U64, 8 * rows),
                (format!("has_key.{name}"), tensor::Dtype::U8, rows),
            ] {
                let begin = end;
                end = end.saturating_add(bytes);
                tensors.push(Self { name, dtype, shape: [rows as usize], bytes: begin..end });
            }
        }
        tensors
    }
}

/// Returns the dynamic tables, with their numbers.
fn dynamic_tables(spec: &ModelSpec) -> impl Iterator<Item = (usize, DynamicRows)> {
    let tables = spec.tables.iter().enumerate();
    tables.filter_map(|(number, table)| Some((number, table.dynamic?)))
}

/// Sets the bytes of the two tensors of a table. Ids that have expired have no row any more.
pub(super) fn put(membership: &Membership, keys: &mut [u8], has_key: &mut [u8]) {
    let rows = keys.chunks_exact_mut(8).zip(has_key);
    for (key, (bytes, has_key)) in membership.live_keys_of_rows().zip(rows) {
        bytes.copy_from_slice(&key.unwrap_or(0).to_le_bytes());
        *has_key = key.is_some().into();
    }
}

/// Returns the memberships of a model's tables, with the tables' numbers, from the bytes of its tensors.
///
/// # Errors
/// If they are not the ids of these tables.
pub(super) fn read(spec: &ModelSpec, tensors: &[&[u8]]) -> Result<Vec<(usize, Membership)>, String> {
    let mut memberships = Vec::new();
    for ((table, rows), tensors) in dynamic_tables(spec).zip(tensors.chunks_exact(2)) {
        let mut saved = SavedKeys::default();
        for (row, (bytes, &has_key)) in (0..).zip(tensors[0].chunks_exact(8).zip(tensors[1])) {
            if has_key == 0 {
                continue;
            }
            saved.rows.push(row);
            saved.keys.push(bytes.iter().rev().fold(0, |key, &byte| key << 8 | u64::from(byte)));
        }
        saved.scores = vec![0; saved.rows.len()];
        let mut membership = Membership::new(rows);
        let restored = membership.restore(&SavedMembership { keys: saved, ..SavedMembership::default() });
        restored.map_err(|wrong| format!("the ids of table {}: {wrong}", spec.tables[table].name))?;
        memberships.push((table, membership));
    }
    Ok(memberships)
}

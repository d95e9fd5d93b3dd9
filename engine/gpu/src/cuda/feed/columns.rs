//! The categorical columns of a schema, as the kernels that index and unpack blocks read them.

use rankine_cuda::kernels::IdColumn;
use rankine_reader::Schema;
use rankine_reader::schema::Hotness;

/// Returns the columns of fixed hotness, with their numbers among all columns, but without their positions in a batch.
pub(in crate::cuda) fn fixed_columns(schema: &Schema) -> impl Iterator<Item = (usize, IdColumn)> {
    columns(schema).filter_map(|(number, hotness, column)| match hotness {
        Hotness::Fixed(_) => Some((number, column)),
        Hotness::Ragged { .. } => None,
    })
}

/// Returns the ragged columns in the same way.
pub(in crate::cuda) fn ragged_columns(schema: &Schema) -> impl Iterator<Item = (usize, IdColumn)> {
    let ragged = columns(schema).filter(|(_, hotness, _)| matches!(hotness, Hotness::Ragged { .. }));
    ragged
        .enumerate()
        .map(|(index, (number, _, column))| (number, IdColumn { index: index as u32, ..column }))
}

fn columns(schema: &Schema) -> impl Iterator<Item = (usize, Hotness, IdColumn)> {
    let mut next = schema.labels.len() + schema.weight.iter().len() + schema.dense.len();
    schema.categorical.iter().enumerate().map(move |(number, column)| {
        let stream = next;
        // Sizes, starts, ids, and perhaps weights.
        next += 3 + usize::from(column.weighted);
        let id_column = IdColumn {
            // A column with an open vocabulary has none.
            rows: column.rows.unwrap_or(IdColumn::ANY_ID),
            stream: stream as u32,
            hotness: column.hotness.max(),
            ids: 0,
            offsets: 0,
            index: 0,
            long_ids: IdColumn::NONE,
        };
        (number, column.hotness, id_column)
    })
}

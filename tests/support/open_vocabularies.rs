//! Open vocabularies against exact ones: the same job, with dynamic tables that have a row for every category.

use libtest_mimic::Failed;

use super::{Place, json_file, told};

/// Returns the setting of a job that makes a table of each column of a converted dataset with an open vocabulary
/// dynamic. The tables have rows for all categories, and some more: the shards of a table are not equally full.
pub(crate) fn dynamic_tables(place: &Place, data: &str, admit_after: impl Fn(&str) -> u64) -> String {
    let conversion = json_file(&place.path(data).join("conversion.json"));
    let columns = conversion["columns"].as_object().expect("a conversion has columns");
    let table = |(column, of_column): (&String, &serde_json::Value)| {
        let categories = of_column["keys"]["distinct_categories"].as_u64()?;
        let (capacity, admit_after) = (categories + categories / 8, admit_after(column));
        Some(format!(
            "{{ columns = ['{column}'], rows = {{ dynamic = true, capacity = {capacity}, \
             admit_after = {admit_after}, evict = 'lru' }} }}"
        ))
    };
    format!("table=[{}]", columns.iter().filter_map(table).collect::<Vec<_>>().join(", "))
}

/// Compares the AUCs of splits, and fails if open vocabularies are worse on average than exact ones by more than the
/// standard error of the latter.
pub(crate) fn are_no_worse(what: &str, exact: &[f64], open: &[f64]) -> Result<(), Failed> {
    let mean = |aucs: &[f64]| aucs.iter().sum::<f64>() / aucs.len() as f64;
    let (of_exact, of_open, splits) = (mean(exact), mean(open), exact.len() as f64);
    let variance = exact.iter().map(|auc| (auc - of_exact).powi(2)).sum::<f64>() / (splits - 1.0);
    let error = (variance / splits).sqrt();
    told(&format!(
        "{what}: mean AUC {of_open:.5} with open vocabularies, {of_exact:.5} with exact ones, standard error \
         {error:.5}: {open:.5?}, {exact:.5?}"
    ));
    if of_open >= of_exact - error {
        Ok(())
    } else {
        Err(format!("{of_open:.5} with open vocabularies, {of_exact:.5} with exact ones").into())
    }
}

//! Whether all processes have the same job and data.

use super::super::TrainError;
use crate::launch::ProcessGroup;

/// Compares a text of this process with that of the first one.
///
/// # Errors
/// [`TrainError::Device`] if they differ; [`TrainError::Processes`].
pub(in crate::training) fn same_everywhere(
    processes: &ProcessGroup,
    what: &str,
    text: &str,
) -> Result<(), TrainError> {
    // As much as can be sent; a difference behind that is still a difference.
    const BYTES_MAX: usize = 1 << 19;
    let own = &text.as_bytes()[..text.len().min(BYTES_MAX)];
    let sum = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
    let value = [&sum.to_le_bytes()[..], own].concat();
    let of_first = processes.of_first(&format!("the {what} of rank 0"), &value)?;
    if of_first == value {
        return Ok(());
    }
    let there = String::from_utf8_lossy(of_first.get(8..).unwrap_or_default()).into_owned();
    let here = String::from_utf8_lossy(own);
    let differ = here.lines().zip(there.lines()).find(|(here, there)| here != there);
    let difference = match differ {
        Some((here, there)) => format!("`{}`, not `{}`", here.trim(), there.trim()),
        None if here.len() > there.len() => "it has additional lines".into(),
        None if here.len() < there.len() => "it lacks lines".into(),
        None => "they differ in later lines".into(),
    };
    Err(TrainError::Device(format!(
        "the {what} of rank {} differs from that of rank 0: {difference}; give all processes the same {what}",
        processes.process()
    )))
}

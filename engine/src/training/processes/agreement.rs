//! Whether all processes have the same job and data.

use rankine_launch::ProcessGroup;

use crate::training::error::{Disagreement, TrainError};

/// Compares a text of this process with that of the first one.
///
/// # Errors
/// [`TrainError::Disagreement`] if they differ; [`TrainError::Processes`].
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
    let of_first = processes.of_first(&format!("the {what} of process 0"), &value)?;
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
    let process = processes.process();
    Err(Disagreement::Differs { what: what.to_owned(), process, difference }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::in_group;

    /// What is said to each of the processes with these texts.
    fn said<const COUNT: usize>(texts: [&str; COUNT]) -> Vec<Option<String>> {
        in_group(COUNT, |group| {
            same_everywhere(group, "job", texts[group.process().0]).err().map(|error| error.to_string())
        })
    }

    #[test]
    fn the_first_difference_from_process_0_is_named() {
        let first = "seed = 1\n  rate = 0.5\n";
        assert_eq!(said([first, first, first]), [None, None, None]);
        let differs = |process: usize, how: &str| {
            let text = format!("the job of process {process} differs from that of process 0: {how}");
            Some(text + "; give all processes the same job")
        };
        assert_eq!(
            said([first, "seed = 1\n  rate = 0.25\n", "seed = 3\n  rate = 0.25\n"]),
            [None, differs(1, "`rate = 0.25`, not `rate = 0.5`"), differs(2, "`seed = 3`, not `seed = 1`")]
        );
        assert_eq!(
            said([first, "seed = 1\n  rate = 0.5\nclip = 1\n", "seed = 1\n"]),
            [None, differs(1, "it has additional lines"), differs(2, "it lacks lines")]
        );
        // Only the first 512 KiB are sent.
        let long = "#\n".repeat(1 << 18);
        assert_eq!(
            said([&format!("{long}a"), &format!("{long}a"), &format!("{long}b")]),
            [None, None, differs(2, "they differ in later lines")]
        );
    }
}

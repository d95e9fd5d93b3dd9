//! Reports tests that cannot run here, wholly or in part, as lines in a uniform format, which `.ci/run` counts.

use std::fmt::Display;
use std::io::Write;

/// Reports that the running test, or a case of it, is skipped.
pub(crate) fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    skipped_test(thread.name().unwrap_or("a test"), reason);
}

/// Reports that the named test is skipped, as `skipped: TEST: REASON`. The harness captures the output of `eprintln!`
/// but not of this function, so the line appears although the test passes.
pub(crate) fn skipped_test(test: &str, reason: impl Display) {
    let line = format!("skipped: {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

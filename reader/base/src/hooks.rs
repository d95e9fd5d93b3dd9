//! Environment variables with which the test suites rehearse failures. They act only in builds with the feature
//! `test-hooks`, which `cargo test` turns on, so that a variable left over in an environment cannot harm a training.

use std::ffi::OsString;

/// Makes one operation on checkpoint files fail: which one, and how, is in `engine/checkpoint/src/faults.rs`.
pub const FAULT: &str = "RANKINE_TEST_FAULT";
/// Bytes that copies of the state may take, instead of the free memory.
pub const COPY_BYTES: &str = "RANKINE_TEST_COPY_BYTES";
/// Lets the ranks of a job share GPUs.
pub const LOOPBACK: &str = "RANKINE_TEST_LOOPBACK";

/// Returns the value of a hook's variable; `None` in builds without hooks.
pub fn variable(name: &str) -> Option<OsString> {
    if cfg!(feature = "test-hooks") { std::env::var_os(name) } else { None }
}

/// Returns the hook variables that are set although this build ignores them.
pub fn ignored() -> impl Iterator<Item = &'static str> {
    let set = |name: &&str| !cfg!(feature = "test-hooks") && std::env::var_os(name).is_some();
    [FAULT, COPY_BYTES, LOOPBACK].into_iter().filter(set)
}

//! Environment variables that rehearse failures, for the test suites. They act only in builds with the feature
//! `test-hooks`, which `cargo test` turns on: a variable left over in somebody's environment must not harm a training.

use std::ffi::OsString;

/// Fails one operation on the files of checkpoints: see [`crate::checkpoint::Faulty::by_environment`].
pub(crate) const FAULT: &str = "RANKINE_TEST_FAULT";
/// Bytes that copies of the state may take, instead of what the memory has room for.
pub(crate) const COPY_BYTES: &str = "RANKINE_TEST_COPY_BYTES";
/// Lets the ranks of a job share GPUs.
pub(crate) const LOOPBACK: &str = "RANKINE_TEST_LOOPBACK";

/// The value of a hook's variable; none in builds without hooks.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    if cfg!(feature = "test-hooks") { std::env::var_os(name) } else { None }
}

/// The hooks' variables that are set and that this build ignores.
pub fn ignored() -> impl Iterator<Item = &'static str> {
    let set = |name: &&str| !cfg!(feature = "test-hooks") && std::env::var_os(name).is_some();
    [FAULT, COPY_BYTES, LOOPBACK].into_iter().filter(set)
}

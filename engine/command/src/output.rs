//! Results on stdout. `println!` would panic if the reader has left.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use super::error::CommandError;

/// Writes a text to stdout.
pub(crate) fn text(text: impl Display) -> Result<(), CommandError> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(CommandError::output)
}

/// Writes a value to stdout as indented JSON with a final line feed.
pub(crate) fn json(value: &impl Serialize) -> Result<(), CommandError> {
    text(pretty(value)? + "\n")
}

/// Returns a value as indented JSON.
pub(crate) fn pretty(value: &impl Serialize) -> Result<String, CommandError> {
    serde_json::to_string_pretty(value).map_err(|error| CommandError::output(error.into()))
}

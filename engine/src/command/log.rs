//! Log messages on stderr.

use std::env;
use std::io::{self, IsTerminal, Write};

use clap::ColorChoice;
use tracing_subscriber::filter::LevelFilter;

use super::{CommandError, Exit, stderr};

/// Environment variable with the lowest level of messages that are printed.
pub(crate) const VARIABLE: &str = "RANKINE_LOG";

/// Sends the library's events to stderr if they have at least the level in `RANKINE_LOG`, or else `default`. With
/// several processes, each line starts with the rank.
pub(crate) fn init(
    default: LevelFilter,
    color: ColorChoice,
    rank: Option<usize>,
) -> Result<(), CommandError> {
    let asked = env::var_os(VARIABLE).map(|text| text.to_string_lossy().into_owned());
    let level = level(asked.as_deref(), default)?;
    let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colored = match color {
        ColorChoice::Auto => io::stderr().is_terminal() && !no_color,
        ColorChoice::Always => true,
        ColorChoice::Never => false,
    };
    tracing_subscriber::fmt()
        .compact()
        .with_target(false)
        .with_max_level(level)
        .with_ansi(colored)
        .with_writer(move || Lines { rank })
        .init();
    Ok(())
}

/// Stderr; each line starts with the rank, if there are several.
struct Lines {
    rank: Option<usize>,
}

impl Write for Lines {
    /// Writes a whole line at once, so that lines of several processes do not mix. It never fails, since the logger
    /// would report the failure on stderr.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let prefix = self.rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
        stderr::write(&[prefix.as_bytes(), line].concat());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn level(text: Option<&str>, default: LevelFilter) -> Result<LevelFilter, CommandError> {
    match text.map(str::to_ascii_lowercase).as_deref() {
        None | Some("") => Ok(default),
        Some("info") => Ok(LevelFilter::INFO),
        Some("error") => Ok(LevelFilter::ERROR),
        Some("warn") => Ok(LevelFilter::WARN),
        Some("debug") => Ok(LevelFilter::DEBUG),
        Some("trace") => Ok(LevelFilter::TRACE),
        Some(other) => Err(CommandError::new(
            Exit::Usage,
            format!("{VARIABLE} is `{other}`: expected error, warn, info, debug or trace"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_parsed_and_typos_are_errors() {
        assert_eq!(level(None, LevelFilter::WARN).unwrap(), LevelFilter::WARN);
        assert_eq!(level(Some("DEBUG"), LevelFilter::WARN).unwrap(), LevelFilter::DEBUG);
        let error = level(Some("verbose"), LevelFilter::INFO).unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
        assert!(error.to_string().contains("RANKINE_LOG is `verbose`"), "{error}");
    }
}

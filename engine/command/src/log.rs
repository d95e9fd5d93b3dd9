//! Log messages on stderr.

use std::env;
use std::io::{self, IsTerminal, Write};

use clap::ColorChoice;
use rankine_topology::Process;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::records::{LogFormat, Records};
use super::{CommandError, Exit, stderr};

/// Environment variable with the lowest level of messages that are printed, or one for each crate.
pub(crate) const VARIABLE: &str = "RANKINE_LOG";

/// Sends the library's events to stderr if they have at least the level in `RANKINE_LOG`, or else `default`. With
/// several processes, each line starts with the process, or each object has it.
pub(crate) fn init(
    default: LevelFilter,
    (format, color): (LogFormat, ColorChoice),
    process: Option<Process>,
) -> Result<(), CommandError> {
    let asked = env::var_os(VARIABLE).map(|text| text.to_string_lossy().into_owned());
    let targets = targets(asked.as_deref(), default)?;
    if format == LogFormat::Json {
        stderr::write_records(process);
        let events = tracing_subscriber::fmt().with_ansi(false).event_format(Records { process });
        let events = events.with_max_level(LevelFilter::TRACE).with_writer(|| Lines { process: None });
        events.finish().with(targets).init();
        return Ok(());
    }
    let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colored = match color {
        ColorChoice::Auto => io::stderr().is_terminal() && !no_color,
        ColorChoice::Always => true,
        ColorChoice::Never => false,
    };
    tracing_subscriber::fmt()
        .compact()
        .with_target(false)
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(colored)
        .with_writer(move || Lines { process })
        .finish()
        .with(targets)
        .init();
    Ok(())
}

/// Stderr; each line starts with the process, if there are several.
struct Lines {
    process: Option<Process>,
}

impl Write for Lines {
    /// Writes a whole line at once, so that lines of several processes do not mix. It never fails, since the logger
    /// would report the failure on stderr.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let prefix = self.process.map_or_else(String::new, |process| format!("process {process}: "));
        stderr::write(&[prefix.as_bytes(), line].concat());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Parses a level, or a list such as `warn,rankine_reader=debug`.
fn targets(text: Option<&str>, default: LevelFilter) -> Result<Targets, CommandError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(Targets::new().with_default(default));
    };
    // Every word may be a target. If it is no crate of Rankine, it is a misspelled level.
    let known = |targets: &Targets| targets.iter().all(|(target, _)| target.starts_with("rankine"));
    text.parse().ok().filter(known).ok_or_else(|| {
        let what = format!("{VARIABLE} is `{text}`: expected error, warn, info, debug or trace");
        CommandError::new(Exit::Usage, what)
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn levels_are_parsed_and_typos_are_errors() {
        let level = |text, default| targets(text, default).unwrap().default_level();
        assert_eq!(level(None, LevelFilter::WARN), Some(LevelFilter::WARN));
        assert_eq!(level(Some("DEBUG"), LevelFilter::WARN), Some(LevelFilter::DEBUG));
        let of_crates = targets(Some("warn,rankine_reader=debug"), LevelFilter::INFO).unwrap();
        assert!(of_crates.would_enable("rankine_reader::io", &Level::DEBUG));
        assert!(!of_crates.would_enable("rankine_engine::training", &Level::INFO));
        let error = targets(Some("verbose"), LevelFilter::INFO).unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
        assert!(error.to_string().contains("RANKINE_LOG is `verbose`"), "{error}");
    }
}

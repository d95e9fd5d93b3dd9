//! Messages as JSON objects, one per line (`--log-format json`).

use std::fmt;

use clap::ValueEnum;
use jiff::Timestamp;
use rankine_topology::Process;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How messages on stderr are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line, with time, level and message
    Json,
}

/// A message.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'a> {
    /// In UTC.
    time: String,
    level: &'static str,
    message: &'a str,
    /// The process that says it, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<usize>,
    /// The exit code of the command, if the message says why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
}

impl<'a> Record<'a> {
    /// Makes a message of this moment.
    pub(crate) fn new(level: Level, message: &'a str, process: Option<Process>) -> Self {
        let level = match level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let process = process.map(|process| process.0);
        Self { time: Timestamp::now().to_string(), level, message, process, exit_code: None }
    }

    /// Adds the exit code of a command that failed.
    pub(crate) fn with_exit_code(self, code: u8) -> Self {
        Self { exit_code: Some(code), ..self }
    }

    /// Returns it as a line.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("a record is plain data") + "\n"
    }
}

/// Writes the events of libraries as records.
pub(crate) struct Records {
    pub(crate) process: Option<Process>,
}

impl<S, N> FormatEvent<S, N> for Records
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut message = Message(String::new());
        event.record(&mut message);
        to.write_str(&Record::new(*event.metadata().level(), &message.0, self.process).to_line())
    }
}

/// The message of an event, followed by its other fields.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}{}", self.0);
        } else {
            self.0 += &format!(" {field}={value:?}");
        }
    }
}

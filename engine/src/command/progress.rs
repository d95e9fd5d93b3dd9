//! How far a command has come, told on stderr: a bar on a terminal, now and then a plain line elsewhere.

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Plain lines come at most this often.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows the progress of one piece of work.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines { what: String, unit: &'static str, total: u64, began: Instant, last: Instant },
}

impl Progress {
    /// Work on `total` of some unit; `what` says in a word or two what is done.
    pub(crate) fn new(what: &str, unit: &'static str, total: u64, quiet: bool) -> Self {
        let now = Instant::now();
        let shown = if quiet {
            Shown::Nothing
        } else if io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let (position, rate) = match unit {
                "bytes" => ("{binary_bytes}/{binary_total_bytes}", "{binary_bytes_per_sec}"),
                _ => ("{human_pos}/{human_len}", "{whole_per_sec}"),
            };
            let template = format!("{{prefix}} {{wide_bar}} {position} {unit}  {rate}  {{msg}}  ETA {{eta}}");
            let style = ProgressStyle::with_template(&template).expect("the template is a constant");
            let whole_per_sec = |state: &ProgressState, out: &mut dyn fmt::Write| {
                // A bar that cannot be written is not worth an error.
                let _ = write!(out, "{}/s", HumanCount(state.per_sec() as u64));
            };
            bar.set_style(style.with_key("whole_per_sec", whole_per_sec));
            bar.set_prefix(what.to_owned());
            Shown::Bar(bar)
        } else {
            Shown::Lines { what: what.to_owned(), unit, total, began: now, last: now }
        };
        Self { shown }
    }

    /// So much is done.
    pub(crate) fn at(&mut self, done: u64) {
        match &mut self.shown {
            Shown::Nothing => (),
            Shown::Bar(bar) => bar.set_position(done),
            Shown::Lines { last, .. } if last.elapsed() < LINE_EVERY => (),
            Shown::Lines { .. } => self.line(done, ""),
        }
    }

    /// Words beside the bar.
    pub(crate) fn message(&mut self, message: String) {
        if let Shown::Bar(bar) = &self.shown {
            bar.set_message(message);
        }
    }

    /// A line of its own where there is no bar: so much is done, and these words beside it.
    #[expect(clippy::print_stderr, reason = "progress is for people, and a logger's stamps would hide it")]
    pub(crate) fn line(&mut self, done: u64, message: &str) {
        let Shown::Lines { what, unit, total, began, last } = &mut self.shown else { return };
        *last = Instant::now();
        let seconds = began.elapsed().as_secs_f64();
        let share = done as f64 / (*total).max(1) as f64;
        let eta = seconds * (1.0 - share) / share.max(1e-9);
        let rate = done as f64 / seconds;
        let space = if message.is_empty() { "" } else { "  " };
        eprintln!("{what} {done}/{total} {unit}  {rate:.0} {unit}/s{space}{message}  ETA {eta:.0} s");
    }

    /// Says something above the bar, or on a line of its own.
    #[expect(clippy::print_stderr, reason = "progress is for people, and a logger's stamps would hide it")]
    pub(crate) fn tell(&self, text: &str) {
        match &self.shown {
            Shown::Nothing => (),
            Shown::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
            Shown::Lines { .. } => eprintln!("{text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

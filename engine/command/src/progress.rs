//! Progress on stderr: a bar on a terminal, and plain lines from time to time elsewhere.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{
    HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike,
};

use rankine_views::monitoring::{Monitor, Task};

use super::stderr;

/// Minimum time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Maximum frame rate of bars.
const FRAMES_PER_SECOND: u8 = 20;

/// The unit of work that takes a given time.
pub(crate) const SECONDS: &str = "s";

/// Columns that a bar, its rate, its unit and the time left take; the digits of the position are not counted.
const REST_COLUMNS: usize = 47;

/// Shows the progress of one piece of work.
#[derive(Debug)]
pub(crate) struct Progress {
    pace: Arc<Mutex<Pace>>,
    unit: &'static str,
    began: Instant,
    view: View,
    /// Where it is exported.
    task: Option<Task>,
}

#[derive(Debug)]
enum View {
    Nothing,
    Bar(ProgressBar),
    Lines { what: String, last: Instant },
}

/// The amount of work done, and the time it took. Bars and lines show the mean rate of the whole work so far, and the
/// time left at this rate.
#[derive(Debug, Clone, Copy)]
struct Pace {
    done: u64,
    total: u64,
    seconds: f64,
}

impl Pace {
    /// Returns the rate in units per second.
    fn rate(self) -> f64 {
        if self.seconds > 0.0 { self.done as f64 / self.seconds } else { 0.0 }
    }

    /// Returns the seconds left at this rate; `None` before anything is done.
    fn seconds_left(self) -> Option<f64> {
        let left = self.total.saturating_sub(self.done) as f64;
        (self.rate() > 0.0).then(|| left / self.rate())
    }
}

impl Progress {
    /// Creates the progress of `total` units of work, described by `what`; 0 means that the total is unknown.
    pub(crate) fn new(what: &str, unit: &'static str, total: u64, quiet: bool) -> Self {
        let began = Instant::now();
        let pace = Arc::new(Mutex::new(Pace { done: 0, total, seconds: 0.0 }));
        let view = if quiet {
            View::Nothing
        } else if io::stderr().is_terminal() && !stderr::has_records() {
            View::Bar(new_bar(what, unit, total, &pace))
        } else {
            View::Lines { what: what.to_owned(), last: began }
        };
        Self { pace, unit, began, view, task: None }
    }

    /// Creates a progress that is exported as a task, too, if there is a monitor.
    pub(crate) fn monitored(
        monitor: Option<&Monitor>,
        what: &'static str,
        unit: &'static str,
        total: u64,
        quiet: bool,
    ) -> Self {
        let mut progress = Self::new(what, unit, total, quiet);
        progress.task = monitor.map(|monitor| monitor.task(what, unit, total));
        progress
    }

    /// Reports that `done` units are done.
    pub(crate) fn at(&mut self, done: u64) {
        self.at_after(done, self.began.elapsed().as_secs_f64());
    }

    /// Reports that `done` units were done in `seconds`. This is not always the time since this progress was created:
    /// parts of the work may have been done earlier, with other work in between.
    pub(crate) fn at_after(&mut self, done: u64, seconds: f64) {
        self.keep(done, seconds);
        if let Some(task) = &mut self.task {
            task.at(done);
        }
        match &mut self.view {
            View::Nothing => (),
            View::Bar(bar) => {
                if bar.is_finished() {
                    let total = bar.length().unwrap_or_default();
                    *bar = new_bar(&bar.prefix(), self.unit, total, &self.pace).with_position(done);
                }
                bar.set_position(done);
            }
            View::Lines { last, .. } if last.elapsed() < LINE_EVERY => (),
            View::Lines { .. } => self.print(""),
        }
    }

    /// Removes the bar until more is done: a terminal shows one bar at a time.
    pub(crate) fn hide(&self) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
    }

    /// Corrects the total of the work, which was an estimate.
    pub(crate) fn set_total(&mut self, total: u64) {
        lock(&self.pace).total = total;
        if let View::Bar(bar) = &self.view {
            bar.set_length(total);
        }
    }

    /// Sets the text next to the bar. Each of `more` follows it if the terminal has room.
    pub(crate) fn message(&mut self, text: String, more: &[String]) {
        if let View::Bar(bar) = &self.view {
            let total = HumanCount(bar.length().unwrap_or_default()).to_string();
            let rest = REST_COLUMNS + bar.prefix().len() + 2 * total.len();
            bar.set_message(fitting(columns().saturating_sub(rest), text, more));
        }
    }

    /// Prints a line with `message` if there is no bar. `done` and `seconds` are as in [`Progress::at_after`].
    pub(crate) fn line(&mut self, done: u64, seconds: f64, message: &str) {
        self.keep(done, seconds);
        self.print(message);
    }

    /// Prints a line, above the bar if there is one.
    pub(crate) fn note(&self, text: &str) {
        match &self.view {
            View::Nothing => (),
            View::Bar(bar) => bar.suspend(|| stderr::line(text)),
            View::Lines { .. } => stderr::line(text),
        }
    }

    fn keep(&self, done: u64, seconds: f64) {
        let mut pace = lock(&self.pace);
        (pace.done, pace.seconds) = (done, seconds);
    }

    fn print(&mut self, message: &str) {
        let pace = *lock(&self.pace);
        let View::Lines { what, last } = &mut self.view else { return };
        let unit = self.unit;
        *last = Instant::now();
        let Pace { done, total, .. } = pace;
        let space = if message.is_empty() { "" } else { "  " };
        if total == 0 {
            stderr::line(format_args!("{what} {done} {unit}  {:.0} {unit}/s{space}{message}", pace.rate()));
            return;
        }
        let left = pace.seconds_left().map_or_else(|| "?".to_owned(), |seconds| format!("{seconds:.0} s"));
        stderr::line(format_args!(
            "{what} {done}/{total} {unit}  {:.0} {unit}/s{space}{message}  ETA {left}",
            pace.rate()
        ));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
    }
}

/// Returns `text` and those of `more` that fit behind it into this number of columns.
fn fitting(room: usize, mut text: String, more: &[String]) -> String {
    for next in more {
        if text.len() + 2 + next.len() > room {
            break;
        }
        text = text + "  " + next;
    }
    text
}

/// Returns the width of the terminal of stderr.
pub(crate) fn columns() -> usize {
    const DEFAULT: usize = 80;
    let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
    if columns == 0 { DEFAULT } else { usize::from(columns) }
}

fn lock(pace: &Mutex<Pace>) -> MutexGuard<'_, Pace> {
    pace.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_bar(what: &str, unit: &str, total: u64, pace: &Arc<Mutex<Pace>>) -> ProgressBar {
    let target = ProgressDrawTarget::term_like_with_hz(Box::new(Screen::default()), FRAMES_PER_SECOND);
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let bytes = unit == "bytes";
    let template = match (total, bytes) {
        (0, true) => "{prefix} {binary_bytes}  {rate}  {msg}".to_owned(),
        (0, false) => format!("{{prefix}} {{human_pos}} {unit}  {{rate}}  {{msg}}"),
        (_, true) => {
            "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes} bytes  {rate}  {msg}  ETA {left}"
                .to_owned()
        }
        (_, false) if unit == SECONDS => "{prefix} {wide_bar} {pos}/{len} s  {msg}".to_owned(),
        (_, false) => {
            format!(
                "{{prefix}} {{wide_bar}} {{human_pos}}/{{human_len}} {unit}  {{rate}}  {{msg}}  ETA {{left}}"
            )
        }
    };
    let style = ProgressStyle::with_template(&template).expect("the template is a constant");
    // A bar that cannot be written is not worth an error.
    let rate = {
        let pace = Arc::clone(pace);
        move |_: &_, out: &mut dyn fmt::Write| {
            let rate = lock(&pace).rate() as u64;
            let _ = if bytes {
                write!(out, "{}/s", HumanBytes(rate))
            } else {
                write!(out, "{}/s", HumanCount(rate))
            };
        }
    };
    let left = {
        let pace = Arc::clone(pace);
        move |_: &_, out: &mut dyn fmt::Write| {
            let left = lock(&pace).seconds_left().and_then(|left| Duration::try_from_secs_f64(left).ok());
            let _ = match left {
                Some(left) => write!(out, "{:#}", HumanDuration(left)),
                None => out.write_char('?'),
            };
        }
    };
    bar.set_style(style.with_key("rate", rate).with_key("left", left));
    bar.set_prefix(what.to_owned());
    bar
}

/// The terminal of stderr. A frame is written to it at once, or dropped.
#[derive(Debug, Default)]
struct Screen(Mutex<String>);

impl Screen {
    fn push(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    /// Moves the cursor by `count` in the direction of an ANSI control sequence.
    fn step(&self, count: usize, direction: char) -> io::Result<()> {
        if count == 0 { Ok(()) } else { self.push(&format!("\x1b[{count}{direction}")) }
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        u16::try_from(columns()).unwrap_or(u16::MAX)
    }

    fn move_cursor_up(&self, count: usize) -> io::Result<()> {
        self.step(count, 'A')
    }

    fn move_cursor_down(&self, count: usize) -> io::Result<()> {
        self.step(count, 'B')
    }

    fn move_cursor_right(&self, count: usize) -> io::Result<()> {
        self.step(count, 'C')
    }

    fn move_cursor_left(&self, count: usize) -> io::Result<()> {
        self.step(count, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.push(text)?;
        self.push("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.push(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.push("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let frame = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        stderr::draw(frame.as_bytes());
        Ok(())
    }
}

/// A progress bar for each pass over the input.
pub(crate) struct Bars<'a> {
    quiet: bool,
    monitor: Option<&'a Monitor>,
    /// The current pass and its bar.
    current: Mutex<Option<(&'static str, Progress)>>,
}

impl<'a> Bars<'a> {
    pub(crate) fn new(quiet: bool, monitor: Option<&'a Monitor>) -> Self {
        Self { quiet, monitor, current: Mutex::default() }
    }

    /// Returns the progress of a task, which is exported if there is a monitor.
    pub(crate) fn progress(&self, task: &'static str, unit: &'static str, total: u64) -> Progress {
        Progress::monitored(self.monitor, task, unit, total, self.quiet)
    }
}

impl rankine_reader::convert::Progress for Bars<'_> {
    fn advance(&self, pass: &'static str, bytes_done: u64, bytes_total: u64) {
        // A panic elsewhere must not be hidden by a second one about the bar.
        let mut bar = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if bar.as_ref().is_none_or(|(shown, _)| *shown != pass) {
            *bar = Some((pass, self.progress(pass, "bytes", bytes_total)));
        }
        if let Some((_, progress)) = bar.as_mut() {
            progress.at(bytes_done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_time_left_count_the_seconds_they_are_given() {
        // 900 samples took 30 s, 600 of them in an earlier process.
        let mut progress = Progress::new("training", "samples", 1500, true);
        progress.at_after(900, 30.0);
        let pace = *lock(&progress.pace);
        assert_eq!(pace.rate(), 30.0);
        assert_eq!(pace.seconds_left(), Some(20.0));
    }

    #[test]
    fn a_narrow_terminal_shows_less() {
        let more = ["AUC 0.75000".to_owned(), "bound by reading (62%)".to_owned()];
        let shown = |room| fitting(room, "loss 0.5000".into(), &more);
        assert_eq!(shown(0), "loss 0.5000");
        assert_eq!(shown(23), "loss 0.5000");
        assert_eq!(shown(24), "loss 0.5000  AUC 0.75000");
        assert_eq!(shown(48), "loss 0.5000  AUC 0.75000  bound by reading (62%)");
    }

    #[test]
    fn more_than_all_leaves_nothing() {
        let pace = Pace { done: 12, total: 10, seconds: 3.0 };
        assert_eq!((pace.rate(), pace.seconds_left()), (4.0, Some(0.0)));
    }

    #[test]
    fn nothing_done_has_no_rate() {
        let pace = Pace { done: 0, total: 10, seconds: 0.0 };
        assert_eq!((pace.rate(), pace.seconds_left()), (0.0, None));
    }
}

//! `rankine runs`: lists and compares the runs of a folder.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use rankine_base::sealed::Checksum;
use rankine_engine::run_paths;
use rankine_views::report::{self, DeviceView, RunView};
use serde::Serialize;

use super::table::TextTable;
use super::{CommandError, Exit, output, progress};

/// List the runs of a folder, and compare them
///
/// A run is a folder with a job.toml. The AUC and the log loss are the first head's at the last evaluation, on the
/// samples that the column "on" names: the evaluation part, or the validation set until that is evaluated. Only runs
/// with the same samples can be compared; if runs have different ones, these are numbered. samples/s is the rate of the
/// whole training, and of an unfinished run the rate since its last report. A run whose files are damaged is listed
/// with the error.
///
/// --csv and --json print one record per run with these fields: run (the folder), name, state (training, finished,
/// unfinished or damaged), device, precision, ranks, steps, samples, on, samples_checksum (equal for equal samples),
/// auc, log_loss, samples_per_second, started (UTC) and error. Unknown values are empty in CSV and null in JSON.
/// --settings adds a column per setting to CSV, with the setting's name, and an object `settings` to JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine runs
  rankine runs --sort auc --settings
  rankine runs sweep --csv > sweep.csv
  rankine runs --sort auc --json | jq -r '.[0].run'")]
pub(crate) struct Args {
    /// Folder of runs; or one run: its folder, a file in it, or its name in the folder runs
    #[arg(value_name = "DIR", default_value = "runs")]
    dir: PathBuf,

    /// What to sort by, the best first; runs without the value are last
    #[arg(long, value_name = "KEY", default_value = "started")]
    sort: Key,

    /// Also show the settings that differ between the runs
    #[arg(long)]
    settings: bool,

    /// Print CSV instead of text
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What runs are sorted by.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Key {
    /// The newest first
    Started,
    /// By name
    Name,
    /// The highest AUC first
    Auc,
    /// The lowest log loss first
    LogLoss,
    /// The fastest first
    SamplesPerSecond,
    /// The most samples first
    Samples,
    /// The most steps first
    Steps,
}

/// A run. The names of the fields are documented.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Row {
    run: String,
    name: String,
    state: &'static str,
    device: Option<String>,
    precision: Option<String>,
    ranks: Option<usize>,
    steps: Option<u64>,
    samples: Option<u64>,
    on: Option<String>,
    samples_checksum: Option<Checksum>,
    auc: Option<f64>,
    log_loss: Option<f64>,
    samples_per_second: Option<f64>,
    started: Option<String>,
    error: Option<String>,
    /// All settings, until those that differ are chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<BTreeMap<String, String>>,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let mut rows: Vec<_> =
        run_folders(&run_paths::find(&args.dir))?.iter().map(|folder| Row::read(folder)).collect();
    rows.sort_by(|one, other| args.sort.compare(one, other).then_with(|| one.name.cmp(&other.name)));
    let differing = if args.settings { differing(&rows) } else { BTreeSet::new() };
    for row in &mut rows {
        match &mut row.settings {
            Some(settings) if args.settings => settings.retain(|name, _| differing.contains(name)),
            settings => *settings = None,
        }
    }
    if args.json {
        return output::json(&rows);
    }
    if args.csv {
        return output::text(csv(&rows, &differing)?);
    }
    if rows.is_empty() {
        tracing::info!("no runs in {}: `rankine train` writes one", args.dir.display());
        return Ok(());
    }
    output::text(Listing { rows: &rows, settings: &differing, columns: progress::columns() })
}

/// The run folders in a folder, and the folder itself if it is one.
fn run_folders(dir: &Path) -> Result<Vec<PathBuf>, CommandError> {
    let failed = |error: std::io::Error| {
        let what = match error.kind() {
            ErrorKind::NotFound => {
                format!("there is no folder {}: name the folder with the runs", dir.display())
            }
            _ => format!("cannot list {}: {error}", dir.display()),
        };
        CommandError::new(Exit::Failed, what)
    };
    // The first training of a refit has its job in a folder of the run.
    let has_job = |folder: &Path| run_paths::job(folder).exists();
    let is_run = |folder: &Path| has_job(folder) || has_job(&run_paths::search(folder));
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        folders.push(entry.map_err(failed)?.path());
    }
    folders.push(dir.to_owned());
    folders.retain(|folder| is_run(folder));
    Ok(folders)
}

impl Row {
    fn read(folder: &Path) -> Self {
        // The name of `.` is that of the folder that it stands for.
        let name = folder.file_name().map(ToOwned::to_owned);
        let name = name.or_else(|| Some(folder.canonicalize().ok()?.file_name()?.to_owned()));
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        let run = folder.display().to_string();
        match report::load(folder) {
            Ok(view) => Self::of(run, name, view),
            Err(error) => {
                Self { run, name, state: "damaged", error: Some(error.to_string()), ..Self::default() }
            }
        }
    }

    fn of(run: String, name: String, view: RunView) -> Self {
        let RunView { state, started, device, progress, evaluations, settings, .. } = view;
        let DeviceView { kind, precision, ranks, .. } = device;
        let result = evaluations.result();
        let first = result.and_then(|result| result.heads.first());
        Self {
            run,
            name,
            state: state.name(),
            device: Some(kind).filter(|kind| !kind.is_empty()),
            precision,
            ranks,
            steps: Some(progress.step),
            samples: Some(progress.samples),
            on: result.map(|result| result.name.clone()),
            samples_checksum: result.and_then(|result| result.samples_checksum),
            auc: first.and_then(|head| head.auc),
            log_loss: first.and_then(|head| head.log_loss),
            samples_per_second: progress.samples_per_second,
            started,
            error: None,
            settings: Some(settings),
        }
    }

    /// Such as `cuda bf16 x8`.
    fn device(&self) -> Option<String> {
        let mut words = self.device.clone()?;
        if let Some(precision) = &self.precision {
            words += &format!(" {precision}");
        }
        if let Some(ranks) = self.ranks.filter(|&ranks| ranks > 1) {
            words += &format!(" x{ranks}");
        }
        Some(words)
    }
}

impl Key {
    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let numbers = |of: fn(&Row) -> Option<f64>| best_first(of(one), of(other));
        match self {
            // RFC 3339 in UTC sorts as text.
            Self::Started => match (&one.started, &other.started) {
                (Some(one), Some(other)) => other.cmp(one),
                (one, other) => other.is_some().cmp(&one.is_some()),
            },
            Self::Name => Ordering::Equal,
            Self::Auc => numbers(|row| row.auc),
            Self::LogLoss => numbers(|row| row.log_loss.map(|loss| -loss)),
            Self::SamplesPerSecond => numbers(|row| row.samples_per_second),
            Self::Samples => numbers(|row| row.samples.map(|samples| samples as f64)),
            Self::Steps => numbers(|row| row.steps.map(|steps| steps as f64)),
        }
    }
}

/// The largest first, unknown ones last.
fn best_first(one: Option<f64>, other: Option<f64>) -> Ordering {
    match (one, other) {
        (Some(one), Some(other)) => other.total_cmp(&one),
        (one, other) => other.is_some().cmp(&one.is_some()),
    }
}

/// The settings that do not have the same value in all runs that can be read.
fn differing(rows: &[Row]) -> BTreeSet<String> {
    let all: Vec<_> = rows.iter().filter_map(|row| row.settings.as_ref()).collect();
    let names = all.iter().flat_map(|settings| settings.keys());
    let differs = |name: &&String| all.iter().any(|settings| settings.get(*name) != all[0].get(*name));
    names.filter(differs).cloned().collect()
}

fn csv(rows: &[Row], settings: &BTreeSet<String>) -> Result<String, CommandError> {
    const FIELDS: [&str; 15] = [
        "run",
        "name",
        "state",
        "device",
        "precision",
        "ranks",
        "steps",
        "samples",
        "on",
        "samples_checksum",
        "auc",
        "log_loss",
        "samples_per_second",
        "started",
        "error",
    ];
    fn text(value: Option<&impl Display>) -> String {
        value.map(ToString::to_string).unwrap_or_default()
    }
    let failed = |error: csv::Error| CommandError::output(error.into());
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(FIELDS.into_iter().chain(settings.iter().map(String::as_str))).map_err(failed)?;
    for row in rows {
        let fields = [
            row.run.clone(),
            row.name.clone(),
            row.state.to_owned(),
            text(row.device.as_ref()),
            text(row.precision.as_ref()),
            text(row.ranks.as_ref()),
            text(row.steps.as_ref()),
            text(row.samples.as_ref()),
            text(row.on.as_ref()),
            text(row.samples_checksum.map(String::from).as_ref()),
            text(row.auc.as_ref()),
            text(row.log_loss.as_ref()),
            text(row.samples_per_second.as_ref()),
            text(row.started.as_ref()),
            text(row.error.as_ref()),
        ];
        let of_run = |name| text(row.settings.as_ref().and_then(|settings| settings.get(name)));
        writer.write_record(fields.into_iter().chain(settings.iter().map(of_run))).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|error| CommandError::output(error.into_error()))?;
    Ok(String::from_utf8(bytes).expect("all fields are UTF-8"))
}

/// The table of the runs, and below it what is wrong with damaged ones.
struct Listing<'a> {
    rows: &'a [Row],
    settings: &'a BTreeSet<String>,
    /// The width of the terminal.
    columns: usize,
}

impl Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEADINGS: [&str; 10] = [
            "run",
            "state",
            "device",
            "steps",
            "samples",
            "on",
            "AUC",
            "log loss",
            "samples/s",
            "started (UTC)",
        ];
        fn text<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
            value.map_or_else(|| "-".to_owned(), format)
        }
        let mut table = TextTable::of(HEADINGS, &[0, 1, 2, 5, 9]);
        for (row, on) in self.rows.iter().zip(evaluated_on(self.rows)) {
            let cells = [
                printable(&row.name),
                row.state.to_owned(),
                text(row.device(), |device| printable(&device)),
                text(row.steps, |steps| steps.to_string()),
                text(row.samples, |samples| samples.to_string()),
                on,
                text(row.auc, |auc| format!("{auc:.5}")),
                text(row.log_loss, |loss| format!("{loss:.5}")),
                text(row.samples_per_second, |rate| format!("{rate:.0}")),
                text(row.started.as_ref(), |time| time.replace('T', " ").replace('Z', "")),
            ];
            table.cells(cells);
        }
        table.fmt(f)?;
        if !self.settings.is_empty() {
            writeln!(f, "\nsettings that differ")?;
        }
        for row in self.rows.iter().filter(|_| !self.settings.is_empty()) {
            let of_run = |name: &String| {
                let value = row.settings.as_ref()?.get(name)?;
                Some(format!("{name}={}", printable(value)))
            };
            let settings = self.settings.iter().filter_map(of_run);
            write!(
                f,
                "{}",
                Wrapped { first: &printable(&row.name), items: settings, columns: self.columns }
            )?;
        }
        for row in self.rows {
            if let Some(error) = &row.error {
                write!(f, "\n{}: {}\n", printable(&row.name), error.trim_end())?;
            }
        }
        Ok(())
    }
}

/// What each run was evaluated on. If runs were evaluated on different samples of one name, these are numbered.
fn evaluated_on(rows: &[Row]) -> Vec<String> {
    let samples_of = |row: &Row| Some((row.on.clone()?, row.samples_checksum.map(String::from)));
    let mut known: Vec<_> = rows.iter().filter_map(samples_of).collect();
    known.sort();
    known.dedup();
    let name = |row: &Row| {
        let Some(samples) = samples_of(row) else { return "-".to_owned() };
        let mut alike = known.iter().filter(|other| other.0 == samples.0);
        match alike.clone().count() {
            1 => printable(&samples.0),
            _ => {
                let number = alike.position(|other| *other == samples).map_or(0, |at| at + 1);
                format!("{} {number}", printable(&samples.0))
            }
        }
    };
    rows.iter().map(name).collect()
}

/// Items after a name, in lines that end before a column.
struct Wrapped<'a, I> {
    first: &'a str,
    items: I,
    columns: usize,
}

impl<I: Iterator<Item = String> + Clone> Display for Wrapped<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const INDENT: usize = 2;
        writeln!(f, "{}", self.first)?;
        let mut column = 0;
        for item in self.items.clone() {
            let width = item.chars().count();
            if column > 0 && column + 2 + width > self.columns {
                writeln!(f)?;
                column = 0;
            }
            let gap = if column == 0 { INDENT } else { 2 };
            write!(f, "{:gap$}{item}", "")?;
            column += gap + width;
        }
        if column > 0 { writeln!(f) } else { Ok(()) }
    }
}

/// Text for a cell: a line feed or an escape sequence would break the table.
fn printable(text: &str) -> String {
    if text.contains(char::is_control) { text.escape_debug().to_string() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, auc: Option<f64>, started: Option<&str>) -> Row {
        Row { name: name.to_owned(), auc, started: started.map(str::to_owned), ..Row::default() }
    }

    #[test]
    fn the_best_is_first_and_the_unknown_last() {
        let mut rows = [
            row("old", Some(0.75), Some("2026-11-23T10:00:00Z")),
            row("damaged", None, None),
            row("new", Some(0.5), Some("2026-11-24T10:00:00Z")),
        ];
        let mut sorted = |key: Key| {
            rows.sort_by(|one, other| key.compare(one, other).then_with(|| one.name.cmp(&other.name)));
            rows.each_ref().map(|row| row.name.clone())
        };
        assert_eq!(sorted(Key::Started), ["new", "old", "damaged"]);
        assert_eq!(sorted(Key::Auc), ["old", "new", "damaged"]);
        assert_eq!(sorted(Key::Name), ["damaged", "new", "old"]);

        // Each number ranks the runs in another order.
        let numbers = |name: &str, log_loss, samples_per_second, samples, steps| Row {
            log_loss: Some(log_loss),
            samples_per_second: Some(samples_per_second),
            samples: Some(samples),
            steps: Some(steps),
            ..row(name, None, None)
        };
        let mut rows = [
            numbers("a", 0.5, 30.0, 300, 20),
            row("unknown", None, None),
            numbers("b", 0.25, 10.0, 200, 10),
            numbers("c", 0.75, 20.0, 100, 30),
        ];
        let mut sorted = |key: Key| {
            rows.sort_by(|one, other| key.compare(one, other));
            rows.each_ref().map(|row| row.name.clone()).join(" ")
        };
        assert_eq!(sorted(Key::LogLoss), "b a c unknown");
        assert_eq!(sorted(Key::SamplesPerSecond), "a c b unknown");
        assert_eq!(sorted(Key::Samples), "a b c unknown");
        assert_eq!(sorted(Key::Steps), "c a b unknown");
    }

    #[test]
    fn the_lowest_loss_and_the_most_of_anything_else_come_first() {
        let row = |name: &str, numbers: [f64; 4]| {
            let [log_loss, samples_per_second, samples, steps] = numbers.map(Some);
            Row {
                log_loss,
                samples_per_second,
                samples: samples.map(|samples| samples as u64),
                steps: steps.map(|steps| steps as u64),
                ..row(name, None, None)
            }
        };
        // Each run is the first by another key.
        let mut rows = [
            row("loss", [0.1, 10.0, 100.0, 3.0]),
            row("rate", [0.4, 40.0, 200.0, 2.0]),
            row("samples", [0.3, 20.0, 400.0, 1.0]),
            row("steps", [0.2, 30.0, 300.0, 4.0]),
        ];
        let mut sorted = |key: Key| {
            rows.sort_by(|one, other| key.compare(one, other));
            rows.each_ref().map(|row| row.name.clone())
        };
        assert_eq!(sorted(Key::LogLoss), ["loss", "steps", "samples", "rate"]);
        assert_eq!(sorted(Key::SamplesPerSecond), ["rate", "steps", "samples", "loss"]);
        assert_eq!(sorted(Key::Samples), ["samples", "steps", "rate", "loss"]);
        assert_eq!(sorted(Key::Steps), ["steps", "loss", "rate", "samples"]);
    }

    #[test]
    fn a_device_has_its_precision_and_several_ranks() {
        let device = |precision: Option<&str>, ranks| {
            let (device, precision) = (Some("cuda".to_owned()), precision.map(str::to_owned));
            Row { device, precision, ranks, ..Row::default() }.device()
        };
        assert_eq!(device(Some("bf16"), Some(8)).as_deref(), Some("cuda bf16 x8"));
        assert_eq!(device(Some("tf32"), Some(1)).as_deref(), Some("cuda tf32"));
        assert_eq!(device(None, Some(2)).as_deref(), Some("cuda x2"));
        assert_eq!(Row::default().device(), None);
    }

    #[test]
    fn settings_differ_if_a_run_lacks_them_or_has_another_value() {
        let of = |pairs: &[(&str, &str)]| {
            let settings = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Row { settings: Some(settings.collect()), ..Row::default() }
        };
        let one = of(&[("seed", "1"), ("rate", "0.5"), ("clip", "1")]);
        let rows = [one.clone(), row("damaged", None, None), of(&[("seed", "1"), ("rate", "0.25")])];
        assert_eq!(differing(&rows), BTreeSet::from(["clip".to_owned(), "rate".to_owned()]));
        assert!(differing(&[one.clone(), one]).is_empty() && differing(&[]).is_empty());
    }

    #[test]
    fn a_name_cannot_break_the_table() {
        assert_eq!(
            (printable("a\n\u{1b}[2J").as_str(), printable("電影").as_str()),
            ("a\\n\\u{1b}[2J", "電影")
        );
    }
}

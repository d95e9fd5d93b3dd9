//! Learning from pieces: whatever the pieces and whoever adds the entries up, the fit is the one of all rows.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rankine_base::error::Error;

use crate::convert::tests::{TestFolder, good_lines, text, with_field};
use crate::convert::*;
use crate::tests::tree;

/// An entry of a partial, as an engine transports it.
type Entry = (String, Vec<u8>, u64);

fn no_progress(_: &'static str, _: u64, _: u64) {}

fn entries(partial: Partial) -> Vec<Entry> {
    let mut entries = Vec::new();
    let put = |PartialEntry { column, value, count }: PartialEntry<'_>| {
        entries.push((column.to_owned(), value.to_vec(), count));
        Ok(())
    };
    partial.put(put).unwrap();
    entries
}

fn fit_of(entries: &[Entry], names: &[&str], out: &Path, like: Option<KnownColumns>) -> Result<FitReport> {
    let options = ConvertOptions::new(names.iter().map(Into::into).collect(), out.to_owned());
    let mut partials = Partials::new(ConvertOptions { memory: 10_000, ..options })?;
    for some in entries.chunks(100) {
        partials.add(some.iter().map(|(column, value, count)| PartialEntry {
            column,
            value,
            count: *count,
        }))?;
    }
    partials.finish(like)
}

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = tree(dir);
    files.retain(|name, _| !name.starts_with('.'));
    files
}

/// Adds up the counts of entries, and gives them an order of their own.
fn added_up(all: &[Entry]) -> Vec<Entry> {
    let mut sums = BTreeMap::new();
    for (column, value, count) in all {
        *sums.entry((value.clone(), column.clone())).or_insert(0) += count;
    }
    sums.into_iter().map(|((value, column), count)| (column, value, count)).collect()
}

/// Pieces with bad rows, of Criteo's log. The first two are the same rows.
struct Pieces {
    temp: TestFolder,
    files: Vec<std::path::PathBuf>,
}

impl Pieces {
    fn new() -> Self {
        let temp = TestFolder::new();
        let mut lines = good_lines(500, 3);
        lines[400] = with_field(&lines[400], 3, "?");
        let pieces = [&lines[..150], &lines[..150], &lines[150..430], &lines[430..]];
        let files = pieces.iter().enumerate();
        let files = files.map(|(number, lines)| temp.file(&number.to_string(), text(lines))).collect();
        Self { temp, files }
    }

    fn options(&self, files: &[std::path::PathBuf], out: &str) -> ConvertOptions {
        ConvertOptions { on_bad: OnBad::Skip, ..ConvertOptions::new(files.to_vec(), self.temp.path(out)) }
    }

    fn partials(&self, columns: &CriteoColumns) -> Vec<Entry> {
        let learn = |file| {
            let options = self.options(std::slice::from_ref(file), "piece");
            let partial = learn_criteo(&options, columns, &no_progress).unwrap();
            // Its folder has the counts on disk until it is dropped.
            assert!(!options.out.exists());
            entries(partial)
        };
        let all = self.files.iter().rev().flat_map(learn).collect();
        assert!(!self.temp.path("piece.partial").exists());
        all
    }
}

#[test]
fn the_fit_of_pieces_is_that_of_all_rows() {
    let pieces = Pieces::new();
    let columns = CriteoColumns { min_count: 3, ..CriteoColumns::default() };
    let options = pieces.options(&pieces.files, "expected");
    let expected = fit_criteo(&options, &columns, &no_progress).unwrap();
    assert_eq!(expected.conversion.rows.bad, 1);
    let all = pieces.partials(&columns);
    let names: Vec<_> = pieces.files.iter().map(|file| file.to_str().unwrap()).collect();
    let sums = added_up(&all);
    // Both pieces with the same rows have the same statistics.
    assert_eq!(sums.iter().filter(|(column, _, count)| column.is_empty() && *count == 2).count(), 1);
    for (out, entries) in [("as they are", &all), ("added up", &sums)] {
        let report = fit_of(entries, &names, &pieces.temp.path(out), None).unwrap();
        assert_eq!(report, expected, "{out}");
        // The fit names bad rows of its own pass, and no piece keeps their names.
        let mut of_all = contents(&options.out);
        of_all.remove(BAD_ROWS_NAME).unwrap();
        assert!(contents(&pieces.temp.path(out)) == of_all, "{out}");
    }
}

#[test]
fn pieces_continue_a_fit() {
    let pieces = Pieces::new();
    let columns = CriteoColumns { min_count: 2, ..CriteoColumns::default() };
    let first = pieces.options(&pieces.files[..2], "first");
    fit_criteo(&first, &columns, &no_progress).unwrap();
    let known = || KnownColumns::of_fit(&crate::dataset::Fit::open(&first.out).unwrap()).unwrap();
    let more = ConvertOptions { on_bad: OnBad::Skip, ..pieces.options(&pieces.files[2..], "expected") };
    let expected = fit_like(&more, known(), &no_progress).unwrap();
    let learn = |number: usize| {
        let options = pieces.options(&pieces.files[number..=number], "piece");
        entries(learn_like(&options, known(), &no_progress).unwrap())
    };
    let all = [learn(3), learn(2)].concat();
    let names: Vec<_> = pieces.files[2..].iter().map(|file| file.to_str().unwrap()).collect();
    let out = pieces.temp.path("grown");
    assert_eq!(fit_of(&all, &names, &out, Some(known())).unwrap(), expected);
    assert_eq!(fs::read(out.join("fit.json")).unwrap(), fs::read(more.out.join("fit.json")).unwrap());
    let refused =
        |entries: &[Entry], like| fit_of(entries, &names, &pieces.temp.path("no"), like).unwrap_err();
    assert!(refused(&all, None).to_string().contains("continue the vocabularies"));
    let others = pieces.partials(&columns);
    assert!(refused(&others, Some(known())).to_string().contains("do not continue"));
    assert!(refused(&[all, others].concat(), None).to_string().contains("different schemas"));
}

#[test]
fn entries_that_no_partial_has_are_refused() {
    let pieces = Pieces::new();
    let all = pieces.partials(&CriteoColumns::default());
    let out = pieces.temp.path("no");
    let refused = |entries: &[Entry]| fit_of(entries, &["log"], &out, None).unwrap_err().to_string();
    let with =
        |column: &str, value: &[u8], count| [&all[..], &[(column.into(), value.to_vec(), count)]].concat();
    let counts: Vec<_> = all.iter().filter(|(column, ..)| !column.is_empty()).cloned().collect();
    assert!(refused(&counts).contains("no statistics"));
    assert!(refused(&[]).contains("no rows"));
    assert!(refused(&with("C0", b"a", 1)).contains("column C0 is counted in a partial"));
    assert!(refused(&with("C1", b"a", 0)).contains("column C1 has an entry with a count of 0"));
    assert!(refused(&with("C1", b"a", u64::MAX)).contains("add up to 2^62"));
    assert!(refused(&with("", b"{}", 1)).contains("the statistics of a partial"));
    let statistics = all.iter().find(|(column, ..)| column.is_empty()).unwrap().1.clone();
    assert!(refused(&with("", &statistics, 1 << 32)).contains("have a count of 4294967296"));
    assert!(!out.exists() && !pieces.temp.path("no.partial").exists());

    let split =
        ConvertOptions { split: Split::Last { share: 0.1 }.into(), ..pieces.options(&pieces.files, "split") };
    let refused = learn_criteo(&split, &CriteoColumns::default(), &no_progress).unwrap_err();
    assert!(matches!(refused, Error::Setting { .. }), "{refused}");
}

#[test]
fn pieces_of_csv_are_learned() {
    let temp = TestFolder::new();
    let schema = "[label]\ncolumn = \"y\"\n[[dense]]\ncolumn = \"x\"\ntransform = \"standardize\"\n\
                  [[categorical]]\ncolumn = \"c\"\nseparator = \"|\"";
    let schema = SchemaFile::parse("s.toml", schema).unwrap();
    let files = ["y,x,c\n1,0.1,a|b\n0,1e300,a\n", "y,x,c\n0,0.2,\n1,0.3,b|a|c|a category that is long\n"];
    let files = [temp.file("0", files[0].replace("1e300", "1e30")), temp.file("1", files[1])];
    let options = ConvertOptions::new(files.to_vec(), temp.path("expected"));
    let expected = fit_csv(&options, &schema, 1, &no_progress).unwrap();
    let learn = |file: &std::path::PathBuf| {
        let options = ConvertOptions::new(vec![file.clone()], temp.path("piece"));
        entries(learn_csv(&options, &schema, 1, &no_progress).unwrap())
    };
    let all: Vec<_> = files.iter().rev().flat_map(learn).collect();
    let names: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
    assert_eq!(fit_of(&all, &names, &temp.path("fit"), None).unwrap(), expected);
    assert!(contents(&temp.path("fit")) == contents(&options.out));
    // The sums are exact: 0.1 + 0.2 + 0.3 is lost beside 1e30 in sums of doubles.
    assert!(expected.dense[0].1.mean > 0.0);
}

//! Shards: encoded again, committed again, appended, replaced, and removed once nothing lists them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankine_base::error::{Error, Result};

use super::*;
use crate::convert::{ConvertOptions, CriteoColumns, KnownColumns, fit_criteo};
use crate::dataset::{Dataset, Fit};
use crate::part::Part;

fn no_progress(_: &'static str, _: u64, _: u64) {}

/// A row of Criteo's form.
fn line() -> String {
    let numbers = (0..13).map(|number| number.to_string());
    let categories = (0..26).map(|column| format!("{:08x}", 0x9e37_79b9_u32.wrapping_mul(column + 1)));
    let fields: Vec<_> = ["0".to_owned()].into_iter().chain(numbers).chain(categories).collect();
    fields.join("\t") + "\n"
}

/// A fit, and pieces of 1, 2 and 3 rows.
struct Place {
    dir: tempfile::TempDir,
    pieces: Vec<PathBuf>,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let piece = |rows: usize| {
            let path = dir.path().join(format!("{rows}.tsv"));
            fs::write(&path, line().repeat(rows)).unwrap();
            path
        };
        let pieces: Vec<_> = (1..=3).map(piece).collect();
        let options = ConvertOptions::new(pieces.clone(), dir.path().join("fit"));
        fit_criteo(&options, &CriteoColumns::default(), &no_progress).unwrap();
        Self { dir, pieces }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn encode(&self, piece: usize, name: &str) -> Result<PathBuf> {
        let known = KnownColumns::of_fit(&Fit::open(&self.path("fit"))?)?;
        let options = ConvertOptions::new(vec![self.pieces[piece].clone()], self.path("clicks"));
        encode(&options, known, name, &no_progress).map(|shard| shard.path)
    }

    fn commit(&self, shards: &[&PathBuf], mode: CommitMode) -> Result<u64> {
        commit(shards, &self.path("clicks"), mode).map(|dataset| dataset.samples(Part::Train))
    }

    fn shards(&self) -> Vec<PathBuf> {
        let mut found: Vec<_> =
            fs::read_dir(self.path("clicks/shards")).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    }
}

fn assert_intact(dataset: &Dataset) {
    let report = crate::verify::verify(dataset, std::num::NonZeroUsize::MIN).unwrap();
    assert_eq!(report.damages, []);
}

#[test]
fn the_same_piece_is_the_same_shard() {
    let place = Place::new();
    let one = place.encode(1, "day-1.a_0").unwrap();
    assert_eq!(place.encode(1, "day-1.a_0").unwrap(), one);
    assert_eq!(place.shards(), std::slice::from_ref(&one));
    // The rows of another attempt.
    let other = place.encode(2, "day-1.a_0").unwrap();
    assert_ne!(other, one);
    // Another piece with the same rows.
    assert_ne!(place.encode(1, "b").unwrap(), one);
    for name in ["", ".a", "a/b", "a b", &"a".repeat(101)] {
        let refused = place.encode(1, name).unwrap_err();
        assert!(matches!(refused, Error::Setting { .. }), "{name}: {refused}");
    }
    // A file in the place of the folder.
    fs::remove_dir_all(&one).unwrap();
    fs::write(&one, "").unwrap();
    assert!(matches!(place.encode(1, "day-1.a_0"), Err(Error::Io { .. })));
}

/// A shard has the vocabularies of the fit, whether they are links or not.
#[test]
fn vocabularies_are_those_of_the_fit() {
    let place = Place::new();
    let name = "vocabulary/C1.tsv";
    let bytes = |dir: &Path| fs::read(dir.join(name)).unwrap();
    let linked = place.encode(0, "a").unwrap();
    let links = |dir: &Path| std::os::unix::fs::MetadataExt::nlink(&fs::metadata(dir.join(name)).unwrap());
    assert_eq!((links(&place.path("fit")), links(&linked)), (2, 2));
    // A fit whose last file cannot be linked to.
    let known = KnownColumns::of_fit(&Fit::open(&place.path("fit")).unwrap()).unwrap();
    fs::remove_file(place.path("fit/vocabulary/C26.tsv")).unwrap();
    let options = ConvertOptions::new(vec![place.pieces[0].clone()], place.path("clicks"));
    let written = encode(&options, known, "b", &no_progress).unwrap().path;
    assert_eq!((links(&place.path("fit")), links(&written)), (2, 1));
    assert_eq!(bytes(&written), bytes(&linked));
    let manifest = |dir: &Path| fs::read(dir.join("dataset.json")).unwrap();
    assert_eq!(manifest(&written), manifest(&linked));
}

#[test]
fn a_commit_that_is_repeated_changes_nothing() {
    let place = Place::new();
    let shards: Vec<_> = (0..3).map(|piece| place.encode(piece, "p").unwrap()).collect();
    let [one, two, three] = &shards[..] else { panic!("three shards") };
    assert_eq!(place.commit(&[one, two], CommitMode::New).unwrap(), 3);
    let collection = || fs::read(place.path("clicks/collection.json")).unwrap();
    let before = collection();
    assert_eq!(place.commit(&[one, two], CommitMode::New).unwrap(), 3);
    assert_eq!(place.commit(&[two], CommitMode::Append).unwrap(), 3);
    assert_eq!(collection(), before);
    let refused = place.commit(&[two], CommitMode::New).unwrap_err();
    assert!(matches!(refused, Error::Exists { .. }), "{refused}");
    assert!(matches!(place.commit(&[], CommitMode::Overwrite), Err(Error::Setting { .. })));
    assert_eq!(collection(), before);

    assert_eq!(place.commit(&[two, three], CommitMode::Append).unwrap(), 6);
    let dataset = Dataset::open(&place.path("clicks")).unwrap();
    assert_eq!(dataset.dirs(), [one, two, three]);
    assert_intact(&dataset);
    assert_eq!(place.commit(&[three, one], CommitMode::Overwrite).unwrap(), 4);
    let own = commit(&[one], &place.path("fit/.."), CommitMode::New);
    assert!(own.is_ok(), "{own:?}");
    let refused = commit(&[one], two, CommitMode::Append).unwrap_err();
    assert!(matches!(refused, Error::Exists { .. }), "{refused}");
}

#[test]
fn commits_at_the_same_time_lose_nothing() {
    let place = Place::new();
    let shards: Vec<_> = (0..6).map(|n| place.encode(n % 3, &format!("p{n}")).unwrap()).collect();
    std::thread::scope(|scope| {
        for shard in &shards {
            let place = &place;
            scope.spawn(move || place.commit(&[shard], CommitMode::Append).unwrap());
        }
    });
    assert_eq!(Dataset::open(&place.path("clicks")).unwrap().samples(Part::Train), 2 * (1 + 2 + 3));
}

#[test]
fn what_nothing_lists_is_removed_once_it_is_old() {
    let place = Place::new();
    let shards: Vec<_> = (0..3).map(|piece| place.encode(piece, "p").unwrap()).collect();
    let [one, two, three] = &shards[..] else { panic!("three shards") };
    let clicks = place.path("clicks");
    place.commit(&[one, two], CommitMode::New).unwrap();
    place.commit(&[one], CommitMode::Overwrite).unwrap();
    commit(&[three], &place.path("other"), CommitMode::New).unwrap();
    let partial = clicks.join("shards/p-0123456789abcdef.partial");
    let lock = clicks.join("shards/.p-0123456789abcdef.lock");
    fs::create_dir(&partial).unwrap();
    fs::write(&lock, "").unwrap();
    for foreign in ["notes", "p-0123456789ABCDEF", "p-0123456789abcde", "0123456789abcdef"] {
        fs::create_dir(clicks.join("shards").join(foreign)).unwrap();
    }
    let none: [&Path; 0] = [];
    assert_eq!(unlisted(&clicks, &none, Duration::from_secs(3600)).unwrap(), []);
    let paths = |found: Vec<Unlisted>| found.into_iter().map(|found| found.path).collect::<Vec<_>>();
    let old_statistics = |found: &Vec<PathBuf>| {
        found.iter().filter(|path| path.starts_with(clicks.join("statistics"))).count()
    };
    let mut found = paths(unlisted(&clicks, &[place.path("other")], Duration::ZERO).unwrap());
    assert_eq!(old_statistics(&found), 1);
    found.retain(|path| path.starts_with(clicks.join("shards")));
    assert_eq!(found, [lock.clone(), partial.clone(), two.clone()]);
    assert_eq!(paths(unlisted(&clicks, &none, Duration::ZERO).unwrap()).len(), 5);
    assert!(two.exists());
    let removed = remove(&clicks, &[place.path("other")], Duration::ZERO).unwrap();
    assert!(removed.iter().find(|of| of.path == *two).unwrap().bytes > 1000);
    assert_eq!(removed.len(), 4);
    assert!(removed.iter().all(|of| !of.path.exists()) && one.exists() && three.exists());
    assert_eq!(place.shards().len(), 2 + 4);
    assert_eq!(remove(&clicks, &[place.path("other")], Duration::ZERO).unwrap(), []);
    assert_intact(&Dataset::open(&clicks).unwrap());

    // Nothing is removed if it is unknown what is listed.
    fs::write(clicks.join("collection.json"), "{}").unwrap();
    assert!(matches!(remove(&clicks, &none, Duration::ZERO), Err(Error::Damaged { .. })));
    assert!(matches!(unlisted(&place.path("fit"), &none, Duration::ZERO), Err(Error::Unsuitable { .. })));
    assert!(one.exists() && three.exists());
}

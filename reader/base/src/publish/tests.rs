//! Locks that threads compete for, with and without flock; publishing folders and files.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;

use self::file_calls::{FileCall, assert_durable, observe};
use super::owner::Owner;
use super::path::{is_unique_suffix, unique_suffix};
use super::*;
use crate::error::Error;
use seccomp::{NO_FLOCK, Refused, refuse_in_this_thread};

#[path = "../../../../tests/support/file_calls.rs"]
mod file_calls;
#[path = "../../../../tests/support/seccomp.rs"]
#[allow(dead_code, reason = "no commands are run here")]
mod seccomp;

/// Returns how often a race is run.
fn repeats() -> usize {
    if std::env::var_os("RANKINE_TEST_LONG").is_some() { 200 } else { 5 }
}

fn no_flock(errno: i32) -> Refused {
    Refused { call: libc::SYS_flock, errno }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(dir).unwrap().map(name).collect()
}

/// Runs `work` in a thread in which some system calls fail.
fn refusing<T: Send>(refused: &[Refused], work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_in_this_thread(refused);
            work()
        });
        thread.join().unwrap()
    })
}

/// Returns the record of a process that has ended.
fn dead_owner(flock: bool) -> Owner {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    Owner { pid, start_ticks: 1, ..Owner::this_process(flock) }
}

fn plant(path: &Path, owner: &Owner) {
    fs::write(path, serde_json::to_vec(owner).unwrap()).unwrap();
}

/// Lets threads, each with or without flock, compete for the lock of a folder, which may have the record of a dead
/// holder.
fn fight(with_flock: &[bool], stale: Option<&Owner>) {
    let dir = tempfile::tempdir().unwrap();
    if let Some(owner) = stale {
        plant(&dir.path().join(".lock"), owner);
    }
    let (holders, wins, start) = (AtomicUsize::new(0), AtomicUsize::new(0), Barrier::new(with_flock.len()));
    thread::scope(|scope| {
        for (number, has_flock) in with_flock.iter().enumerate() {
            let (dir, holders, wins, start) = (dir.path(), &holders, &wins, &start);
            scope.spawn(move || {
                if !has_flock {
                    refuse_in_this_thread(&[no_flock(NO_FLOCK[number % 3])]);
                }
                start.wait();
                for _ in 0..20 {
                    match Lock::within(dir) {
                        Ok(_lock) => {
                            assert_eq!(
                                holders.fetch_add(1, Ordering::SeqCst),
                                0,
                                "two threads hold the lock"
                            );
                            wins.fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            holders.fetch_sub(1, Ordering::SeqCst);
                        }
                        Err(error) => assert!(error.to_string().contains("another process"), "{error}"),
                    }
                }
            });
        }
    });
    assert!(wins.into_inner() > 0, "nobody got the lock");
    drop(Lock::within(dir.path()).unwrap());
    assert_eq!(names(dir.path()), BTreeSet::new());
}

#[test]
fn one_thread_at_a_time_holds_a_lock_with_flock_and_without() {
    for _ in 0..repeats() {
        for kinds in [[true; 4], [false; 4], [true, false, true, false]] {
            fight(&kinds, None);
        }
    }
}

#[test]
fn exactly_one_thread_takes_over_from_a_dead_process() {
    for _ in 0..repeats() {
        for owner in [dead_owner(true), dead_owner(false)] {
            for kinds in [[true; 4], [false; 4], [true, false, true, false]] {
                fight(&kinds, Some(&owner));
            }
        }
    }
}

#[test]
fn interrupted_takeovers_are_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    for name in [".lock", ".lock.1", ".lock.2", &format!(".lock.{}", unique_suffix())] {
        plant(&dir.path().join(name), &dead_owner(false));
    }
    let lock = Lock::within(dir.path()).unwrap();
    assert_eq!(names(dir.path()), BTreeSet::from([".lock".to_owned()]));
    assert!(Lock::within(dir.path()).is_err());
    drop(lock);
    assert_eq!(names(dir.path()), BTreeSet::new());
}

#[test]
fn a_process_without_the_lock_sees_that_it_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    assert!(LockMark::within(dir.path()).is_err(), "nobody holds it");
    let lock = Lock::within(dir.path()).unwrap();
    let mark = LockMark::within(dir.path()).unwrap();
    mark.check().unwrap();
    drop(lock);
    let is_lost = || matches!(mark.check(), Err(Error::Lost { path }) if path == dir.path());
    assert!(is_lost());
    let _next = Lock::within(dir.path()).unwrap();
    assert!(is_lost(), "it is another one's lock");
}

#[test]
fn a_lock_of_another_machine_is_kept_without_flock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(".lock");
    let elsewhere = |flock| Owner { host: "far".into(), boot_id: "b".into(), pid: 4711, ..dead_owner(flock) };
    for flock in [true, false] {
        plant(&path, &elsewhere(flock));
        for errno in NO_FLOCK {
            let refused = refusing(&[no_flock(errno)], || Lock::within(dir.path())).unwrap_err().to_string();
            let since = elsewhere(flock).since;
            let remedy = format!("rm '{}'", path.display());
            for words in ["process 4711 on far", &since[..10], &remedy] {
                assert!(refused.contains(words), "{words} is not in {refused}");
            }
        }
    }
    // A process with flock sees that no process has one on the file, if the holder had one.
    plant(&path, &elsewhere(true));
    drop(Lock::within(dir.path()).unwrap());
    plant(&path, &elsewhere(false));
    Lock::within(dir.path()).unwrap_err();
}

#[test]
fn a_holder_is_named_with_and_without_flock() {
    let dir = tempfile::tempdir().unwrap();
    for holder in [&[][..], &[no_flock(libc::ENOSYS)]] {
        let lock = refusing(holder, || Lock::within(dir.path())).unwrap();
        for other in [&[][..], &[no_flock(libc::ENOLCK)]] {
            let refused = refusing(other, || Lock::within(dir.path())).unwrap_err();
            assert!(matches!(&refused, Error::Locked { path, lock: None, .. } if path == dir.path()));
            let (refused, pid) = (refused.to_string(), format!("process {} on ", std::process::id()));
            assert!(refused.contains("another process is writing") && refused.contains(&pid), "{refused}");
        }
        drop(lock);
    }
}

#[test]
fn an_empty_lock_file_counts_after_a_second() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".lock"), "").unwrap();
    drop(Lock::within(dir.path()).unwrap());
    fs::write(dir.path().join(".lock"), "").unwrap();
    let refused = refusing(&[no_flock(libc::ENOSYS)], || Lock::within(dir.path())).unwrap_err();
    assert!(refused.to_string().contains("an unknown process"), "{refused}");
}

#[test]
fn locks_work_without_hard_links() {
    let links = Refused { call: libc::SYS_linkat, errno: libc::EPERM };
    let legacy = Refused { call: libc::SYS_link, errno: libc::EPERM };
    for refused in [&[links, legacy][..], &[links, legacy, no_flock(libc::ENOSYS)]] {
        refusing(refused, || fight(&[true; 4], None));
        let path = tempfile::tempdir().unwrap();
        let file = path.path().join("a");
        refusing(refused, || PartialFile::create_new(&file).and_then(PartialFile::publish)).unwrap();
        refusing(refused, || PartialFile::create_new(&file)).unwrap_err();
    }
}

#[test]
fn waiting_for_a_lock_ends() {
    let temp = TestFolder::new();
    let target = temp.home.path().canonicalize().unwrap().join("out");
    let patience = Duration::from_millis(60);
    let held = Lock::beside(&target).unwrap();
    let began = Instant::now();
    let refused = Lock::beside_within(&target, patience).unwrap_err().to_string();
    assert!(refused.contains("another process is writing"), "{refused}");
    // A second on a busy machine; for a small file the lock is waited for ten.
    assert!(
        (patience..Duration::from_secs(1) + patience).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    drop(held);
    drop(Lock::beside_within(&target, Duration::ZERO).unwrap());
}

/// A process may end between creating a file and writing its record into it.
#[test]
fn claims_without_a_record_are_removed_after_an_hour() {
    let dir = tempfile::tempdir().unwrap();
    let claim = |name: &str, minutes: u64| {
        let file = File::create(dir.path().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60 * minutes)).unwrap();
    };
    claim(".lock.old", 61);
    claim(".lock.young", 59);
    claim("notes", 61);
    drop(Lock::within(dir.path()).unwrap());
    assert_eq!(names(dir.path()), BTreeSet::from([".lock.young".into(), "notes".into()]));
    for (name, is_lock) in
        [(".lock", true), (".lock.1", true), (".locks", false), ("lock", false), (".out.lock", false)]
    {
        assert_eq!(Lock::is_lock_name(name.as_ref()), is_lock, "{name}");
    }
}

#[test]
fn unique_suffixes_are_recognized() {
    let suffixes = [(); 3].map(|()| unique_suffix());
    let parts = suffixes.each_ref().map(|suffix| suffix.split('-').collect::<Vec<_>>());
    assert!(parts.iter().all(|parts| parts[0] == std::process::id().to_string()));
    let counts = parts.map(|parts| parts[1].parse::<u64>().unwrap());
    assert!(counts[0] < counts[1] && counts[1] < counts[2], "{counts:?}");
    assert!(suffixes.iter().all(|suffix| is_unique_suffix(suffix.as_bytes())));
    for other in ["", "1-2", "1-2-0123456", "1-2-0123456g", "1-2-01234567-8", "x-2-01234567", "1--01234567"] {
        assert!(!is_unique_suffix(other.as_bytes()), "{other}");
    }
}

#[test]
fn foreign_files_named_as_locks_are_neither_followed_nor_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (lock, precious) = (dir.path().join(".lock"), dir.path().join("precious"));
    fs::write(&precious, "kept").unwrap();
    symlink(&precious, &lock).unwrap();
    Lock::within(dir.path()).unwrap_err();
    assert_eq!(fs::read(&precious).unwrap(), b"kept");
    fs::remove_file(&lock).unwrap();
    fifo(&lock);
    Lock::within(dir.path()).unwrap_err();
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

// Folders.

struct TestFolder {
    home: TempDir,
    target: PathBuf,
}

impl TestFolder {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("out");
        Self { home, target }
    }

    fn names(&self) -> BTreeSet<String> {
        names(self.home.path())
    }

    #[track_caller]
    fn has(&self, names: &[&str]) {
        assert_eq!(self.names(), names.iter().map(|&name| name.to_owned()).collect());
    }
}

#[test]
fn when_two_publish_one_folder_exactly_one_wins_in_any_order() {
    for _ in 0..repeats() * 4 {
        let temp = TestFolder::new();
        let start = Barrier::new(2);
        let publish = |letter: &str| {
            start.wait();
            let dir = PartialDir::create(&temp.target)?;
            for number in 0..3 {
                fs::write(dir.path().join(format!("{letter}{number}")), letter).unwrap();
                thread::yield_now();
            }
            dir.publish()
        };
        let outcomes = thread::scope(|scope| {
            ["a", "b"]
                .map(|letter| scope.spawn(move || (letter, publish(letter))))
                .map(|thread| thread.join().unwrap())
        });
        let winners: Vec<_> = outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).collect();
        let [(letter, _)] = winners[..] else { panic!("{outcomes:?}") };
        assert_eq!(names(&temp.target), (0..3).map(|number| format!("{letter}{number}")).collect());
        temp.has(&["out"]);
        let loser = outcomes.iter().find_map(|(_, outcome)| outcome.as_ref().err()).unwrap().to_string();
        assert!(loser.contains("another process") || loser.contains("already exists"), "{loser}");
    }
}

#[test]
fn a_folder_is_locked_until_it_has_its_name() {
    let temp = TestFolder::new();
    let dir = PartialDir::create(&temp.target).unwrap();
    // As seen by another process while the folder is being renamed: the lock is not in it and not released.
    temp.has(&[".out.lock", "out.partial"]);
    assert!(PartialDir::create(&temp.target).is_err());
    drop(dir);
    temp.has(&[]);
}

/// The lock goes with the folder that contains the output, or is removed by hand.
#[test]
fn an_output_that_another_process_may_write_is_neither_published_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (place, moved) = (dir.path().join("place"), dir.path().join("moved"));
    let lost = |error: Error| assert!(matches!(error, Error::Lost { .. }), "{error}");

    let partial = PartialDir::create(&place.join("out")).unwrap();
    fs::write(partial.path().join("own"), "").unwrap();
    fs::rename(&place, &moved).unwrap();
    let other = PartialDir::create(&place.join("out")).unwrap();
    fs::write(other.path().join("other"), "").unwrap();
    lost(partial.publish().unwrap_err());
    other.publish().unwrap();
    assert_eq!(names(&place.join("out")), ["other".to_owned()].into());
    fs::remove_dir_all(&moved).unwrap();
    fs::remove_dir_all(&place).unwrap();

    // The unfinished folder alone was removed, and one that is not the process's own has its name.
    let partial = PartialDir::create(&place.join("out")).unwrap();
    fs::remove_dir_all(partial.path()).unwrap();
    fs::create_dir(place.join("out.partial")).unwrap();
    fs::write(place.join("out.partial/other"), "").unwrap();
    lost(partial.publish().unwrap_err());
    assert!(place.join("out.partial/other").exists());
    fs::remove_dir_all(place.join("out.partial")).unwrap();

    let reserved = ReservedDir::new(&place.join("out")).unwrap();
    fs::rename(&place, &moved).unwrap();
    lost(reserved.begin().unwrap_err());

    let lock = Lock::within(&moved).unwrap();
    let file = moved.join("file");
    replace_file_under(&lock, &file, b"own").unwrap();
    fs::rename(&moved, &place).unwrap();
    fs::create_dir(&moved).unwrap();
    fs::write(&file, "other").unwrap();
    lost(replace_file_under(&lock, &file, b"own again").unwrap_err());
    assert_eq!(fs::read(&file).unwrap(), b"other");
    drop(lock);

    let mut file = PartialFile::create(&moved.join("file")).unwrap();
    file.write_all(b"own").unwrap();
    fs::remove_file(moved.join(".file.lock")).unwrap();
    lost(file.publish().unwrap_err());
    assert_eq!(fs::read(moved.join("file")).unwrap(), b"other");
}

#[test]
fn a_folder_that_was_filled_meanwhile_is_not_replaced_and_what_was_written_is_kept() {
    let temp = TestFolder::new();
    let dir = PartialDir::create(&temp.target).unwrap();
    fs::write(dir.path().join("new"), "new").unwrap();
    fs::create_dir(&temp.target).unwrap();
    fs::write(temp.target.join("old"), "old").unwrap();
    let refused = dir.publish().unwrap_err().to_string();
    assert!(refused.contains("out.partial") && refused.contains("The output is complete"), "{refused}");
    temp.has(&["out", "out.partial"]);
    assert_eq!(names(&temp.target), BTreeSet::from(["old".into()]));
    // It is not a leftover: the next process does not remove it.
    fs::remove_dir_all(&temp.target).unwrap();
    let refused = PartialDir::create(&temp.target).unwrap_err().to_string();
    assert!(refused.contains("already exists"), "{refused}");
    assert_eq!(names(&temp.home.path().join("out.partial")), BTreeSet::from(["new".into()]));
}

#[test]
fn a_dead_process_leftover_is_removed_and_other_folders_are_not() {
    let temp = TestFolder::new();
    let dir = PartialDir::create(&temp.target).unwrap();
    fs::create_dir(dir.path().join("train")).unwrap();
    fs::write(dir.path().join("train/blocks"), [0; 100]).unwrap();
    // As left by kill -9.
    std::mem::forget(dir);
    fs::remove_file(temp.home.path().join(".out.lock")).unwrap();
    plant(&temp.home.path().join(".out.lock"), &dead_owner(true));
    let dir = PartialDir::create(&temp.target).unwrap();
    assert!(!dir.path().join("train").exists());
    dir.publish().unwrap();
    temp.has(&["out"]);
    assert_eq!(names(&temp.target), BTreeSet::new());

    let other = temp.home.path().join("data.partial");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), "kept").unwrap();
    PartialDir::create(&temp.home.path().join("data")).unwrap_err();
    PartialDir::create(&other).unwrap_err();
    assert_eq!(fs::read(other.join("precious")).unwrap(), b"kept");
}

#[test]
fn a_folder_is_started_only_if_it_can_be_published() {
    let temp = TestFolder::new();
    let refused = |path: &Path| PartialDir::create(path).unwrap_err().to_string();
    let partial = temp.home.path().join("new.partial");
    assert!(refused(&partial).contains("names that end with .partial"), "{}", refused(&partial));
    assert!(refused(Path::new("/proc")).contains("is a mount point"));
    fs::create_dir(&temp.target).unwrap();
    fs::write(temp.target.join("old"), "old").unwrap();
    assert!(refused(&temp.target).contains("already exists and is not empty"));
    temp.has(&["out"]);
    // An empty folder is replaced; an unfinished one without a marker yet is a leftover.
    fs::remove_file(temp.target.join("old")).unwrap();
    fs::create_dir(temp.home.path().join("out.partial")).unwrap();
    PartialDir::create(&temp.target).unwrap().publish().unwrap();
    temp.has(&["out"]);
}

#[test]
fn a_link_to_a_folder_is_followed() {
    let temp = TestFolder::new();
    let (store, link) = (temp.home.path().join("store"), temp.home.path().join("link"));
    symlink(&store, &link).unwrap();
    let dir = PartialDir::create(&link).unwrap();
    // Both names are the same target.
    assert!(PartialDir::create(&store).is_err());
    dir.publish().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && store.is_dir());
    temp.has(&["link", "store"]);
}

#[test]
fn a_folder_and_its_name_are_made_durable() {
    let temp = TestFolder::new();
    let (_, calls) = observe(|| {
        let dir = PartialDir::create(&temp.target).unwrap();
        fs::create_dir_all(dir.path().join("part/of/it")).unwrap();
        for name in ["top", "part/of/it/bottom"] {
            let mut file = File::create(dir.path().join(name)).unwrap();
            file.write_all(b"text").and_then(|()| file.sync_all()).unwrap();
        }
        dir.publish().unwrap();
    });
    assert_durable(&calls, &temp.target);
    assert_eq!(names(&temp.target), BTreeSet::from(["part".into(), "top".into()]), "the marker is gone");
}

#[test]
fn the_names_of_created_parent_folders_are_synced() {
    let temp = TestFolder::new();
    let home = temp.home.path().canonicalize().unwrap();
    let ((), calls) = observe(|| drop(PartialDir::create(&home.join("a/b/out")).unwrap()));
    for (folder, parent) in [("a", home.clone()), ("a/b", home.join("a"))] {
        let made = calls.iter().position(|call| *call == FileCall::Create(home.join(folder)));
        let after = &calls[made.unwrap_or_else(|| panic!("{folder} was not created: {calls:#?}"))..];
        assert!(after.contains(&FileCall::Sync(parent)), "the name of {folder} was not synced: {calls:#?}");
    }
}

/// Without flock, the record shows that a holder has ended: it must be on disk before it counts.
#[test]
fn the_record_of_a_lock_without_flock_is_synced_before_it_counts() {
    let links = Refused { call: libc::SYS_linkat, errno: libc::EPERM };
    for refused in [&[no_flock(libc::ENOSYS)][..], &[no_flock(libc::ENOSYS), links]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join(".lock");
        let ((), calls) = refusing(refused, || observe(|| drop(Lock::within(dir.path()).unwrap())));
        let named = calls.iter().find_map(|call| match call {
            FileCall::Name { from, to } if *to == path => Some(from.clone()),
            _ => None,
        });
        // Without links the record is written directly to its final name.
        let record = if refused.len() == 1 { named.unwrap() } else { path.clone() };
        let synced = calls.iter().position(|call| *call == FileCall::Sync(record.clone()));
        let written = calls.iter().rposition(|call| *call == FileCall::Write(record.clone()));
        assert!(written.is_some() && written < synced, "{calls:#?}");
        let name = FileCall::Name { from: record.clone(), to: path.clone() };
        let named = calls.iter().position(|call| *call == name);
        assert!(named.is_none_or(|named| synced < Some(named)), "{calls:#?}");
    }
}

#[test]
fn a_folder_whose_sync_fails_is_not_published() {
    let eio = [Refused { call: libc::SYS_fsync, errno: libc::EIO }];
    let temp = TestFolder::new();
    let dir = PartialDir::create(&temp.target).unwrap();
    let failed = refusing(&eio, || dir.publish()).unwrap_err().to_string();
    assert!(failed.contains("cannot sync"), "{failed}");
    temp.has(&[]);
    let failed = refusing(&eio, || replace_file(&temp.target, b"text")).unwrap_err().to_string();
    assert!(failed.contains("cannot sync"), "{failed}");
    temp.has(&[]);
}

// Files.

#[test]
fn a_file_is_replaced_whole_and_keeps_its_permissions() {
    let temp = TestFolder::new();
    replace_file(&temp.target, b"one").unwrap();
    fs::set_permissions(&temp.target, fs::Permissions::from_mode(0o4660)).unwrap();
    let mut file = PartialFile::create(&temp.target).unwrap();
    file.write_all(b"two").unwrap();
    assert_eq!(fs::read(&temp.target).unwrap(), b"one");
    file.publish().unwrap();
    assert_eq!(fs::read(&temp.target).unwrap(), b"two");
    // Except the bit that lets a program run as its owner.
    assert_eq!(fs::metadata(&temp.target).unwrap().permissions().mode() & 0o7777, 0o660);
    temp.has(&["out"]);

    let refused = PartialFile::create_new(&temp.target).unwrap_err().to_string();
    assert!(refused.contains("already exists"), "{refused}");
    fs::remove_file(&temp.target).unwrap();
    let file = PartialFile::create_new(&temp.target).unwrap();
    fs::write(&temp.target, "somebody else's").unwrap();
    file.publish().unwrap_err();
    assert_eq!(fs::read(&temp.target).unwrap(), b"somebody else's");
    temp.has(&["out"]);
}

#[test]
fn a_file_and_its_name_are_made_durable() {
    let links = Refused { call: libc::SYS_linkat, errno: libc::EPERM };
    // Fewer bytes than a writer buffers until it is flushed, and more.
    for bytes in [&[7; 10][..], &[7; 20_000]] {
        let temp = TestFolder::new();
        let lock = Lock::within(temp.home.path()).unwrap();
        let finish = |file: Result<PartialFile>| {
            let mut file = file.unwrap();
            file.write_all(bytes).unwrap();
            file.publish().unwrap();
        };
        let ways: [(&str, &(dyn Fn() + Sync)); 5] = [
            ("new", &|| finish(PartialFile::create_new(&temp.target))),
            ("replaced", &|| finish(PartialFile::create(&temp.target))),
            ("replaced at once", &|| replace_file(&temp.target, bytes).unwrap()),
            ("replaced under a lock", &|| replace_file_under(&lock, &temp.target, bytes).unwrap()),
            ("new without links", &|| {
                fs::remove_file(&temp.target).unwrap();
                refusing(&[links], || finish(PartialFile::create_new(&temp.target)));
            }),
        ];
        for (way, write) in ways {
            let ((), calls) = observe(write);
            println!("a file that is {way}, of {} bytes", bytes.len());
            assert_durable(&calls, &temp.target);
            assert_eq!(fs::read(&temp.target).unwrap(), bytes);
        }
    }
}

#[test]
fn the_second_writer_of_a_file_is_refused() {
    for refused in [&[][..], &[no_flock(libc::EOPNOTSUPP)]] {
        refusing(refused, || {
            let temp = TestFolder::new();
            let link = temp.home.path().join("link");
            symlink("out", &link).unwrap();
            let mut file = PartialFile::create(&temp.target).unwrap();
            for path in [&temp.target, &link] {
                let refused = PartialFile::create(path).unwrap_err().to_string();
                assert!(refused.contains("another process is writing"), "{refused}");
            }
            file.write_all(b"first").unwrap();
            file.publish().unwrap();
            assert_eq!(fs::read(&temp.target).unwrap(), b"first");
            PartialFile::create(&link).unwrap().publish().unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read(&temp.target).unwrap(), b"");
            temp.has(&["link", "out"]);
        });
    }
}

#[test]
fn small_files_wait_for_each_other() {
    let temp = TestFolder::new();
    thread::scope(|scope| {
        for letter in [b'a', b'b', b'c', b'd'] {
            let target = &temp.target;
            scope.spawn(move || (0..20).for_each(|_| replace_file(target, &[letter; 9000]).unwrap()));
        }
    });
    let bytes = fs::read(&temp.target).unwrap();
    assert!(bytes.len() == 9000 && bytes.iter().all(|&byte| byte == bytes[0]));
    temp.has(&["out"]);
}

#[test]
fn leftovers_of_a_file_are_removed_and_those_of_others_are_not() {
    let temp = TestFolder::new();
    let leftover = |name: &str| format!(".{name}.{}.partial", unique_suffix());
    let own = leftover("out");
    let others = [leftover("out.csv"), leftover("other"), ".out.notes.partial".into(), "out.partial".into()];
    for name in others.iter().chain([&own]) {
        fs::write(temp.home.path().join(name), "text").unwrap();
    }
    replace_file(&temp.target, b"text").unwrap();
    let mut expected: BTreeSet<_> = others.into();
    expected.insert("out".into());
    assert_eq!(temp.names(), expected);
}

#[test]
fn pipes_and_devices_are_written_and_not_replaced() {
    let temp = TestFolder::new();
    fifo(&temp.target);
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut text = String::new();
            File::open(&temp.target).unwrap().read_to_string(&mut text).unwrap();
            send.send(text).unwrap();
        });
        let mut file = PartialFile::create(&temp.target).unwrap();
        file.write_all(b"through the pipe").unwrap();
        file.publish().unwrap();
    });
    assert_eq!(receive.recv().unwrap(), "through the pipe");
    temp.has(&["out"]);
    let mut null = PartialFile::create(Path::new("/dev/null")).unwrap();
    null.write_all(b"nowhere").unwrap();
    null.publish().unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    let mut full = PartialFile::create(Path::new("/dev/full")).unwrap();
    full.write_all(b"nowhere").unwrap();
    full.publish().unwrap_err();
    assert!(replace_file(temp.home.path(), b"").unwrap_err().to_string().ends_with("it is a folder"));
}

#[test]
fn only_an_earlier_output_is_replaced() {
    const NOTE: OwnOutput =
        OwnOutput { what: "a note", is_own: |start| start.starts_with(b"note"), way_out: "remove it" };
    let temp = TestFolder::new();
    let replace = |text: &[u8]| NOTE.replace(&temp.target, text);
    let create = |text: &[u8]| {
        let mut file = NOTE.create(&temp.target)?;
        file.write_all(text).unwrap();
        file.publish()
    };
    for creates in [false, true] {
        let write = |text: &[u8]| if creates { create(text) } else { replace(text) };
        write(b"note 1").unwrap();
        write(b"note 2").unwrap();
        assert_eq!(fs::read(&temp.target).unwrap(), b"note 2");
        // Such as a file that mktemp made.
        fs::write(&temp.target, "").unwrap();
        write(b"note 3").unwrap();
        for other in ["a note", "x", "\u{e9}"] {
            fs::write(&temp.target, other).unwrap();
            let refused = write(b"note 4").unwrap_err();
            assert!(matches!(refused, Error::Exists { .. }), "{refused:?}");
            let words = "exists and is not a note: choose another file, or remove it";
            assert_eq!(refused.to_string(), format!("{} {words}", temp.target.display()));
            assert_eq!(fs::read_to_string(&temp.target).unwrap(), other);
            temp.has(&["out"]);
        }
        fs::remove_file(&temp.target).unwrap();
    }
    // Under another name.
    let [other, link] = ["other", "link"].map(|name| temp.home.path().join(name));
    fs::write(&other, "mine").unwrap();
    symlink(&other, &link).unwrap();
    assert!(NOTE.check(&link).is_err() && NOTE.replace(&link, b"note").is_err());
    fs::write(&other, "note").unwrap();
    NOTE.check(&link).unwrap();
    // Neither a pipe, which would wait, nor a device is read.
    fifo(&temp.target);
    for stream in [&*temp.target, Path::new("/dev/null"), Path::new("/dev/zero"), Path::new("/dev/stdout")] {
        NOTE.check(stream).unwrap();
    }
}

/// A file is recognized by its first 4096 bytes.
#[test]
fn an_earlier_output_is_recognized_by_its_start() {
    let temp = TestFolder::new();
    for (before, recognized) in [(4092, true), (4093, false)] {
        let marked = OwnOutput { what: "marked", is_own: |start| start.ends_with(b"mark"), way_out: "" };
        fs::write(&temp.target, "x".repeat(before) + "mark" + &"y".repeat(9000)).unwrap();
        assert_eq!(marked.check(&temp.target).is_ok(), recognized, "{before}");
    }
}

#[test]
fn outputs_that_are_inputs_are_refused() {
    let temp = TestFolder::new();
    let path = |name: &str| temp.home.path().join(name);
    fs::create_dir_all(path("data/train")).unwrap();
    fs::create_dir_all(path("out.partial")).unwrap();
    fs::write(path("log.tsv"), "").unwrap();
    fs::write(path("data/train/x"), "").unwrap();
    fs::write(path("out.partial/bad.tsv"), "").unwrap();
    fs::hard_link(path("log.tsv"), path("twin.tsv")).unwrap();
    symlink("log.tsv", path("link.tsv")).unwrap();
    symlink("data", path("dataset")).unwrap();
    symlink("data/new.csv", path("new.csv")).unwrap();
    let refused = |out: &str, input: &str| refuse_inputs(&path(out), [path(input)]).is_err();
    for (out, input) in [
        ("log.tsv", "log.tsv"),
        ("data/../log.tsv", "link.tsv"),
        ("link.tsv", "log.tsv"),
        ("twin.tsv", "log.tsv"),
        ("data", "dataset"),
        ("dataset/train/y", "data"),
        ("new.csv", "data"),
        ("data", "data/train/x"),
        ("out", "out.partial/bad.tsv"),
    ] {
        assert!(refused(out, input), "{out} and {input}");
    }
    for (out, input) in [("out", "log.tsv"), ("data2", "data"), ("log.tsv2", "log.tsv"), ("a/b/c", "data")] {
        assert!(!refused(out, input), "{out} and {input}");
    }
    refuse_inputs(Path::new("/dev/null"), [Path::new("/dev/null")]).unwrap();
}

/// Kills and collects a process if a test fails.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_live_process_without_flock_is_not_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = KilledOnDrop(Command::new("sleep").arg("100").spawn().unwrap());
    let pid = child.0.id();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start_ticks =
        stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap();
    plant(&dir.path().join(".lock"), &Owner { pid, start_ticks, ..Owner::this_process(false) });
    for refused in [&[][..], &[no_flock(libc::ENOSYS)]] {
        refusing(refused, || Lock::within(dir.path())).unwrap_err();
    }
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    refusing(&[no_flock(libc::ENOSYS)], || Lock::within(dir.path())).unwrap();
}

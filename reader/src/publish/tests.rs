//! Locks that threads fight for, with flock and without; folders and files that are published.

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
use seccomp::{NO_FLOCK, Refused, refuse_in_this_thread};

pub(crate) mod file_calls;
#[path = "../../../tests/support/seccomp.rs"]
#[allow(dead_code, reason = "commands are not run here")]
pub(crate) mod seccomp;

/// How often a race is run.
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

/// Runs something in a thread in which some system calls fail.
fn refusing<T: Send>(refused: &[Refused], work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_in_this_thread(refused);
            work()
        });
        thread.join().unwrap()
    })
}

/// A record of a process that has ended.
fn dead_owner(flock: bool) -> Owner {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    Owner { pid, start_ticks: 1, ..Owner::this_process(flock) }
}

fn plant(path: &Path, owner: &Owner) {
    fs::write(path, serde_json::to_vec(owner).unwrap()).unwrap();
}

/// Lets threads, each with or without flock, fight for the lock of a folder; they may meet the record of a dead one.
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
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
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
fn one_thread_alone_takes_over_from_a_dead_process() {
    for _ in 0..repeats() {
        for owner in [dead_owner(true), dead_owner(false)] {
            for kinds in [[true; 4], [false; 4], [true, false, true, false]] {
                fight(&kinds, Some(&owner));
            }
        }
    }
}

#[test]
fn takeovers_that_were_cut_short_are_taken_over() {
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
fn a_lock_of_another_machine_is_kept_where_there_is_no_flock() {
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
    // A process with flock sees that nobody has one on the file, if its holder had one.
    plant(&path, &elsewhere(true));
    drop(Lock::within(dir.path()).unwrap());
    plant(&path, &elsewhere(false));
    Lock::within(dir.path()).unwrap_err();
}

#[test]
fn a_holder_is_named_whether_there_is_flock_or_not() {
    let dir = tempfile::tempdir().unwrap();
    for holder in [&[][..], &[no_flock(libc::ENOSYS)]] {
        let lock = refusing(holder, || Lock::within(dir.path())).unwrap();
        for other in [&[][..], &[no_flock(libc::ENOLCK)]] {
            let refused = refusing(other, || Lock::within(dir.path())).unwrap_err().to_string();
            let pid = format!("process {} on ", std::process::id());
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
    let place = Place::new();
    let target = place.home.path().canonicalize().unwrap().join("out");
    let patience = Duration::from_millis(60);
    let held = Lock::beside(&target).unwrap();
    let began = Instant::now();
    let refused = Lock::beside_within(&target, patience).unwrap_err().to_string();
    assert!(refused.contains("another process is writing"), "{refused}");
    // A second for a busy machine, where the lock of a small file is waited for ten.
    assert!(
        (patience..Duration::from_secs(1) + patience).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    drop(held);
    drop(Lock::beside_within(&target, Duration::ZERO).unwrap());
}

/// What a process leaves that ends between making a file and writing its record into it.
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
fn unique_suffixes_are_known_as_such() {
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
fn what_is_planted_as_a_lock_is_neither_followed_nor_waited_for() {
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

struct Place {
    home: TempDir,
    target: PathBuf,
}

impl Place {
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
fn of_two_that_publish_one_folder_exactly_one_wins_whatever_the_order() {
    for _ in 0..repeats() * 4 {
        let place = Place::new();
        let start = Barrier::new(2);
        let publish = |letter: &str| {
            start.wait();
            let dir = PartialDir::create(&place.target)?;
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
        assert_eq!(names(&place.target), (0..3).map(|number| format!("{letter}{number}")).collect());
        place.has(&["out"]);
        let loser = outcomes.iter().find_map(|(_, outcome)| outcome.as_ref().err()).unwrap().to_string();
        assert!(loser.contains("another process") || loser.contains("is there already"), "{loser}");
    }
}

#[test]
fn a_folder_is_locked_until_it_has_its_name() {
    let place = Place::new();
    let dir = PartialDir::create(&place.target).unwrap();
    // As seen by another process while the folder is being renamed: the lock is neither in it nor released.
    place.has(&[".out.lock", "out.partial"]);
    assert!(PartialDir::create(&place.target).is_err());
    drop(dir);
    place.has(&[]);
}

#[test]
fn a_folder_that_was_filled_meanwhile_is_not_replaced_and_what_was_written_is_kept() {
    let place = Place::new();
    let dir = PartialDir::create(&place.target).unwrap();
    fs::write(dir.path().join("new"), "new").unwrap();
    fs::create_dir(&place.target).unwrap();
    fs::write(place.target.join("old"), "old").unwrap();
    let refused = dir.publish().unwrap_err().to_string();
    assert!(refused.contains("out.partial") && refused.contains("It is complete"), "{refused}");
    place.has(&["out", "out.partial"]);
    assert_eq!(names(&place.target), BTreeSet::from(["old".into()]));
    // It is no leftover: whoever comes next does not remove it.
    fs::remove_dir_all(&place.target).unwrap();
    let refused = PartialDir::create(&place.target).unwrap_err().to_string();
    assert!(refused.contains("in the way"), "{refused}");
    assert_eq!(names(&place.home.path().join("out.partial")), BTreeSet::from(["new".into()]));
}

#[test]
fn a_dead_process_leftover_is_removed_and_other_folders_are_not() {
    let place = Place::new();
    let dir = PartialDir::create(&place.target).unwrap();
    fs::create_dir(dir.path().join("train")).unwrap();
    fs::write(dir.path().join("train/blocks"), [0; 100]).unwrap();
    // As kill -9 leaves it.
    std::mem::forget(dir);
    fs::remove_file(place.home.path().join(".out.lock")).unwrap();
    plant(&place.home.path().join(".out.lock"), &dead_owner(true));
    let dir = PartialDir::create(&place.target).unwrap();
    assert!(!dir.path().join("train").exists());
    dir.publish().unwrap();
    place.has(&["out"]);
    assert_eq!(names(&place.target), BTreeSet::new());

    let other = place.home.path().join("data.partial");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), "kept").unwrap();
    PartialDir::create(&place.home.path().join("data")).unwrap_err();
    PartialDir::create(&other).unwrap_err();
    assert_eq!(fs::read(other.join("precious")).unwrap(), b"kept");
}

#[test]
fn a_folder_is_begun_only_where_it_can_be_published() {
    let place = Place::new();
    let refused = |path: &Path| PartialDir::create(path).unwrap_err().to_string();
    let partial = place.home.path().join("new.partial");
    assert!(refused(&partial).contains("names that end with .partial"), "{}", refused(&partial));
    assert!(refused(Path::new("/proc")).contains("is a mount point"));
    fs::create_dir(&place.target).unwrap();
    fs::write(place.target.join("old"), "old").unwrap();
    assert!(refused(&place.target).contains("is there already and is not empty"));
    place.has(&["out"]);
    // An empty folder is replaced; and one in the making that has no marker yet is a leftover.
    fs::remove_file(place.target.join("old")).unwrap();
    fs::create_dir(place.home.path().join("out.partial")).unwrap();
    PartialDir::create(&place.target).unwrap().publish().unwrap();
    place.has(&["out"]);
}

#[test]
fn a_link_to_a_folder_is_followed() {
    let place = Place::new();
    let (store, link) = (place.home.path().join("store"), place.home.path().join("link"));
    symlink(&store, &link).unwrap();
    let dir = PartialDir::create(&link).unwrap();
    // Both names are one target.
    assert!(PartialDir::create(&store).is_err());
    dir.publish().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && store.is_dir());
    place.has(&["link", "store"]);
}

#[test]
fn a_folder_is_on_disk_before_it_gets_its_name_and_so_is_the_name() {
    let place = Place::new();
    let (_, calls) = observe(|| {
        let dir = PartialDir::create(&place.target).unwrap();
        fs::create_dir_all(dir.path().join("part/of/it")).unwrap();
        for name in ["top", "part/of/it/bottom"] {
            crate::write::write_file(dir.path(), name, b"text").unwrap();
        }
        dir.publish().unwrap();
    });
    assert_durable(&calls, &place.target);
    assert_eq!(names(&place.target), BTreeSet::from(["part".into(), "top".into()]), "the marker is gone");
}

#[test]
fn the_names_of_folders_that_are_made_on_the_way_are_synced() {
    let place = Place::new();
    let home = place.home.path().canonicalize().unwrap();
    let ((), calls) = observe(|| drop(PartialDir::create(&home.join("a/b/out")).unwrap()));
    for (folder, parent) in [("a", home.clone()), ("a/b", home.join("a"))] {
        let made = calls.iter().position(|call| *call == FileCall::Create(home.join(folder)));
        let behind = &calls[made.unwrap_or_else(|| panic!("{folder} was not made: {calls:#?}"))..];
        assert!(behind.contains(&FileCall::Sync(parent)), "the name of {folder} was not synced: {calls:#?}");
    }
}

/// Where no flock tells that a holder has ended, its record does: it must be on disk before it counts.
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
        // Without links the record is written where it counts at once.
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
    let place = Place::new();
    let dir = PartialDir::create(&place.target).unwrap();
    let failed = refusing(&eio, || dir.publish()).unwrap_err().to_string();
    assert!(failed.contains("cannot sync"), "{failed}");
    place.has(&[]);
    let failed = refusing(&eio, || replace_file(&place.target, b"text")).unwrap_err().to_string();
    assert!(failed.contains("cannot sync"), "{failed}");
    place.has(&[]);
}

// Files.

#[test]
fn a_file_is_replaced_whole_and_keeps_its_permissions() {
    let place = Place::new();
    replace_file(&place.target, b"one").unwrap();
    fs::set_permissions(&place.target, fs::Permissions::from_mode(0o4660)).unwrap();
    let mut file = PartialFile::create(&place.target).unwrap();
    file.write_all(b"two").unwrap();
    assert_eq!(fs::read(&place.target).unwrap(), b"one");
    file.publish().unwrap();
    assert_eq!(fs::read(&place.target).unwrap(), b"two");
    // But for the bit that lets a program run as its owner.
    assert_eq!(fs::metadata(&place.target).unwrap().permissions().mode() & 0o7777, 0o660);
    place.has(&["out"]);

    let refused = PartialFile::create_new(&place.target).unwrap_err().to_string();
    assert!(refused.contains("is there already"), "{refused}");
    fs::remove_file(&place.target).unwrap();
    let file = PartialFile::create_new(&place.target).unwrap();
    fs::write(&place.target, "somebody else's").unwrap();
    file.publish().unwrap_err();
    assert_eq!(fs::read(&place.target).unwrap(), b"somebody else's");
    place.has(&["out"]);
}

#[test]
fn a_file_is_on_disk_before_it_gets_its_name_and_so_is_the_name() {
    let links = Refused { call: libc::SYS_linkat, errno: libc::EPERM };
    // Fewer bytes than a writer keeps back until it is flushed, and more.
    for bytes in [&[7; 10][..], &[7; 20_000]] {
        let place = Place::new();
        let lock = Lock::within(place.home.path()).unwrap();
        let finish = |file: Result<PartialFile>| {
            let mut file = file.unwrap();
            file.write_all(bytes).unwrap();
            file.publish().unwrap();
        };
        let ways: [(&str, &(dyn Fn() + Sync)); 5] = [
            ("new", &|| finish(PartialFile::create_new(&place.target))),
            ("replaced", &|| finish(PartialFile::create(&place.target))),
            ("replaced at once", &|| replace_file(&place.target, bytes).unwrap()),
            ("replaced under a lock", &|| replace_file_under(&lock, &place.target, bytes).unwrap()),
            ("new without links", &|| {
                fs::remove_file(&place.target).unwrap();
                refusing(&[links], || finish(PartialFile::create_new(&place.target)));
            }),
        ];
        for (way, write) in ways {
            let ((), calls) = observe(write);
            println!("a file that is {way}, of {} bytes", bytes.len());
            assert_durable(&calls, &place.target);
            assert_eq!(fs::read(&place.target).unwrap(), bytes);
        }
    }
}

#[test]
fn of_two_writers_of_a_file_the_second_is_refused() {
    for refused in [&[][..], &[no_flock(libc::EOPNOTSUPP)]] {
        refusing(refused, || {
            let place = Place::new();
            let link = place.home.path().join("link");
            symlink("out", &link).unwrap();
            let mut file = PartialFile::create(&place.target).unwrap();
            for path in [&place.target, &link] {
                let refused = PartialFile::create(path).unwrap_err().to_string();
                assert!(refused.contains("another process is writing"), "{refused}");
            }
            file.write_all(b"first").unwrap();
            file.publish().unwrap();
            assert_eq!(fs::read(&place.target).unwrap(), b"first");
            PartialFile::create(&link).unwrap().publish().unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read(&place.target).unwrap(), b"");
            place.has(&["link", "out"]);
        });
    }
}

#[test]
fn small_files_wait_for_each_other() {
    let place = Place::new();
    thread::scope(|scope| {
        for letter in [b'a', b'b', b'c', b'd'] {
            let target = &place.target;
            scope.spawn(move || (0..20).for_each(|_| replace_file(target, &[letter; 9000]).unwrap()));
        }
    });
    let bytes = fs::read(&place.target).unwrap();
    assert!(bytes.len() == 9000 && bytes.iter().all(|&byte| byte == bytes[0]));
    place.has(&["out"]);
}

#[test]
fn leftovers_of_a_file_are_removed_and_those_of_others_are_not() {
    let place = Place::new();
    let leftover = |name: &str| format!(".{name}.{}.partial", unique_suffix());
    let own = leftover("out");
    let others = [leftover("out.csv"), leftover("other"), ".out.notes.partial".into(), "out.partial".into()];
    for name in others.iter().chain([&own]) {
        fs::write(place.home.path().join(name), "text").unwrap();
    }
    replace_file(&place.target, b"text").unwrap();
    let mut expected: BTreeSet<_> = others.into();
    expected.insert("out".into());
    assert_eq!(place.names(), expected);
}

#[test]
fn pipes_and_devices_are_written_and_stay_what_they_are() {
    let place = Place::new();
    fifo(&place.target);
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut text = String::new();
            File::open(&place.target).unwrap().read_to_string(&mut text).unwrap();
            send.send(text).unwrap();
        });
        let mut file = PartialFile::create(&place.target).unwrap();
        file.write_all(b"through the pipe").unwrap();
        file.publish().unwrap();
    });
    assert_eq!(receive.recv().unwrap(), "through the pipe");
    place.has(&["out"]);
    let mut null = PartialFile::create(Path::new("/dev/null")).unwrap();
    null.write_all(b"nowhere").unwrap();
    null.publish().unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    let mut full = PartialFile::create(Path::new("/dev/full")).unwrap();
    full.write_all(b"nowhere").unwrap();
    full.publish().unwrap_err();
    assert!(replace_file(place.home.path(), b"").unwrap_err().to_string().ends_with("it is a folder"));
}

#[test]
fn outputs_that_are_inputs_are_refused() {
    let place = Place::new();
    let path = |name: &str| place.home.path().join(name);
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

/// Keeps a process from staying behind where a test fails.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_live_process_without_flock_is_not_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Reaped(Command::new("sleep").arg("100").spawn().unwrap());
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

//! Runs commands and checks that their outputs are durable: each call that syncs or renames is observed before it is
//! made.
//!
//! The kernel stops the command at such a call and notifies this process (`SECCOMP_RET_USER_NOTIF`), which inspects the
//! files while the command waits. A file is durable as of its last sync, and so are the names in a folder. A file or
//! folder must be durable before it gets its final name, and everything must be durable when the command ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{mem, ptr, thread};

use libc::{c_long, seccomp_notif, seccomp_notif_resp, sock_fprog};

use super::{Ended, seccomp};

/// An observed system call, which is not made yet.
#[derive(Debug)]
pub(crate) enum Call<'a> {
    /// A file or a folder is synced.
    Sync(&'a Path),
    /// A file or a folder is renamed or linked.
    Rename { to: &'a Path },
}

/// Runs a command to its end, and calls `observe` before each of its calls. Checks that everything in `folder` is
/// durable at the end, and that everything is durable before it is renamed there; files that exist at the start count
/// as durable. Returns the number of renames.
#[track_caller]
pub(crate) fn run(mut command: Command, folder: &Path, mut observe: impl FnMut(Call<'_>)) -> (Ended, usize) {
    let (own, theirs) = UnixStream::pair().expect("there are sockets");
    let mut filter = seccomp::filter(CALLS.iter().map(|(call, _)| (*call, libc::SECCOMP_RET_USER_NOTIF)));
    let hand_over = move || {
        let listener = install(&mut filter)?;
        send(theirs.as_raw_fd(), &listener)
    };
    // SAFETY: the closure neither allocates nor takes locks; it only makes system calls.
    unsafe { command.pre_exec(hand_over) };
    let folder = folder.canonicalize().expect("the folder exists");
    let mut disk = Disk { folder, files: BTreeMap::new(), folders: BTreeMap::new(), faults: BTreeSet::new() };
    disk.sync_all(&disk.folder.clone());
    let mut renames = 0;
    let ended = thread::scope(|scope| {
        // The thread owns the command and thus its end of the socket, which closes when the command has ended.
        let ended = scope.spawn(|| Ended::of(command));
        if let Some(listener) = receive(own.as_raw_fd()) {
            while let Some(notice) = next(&listener) {
                disk.observe(&notice, &mut observe, &mut renames);
                allow(&listener, notice.id);
            }
        }
        ended.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let folder = disk.folder.clone();
    disk.check(&folder, "at the end");
    assert!(disk.faults.is_empty(), "{:#?}\n{}", disk.faults, ended.stderr);
    (ended, renames)
}

/// The kind of a call, with the positions of its path arguments.
#[derive(Debug, Clone, Copy)]
enum CallKind {
    Sync,
    /// From a path to a path.
    Rename(usize, usize),
    /// The same, with each path relative to the folder in the argument before it.
    RenameAt(usize, usize),
}

const CALLS: [(c_long, CallKind); 7] = [
    (libc::SYS_fsync, CallKind::Sync),
    (libc::SYS_fdatasync, CallKind::Sync),
    (libc::SYS_rename, CallKind::Rename(0, 1)),
    (libc::SYS_link, CallKind::Rename(0, 1)),
    (libc::SYS_renameat, CallKind::RenameAt(1, 3)),
    (libc::SYS_renameat2, CallKind::RenameAt(1, 3)),
    (libc::SYS_linkat, CallKind::RenameAt(1, 3)),
];

/// A file's device and inode.
type Id = (u64, u64);

/// What the disk would have after a power failure now.
struct Disk {
    folder: PathBuf,
    /// Files at their last sync: their length, and the time of the last write.
    files: BTreeMap<Id, Version>,
    /// The names in folders at their last sync.
    folders: BTreeMap<Id, BTreeMap<OsString, Id>>,
    /// Errors: files and folders that were not synced in time.
    faults: BTreeSet<String>,
}

type Version = (u64, i64, i64);

fn id(of: &Metadata) -> Id {
    (of.dev(), of.ino())
}

fn version(of: &Metadata) -> Version {
    (of.len(), of.mtime(), of.mtime_nsec())
}

/// Returns the names in a folder and the files that they refer to, without locks, which need not be durable.
fn names(folder: &Path) -> BTreeMap<OsString, Id> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.file_name(), id(&entry.metadata().ok()?))));
    named.filter(|(name, _)| !is_lock(name)).collect()
}

fn is_lock(name: &OsStr) -> bool {
    name.to_string_lossy().ends_with(".lock")
}

impl Disk {
    fn observe(&mut self, notice: &seccomp_notif, observe: &mut impl FnMut(Call<'_>), renames: &mut usize) {
        let process = PathBuf::from(format!("/proc/{}", notice.pid));
        let argument = |number: usize| notice.data.args[number];
        let descriptor = |number: usize| process.join(format!("fd/{}", argument(number) as RawFd));
        let path = |number: usize, at: Option<usize>| {
            let at = at.filter(|at| argument(*at) as RawFd != libc::AT_FDCWD);
            let base = at.map_or_else(|| process.join("cwd"), descriptor);
            let path = fs::read_link(base).ok()?.join(text(&process, argument(number))?);
            // A path through one of the command's descriptors is below what that one is open on.
            let Ok(below) = path.strip_prefix("/proc/self/fd") else { return Some(path) };
            let (number, rest) = (below.iter().next()?, below.iter().skip(1));
            Some(fs::read_link(process.join("fd").join(number)).ok()?.join(rest.collect::<PathBuf>()))
        };
        let call = CALLS.iter().find(|(call, _)| *call == c_long::from(notice.data.nr));
        let (from, to) = match call.expect("the filter only notifies of these calls").1 {
            CallKind::Sync => {
                let opened = descriptor(0);
                if let (Ok(path), Ok(metadata)) = (fs::read_link(&opened), fs::metadata(&opened)) {
                    self.sync(&path, &metadata);
                    observe(Call::Sync(&path));
                }
                return;
            }
            CallKind::Rename(from, to) => (path(from, None), path(to, None)),
            CallKind::RenameAt(from, to) => (path(from, Some(from - 1)), path(to, Some(to - 1))),
        };
        let (from, to) = from.zip(to).expect("the command waits, so its arguments can be read");
        if to.starts_with(&self.folder) && !to.file_name().is_some_and(is_lock) {
            *renames += 1;
            self.check(&from, &format!("when it was renamed to {}", to.display()));
            observe(Call::Rename { to: &to });
        }
    }

    /// Records the present state of a file, or of a folder with the names in it, as durable.
    fn sync(&mut self, path: &Path, metadata: &Metadata) {
        if metadata.is_dir() {
            self.folders.insert(id(metadata), names(path));
        } else {
            self.files.insert(id(metadata), version(metadata));
        }
    }

    fn sync_all(&mut self, path: &Path) {
        let metadata = fs::symlink_metadata(path).expect("no other process changes the folder");
        self.sync(path, &metadata);
        if metadata.is_dir() {
            names(path).keys().for_each(|name| self.sync_all(&path.join(name)));
        }
    }

    /// Checks that a file, or everything below a folder, would survive a power failure.
    fn check(&mut self, path: &Path, when: &str) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        let durable = if metadata.is_dir() {
            let names = names(path);
            names.keys().for_each(|name| self.check(&path.join(name), when));
            let durable = self.folders.get(&id(&metadata));
            names.iter().all(|(name, id)| durable.is_some_and(|durable| durable.get(name) == Some(id)))
        } else {
            self.files.get(&id(&metadata)) == Some(&version(&metadata))
        };
        if !durable {
            self.faults.insert(format!("{} was not synced {when}", path.display()));
        }
    }
}

/// Reads a path from the memory of a stopped process.
fn text(process: &Path, address: u64) -> Option<PathBuf> {
    const PAGE: u64 = 4096;
    let memory = File::open(process.join("mem")).ok()?;
    let (mut bytes, mut at) = (Vec::new(), address);
    while !bytes.contains(&0) {
        // The next page may not be mapped.
        let mut piece = vec![0; (PAGE - at % PAGE) as usize];
        memory.read_exact_at(&mut piece, at).ok()?;
        at += piece.len() as u64;
        bytes.extend(piece);
    }
    let end = bytes.iter().position(|byte| *byte == 0)?;
    bytes.truncate(end);
    Some(PathBuf::from(String::from_utf8(bytes).ok()?))
}

/// Installs the filter in this process. The owner of the returned descriptor is notified of its calls.
fn install(filter: &mut [libc::sock_filter]) -> io::Result<OwnedFd> {
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls are async-signal-safe; the kernel copies the instructions that the program points to, and
    // nothing else owns the descriptor that it returns.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        match libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) {
            -1 => Err(io::Error::last_os_error()),
            listener => Ok(OwnedFd::from_raw_fd(listener as RawFd)),
        }
    }
}

/// A buffer for the control message of one descriptor.
#[repr(align(8))]
struct Control([u8; 64]);

/// Calls `use_message` to send or receive one byte with a descriptor.
fn with_message(use_message: impl FnOnce(&mut libc::msghdr) -> isize) -> io::Result<Option<Control>> {
    let (mut byte, mut control) = ([0u8], Control([0; 64]));
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all fields may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    match use_message(&mut message) {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ => Ok(Some(control)),
    }
}

fn send(socket: RawFd, descriptor: &OwnedFd) -> io::Result<()> {
    let sent = with_message(|message| {
        // SAFETY: the control buffer is aligned, and has room for the header and a descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(message);
            ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            ptr::write_unaligned(libc::CMSG_DATA(header).cast(), descriptor.as_raw_fd());
            libc::sendmsg(socket, message, 0)
        }
    });
    sent.map(drop)
}

/// Receives a descriptor; `None` if the sender has ended.
fn receive(socket: RawFd) -> Option<OwnedFd> {
    let control = with_message(|message| {
        // SAFETY: the buffers of the message live through the call.
        unsafe { libc::recvmsg(socket, message, libc::MSG_CMSG_CLOEXEC) }
    });
    let control = control.expect("the socket works")?;
    let at = size_of::<libc::cmsghdr>();
    let descriptor = RawFd::from_ne_bytes(control.0[at..at + size_of::<RawFd>()].try_into().ok()?);
    // SAFETY: the kernel has made the descriptor for this process, and nothing else owns it.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Waits for the next call; `None` once the command has ended.
fn next(listener: &OwnedFd) -> Option<seccomp_notif> {
    loop {
        let mut ready = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the call reads and writes one `pollfd`.
        if unsafe { libc::poll(&raw mut ready, 1, -1) } < 0 {
            continue;
        }
        if ready.revents & libc::POLLIN == 0 {
            return None;
        }
        // SAFETY: the kernel requires a zeroed structure, which it fills; all fields are integers.
        let (received, notice) = unsafe {
            let mut notice: seccomp_notif = mem::zeroed();
            (libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice), notice)
        };
        match received {
            0 => return Some(notice),
            // The process was killed in the meantime.
            _ if io::Error::last_os_error().kind() == ErrorKind::NotFound => {}
            _ => panic!("{}", io::Error::last_os_error()),
        }
    }
}

/// Lets the stopped process make its call.
fn allow(listener: &OwnedFd, id: u64) {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let answer = seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: the kernel reads the answer, which lives through the call. A process that was killed needs no answer.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
}

//! The system calls with which a thread changes files, in order: what is synced before it gets its name.
//!
//! A seccomp filter reports each such call to the test, which inspects its arguments and lets it continue: nothing
//! needs to be installed, and the tested code is the code that ships. Needs Linux 5.5.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use libc::{c_long, sock_filter, sock_fprog};

use super::seccomp;

/// A call that changes a file or a folder. It is recorded before it is made, so it may have failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileCall {
    /// Opens a file that may not exist yet, or creates a folder.
    Create(PathBuf),
    /// Changes a file's bytes or length.
    Write(PathBuf),
    /// Syncs a file or a folder.
    Sync(PathBuf),
    /// Gives a file or folder another name, or a second one.
    Name { from: PathBuf, to: PathBuf },
    /// Removes a name.
    Remove(PathBuf),
}

/// Runs `work` in a separate thread; returns the calls with which this thread and its children change files.
pub(crate) fn observe<T: Send>(work: impl FnOnce() -> T + Send) -> (T, Vec<FileCall>) {
    let (send, receive) = mpsc::channel();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            /// Ends the observation even if `work` panics.
            struct End<'a>(&'a AtomicBool);
            impl Drop for End<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::SeqCst);
                }
            }
            let _end = End(&ended);
            send.send(install()).expect("the observer waits for it");
            work()
        });
        let listener = receive.recv().expect("the thread sends it first");
        let listener = listener.expect("Linux 5.5 reports file calls to one listener");
        let calls = follow(&listener, &ended);
        (worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), calls)
    })
}

/// Fails unless everything that `calls` published under the name `target`, a file or a folder, was durable before it
/// got that name, and the name itself was made durable afterwards.
#[track_caller]
pub(crate) fn assert_durable(calls: &[FileCall], target: &Path) {
    let parent = target.parent().expect("a target has a parent folder");
    let target =
        parent.canonicalize().expect("the folder exists").join(target.file_name().expect("it has a name"));
    let parent = target.parent().expect("a target has a parent folder");
    let named = calls.iter().rposition(|call| matches!(call, FileCall::Name { to, .. } if *to == target));
    let named = named.unwrap_or_else(|| panic!("nothing was renamed to {}:\n{calls:#?}", target.display()));
    let FileCall::Name { from, .. } = &calls[named] else { unreachable!("it was looked for") };
    let after = &calls[named + 1..];
    assert!(
        after.contains(&FileCall::Sync(parent.to_owned())),
        "the name {} was not synced:\n{calls:#?}",
        target.display()
    );
    let late = after.iter().find(|call| matches!(call, FileCall::Write(path) if path.starts_with(&target)));
    assert_eq!(late, None, "written after it got its name");
    let mut left = vec![target.clone()];
    while let Some(path) = left.pop() {
        let below = path.strip_prefix(&target).expect("it is below the target");
        let at = if below == Path::new("") { from.clone() } else { from.join(below) };
        let is_dir = path.is_dir();
        let changes = |call: &FileCall| match call {
            FileCall::Write(path) => !is_dir && *path == at,
            FileCall::Create(path) | FileCall::Remove(path) => is_dir && path.parent() == Some(&at),
            FileCall::Name { from, to } => is_dir && [from, to].iter().any(|name| name.parent() == Some(&at)),
            FileCall::Sync(_) => false,
        };
        let changed = calls[..named].iter().rposition(changes).map_or(0, |last| last + 1);
        assert!(
            calls[changed..named].contains(&FileCall::Sync(at.clone())),
            "{} got its name before it was synced:\n{calls:#?}",
            path.display()
        );
        if is_dir {
            let entries = fs::read_dir(&path).expect("the folder is read");
            left.extend(entries.map(|entry| entry.expect("the folder is read").path()));
        }
    }
}

/// The calls that are reported. Files are opened far too often to stop at each call: `openat` is reported only if it
/// may create a file.
const CALLS: [c_long; 18] = [
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_pwritev,
    libc::SYS_copy_file_range,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rmdir,
];

/// Installs the filter for this thread and its children, and returns the descriptor that delivers reports.
fn install() -> io::Result<OwnedFd> {
    let mut filter = seccomp::filter(CALLS.map(|call| (call, libc::SECCOMP_RET_USER_NOTIF)).into_iter());
    let allow = filter.pop().expect("it ends with the rule for all other calls");
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
    let jump = |how: u32, k: u32, jf: u8| instruction(libc::BPF_JMP | how | libc::BPF_K, 0, jf, k);
    // The arguments of a call start at byte 16 of `struct seccomp_data`.
    filter.extend([
        jump(libc::BPF_JEQ, libc::SYS_openat as u32, 3),
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + 2 * 8),
        jump(libc::BPF_JSET, libc::O_CREAT as u32, 1),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        allow,
    ]);
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the instructions that the program points to.
    let listener = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
}

/// Records calls and lets each continue until the thread has ended.
fn follow(listener: &OwnedFd, ended: &AtomicBool) -> Vec<FileCall> {
    let mut calls = Vec::new();
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is valid for one such value.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 5) };
        if ready <= 0 || poll.revents & libc::POLLIN == 0 {
            if ended.load(Ordering::SeqCst) {
                return calls;
            }
            continue;
        }
        // SAFETY: this is plain data, for which zeros are valid; the kernel requires zeros.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for a report.
        let received =
            unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) };
        // A process that was killed meanwhile has withdrawn its call.
        if received != 0 {
            continue;
        }
        calls.extend(file_call(call.pid, &call.data));
        let answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // SAFETY: the pointer is to an answer. If the process was killed meanwhile, nothing waits for it.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }
}

/// Returns what a call does to files; `None` if it concerns a pipe or the like.
fn file_call(thread: u32, data: &libc::seccomp_data) -> Option<FileCall> {
    let args = data.args;
    let open = |descriptor: u64| {
        let path = fs::read_link(format!("/proc/{thread}/fd/{}", descriptor as i32)).ok()?;
        path.is_absolute().then_some(path)
    };
    let here = libc::AT_FDCWD as u64;
    let path = |folder: u64, at: u64| {
        let name = PathBuf::from(std::ffi::OsString::from_vec(text_at(thread, at)?));
        let folder = if folder as i32 == libc::AT_FDCWD {
            fs::read_link(format!("/proc/{thread}/cwd")).ok()?
        } else {
            open(folder)?
        };
        let path = folder.join(name);
        let parent = path.parent()?.canonicalize().ok()?;
        Some(parent.join(path.file_name()?))
    };
    Some(match c_long::from(data.nr) {
        libc::SYS_openat => FileCall::Create(path(args[0], args[1])?),
        libc::SYS_mkdir => FileCall::Create(path(here, args[0])?),
        libc::SYS_mkdirat => FileCall::Create(path(args[0], args[1])?),
        libc::SYS_copy_file_range => FileCall::Write(open(args[2])?),
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev | libc::SYS_ftruncate => {
            FileCall::Write(open(args[0])?)
        }
        libc::SYS_fsync | libc::SYS_fdatasync => FileCall::Sync(open(args[0])?),
        libc::SYS_rename | libc::SYS_link => {
            FileCall::Name { from: path(here, args[0])?, to: path(here, args[1])? }
        }
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => {
            FileCall::Name { from: path(args[0], args[1])?, to: path(args[2], args[3])? }
        }
        libc::SYS_unlink | libc::SYS_rmdir => FileCall::Remove(path(here, args[0])?),
        libc::SYS_unlinkat => FileCall::Remove(path(args[0], args[1])?),
        _ => return None,
    })
}

/// Returns the zero-terminated text at an address of a process.
fn text_at(thread: u32, address: u64) -> Option<Vec<u8>> {
    const PAGE_BYTES: u64 = 4096;
    let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    let (mut text, mut at) = (Vec::new(), address);
    loop {
        // The page after the text may not be mapped.
        let mut piece = vec![0; (PAGE_BYTES - at % PAGE_BYTES) as usize];
        memory.read_exact_at(&mut piece, at).ok()?;
        at += piece.len() as u64;
        match piece.iter().position(|&byte| byte == 0) {
            Some(end) => {
                text.extend_from_slice(&piece[..end]);
                return Some(text);
            }
            None => text.extend(piece),
        }
    }
}

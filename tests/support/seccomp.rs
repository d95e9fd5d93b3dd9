//! Runs commands under a seccomp filter: chosen system calls fail with chosen errors, as on a file system or in a
//! container that refuses them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{c_long, sock_filter, sock_fprog};

/// A system call that fails, and the error that it returns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    /// The call: one of `libc::SYS_*`.
    pub(crate) call: c_long,
    /// The error: one of `libc::E*`.
    pub(crate) errno: i32,
}

/// The errors with which file systems without flock(2) refuse it.
pub(crate) const NO_FLOCK: [i32; 3] = [libc::ENOSYS, libc::ENOLCK, libc::EOPNOTSUPP];

/// Makes system calls of a command fail, and those of all processes that it starts.
pub(crate) fn refuse(command: &mut Command, refused: &[Refused]) {
    let mut filter = refusing(refused);
    // SAFETY: the closure neither allocates nor takes locks; it only makes system calls.
    unsafe { command.pre_exec(move || install(&mut filter)) };
}

/// Makes system calls of this thread fail from now on, and those of the threads that it starts.
pub(crate) fn refuse_in_this_thread(refused: &[Refused]) {
    install(&mut refusing(refused)).expect("the kernel accepts a filter");
}

fn install(filter: &mut [sock_filter]) -> io::Result<()> {
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls are async-signal-safe; the kernel copies the instructions that the program points to.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns a filter under which each refused call returns its error.
fn refusing(refused: &[Refused]) -> Vec<sock_filter> {
    let fails = |errno: i32| libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA);
    filter(refused.iter().map(|Refused { call, errno }| (*call, fails(*errno))))
}

/// Returns the instructions of a filter that takes an action for some calls and allows all others.
pub(super) fn filter(actions: impl Iterator<Item = (c_long, u32)>) -> Vec<sock_filter> {
    let instruction = |code: u32, jf: u8, k: u32| sock_filter { code: code as u16, jt: 0, jf, k };
    // The number of the call is the first field of `struct seccomp_data`.
    let mut filter = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (call, action) in actions {
        filter.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32));
        filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, action));
    }
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    filter
}

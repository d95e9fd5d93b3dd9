//! Commands that receive signals, and terminals to run them on.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A time limit that no wait of a test exceeds, even on a busy machine.
pub(crate) const LONG_ENOUGH: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG_ENOUGH, "{what}: not within {LONG_ENOUGH:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A running command, killed when dropped.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Running {
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("the command starts"))
    }

    /// Sends a signal.
    #[track_caller]
    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: the call accesses no memory; the child has not been waited for, so no other process has its PID.
        let sent = unsafe { libc::kill(self.0.id().cast_signed(), signal) };
        assert_eq!(sent, 0, "signal {signal} is sent");
    }

    /// Waits for the end; returns the exit code, or 128 plus the signal that killed the command.
    #[track_caller]
    pub(crate) fn end(&mut self) -> i32 {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("it can be waited for") {
                return code(status);
            }
            assert!(began.elapsed() < LONG_ENOUGH, "it still runs after {LONG_ENOUGH:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).expect("it ended")
}

/// Closes a descriptor of the command before it starts.
pub(crate) fn close(command: &mut Command, descriptor: libc::c_int) {
    let close = move || {
        // SAFETY: between fork and exec the call is async-signal-safe, and nothing here uses the descriptor.
        unsafe { libc::close(descriptor) };
        Ok(())
    };
    // SAFETY: the closure calls nothing else.
    unsafe { command.pre_exec(close) };
}

/// Starts the command with a signal ignored (`SIG_IGN`), as `nohup` does with SIGHUP, or with its default action
/// (`SIG_DFL`). Of several calls the last one counts.
pub(crate) fn set_signal(command: &mut Command, signal: libc::c_int, action: libc::sighandler_t) {
    let set = move || {
        // SAFETY: between fork and exec the call is async-signal-safe.
        unsafe { libc::signal(signal, action) };
        Ok(())
    };
    // SAFETY: the closure calls nothing else.
    unsafe { command.pre_exec(set) };
}

/// Starts the command with a limit on the size of any file that it writes, as `ulimit -f` sets it, and with the default
/// action of SIGXFSZ, which the kernel sends to a process that exceeds the limit.
pub(crate) fn limit_file_size(command: &mut Command, bytes: u64) {
    set_signal(command, libc::SIGXFSZ, libc::SIG_DFL);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let set = move || {
        // SAFETY: between fork and exec the call is async-signal-safe; it reads the limit and writes nothing.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure calls nothing else.
    unsafe { command.pre_exec(set) };
}

/// The user's side of a pseudo-terminal. When it is dropped, the terminal hangs up.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: File,
    /// The command's side, until a command is started.
    slave: Option<OwnedFd>,
}

impl Terminal {
    #[track_caller]
    pub(crate) fn open() -> Self {
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: the call writes two descriptors, which nothing else owns; null arguments are optional.
        let (master, slave) = unsafe {
            let opened = libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            );
            assert_eq!(opened, 0, "a pseudo-terminal is available");
            // Children must not hold the user's side open.
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(slave, libc::F_SETFD, libc::FD_CLOEXEC);
            (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
        };
        Self { master, slave: Some(slave) }
    }

    /// Starts a command with this terminal as its input, output and controlling terminal.
    #[track_caller]
    pub(crate) fn start(&mut self, mut command: Command) -> Running {
        let slave = self.slave.take().expect("the terminal has no command yet");
        let another = || Stdio::from(slave.try_clone().expect("there are descriptors to spare"));
        command.stdin(another()).stdout(another()).stderr(another());
        let controls = || {
            // SAFETY: between fork and exec both calls are async-signal-safe, and access no memory.
            let done =
                unsafe { libc::setsid() != -1 && libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) == 0 };
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: the closure calls nothing else.
        unsafe { command.pre_exec(controls) };
        // Dropping the command closes this process's descriptors of the command's side.
        Running::start(&mut command)
    }

    /// Reads the terminal's output in another thread until its last command has ended.
    pub(crate) fn shown(&self) -> JoinHandle<String> {
        let mut master = self.master.try_clone().expect("there are descriptors to spare");
        thread::spawn(move || {
            let (mut shown, mut piece) = (Vec::new(), [0; 4096]);
            // At the end, reading fails with EIO.
            while let Ok(read @ 1..) = master.read(&mut piece) {
                shown.extend_from_slice(&piece[..read]);
            }
            String::from_utf8_lossy(&shown).into_owned()
        })
    }

    /// Presses Ctrl and a key: `b'C'` interrupts, `b'S'` stops the output.
    #[track_caller]
    pub(crate) fn press_ctrl(&self, key: u8) {
        (&self.master).write_all(&[key & 0x1f]).expect("the terminal takes a key");
    }
}

/// A lease on a file: as long as it exists, opening the file blocks until the system breaks the lease, after
/// `/proc/sys/fs/lease-break-time` seconds. This simulates a file server that does not answer.
#[derive(Debug)]
pub(crate) struct Stalled(#[expect(dead_code, reason = "it holds the lease")] File);

impl Stalled {
    /// Takes a lease; returns nothing if the file system has no leases.
    pub(crate) fn new(path: &str) -> Option<Self> {
        let file = File::options().read(true).write(true).open(path).expect("the file exists");
        // SAFETY: neither call accesses memory. The signal that asks to give up the lease is ignored.
        let leased = unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        (leased == 0).then_some(Self(file))
    }
}

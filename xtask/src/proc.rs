//! Running other programs: a clean environment, captured output, one-line announcements.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Tells the user in one line what happens next.
pub(crate) fn say(line: impl std::fmt::Display) {
    eprintln!("xtask: {line}");
}

/// Whether this process may change the system.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A command free of what the outer cargo and rustup exported for *their* toolchain; with
/// it, another compiler would be started with the wrong libraries, flags and target.
///
/// Where cargo finds registries and its own home stays as it is.
pub(crate) fn clean(program: impl AsRef<OsStr>) -> Command {
    const KEPT: [&str; 4] = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR"];
    const REMOVED: [&str; 7] =
        ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN", "RUST_RECURSION", "LD_LIBRARY_PATH"];
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let starts = |list: &[&str]| list.iter().any(|prefix| text.starts_with(prefix));
        if starts(&REMOVED) && !starts(&KEPT) {
            command.env_remove(&name);
        }
    }
    command
}

/// What a command prints, if it succeeds.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a command with the terminal as its own; fails with the whole command line.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", line(command)))?;
    anyhow::ensure!(status.success(), "{} failed ({status})", line(command));
    Ok(())
}

/// Finds a program on the PATH or among what cargo installed.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from);
    let places = env::split_paths(&path).chain(cargo_home().map(|home| home.join("bin"))).chain(system);
    places.map(|dir| dir.join(program)).find(|candidate| candidate.is_file())
}

fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
}

/// The command as a user would type it.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// The longest pause between two looks at a process.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until a child has ended; nothing if that takes too long.
pub(crate) fn wait(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (2 * pause).min(PAUSE);
    }
}

/// Has a child clean up and end by a signal; ends it when that takes too long.
pub(crate) fn end(child: &mut Child, signal: libc::c_int, limit: Duration) -> io::Result<ExitStatus> {
    // SAFETY: kill(2) takes integers. The number is the child's as long as it is not waited for.
    unsafe { libc::kill(child.id().cast_signed(), signal) };
    match wait(child, Instant::now() + limit)? {
        Some(status) => Ok(status),
        None => {
            child.kill()?;
            child.wait()
        }
    }
}

/// Whether Ctrl-C was pressed since [`ignore_interrupt`].
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Lets Ctrl-C end the children only: they clean up, and this process reports.
pub(crate) fn ignore_interrupt() {
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    let handler = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler only stores to an atomic, so it is safe at any time. Unlike SIG_IGN, a
    // handler is not inherited by the programs started from here.
    unsafe { libc::signal(libc::SIGINT, handler) };
}

/// Whether it was.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

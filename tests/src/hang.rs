//! What is known of something that hangs: of a process that does not end, and of a whole test. The
//! runner asks a test by SIGUSR1 before it ends it, and what is registered here then writes to
//! standard error.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

type Tell = Box<dyn Fn() + Send>;

static WITNESSES: Mutex<Vec<(u64, Tell)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Tells when asked, as long as it lives.
#[derive(Debug)]
pub struct Witness(u64);

impl Witness {
    /// Registers what is to be written.
    pub fn register(tell: impl Fn() + Send + 'static) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        witnesses().push((id, Box::new(tell)));
        Self(id)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        witnesses().retain(|(id, _)| *id != self.0);
    }
}

/// Asks all of them.
pub(crate) fn tell_all() {
    for (_, tell) in witnesses().iter() {
        tell();
    }
}

fn witnesses() -> MutexGuard<'static, Vec<(u64, Tell)>> {
    WITNESSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the threads of a process wait, in the kernel's words.
pub(crate) fn stacks(process: u32) -> String {
    let mut text = String::new();
    let threads = fs::read_dir(Path::new("/proc").join(process.to_string()).join("task"));
    for thread in threads.into_iter().flatten().flatten().map(|entry| entry.path()) {
        let read = |file: &str| fs::read_to_string(thread.join(file)).unwrap_or_default();
        let stack = read("stack").lines().map(str::trim).collect::<Vec<_>>().join(" < ");
        let (name, call) = (read("comm"), read("syscall"));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}: system call {}: {stack}", name.trim(), call.trim());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn who_is_gone_is_not_asked() {
        let told = Arc::new(AtomicU64::new(0));
        let witness = |number| {
            let told = Arc::clone(&told);
            Witness::register(move || {
                told.fetch_add(number, Ordering::Relaxed);
            })
        };
        let (_stays, goes) = (witness(1), witness(10));
        drop(goes);
        tell_all();
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }
}

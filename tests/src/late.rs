//! Failures that say no more than that something had not happened when a deadline passed.
//!
//! On a machine with too little CPU that can be the machine's doing, so whoever runs the tests may
//! run such a test again, and no other. Everything that contradicts what was expected is another
//! kind of error: another backend, a refusal, a reset, damaged data, a counted loss, an answer
//! where there should be none, a process that has ended, a value that can never become the wanted
//! one. What is not [`Late`] is taken for that.
//!
//! # What the runner looks for
//!
//! One of the messages in the error's chain begins with `late: `. libtest prints the error of a
//! test as `{:?}`, where each message has a line of its own, behind `Error: ` or the number of a
//! cause; the conformance report prints it as `{:#}`, where messages follow each other with `: `
//! between them. So no message may quote another error with its mark, which [`unmarked`] takes
//! away.

use anyhow::{Error, Result};
use std::{
    fmt, io, thread,
    time::{Duration, Instant},
};

/// What the message of every [`Late`] begins with.
const MARK: &str = "late: ";

/// Long enough for everything that is waited for, on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// Pauses between attempts, from the first on.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// Something had not happened when a deadline passed. [`late!`](crate::late!) makes one.
#[derive(Debug)]
pub struct Late(pub String);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}", self.0)
    }
}

impl std::error::Error for Late {}

/// A [`Late`] with this message, for `bail!` and `ensure!`; arguments as for `format!`.
#[macro_export]
macro_rules! late {
    ($($message:tt)*) => { $crate::late::Late(::std::format!($($message)*)) };
}

/// Whether nothing but time speaks against what was expected.
pub fn is_late(error: &Error) -> bool {
    error.chain().any(|message| message.to_string().starts_with(MARK))
}

/// The chain of an error in one line without marks, to be quoted in another message.
pub fn unmarked(error: &Error) -> String {
    let messages = error.chain().map(|message| {
        let text = message.to_string();
        text.strip_prefix(MARK).map(str::to_owned).unwrap_or(text)
    });
    messages.collect::<Vec<_>>().join(": ")
}

/// The error of a call on a socket that waits for a limited time.
pub fn of_socket(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late!("no answer: {error}").into(),
        _ => error.into(),
    }
}

/// Tries until it works, for at most [`SOON`]. See [`until`].
pub fn soon<T>(attempt: impl FnMut() -> Result<T>) -> Result<T> {
    until(SOON, attempt)
}

/// Tries until it works or the limit has passed. The error is that of the last attempt: it is late
/// if that attempt says so, and if that attempt saw a contradiction, it is not.
pub fn until<T>(limit: Duration, attempt: impl FnMut() -> Result<T>) -> Result<T> {
    retry(limit, |_| true, attempt)
}

/// Looks again for as long as the error is late and the limit has not passed. Another error ends
/// it at once.
pub fn poll<T>(limit: Duration, look: impl FnMut() -> Result<T>) -> Result<T> {
    retry(limit, is_late, look)
}

fn retry<T>(
    limit: Duration,
    is_worth_it: impl Fn(&Error) -> bool,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    let [mut pause, longest] = PAUSES;
    loop {
        match attempt() {
            Err(error) if is_worth_it(&error) && Instant::now() < deadline => thread::sleep(pause),
            result => return result,
        }
        pause = longest.min(2 * pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context as _, anyhow, bail, ensure};
    use std::panic::catch_unwind;

    const SHORT: Duration = Duration::from_millis(20);

    fn not_logged() -> Result<()> {
        bail!(late!("the agent of {} has not logged {:?} in 60 s", "n1", "in sync"))
    }

    /// What the runner depends on, whatever prints the error.
    #[test]
    fn the_mark_begins_a_message_however_it_is_printed() -> Result<()> {
        let text = "late: the agent of n1 has not logged \"in sync\" in 60 s";
        let bare = not_logged().unwrap_err();
        assert_eq!((bare.to_string(), format!("{bare:#}")), (text.into(), text.into()));
        // A backtrace may follow.
        assert!(format!("{bare:?}").starts_with(text), "{bare:?}");

        let inner = not_logged().context("step 2").unwrap_err();
        assert_eq!(format!("{inner:#}"), format!("step 2: {text}"));
        let printed = format!("{inner:?}");
        assert!(printed.starts_with(&format!("step 2\n\nCaused by:\n    {text}")), "{printed}");

        let deep = not_logged().context("step 2").context("the case").unwrap_err();
        assert_eq!(format!("{deep:#}"), format!("the case: step 2: {text}"));
        let printed = format!("{deep:?}");
        assert!(printed.contains(&format!("\n    0: step 2\n    1: {text}")), "{printed}");

        let panic = catch_unwind(|| not_logged().unwrap()).unwrap_err();
        let panic = panic.downcast_ref::<String>().context("a text")?;
        assert!(
            panic.starts_with(&format!("called `Result::unwrap()` on an `Err` value: {text}")),
            "{panic}"
        );
        Ok(())
    }

    #[test]
    fn only_marked_errors_are_late() {
        let ensured = |holds: bool| -> Result<()> {
            ensure!(holds, late!("not yet"));
            Ok(())
        };
        assert!(is_late(&ensured(false).context("where").unwrap_err()));
        assert!(!is_late(&anyhow!("the other backend was too late: it answered")));
        assert!(is_late(&of_socket(io::ErrorKind::WouldBlock.into())));
        assert!(!is_late(&of_socket(io::ErrorKind::ConnectionRefused.into())));
    }

    #[test]
    fn a_quoted_error_is_not_marked() {
        let quoted = unmarked(&not_logged().context("step 2").unwrap_err());
        assert_eq!(quoted, "step 2: the agent of n1 has not logged \"in sync\" in 60 s");
        assert!(!is_late(&anyhow!("no alternative holds: {quoted}")));
    }

    #[test]
    fn the_last_attempt_decides() {
        let mut attempts = 0;
        let third = until(SOON, || {
            attempts += 1;
            if attempts < 3 { bail!("attempt {attempts}") } else { Ok(attempts) }
        });
        assert_eq!(third.ok(), Some(3));
        assert!(is_late(&until(SHORT, || -> Result<()> { bail!(late!("no answer")) }).unwrap_err()));
        assert!(!is_late(&until(SHORT, || -> Result<()> { bail!("refused") }).unwrap_err()));
    }

    #[test]
    fn a_look_that_finds_a_contradiction_is_the_last() {
        let mut looks = 0;
        let error = poll(SOON, || -> Result<()> {
            looks += 1;
            ensure!(looks == 3, late!("not yet"));
            bail!("it has ended")
        });
        assert!(!is_late(&error.unwrap_err()));
        assert_eq!(looks, 3);
        assert!(is_late(&poll(SHORT, || -> Result<()> { bail!(late!("not yet")) }).unwrap_err()));
    }
}

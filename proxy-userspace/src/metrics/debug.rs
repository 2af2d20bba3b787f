//! `/debug`: profiles, and the level of the log while the process runs. Paths are Go's, so
//! that `go tool pprof http://127.0.0.1:10249/debug/pprof/profile` works as with kube-proxy.

use std::{fmt, sync::Arc, time::Duration};

use pprof::{ProfilerGuard, ProfilerGuardBuilder, protos::Message};
use tokio::time::sleep;
use tracing::info;

use crate::serve::{Answer, Asked, Content, Method, Reply, StatusCode};

/// Samples a second: Go's number.
const FREQUENCY: i32 = 100;
const SECONDS: u64 = 30;
const MOST_SECONDS: u64 = 300;

/// Libraries in which a signal must not walk the stack: it could wait for itself.
const NOT_WALKED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

const INDEX: &str = "/debug/pprof/\n\n\
    profile?seconds=30  where processor time goes, for pprof\n\
    cmdline             the command line\n\n\
    The other profiles of Go are about its runtime, and there is none here.\n";

/// What can be changed at `/debug`.
#[derive(Clone)]
pub struct Debug {
    /// Sets the level of the log by a verbosity as kube-proxy's `-v`; says why it cannot.
    pub set_verbosity: Setter,
}

/// Takes a new value, or says why it cannot.
pub type Setter = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

impl fmt::Debug for Debug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debug").finish_non_exhaustive()
    }
}

impl Debug {
    pub(super) fn reply(&self, asked: &Asked) -> Reply {
        match asked.path.as_str() {
            "/debug/pprof/" => Answer::ok(Content::Text, INDEX).into(),
            "/debug/pprof/profile" => profile(asked),
            "/debug/pprof/cmdline" => cmdline().into(),
            "/debug/flags/v" => self.verbosity(asked).into(),
            "/debug/flags/" => Answer::ok(Content::Text, "v\n").into(),
            path if path.starts_with("/debug/pprof/") => {
                Answer::text(StatusCode::NOT_FOUND, format!("{INDEX}\nno profile at {path}\n")).into()
            }
            _ => None.into(),
        }
    }

    fn verbosity(&self, asked: &Asked) -> Answer {
        if asked.method != Method::PUT {
            return Answer::text(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n");
        }
        let verbosity = String::from_utf8_lossy(&asked.body);
        match (self.set_verbosity)(&verbosity) {
            Ok(()) => {
                info!(verbosity = &*verbosity, "the level of the log was changed");
                Answer::ok(Content::Text, format!("successfully set verbosity to {verbosity}\n"))
            }
            Err(error) => Answer::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        }
    }
}

fn profile(asked: &Asked) -> Reply {
    let seconds = match asked.parameter("seconds").map(str::parse) {
        None => SECONDS,
        Some(Ok(seconds @ 1..=MOST_SECONDS)) => seconds,
        Some(_) => {
            let text = format!("seconds: a number from 1 to {MOST_SECONDS}\n");
            return Answer::text(StatusCode::BAD_REQUEST, text).into();
        }
    };
    let guard = ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&NOT_WALKED).build();
    let guard = match guard {
        Ok(guard) => guard,
        // There is one timer for the process, so a second profile has to wait.
        Err(error) => return refusal(&error).into(),
    };
    Reply::Later(Box::pin(async move {
        sleep(Duration::from_secs(seconds)).await;
        written(&guard).unwrap_or_else(|error| refusal(&error))
    }))
}

fn written(guard: &ProfilerGuard<'_>) -> Result<Answer, pprof::Error> {
    let profile = guard.report().build()?.pprof()?;
    Ok(Answer::ok(Content::Binary, profile.encode_to_vec()))
}

fn refusal(error: &pprof::Error) -> Answer {
    Answer::text(StatusCode::SERVICE_UNAVAILABLE, format!("cannot profile: {error}\n"))
}

fn cmdline() -> Answer {
    let arguments: Vec<_> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    Answer::ok(Content::Text, arguments.join("\0"))
}

//! One test in a process of its own, which is watched: what hangs is looked at, and ended.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::stacks;
use super::verdict::{Failure, Kind, Verdict};
use crate::proc::{end, line, wait};

/// How long a test that hangs may take to tell what it knows, and to clean up.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Of the output, no more than this is kept, from its end.
const KEPT: u64 = 1 << 20;

/// What came of a test, and how.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) verdict: Verdict,
    pub(crate) output: String,
    pub(crate) time: Duration,
}

/// Runs the command to its end, or to the limit. Its output goes through a file in `folder`.
pub(crate) fn run(mut command: Command, folder: &Path, limit: Duration) -> anyhow::Result<Ended> {
    let mut output = Output::create(folder)?;
    command.stdin(Stdio::null()).stdout(output.0.try_clone()?).stderr(output.0.try_clone()?);
    // SAFETY: prctl(2) is async-signal-safe. The thread that starts the test also waits for it.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    let begin = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot run {}", line(&command)))?;
    let status = wait(&mut child, begin + limit)?;
    let time = begin.elapsed();
    let Some(status) = status else {
        let stacks = stacks::of(child.id());
        end(&mut child, libc::SIGUSR1, LAST_WORDS)?;
        let reason = format!("did not end in {} s", limit.as_secs());
        let verdict = Verdict::Failed(Failure { kind: Kind::Hung, reason });
        return Ok(Ended { verdict, output: format!("{}\n{stacks}", output.read()?), time });
    };
    let output = output.read()?;
    Ok(Ended { verdict: Verdict::read(status.success(), &output), output, time })
}

/// A file without a name, to which any number of processes write, and which nobody has to wait for.
struct Output(File);

impl Output {
    fn create(folder: &Path) -> anyhow::Result<Self> {
        // To append: the processes share the file, and not always their place in it.
        let file = tempfile::Builder::new().append(true).tempfile_in(folder);
        let file = file.with_context(|| format!("cannot make a file in {}", folder.display()))?;
        Ok(Self(file.into_file()))
    }

    fn read(&mut self) -> anyhow::Result<String> {
        let length = self.0.metadata()?.len();
        self.0.seek(SeekFrom::Start(length.saturating_sub(KEPT)))?;
        let mut bytes = Vec::new();
        self.0.by_ref().take(KEPT).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, &std::env::temp_dir(), limit).unwrap()
    }

    #[test]
    fn both_streams_are_kept_in_order() {
        let ended =
            shell("echo a; echo b >&2; echo '1 passed, 0 failed, 0 skipped'", Duration::from_secs(60));
        assert_eq!(ended.output, "a\nb\n1 passed, 0 failed, 0 skipped\n");
        assert_eq!(ended.verdict, Verdict::Passed);
    }

    #[test]
    fn what_hangs_is_looked_at_and_ended() {
        let ended = shell("sleep 60 & trap 'kill $!; exit 1' USR1; wait", Duration::from_secs(1));
        let Verdict::Failed(Failure { kind: Kind::Hung, .. }) = ended.verdict else {
            panic!("{:?}", ended.verdict)
        };
        assert!(ended.output.contains("Threads"), "{}", ended.output);
    }

    #[test]
    fn nobody_waits_for_what_a_test_leaves_behind() {
        let ended = shell("sleep 60 & echo $!", Duration::from_secs(60));
        let left = Path::new("/proc").join(ended.output.trim());
        assert!(left.exists(), "{left:?}");
        // SAFETY: kill(2) takes integers. Nobody else ends the process before its time.
        unsafe { libc::kill(ended.output.trim().parse().unwrap(), libc::SIGKILL) };
    }
}

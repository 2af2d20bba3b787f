//! Programs written in Go that only tests need: built once from a module of ours, which pins
//! their versions, and cached for all checkouts.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::proc::{say, which};
use crate::workspace::Workspace;

/// A Go module and what to make of it.
pub(crate) struct Recipe {
    /// Names the cached directory.
    pub(crate) name: &'static str,
    /// What people call the result.
    pub(crate) what: &'static str,
    /// The module, below the workspace.
    pub(crate) module: &'static str,
    /// Its files; a change of any makes another result.
    pub(crate) files: &'static [&'static str],
    /// What `go build` is to build.
    pub(crate) packages: &'static str,
    /// About how long it takes, for who waits.
    pub(crate) takes: &'static str,
}

/// Whether there is a Go to build with.
pub(crate) fn is_installed() -> bool {
    which("go").is_some()
}

impl Recipe {
    /// The directory with the programs, built if they are not there. `flags` are the linker's;
    /// `finish` completes a new directory.
    pub(crate) fn find_or_build(
        &self,
        workspace: &Workspace,
        flags: impl FnOnce(&Path) -> anyhow::Result<String>,
        finish: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<PathBuf> {
        let module = workspace.root.join(self.module);
        let directory = workspace.cache().join(format!("{}-{:016x}", self.name, self.hash(&module)?));
        if !directory.exists() {
            self.build(&module, &directory, &flags(&module)?, finish)?;
        }
        Ok(directory)
    }

    fn hash(&self, module: &Path) -> anyhow::Result<u64> {
        let mut hasher = DefaultHasher::new();
        for file in self.files {
            let content = fs::read(module.join(file)).with_context(|| format!("{}/{file}", self.module))?;
            content.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    /// Builds beside the final place and moves there, so that a broken build leaves nothing.
    fn build(
        &self,
        module: &Path,
        directory: &Path,
        flags: &str,
        finish: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        let Self { what, module: from, takes, .. } = self;
        say(format_args!("building {what} from {from}, once (about {takes} on 2 cores)"));
        let partial = directory.with_extension(std::process::id().to_string());
        fs::create_dir_all(&partial)?;
        let built = self.go_build(module, &partial, flags).and_then(|()| {
            finish(&partial)?;
            Ok(fs::rename(&partial, directory)?)
        });
        if built.is_err() {
            fs::remove_dir_all(&partial).ok();
        }
        // Another run may have put the same thing in place first.
        if built.is_ok() || directory.exists() {
            let seconds = begin.elapsed().as_secs();
            say(format_args!("{what} ready in {} after {seconds} s", directory.display()));
            return Ok(());
        }
        built
    }

    /// `go build`, with the number of compiled packages as progress.
    fn go_build(&self, module: &Path, out: &Path, flags: &str) -> anyhow::Result<()> {
        let go = which("go").context("no Go is installed")?;
        let mut child = Command::new(go)
            .args(["build", "-v", "-mod=readonly", "-ldflags", flags, "-o"])
            .args([out.join("").as_os_str(), OsStr::new(self.packages)])
            .current_dir(module)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run go build")?;
        let stderr = child.stderr.take().context("the output is piped")?;
        let tail = show_progress(self.what, BufReader::new(stderr));
        anyhow::ensure!(child.wait()?.success(), "{} not built:\n{}", self.what, tail.join("\n"));
        Ok(())
    }
}

/// Counts package names; returns the last lines, which hold the error if there is one.
fn show_progress(what: &str, lines: impl BufRead) -> Vec<String> {
    const TAIL: usize = 15;
    let step = if std::io::stderr().is_terminal() { 20 } else { 250 };
    let mut tail = Vec::new();
    for (count, line) in lines.lines().map_while(Result::ok).enumerate() {
        if count > 0 && count % step == 0 {
            say(format_args!("{what}: {count} packages ({line})"));
        }
        if tail.len() == TAIL {
            tail.remove(0);
        }
        tail.push(line);
    }
    tail
}

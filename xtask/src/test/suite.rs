//! Tests, each of which is a command of its own, in groups that are prepared and counted together.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// One test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Test {
    /// Unique in a run: the suite or the target, and the name in it.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// Where it runs.
    pub(crate) folder: PathBuf,
    pub(crate) variables: Vec<(OsString, OsString)>,
}

impl Test {
    /// What runs it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(&self.folder).envs(self.variables.iter().cloned());
        command
    }
}

/// Tests with the same needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suite {
    /// As the table shows it.
    pub(crate) name: String,
    pub(crate) tests: Vec<Test>,
    /// How many run at a time.
    pub(crate) jobs: usize,
    /// Whether a failure can be one of time alone.
    pub(crate) may_be_late: bool,
    /// What each of those at a time shares with those that come after it.
    pub(crate) fixture: Option<Fixture>,
}

/// A program that tests need, and that serves one of them at a time. It writes a line when it is
/// ready, and ends with its standard input.
#[derive(Clone, Debug)]
pub(crate) struct Fixture {
    pub(crate) test: Test,
    /// By which a test gets to know the line.
    pub(crate) variable: &'static str,
}

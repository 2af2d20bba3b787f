//! Runs the tests: each in a process of its own, tier after tier, and sums up what came of them.

mod again;
mod change;
mod changed;
mod conformance;
mod flaky;
mod libtest;
mod long;
mod options;
mod process;
mod report;
mod runner;
#[cfg(test)]
mod scratch;
mod session;
mod stacks;
mod suite;
mod tier;
mod verdict;

pub(crate) use conformance::wants_api_server;
pub(crate) use options::Options;

use std::process::ExitCode;
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::proc::ignore_interrupt;
use crate::workspace::Workspace;
use session::Session;

/// Runs the tiers and prints the table.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let choice = options.choice()?;
    let known = flaky::Flaky::read(&workspace.root)?;
    let change = change::Change::find(workspace);
    ignore_interrupt();
    let debts = known.debts(jiff::Timestamp::now().to_zoned(TimeZone::UTC).date(), &change)?;
    let mut session = Session::prepare(workspace, options, choice, change)?;
    session.run();
    let mut report = session.finish();
    for debt in debts {
        report.broken(flaky::LIST, &anyhow::Error::msg(debt), Duration::ZERO);
    }
    Ok(report.finish(&known))
}

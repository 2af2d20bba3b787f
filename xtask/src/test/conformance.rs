//! The conformance cases as suites: all of them in every mode of socket LB, and a part of
//! them through a real API server.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::suite::{Fixture, Suite, Test};
use crate::binaries::{AGENT_VARIABLE, Binaries};
use crate::control_plane;
use crate::proc::line;
use crate::workspace::Workspace;

/// By which a case gets to know a control plane that runs already.
const CONTROL_PLANE_VARIABLE: &str = "SHUNT_CONTROL_PLANE";

/// One way to run the cases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// As the table shows it.
    pub(crate) name: &'static str,
    socket_lb: &'static str,
    /// Fed by an API server, and not by manifests.
    pub(crate) by_api_server: bool,
}

/// Every mode has to pass the same cases. What an API server changes does not depend on the
/// mode, so one is enough.
pub(crate) const RUNS: [Run; 4] = [
    Run { name: "conformance all", socket_lb: "all", by_api_server: false },
    Run { name: "conformance host", socket_lb: "host", by_api_server: false },
    Run { name: "conformance off", socket_lb: "off", by_api_server: false },
    Run { name: "conformance all, API server", socket_lb: "all", by_api_server: true },
];

impl Run {
    /// Its cases, each to be run in a process of its own.
    pub(crate) fn suite(
        self,
        workspace: &Workspace,
        binaries: &Binaries,
        filter: Option<&str>,
        cpus: usize,
    ) -> anyhow::Result<Suite> {
        let list = output(
            binaries
                .command("conformance")
                .args(self.options())
                .arg("--list")
                .args(filter.map(|filter| ["--case", filter]).into_iter().flatten()),
        )?;
        let tests = list.lines().map(|line| self.test(workspace, binaries, line));
        let mut suite = Suite {
            name: self.name.into(),
            tests: tests.collect::<anyhow::Result<_>>()?,
            // Cases mostly wait, but for an API server.
            jobs: if self.by_api_server { cpus } else { 2 * cpus },
            may_be_late: true,
            fixture: None,
        };
        if self.by_api_server {
            let assets = control_plane::find_or_build(workspace)?;
            let test = Test {
                name: "an API server for conformance cases".into(),
                program: binaries.path("control-plane"),
                folder: workspace.root.clone(),
                variables: vec![(control_plane::VARIABLE.into(), assets.into())],
                ..Test::default()
            };
            suite.fixture = Some(Fixture { test, variable: CONTROL_PLANE_VARIABLE });
        }
        Ok(suite)
    }

    fn options(self) -> Vec<OsString> {
        let source = if self.by_api_server { "api" } else { "manifests" };
        ["--socket-lb", self.socket_lb, "--source", source].map(OsString::from).to_vec()
    }

    /// The case of a line of the list.
    fn test(self, workspace: &Workspace, binaries: &Binaries, line: &str) -> anyhow::Result<Test> {
        let case: Value = serde_json::from_str(line).context("a line of the list of cases")?;
        let text =
            |name: &str| case[name].as_str().with_context(|| format!("the list has no {name}: {line}"));
        let mut args = self.options();
        args.extend(["--case", text("case")?, text("file")?].map(OsString::from));
        Ok(Test {
            name: format!("{}: {}/{}", self.name, text("topic")?, text("case")?),
            program: binaries.path("conformance"),
            args,
            folder: workspace.root.clone(),
            variables: vec![(AGENT_VARIABLE.into(), binaries.path("shunt").into())],
        })
    }
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", line(command)))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{} failed ({}): {errors}", line(command), output.status);
    String::from_utf8(output.stdout).context("the list of cases")
}

/// Whether the runner with these arguments needs an API server.
pub(crate) fn wants_api_server(args: &[OsString]) -> bool {
    let follows = args.windows(2).any(|pair| pair[0] == "--source" && pair[1] == "api");
    follows || args.iter().any(|arg| arg == "--source=api")
}

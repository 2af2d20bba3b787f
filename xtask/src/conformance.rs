//! The conformance cases as a tier: all of them in every mode of socket LB, and a part of
//! them through a real API server.

use std::ffi::OsString;
use std::process::Command;

use crate::binaries::Binaries;
use crate::control_plane;
use crate::workspace::Workspace;

/// One run of the runner.
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
    /// The runner.
    pub(crate) fn command(
        self,
        workspace: &Workspace,
        binaries: &Binaries,
        filter: Option<&str>,
    ) -> anyhow::Result<Command> {
        let mut command = binaries.command("conformance");
        command.args(["--socket-lb", self.socket_lb]);
        if self.by_api_server {
            command.args(["--source", "api"]);
            command.env(control_plane::VARIABLE, control_plane::find_or_build(workspace)?);
        }
        command.args(filter.map(|filter| ["--case", filter]).into_iter().flatten());
        Ok(command)
    }
}

/// Whether the runner with these arguments needs an API server.
pub(crate) fn wants_api_server(args: &[OsString]) -> bool {
    let follows = args.windows(2).any(|pair| pair[0] == "--source" && pair[1] == "api");
    follows || args.iter().any(|arg| arg == "--source=api")
}

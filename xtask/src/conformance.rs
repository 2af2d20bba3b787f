//! The conformance cases as a tier: in every mode of socket LB, and without the topics that
//! the agent does not claim to fulfil.

use std::fs;
use std::process::Command;

use anyhow::Context as _;

use crate::binaries::Binaries;
use crate::workspace::Workspace;

/// Whose sockets are translated. Every mode has to pass the same cases.
pub(crate) const SOCKET_LB: [&str; 3] = ["all", "host", "off"];

/// Topics that are not part of the tier, and why. `cargo xtask conformance` runs them all.
pub(crate) const LEFT_OUT: [(&str, &str); 4] = [
    ("conntrack", "the runner cannot make connections of an earlier proxy"),
    ("invalid-input", "the agent restricts no source ranges"),
    ("session-affinity", "the agent keeps no session affinity"),
    ("source-ranges", "the agent restricts no source ranges"),
];

/// The runner in one mode, on all topics but those left out.
pub(crate) fn command(
    workspace: &Workspace,
    binaries: &Binaries,
    socket_lb: &str,
    filter: Option<&str>,
) -> anyhow::Result<Command> {
    let mut command = binaries.command("conformance");
    command.args(["--socket-lb", socket_lb, "--topics", &topics(workspace)?.join(",")]);
    command.args(filter.map(|filter| ["--case", filter]).into_iter().flatten());
    Ok(command)
}

fn topics(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let folder = workspace.root.join("tests/cases");
    let mut topics = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let topic = name.strip_suffix(".yaml").map(str::to_owned);
        topics.extend(topic.filter(|topic| !LEFT_OUT.iter().any(|(name, _)| name == topic)));
    }
    topics.sort();
    Ok(topics)
}

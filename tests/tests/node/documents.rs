//! Commands of the documents that only look do run, on a node in order.

use anyhow::{Result, ensure};
use std::process::Command;
use tests::{
    agent::SocketLb,
    documents::all,
    process::{Spawn, binary},
};

use crate::world::two_nodes;

/// What a command begins with that ends by itself, asks for no file and changes nothing.
const LOOKS: [&[&str]; 7] = [
    &["check"],
    &["service", "list"],
    &["backend", "list"],
    &["conn", "list"],
    &["affinity", "list"],
    &["device", "list"],
    &["drop", "list"],
];

#[test]
fn commands_of_the_documents_run() -> Result<()> {
    let cluster = two_nodes(SocketLb::All)?;
    let node = &cluster.nodes[0];
    let mut ran = 0;
    for page in all()? {
        for (line, call) in page.calls()? {
            let arguments = &call[1..];
            let begins_with = |words: &&[&str]| arguments.iter().zip(words.iter()).all(|(a, b)| a == b);
            let looks = LOOKS.iter().any(|words| arguments.len() >= words.len() && begins_with(words));
            if !looks || arguments.iter().any(|argument| argument.starts_with('/')) {
                continue;
            }
            // As in the agent's container, variables say where things are.
            let mut command = Command::new(binary("shunt")?);
            command.args(arguments).env("SHUNT_BPFFS", node.agent.pins());
            command.env("SHUNT_CGROUP", node.agent.cgroup.path());
            let output = command.netns(&node.host.netns)?.output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{}: {line}\n{said}", page.path.display());
            ran += 1;
        }
    }
    ensure!(ran > 15, "only {ran} commands");
    Ok(())
}

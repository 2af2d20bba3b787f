//! The tiers of tests, from cheap to dear, and the command that runs each.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use crate::binaries::AGENT_AND_TESTS;
use crate::workspace::{Workspace, cargo};

/// A group of tests with the same needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Pure code.
    Model,
    /// Packets through the real programs under test-run.
    Packet,
    /// Namespaces as nodes, pods and clients, with real sockets.
    Node,
    /// The same, fed by a real API server.
    Cluster,
    /// Agents and links that fail, under traffic that counts.
    Faults,
    /// The case files under `tests/cases`.
    Conformance,
}

impl Tier {
    /// Every tier, in the order they run.
    pub(crate) const ALL: [Self; 6] =
        [Self::Model, Self::Packet, Self::Node, Self::Cluster, Self::Faults, Self::Conformance];

    /// As the user names it; for those run by libtest also the test file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Packet => "packet",
            Self::Node => "node",
            Self::Cluster => "cluster",
            Self::Faults => "faults",
            Self::Conformance => "conformance",
        }
    }

    /// The tier of that name.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }

    /// Whether it makes namespaces and loads programs.
    pub(crate) fn needs_root(self) -> bool {
        self != Self::Model
    }
}

/// `cargo test` for a tier that libtest runs.
pub(crate) fn cargo_test(workspace: &Workspace, tier: Tier, filter: Option<&str>) -> io::Result<Command> {
    let mut command = Command::new(cargo());
    command.current_dir(&workspace.root).args(["test", "--no-fail-fast"]);
    if tier == Tier::Model {
        command.args(["--workspace", "--lib", "--bins"]);
        for name in unprivileged_tests(&workspace.root.join("tests/tests"))? {
            command.args(["--test", &name]);
        }
    } else {
        command.args(AGENT_AND_TESTS).args(["--test", tier.name()]);
    }
    command.arg("--").args(filter);
    Ok(command)
}

/// The test files that belong to no privileged tier.
fn unprivileged_tests(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_test =
            path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file();
        if is_test && Tier::by_name(&stem).is_none() {
            names.push(stem);
        }
    }
    names.sort();
    Ok(names)
}

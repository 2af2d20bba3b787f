//! The tiers of tests, from cheap to dear, and the command that runs each.

use std::process::Command;

use crate::binaries::AGENT_AND_TESTS;
use crate::workspace::{TestTarget, Workspace, cargo};

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

/// `cargo test` for a tier that libtest runs: a command for each selection of packages.
///
/// # Errors
/// When there is a test that no tier would run, or a tier without tests.
pub(crate) fn cargo_tests(
    workspace: &Workspace,
    tier: Tier,
    filter: Option<&str>,
) -> anyhow::Result<Vec<Command>> {
    let unprivileged = unprivileged_tests(&workspace.test_targets)?;
    let test = |selection: &[&str]| {
        let mut command = Command::new(cargo());
        command.current_dir(&workspace.root).args(["test", "--no-fail-fast"]).args(selection);
        command
    };
    let mut commands = Vec::new();
    if tier == Tier::Model {
        let mut command = test(&AGENT_AND_TESTS);
        command.arg("--lib");
        command.args(unprivileged.iter().flat_map(|name| ["--test", name]));
        // On its own, as it was built to get here: with the others cargo would unite features and
        // compile everything once more.
        commands.extend([command, test(&["--package", "xtask"])]);
    } else {
        let mut command = test(&AGENT_AND_TESTS);
        command.args(["--test", tier.name()]);
        commands.push(command);
    }
    for command in &mut commands {
        command.arg("--").args(filter);
    }
    Ok(commands)
}

/// The test targets that belong to no privileged tier; fails if a target would be run by none.
fn unprivileged_tests(targets: &[TestTarget]) -> anyhow::Result<Vec<&str>> {
    let mut names = Vec::new();
    for TestTarget { package, name, kind } in targets {
        match kind.as_str() {
            "lib" => {}
            "bin" if package == "xtask" => {}
            "test" if package == "tests" && Tier::by_name(name).is_some() => {}
            "test" => names.push(name.as_str()),
            _ => anyhow::bail!("no tier runs the tests of the {kind} {name} in {package}"),
        }
    }
    for tier in Tier::ALL.into_iter().filter(|tier| !matches!(tier, Tier::Model | Tier::Conformance)) {
        let is_its = |target: &TestTarget| target.package == "tests" && target.name == tier.name();
        anyhow::ensure!(targets.iter().any(is_its), "the tier {} has no tests", tier.name());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(package: &str, name: &str, kind: &str) -> TestTarget {
        TestTarget { package: package.into(), name: name.into(), kind: kind.into() }
    }

    #[test]
    fn every_test_has_a_tier() {
        let privileged = ["packet", "node", "cluster", "faults"].map(|name| target("tests", name, "test"));
        let mut all = privileged.to_vec();
        all.extend([target("agent", "properties", "test"), target("agent", "agent", "lib")]);
        assert_eq!(unprivileged_tests(&all).unwrap(), ["properties"]);
        assert!(unprivileged_tests(&all[1..]).is_err(), "the packet tier is gone");
        all.push(target("agent", "shown", "example"));
        assert!(unprivileged_tests(&all).unwrap_err().to_string().contains("shown"));
    }

    #[test]
    fn this_workspace_has_a_tier_for_every_test() {
        let workspace = Workspace::find().unwrap();
        let names = unprivileged_tests(&workspace.test_targets).unwrap();
        assert!(names.contains(&"plan_properties") && names.contains(&"arrows"), "{names:?}");
    }
}

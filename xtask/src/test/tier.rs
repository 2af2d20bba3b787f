//! The tiers of tests, from cheap to dear, and which of cargo's targets belong to each.

use crate::workspace::TestTarget;

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

    /// Whether a failure can be one of time alone, and the test then be run once more. Code and
    /// test-run know no time.
    pub(crate) fn may_be_late(self) -> bool {
        !matches!(self, Self::Model | Self::Packet)
    }

    /// The tier that runs a target of cargo's.
    pub(crate) fn of(target: &TestTarget) -> Option<Self> {
        match target.kind.as_str() {
            "lib" => Some(Self::Model),
            "bin" if target.package == XTASK => Some(Self::Model),
            "test" if target.package == "tests" => Some(Self::by_name(&target.name).unwrap_or(Self::Model)),
            "test" => Some(Self::Model),
            _ => None,
        }
    }
}

/// This package, which is built on its own.
pub(crate) const XTASK: &str = "xtask";

/// Options of cargo that select the test targets of these tiers; what is in libraries is apart.
///
/// # Errors
/// When there is a test that no tier would run, or a tier without tests.
pub(crate) fn selection(targets: &[TestTarget], tiers: &[Tier]) -> anyhow::Result<Vec<String>> {
    let mut selection = Vec::new();
    let mut owners = Vec::new();
    for target in targets {
        let TestTarget { package, name, kind } = target;
        let Some(tier) = Tier::of(target) else {
            anyhow::bail!("no tier runs the tests of the {kind} {name} in {package}");
        };
        owners.push(tier);
        if kind == "test" && tiers.contains(&tier) {
            selection.extend(["--test".to_owned(), name.clone()]);
        }
    }
    for tier in Tier::ALL.into_iter().filter(|tier| *tier != Tier::Conformance) {
        anyhow::ensure!(owners.contains(&tier), "the tier {} has no tests", tier.name());
    }
    Ok(selection)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    fn target(package: &str, name: &str, kind: &str) -> TestTarget {
        TestTarget { package: package.into(), name: name.into(), kind: kind.into() }
    }

    #[test]
    fn every_test_has_a_tier() {
        let privileged = ["packet", "node", "cluster", "faults"].map(|name| target("tests", name, "test"));
        let mut all = privileged.to_vec();
        all.extend([target("agent", "properties", "test"), target("agent", "agent", "lib")]);
        assert_eq!(selection(&all, &[Tier::Model]).unwrap(), ["--test", "properties"]);
        assert_eq!(
            selection(&all, &[Tier::Node, Tier::Faults]).unwrap(),
            ["--test", "node", "--test", "faults"]
        );
        assert!(selection(&all[1..], &[Tier::Model]).is_err(), "the packet tier is gone");
        all.push(target("agent", "shown", "example"));
        assert!(selection(&all, &[Tier::Model]).unwrap_err().to_string().contains("shown"));
    }

    #[test]
    fn this_workspace_has_a_tier_for_every_test() {
        let workspace = Workspace::find().unwrap();
        let names = selection(&workspace.test_targets, &[Tier::Model]).unwrap();
        for wanted in ["plan_properties", "arrows"] {
            assert!(names.iter().any(|name| name == wanted), "{names:?}");
        }
    }
}

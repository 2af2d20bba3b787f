//! Name patterns that overrule what discovery thinks of an interface.

use glob::Pattern;

use super::{errors::Problems, shunt::Interfaces};

/// What an interface is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// No program is attached.
    Ignore,
    /// Host side of a pod's link.
    Pod,
    /// Uplink.
    Node,
    /// Overlay.
    Tunnel,
}

/// Patterns in the order in which they are tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfacePatterns(Vec<(Pattern, InterfaceKind)>);

impl InterfacePatterns {
    pub(super) fn compile(lists: &Interfaces, problems: &mut Problems) -> Self {
        let by_kind = [
            ("ignore", &lists.ignore, InterfaceKind::Ignore),
            ("pod", &lists.pod, InterfaceKind::Pod),
            ("node", &lists.node, InterfaceKind::Node),
            ("tunnel", &lists.tunnel, InterfaceKind::Tunnel),
        ];
        let mut patterns = Vec::new();
        for (field, list, kind) in by_kind {
            for (i, text) in list.iter().enumerate() {
                match Pattern::new(text) {
                    Ok(pattern) => patterns.push((pattern, kind)),
                    Err(error) => problems.add(format!("interfaces.{field}[{i}]"), error),
                }
            }
        }
        Self(patterns)
    }

    /// What the operator says about the interface `name`, if anything.
    pub fn kind(&self, name: &str) -> Option<InterfaceKind> {
        self.0.iter().find(|(pattern, _)| pattern.matches(name)).map(|(_, kind)| *kind)
    }
}

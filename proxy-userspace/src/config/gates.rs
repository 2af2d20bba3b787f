//! The names of feature gates that kube-proxy knows: all of Kubernetes, for it is built with the
//! list of all components, and clusters hand one setting to every component.

use std::collections::BTreeMap;

use super::errors::Problems;

/// Gates of Kubernetes 1.36, and those that 1.37 adds to kube-proxy; behind the name its value
/// where that can no longer be chosen.
const GATES: &str = include_str!("gates.txt");

/// Services may have external IPs of their own choice.
pub(super) const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// The value a gate is locked to, if it is; nothing if there is no such gate.
fn gate(name: &str) -> Option<Option<bool>> {
    let mut words = GATES.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    words.find(|(known, _)| *known == name).map(|(_, locked)| locked.parse().ok())
}

/// Notes the gates that kube-proxy would refuse.
pub(super) fn check(gates: &BTreeMap<String, bool>, problems: &mut Problems) {
    for (name, wanted) in gates {
        match gate(name) {
            None => problems.add("featureGates", format_args!("unrecognized feature gate: {name}")),
            Some(Some(locked)) if locked != *wanted => problems.add(
                "featureGates",
                format_args!("cannot set feature gate {name} to {wanted}, it is locked to {locked}"),
            ),
            Some(_) => (),
        }
    }
}

/// False where the gate is switched off.
pub(super) fn allows_external_ips(gates: &BTreeMap<String, bool>) -> bool {
    gates.get(EXTERNAL_IPS).copied().unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_locked_and_unknown() {
        let lines: Vec<_> = GATES.lines().collect();
        assert!(lines.is_sorted() && lines.len() > 200);
        assert_eq!(gate(EXTERNAL_IPS), Some(None));
        assert_eq!(gate("MultiCIDRServiceAllocator"), Some(Some(true)));
        assert_eq!(gate("NoSuchGate"), None);
    }
}

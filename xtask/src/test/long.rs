//! The parts of the tests that take long and seldom find something: they run when a change touches
//! the code they are about, and by `--long`.

use super::change::Change;
use crate::load::Factor;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Files and folders.
    code: &'static [&'static str],
}

/// Every case with translation of the node's own sockets only.
pub(crate) const HOST: Part = Part {
    name: "conformance host",
    code: &[
        "proxy-ebpf/src/bind.rs",
        "proxy-ebpf/src/sock.rs",
        "proxy-userspace/src/kernel/attach.rs",
        "proxy-userspace/src/kernel/pod_cgroups.rs",
        "proxy-userspace/src/kernel/sockets.rs",
        "tests/cases",
    ],
};
/// An agent whose map rows are laid out in another way takes over, which takes a build of its own.
pub(crate) const LAYOUT: Part = Part {
    name: "another layout",
    code: &[
        "proxy-common/src/maps",
        "proxy-ebpf/src/maps.rs",
        "proxy-ebpf/src/stage/takeover.rs",
        "proxy-userspace/src/kernel/carry.rs",
        "proxy-userspace/src/kernel/datapath",
        "proxy-userspace/src/kernel/generations.rs",
        "proxy-userspace/src/kernel/handover",
        "proxy-userspace/src/kernel/handover.rs",
        "proxy-userspace/src/kernel/layout.rs",
        "tests/next-layout.toml",
        "tests/tests/faults/upgrade.rs",
    ],
};
/// Property tests with other random numbers.
pub(crate) const SEEDS: Part = Part {
    name: "model, random seed",
    code: &[
        "proxy-common/src",
        "proxy-userspace/src/dataplane",
        "proxy-userspace/src/plan",
        "proxy-userspace/tests",
    ],
};
/// The parser by coverage, and the programs by mutated packets.
pub(crate) const FUZZ: Part =
    Part { name: "fuzz", code: &["fuzz", "proxy-common/src/packet", "proxy-ebpf/src/packet"] };
/// What is proved for all inputs, and that the proofs can fail: with `--long` alone, as both take long.
pub(crate) const PROOFS: &str = "proofs";
/// Tests that were added or changed, several times under load.
pub(crate) const REPEATS: &str = "changed tests, 5 times at 3x";
/// How often, and under which load.
pub(crate) const TIMES: u32 = 5;
pub(crate) const LOAD: Factor = Factor(3.0);
/// With `--long` all of them, else so many: each takes half a minute.
pub(crate) const MOST: usize = 8;

impl Part {
    /// Why it is not to run now; nothing if it is.
    pub(crate) fn reason_to_skip(self, wanted: bool, change: &Change) -> Option<String> {
        let is_due = wanted || change.touches(self.code).is_some();
        (!is_due).then(|| "its code did not change; --long runs it".to_owned())
    }
}

/// The test that the part [`LAYOUT`] is.
pub(crate) const LAYOUT_TEST: &str = "faults::upgrade::another_layout_takes_over_without_a_loss";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn a_part_runs_when_it_is_wanted_or_its_code_changed() {
        let is_due = |wanted, files: &[&str]| HOST.reason_to_skip(wanted, &Change::of(files)).is_none();
        assert!(is_due(false, &["tests/cases/hairpin.yaml"]));
        assert!(!is_due(false, &["README.md"]));
        assert!(is_due(true, &[]));
    }

    #[test]
    fn the_code_exists() {
        let root = Workspace::find().unwrap().root;
        let upgrade = std::fs::read_to_string(root.join("tests/tests/faults/upgrade.rs")).unwrap();
        let function = LAYOUT_TEST.rsplit("::").next().unwrap();
        assert!(upgrade.contains(&format!("fn {function}()")), "{function}");
        for part in [HOST, LAYOUT, SEEDS, FUZZ] {
            for path in part.code {
                assert!(root.join(path).exists(), "{}: {path}", part.name);
            }
        }
    }
}

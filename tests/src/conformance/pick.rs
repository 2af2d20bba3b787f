//! Chooses cases when not all of them are to be run.

use super::files::Named;
use std::collections::HashMap;

/// Every nth case of each topic, beginning with its first. Cases that no API server can be
/// fed with stay, so that they show up as skipped, and do not count; those about the
/// configuration alone are left out, for they have no objects.
pub fn every_nth(cases: Vec<Named>, n: usize) -> Vec<Named> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut keep = |named: &Named| {
        if named.case.expect_config.is_some() {
            return false;
        }
        if named.case.reason_to_skip(true).is_some() {
            return true;
        }
        let number = seen.entry(named.topic.clone()).or_default();
        *number += 1;
        (*number - 1).is_multiple_of(n.max(1))
    };
    cases.into_iter().filter(|named| keep(named)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::files::load;
    use super::*;
    use std::{collections::BTreeSet, path::Path};

    #[test]
    fn a_third_covers_every_topic() {
        let folder = || Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
        let all = load(&[folder()]).expect("cases");
        let topics = |cases: &[Named]| {
            let with_objects = cases.iter().filter(|named| named.case.expect_config.is_none());
            with_objects.map(|named| named.topic.clone()).collect::<BTreeSet<_>>()
        };
        let (total, wanted) = (all.len(), topics(&all));
        let third = every_nth(all, 3);
        assert_eq!(topics(&third), wanted);
        assert!((total / 4..total / 2).contains(&third.len()), "{} of {total}", third.len());
    }
}

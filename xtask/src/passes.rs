//! The commits at which `.ci/run` has passed on this machine, which it notes in the user's cache.

use std::fs;

use crate::workspace::Workspace;

/// One pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) commit: String,
    pub(crate) date: String,
    pub(crate) seconds: String,
}

/// All of them, the last one last.
pub(crate) fn list(workspace: &Workspace) -> Vec<Pass> {
    let text = fs::read_to_string(workspace.cache().join("ci-passed")).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// `COMMIT DATE SECONDS`.
fn parse(line: &str) -> Option<Pass> {
    let mut words = line.split(' ').map(str::to_owned);
    Some(Pass { commit: words.next()?, date: words.next()?, seconds: words.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_pass() {
        let pass = parse("15770f5 2026-11-23T04:04:31Z 1227").unwrap();
        assert_eq!((pass.commit.as_str(), pass.seconds.as_str()), ("15770f5", "1227"));
        assert_eq!(parse("15770f5"), None);
    }
}

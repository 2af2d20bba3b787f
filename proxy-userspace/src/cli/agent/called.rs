//! Being started as kube-proxy's image is: `kube-proxy --config=... --hostname-override=...`.

use std::{ffi::OsString, path::Path};

/// The arguments with `agent` put in where they are kube-proxy's: the program has its name, or
/// they begin with a flag that is not one of `shunt` itself.
pub fn arguments(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut given: Vec<_> = given.into_iter().collect();
    let name = given.first().and_then(|program| Path::new(program).file_name());
    let named = name.is_some_and(|name| name == "kube-proxy");
    let flag = given.get(1).and_then(|first| first.to_str()).filter(|first| first.starts_with('-'));
    let own = flag.is_none_or(|flag| ["-h", "--help", "-V", "--version"].contains(&flag));
    if !named && own {
        return given;
    }
    given.iter_mut().skip(1).for_each(dashed);
    given.insert(1, "agent".into());
    given
}

/// kube-proxy takes `_` for `-` in the names of flags.
fn dashed(argument: &mut OsString) {
    let Some(text) = argument.to_str().filter(|text| text.starts_with("--")) else { return };
    let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
    *argument = format!("{}{value}", name.replace('_', "-")).into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_proxys_ways() {
        let check = |given: &str, expected: &str| {
            let arguments = arguments(given.split(' ').map(OsString::from));
            let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(words.join(" "), expected);
        };
        check(
            "/usr/local/bin/kube-proxy --config=/a_b -v 2",
            "/usr/local/bin/kube-proxy agent --config=/a_b -v 2",
        );
        check("kube-proxy --feature_gates=A_B=true", "kube-proxy agent --feature-gates=A_B=true");
        check("kube-proxy", "kube-proxy agent");
        check("kube-proxy --version", "kube-proxy agent --version");
        check("shunt --config=x", "shunt agent --config=x");
        for same in ["shunt", "shunt --help", "shunt -V", "shunt service list", "shunt agent --config x"] {
            check(same, same);
        }
    }
}

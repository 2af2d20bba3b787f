//! Marks that keep pods away from a node.

use std::{fmt, str::FromStr, sync::Arc};

use thiserror::Error;

/// What taints do to pods without a toleration.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A taint, as far as it is told from others: a node has one of each key and effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taint {
    /// `spec.taints[].key`.
    pub key: Arc<str>,
    /// `spec.taints[].effect`.
    pub effect: Arc<str>,
}

/// What a taint has to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("must be KEY:EFFECT or KEY=VALUE:EFFECT with the effect NoSchedule, PreferNoSchedule or NoExecute")]
pub struct NoTaint;

impl FromStr for Taint {
    type Err = NoTaint;

    /// As `kubectl taint` and kubelet's `--register-with-taints` take it. The value tells no taints apart.
    fn from_str(text: &str) -> Result<Self, NoTaint> {
        let (name, effect) = text.rsplit_once(':').ok_or(NoTaint)?;
        let key = name.split_once('=').map_or(name, |(key, _)| key);
        let valid = EFFECTS.contains(&effect) && !key.is_empty() && !key.contains([' ', ':', ',']);
        valid.then(|| Self { key: key.into(), effect: effect.into() }).ok_or(NoTaint)
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, self.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_read_as_kubectl_writes_them() {
        for (text, shown) in [
            ("shunt.dev/agent-not-ready:NoSchedule", "shunt.dev/agent-not-ready:NoSchedule"),
            ("key=value:NoExecute", "key:NoExecute"),
            ("key=:PreferNoSchedule", "key:PreferNoSchedule"),
        ] {
            assert_eq!(text.parse::<Taint>().unwrap().to_string(), shown);
        }
        for text in ["", "key", "key:", ":NoSchedule", "=v:NoSchedule", "key:Never", "a,b:NoSchedule"] {
            assert_eq!(text.parse::<Taint>(), Err(NoTaint), "{text}");
        }
    }
}

//! What differs between two configurations, and what of it a running agent can follow.

use serde_json::Value;

use super::{
    Config,
    fields::{self, Field, KUBE_PROXY, SHUNT, Takes},
};

/// A field with another value than before.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its path; one of ours with the name of its document.
    pub field: String,
    /// When it takes effect.
    pub takes: Takes,
    /// The value before.
    pub from: Value,
    /// The value now.
    pub to: Value,
}

impl Config {
    /// What differs from `old`, and has an effect.
    pub fn differences(&self, old: &Config) -> Vec<Difference> {
        let (old, new) = (old.configz(), self.configz());
        let mut found = Vec::new();
        for (group, prefix, table) in
            [("kubeproxy.config.k8s.io", "", KUBE_PROXY), ("shunt.dev", "ShuntConfiguration.", SHUNT)]
        {
            for field in table.iter().filter(|field| field.takes != Takes::Nothing) {
                let value = |documents: &Value| at(&documents[group], field).cloned().unwrap_or_default();
                let (from, to) = (value(&old), value(&new));
                if from != to {
                    found.push(Difference {
                        field: format!("{prefix}{}", field.path),
                        takes: field.takes,
                        from,
                        to,
                    });
                }
            }
        }
        found
    }

    /// This configuration as far as an agent that runs with `old` can follow it.
    pub fn as_followed_from(mut self, old: &Config) -> Self {
        self.kube_proxy = kept(KUBE_PROXY, &self.kube_proxy, &old.kube_proxy);
        self.shunt = kept(SHUNT, &self.shunt, &old.shunt);
        self.node_name.clone_from(&old.node_name);
        self.kubeconfig.clone_from(&old.kubeconfig);
        self.master.clone_from(&old.master);
        self.api_servers.clone_from(&old.api_servers);
        self.model.primary = old.model.primary;
        self.node_taint.clone_from(&old.node_taint);
        self.attach = old.attach;
        self.xdp = old.xdp;
        self.bind_hard_fail = old.bind_hard_fail;
        self.profiling = old.profiling;
        self.maps = old.maps;
        self.conntrack_memory = old.conntrack_memory;
        self.bpffs.clone_from(&old.bpffs);
        self.cgroup.clone_from(&old.cgroup);
        self.logging.format = old.logging.format;
        self.logging.datapath_level = old.logging.datapath_level;
        self
    }
}

fn at<'a>(document: &'a Value, field: &Field) -> Option<&'a Value> {
    field.path.split('.').try_fold(document, |value, key| value.get(key))
}

/// `new`, with the values of `old` where a change waits for the next start.
fn kept<T: serde::Serialize + serde::de::DeserializeOwned>(
    table: &'static [fields::Field],
    new: &T,
    old: &T,
) -> T {
    let json = |document: &T| serde_json::to_value(document).expect("plain structs always serialize");
    let (mut merged, old) = (json(new), json(old));
    for field in table.iter().filter(|field| field.takes == Takes::Restart) {
        let pointer = format!("/{}", field.path.replace('.', "/"));
        if let (Some(place), Some(value)) = (merged.pointer_mut(&pointer), old.pointer(&pointer)) {
            *place = value.clone();
        }
    }
    serde_json::from_value(merged).expect("values of the same types read back")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;

    fn config(theirs: &str, ours: &str) -> Config {
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{theirs}\n---\n\
             apiVersion: shunt.dev/v1alpha1\nkind: ShuntConfiguration\n{ours}\n"
        );
        Config::parse(&text, Overrides::default()).unwrap()
    }

    #[test]
    fn what_waits_for_the_next_start_stays_as_it_was() {
        let old = config(
            "hostnameOverride: a\nclusterCIDR: 10.0.0.0/8",
            "maps: {conntrack: 100}\nanswerEcho: true",
        );
        let new = config(
            "hostnameOverride: b\nclusterCIDR: 10.0.0.0/9\nconfigSyncPeriod: 1m\nconntrack: {udpTimeout: 7s}",
            "maps: {conntrack: 200}\nanswerEcho: false",
        );
        let told: Vec<_> = new.differences(&old).into_iter().map(|d| (d.field, d.takes)).collect();
        let expected = [
            ("hostnameOverride", Takes::Restart),
            ("clusterCIDR", Takes::Live),
            ("conntrack.udpTimeout", Takes::Live),
            ("ShuntConfiguration.answerEcho", Takes::Live),
            ("ShuntConfiguration.maps.conntrack", Takes::Restart),
        ];
        assert_eq!(told, expected.map(|(field, takes)| (field.to_owned(), takes)));
        let followed = new.as_followed_from(&old);
        let told: Vec<_> = followed.differences(&old).into_iter().map(|d| d.field).collect();
        assert_eq!(told, ["clusterCIDR", "conntrack.udpTimeout", "ShuntConfiguration.answerEcho"]);
        assert_eq!((followed.maps.conntrack, followed.node_name.as_deref()), (100, Some("a")));
        assert!(!followed.model.answer_echo);
    }
}

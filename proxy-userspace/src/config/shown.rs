//! The configuration in force as documents: every default and every flag in its field.

use serde_json::{Value, json};

use super::{
    Config,
    duration::GoDuration,
    kube_proxy::{Iptables, Ipvs, KubeProxyConfiguration, Nftables},
    shunt::ShuntConfiguration,
};

const KUBE_PROXY: (&str, &str) = ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration");
const SHUNT: (&str, &str) = ("shunt.dev/v1alpha1", "ShuntConfiguration");

impl Config {
    /// The configuration in force, in the form of kube-proxy's `/configz`: a document for each
    /// API group, `kubeproxy.config.k8s.io` and `shunt.dev`.
    pub fn configz(&self) -> Value {
        json!({
            "kubeproxy.config.k8s.io": document(KUBE_PROXY, &self.kube_proxy_document()),
            "shunt.dev": document(SHUNT, &self.shunt_document()),
        })
    }

    /// The configuration in force as a file that can be given to `--config`.
    pub fn to_yaml(&self) -> String {
        let documents =
            [document(KUBE_PROXY, &self.kube_proxy_document()), document(SHUNT, &self.shunt_document())];
        let texts = documents.map(|document| {
            serde_norway::to_string(&document).expect("documents of plain values always serialize")
        });
        texts.join("---\n")
    }

    /// kube-proxy's document, with its defaults in place of what means "not set".
    fn kube_proxy_document(&self) -> KubeProxyConfiguration {
        let address =
            |listen: Option<std::net::SocketAddr>| listen.map(|a| a.to_string()).unwrap_or_default();
        let path = |path: &std::path::PathBuf| path.display().to_string();
        let mut document = self.kube_proxy.clone();
        document.hostname_override = self.node_name.clone().unwrap_or_default();
        document.client_connection.kubeconfig = self.kubeconfig.as_ref().map(path).unwrap_or_default();
        document.healthz_bind_address = address(self.health);
        document.metrics_bind_address = address(self.metrics);
        fill(&mut document);
        // Those in force stand in each section that counts, so that the file reads back as it is.
        let periods = (self.sync_period.into(), self.min_sync_period.into());
        let KubeProxyConfiguration { iptables, ipvs, nftables, mode, .. } = &mut document;
        let sections = [
            ("iptables", &mut iptables.sync_period, &mut iptables.min_sync_period),
            ("ipvs", &mut ipvs.sync_period, &mut ipvs.min_sync_period),
            ("nftables", &mut nftables.sync_period, &mut nftables.min_sync_period),
        ];
        for (section, period, min) in sections {
            if mode.is_empty() || mode == section {
                (*period, *min) = periods;
            }
        }
        document
    }

    fn shunt_document(&self) -> ShuntConfiguration {
        let mut document = self.shunt.clone();
        document.socket_lb = self.model.socket_lb.into();
        document.bpffs = self.bpffs.clone();
        document.cgroup = self.cgroup.clone();
        document.logging.format = Some(self.logging.format);
        document.logging.level = Some(self.logging.level.clone());
        document.logging.datapath_level = self.logging.datapath_level;
        document
    }
}

fn document((version, kind): (&str, &str), fields: &impl serde::Serialize) -> Value {
    let mut document = json!({"apiVersion": version, "kind": kind});
    let fields = serde_json::to_value(fields).expect("plain structs of plain values always serialize");
    if let (Some(document), Value::Object(fields)) = (document.as_object_mut(), fields) {
        document.extend(fields);
    }
    document
}

/// kube-proxy's defaults where an empty value stands for them
/// (`SetDefaults_KubeProxyConfiguration`).
fn fill(document: &mut KubeProxyConfiguration) {
    let default = KubeProxyConfiguration::default();
    let text = |field: &mut String, default: String| {
        if field.is_empty() {
            *field = default;
        }
    };
    let period = |field: &mut GoDuration, default: GoDuration| {
        if field.is_zero() {
            *field = default;
        }
    };
    text(&mut document.bind_address, default.bind_address);
    text(&mut document.detect_local_mode, default.detect_local_mode);
    text(&mut document.client_connection.content_type, default.client_connection.content_type);
    text(&mut document.logging.format, default.logging.format);
    period(&mut document.config_sync_period, default.config_sync_period);
    period(&mut document.iptables.sync_period, Iptables::default().sync_period);
    period(&mut document.iptables.min_sync_period, Iptables::default().min_sync_period);
    period(&mut document.ipvs.sync_period, Ipvs::default().sync_period);
    period(&mut document.nftables.sync_period, Nftables::default().sync_period);
    period(&mut document.nftables.min_sync_period, Nftables::default().min_sync_period);
    let frequency = &mut document.logging.flush_frequency;
    if frequency.as_i64() == Some(0) || frequency.as_str() == Some("0s") {
        *frequency = default.logging.flush_frequency;
    }
    if document.client_connection.qps == 0.0 {
        document.client_connection.qps = default.client_connection.qps;
    }
    if document.client_connection.burst == 0 {
        document.client_connection.burst = default.client_connection.burst;
    }
}

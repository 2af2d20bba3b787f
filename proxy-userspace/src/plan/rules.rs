//! What the traffic policies of a service mean for each class of clients.
//!
//! The semantics are kube-proxy's in its nftables mode. Hairpin connections are
//! masqueraded by the datapath itself, whatever the rule says.

use proxy_common::maps::frontends::{ClientRule, Kind};

use super::ClientRules;

/// What decides the rules of a service port's frontends in one family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policies {
    /// Clients of the cluster IP reach endpoints of this node only.
    pub(super) internal_local: bool,
    /// Outside clients reach endpoints of this node only.
    pub(super) external_local: bool,
    /// Clients that are pods are known as such.
    pub(super) detects_pods: bool,
    /// Everybody is masqueraded on cluster IPs.
    pub(super) masquerade_all: bool,
    /// An endpoint exists, if only on another node.
    pub(super) any_endpoint: bool,
    /// Clients outside are answered by the backend's own node.
    pub(super) dsr: bool,
    /// Source ranges restrict the load-balancer addresses, and the node is outside them.
    pub(super) node_denied: bool,
}

impl Policies {
    /// The rules of a frontend of this kind.
    pub(super) fn rules(&self, kind: Kind) -> ClientRules {
        match kind {
            // No backend is ever looked for: ports that are not declared are refused.
            Kind::ADDRESS => ClientRules::default(),
            Kind::CLUSTER_IP => self.internal(),
            Kind::LOAD_BALANCER if self.node_denied => {
                let rules = Policies { node_denied: false, ..*self }.rules(kind);
                ClientRules { node: ClientRule(ClientRule::DENY), ..rules }
            }
            _ if self.external_local => self.external_local(),
            _ => self.external_cluster(),
        }
    }

    /// The cluster IP. Clients from outside the pod network would get the reply from an
    /// address they never spoke to; without a way to tell them, nobody is masqueraded.
    fn internal(&self) -> ClientRules {
        let scope = if self.internal_local { self.local() } else { 0 };
        let snat = |wanted: bool| if wanted { ClientRule::SNAT } else { 0 };
        let others = ClientRule(scope | snat(self.masquerade_all || self.detects_pods));
        ClientRules { pod: ClientRule(scope | snat(self.masquerade_all)), node: others, external: others }
    }

    /// Faces to the outside under policy Cluster. Direct server return is for clients that
    /// are outside beyond doubt: the reply to a pod of this node would come in with this
    /// node's own address as its source, which no host accepts.
    fn external_cluster(&self) -> ClientRules {
        let snat = ClientRule(ClientRule::SNAT);
        let dsr = self.dsr && self.detects_pods;
        let external = if dsr { ClientRule(ClientRule::DSR) } else { snat };
        ClientRules { pod: snat, node: snat, external }
    }

    /// Faces to the outside under policy Local: outside clients keep their address. Pods
    /// and the node itself are served as if they had gone out and come back through a
    /// load balancer, which picks a node with endpoints.
    fn external_local(&self) -> ClientRules {
        let external = ClientRule(self.local());
        let pod = if self.detects_pods { ClientRule(0) } else { external };
        ClientRules { pod, node: ClientRule(ClientRule::SNAT), external }
    }

    /// The local scope; balancers try another node when a packet is dropped, but not when
    /// it is refused.
    fn local(&self) -> u32 {
        ClientRule::LOCAL | if self.any_endpoint { ClientRule::DROP } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Policies = Policies {
        internal_local: false,
        external_local: false,
        detects_pods: true,
        masquerade_all: false,
        any_endpoint: true,
        dsr: false,
        node_denied: false,
    };

    /// `expected` has a word for pod, node and external: letters of Local, Snat, Drop, deny (X), dsR, or `-`.
    fn check(policies: Policies, kind: Kind, expected: &str) {
        let letters = |rule: ClientRule| {
            let bits = [
                (ClientRule::LOCAL, "L"),
                (ClientRule::SNAT, "S"),
                (ClientRule::DROP, "D"),
                (ClientRule::DENY, "X"),
                (ClientRule::DSR, "R"),
            ];
            let set: String =
                bits.iter().filter(|(bit, _)| rule.has(*bit)).map(|(_, letter)| *letter).collect();
            if set.is_empty() { "-".to_owned() } else { set }
        };
        let rules = policies.rules(kind);
        let actual = [rules.pod, rules.node, rules.external].map(letters).join(" ");
        assert_eq!(actual, expected, "{policies:?} {kind:?}");
    }

    #[test]
    fn cluster_ip() {
        check(PLAIN, Kind::CLUSTER_IP, "- S S");
        check(Policies { detects_pods: false, ..PLAIN }, Kind::CLUSTER_IP, "- - -");
        check(Policies { masquerade_all: true, ..PLAIN }, Kind::CLUSTER_IP, "S S S");
        check(Policies { masquerade_all: true, detects_pods: false, ..PLAIN }, Kind::CLUSTER_IP, "S S S");
        check(Policies { external_local: true, ..PLAIN }, Kind::CLUSTER_IP, "- S S");
        let local = Policies { internal_local: true, ..PLAIN };
        check(local, Kind::CLUSTER_IP, "LD LSD LSD");
        check(Policies { masquerade_all: true, ..local }, Kind::CLUSTER_IP, "LSD LSD LSD");
        check(Policies { any_endpoint: false, ..local }, Kind::CLUSTER_IP, "L LS LS");
    }

    #[test]
    fn outside_faces() {
        for kind in [Kind::NODE_PORT, Kind::EXTERNAL_IP, Kind::LOAD_BALANCER] {
            check(PLAIN, kind, "S S S");
            check(Policies { internal_local: true, ..PLAIN }, kind, "S S S");
            let local = Policies { external_local: true, ..PLAIN };
            check(local, kind, "- S LD");
            check(Policies { masquerade_all: true, ..local }, kind, "- S LD");
            check(Policies { detects_pods: false, ..local }, kind, "LD S LD");
            check(Policies { any_endpoint: false, ..local }, kind, "- S L");
        }
    }

    #[test]
    fn direct_server_return_is_for_clients_outside() {
        let dsr = Policies { dsr: true, ..PLAIN };
        for kind in [Kind::NODE_PORT, Kind::EXTERNAL_IP, Kind::LOAD_BALANCER] {
            check(dsr, kind, "S S R");
            check(Policies { external_local: true, ..dsr }, kind, "- S LD");
            check(Policies { detects_pods: false, ..dsr }, kind, "S S S");
        }
        check(dsr, Kind::CLUSTER_IP, "- S S");
        check(Policies { node_denied: true, ..dsr }, Kind::LOAD_BALANCER, "S X R");
    }

    #[test]
    fn a_node_outside_the_source_ranges() {
        let denied = Policies { node_denied: true, ..PLAIN };
        check(denied, Kind::LOAD_BALANCER, "S X S");
        check(Policies { external_local: true, ..denied }, Kind::LOAD_BALANCER, "- X LD");
        check(denied, Kind::NODE_PORT, "S S S");
        check(denied, Kind::CLUSTER_IP, "- S S");
    }

    #[test]
    fn addresses_have_no_rule() {
        check(Policies { internal_local: true, masquerade_all: true, ..PLAIN }, Kind::ADDRESS, "- - -");
    }
}

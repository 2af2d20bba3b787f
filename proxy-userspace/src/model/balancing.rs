//! How a service spreads its connections over its endpoints: the way packets take, the
//! algorithm that draws an endpoint, and the endpoints' weights.

use std::{fmt, net::IpAddr, sync::Arc};

use super::Protocol;

/// What an operator wants of the load balancer, unless a service wants otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancer {
    /// The way of packets from outside to an endpoint on another node.
    pub mode: Mode,
    /// How the endpoint of a connection from outside is drawn.
    pub algorithm: Algorithm,
}

/// What a service wants of the load balancer by its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// `shunt.dev/load-balancer-mode`.
    pub mode: Option<Mode>,
    /// `shunt.dev/algorithm`.
    pub algorithm: Option<Algorithm>,
    /// `shunt.dev/weights`.
    pub weights: Weights,
}

/// The way of packets from outside to an endpoint on another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Masqueraded: the reply comes back by this node, and the endpoint sees the node.
    #[default]
    Snat,
    /// Direct server return: the endpoint sees the client, and its node answers.
    Dsr,
    /// TCP by direct server return, everything else masqueraded.
    Hybrid,
}

impl Mode {
    /// The name in configuration and annotations.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Snat => "snat",
            Mode::Dsr => "dsr",
            Mode::Hybrid => "hybrid",
        }
    }

    /// The mode of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Mode::Snat, Mode::Dsr, Mode::Hybrid].into_iter().find(|mode| mode.name() == name)
    }

    /// True when connections of this protocol are answered by the endpoint's node.
    pub fn returns_directly(self, protocol: Protocol) -> bool {
        match self {
            Mode::Snat => false,
            Mode::Dsr => true,
            Mode::Hybrid => protocol == Protocol::Tcp,
        }
    }
}

/// How the endpoint of a connection is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// By chance.
    #[default]
    Random,
    /// By the client's address and port, equally on every node.
    Maglev,
}

impl Algorithm {
    /// The name in configuration and annotations.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Random => "random",
            Algorithm::Maglev => "maglev",
        }
    }

    /// The algorithm of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Algorithm::Random, Algorithm::Maglev].into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// What the weight of an endpoint may depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// Its address.
    pub addr: IpAddr,
    /// The pod behind it.
    pub pod: Option<Arc<str>>,
    /// The node it runs on.
    pub node: Option<Arc<str>>,
    /// The zone it runs in.
    pub zone: Option<Arc<str>>,
}

/// Weights of endpoints; whoever is not listed has [`Weights::DEFAULT`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Box<[(WeightKey, u16)]>);

/// Whom a weight is for. Of several that fit an endpoint the first in this order counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightKey {
    /// The endpoint with this address.
    Address(IpAddr),
    /// The endpoint of this pod.
    Pod(Arc<str>),
    /// Endpoints on this node.
    Node(Arc<str>),
    /// Endpoints in this zone.
    Zone(Arc<str>),
}

impl fmt::Display for WeightKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightKey::Address(addr) => write!(f, "{addr}"),
            WeightKey::Pod(name) => write!(f, "pod:{name}"),
            WeightKey::Node(name) => write!(f, "node:{name}"),
            WeightKey::Zone(name) => write!(f, "zone:{name}"),
        }
    }
}

impl Weights {
    /// The weight of an endpoint that is not listed.
    pub const DEFAULT: u16 = 1;

    /// The greatest weight.
    pub const MAX: u16 = 1000;

    /// A list in which no key is given twice.
    pub fn new(mut list: Vec<(WeightKey, u16)>) -> Self {
        list.sort_unstable();
        Self(list.into())
    }

    /// True when every endpoint has [`Weights::DEFAULT`].
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The weight of an endpoint. Zero takes no new connections.
    pub fn of(&self, endpoint: Weighed) -> u16 {
        let keys = [
            Some(WeightKey::Address(endpoint.addr)),
            endpoint.pod.map(WeightKey::Pod),
            endpoint.node.map(WeightKey::Node),
            endpoint.zone.map(WeightKey::Zone),
        ];
        keys.iter().flatten().find_map(|key| self.get(key)).unwrap_or(Self::DEFAULT)
    }

    fn get(&self, key: &WeightKey) -> Option<u16> {
        let at = self.0.binary_search_by(|(known, _)| known.cmp(key)).ok()?;
        self.0.get(at).map(|(_, weight)| *weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_weight_counts() {
        let key = |text: &str| match text.split_once(':') {
            Some(("pod", name)) => WeightKey::Pod(name.into()),
            Some(("node", name)) => WeightKey::Node(name.into()),
            Some(("zone", name)) => WeightKey::Zone(name.into()),
            _ => WeightKey::Address(text.parse().expect("an address")),
        };
        let check = |list: &[(&str, u16)], expected| {
            let endpoint = Weighed {
                addr: [10, 0, 0, 1].into(),
                node: Some("n1".into()),
                pod: Some("web-0".into()),
                zone: None,
            };
            let weights = Weights::new(list.iter().map(|(text, weight)| (key(text), *weight)).collect());
            assert_eq!(weights.of(endpoint), expected, "{list:?}");
        };
        check(&[], 1);
        check(&[("10.0.0.2", 5), ("zone:a", 7), ("node:n2", 9)], 1);
        check(&[("10.0.0.1", 5), ("pod:web-0", 6), ("node:n1", 0)], 5);
        check(&[("node:n1", 7), ("pod:web-0", 6)], 6);
        check(&[("node:n1", 0), ("zone:a", 6)], 0);
    }

    #[test]
    fn hybrid_is_for_tcp() {
        assert!(
            Mode::Hybrid.returns_directly(Protocol::Tcp) && !Mode::Hybrid.returns_directly(Protocol::Udp)
        );
        assert!(Mode::Dsr.returns_directly(Protocol::Sctp) && !Mode::Snat.returns_directly(Protocol::Tcp));
        assert_eq!((Mode::from_name("hybrid"), Mode::from_name("")), (Some(Mode::Hybrid), None));
        assert_eq!(Algorithm::from_name("maglev"), Some(Algorithm::Maglev));
    }
}

//! The fields of ShuntConfiguration.

use super::{
    Field,
    Takes::{Live, Restart},
    honoured,
};

/// Every field of `shunt.dev/v1alpha1`.
pub const SHUNT: &[Field] = &[
    honoured(
        "apiServers",
        Restart,
        "URLs of further API servers of the cluster, asked in turn when the one of the kubeconfig, or of `--master`, fails; see \
         [restart-and-upgrade.md](restart-and-upgrade.md#when-the-api-server-goes-away)",
    ),
    honoured(
        "socketLB",
        Live,
        "`all`, `host` or `off`: whose sockets are translated when they connect, see [socket-lb.md](socket-lb.md)",
    ),
    honoured("answerEcho", Live, "ClusterIPs answer ping"),
    honoured(
        "reserveNodePorts",
        Live,
        "processes of the host that bind a NodePort where it is served get `EADDRINUSE`. With `false` they may, and see nothing \
         of what comes to the NodePort from other hosts",
    ),
    honoured(
        "looseTCP",
        Live,
        "any TCP or SCTP packet opens a connection, see [connections.md](connections.md#in-the-middle-of-a-connection)",
    ),
    honoured(
        "interfaces.ignore",
        Live,
        "patterns of names of devices that are no edge, where discovery must be overruled",
    ),
    honoured("interfaces.pod", Live, "patterns of names of pod edges"),
    honoured("interfaces.node", Live, "patterns of names of node edges"),
    honoured("interfaces.tunnel", Live, "patterns of names of tunnel edges"),
    honoured(
        "attach",
        Restart,
        "`tcx`, `clsact`, or `auto`: the first where the kernel has it. By `clsact` no device may have the qdisc `ingress`, which has no egress: replace it with `clsact`, which takes the same filters",
    ),
    honoured(
        "loadBalancer.mode",
        Live,
        "`snat`, `dsr` or `hybrid`: the way to endpoints on other nodes, see [services.md](services.md#load-balancing)",
    ),
    honoured("loadBalancer.algorithm", Live, "`random` or `maglev`, for addresses that face the outside"),
    honoured(
        "xdp",
        Restart,
        "`off`, `auto`, `native` or `generic`: drivers forward what only passes this node, see [xdp.md](xdp.md)",
    ),
    honoured(
        "masqueradeAddresses",
        Live,
        "CIDRs of addresses of the node behind which connections are masqueraded, each with all source ports; empty: \
         one of the device they leave by, see [connections.md](connections.md#source-ports)",
    ),
    honoured(
        "snatPortRange",
        Live,
        "source ports of masqueraded connections, see [connections.md](connections.md#source-ports)",
    ),
    honoured(
        "nodePortRange",
        Live,
        "what the API server gives to NodePorts (`--service-node-port-range`); must not overlap `snatPortRange`",
    ),
    honoured(
        "nodeTaint",
        Restart,
        "`KEY:EFFECT` of a taint that the agent takes off its node when services work there, see \
         [restart-and-upgrade.md](restart-and-upgrade.md#when-pods-may-come)",
    ),
    honoured(
        "maps.frontends",
        Restart,
        "rows to begin with: addresses services answer on; see [how large maps are](restart-and-upgrade.md#how-large-maps-are)",
    ),
    honoured("maps.backends", Restart, "rows to begin with: endpoints"),
    honoured("maps.slots", Restart, "rows to begin with: candidates of all frontends together"),
    honoured("maps.conntrack", Restart, "rows to begin with: two to four for each translated connection"),
    honoured(
        "maps.conntrackMemory",
        Restart,
        "the most kernel memory that translated connections may take: an amount such as `512Mi`, or a share of the \
         machine's such as `10%`, see [connections.md](connections.md#memory)",
    ),
    honoured("maps.services", Restart, "rows to begin with: service ports"),
    honoured("maps.affinity", Restart, "rows to begin with: clients with session affinity"),
    honoured(
        "maps.sourceRanges",
        Restart,
        "rows to begin with: `loadBalancerSourceRanges`, for each port of a Service",
    ),
    honoured("bpffs", Restart, "directory for pins, on a bpf file system"),
    honoured("cgroup", Restart, "root of cgroup2; found in the mount table when empty"),
    honoured("logging.format", Restart, "`text` or `json`; wins over the same field of kube-proxy"),
    honoured("logging.level", Live, "`error` to `trace`, or such levels per module; `info` when empty"),
    honoured(
        "logging.datapathLevel",
        Restart,
        "what the eBPF programs log about packets; `off` costs nothing",
    ),
];

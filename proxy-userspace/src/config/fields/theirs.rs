//! The fields of KubeProxyConfiguration. The order is that of `kube_proxy`.

use super::{
    Field,
    Takes::{Live, Restart},
    honoured, mapped, unused,
};

/// Every field of `kubeproxy.config.k8s.io/v1alpha1`.
pub const KUBE_PROXY: &[Field] = &[
    mapped(
        "featureGates",
        Live,
        "the names and locks of Kubernetes 1.36 are checked; `AllowServiceExternalIPs: false` takes the external IPs \
         from all services, the other gates change nothing here",
    ),
    honoured("clientConnection.kubeconfig", Restart, "the service account of the pod when empty"),
    unused("clientConnection.acceptContentTypes", "the API server is asked for JSON"),
    unused("clientConnection.contentType", "the API server is asked for JSON"),
    unused("clientConnection.qps", "a few watches and now and then an event are all the agent asks for"),
    unused("clientConnection.burst", "a few watches and now and then an event are all the agent asks for"),
    honoured("logging.format", Restart, "`logging.format` of ShuntConfiguration and `--log-format` win"),
    unused("logging.flushFrequency", "lines are not held back"),
    mapped(
        "logging.verbosity",
        Live,
        "up to 3 is level info, 4 and 5 debug, from 6 on trace; `logging.level` of ShuntConfiguration and `--log-level` win",
    ),
    unused(
        "logging.vmodule",
        "names files of kube-proxy's source; `logging.level: module=level` is the like of it",
    ),
    unused("logging.options.text.splitStream", "all lines go to standard error"),
    unused("logging.options.text.infoBufferSize", "lines are not held back"),
    unused("logging.options.json.splitStream", "all lines go to standard error"),
    unused("logging.options.json.infoBufferSize", "lines are not held back"),
    honoured("hostnameOverride", Restart, "the host's name, lower-cased, when empty"),
    honoured(
        "bindAddress",
        Restart,
        "overrides the node's primary address of its family, which takes NodePorts and may be in source ranges; its family \
         is that of the default listen addresses",
    ),
    honoured(
        "healthzBindAddress",
        Live,
        "`/healthz` and `/livez`; 0.0.0.0:10256 when empty, [::]:10256 with an IPv6 `bindAddress`",
    ),
    honoured(
        "metricsBindAddress",
        Live,
        "`/metrics` and its neighbours; 127.0.0.1:10249 when empty, [::1]:10249 with an IPv6 `bindAddress`",
    ),
    honoured("bindAddressHardFail", Restart, "a port of the agent that is taken at its start ends it"),
    honoured("enableProfiling", Restart, "`/debug/pprof` on the port of metrics"),
    unused("showHiddenMetricsForVersion", "no metric is hidden; the value is checked as by kube-proxy"),
    mapped(
        "mode",
        Live,
        "the datapath is eBPF in every mode. The mode says which of the sections `iptables`, `ipvs`, `nftables` count (none: \
         all), and which addresses take NodePorts when `nodePortAddresses` is empty",
    ),
    unused("iptables.masqueradeBit", "no packet is marked"),
    honoured("iptables.masqueradeAll", Live, "in modes iptables, ipvs and none"),
    honoured(
        "iptables.localhostNodePorts",
        Live,
        "in mode iptables, NodePorts on 127.0.0.1; without a mode only where `nodePortAddresses` names it; `false` takes them away",
    ),
    honoured(
        "iptables.syncPeriod",
        Live,
        "time between comparisons of all rows with the kernel; longer apart where one takes more than 0.15 s; in modes iptables and none",
    ),
    honoured(
        "iptables.minSyncPeriod",
        Live,
        "least time between rounds of writes, 0 unless it is written; in modes iptables and none",
    ),
    honoured("ipvs.syncPeriod", Live, "as `iptables.syncPeriod`; in mode ipvs"),
    honoured("ipvs.minSyncPeriod", Live, "as `iptables.minSyncPeriod`; in mode ipvs"),
    mapped(
        "ipvs.scheduler",
        Live,
        "`sh`, `dh` and `mh` are `loadBalancer.algorithm: maglev`, all others `random`; that field of ShuntConfiguration wins; \
         in modes ipvs and none",
    ),
    unused("ipvs.excludeCIDRs", "virtual servers of IPVS are left alone, whoever they belong to"),
    honoured(
        "ipvs.strictARP",
        Live,
        "always so: no address of a service is put on a device, so that nobody answers ARP for it",
    ),
    honoured(
        "ipvs.tcpTimeout",
        Live,
        "for idle TCP connections; wins over `conntrack`; in modes ipvs and none",
    ),
    honoured(
        "ipvs.tcpFinTimeout",
        Live,
        "for TCP connections that one side or both have closed; wins over `conntrack`; in modes ipvs and none",
    ),
    honoured("ipvs.udpTimeout", Live, "for all UDP flows; wins over `conntrack`; in modes ipvs and none"),
    unused("nftables.masqueradeBit", "no packet is marked"),
    honoured("nftables.masqueradeAll", Live, "in modes nftables and none"),
    honoured(
        "nftables.syncPeriod",
        Live,
        "as `iptables.syncPeriod`; in modes nftables and none, where it goes first",
    ),
    honoured("nftables.minSyncPeriod", Live, "as `iptables.minSyncPeriod`; in modes nftables and none"),
    unused("winkernel.networkName", "is for Windows"),
    unused("winkernel.sourceVip", "is for Windows"),
    unused(
        "winkernel.enableDSR",
        "is for Windows; `loadBalancer.mode: dsr` of ShuntConfiguration is the like of it",
    ),
    unused("winkernel.rootHnsEndpointName", "is for Windows"),
    unused("winkernel.forwardHealthCheckVip", "is for Windows"),
    honoured("detectLocalMode", Live, "all four modes"),
    honoured("detectLocal.bridgeInterface", Live, "ports of the bridge count as the bridge"),
    honoured("detectLocal.interfaceNamePrefix", Live, "ports of a bridge with that prefix count, too"),
    honoured("clusterCIDR", Live, "one range for each family; counts in mode ClusterCIDR"),
    mapped(
        "nodePortAddresses",
        Live,
        "when empty, the node's primary addresses; in mode ipvs all of them, in mode iptables those and 127.0.0.1. \
         A range of loopback addresses asks for NodePorts there",
    ),
    honoured("oomScoreAdj", Live, "takes CAP_SYS_RESOURCE; the log tells if the system refuses"),
    mapped(
        "conntrack.maxPerCore",
        Live,
        "`nf_conntrack_max` of the host, which is raised as by kube-proxy and never lowered; the table of translated \
         connections has `maps.conntrack` of ShuntConfiguration",
    ),
    mapped("conntrack.min", Live, "the least `nf_conntrack_max`, see `conntrack.maxPerCore`"),
    honoured("conntrack.tcpEstablishedTimeout", Live, "for our table and nf_conntrack of the host"),
    honoured("conntrack.tcpCloseWaitTimeout", Live, "for our table and nf_conntrack of the host"),
    honoured(
        "conntrack.tcpBeLiberal",
        Live,
        "for nf_conntrack of the host; our table never looks at TCP windows",
    ),
    honoured("conntrack.udpTimeout", Live, "for our table and nf_conntrack of the host"),
    honoured("conntrack.udpStreamTimeout", Live, "for our table and nf_conntrack of the host"),
    unused("configSyncPeriod", "watches are followed, not read anew; `syncPeriod` compares with the kernel"),
    unused("portRange", "is unused by kube-proxy, too"),
    unused("windowsRunAsService", "is for Windows"),
];

//! kube-proxy's flags, in one table: the DaemonSet's arguments need not change with the image.
//! What a value means is decided where the file's fields are read.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use serde_norway::{Mapping, Value};

use crate::config::{FlagValue, duration::GoDuration};

/// The flags of kube-proxy that were given, of those that stand for fields of its file.
#[derive(Clone, Debug, Default)]
pub struct KubeProxyFlags(Vec<FlagValue>);

impl KubeProxyFlags {
    /// For the configuration.
    pub fn given(&self) -> Vec<FlagValue> {
        self.0.clone()
    }
}

/// How the value of a flag is written.
#[derive(Clone, Copy)]
enum Kind {
    Switch,
    Int,
    Float,
    Duration,
    Text,
    /// Separated by commas.
    List,
    /// `name=true,other=false`
    Gates,
    /// `pattern=2,other=4`
    Vmodule,
}

/// Name, form, fields, help.
type Flag = (&'static str, Kind, &'static [&'static str], &'static str);

use Kind::{Duration, Float, Gates, Int, List, Switch, Text, Vmodule};

const GENERAL: &[Flag] = &[
    ("feature-gates", Gates, &["featureGates"], "Features by name, as name=true,other=false"),
    ("proxy-mode", Text, &["mode"], "iptables, ipvs or nftables: which flags count"),
    ("config-sync-period", Duration, &["configSyncPeriod"], "No effect: watches are followed"),
    ("kube-api-content-type", Text, &["clientConnection.contentType"], "No effect: the agent speaks JSON"),
    ("kube-api-burst", Int, &["clientConnection.burst"], "No effect: the agent asks for little"),
    ("kube-api-qps", Float, &["clientConnection.qps"], "No effect: the agent asks for little"),
    ("oom-score-adj", Int, &["oomScoreAdj"], "-1000 (never) to 1000: whom the system kills first for memory"),
    ("profiling", Switch, &["enableProfiling"], "Serve /debug/pprof where metrics are served"),
    ("show-hidden-metrics-for-version", Text, &["showHiddenMetricsForVersion"], "No effect: none is hidden"),
    ("boot-id-file", Text, &[], "No effect, as in kube-proxy"),
    ("machine-id-file", Text, &[], "No effect, as in kube-proxy"),
];

const ADDRESSES: &[Flag] = &[
    (
        "bind-address",
        Text,
        &["bindAddress"],
        "The node's primary address, where its object is not to be believed",
    ),
    ("bind-address-hard-fail", Switch, &["bindAddressHardFail"], "A port that is taken ends the agent"),
    (
        "nodeport-addresses",
        List,
        &["nodePortAddresses"],
        "Ranges of the addresses that take NodePorts, or primary",
    ),
    (
        "masquerade-all",
        Switch,
        &["iptables.masqueradeAll", "nftables.masqueradeAll"],
        "Masquerade all traffic to ClusterIPs",
    ),
    ("cluster-cidr", Text, &["clusterCIDR"], "Addresses of pods, one range for each family"),
    (
        "detect-local-mode",
        Text,
        &["detectLocalMode"],
        "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
    ),
    ("pod-bridge-interface", Text, &["detectLocal.bridgeInterface"], "The bridge that pods are behind"),
    (
        "pod-interface-name-prefix",
        Text,
        &["detectLocal.interfaceNamePrefix"],
        "How names of devices of pods begin",
    ),
];

const SYNC: &[Flag] = &[
    (
        "iptables-sync-period",
        Duration,
        &["iptables.syncPeriod", "nftables.syncPeriod"],
        "Time between comparisons with the kernel",
    ),
    (
        "iptables-min-sync-period",
        Duration,
        &["iptables.minSyncPeriod", "nftables.minSyncPeriod"],
        "Least time between rounds of writes",
    ),
    (
        "iptables-localhost-nodeports",
        Switch,
        &["iptables.localhostNodePorts"],
        "NodePorts on 127.0.0.1 in mode iptables",
    ),
    ("iptables-masquerade-bit", Int, &["iptables.masqueradeBit"], "No effect: no packet is marked"),
    ("ipvs-sync-period", Duration, &["ipvs.syncPeriod"], "The same in mode ipvs"),
    ("ipvs-min-sync-period", Duration, &["ipvs.minSyncPeriod"], "The same in mode ipvs"),
    (
        "ipvs-scheduler",
        Text,
        &["ipvs.scheduler"],
        "sh, dh and mh are like loadBalancer.algorithm maglev, others random",
    ),
    ("ipvs-exclude-cidrs", List, &["ipvs.excludeCIDRs"], "No effect: virtual servers are left alone"),
    ("ipvs-strict-arp", Switch, &["ipvs.strictARP"], "Always so: service addresses are on no device"),
    ("ipvs-tcp-timeout", Duration, &["ipvs.tcpTimeout"], "Idle TCP connections"),
    ("ipvs-tcpfin-timeout", Duration, &["ipvs.tcpFinTimeout"], "TCP connections that were closed"),
    ("ipvs-udp-timeout", Duration, &["ipvs.udpTimeout"], "Idle UDP flows"),
];

const CONNTRACK: &[Flag] = &[
    (
        "conntrack-max-per-core",
        Int,
        &["conntrack.maxPerCore"],
        "Connections in the host's nf_conntrack, for each CPU",
    ),
    ("conntrack-min", Int, &["conntrack.min"], "The least of them in all"),
    (
        "conntrack-tcp-timeout-established",
        Duration,
        &["conntrack.tcpEstablishedTimeout"],
        "Idle TCP connections",
    ),
    (
        "conntrack-tcp-timeout-close-wait",
        Duration,
        &["conntrack.tcpCloseWaitTimeout"],
        "TCP connections one side has closed",
    ),
    (
        "conntrack-tcp-be-liberal",
        Switch,
        &["conntrack.tcpBeLiberal"],
        "The host's nf_conntrack takes packets out of window",
    ),
    ("conntrack-udp-timeout", Duration, &["conntrack.udpTimeout"], "UDP flows without a reply"),
    ("conntrack-udp-timeout-stream", Duration, &["conntrack.udpStreamTimeout"], "UDP flows with replies"),
];

const LOG: &[Flag] = &[
    (
        "v",
        Int,
        &["logging.verbosity"],
        "Verbosity of the log: up to 3 is info, 4 and 5 debug, from 6 on trace",
    ),
    ("vmodule", Vmodule, &["logging.vmodule"], "No effect: names files of kube-proxy's source"),
    ("logging-format", Text, &["logging.format"], "text or json"),
    ("log-flush-frequency", Duration, &["logging.flushFrequency"], "No effect: lines are not held back"),
    ("log-text-split-stream", Switch, &["logging.options.text.splitStream"], "No effect"),
    ("log-text-info-buffer-size", Text, &["logging.options.text.infoBufferSize"], "No effect"),
    ("log-json-split-stream", Switch, &["logging.options.json.splitStream"], "No effect"),
    ("log-json-info-buffer-size", Text, &["logging.options.json.infoBufferSize"], "No effect"),
];

const GROUPS: [(&str, &[Flag]); 5] = [
    ("kube-proxy's flags (without --config)", GENERAL),
    ("kube-proxy's flags: addresses", ADDRESSES),
    ("kube-proxy's flags: iptables and ipvs", SYNC),
    ("kube-proxy's flags: connection tracking", CONNTRACK),
    ("kube-proxy's flags: log (with --config, too)", LOG),
];

impl Args for KubeProxyFlags {
    fn augment_args(command: Command) -> Command {
        GROUPS.into_iter().fold(command, |command, (heading, flags)| {
            flags.iter().fold(command, |command, flag| command.arg(arg(flag).help_heading(heading)))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KubeProxyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let all = GROUPS.iter().flat_map(|(_, flags)| flags.iter());
        let given = all.filter(|(_, _, paths, _)| !paths.is_empty()).filter_map(|&(flag, _, paths, _)| {
            let value = matches.get_one::<Value>(flag)?.clone();
            Some(FlagValue { flag, paths, value })
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The last one counts where a flag is repeated, as in kube-proxy.
fn arg(&(name, kind, _, help): &Flag) -> Arg {
    let parser = move |text: &str| parse(kind, text);
    let arg = Arg::new(name).long(name).value_parser(parser).help(help).overrides_with(name);
    let arg = if name == "v" { arg.short('v') } else { arg };
    match kind {
        Kind::Switch => {
            arg.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        Kind::Int | Kind::Float => arg.value_name("NUMBER").allow_negative_numbers(true),
        Kind::Duration => arg.value_name("DURATION").allow_hyphen_values(true),
        Kind::Text => arg.value_name("TEXT"),
        Kind::List => arg.value_name("A,B,..."),
        Kind::Gates => arg.value_name("NAME=BOOL,..."),
        Kind::Vmodule => arg.value_name("PATTERN=NUMBER,..."),
    }
}

fn parse(kind: Kind, text: &str) -> Result<Value, String> {
    let items = || text.split(',').filter(|item| !item.is_empty());
    match kind {
        Kind::Switch => boolean(text).map(Value::Bool),
        Kind::Int => text.parse::<i64>().map(Value::from).map_err(|error| error.to_string()),
        Kind::Float => text.parse::<f64>().map(Value::from).map_err(|error| error.to_string()),
        Kind::Duration => text.parse::<GoDuration>().map(|_| text.into()).map_err(|error| error.to_string()),
        Kind::Text => Ok(text.into()),
        Kind::List => Ok(items().collect::<Vec<_>>().into()),
        Kind::Gates => items().map(gate).collect::<Result<Mapping, _>>().map(Value::Mapping),
        Kind::Vmodule => items().map(vmodule).collect::<Result<Vec<_>, _>>().map(Value::Sequence),
    }
}

/// As Go's `strconv.ParseBool` reads it.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("is neither true nor false".into()),
    }
}

fn pair(item: &str) -> Result<(&str, &str), String> {
    item.split_once('=')
        .map(|(name, value)| (name.trim(), value.trim()))
        .ok_or_else(|| format!("{item} has no ="))
}

fn gate(item: &str) -> Result<(Value, Value), String> {
    let (name, value) = pair(item)?;
    Ok((name.into(), boolean(value).map_err(|error| format!("{name} {error}"))?.into()))
}

fn vmodule(item: &str) -> Result<Value, String> {
    let (pattern, verbosity) = pair(item)?;
    let verbosity: u32 = verbosity.parse().map_err(|error| format!("{pattern}: {error}"))?;
    let fields = [("filePattern".into(), pattern.into()), ("verbosity".into(), verbosity.into())];
    Ok(Value::Mapping(Mapping::from_iter(fields)))
}

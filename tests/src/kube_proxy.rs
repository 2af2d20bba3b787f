//! The real kube-proxy on a node: the one to be replaced. It comes from where the API server
//! comes from, and writes its rules with the host's `nft` or `iptables`.

use crate::{
    agent::kube_proxy_document,
    cleanup::{self, Guard},
    control_plane::assets,
    netns::Namespace,
    process::{Process, Spawn},
};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    iter,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// How kube-proxy has the kernel translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A table of its own in nftables.
    Nftables,
    /// Chains in the tables of iptables, which are nftables, too, with today's `iptables`.
    Iptables,
    /// Chains in the kernel's older tables. `iptables-legacy` writes thousands of them in seconds,
    /// where `iptables-nft` takes minutes.
    IptablesLegacy,
}

impl Mode {
    /// As `KubeProxyConfiguration` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables | Self::IptablesLegacy => "iptables",
        }
    }
}

/// A running kube-proxy. Its end leaves its rules in place.
#[derive(Debug)]
pub struct KubeProxy {
    process: Process,
    directory: PathBuf,
    _directory: Guard,
}

/// Why it cannot run here in this mode, if so.
pub fn obstacle(mode: Mode) -> Option<String> {
    let program = match mode {
        Mode::Nftables => "nft",
        Mode::Iptables => "iptables-nft",
        Mode::IptablesLegacy => "iptables-legacy",
    };
    let runs = Command::new(program).arg("--version").output().is_ok();
    let known = assets().is_ok_and(|assets| assets.join("kube-proxy").exists());
    match (runs, known) {
        (true, true) => None,
        (false, _) => Some(format!("kube-proxy's {} mode needs the program {program}", mode.name())),
        (_, false) => Some("there is no kube-proxy beside the API server".into()),
    }
}

/// A search path on which the commands of iptables are those that write the older tables.
fn legacy_first(directory: &Path) -> Result<OsString> {
    let search = env::var_os("PATH").context("PATH is not set")?;
    let folder = directory.join("legacy");
    fs::create_dir(&folder)?;
    for family in ["iptables", "ip6tables"] {
        for command in ["", "-save", "-restore"] {
            let name = format!("{family}-legacy{command}");
            let mut programs = env::split_paths(&search).map(|folder| folder.join(&name));
            let program = programs.find(|program| program.exists());
            let program = program.with_context(|| format!("there is no {name}"))?;
            symlink(program, folder.join(format!("{family}{command}")))?;
        }
    }
    Ok(env::join_paths(iter::once(folder).chain(env::split_paths(&search)))?)
}

impl KubeProxy {
    /// Starts it on the node called `name`; its rules come soon.
    pub fn start(node: &Namespace, name: &str, mode: Mode, kubeconfig: &Path) -> Result<Self> {
        let (directory, guard) = cleanup::directory("kube-proxy")?;
        let unset = json!("0s");
        let config = kube_proxy_document(&json!({
            "mode": mode.name(),
            "hostnameOverride": name,
            "clientConnection": {"kubeconfig": kubeconfig},
            "detectLocalMode": "ClusterCIDR",
            "clusterCIDR": "10.244.0.0/16,fd00:244::/32",
            // Limits of the machine, which are not a namespace's to set.
            "conntrack": {
                "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": unset, "tcpCloseWaitTimeout": unset,
            },
        }))?;
        let path = directory.join("config.yaml");
        fs::write(&path, config)?;
        let log = File::create(directory.join("log"))?;
        let mut command = Command::new(assets()?.join("kube-proxy"));
        command.arg("--config").arg(&path);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if mode == Mode::IptablesLegacy {
            command.env("PATH", legacy_first(&directory)?);
        }
        let process = command.netns(node)?.spawn_owned().context("start kube-proxy")?;
        Ok(Self { process, directory, _directory: guard })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// An error if it has ended.
    pub fn ensure_alive(&self) -> Result<()> {
        let ended = self.process.child().try_wait()?;
        ensure!(ended.is_none(), "kube-proxy ended with {ended:?}");
        Ok(())
    }

    /// The last lines of its log.
    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

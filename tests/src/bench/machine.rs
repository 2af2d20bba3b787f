//! What it was measured on.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::control_plane::assets;

/// Facts that figures depend on.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    /// As the kernel names it.
    pub cpu: String,
    /// How many of them are online.
    pub cpus: usize,
    /// Of all RAM.
    pub memory_mib: u64,
    /// Release of the running kernel.
    pub kernel: String,
    /// Release of the kube-proxy measured beside it.
    pub kube_proxy: String,
}

impl Machine {
    /// Of this machine.
    pub fn here() -> Result<Self> {
        let cpus = fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
        let kib = field(&memory, "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0u64);
        Ok(Self {
            cpu: field(&cpus, "model name").to_owned(),
            cpus: cpus.lines().filter(|line| line.starts_with("processor")).count(),
            memory_mib: kib / 1024,
            kernel: nix::sys::utsname::uname()?.release().to_string_lossy().into_owned(),
            kube_proxy: kube_proxy_version()?,
        })
    }

    /// In one sentence.
    pub fn describe(&self) -> String {
        let Self { cpu, cpus, memory_mib, kernel, kube_proxy } = self;
        format!(
            "{cpus} CPUs ({cpu}), {} GiB of memory, Linux {kernel}, kube-proxy {kube_proxy}.",
            memory_mib.div_ceil(1024)
        )
    }
}

/// The value of the first line with this key, as in files of `/proc`.
fn field<'a>(text: &'a str, key: &str) -> &'a str {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| name.trim() == key).map_or("", |(_, value)| value.trim())
}

fn kube_proxy_version() -> Result<String> {
    let output = Command::new(assets()?.join("kube-proxy")).arg("--version").output();
    let output = output.context("ask kube-proxy for its version")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().last().unwrap_or_default().trim_start_matches('v').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nMemTotal:       1024 kB\n";
        assert_eq!((field(text, "model name"), field(text, "MemTotal")), ("Some CPU", "1024 kB"));
        assert_eq!(field(text, "flags"), "");
    }
}

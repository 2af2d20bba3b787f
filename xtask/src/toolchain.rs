//! Finds a Rust toolchain that can compile for BPF.
//!
//! Two kinds do: a rustup nightly with `rust-src`, which builds `core` itself, and a
//! distribution's rustc with a prebuilt BPF `core`. Either must speak an LLVM no newer than
//! bpf-linker's, or the linker cannot read the bitcode ("Invalid record").

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::linker::Linker;
use crate::packages;
use crate::proc::{clean, output, run, say, which};
use crate::workspace;

/// The BPF target of this machine's byte order.
pub(crate) const TARGET: &str =
    if cfg!(target_endian = "big") { "bpfeb-unknown-none" } else { "bpfel-unknown-none" };

/// A nightly known to work; the newest ones may be ahead of bpf-linker.
const NIGHTLY: &str = "nightly-2026-05-20";

/// Debian's rustc for browsers: recent, and with a BPF `core`.
const PACKAGES: [&str; 3] = ["rustc-web", "libstd-rust-web-dev-bpf", "rust-web-llvm"];

/// A compiler that can build the eBPF crate.
pub(crate) struct Toolchain {
    kind: Kind,
    /// Major version of its LLVM.
    pub(crate) llvm: u32,
}

enum Kind {
    Nightly(String),
    Prebuilt(PathBuf),
}

impl Toolchain {
    /// Finds one that is installed, or installs one.
    pub(crate) fn find_or_install(linker: Option<&Linker>) -> anyhow::Result<Self> {
        if let Some(found) = Self::find(linker) {
            return Ok(found);
        }
        install()?;
        Self::find(linker).ok_or_else(|| {
            anyhow::anyhow!(
                "a BPF toolchain is installed, but its LLVM is newer than bpf-linker's; \
                 fix: cargo uninstall bpf-linker && cargo xtask build-ebpf"
            )
        })
    }

    fn find(linker: Option<&Linker>) -> Option<Self> {
        let fits = |toolchain: &Self| linker.is_none_or(|linker| linker.reads(toolchain.llvm));
        prebuilt().filter(fits).or_else(|| nightlies().into_iter().find(fits))
    }

    /// A one-line description for people.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Nightly(name) => format!("{name} with rust-src (LLVM {})", self.llvm),
            Kind::Prebuilt(rustc) => {
                format!("{} with its prebuilt core (LLVM {})", rustc.display(), self.llvm)
            }
        }
    }

    /// `cargo build` by this toolchain, without the outer cargo's environment.
    pub(crate) fn cargo_build(&self) -> Command {
        match &self.kind {
            Kind::Nightly(name) => {
                let mut command = clean("rustup");
                command.args(["run", name, "cargo", "build", "-Zbuild-std=core"]);
                command
            }
            Kind::Prebuilt(rustc) => {
                let mut command = clean(workspace::cargo());
                command.arg("build").env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
                command
            }
        }
    }
}

/// A rustc outside rustup whose sysroot holds a BPF `core`.
fn prebuilt() -> Option<Toolchain> {
    let rustc = PathBuf::from("/usr/bin/rustc");
    let libdir = output(clean(&rustc).args(["--print=target-libdir", "--target", TARGET]))?;
    let is_core = |name: &str| name.starts_with("libcore-") && name.ends_with(".rlib");
    let mut entries = fs::read_dir(libdir).ok()?.flatten();
    entries.find(|entry| entry.file_name().to_str().is_some_and(is_core))?;
    let llvm = llvm_major(&output(clean(&rustc).arg("-vV"))?)?;
    Some(Toolchain { kind: Kind::Prebuilt(rustc), llvm })
}

/// The rustup nightlies with `rust-src`, the pinned one first.
fn nightlies() -> Vec<Toolchain> {
    let list = output(clean("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let mut names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    names.retain(|name| name.starts_with("nightly"));
    names.sort_by_key(|name| !name.starts_with(NIGHTLY));
    names.into_iter().filter_map(nightly).collect()
}

fn nightly(name: &str) -> Option<Toolchain> {
    let rustc = |arg: &str| output(clean("rustup").args(["run", name, "rustc", arg]));
    let sysroot = rustc("--print=sysroot")?;
    let source = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/Cargo.toml");
    let llvm = llvm_major(&rustc("-vV")?)?;
    source.exists().then(|| Toolchain { kind: Kind::Nightly(name.to_owned()), llvm })
}

fn llvm_major(version: &str) -> Option<u32> {
    let line = version.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    line.split('.').next()?.parse().ok()
}

/// Packages first, for they need nothing but a mirror; then rustup.
fn install() -> anyhow::Result<()> {
    let packaged = packages::find_all(&PACKAGES)?;
    if packaged && packages::may_install() {
        return packages::install(&PACKAGES, "a rustc with a BPF core");
    }
    let rustup = ["toolchain", "install", NIGHTLY, "--profile=minimal", "--component=rust-src"];
    if which("rustup").is_some() {
        say(format_args!("installing a nightly for BPF: rustup {}", rustup.join(" ")));
        if run(clean("rustup").args(rustup).env("RUST_BACKTRACE", "0")).is_ok() {
            return Ok(());
        }
    }
    let fix =
        if packaged { packages::install_line(&PACKAGES) } else { format!("rustup {}", rustup.join(" ")) };
    anyhow::bail!("no Rust toolchain here can compile for BPF; fix: {fix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_llvm_version() {
        assert_eq!(llvm_major("rustc 1.96.0\nrelease: 1.96.0\nLLVM version: 22.1.8"), Some(22));
        assert_eq!(llvm_major("rustc 1.96.0"), None);
    }
}

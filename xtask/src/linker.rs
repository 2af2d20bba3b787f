//! Finds or builds bpf-linker, which turns LLVM bitcode into the eBPF object.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::packages;
use crate::proc::{clean, output, run, say, which};
use crate::workspace;

/// The release that the build is tested with.
const VERSION: &str = "0.13.0";

/// The LLVM releases that this bpf-linker can be built on.
const LLVM: std::ops::RangeInclusive<u32> = 21..=23;

/// An installed bpf-linker.
pub(crate) struct Linker {
    /// The program.
    pub(crate) path: PathBuf,
    /// Major version of the LLVM it is linked to; unknown when linked statically.
    llvm: Option<u32>,
}

impl Linker {
    /// The bpf-linker on the PATH or in cargo's directory.
    pub(crate) fn find() -> Option<Self> {
        let path = which("bpf-linker")?;
        let libraries = output(clean("ldd").arg(&path)).unwrap_or_default();
        let llvm = libraries.split_once("libLLVM.so.").and_then(|(_, rest)| leading_number(rest));
        Some(Self { path, llvm })
    }

    /// Builds one on an LLVM no older than the compiler's.
    pub(crate) fn install(compiler_llvm: u32) -> anyhow::Result<Self> {
        let llvm = llvm_for(compiler_llvm)?;
        let feature = format!("llvm-{llvm}");
        let prefix = llvm_prefix(llvm);
        let args = [
            "install",
            "bpf-linker",
            "--version",
            VERSION,
            "--locked",
            "--no-default-features",
            "--features",
            &feature,
        ];
        say(format_args!("building bpf-linker {VERSION} on LLVM {llvm} (a minute or two)"));
        let mut path = OsString::from(prefix.join("bin"));
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        run(clean(workspace::cargo()).args(args).env("LLVM_PREFIX", prefix).env("PATH", path))?;
        Self::find().context("bpf-linker was installed, but is not found")
    }

    /// Whether bitcode of this LLVM is readable.
    pub(crate) fn reads(&self, llvm: u32) -> bool {
        self.llvm.is_none_or(|own| llvm <= own)
    }
}

/// The LLVM development files to build on: those that are here, else those that apt has.
fn llvm_for(compiler: u32) -> anyhow::Result<u32> {
    let candidates = || compiler.max(*LLVM.start())..=*LLVM.end();
    let is_here = |llvm: &u32| {
        let prefix = llvm_prefix(*llvm);
        prefix.join("bin/llvm-config").exists() && prefix.join("lib/libPolly.a").exists()
    };
    if let Some(here) = candidates().find(is_here) {
        return Ok(here);
    }
    for llvm in candidates() {
        let (dev, polly) = (format!("llvm-{llvm}-dev"), format!("libpolly-{llvm}-dev"));
        let names = [dev.as_str(), polly.as_str(), "libzstd-dev", "build-essential"];
        if !packages::find_all(&names)? {
            continue;
        }
        anyhow::ensure!(
            packages::may_install(),
            "bpf-linker is missing; fix: {} && cargo xtask build-ebpf",
            packages::install_line(&names)
        );
        packages::install(&names, "bpf-linker")?;
        return Ok(llvm);
    }
    anyhow::bail!(
        "bpf-linker is missing and no LLVM {compiler} is packaged here; fix: cargo binstall bpf-linker@{VERSION}"
    )
}

fn llvm_prefix(llvm: u32) -> PathBuf {
    PathBuf::from(format!("/usr/lib/llvm-{llvm}"))
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

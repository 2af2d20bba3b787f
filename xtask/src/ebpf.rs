//! Builds `proxy-ebpf` for the BPF target and puts the object where the agent's build
//! script looks for it.
//!
//! Whether anything changed is cargo's question: its fingerprints cover sources, lock file,
//! compiler and flags, so a second run costs a fraction of a second.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::files::write_if_changed;
use crate::linker::Linker;
use crate::proc::{run, say};
use crate::toolchain::{TARGET, Toolchain};
use crate::workspace::Workspace;

/// Builds the object of this version.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<()> {
    build_at(&workspace.root, &workspace.target.join("ebpf/build"), &workspace.ebpf_object())
}

/// Builds the object of the sources at `root`, with `build_dir` as cargo's target directory.
pub(crate) fn build_at(root: &Path, build_dir: &Path, object: &Path) -> anyhow::Result<()> {
    let linker = Linker::find();
    let toolchain = Toolchain::find_or_install(linker.as_ref())?;
    let linker = linker.map_or_else(|| Linker::install(toolchain.llvm), Ok)?;
    say(format_args!("eBPF: {}", toolchain.describe()));
    let mut command = toolchain.cargo_build();
    command
        .args(["--release", "--target", TARGET])
        .current_dir(root.join("proxy-ebpf"))
        .env("CARGO_TARGET_DIR", build_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(&linker));
    run(&mut command).context("the eBPF object was not built")?;
    copy_if_changed(&build_dir.join(TARGET).join("release/proxy-ebpf"), object)
}

/// BTF needs full debug info; atomics whose result is used need BPF ISA v3.
fn flags(linker: &Linker) -> String {
    let linker = format!("-Clinker={}", linker.path.display());
    // In order, LLVM expands no memset, and clears even eight bytes by a call of aya-ebpf's loop.
    let inline_memset = "-Clink-arg=--disable-expand-memcpy-in-order";
    ["-Cdebuginfo=2", "-Clink-arg=--btf", inline_memset, "-Ctarget-cpu=v3", linker.as_str()].join("\x1f")
}

fn copy_if_changed(from: &Path, to: &Path) -> anyhow::Result<()> {
    let new = fs::read(from).with_context(|| format!("{} is missing", from.display()))?;
    if write_if_changed(to, &new)? {
        say(format_args!("eBPF: wrote {} ({} KiB)", to.display(), new.len() / 1024));
    } else {
        say(format_args!("eBPF: {} is up to date", to.display()));
    }
    Ok(())
}

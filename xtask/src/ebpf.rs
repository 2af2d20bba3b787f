//! Builds `proxy-ebpf` for the BPF target and puts the object where the agent's build
//! script looks for it.
//!
//! Whether anything changed is cargo's question: its fingerprints cover sources, lock file,
//! compiler and flags, so a second run costs a fraction of a second.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::linker::Linker;
use crate::proc::{run, say};
use crate::toolchain::{TARGET, Toolchain};
use crate::workspace::Workspace;

/// Which object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The one of this version.
    This,
    /// One that a later version might have (`next-layout`).
    Next,
}

/// Builds the object.
pub(crate) fn build(workspace: &Workspace, layout: Layout) -> anyhow::Result<()> {
    let linker = Linker::find();
    let toolchain = Toolchain::find_or_install(linker.as_ref())?;
    let linker = linker.map_or_else(|| Linker::install(toolchain.llvm), Ok)?;
    say(format_args!("eBPF: {}", toolchain.describe()));
    let (build_dir, object) = match layout {
        Layout::This => ("ebpf/build", workspace.ebpf_object()),
        Layout::Next => ("ebpf/build-next", workspace.target.join("ebpf/proxy-ebpf-next")),
    };
    let build_dir = workspace.target.join(build_dir);
    let mut command = toolchain.cargo_build();
    if layout == Layout::Next {
        command.args(["--features", "next-layout"]);
    }
    command
        .args(["--release", "--target", TARGET])
        .current_dir(workspace.root.join("proxy-ebpf"))
        .env("CARGO_TARGET_DIR", &build_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(&linker));
    run(&mut command).context("the eBPF object was not built")?;
    copy_if_changed(&build_dir.join(TARGET).join("release/proxy-ebpf"), &object)
}

/// BTF needs full debug info; atomics whose result is used need BPF ISA v3.
fn flags(linker: &Linker) -> String {
    let linker = format!("-Clinker={}", linker.path.display());
    // In order, LLVM expands no memset, and clears even eight bytes by a call of aya-ebpf's loop.
    let inline_memset = "-Clink-arg=--disable-expand-memcpy-in-order";
    ["-Cdebuginfo=2", "-Clink-arg=--btf", inline_memset, "-Ctarget-cpu=v3", linker.as_str()].join("\x1f")
}

/// Leaves an equal file alone, so that nothing that embeds it is rebuilt.
fn copy_if_changed(from: &Path, to: &Path) -> anyhow::Result<()> {
    let new = fs::read(from).with_context(|| format!("{} is missing", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        say(format_args!("eBPF: {} is up to date", to.display()));
        return Ok(());
    }
    fs::write(to, &new).with_context(|| format!("cannot write {}", to.display()))?;
    say(format_args!("eBPF: wrote {} ({} KiB)", to.display(), new.len() / 1024));
    Ok(())
}

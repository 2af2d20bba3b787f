//! Copies the eBPF object to where `include_bytes!` finds it: `$OUT_DIR/proxy-ebpf`.
//!
//! It does not build the object: that takes another compiler, which `cargo xtask build-ebpf`
//! finds or installs.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Where `cargo xtask build-ebpf` puts the object, below cargo's target directory.
const OBJECT: &str = "ebpf/proxy-ebpf";

/// Names another object, for example one built on another machine.
const OVERRIDE: &str = "SHUNT_EBPF_OBJECT";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={OVERRIDE}");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let manifest_dir =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?);
    let Some(object) = find(&out_dir, &manifest_dir) else {
        println!("cargo::error=the eBPF object is missing; build it first: cargo xtask build-ebpf");
        return Ok(());
    };
    println!("cargo::rerun-if-changed={}", object.display());
    if let Err(error) = fs::copy(&object, out_dir.join("proxy-ebpf")) {
        println!("cargo::error=cannot embed {}: {error}", object.display());
    }
    Ok(())
}

/// The override as it is, else the object of the target directory that this build writes
/// to, else the one of the workspace's own target directory.
fn find(out_dir: &Path, manifest_dir: &Path) -> Option<PathBuf> {
    if let Some(object) = env::var_os(OVERRIDE) {
        return Some(PathBuf::from(object));
    }
    let own = out_dir.ancestors().map(|dir| dir.join(OBJECT));
    let workspace = manifest_dir.join("../target").join(OBJECT);
    own.chain([workspace]).find(|object| object.is_file())
}

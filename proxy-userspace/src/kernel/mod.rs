//! The only user of aya: loads, pins and attaches the eBPF programs, writes their maps,
//! and follows the host's devices by netlink.

mod attach;
mod bpf;
mod error;
mod maps;
mod mmap;
mod object;
mod pinned;
mod pins;
mod sockets;

pub use error::KernelError;
pub use maps::{KernelAddr, KernelFamily, KernelMaps};
pub use object::Capacities;
pub use pinned::PinnedMaps;
pub use pins::{DEFAULT_BPFFS, Pins};

/// x
pub fn try_load() -> anyhow::Result<()> {
    let pins = Pins::new("/sys/fs/bpf/shunt-try");
    pins.create()?;
    let r = object::load(&pins, &Capacities { frontends: 1000, backends: 1000, slots: 1000, conntrack: 1000, socket_flows: 1000, services: 1000 }, 0);
    match r {
        Ok(e) => for (n, p) in e.programs() { println!("{n} {:?} insns {:?}", p.info()?.verified_instruction_count(), p.info()?.size_translated()); },
        Err(e) => { println!("{e:#?}"); }
    }
    std::fs::remove_dir_all("/sys/fs/bpf/shunt-try").ok();
    Ok(())
}

//! A flood of SYNs: forged addresses, ports and sequence numbers, and nobody who goes on with a connection.

use std::{
    fs::File,
    io::IoSlice,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd as _,
    panic::resume_unwind,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg},
};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::syn::Template;
use crate::{bench::cpus, mutate::Rng, netns::inside};

/// Packets that one call sends.
const BATCH: usize = 64;
/// Below are the ports of servers.
const LOWEST_PORT: u16 = 1024;

/// SYNs, as many as are wished or can be sent.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Flood {
    /// Where they are sent.
    pub netns: PathBuf,
    /// Where they go, in turn.
    pub to: Vec<SocketAddrV4>,
    /// The first of the addresses that are forged, and the length of their prefix in bits.
    pub prefix: (Ipv4Addr, u8),
    /// CPUs that send, a thread on each.
    pub cpus: Vec<usize>,
    /// How many are wished in a second.
    pub rate: u64,
    /// For how long.
    pub nanoseconds: u64,
    /// The same seed makes the same packets.
    pub seed: u64,
}

/// What became of a [`Flood`].
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Flooded {
    /// Packets that were sent.
    pub sent: u64,
    /// Packets for which the kernel had no room.
    pub refused: u64,
    /// How long it took.
    pub nanoseconds: u64,
}

/// Sends until time is up.
pub(super) fn run(flood: &Flood) -> Result<Flooded> {
    ensure!(!flood.to.is_empty() && !flood.cpus.is_empty(), "a flood needs a destination and a CPU");
    let netns = File::open(&flood.netns).with_context(|| format!("open {}", flood.netns.display()))?;
    inside(&netns, || {
        let begin = Instant::now();
        let mut all = thread::scope(|scope| {
            let start = |number| scope.spawn(move || send(flood, number, begin));
            let threads: Vec<_> = (0..flood.cpus.len()).map(start).collect();
            threads.into_iter().try_fold(Flooded::default(), |all, thread| {
                let flooded = thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
                let Flooded { sent, refused, nanoseconds } = all;
                anyhow::Ok(Flooded {
                    sent: sent + flooded.sent,
                    refused: refused + flooded.refused,
                    nanoseconds,
                })
            })
        })?;
        all.nanoseconds = begin.elapsed().as_nanos() as u64;
        Ok(all)
    })
}

/// One thread's share.
fn send(flood: &Flood, number: usize, begin: Instant) -> Result<Flooded> {
    cpus::restrict(&[flood.cpus[number]])?;
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
    let mut random = Rng::new(flood.seed.wrapping_add(number as u64));
    let targets: Vec<_> = flood.to.iter().map(|to| (Template::new(*to), SockaddrIn::from(*to))).collect();
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let (length, rate) =
        (Duration::from_nanos(flood.nanoseconds), flood.rate as f64 / flood.cpus.len() as f64);
    let mut flooded = Flooded::default();
    for (template, address) in targets.iter().cycle() {
        // One that is late catches up.
        let due = Duration::from_secs_f64((flooded.sent + flooded.refused) as f64 / rate);
        thread::sleep(due.min(length).saturating_sub(begin.elapsed()));
        if begin.elapsed() >= length {
            break;
        }
        let packets = [(); BATCH].map(|()| packet(&mut random, template, flood.prefix));
        let slices = packets.each_ref().map(|packet| [IoSlice::new(packet)]);
        let to = [Some(*address); BATCH];
        match sendmmsg(socket.as_raw_fd(), &mut headers, &slices, to, [], MsgFlags::empty()) {
            Ok(sent) => flooded.sent += sent.count() as u64,
            Err(Errno::ENOBUFS) => flooded.refused += 1,
            Err(error) => return Err(error).context("send raw packets"),
        }
    }
    Ok(flooded)
}

fn packet(random: &mut Rng, template: &Template, prefix: (Ipv4Addr, u8)) -> [u8; super::syn::LENGTH] {
    let (address, port) = source(prefix, random);
    template.from(address, port, random.number() as u32)
}

/// An address of the prefix and a port.
fn source((first, length): (Ipv4Addr, u8), random: &mut Rng) -> (u32, u16) {
    let host = u32::MAX.checked_shr(length.into()).unwrap_or_default();
    let bits = random.number();
    let port = (bits >> 32) as u16 % (u16::MAX - LOWEST_PORT) + LOWEST_PORT;
    (first.to_bits() & !host | bits as u32 & host, port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sources_lie_in_the_prefix_and_differ() {
        let prefix = (Ipv4Addr::new(198, 18, 0, 0), 15);
        let mut random = Rng::new(7);
        let sources: BTreeSet<_> = (0..10_000).map(|_| source(prefix, &mut random)).collect();
        assert!(sources.len() > 9_990, "{} of 10000 differ", sources.len());
        for (address, port) in &sources {
            assert_eq!(address >> 17, 0xc612_0000 >> 17);
            assert!(*port >= LOWEST_PORT, "{port}");
        }
        let (first, last) = (sources.first().map(|source| source.0), sources.last().map(|source| source.0));
        assert!(first < Some(0xc612_0800) && last > Some(0xc613_f800), "{first:x?} to {last:x?}");
    }
}

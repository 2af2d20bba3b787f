//! The load itself: it sees what is lost, and takes nothing for lost that was only late.

use crate::world::{VICTIM, lossless, two_nodes};
use anyhow::{Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{thread, time::Duration};
use tests::{
    agent::SocketLb,
    load::{Kind, Load, Path},
    topology::cluster::Origin::{Client, Pod},
};

fn paths() -> Result<[Path; 2]> {
    Ok([Path::tcp(Pod(VICTIM, 1), "10.96.0.20:90")?, Path::udp(Client, "192.168.50.12:30153")?])
}

#[test]
fn lost_packets_are_seen_in_every_kind_of_traffic() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let load = Load::start(&cluster, &paths()?)?;
    // Few enough of TCP's that connections survive it, enough datagrams that each kind has its share.
    cluster.nodes[VICTIM].host.netns.nft(
        "table inet faults {
            chain lossy {
                type filter hook forward priority 0
                meta l4proto tcp numgen inc mod 67 0 drop
                meta l4proto udp numgen inc mod 17 0 drop
            }
        }",
    )?;
    load.wait_until("each kind of traffic has lost something", |kind, counts| match kind {
        Kind::Stream | Kind::Connections => counts.lost_segments > 0,
        Kind::Datagrams | Kind::Queries => counts.timed_out > 0,
    })?;
    cluster.nodes[VICTIM].host.netns.nft("delete table inet faults")?;
    let report = load.finish()?;
    println!("{report}");
    ensure!(report.ensure_lossless().is_err(), "the verdict is wrong");
    Ok(())
}

#[test]
fn broken_and_refused_connections_are_seen() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let load = Load::start(&cluster, &paths()?)?;
    cluster.nodes[VICTIM].host.netns.nft(
        "table inet faults {
            chain refuses {
                type filter hook forward priority 0
                meta l4proto tcp reject with tcp reset
                meta l4proto udp reject with icmpx type port-unreachable
            }
        }",
    )?;
    load.wait_until("each kind of traffic has been refused", |_, counts| counts.refused + counts.reset > 0)?;
    cluster.nodes[VICTIM].host.netns.nft("delete table inet faults")?;
    println!("{}", load.finish()?);
    Ok(())
}

#[test]
fn a_server_that_gets_no_cpu_loses_nothing() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let mut load = Load::start(&cluster, &paths()?)?;
    let server = Pid::from_raw(cluster.nodes[0].worker.id().cast_signed());
    for _ in 0..2 {
        kill(server, Signal::SIGSTOP)?;
        thread::sleep(Duration::from_millis(1500));
        kill(server, Signal::SIGCONT)?;
        load.checkpoint("the server slept")?;
    }
    let report = lossless(load, "a server without a CPU")?;
    assert!(report.total().longest_ms >= 1000, "nothing was late");
    Ok(())
}

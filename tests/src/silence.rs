//! When a namespace has gone quiet, and what it counts: nothing that earlier connections still owe
//! each other may be taken for an answer to the next.

use crate::{late, netns::Namespace};
use anyhow::{Context, Result, bail};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// The kernel delays an acknowledgement by no more than this (`TCP_DELACK_MAX`).
const DELAYED_ACK: Duration = Duration::from_millis(200);
const DEADLINE: Duration = Duration::from_secs(60);

/// The state of a handshake that waits for the client.
const SYN_RECEIVED: &str = "03";
/// States of a TCP socket in which a segment is on its way or owed, as the kernel numbers
/// them (include/net/tcp_states.h): all but established, time-wait, closed, listening.
const UNFINISHED: [&str; 7] = ["02", SYN_RECEIVED, "04", "05", "08", "09", "0B"];

/// Waits until no connection in these namespaces is unfinished, and no segment has come for as long as
/// one may be delayed.
pub fn quiesce(namespaces: &[&Namespace]) -> Result<()> {
    let observe = || -> Result<(usize, u64)> {
        let waiting = namespaces.iter().map(|namespace| namespace.run(unfinished));
        let segments = namespaces.iter().map(|namespace| namespace.run(received_segments));
        Ok((waiting.sum::<Result<usize>>()?, segments.sum::<Result<u64>>()?))
    };
    let deadline = Instant::now() + DEADLINE;
    let (mut last, mut since) = (observe()?, Instant::now());
    while last.0 != 0 || since.elapsed() < DELAYED_ACK {
        if Instant::now() > deadline {
            let (sockets, segments) = last;
            bail!(late!("connections do not end in {DEADLINE:?}: {sockets} sockets, {segments} segments"));
        }
        thread::sleep(Duration::from_millis(20));
        let now = observe()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Segments that the namespace of this thread has received.
fn received_segments() -> Result<u64> {
    tcp_counter("InSegs")
}

/// Segments that it has sent once more.
pub fn resent_segments() -> Result<u64> {
    tcp_counter("RetransSegs")
}

/// What SYNs have led to that came there: a connection, a reset, or a handshake that is not over. A
/// segment of an open connection is none of these, however late it is.
pub fn openings() -> Result<u64> {
    let half_open = sockets_in(&[SYN_RECEIVED])? as u64;
    Ok(tcp_counter("PassiveOpens")? + tcp_counter("OutRsts")? + half_open)
}

fn tcp_counter(name: &str) -> Result<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let mut rows = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (rows.next().context("snmp")?, rows.next().context("snmp")?);
    let column = names.split(' ').position(|other| other == name).context("snmp")?;
    Ok(values.split(' ').nth(column).context("snmp")?.parse()?)
}

/// Sockets of the namespace of this thread whose connection is neither open nor over.
fn unfinished() -> Result<usize> {
    sockets_in(&UNFINISHED)
}

fn sockets_in(wanted: &[&str]) -> Result<usize> {
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
    let mut count = 0;
    for table in tables {
        let table = table?;
        let states = table.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().nth(3));
        count += states.filter(|state| wanted.contains(state)).count();
    }
    Ok(count)
}

//! When a namespace has gone quiet: nothing that earlier connections still owe each other
//! may be taken for an answer to the next.

use anyhow::{Context, Result, bail};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// The kernel delays an acknowledgement by no more than this (`TCP_DELACK_MAX`).
const DELAYED_ACK: Duration = Duration::from_millis(200);
const DEADLINE: Duration = Duration::from_secs(20);

/// States of a TCP socket in which a segment is on its way or owed, as the kernel numbers
/// them (include/net/tcp_states.h): all but established, time-wait, closed, listening.
const UNFINISHED: [&str; 7] = ["02", "03", "04", "05", "08", "09", "0B"];

/// Waits until `observe`, which says how many sockets are unfinished and how many segments
/// came, finds none unfinished, and no segment for as long as one may be delayed.
pub(super) fn quiesce(observe: impl Fn() -> Result<(usize, u64)>) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    let (mut last, mut since) = (observe()?, Instant::now());
    while last.0 != 0 || since.elapsed() < DELAYED_ACK {
        if Instant::now() > deadline {
            bail!("connections of earlier flows do not end: {} sockets, {} segments", last.0, last.1);
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
pub(super) fn received_segments() -> Result<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let mut rows = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (rows.next().context("snmp")?, rows.next().context("snmp")?);
    let column = names.split(' ').position(|name| name == "InSegs").context("InSegs")?;
    Ok(values.split(' ').nth(column).context("snmp")?.parse()?)
}

/// Sockets of the namespace of this thread whose connection is neither open nor over.
pub(super) fn unfinished() -> Result<usize> {
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
    let mut count = 0;
    for table in tables {
        let table = table?;
        let states = table.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().nth(3));
        count += states.filter(|state| UNFINISHED.contains(state)).count();
    }
    Ok(count)
}

//! UDP: numbered datagrams that are each answered.

use super::{Ending, Flow, PATIENCE, Wrong, udp};
use anyhow::{Result, ensure};
use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

/// Pause between datagrams.
const BETWEEN: Duration = Duration::from_millis(12);
/// Pause between queries.
const THINKING: Duration = Duration::from_millis(30);

/// One socket; answers may come in any order.
pub(super) fn numbered(flow: &Flow, to: SocketAddr) -> Result<()> {
    // Not connected: each datagram is looked at on its own, and the answer's address is seen.
    let client = udp::Numbered::open(to, false)?;
    let mut waiting = BTreeMap::new();
    let mut number = 0;
    while !flow.is_over() || !waiting.is_empty() {
        if !flow.is_over() {
            match client.send(number) {
                Ok(()) => drop(waiting.insert(number, Instant::now())),
                Err(error) => drop(flow.count_timed(Duration::ZERO, Err(error.into()))),
            }
            number += 1;
        }
        gather(flow, &client, &mut waiting, Instant::now() + BETWEEN);
        give_up(flow, &mut waiting);
    }
    Ok(())
}

/// Takes answers until `end`.
fn gather(flow: &Flow, client: &udp::Numbered, waiting: &mut BTreeMap<u64, Instant>, end: Instant) {
    while Instant::now() < end {
        match client.receive(end) {
            Ok(number) => match waiting.remove(&number) {
                Some(sent) => drop(flow.count_timed(sent.elapsed(), Ok(()))),
                None => flow.counts().duplicates += 1,
            },
            Err(error) if is_nothing_yet(&error) => return,
            // One of those that wait was refused, or answered by somebody else.
            Err(error) => {
                let sent = waiting.pop_first().map_or_else(Instant::now, |(_, sent)| sent);
                flow.count_timed(sent.elapsed(), Err(error));
            }
        }
    }
}

fn give_up(flow: &Flow, waiting: &mut BTreeMap<u64, Instant>) {
    while let Some(entry) = waiting.first_entry() {
        if entry.get().elapsed() < PATIENCE {
            return;
        }
        let (number, sent) = entry.remove_entry();
        let lost =
            Wrong(Ending::TimedOut, format!("datagram {number} of {:.3} s before", PATIENCE.as_secs_f64()));
        flow.count_timed(sent.elapsed(), Err(lost.into()));
    }
}

fn is_nothing_yet(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
}

/// A socket for each.
pub(super) fn queries(flow: &Flow, to: SocketAddr) -> Result<()> {
    let mut number = 0;
    while !flow.is_over() {
        let start = Instant::now();
        let ended = query(to, number);
        flow.count_timed(start.elapsed(), ended);
        number += 1;
        thread::sleep(THINKING);
    }
    Ok(())
}

/// Every other one connects its socket, as resolvers do or don't.
fn query(to: SocketAddr, number: u64) -> Result<()> {
    let client = udp::Numbered::open(to, number.is_multiple_of(2))?;
    client.send(number)?;
    let answered = client.receive(Instant::now() + PATIENCE)?;
    ensure!(answered == number, "query {number} was answered with {answered}");
    Ok(())
}

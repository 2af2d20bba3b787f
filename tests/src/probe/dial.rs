//! The client's side: attempts in a row, from inside a namespace.

use super::{Bulk, Dial, Outcome, Proto, icmp, sctp, tcp, udp};
use crate::netns;
use anyhow::Result;
use std::{
    collections::{HashMap, hash_map::Entry},
    fs::File,
    thread,
    time::Duration,
};

/// So many attempts without an answer in a row say enough.
const ENOUGH_FAILURES: usize = 3;

/// An open connection.
#[derive(Debug)]
pub(super) enum Kept {
    Tcp(tcp::Connection),
    Udp(udp::Client),
    Sctp(sctp::Association),
}

impl Kept {
    pub(super) fn exchange(&mut self, bulk: Bulk, limit: Duration) -> Outcome {
        match self {
            Kept::Tcp(connection) => connection.exchange(bulk, limit),
            Kept::Udp(client) => client.exchange(limit),
            Kept::Sctp(association) => association.exchange(limit),
        }
    }
}

/// Makes the attempts that `dial` asks for.
pub(super) fn dial(dial: &Dial, kept: &mut HashMap<String, Kept>) -> Result<Vec<Outcome>> {
    let file = File::open(&dial.netns)?;
    netns::inside(&file, || {
        let mut outcomes = Vec::new();
        let mut failures = 0;
        for number in 0..dial.count {
            thread::sleep(Duration::from_millis(dial.gap_ms));
            let outcome = attempt(dial, number, kept)?;
            failures = if matches!(outcome, Outcome::Answered(_)) { 0 } else { failures + 1 };
            outcomes.push(outcome);
            if failures >= ENOUGH_FAILURES {
                break;
            }
        }
        Ok(outcomes)
    })
}

fn attempt(dial: &Dial, number: u32, kept: &mut HashMap<String, Kept>) -> Result<Outcome> {
    let limit = Duration::from_millis(dial.timeout_ms);
    match dial.proto {
        Proto::Tcp => {
            let mut connection = match tcp::connect(dial.from, dial.source_port, dial.to, limit)? {
                Ok(connection) => connection,
                Err(outcome) => return Ok(outcome),
            };
            let outcome = connection.exchange(Bulk::default(), limit);
            if let Some(name) = &dial.keep {
                kept.insert(name.clone(), Kept::Tcp(connection));
            }
            Ok(outcome)
        }
        Proto::Http => Ok(match tcp::connect(dial.from, dial.source_port, dial.to, limit)? {
            Ok(connection) => connection.get(limit),
            Err(outcome) => outcome,
        }),
        Proto::Udp => udp_attempt(dial, number, limit, kept),
        Proto::Sctp => {
            let association = sctp::Association::new(dial.from, dial.source_port, dial.to)?;
            let outcome = association.init(limit);
            if let Some(name) = &dial.keep {
                kept.insert(name.clone(), Kept::Sctp(association));
            }
            Ok(outcome)
        }
        Proto::Icmp => icmp::dial(dial.from, dial.to.ip(), limit),
    }
}

fn udp_attempt(
    dial: &Dial,
    number: u32,
    limit: Duration,
    kept: &mut HashMap<String, Kept>,
) -> Result<Outcome> {
    let Some(port) = dial.source_port.filter(|_| dial.keep.is_none()) else {
        let connected = dial.keep.is_some() || number.is_multiple_of(2);
        let client = match udp::client(dial.from, dial.source_port, dial.to, connected)? {
            Ok(client) => client,
            Err(outcome) => return Ok(outcome),
        };
        let outcome = client.exchange(limit);
        if let Some(name) = &dial.keep {
            kept.insert(name.clone(), Kept::Udp(client));
        }
        return Ok(outcome);
    };
    // A client that uses one port all the time uses one socket all the time.
    let name = format!("{}:{:?}:{port}:{}", dial.netns.display(), dial.from, dial.to);
    let client = match kept.entry(name) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => match udp::client(dial.from, dial.source_port, dial.to, false)? {
            Ok(client) => entry.insert(Kept::Udp(client)),
            Err(outcome) => return Ok(outcome),
        },
    };
    Ok(client.exchange(Bulk::default(), limit))
}

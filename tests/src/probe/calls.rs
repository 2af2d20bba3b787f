//! Connected UDP sockets, opened at the same time: what a program's call decides, without a packet.

use super::{Proto, protocol::Calls, socket::open};
use crate::{netns, together::Together};
use anyhow::{Context, Result, bail, ensure};
use std::{fs::File, thread};

pub(super) fn call(calls: &Calls) -> Result<()> {
    let file = File::open(&calls.netns).with_context(|| format!("open {}", calls.netns.display()))?;
    let together = Together::new(calls.at_once);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..calls.at_once)
            .map(|_| scope.spawn(|| netns::inside(&file, || one_after_the_other(calls, &together))))
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread of calls panicked"),
        })
    })
}

/// The calls of one thread, each at the same time as those of the others.
fn one_after_the_other(calls: &Calls, together: &Together) -> Result<()> {
    for (round, from) in calls.from.iter().enumerate() {
        let socket = open(from.ip(), Proto::Udp)?;
        socket.bind(&(*from).into()).with_context(|| format!("bind {from}"))?;
        together.wait(round)?;
        socket.connect(&calls.to.into()).with_context(|| format!("connect {from} → {}", calls.to))?;
        let peer = socket.peer_addr()?.as_socket();
        ensure!(peer == Some(calls.to), "{from} → {}: the program sees {peer:?}", calls.to);
    }
    Ok(())
}

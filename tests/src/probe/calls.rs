//! Connected UDP sockets, opened at the same time: what a program's call decides, without a packet.

use super::{Proto, protocol::Calls, socket::open};
use crate::netns;
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs::File,
    hint,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long one thread waits for the others, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn call(calls: &Calls) -> Result<()> {
    let file = File::open(&calls.netns).with_context(|| format!("open {}", calls.netns.display()))?;
    let ready = AtomicUsize::new(0);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..calls.at_once)
            .map(|_| scope.spawn(|| netns::inside(&file, || one_after_the_other(calls, &ready))))
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread of calls panicked"),
        })
    })
}

/// The calls of one thread, each at the same time as those of the others.
fn one_after_the_other(calls: &Calls, ready: &AtomicUsize) -> Result<()> {
    for (round, from) in calls.from.iter().enumerate() {
        let socket = open(from.ip(), Proto::Udp)?;
        socket.bind(&(*from).into()).with_context(|| format!("bind {from}"))?;
        ready.fetch_add(1, Ordering::SeqCst);
        let (all, begin) = ((round + 1) * calls.at_once, Instant::now());
        while ready.load(Ordering::SeqCst) < all {
            ensure!(begin.elapsed() < PATIENCE, "another thread of the calls has ended");
            hint::spin_loop();
        }
        socket.connect(&calls.to.into()).with_context(|| format!("connect {from} → {}", calls.to))?;
        let peer = socket.peer_addr()?.as_socket();
        ensure!(peer == Some(calls.to), "{from} → {}: the program sees {peer:?}", calls.to);
    }
    Ok(())
}

//! TCP: streams that stay, and connections that come and go.

use super::{super::tcp, Ending, Flow, PATIENCE, Segments};
use crate::probe::Bulk;
use anyhow::Result;
use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

/// Bytes in each direction of one exchange on a stream: several segments.
const STREAMED: Bulk = Bulk { up: 20_000, down: 20_000 };
/// Bytes in each direction of a short connection: one segment.
const SHORT: Bulk = Bulk { up: 500, down: 500 };
/// Pauses of a stream, between exchanges.
const BREATH: Duration = Duration::from_millis(40);
/// Pauses between connections.
const BETWEEN: Duration = Duration::from_millis(30);
/// How long a receiver's word may be on its way that it has a segment twice.
const REPORTED: Duration = Duration::from_secs(5);

/// Exchanges on one connection; when it fails, on another one.
pub(super) fn streams(flow: &Flow, to: SocketAddr) -> Result<()> {
    let mut before = Segments::default();
    while !flow.is_over() {
        let mut last = Segments::default();
        stream(flow, to, |now| {
            last = now;
            let sum = before.and(now);
            let mut counts = flow.counts();
            (counts.lost_segments, counts.spurious) = (sum.lost.into(), sum.spurious.into());
        });
        before = before.and(last);
    }
    Ok(())
}

/// One connection to its end. `seen` gets what both ends have sent again so far.
fn stream(flow: &Flow, to: SocketAddr, mut seen: impl FnMut(Segments)) {
    let start = Instant::now();
    let mut connection = match tcp::Connection::open(to, PATIENCE) {
        Ok(connection) => connection,
        Err(error) => {
            flow.count_timed(start.elapsed(), Err(error));
            return thread::sleep(BETWEEN);
        }
    };
    loop {
        let start = Instant::now();
        let exchanged = connection.try_load(STREAMED, PATIENCE);
        let took = start.elapsed();
        if let Ok(segments) = &exchanged {
            seen(settled(&connection, *segments));
        }
        if flow.count_timed(took, exchanged.map(drop)) != Ending::Ok || flow.is_over() {
            return;
        }
        thread::sleep(BREATH);
    }
}

/// One connection after the other.
pub(super) fn connections(flow: &Flow, to: SocketAddr) -> Result<()> {
    while !flow.is_over() {
        let start = Instant::now();
        match connection(to) {
            Ok(ended) => ended.count(flow),
            Err(error) => {
                flow.count_timed(start.elapsed(), Err(error));
            }
        }
        thread::sleep(BETWEEN);
    }
    Ok(())
}

/// A short connection that ended well.
struct Ended {
    from: SocketAddr,
    /// From the first SYN.
    opened: Duration,
    answered: Duration,
    segments: Segments,
}

impl Ended {
    fn count(self, flow: &Flow) {
        let Self { from, opened, answered, segments: Segments { lost, spurious } } = self;
        if lost > 0 {
            // By these its packets are found in a capture.
            flow.tell(&format!(
                "lost {lost} from {from}: open after {opened:?}, answered after {answered:?}"
            ));
        }
        let mut counts = flow.counts();
        counts.lost_segments += u64::from(lost);
        counts.spurious += u64::from(spurious);
        drop(counts);
        flow.count_timed(answered, Ok(()));
    }
}

fn connection(to: SocketAddr) -> Result<Ended> {
    let start = Instant::now();
    let mut connection = tcp::Connection::open(to, PATIENCE)?;
    let (from, opened) = (connection.from()?, start.elapsed());
    let segments = connection.try_load(SHORT, PATIENCE)?;
    let answered = start.elapsed();
    let segments = settled(&connection, segments);
    // The server closes when it has read to the end, and the client then reads to the end.
    connection.close()?;
    Ok(Ended { from, opened, answered, segments })
}

/// What both ends have sent again, after the receiver's reports had time to arrive.
fn settled(connection: &tcp::Connection, server: Segments) -> Segments {
    let deadline = Instant::now() + REPORTED;
    loop {
        let client = connection.segments();
        if client.lost == 0 || Instant::now() > deadline {
            return client.and(server);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

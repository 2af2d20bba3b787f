//! The process itself: reads requests, carries them out one at a time, replies.

use super::{Await, Reply, Request, now, stream::Stream};
use crate::{lines, netns};
use anyhow::{Context as _, Result};
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
};
use std::{
    collections::VecDeque,
    fs::File,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Requests that may be on their way at a time; older ones are given up.
const OPEN: usize = 64;
/// Between two requests: at first, and at most.
const GAP: Duration = Duration::from_micros(500);
const LONGEST_GAP: Duration = Duration::from_millis(50);
/// The gap grows with the time that was waited, whose two hundredth part it is: fine enough to
/// measure by, and no load for a proxy that takes long.
const GAPS: u32 = 200;

/// Works until standard input ends.
pub fn work() -> Result<()> {
    let mut stream = None;
    lines::carry_out(|line| {
        carry_out(line, &mut stream).unwrap_or_else(|error| Reply::Failed(format!("{error:#}")))
    })
}

fn carry_out(line: &str, stream: &mut Option<Stream>) -> Result<Reply> {
    Ok(match serde_json::from_str(line)? {
        Request::Serve { netns, name, listen } => {
            serve(&netns, name, listen)?;
            Reply::Done
        }
        Request::Await(wanted) => {
            let file = File::open(&wanted.netns)?;
            Reply::Answered(netns::inside(&file, || ask_until_answered(&wanted))?)
        }
        Request::Stream { netns, to } => {
            *stream = Some(Stream::start(&netns, to)?);
            Reply::Done
        }
        Request::EndStream => Reply::Streamed(stream.take().context("no stream was begun")?.end()?),
    })
}

fn serve(netns: &Path, name: String, listen: SocketAddr) -> Result<()> {
    let file = File::open(netns)?;
    let bind = || UdpSocket::bind(listen).with_context(|| format!("listen on {listen}"));
    let socket = netns::inside(&file, bind)?;
    thread::spawn(move || {
        let mut buffer = [0; 64];
        // As long as the process lives. An error is about an answer to somebody who is gone.
        loop {
            if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(name.as_bytes(), from);
            }
        }
    });
    Ok(())
}

/// A socket for one request: another port is another flow, which no earlier decision binds.
pub(super) fn ask(to: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    // Refused by a rule on the way out is not answered, either.
    let _ = socket.send(b"who");
    Ok(socket)
}

fn ask_until_answered(wanted: &Await) -> Result<Option<Duration>> {
    let start = Instant::now();
    let end = start + Duration::from_millis(wanted.limit_ms);
    let mut open = VecDeque::with_capacity(OPEN);
    let mut next = start;
    while Instant::now() < end {
        if Instant::now() >= next {
            open.truncate(OPEN - 1);
            let socket = ask(wanted.to)?;
            socket.set_nonblocking(true)?;
            open.push_front(socket);
            next = Instant::now() + (start.elapsed() / GAPS).clamp(GAP, LONGEST_GAP);
        }
        wait(&open, next.saturating_duration_since(Instant::now()))?;
        if take_answers(&mut open, wanted.server.as_deref()) {
            return Ok(Some(now()?));
        }
    }
    Ok(None)
}

fn wait(open: &VecDeque<UdpSocket>, limit: Duration) -> Result<()> {
    let mut fds: Vec<_> = open.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
    ppoll(&mut fds, Some(TimeSpec::from_duration(limit)), None).context("wait for an answer")?;
    Ok(())
}

/// Whether the one that is wanted has answered. Sockets that got anything are done.
fn take_answers(open: &mut VecDeque<UdpSocket>, wanted: Option<&str>) -> bool {
    let mut found = false;
    let mut buffer = [0; 64];
    open.retain(|socket| match socket.recv(&mut buffer) {
        Ok(length) => {
            found |= wanted.is_none_or(|wanted| wanted.as_bytes() == &buffer[..length]);
            false
        }
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    });
    found
}

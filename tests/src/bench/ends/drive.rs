//! The clients: requests as fast as they are answered.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use socket2::{Domain, Socket, Type};

use super::{Drive, Driven, Workload};
use crate::{
    bench::statistics::{percentile, sorted},
    netns::inside,
};

/// Bytes of a request, and of its answer.
pub(super) const REQUEST: usize = 64;
/// Bytes of a stream that are written or read at once.
pub(super) const PIECE: usize = 64 << 10;
/// An answer that has not come by then does not come.
const PATIENCE: Duration = Duration::from_secs(2);
/// What fails again and again is broken, and waiting for it would take forever.
const MOST_FAILURES: u64 = 3;

/// Sends requests until time is up.
pub(super) fn run(drive: &Drive) -> Result<Driven> {
    if drive.to.is_empty() {
        bail!("requests need a destination");
    }
    let netns = File::open(&drive.netns).with_context(|| format!("open {}", drive.netns.display()))?;
    inside(&netns, || {
        Ok(match drive.workload {
            Workload::TcpConnect => each(drive, connect_and_ask),
            Workload::UdpFlow => each(drive, new_flow),
            Workload::TcpRequest => match TcpStream::connect(drive.to[0]).and_then(prepared) {
                Ok(mut stream) => each(drive, |_, _| timed(|| ask(&mut stream))),
                Err(_) => none(),
            },
            Workload::UdpRequest => match datagrams(drive.to[0], None) {
                Ok(socket) => each(drive, |_, _| timed(|| exchange(&socket))),
                Err(_) => none(),
            },
            Workload::TcpStream => stream(drive).unwrap_or_else(|_| none()),
        })
    })
}

fn none() -> Driven {
    Driven { failed: 1, ..Driven::default() }
}

/// Repeats a request, which tells how long what counts of it took.
fn each(
    drive: &Drive,
    mut request: impl FnMut(SocketAddr, Option<IpAddr>) -> io::Result<Duration>,
) -> Driven {
    let limit = drive.limit.unwrap_or(u64::MAX);
    let (mut times, mut failed) = (Vec::new(), 0);
    let length = Duration::from_nanos(drive.nanoseconds);
    let sources: Vec<_> = drive.from.iter().copied().map(Some).collect();
    let sources = if sources.is_empty() { vec![None] } else { sources };
    let begin = Instant::now();
    for (to, from) in drive.to.iter().cycle().zip(sources.iter().cycle()) {
        match request(*to, *from) {
            Ok(time) => times.push(time.as_nanos() as f64),
            Err(_) => failed += 1,
        }
        let tried = times.len() as u64 + failed;
        if begin.elapsed() >= length || tried >= limit || failed >= MOST_FAILURES {
            break;
        }
    }
    let nanoseconds = begin.elapsed().as_nanos() as u64;
    let times = sorted(times);
    Driven {
        units: times.len() as f64,
        failed,
        nanoseconds,
        p50: percentile(&times, 0.5),
        p99: percentile(&times, 0.99),
    }
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let begin = Instant::now();
    work().map(|()| begin.elapsed())
}

pub(super) fn connect_and_ask(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Duration> {
    let begin = Instant::now();
    let stream = connect(to, from)?;
    let time = begin.elapsed();
    ask(&mut prepared(stream)?)?;
    Ok(time)
}

pub(super) fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let Some(from) = from else { return TcpStream::connect(to) };
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    // bind(2) would want a port that nobody has towards any destination, and none in TIME-WAIT.
    setsockopt(&socket, IpBindAddressNoPort, &true)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> io::Result<()> {
    let mut answer = [0; REQUEST];
    stream.write_all(&[7; REQUEST])?;
    stream.read_exact(&mut answer)
}

fn new_flow(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Duration> {
    timed(|| exchange(&datagrams(to, from)?))
}

/// Connected, as resolvers have it.
fn datagrams(to: SocketAddr, from: Option<IpAddr>) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((from.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    Ok(socket)
}

fn exchange(socket: &UdpSocket) -> io::Result<()> {
    let mut answer = [0; REQUEST];
    socket.send(&[7; REQUEST])?;
    socket.recv(&mut answer).map(drop)
}

/// Ends when the server has said that it has everything.
fn stream(drive: &Drive) -> io::Result<Driven> {
    let mut stream = TcpStream::connect(drive.to[0])?;
    let piece = vec![7; PIECE];
    let length = Duration::from_nanos(drive.nanoseconds);
    let (begin, mut pieces) = (Instant::now(), 0u32);
    while begin.elapsed() < length {
        stream.write_all(&piece)?;
        pieces += 1;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    let nanoseconds = begin.elapsed().as_nanos() as u64;
    let mib = f64::from(pieces) * PIECE as f64 / f64::from(1 << 20);
    Ok(Driven { units: mib, nanoseconds, ..Driven::default() })
}

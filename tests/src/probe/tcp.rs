//! TCP: the client sends one line `UP DOWN` and UP bytes, the server answers with one
//! line of JSON and DOWN bytes, as often as the client likes. The JSON also says which segments
//! the server had to send again so far, for those who want to know.

use super::{
    Answer, Bulk, Outcome, Proto,
    load::Segments,
    serve::Ledger,
    socket::{any, choose_port_at_connect, open, outcome_of},
};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use socket2::Socket;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

/// Any fixed pattern with a period that is no power of two shows lost or moved bytes.
const PATTERN: usize = 251;

pub(super) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = open(address.ip(), Proto::Tcp)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into()).with_context(|| format!("listen on TCP {address}"))?;
    socket.listen(512)?;
    Ok(socket.into())
}

pub(super) fn serve(listener: &TcpListener, ledger: &Ledger) {
    for stream in listener.incoming().flatten() {
        let ledger = ledger.clone();
        // A client that goes away ends its thread; there is nothing to tell anyone.
        thread::spawn(move || answer(&stream, &ledger));
    }
}

fn answer(stream: &TcpStream, ledger: &Ledger) -> Result<()> {
    let (local, saw) = (stream.local_addr()?, stream.peer_addr()?);
    ledger.record(Proto::Tcp, local, saw);
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let (up, down) = line.trim().split_once(' ').context("request line")?;
        let (up, down) = (up.parse()?, down.parse()?);
        let received = receive(&mut reader, up)?;
        let answer = Answer { server: ledger.name().into(), local, saw, peer: saw, received };
        let answer = Told { answer, segments: Segments::of(stream)? };
        writeln!(&mut &*stream, "{}", serde_json::to_string(&answer)?)?;
        send(stream, down)?;
    }
}

/// The server's line.
#[derive(Serialize, Deserialize)]
struct Told {
    #[serde(flatten)]
    answer: Answer,
    segments: Segments,
}

/// A client's end that can be used again.
#[derive(Debug)]
pub(super) struct Connection(BufReader<TcpStream>);

/// Connects; the error says how the attempt ended.
pub(super) fn connect(
    from: Option<IpAddr>,
    source_port: Option<u16>,
    to: SocketAddr,
    limit: Duration,
) -> Result<Result<Connection, Outcome>> {
    let socket = open(to.ip(), Proto::Tcp)?;
    bind(&socket, from, source_port, to)?;
    Ok(match socket.connect_timeout(&to.into(), limit) {
        Ok(()) => Ok(Connection(BufReader::new(socket.into()))),
        Err(error) => Err(outcome_of(&error, "connect")),
    })
}

fn bind(socket: &Socket, from: Option<IpAddr>, port: Option<u16>, to: SocketAddr) -> Result<()> {
    if from.is_none() && port.is_none() {
        return Ok(());
    }
    socket.set_reuse_address(true)?;
    if port.is_none() {
        choose_port_at_connect(socket)?;
    }
    let from = SocketAddr::new(from.unwrap_or(any(to.ip(), 0).ip()), port.unwrap_or(0));
    socket.bind(&from.into()).with_context(|| format!("bind to {from}"))
}

impl Connection {
    /// Sends a request and reads the answer.
    pub(super) fn exchange(&mut self, bulk: Bulk, limit: Duration) -> Outcome {
        outcome(self.try_exchange(bulk, limit))
    }

    /// One over a socket that is connected.
    pub(super) fn over(socket: Socket) -> Self {
        Self(BufReader::new(socket.into()))
    }

    /// Connects from whatever address the kernel chooses.
    pub(super) fn open(to: SocketAddr, limit: Duration) -> Result<Self> {
        let socket = open(to.ip(), Proto::Tcp)?;
        socket.connect_timeout(&to.into(), limit)?;
        Ok(Self(BufReader::new(socket.into())))
    }

    /// The address and port that the kernel chose.
    pub(super) fn from(&self) -> Result<SocketAddr> {
        self.0.get_ref().local_addr().context("read a socket's own address")
    }

    /// Sends a request and reads the answer; says which segments the server had to send again.
    pub(super) fn try_load(&mut self, bulk: Bulk, limit: Duration) -> Result<Segments> {
        Ok(self.request(bulk, limit)?.segments)
    }

    /// What this end had to send again. Nothing is known of a socket that cannot be asked.
    pub(super) fn segments(&self) -> Segments {
        Segments::of(self.0.get_ref()).unwrap_or_default()
    }

    /// Closes, and waits until the other end has closed, too.
    pub(super) fn close(mut self) -> Result<()> {
        self.0.get_ref().shutdown(Shutdown::Write)?;
        let left = io::copy(&mut self.0, &mut io::sink())?;
        ensure!(left == 0, "{left} bytes came after the answer");
        Ok(())
    }

    /// Asks a web server, and is of no use afterwards.
    pub(super) fn get(mut self, limit: Duration) -> Outcome {
        outcome(self.try_get(limit))
    }

    fn try_get(&mut self, limit: Duration) -> Result<Answer> {
        let mut stream = self.0.get_ref();
        stream.set_read_timeout(Some(limit))?;
        let peer = stream.peer_addr()?;
        write!(stream, "GET / HTTP/1.1\r\nHost: {peer}\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        self.0.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("an HTTP answer")?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "the server said {head:?}");
        let answer: Answer =
            serde_json::from_str(body).with_context(|| format!("the server said {body:?}"))?;
        Ok(Answer { peer, ..answer })
    }

    fn try_exchange(&mut self, bulk: Bulk, limit: Duration) -> Result<Answer> {
        let peer = self.0.get_ref().peer_addr()?;
        Ok(Answer { peer, ..self.request(bulk, limit)?.answer })
    }

    fn request(&mut self, bulk: Bulk, limit: Duration) -> Result<Told> {
        let mut stream = self.0.get_ref();
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        writeln!(stream, "{} {}", bulk.up, bulk.down)?;
        send(stream, bulk.up)?;
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            let closed = "the server closed the connection";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed).into());
        }
        receive(&mut self.0, bulk.down)?;
        serde_json::from_str(&line).with_context(|| format!("the server said {line:?}"))
    }
}

fn outcome(answer: Result<Answer>) -> Outcome {
    match answer {
        Ok(answer) => Outcome::Answered(answer),
        Err(error) => match error.downcast_ref::<io::Error>() {
            Some(io) => outcome_of(io, "exchange"),
            None => Outcome::Failed(format!("{error:#}")),
        },
    }
}

fn send(mut stream: &TcpStream, count: usize) -> Result<()> {
    let bytes: Vec<u8> = (0..count).map(|place| (place % PATTERN) as u8).collect();
    Ok(stream.write_all(&bytes)?)
}

fn receive(reader: &mut impl Read, count: usize) -> Result<usize> {
    let mut bytes = vec![0; count];
    reader.read_exact(&mut bytes)?;
    let damaged = bytes.iter().enumerate().find(|(place, byte)| usize::from(**byte) != place % PATTERN);
    ensure!(damaged.is_none(), "byte {damaged:?} of {count} is damaged");
    Ok(count)
}

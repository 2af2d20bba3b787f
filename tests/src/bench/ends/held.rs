//! Connections that stay open, and are asked now and then whether they still work.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::drive::REQUEST;
use crate::netns::inside;

/// One that has not answered by then is broken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connections to keep.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Hold {
    /// Where the client's sockets are.
    pub netns: PathBuf,
    /// Where they go, in turn.
    pub to: Vec<SocketAddr>,
    /// How many.
    pub count: usize,
}

/// What became of requests on them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Asked {
    /// Connections that answered.
    pub answered: u64,
    /// Those that did not, this time or before.
    pub broken: u64,
}

/// None in the place of a broken one, whose late answer would be taken for that to the next request.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<Option<Socket>>);

impl Held {
    /// Opens them, one after the other.
    pub(super) fn open(hold: &Hold) -> Result<Self> {
        ensure!(!hold.to.is_empty(), "connections need a destination");
        let netns = File::open(&hold.netns).with_context(|| format!("open {}", hold.netns.display()))?;
        inside(&netns, || {
            let connect = |(number, to): (usize, &SocketAddr)| {
                let stream = TcpStream::connect(to);
                stream
                    .map(|stream| Some(stream.into()))
                    .with_context(|| format!("open connection {} to {to}", number + 1))
            };
            let to = hold.to.iter().cycle().take(hold.count);
            to.enumerate().map(connect).collect::<Result<_>>().map(Self)
        })
    }

    /// Sends a request on each, and then waits for the answers: all have the same time.
    pub(super) fn ask(&mut self) -> Asked {
        let deadline = Instant::now() + PATIENCE;
        for stream in &mut self.0 {
            stream.take_if(|stream| stream.write_all(&[7; REQUEST]).is_err());
        }
        for stream in &mut self.0 {
            stream.take_if(|stream| hear(stream, deadline).is_err());
        }
        let answered = self.0.iter().flatten().count();
        Asked { answered: answered as u64, broken: (self.0.len() - answered) as u64 }
    }
}

fn hear(stream: &mut Socket, deadline: Instant) -> io::Result<()> {
    // A timeout of zero would be none.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    stream.read_exact(&mut [0; REQUEST])
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};
    use std::thread;

    #[test]
    fn a_broken_connection_stays_broken() -> Result<()> {
        let (one, mut echo) = Socket::pair(Domain::UNIX, Type::STREAM, None)?;
        let (two, closed) = Socket::pair(Domain::UNIX, Type::STREAM, None)?;
        drop(closed);
        thread::spawn(move || {
            let mut request = [0; REQUEST];
            while echo.read_exact(&mut request).and_then(|()| echo.write_all(&request)).is_ok() {}
        });
        let mut held = Held(vec![Some(one), Some(two)]);
        for _ in 0..2 {
            assert_eq!(held.ask(), Asked { answered: 1, broken: 1 });
        }
        Ok(())
    }
}

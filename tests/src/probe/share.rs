//! UDP sockets that threads share: each sends to somebody else, and reads whatever has come. Every answer says what
//! it is the answer to.

use super::{
    Answer, Outcome, PATIENCE_MS,
    protocol::Share,
    socket::{any, outcome_of},
    udp::{numbered, roomy},
};
use crate::{netns, together::Together};
use anyhow::{Context, Result};
use std::{
    fs::File,
    io,
    net::{SocketAddr, UdpSocket},
    panic::resume_unwind,
    thread,
    time::Duration,
};

pub(super) fn share(share: &Share) -> Result<Vec<Outcome>> {
    let family_of = share.to.first().context("no destination")?.ip();
    let netns = File::open(&share.netns)?;
    let one = |_| {
        let socket = roomy(family_of)?;
        // The kernel lets a second thread send by port 0 while it chooses one for the first.
        socket.bind(&any(family_of, 0).into())?;
        Ok(socket.into())
    };
    let sockets: Vec<UdpSocket> =
        netns::inside(&netns, || (0..share.sockets).map(one).collect::<Result<_>>())?;
    let limit = Some(Duration::from_millis(PATIENCE_MS));
    sockets.iter().try_for_each(|socket| socket.set_read_timeout(limit))?;
    let together = &Together::new(share.to.len());
    thread::scope(|scope| {
        let send = |thread| {
            let sockets = &sockets;
            scope.spawn(move || Thread { share, number: thread, together }.use_all(sockets))
        };
        let threads: Vec<_> = (0..share.to.len()).map(send).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// One of those that share the sockets.
struct Thread<'a> {
    share: &'a Share,
    number: usize,
    together: &'a Together,
}

impl Thread<'_> {
    /// The last answer, or the first thing that is wrong. The others go on then.
    fn use_all(&self, sockets: &[UdpSocket]) -> Result<Outcome> {
        let mut last = None;
        for (round, socket) in sockets.iter().enumerate() {
            self.together.wait(round)?;
            if matches!(last, None | Some(Outcome::Answered(_))) {
                last = Some(self.exchange(socket)?);
            }
        }
        last.context("no socket")
    }

    fn exchange(&self, socket: &UdpSocket) -> Result<Outcome> {
        if let Err(error) = (0..self.share.datagrams).try_for_each(|_| self.send(socket)) {
            return Ok(outcome_of(&error, "send"));
        }
        let mut last = self.receive(socket)?;
        for _ in 1..self.share.datagrams {
            if matches!(last, Outcome::Answered(_)) {
                last = self.receive(socket)?;
            }
        }
        Ok(last)
    }

    fn send(&self, socket: &UdpSocket) -> io::Result<()> {
        socket.send_to(&numbered(self.number as u64), self.share.to[self.number]).map(drop)
    }

    fn receive(&self, socket: &UdpSocket) -> Result<Outcome> {
        let mut buffer = [0; 2048];
        Ok(match socket.recv_from(&mut buffer) {
            Ok((len, source)) => self.judge(&buffer[..len], source)?,
            Err(error) => outcome_of(&error, "receive"),
        })
    }

    fn judge(&self, text: &[u8], source: SocketAddr) -> Result<Outcome> {
        let (text, number) = text.split_last_chunk().context("an answer without a number")?;
        let asked = self.share.to.get(u64::from_be_bytes(*number) as usize).context("a strange number")?;
        let answer: Answer = serde_json::from_slice(text).context("the server's answer")?;
        Ok(if source == *asked {
            Outcome::Answered(Answer { peer: source, ..answer })
        } else {
            Outcome::Failed(format!("{asked} was asked, and {source} answered: {answer}"))
        })
    }
}

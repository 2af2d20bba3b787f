//! A way to the API server that a test can break in the ways in which load balancers, firewalls and hosts do: nobody
//! is told.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};

use crate::netns::Namespace;

/// What becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// All that is sent arrives, the end too.
    Passes,
    /// What is sent on connections, and their end, vanishes; new ones are accepted, and get no answer. A connection
    /// that lost something does not recover.
    Vanishes,
    /// All that is sent arrives, but nobody hears that the other side has ended a connection.
    LosesEnds,
}

/// Listens on the loopback device as long as it lives. Threads and connections end with it.
#[derive(Debug)]
pub struct Detour {
    listener: Arc<TcpListener>,
    port: u16,
    state: Arc<State>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    traffic: Mutex<Traffic>,
    /// Held, so that their ends are not told.
    sockets: Mutex<Vec<Arc<TcpStream>>>,
}

impl Detour {
    /// Begins with traffic that passes to the port `to`.
    pub(super) fn start(namespace: &Namespace, to: u16) -> Result<Self> {
        let state = Arc::new(State { traffic: Mutex::new(Traffic::Passes), sockets: Mutex::default() });
        let accepting = Arc::clone(&state);
        // A thread is in the namespace of the one that starts it.
        namespace.run(move || {
            let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen")?);
            let port = listener.local_addr()?.port();
            let accepted = Arc::clone(&listener);
            let accepts = thread::spawn(move || {
                // Ends when the socket is shut down.
                let mut pumps = Vec::new();
                for near in accepted.incoming().map_while(io::Result::ok) {
                    pumps.extend(accepting.accept(near, (Ipv4Addr::LOCALHOST, to).into()));
                }
                accepting.end();
                pumps.into_iter().for_each(|pump| drop(pump.join()));
            });
            Ok(Self { listener, port, state, accepts: Some(accepts) })
        })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on.
    pub fn set(&self, traffic: Traffic) {
        *lock(&self.state.traffic) = traffic;
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open for as long as the listener lives.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        let _ = self.accepts.take().map(JoinHandle::join);
    }
}

impl State {
    fn traffic(&self) -> Traffic {
        *lock(&self.traffic)
    }

    fn hold(&self, socket: TcpStream) -> Arc<TcpStream> {
        let socket = Arc::new(socket);
        lock(&self.sockets).push(Arc::clone(&socket));
        socket
    }

    fn end(&self) {
        for socket in lock(&self.sockets).iter() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// A connection in both directions; nothing of one whose other side is not there.
    fn accept(self: &Arc<Self>, near: TcpStream, to: SocketAddr) -> Vec<JoinHandle<()>> {
        if self.traffic() == Traffic::Vanishes {
            self.hold(near);
            return Vec::new();
        }
        let Ok(far) = TcpStream::connect(to) else { return Vec::new() };
        let (near, far, lost) = (self.hold(near), self.hold(far), Arc::new(AtomicBool::new(false)));
        let pump = |(from, to): (&Arc<TcpStream>, &Arc<TcpStream>)| {
            let (from, to, lost) = (Arc::clone(from), Arc::clone(to), Arc::clone(&lost));
            let state = Arc::clone(self);
            thread::spawn(move || state.pump(&from, &to, &lost))
        };
        [(&near, &far), (&far, &near)].map(pump).into()
    }

    fn pump(&self, mut from: &TcpStream, mut to: &TcpStream, lost: &AtomicBool) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if self.traffic() == Traffic::Vanishes {
                lost.store(true, Ordering::Relaxed);
            }
            if !lost.load(Ordering::Relaxed) && to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        if self.traffic() == Traffic::Passes && !lost.load(Ordering::Relaxed) {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

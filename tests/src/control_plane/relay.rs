//! Shows a listener of one namespace in another, without a link between the two: a socket
//! stays in the namespace it was made in, whoever holds it.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};

use crate::netns::Namespace;

/// Listens as long as it lives. Connections end with either side.
#[derive(Debug)]
pub(super) struct Relay {
    listener: Arc<TcpListener>,
    accepts: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens on `address` in `here` for what listens on the same address in `there`.
    pub(super) fn start(here: &Namespace, there: Arc<Namespace>, address: SocketAddr) -> Result<Self> {
        let bind = || TcpListener::bind(address).with_context(|| format!("listen on {address}"));
        let listener = Arc::new(here.run(bind)?);
        let accepting = Arc::clone(&listener);
        let accepts = thread::spawn(move || {
            // Ends when the socket is shut down.
            for near in accepting.incoming().map_while(io::Result::ok) {
                if let Ok(far) = there.run(|| Ok(TcpStream::connect(address)?)) {
                    connect(near, far);
                }
            }
        });
        Ok(Self { listener, accepts: Some(accepts) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open for as long as the listener lives.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        // The thread keeps both namespaces, which are to go now.
        let _ = self.accepts.take().map(JoinHandle::join);
    }
}

fn connect(near: TcpStream, far: TcpStream) {
    let (near, far) = (Arc::new(near), Arc::new(far));
    for (from, to) in [(Arc::clone(&near), Arc::clone(&far)), (far, near)] {
        thread::spawn(move || {
            let _ = io::copy(&mut &*from, &mut &*to);
            // The other direction ends too, or it would wait for a peer that is gone.
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}

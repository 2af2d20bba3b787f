//! A program sends a datagram by a socket that is not connected.

use proxy_common::maps::events::Hook;

use super::{
    ALLOW,
    ask::{ask, is_direct},
    client::port,
    datagrams::{By, known_backend, remember, send_directly},
    place::{Call, Place},
};
use crate::maps;

#[inline(always)]
pub fn send<P: Place>(call: &Call<P>) -> i32 {
    match translate(call) {
        Ok(()) => ALLOW,
        Err(verdict) => {
            if is_direct(verdict) {
                send_directly::<P>(call.ctx.sock_addr);
            }
            verdict
        }
    }
}

/// # Errors
/// The verdict, if it is not for us to choose a backend.
#[inline(always)]
fn translate<P: Place>(call: &Call<P>) -> Result<(), i32> {
    let asked = ask(call, Hook::SEND)?;
    let known = known_backend::<P>(call.ctx.sock_addr, asked.frontend.service);
    if let Some(known) = maps::backend::<P::Addr>(known) {
        call.replace(&known.addr, known.port);
        return Ok(());
    }
    let choice = asked.choose(|| port(call.ctx))?;
    remember(call, By::Send, &asked, &choice);
    asked.note(&choice);
    call.replace(&choice.backend.addr, choice.backend.port);
    Ok(())
}

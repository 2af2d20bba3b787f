//! Runs an API server for tests in other processes, one at a time: writes a line by which they find
//! it when it is ready, and ends with its standard input.

use anyhow::{Context as _, Result};
use std::io::{Read as _, stdin};
use tests::control_plane::SharedControlPlane;

fn main() -> Result<()> {
    let control_plane = SharedControlPlane::start().context("start an API server")?;
    println!("{}", serde_json::to_string(control_plane.place())?);
    stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

//! Processes that are told what to do and reply, a JSON document on a line each.

use std::{
    io::{BufRead as _, BufReader, Write as _, stdin, stdout},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result};
use serde::{Serialize, de::DeserializeOwned};

use crate::process::{Process, Spawn as _};

/// The side that tells.
#[derive(Debug)]
pub(crate) struct Lines {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    process: Process,
}

impl Lines {
    /// Starts the process with both pipes.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn_owned()?;
        let (input, output) = {
            let mut child = process.child();
            (child.stdin.take().context("pipe")?, child.stdout.take().context("pipe")?)
        };
        Ok(Self { input, output: BufReader::new(output), process })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Tells it something.
    pub(crate) fn say(&mut self, request: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(request)?;
        writeln!(self.input, "{line}").with_context(|| format!("process {} has ended", self.id()))
    }

    /// Waits for its next reply.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("process {} said {line:?}", self.id()))
    }
}

/// The side that replies: carries out each line until standard input ends.
pub(crate) fn carry_out<T: Serialize>(mut reply: impl FnMut(&str) -> T) -> Result<()> {
    for line in stdin().lock().lines() {
        let reply = reply(&line?);
        let mut output = stdout().lock();
        writeln!(output, "{}", serde_json::to_string(&reply)?)?;
        output.flush()?;
    }
    Ok(())
}

//! Cold start: the program starts from the beginning for each request, without its state.

use std::path::Path;
use std::time::Instant;

use super::{Netns, Peer, Root, end, stop};
use crate::bench::client::first_byte_since;
use crate::bench::program::Program;
use crate::error::Error;

/// See the module.
#[derive(Debug)]
pub(crate) struct Cold {
    program: Program,
    netns: Netns,
    root: Root,
    pid: Option<u32>,
}

impl Cold {
    pub(super) fn start(program: &Program, dir: &Path) -> Result<Self, Error> {
        let root = Root::make(program, dir.join("cold/rootfs"))?;
        let mut cold = Self { program: program.clone(), netns: Netns::make(2)?, root, pid: None };
        // What is on disk, such as tables, is part of what it starts with.
        cold.pid = Some(cold.netns.start(program, &cold.root)?);
        program.warm_up(cold.netns.socket(program))?;
        cold.rest()?;
        Ok(cold)
    }
}

impl Peer for Cold {
    fn name(&self) -> &'static str {
        "cold-start"
    }

    fn level(&self) -> &'static str {
        "stopped"
    }

    fn rest(&mut self) -> Result<(), Error> {
        if let Some(pid) = self.pid.take() {
            stop(pid);
        }
        self.netns.end_all()
    }

    fn first_byte(&mut self) -> Result<f64, Error> {
        let begun = Instant::now();
        self.pid = Some(self.netns.start(&self.program, &self.root)?);
        first_byte_since(self.netns.socket(&self.program), self.program.protocol, begun)
    }
}

impl Drop for Cold {
    fn drop(&mut self) {
        if let Some(pid) = self.pid.take() {
            end(pid);
        }
    }
}

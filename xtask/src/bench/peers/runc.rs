//! runc with CRIU: a container of the same files, checkpointed and restored.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::container::{Container, errors_of};
use super::{CONTAINER, Peer};
use crate::bench::client::first_byte_since;
use crate::bench::program::Program;
use crate::error::{Error, run};

/// See the module.
#[derive(Debug)]
pub(crate) struct Runc {
    program: Program,
    container: Container,
    images: PathBuf,
}

impl Runc {
    pub(super) fn start(program: &Program, dir: &Path) -> Result<Self, Error> {
        let container = Container::make(program.name, &dir.join("runc"))?;
        let container = if program.has_connections() { container.with_connections() } else { container };
        program.unpack_for_root(&container.root())?;
        let mut runc = Self { program: program.clone(), container, images: dir.join("runc/images") };
        runc.container.start(&runc.program.command_for_root())?;
        runc.program.warm_up(runc.container.netns().socket(&runc.program))?;
        runc.rest()?;
        runc.first_byte()?;
        Ok(runc)
    }
}

impl Peer for Runc {
    fn name(&self) -> &'static str {
        CONTAINER
    }

    fn level(&self) -> &'static str {
        "image"
    }

    fn rest(&mut self) -> Result<(), Error> {
        if self.images.exists() {
            fs::remove_dir_all(&self.images).map_err(Error::file("remove", &self.images))?;
        }
        let captured = run(&mut self.container.checkpoint(&self.images)).map(drop);
        captured.map_err(|error| error.with_log(|| errors_of(&self.container.dump_log())))
    }

    fn first_byte(&mut self) -> Result<f64, Error> {
        let begun = Instant::now();
        let restored = self.container.detached(self.container.restore(&self.images));
        restored.map_err(|error| error.with_log(|| errors_of(&self.container.restore_log())))?;
        first_byte_since(self.container.netns().socket(&self.program), self.program.protocol, begun)
    }
}

//! Layers on their way to and from other machines.
//!
//! A layer is stored as a tree, and its archive, whose digest names it, is gone. So what comes from elsewhere gets a name by what
//! came ([`LayerDigest::moved`]): nobody can put another tree under the name of a layer that others have pulled.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt as _;

use sha2::{Digest as _, Sha256};

use super::{LayerRecord, Store};
use crate::copy::{Ids, read_tree, write_tree};
use crate::digest::{Digest, LayerDigest};
use crate::error::{CopyError, Error};

/// Hashes what is read.
struct Hashed<'i> {
    input: &'i mut dyn Read,
    hasher: Sha256,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

impl Store {
    /// Whether the layer is here.
    pub fn has_layer(&self, layer: &LayerDigest) -> bool {
        self.layer_path(layer).is_ok()
    }

    /// Writes a layer as a tree.
    ///
    /// # Errors
    /// Where it is not here, or cannot be written.
    pub fn send_layer(&self, layer: &LayerDigest, out: &mut dyn Write) -> Result<(), Error> {
        let copied = write_tree(&self.layer_path(layer)?, Ids::Same, out);
        copied.map(drop).map_err(|source| Error::Copy { what: format!("layer {layer}"), source })
    }

    /// Stores a layer that another store has sent; all of `input`. Gives its name here.
    ///
    /// # Errors
    /// Where it cannot be read or stored; nothing is left of it then.
    pub fn receive_layer(&self, input: &mut dyn Read) -> Result<LayerDigest, Error> {
        let temporary = self.temporary()?;
        let made = temporary.join("layer");
        let tree = made.join("tree");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&tree).map_err(Error::io("create", &tree))?;
        let mut input = Hashed { input, hasher: Sha256::new() };
        let wrong = |source| Error::Copy { what: "a layer".to_owned(), source };
        let copied = read_tree(&mut input, &tree, Ids::Same).map_err(wrong)?;
        match input.read(&mut [0]) {
            Ok(0) => {}
            Ok(_) => return Err(wrong(CopyError::Invalid("bytes follow the end of a layer"))),
            Err(error) => return Err(wrong(CopyError::Stream(error))),
        }
        let diff_id = Digest::finish(input.hasher);
        let layer = LayerDigest::moved(diff_id);
        let record = LayerRecord { diff_id, bytes: copied.bytes, members: copied.members, borrowed: false };
        self.publish(&made, &layer, &record, &mut self.pin())?;
        Ok(layer)
    }
}

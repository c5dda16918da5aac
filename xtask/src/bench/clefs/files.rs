//! A state with an open file in memory, out to the disk and back in, beside a synced copy of a file of that size (Alto, figure 4).
//!
//! Both are synced, and read again from the page cache: out is the whole state and its commit, in its restore with a first message.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use torpor_clef::{Note, Store};
use torpor_lua::{State, Step, Value};

use super::options::Options;
use super::programs::{Program, message, reserved};
use super::{IMAGE, TORPOR, us};
use crate::bench::samples::Samples;
use crate::error::Error;

/// Sizes of the file, kB.
const SIZES: [usize; 6] = [2, 8, 16, 24, 32, 40];
/// Its argument is the size of the file.
const PROGRAM: Program = Program {
    name: "files",
    text: "
        local size = ...
        local file = assert(io.open('/file', 'w+'))
        file:write(('x'):rep(size))
        function message(n)
          file:seek('set', n % size)
          assert(file:read(1))
          return n
        end",
};
const COPY: &str = "copy";
const METRIC: &str = "out_and_in";

pub(super) fn run(options: &Options, samples: &mut Samples) -> Result<(), Error> {
    let windows = reserved(1)?;
    let mut probe = Program { name: "probe", text: "" }.started(&windows, 0, &[])?;
    if probe.run("=probe", "return io and io.open and true", &[]).1 != Step::Ended(vec![Value::Boolean(true)]) {
        let (what, hint) = ("io.open of Clefs".to_owned(), "this build has no files in memory");
        samples.missing(PROGRAM.name.to_owned(), &Error::Missing { what, hint });
        return Ok(());
    }
    drop(probe);
    let dir = super::disk_directory()?;
    let mut store = Store::open(dir.path())?;
    for size in SIZES {
        let name = format!("file of {size} kB");
        let mut state = PROGRAM.started(&windows, 0, &[Value::Integer((size << 10) as i64)])?;
        let (mut own, mut copied) = (Vec::new(), Vec::new());
        for number in 0..options.runs(300, 10) {
            let begun = Instant::now();
            store.put(name.as_bytes(), &Note::default(), &state.whole(), None)?;
            store.commit()?;
            let out = us(begun);
            drop(state);
            let begun = Instant::now();
            let images = store.load(name.as_bytes())?.map(|stored| stored.images).unwrap_or_default();
            state = State::restore(&windows, &images)?;
            message(&mut state, number)?;
            own.push(out + us(begun));
            copied.push(copy(dir.path(), size << 10).map_err(Error::file("copy a file in", dir.path()))?);
        }
        samples.add_all((&name, TORPOR, IMAGE, METRIC, "us"), &own);
        samples.add_all((&name, COPY, IMAGE, METRIC, "us"), &copied);
    }
    Ok(())
}

/// Copies a file, syncs the copy and reads it.
fn copy(dir: &Path, bytes: usize) -> std::io::Result<f64> {
    let (from, to) = (dir.join("from"), dir.join("to"));
    fs::write(&from, vec![b'x'; bytes])?;
    let begun = Instant::now();
    let content = fs::read(&from)?;
    let mut file = File::create(&to)?;
    file.write_all(&content)?;
    file.sync_data()?;
    fs::read(&to)?;
    Ok(us(begun))
}

//! The files that this program runs from: itself, its interpreter and its libraries, as they are mapped now.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::elf::Elf;
use crate::failure::Failure;

/// Where libraries are in the image: `LD_LIBRARY_PATH`.
pub(super) const LIBRARIES: &str = "lib/torpor";
/// Bytes of a file at most; those with all symbols for debuggers are large.
const MOST_BYTES: u64 = 4 << 30;
/// Libraries at most.
const MOST_LIBRARIES: usize = 64;

/// A file of the image: its path there, without the first `/`, and what is in it.
pub(super) struct Object {
    pub(super) path: String,
    pub(super) header: Vec<u8>,
    pub(super) rest: Vec<u8>,
}

/// The running program as `torpor`, and what it needs to run.
pub(super) fn objects() -> Result<Vec<Object>, Failure> {
    // Not by its name: another version may be there by now.
    let (program, elf) = object(Path::new("/proc/self/exe"), |_| "torpor".to_owned())?;
    let mut objects = vec![program];
    let Some(interpreter) = elf.interpreter else { return Ok(objects) };
    let at = interpreter.trim_start_matches('/').to_owned();
    objects.push(object(Path::new(&interpreter), |_| at)?.0);
    // What is not named by the program is by its libraries: all are loaded when it starts.
    let loader = fs::canonicalize(&interpreter).ok();
    let own = fs::read_link("/proc/self/exe").ok();
    for path in mapped()?.into_iter().filter(|path| Some(path) != loader.as_ref() && Some(path) != own.as_ref()) {
        let file_name = || path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let plain = |name: &String| !name.contains('/');
        let name = |elf: &Elf| format!("{LIBRARIES}/{}", elf.name.clone().filter(plain).unwrap_or_else(file_name));
        objects.push(object(&path, name)?.0);
    }
    Ok(objects)
}

fn object(path: &Path, name: impl FnOnce(&Elf) -> String) -> Result<(Object, Elf), Failure> {
    let failed = |source| Failure::Read { path: path.to_owned(), source };
    let mut file = Vec::new();
    File::open(path).and_then(|opened| opened.take(MOST_BYTES).read_to_end(&mut file)).map_err(failed)?;
    let elf = Elf::read(&file).ok_or_else(|| failed(io::Error::other("it is no program of this machine")))?;
    let (header, rest) = elf.stripped(&file);
    Ok((Object { path: name(&elf), header, rest: rest.to_vec() }, elf))
}

/// Files of which this process has code mapped, the program among them.
fn mapped() -> Result<Vec<PathBuf>, Failure> {
    let failed = |source| Failure::Read { path: PathBuf::from("/proc/self/maps"), source };
    let maps = fs::read_to_string("/proc/self/maps").map_err(failed)?;
    let paths = files(&maps);
    if paths.len() > MOST_LIBRARIES {
        return Err(failed(io::Error::other(format!("this program has more than {MOST_LIBRARIES} libraries"))));
    }
    Ok(paths)
}

/// Files with code, of the text of `maps`.
fn files(maps: &str) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    for line in maps.lines() {
        let mut fields = line.splitn(6, ' ');
        let (access, path) = (fields.nth(1).unwrap_or_default(), fields.nth(3).unwrap_or_default().trim_start());
        // Not [vdso].
        if access.contains('x') && path.starts_with('/') {
            found.insert(PathBuf::from(path));
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_files_is_found() {
        let maps = "\
55e000000000-55e000001000 r--p 00000000 fe:00 1 /usr/bin/a b
55e000001000-55e000002000 r-xp 00001000 fe:00 1 /usr/bin/a b
7f0000000000-7f0000001000 r-xp 00000000 fe:00 2                          /usr/lib/libc.so.6
7f0000002000-7f0000003000 r--p 00000000 fe:00 3                          /usr/lib/locale/archive
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                          [vdso]
7ffc00003000-7ffc00004000 rwxp 00000000 00:00 0
";
        assert_eq!(files(maps), [PathBuf::from("/usr/bin/a b"), PathBuf::from("/usr/lib/libc.so.6")]);
    }

    #[test]
    fn this_program_is_found_with_its_libraries() {
        let objects = objects().unwrap();
        let paths: Vec<&str> = objects.iter().map(|object| object.path.as_str()).collect();
        assert_eq!(paths[0], "torpor");
        assert!(paths.iter().all(|path| !path.starts_with('/')), "{paths:?}");
        if paths.len() > 1 {
            assert!(paths.iter().any(|path| path.starts_with("lib/torpor/libc.so")), "{paths:?}");
        }
    }
}

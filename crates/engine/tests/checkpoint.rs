//! Real programs are captured: what their images say, and that they run on.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use common::FailAt;
use torpor_engine::{Checkpoint, CheckpointError, Checkpointed, Fault, Faults, NoFaults, Step, checkpoint};
use torpor_image::tree::{Backing, End, LiveProcess, Tree};
use torpor_image::{Content, HEADER_BYTES, Header, Kind, checksum};
use torpor_testkit::programs::{only_standard_descriptors, python};
use torpor_testkit::wait::soon;

/// A program that answers lines with lines.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(name: &str) -> Self {
        let mut command = only_standard_descriptors(&python(name));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, input, output };
        assert_eq!(program.line(), "ready");
        program
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.input, "{question}").unwrap();
        self.line()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn capture(pid: i32, folder: &Path, faults: &dyn Faults) -> Result<Checkpointed, CheckpointError> {
    let done = checkpoint(&Checkpoint { pid, folder, leave_running: true, lock: None, faults });
    if let Ok(done) = &done {
        eprintln!("{:?}", done.timings.steps());
    }
    done
}

fn read(folder: &Path) -> (Vec<u8>, Tree) {
    let bytes = fs::read(folder.join("image")).unwrap();
    let header = Header::decode(&bytes[..HEADER_BYTES as usize], bytes.len() as u64).unwrap();
    assert_eq!(header.kind, Kind::Complete);
    let state = &bytes[header.state_offset() as usize..header.plan_offset() as usize];
    assert_eq!(checksum(state), header.state_checksum);
    let tree = Tree::decode(state, header.pages()).unwrap();
    (bytes, tree)
}

fn life(tree: &Tree, n: usize) -> &LiveProcess {
    tree.processes[n].alive().expect("it lives")
}

/// Memory of a process as its image has it; `None` where nothing is stored.
fn stored(bytes: &[u8], life: &LiveProcess, address: u64, len: usize) -> Option<Vec<u8>> {
    let mut regions = life.space.areas.iter().flat_map(|area| &area.pages);
    let region = regions.find(|region| region.start <= address && address < region.start + region.bytes())?;
    let Content::Stored { offset, checksum: sum } = region.content else { return None };
    let pages = &bytes[offset as usize..(offset + region.bytes()) as usize];
    assert_eq!(checksum(pages), sum);
    let from = (address - region.start) as usize;
    Some(pages[from..(from + len).min(pages.len())].to_vec())
}

#[test]
fn an_image_has_the_memory_and_the_program_runs_on() {
    let mut program = Program::start("echo_lines.py");
    let address = u64::from_str_radix(&program.ask("where")[2..], 16).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let done = capture(program.pid(), folder.path(), &NoFaults).unwrap();
        assert_eq!((done.processes, done.threads), (1, 2));
        let (bytes, tree) = read(folder.path());
        let life = life(&tree, 0);
        assert_eq!(stored(&bytes, life, address, 6).unwrap(), b"torpor");
        assert!(
            life.space.areas.iter().any(|area| matches!(&area.backing, Backing::Kernel { name } if name == "[vdso]"))
        );
        assert!(life.threads.iter().all(|thread| thread.xstate.len() >= 576));
        assert_eq!(program.ask(&format!("round {round}")), format!("round {round}"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    // SIGINT is Python's own; SIGPIPE is ignored.
    let (_, tree) = read(folder.path());
    let actions = &life(&tree, 0).actions;
    assert!(actions[1].handler > 1 && actions[12].handler == 1);
}

#[test]
fn an_error_at_any_step_leaves_it_running_and_nothing_behind() {
    let mut program = Program::start("echo_lines.py");
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("image");
    for step in [Step::Prepared, Step::Stopped, Step::Copied, Step::Synced] {
        let error = capture(program.pid(), &folder, &FailAt(step)).expect_err(step.name());
        assert!(matches!(error, CheckpointError::Fault(Fault(at)) if at == step), "{error:?}");
        assert_eq!(program.ask(step.name()), step.name());
        assert!(!folder.exists(), "{}", step.name());
    }
    // An image that was there before stays what it was.
    capture(program.pid(), &folder, &NoFaults).unwrap();
    let before = fs::read(folder.join("image")).unwrap();
    capture(program.pid(), &folder, &FailAt(Step::Synced)).unwrap_err();
    assert_eq!(fs::read(folder.join("image")).unwrap(), before);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn an_error_after_the_commit_says_that_the_image_is_there() {
    let mut program = Program::start("echo_lines.py");
    let parent = tempfile::tempdir().unwrap();
    for step in [Step::Committed, Step::Released] {
        let folder = parent.path().join(step.name());
        let error = capture(program.pid(), &folder, &FailAt(step)).expect_err(step.name());
        let CheckpointError::After { pid, error } = error else { panic!("{error:?}") };
        assert_eq!(pid, program.pid());
        assert!(matches!(*error, CheckpointError::Fault(Fault(at)) if at == step), "{error:?}");
        assert_eq!(program.ask(step.name()), step.name());
        assert!(read(&folder).1.processes[0].alive().is_some());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }
}

#[test]
fn without_leave_running_the_tree_ends_once_its_image_is_there() {
    let program = Program::start("fork_twice.py");
    let folder = tempfile::tempdir().unwrap();
    // The other fork may still be on its way.
    let children = || {
        let path = format!("/proc/{0}/task/{0}/children", program.child.id());
        fs::read_to_string(path).unwrap().split_whitespace().count()
    };
    soon("both children are there", || children() == 2);
    let done = checkpoint(&Checkpoint {
        pid: program.pid(),
        folder: folder.path(),
        leave_running: false,
        lock: None,
        faults: &NoFaults,
    });
    let done = done.unwrap();
    assert!(done.processes >= 3, "{done:?}");
    let (_, tree) = read(folder.path());
    for process in &tree.processes[1..] {
        assert!(!Path::new(&format!("/proc/{}/exe", process.pid)).exists(), "{}", process.pid);
        assert!(matches!(process.end, End::Alive(_)));
    }
    assert!(!Path::new(&format!("/proc/{}/exe", program.child.id())).exists());
}

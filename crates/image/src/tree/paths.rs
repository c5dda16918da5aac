//! Every place of a tree that names a file.

use super::{End, FileKind, PathState, SharedMemoryKind, Tree};

impl Tree {
    /// Visits every file that is to be found under its name again.
    pub fn for_each_path(&mut self, mut visit: impl FnMut(&mut PathState)) {
        for process in &mut self.processes {
            if let End::Alive(life) = &mut process.end {
                visit(&mut life.cwd);
                life.root.iter_mut().for_each(&mut visit);
                life.space.files.iter_mut().for_each(&mut visit);
            }
        }
        for file in &mut self.files {
            match &mut file.kind {
                FileKind::Path(path) | FileKind::Fifo { path, .. } | FileKind::Handle { state: path, .. } => {
                    visit(path)
                }
                FileKind::Master(terminal) => visit(&mut terminal.path),
                FileKind::Inotify { watches } => watches.iter_mut().for_each(|watch| visit(&mut watch.path)),
                FileKind::Fanotify { marks, .. } => marks.iter_mut().for_each(|mark| visit(&mut mark.path)),
                FileKind::Unix(socket) => socket.path.iter_mut().for_each(&mut visit),
                FileKind::Pipe { .. }
                | FileKind::Event { .. }
                | FileKind::Epoll { .. }
                | FileKind::Signal { .. }
                | FileKind::Timer { .. }
                | FileKind::Memory { .. }
                | FileKind::Process { .. }
                | FileKind::Inet(_)
                | FileKind::Netlink { .. }
                | FileKind::Packet(_)
                | FileKind::Ended { .. }
                | FileKind::OfProcess { .. }
                | FileKind::Slave { .. }
                | FileKind::Outside { .. } => {}
            }
        }
        for memory in &mut self.memories {
            if let SharedMemoryKind::Deleted { state, .. } = &mut memory.kind {
                visit(state);
            }
        }
    }
}

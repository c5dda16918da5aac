//! Which kind an open file is, and its dump.

use rustix::fs::{FileType, major};
use torpor_image::tree::{FileId, FileKind, NetlinkPeer};
use torpor_linux::uapi::socket::{AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_UNIX};

use crate::context::DumpContext;
use crate::contract::flags::PATH_ONLY;
use crate::contract::reason::{Described, Reason};
use crate::kinds::inet::Tables;
use crate::kinds::memory::Memories;
use crate::kinds::pipe::Pipes;
use crate::kinds::socket::options::{self, Defaults};
use crate::kinds::terminal::Terminals;
use crate::kinds::unix::Sockets;
use crate::kinds::{
    epoll, eventfd, fanotify, inet, inotify, netlink, packet, path, pidfd, signalfd, terminal, timerfd, unix,
};
use crate::list::Item;

/// What the kinds remember between files of one dump.
pub(crate) struct Kinds<'a, 'b> {
    pub(crate) pipes: Pipes,
    pub(crate) memories: Memories<'a, 'b>,
    pub(crate) unix: Sockets,
    pub(crate) inet: Tables,
    pub(crate) terminals: Terminals,
    pub(crate) socket_defaults: Defaults,
    pub(crate) visited: epoll::Visited,
    /// Of connected netlink sockets.
    pub(crate) netlink_peers: Vec<NetlinkPeer>,
}

impl Kinds<'_, '_> {
    /// Dumps an open file: what the kernel shows of it decides which kind it is.
    pub(crate) fn dump(&mut self, context: &mut DumpContext<'_>, id: FileId, item: &Item) -> Described<FileKind> {
        if item.info.flags & PATH_ONLY != 0 {
            return path::describe(context.request, item);
        }
        if let Some(anonymous) = item.link.strip_prefix(b"anon_inode:") {
            return match anonymous {
                b"[eventfd]" => eventfd::describe(&item.info),
                b"[signalfd]" => signalfd::describe(&item.info),
                b"[timerfd]" => timerfd::describe(item, context.request.since),
                b"[pidfd]" => pidfd::describe(context.request, item),
                b"[eventpoll]" => epoll::describe(context, &mut self.visited, item),
                b"inotify" => inotify::describe(context, item),
                b"[fanotify]" => fanotify::describe(context, item),
                other => Err(anonymous_object(&String::from_utf8_lossy(other))),
            };
        }
        match FileType::from_raw_mode(item.stat.st_mode) {
            FileType::RegularFile if context.has_no_name(item) => {
                path::is_file(item)?;
                Ok(FileKind::Memory { memory: self.memories.take(item)? })
            }
            FileType::RegularFile | FileType::Directory | FileType::Symlink => path::describe(context.request, item),
            FileType::CharacterDevice if terminal::is_master(item) => {
                terminal::master(context, &mut self.terminals, id, item)
            }
            FileType::CharacterDevice if terminal::is_slave(major(item.stat.st_rdev)) => {
                match terminal::slave(context, &self.terminals, item)? {
                    Some(slave) => Ok(slave),
                    None => path::device(context.request, item),
                }
            }
            FileType::CharacterDevice | FileType::BlockDevice => path::device(context.request, item),
            FileType::Fifo => self.pipes.describe(context.request, context.list, item),
            FileType::Socket => self.socket(context, id, item),
            FileType::Unknown => {
                Err(Reason::refused(format!("{} is of a kind that is not known here", item.name()), ""))
            }
        }
    }

    fn socket(&mut self, context: &DumpContext<'_>, id: FileId, item: &Item) -> Described<FileKind> {
        let kind = options::kind(&item.fd)?;
        let defaults = &mut self.socket_defaults;
        match kind.0 {
            AF_UNIX => unix::describe(context, (&mut self.unix, defaults), id, item, kind),
            AF_INET | AF_INET6 => inet::describe(context.request, (&mut self.inet, defaults), id, item, kind),
            AF_NETLINK => netlink::describe((&mut self.netlink_peers, defaults), id, item, kind),
            AF_PACKET => packet::describe(defaults, item, kind),
            family => Err(unknown_socket(family)),
        }
    }

    /// Of a file that cannot be described: what can be restored without its peers.
    pub(crate) fn without_peers(&mut self, item: &Item) -> Described<Option<FileKind>> {
        inet::without_peers(&mut self.socket_defaults, item)
    }
}

fn unknown_socket(family: i32) -> Reason {
    let (name, can_be_kept) = match family {
        38 => ("a socket of the kernel's cryptography (AF_ALG)", true),
        40 => ("a vsock socket", true),
        44 => ("an XDP socket", false),
        _ => ("a socket", false),
    };
    let (what, remedy) = (format!("{name} (family {family}) is not taken yet"), "close it before the checkpoint");
    if can_be_kept { Reason::parkable(what, remedy) } else { Reason::refused(what, remedy) }
}

/// Names what other people know under the name of its inode.
fn anonymous_object(name: &str) -> Reason {
    let (what, remedy, can_be_kept) = match name.trim_matches(['[', ']']) {
        "io_uring" => ("io_uring", "start the program with io_uring off", false),
        "perf_event" => ("a performance counter", "stop profiling", false),
        "userfaultfd" => ("userfaultfd: the program serves page faults itself", "", false),
        "seccomp notify" => ("a seccomp supervisor's descriptor", "", false),
        "landlock-ruleset" => ("a landlock ruleset", "close it before the checkpoint", true),
        "kvm-vm" | "kvm-vcpu:0" => ("a virtual machine", "", false),
        other if other.starts_with("bpf") => ("a BPF object", "close it before the checkpoint", true),
        _ => ("a kernel object that is not known here", "", false),
    };
    let what = format!("{what} (anon_inode:{name})");
    if can_be_kept { Reason::parkable(what, remedy) } else { Reason::refused(what, remedy) }
}

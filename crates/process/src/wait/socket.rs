//! Time-outs of sockets (`SO_RCVTIMEO`, `SO_SNDTIMEO`), shortened until the calls on them have begun again.
//!
//! The kernel reads the option when a call begins, and a call that begins again begins its time-out anew. So the option is
//! what is left of the wait until the thread waits again, and then what the program has set. Where several threads wait on
//! one socket, each gets what the one has left that has most: a wait may end late, never early.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rustix::fs::fstat;
use rustix::net::sockopt::{self, Timeout};
use torpor_linux::closer::AppFile;
use torpor_linux::descriptor::duplicate;

use super::restart::Given;
use super::since::now;
use torpor_proc as proc;

/// How often it is looked without a pause whether the thread has begun its call, before the option is put back.
const LOOKS: u32 = 1000;
/// How long a thread may wait for a CPU meanwhile: others keep it busy, or its app is over its CPU limit. With the option
/// back too early, its call would begin with the whole time-out.
const CPU_PATIENCE: Duration = Duration::from_secs(1);
/// Zero would mean no time-out at all.
const SHORTEST: Duration = Duration::from_millis(1);

const fn which(send: bool) -> Timeout {
    if send { Timeout::Send } else { Timeout::Recv }
}

/// The time-out set on a socket; `None`: none, or not a socket.
pub(crate) fn timeout(pid: i32, fd: i32, send: bool) -> Option<Duration> {
    let socket = duplicate(pid, fd).ok()?;
    sockopt::socket_timeout(&socket, which(send)).ok().flatten()
}

/// A thread in a call, as the machine numbers both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// The call.
    pub number: u64,
    /// How long it had run when it was let go on; `None` where the kernel does not tell.
    pub ran_ns: Option<u64>,
}

/// A wait on a socket's own time-out.
#[derive(Debug)]
pub struct SocketWait {
    /// A duplicate of the socket.
    pub socket: AppFile,
    /// It is the one for sending.
    pub send: bool,
    /// What is left of the time-out.
    pub left: Duration,
    /// Who waits.
    pub waiter: Waiter,
}

#[derive(Debug)]
struct Change {
    socket: AppFile,
    inode: u64,
    send: bool,
    before: Duration,
    left: Duration,
    waiters: Vec<Waiter>,
}

/// Time-outs that were changed and are to be put back, and those of other calls that were let go on.
#[derive(Debug, Default)]
pub struct SocketChanges {
    sockets: Vec<Change>,
    /// By thread.
    given: HashMap<i32, Given>,
}

/// What is known of threads that were let go on.
#[derive(Debug, Default)]
pub struct LetGoOn {
    /// Counts of switches of those whose socket's time-out was changed, once their calls had begun.
    pub(crate) switches: HashMap<i32, u64>,
    /// How others were.
    pub(crate) given: HashMap<i32, Given>,
}

impl SocketChanges {
    /// Notes how a thread is let go on.
    pub(crate) fn note(&mut self, tid: i32, given: Given) {
        self.given.insert(tid, given);
    }

    /// Sets what is left of a wait as the time-out of its socket, if that has one.
    pub fn shorten(&mut self, wait: SocketWait) -> io::Result<()> {
        let SocketWait { socket, send, left, waiter } = wait;
        let (inode, left) = (fstat(&socket)?.st_ino, left.max(SHORTEST));
        if let Some(change) = self.sockets.iter_mut().find(|change| (change.inode, change.send) == (inode, send)) {
            change.waiters.push(waiter);
            change.left = change.left.max(left);
            return Ok(sockopt::set_socket_timeout(&change.socket, which(send), Some(change.left))?);
        }
        let Some(before) = sockopt::socket_timeout(&socket, which(send))? else { return Ok(()) };
        sockopt::set_socket_timeout(&socket, which(send), Some(left))?;
        self.sockets.push(Change { socket, inode, send, before, left, waiters: vec![waiter] });
        Ok(())
    }

    /// Puts them back once the threads, which have been let go, wait in their calls again; gives the threads' counts of
    /// switches then.
    pub fn undo(self) -> io::Result<LetGoOn> {
        let mut switches = HashMap::new();
        for change in self.sockets {
            switches.extend(change.waiters.iter().filter_map(begun));
            sockopt::set_socket_timeout(&change.socket, which(change.send), Some(change.before))?;
        }
        Ok(LetGoOn { switches, given: self.given })
    }
}

/// Waits until a thread is in its call; gives its count of switches. Of one that has not had a CPU at all until then it is known,
/// too: the count that it will have in its call, which then begins with the whole time-out, but is recognised by the next sleep.
fn begun(waiter: &Waiter) -> Option<(i32, u64)> {
    let Waiter { pid, tid, ran_ns, .. } = *waiter;
    let mut looks = 0;
    let started = now();
    // There is no event to wait for.
    while let Some(seen) = look(waiter) {
        if let Seen::Waits { switches } = seen {
            return Some((tid, switches));
        }
        looks += 1;
        if looks < LOOKS {
            std::thread::yield_now();
        } else if matches!(seen, Seen::OnItsWay) && now().saturating_sub(started) < CPU_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        } else {
            let starved = ran_ns.is_some() && run_time_ns(pid, tid) == ran_ns;
            return voluntary_switches(pid, tid).filter(|_| starved).map(|switches| (tid, switches + 1));
        }
    }
    None
}

/// What one look at a thread that was let go on shows.
#[derive(Debug)]
enum Seen {
    /// It waits in its call.
    Waits { switches: u64 },
    /// It runs, waits for a CPU, or is still stopped or frozen, from which it goes on in a moment.
    OnItsWay,
    /// It waits in another call, or outside of calls.
    Elsewhere,
}

/// Looks at a thread; `None`: it has ended.
fn look(waiter: &Waiter) -> Option<Seen> {
    let Waiter { pid, tid, number, .. } = *waiter;
    let status = proc::read(&format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let call = proc::read(&format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    // `number args…` while it waits in a call, `running` while it has a CPU or waits for one.
    if call.starts_with("running") {
        return Some(Seen::OnItsWay);
    }
    if call.split(' ').next().and_then(|number| number.parse().ok()) != Some(number) {
        return Some(Seen::Elsewhere);
    }
    // A thread that is stopped or frozen has the number of its interrupted call, too. The count is that of the wait only if
    // the thread slept when it was taken, and did so until its call was read.
    let sleeps = proc::field(&status, "State")?.starts_with('S');
    let switches = switches(&status)?;
    let same = sleeps && voluntary_switches(pid, tid)? == switches;
    Some(if same { Seen::Waits { switches } } else { Seen::OnItsWay })
}

/// How long a thread has run.
pub(crate) fn run_time_ns(pid: i32, tid: i32) -> Option<u64> {
    // Time on a CPU, time of waiting for one, turns.
    let times = proc::read(&format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    times.split_ascii_whitespace().next()?.parse().ok()
}

/// How often a thread has given up its processor by itself.
pub(crate) fn voluntary_switches(pid: i32, tid: i32) -> Option<u64> {
    switches(&proc::read(&format!("/proc/{pid}/task/{tid}/status")).ok()?)
}

fn switches(status: &str) -> Option<u64> {
    proc::field(status, "voluntary_ctxt_switches")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn threads_that_share_a_socket_leave_it_as_it_was() {
        let (socket, other) = UnixDatagram::pair().unwrap();
        let set = Duration::from_secs(7);
        socket.set_read_timeout(Some(set)).unwrap();
        let nobody = Waiter { pid: i32::MAX, tid: i32::MAX, number: 0, ran_ns: None };
        let mut changes = SocketChanges::default();
        let mut shorten = |socket: &UnixDatagram, seconds| {
            let (socket, left) = (OwnedFd::from(socket.try_clone().unwrap()).into(), Duration::from_secs(seconds));
            changes.shorten(SocketWait { socket, send: false, left, waiter: nobody }).unwrap();
        };
        shorten(&socket, 2);
        shorten(&socket, 0);
        assert_eq!(socket.read_timeout().unwrap(), Some(Duration::from_secs(2)));
        shorten(&socket, 3);
        assert_eq!(socket.read_timeout().unwrap(), Some(Duration::from_secs(3)));
        // It has no time-out any more.
        shorten(&other, 1);
        assert!(changes.undo().unwrap().switches.is_empty());
        assert_eq!(socket.read_timeout().unwrap(), Some(set));
        assert_eq!(other.read_timeout().unwrap(), None);
    }
}

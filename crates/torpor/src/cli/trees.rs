//! Arguments of `checkpoint` and `restore`.

use std::path::PathBuf;

use clap::Args;

use super::Json;

pub(super) const CHECKPOINT_HELP: &str = "\
Examples:
  torpor checkpoint --pid 4711 --image /srv/image
  torpor checkpoint --pid 4711 --image /srv/image --leave-running

With --tcp-established, connections to the outside are captured, too; nftables drops their packets until the restore.

Exit codes: 0 done, 1 failed, 2 wrong command, 3 refused: the tree has something that cannot be captured, and all of it is
listed. If the exit code is not 0, the processes continue.";

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// Root of the process tree; its descendants are captured with it
    #[arg(long)]
    pub(crate) pid: i32,
    /// Directory for the image; created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) image: PathBuf,
    /// Leave the processes running
    #[arg(long)]
    pub(crate) leave_running: bool,
    /// Capture TCP connections to the outside; nftables drops their packets until the restore
    #[arg(long)]
    pub(crate) tcp_established: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(super) const RESTORE_HELP: &str = "\
Examples:
  torpor restore --image /srv/image
  torpor restore --image /srv/image --detach --json
  torpor restore --image /srv/image --lazy

The processes keep their ids. The root of the tree becomes a child of this command, which waits until it ends. Standard streams
that came from outside the tree are those of this command. With --detach, the command returns as soon as the processes run.

With --lazy, two more processes of torpor bring the memory that the processes do not need at once, and end when nothing is missing.
The image must stay until then.

Exit codes: the status of the root, or 128 plus the number of the signal that killed it; 0 with --detach. 1 failed, 2 wrong
command, 3 refused: a process id is in use, a file has changed, or this machine lacks what the image needs. If the restore
fails, it leaves no process behind, and the image is unchanged.";

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Directory of the image
    #[arg(long, value_name = "DIR")]
    pub(crate) image: PathBuf,
    /// Return as soon as the processes run
    #[arg(long)]
    pub(crate) detach: bool,
    /// Let the processes run before all of their memory is back
    #[arg(long)]
    pub(crate) lazy: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

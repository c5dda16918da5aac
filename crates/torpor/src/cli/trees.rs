//! Arguments of what is done with trees of plain processes.

use std::path::PathBuf;

use clap::Args;

use super::Json;

pub(super) const CHECKPOINT_HELP: &str = "\
Examples:
  torpor checkpoint --pid 4711 --image /srv/image
  torpor checkpoint --pid 4711 --image /srv/image --leave-running

With --tcp-established, connections to the outside come along: nftables keep their packets away until the restore.

Exit codes: 0 done, 1 failed, 2 wrong command, 3 refused: it has what cannot be captured, and all of it is listed. Where it
is not 0, the processes run on.";

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// The tree's first process; its children come along
    #[arg(long)]
    pub(crate) pid: i32,
    /// Directory for the image; made if it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) image: PathBuf,
    /// Let the processes run on
    #[arg(long)]
    pub(crate) leave_running: bool,
    /// Take TCP connections to the outside along: nftables keep their packets away until the restore
    #[arg(long)]
    pub(crate) tcp_established: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(super) const RESTORE_HELP: &str = "\
Examples:
  torpor restore --image /srv/image
  torpor restore --image /srv/image --detach --json

The processes have the ids that they had. The root is a child of this command, which waits for its end; its standard
streams are this command's if they came from outside of the tree. With --detach the command comes back when they run.

Exit codes: what the root ends with, or 128 and the number of the signal that killed it; with --detach 0. 1 failed, 2 wrong
command, 3 refused: a process id is taken, a file has changed, or this machine is not like the other. Where it is not
restored, nothing of it is left, and the image is as it was.";

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Directory of the image
    #[arg(long, value_name = "DIR")]
    pub(crate) image: PathBuf,
    /// Come back when the processes run
    #[arg(long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

//! Who owns the user namespace of an app.
//!
//! Some things the kernel counts for each user of a user namespace: inotify instances and watches, fanotify groups, queued
//! signals and POSIX timers, bytes of POSIX message queues, locked shared memory, namespaces. What a user of a namespace has is also charged to
//! the namespace's owner in the parent namespace, with the limits there (`fs.inotify.max_user_instances`, `user.max_*`,
//! RLIMIT_SIGPENDING of whoever made the namespace). The owner is the effective user of the process that makes it. With the
//! machine's root as the owner all apps and the machine itself share one account, and one app can use it up. So each app's
//! namespace belongs to the app's first id.
//!
//! That gives the app nothing: the owner has every capability in the namespace only as a user of the *parent* namespace, and no
//! process there has this id.
//!
//! Only the effective user changes:
//! - the real user stays root, so the kernel does not take RLIMIT_NPROC of this process as the namespace's limit;
//! - the user for files stays root: the first process has it, too, and needs it for what only the machine's root may (see [`first`](crate::first));
//! - capabilities stay, which some kernels ask for (`kernel.unprivileged_userns_clone`, AppArmor's restriction of user namespaces).

use std::io;

use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::{
    CapabilitiesSecureBits, capabilities_secure_bits, set_capabilities_secure_bits, set_thread_res_uid,
};
use torpor_linux::thread::{set_file_group, set_file_user};

use crate::confine::{hide_memory, not_dumpable};
use crate::error::{Doing, SetupError};
use crate::spec::IdRange;

/// The calling thread makes user namespaces that belong to an app, until [`Owner::leave`]. In a child that was made meanwhile
/// this means nothing.
#[must_use]
pub(crate) struct Owner {
    bits: CapabilitiesSecureBits,
}

impl Owner {
    /// Makes the first of `ids` the effective user of the calling thread, which is the machine's root.
    pub(crate) fn assume(ids: IdRange) -> Result<Self, SetupError> {
        let bits = capabilities_secure_bits().doing(|| "reading the secure bits".to_owned())?;
        set_capabilities_secure_bits(bits | CapabilitiesSecureBits::NO_SETUID_FIXUP)
            .doing(|| "keeping capabilities".to_owned())?;
        set_thread_res_uid(None, Uid::from_raw(ids.base), None)
            .doing(|| format!("making {} the effective user", ids.base))?;
        set_file_user(0).doing(|| "staying root for files".to_owned())?;
        // Each change of users resets it.
        hide_memory()?;
        Ok(Self { bits })
    }

    /// Makes root the effective user again.
    pub(crate) fn leave(self) -> Result<(), SetupError> {
        set_thread_res_uid(None, Uid::ROOT, None).doing(|| "becoming root again".to_owned())?;
        set_capabilities_secure_bits(self.bits).doing(|| "setting the secure bits".to_owned())?;
        hide_memory()
    }
}

/// Lets the calling thread, which is the machine's root, do `action` with files as user and group `id`; it keeps its capabilities.
/// In an id-mapped mount, only a user that the mapping has can make files.
pub(crate) fn with_files_of<T>(id: u32, action: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let bits = capabilities_secure_bits()?;
    set_capabilities_secure_bits(bits | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    let done = set_file_group(id).and_then(|()| set_file_user(id)).map_err(errno).and_then(|()| action());
    set_file_user(0).and_then(|()| set_file_group(0)).map_err(errno)?;
    set_capabilities_secure_bits(bits)?;
    // Each change of users resets it.
    not_dumpable()?;
    done
}

//! Giving up privileges, in the process that is about to become a program of the app.
//!
//! The order, and why it is this one:
//! 1. limits and stdio, while everything is still possible;
//! 2. the labels of the next program, which no later step takes away;
//! 3. the bounding set, which needs CAP_SETPCAP;
//! 4. the filter, which needs CAP_SYS_ADMIN unless no_new_privs is set (it would break set-user-id programs);
//! 5. groups, group, user: leaving root clears the effective and permitted sets;
//! 6. effective and permitted sets of those that stay root; inheritable and ambient sets are always empty;
//! 7. no_new_privs, if asked for.
//!
//! Credentials reset the dumpable flag, so it is taken away again at the end: until `execve` this process still has the
//! daemon's memory, and programs of the app may already run beside it.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::error::{Doing, SandboxError, SetupError};
use crate::labels::Labels;
use crate::seccomp::default_filter;
use crate::spec::{SandboxSpec, User};

/// Open files of a program: the soft limit that programs with `select` survive, the hard one that servers raise it to.
const OPEN_FILES: (u64, u64) = (1024, 524_288);
/// The highest number a capability may have.
const CAPABILITY_NUMBERS: u32 = 64;

/// What a program may do; the same for the initial process and for `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Confinement {
    /// The bounding set, and of root programs the permitted and effective sets.
    pub(crate) capabilities: Capabilities,
    /// Use the default system-call filter.
    pub(crate) seccomp: bool,
    /// Set-user-id programs gain nothing.
    pub(crate) no_new_privs: bool,
    /// Most open files, soft and hard; none: [`OPEN_FILES`].
    #[serde(default)]
    pub(crate) open_files: Option<u32>,
    #[serde(default)]
    pub(crate) labels: Labels,
}

impl Confinement {
    /// That of a sandbox's programs.
    pub(crate) fn of(spec: &SandboxSpec) -> Result<Self, SandboxError> {
        Ok(Self {
            capabilities: spec.security.capabilities()?,
            seccomp: spec.security.seccomp,
            no_new_privs: spec.security.no_new_privs,
            open_files: spec.limits.open_files,
            labels: spec.security.labels.clone(),
        })
    }

    /// Gives the calling process the hard limit that [`confine`] is to set: for the machine's root, because no other may raise
    /// it.
    pub(crate) fn allow_files(&self) -> Result<(), SetupError> {
        let Some(files) = self.open_files.map(u64::from) else { return Ok(()) };
        let now = getrlimit(Resource::Nofile);
        if now.maximum.is_none_or(|hard| hard >= files) {
            return Ok(());
        }
        setrlimit(Resource::Nofile, Rlimit { maximum: Some(files), ..now }).doing(|| {
            format!("raising the limit of open files to {files} (it needs CAP_SYS_RESOURCE and a `fs.nr_open` as high)")
        })
    }
}

/// Nobody may look into this process from now on.
pub(crate) fn hide_memory() -> Result<(), SetupError> {
    not_dumpable().doing(|| "making the set-up process not dumpable".to_owned())
}

pub(crate) fn not_dumpable() -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Cuts the calling process down to `confinement` and makes it `user`.
pub(crate) fn confine(confinement: &Confinement, user: &User) -> Result<(), SetupError> {
    limit_files(confinement.open_files)?;
    confinement.labels.set()?;
    drop_bounding(confinement.capabilities.set())?;
    if confinement.no_new_privs {
        set_no_new_privs(true).doing(|| "setting no_new_privs".to_owned())?;
    }
    if confinement.seccomp {
        torpor_linux::seccomp::install_filter(&default_filter(confinement.capabilities))
            .doing(|| "installing the system-call filter".to_owned())?;
    }
    let groups: Vec<Gid> = user.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_groups(&groups).doing(|| format!("setting groups {:?}", user.groups))?;
    set_thread_res_gid(gid, gid, gid).doing(|| format!("setting group id {}", user.gid))?;
    set_thread_res_uid(uid, uid, uid).doing(|| format!("setting user id {}", user.uid))?;
    clear_ambient_capability_set().doing(|| "clearing ambient capabilities".to_owned())?;
    let held = capabilities(None).doing(|| "reading capabilities".to_owned())?.permitted;
    keep_only(if user.uid == 0 { confinement.capabilities.set() & held } else { CapabilitySet::empty() })?;
    hide_memory()
}

/// Gives up every capability for good; programs that this process becomes get none back, root or not.
pub(crate) fn give_up_everything() -> Result<(), SetupError> {
    drop_bounding(CapabilitySet::empty())?;
    clear_ambient_capability_set().doing(|| "clearing ambient capabilities".to_owned())?;
    keep_only(CapabilitySet::empty())?;
    set_no_new_privs(true).doing(|| "setting no_new_privs".to_owned())?;
    hide_memory()
}

fn keep_only(set: CapabilitySet) -> Result<(), SetupError> {
    let sets = CapabilitySets { effective: set, permitted: set, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).doing(|| format!("setting capabilities {:#x}", set.bits()))
}

fn drop_bounding(keep: CapabilitySet) -> Result<(), SetupError> {
    for number in 0..CAPABILITY_NUMBERS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // EINVAL: the kernel has no capability of this number, nor of any above.
        let Ok(held) = capability_is_in_bounding_set(capability) else { break };
        if held && !keep.contains(capability) {
            remove_capability_from_bounding_set(capability).doing(|| format!("dropping capability {number}"))?;
        }
    }
    Ok(())
}

/// Hard limits of the programs that this process starts in sandboxes, by resource number (`getrlimit(2)`); `u64::MAX` is infinity.
/// `files`: the app's own limit of open files, if it has one.
pub fn hard_limits(files: Option<u32>) -> [u64; 16] {
    let mut limits = torpor_linux::limits::hard_limits();
    let of_files = &mut limits[torpor_linux::limits::OPEN_FILES];
    *of_files = files.map_or(OPEN_FILES.1, u64::from).min(*of_files);
    limits
}

/// Sets the limit of open files, as far as this process may: without CAP_SYS_RESOURCE it cannot be raised.
fn limit_files(files: Option<u32>) -> Result<(), SetupError> {
    let now = getrlimit(Resource::Nofile);
    let (soft, hard) = files.map_or(OPEN_FILES, |files| (files.into(), files.into()));
    let hard = now.maximum.map_or(hard, |now| now.min(hard));
    let limit = Rlimit { current: Some(soft.min(hard)), maximum: Some(hard) };
    setrlimit(Resource::Nofile, limit).doing(|| format!("limiting open files to {hard}"))?;
    let no_core = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
    setrlimit(Resource::Core, no_core).doing(|| "limiting core files to 0".to_owned())
}

//! Building an app's file system tree, in the first process of its pid namespace, with the machine's root privileges.
//!
//! ```text
//! private copy of the machine's mounts
//!   run_dir/root: staging tmpfs     layers/0 … (id-mapped clones), dev/, mask/, cgroup/
//!   run_dir/root: overlay of the layers and the upper directory
//! pivot_root, old root detached: only what was taken by descriptor before is left to be mounted
//!   /  /etc/hosts …  /proc  /sys  /dev  volumes  tmpfs  masks
//! ```
//!
//! Nothing of this is visible to the machine, and all of it ends with the mount namespace. Paths inside the app's files
//! are only resolved after the pivot, when nothing else is reachable any more. Later the process enters the app's user
//! namespace and copies the mounts into a namespace owned by it: the kernel locks them together, so even a program
//! with CAP_SYS_ADMIN inside cannot take a mask away.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, makedev};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};
use torpor_linux::mount::{MountChange, change_mount};

use crate::error::{Doing, SetupError};
use crate::mounts::{PLAIN, attach, clone_host, clone_mount, map_ids, new_file_system};
use crate::spec::SandboxSpec;
use crate::target::{Kind, Root};

/// Upper bound of `/dev`, as with container engines.
const DEV_SIZE: &str = "size=65536k";
/// Upper bound of `/dev/shm`, as with container engines.
const SHM_SIZE: &str = "65536k";
/// Files and directories of the kernel that programs must not read, as the OCI runtimes' defaults.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
/// What programs must not write, as the OCI runtimes' defaults.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// Devices: name, major and minor number.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// Symbolic links in `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// The group of terminals (`tty`) in every distribution.
const TTY_GROUP: u32 = 5;
/// Most pseudo-terminals of an app at a time: the machine has `kernel.pty.max` for all, 4,096 by default, 1,024 of them not for apps.
const MAX_TERMINALS: &str = "256";
/// Ports that need no privilege begin here: all, as container engines set it.
const PORT_START: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// Groups that may ping without privileges: all, as container engines set it; to be written inside the user namespace.
const PING_GROUPS: &str = "/proc/sys/net/ipv4/ping_group_range";

/// What was taken from the machine by descriptor before it went out of sight.
struct Taken {
    dev: OwnedFd,
    /// Mounts of the device nodes one by one; none where `dev` itself lets devices work.
    devices: Vec<(&'static str, OwnedFd)>,
    mask: OwnedFd,
    null: OwnedFd,
    volumes: Vec<(PathBuf, Kind, OwnedFd)>,
    cgroup: OwnedFd,
    cgroups: Vec<(String, OwnedFd)>,
}

/// Builds the tree and makes it the root. `ids` is the user namespace; `cgroups` what of them is seen inside. Gives back
/// the file of the groups that may ping, which means the groups of whoever writes to it.
pub(crate) fn build(
    spec: &SandboxSpec,
    ids: Option<BorrowedFd<'_>>,
    cgroups: &[(String, PathBuf)],
) -> Result<File, SetupError> {
    let base = spec.ids.map_or(0, |range| range.base);
    let everything = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", everything).doing(|| "cutting the mounts off from the machine's".to_owned())?;

    let place = spec.run_dir.join("root");
    let staging = stage(&place, base)?;
    let layers = attach_layers(spec, &staging, ids)?;
    let overlay = overlay(spec, &staging, &layers, base)?;
    let taken = take(spec, &staging, ids, cgroups)?;

    attach(&overlay, open_directory(&place)?.as_fd(), "the root file system")?;
    let root = open_directory(&place)?;
    rustix::process::fchdir(&root).doing(|| "entering the root file system".to_owned())?;
    rustix::process::pivot_root(".", ".").doing(|| "making it the root (pivot_root)".to_owned())?;
    unmount(".", UnmountFlags::DETACH).doing(|| "detaching the machine's root".to_owned())?;
    // The overlay has the layers by now; where they were mounted would be held in memory as long as the app exists.
    for name in layers {
        let path = format!("layers/{name}");
        let removed = rustix::fs::unlinkat(&staging, &path, AtFlags::REMOVEDIR);
        removed.doing(|| format!("removing staging directory {path}"))?;
    }
    rustix::process::chdir("/").doing(|| "entering the new root".to_owned())?;

    let root = Root::new(open_directory(Path::new("/"))?, base)?;
    let ping_groups = furnish(spec, &root, &taken, base)?;
    root.working_directory(&spec.program.cwd)?;
    if spec.read_only {
        let change = MountChange { read_only: true, ..MountChange::default() };
        change_mount(root.directory(), change).doing(|| "making the root file system read-only".to_owned())?;
    }
    Ok(ping_groups)
}

fn open_directory(path: &Path) -> Result<OwnedFd, SetupError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .doing(|| format!("opening {}", path.display()))
}

fn directory_in(base: &OwnedFd, path: &str, mode: u32) -> Result<OwnedFd, SetupError> {
    rustix::fs::mkdirat(base, path, Mode::from_raw_mode(mode)).doing(|| format!("making staging directory {path}"))?;
    rustix::fs::openat(base, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .doing(|| format!("opening staging directory {path}"))
}

fn own(base: &OwnedFd, path: &str, owner: u32) -> Result<(), SetupError> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(base, path, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)), flags)
        .doing(|| format!("giving staging {path} to id {owner}"))
}

/// Makes the staging file system with the devices.
fn stage(place: &Path, base: u32) -> Result<OwnedFd, SetupError> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let (_, size) = DEV_SIZE.split_at("size=".len());
    let tmpfs = new_file_system("tmpfs", &[("mode", "0755"), ("size", size)], attributes)?;
    attach(&tmpfs, open_directory(place)?.as_fd(), "the staging file system")?;
    let staging = open_directory(place)?;
    for name in ["layers", "mask", "cgroup"] {
        directory_in(&staging, name, 0o755)?;
    }
    let dev = directory_in(&staging, "dev", 0o755)?;
    own(&staging, "dev", base)?;
    for (name, major, minor) in DEVICES {
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(&dev, name, FileType::CharacterDevice, mode, makedev(major, minor))
            .and_then(|()| rustix::fs::chmodat(&dev, name, mode, AtFlags::empty()))
            .doing(|| format!("making device {name}"))?;
        own(&dev, name, base)?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, &dev, name).doing(|| format!("making link /dev/{name}"))?;
        // Postfix, for one, follows only links of root's.
        own(&dev, name, base)?;
    }
    for name in ["pts", "shm", "mqueue"] {
        directory_in(&dev, name, 0o755)?;
    }
    Ok(staging)
}

/// Mounts the layers side by side, seen with the owners that they have inside; gives back their names, topmost first.
fn attach_layers(
    spec: &SandboxSpec,
    staging: &OwnedFd,
    ids: Option<BorrowedFd<'_>>,
) -> Result<Vec<String>, SetupError> {
    let mut names = Vec::new();
    for (number, layer) in spec.layers.iter().enumerate() {
        let name = number.to_string();
        let target = directory_in(staging, &format!("layers/{name}"), 0o755)?;
        let clone = clone_host(layer, false)?;
        if let Some(ids) = ids {
            map_ids(&clone, ids, false, layer)?;
        }
        attach(&clone, target.as_fd(), &format!("layer {}", layer.display()))?;
        names.push(name);
    }
    if names.is_empty() {
        // Overlayfs wants at least one.
        directory_in(staging, "layers/empty", 0o755)?;
        names.push("empty".to_owned());
    }
    names.reverse();
    Ok(names)
}

/// The overlay of the layers and the upper directory, mounted nowhere yet. Device nodes in it do nothing.
fn overlay(spec: &SandboxSpec, staging: &OwnedFd, layers: &[String], base: u32) -> Result<OwnedFd, SetupError> {
    let upper = open_directory(&spec.upper)?;
    let work = open_directory(&spec.work)?;
    let stat = rustix::fs::fstat(&upper).doing(|| format!("examining {}", spec.upper.display()))?;
    if (stat.st_uid, stat.st_gid) != (base, base) && stat.st_uid == 0 {
        // A fresh upper directory becomes the root directory of the app, so it belongs to its root.
        rustix::fs::chownat(&upper, "", Some(Uid::from_raw(base)), Some(Gid::from_raw(base)), AtFlags::EMPTY_PATH)
            .doing(|| format!("giving {} to id {base}", spec.upper.display()))?;
        rustix::fs::chmod(&spec.upper, Mode::from_raw_mode(0o755))
            .doing(|| format!("opening {} to all", spec.upper.display()))?;
    }
    let directory = rustix::fs::openat(staging, "layers", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .doing(|| "opening the layers".to_owned())?;
    rustix::process::fchdir(&directory).doing(|| "entering the layers".to_owned())?;
    // By descriptor: paths may be longer than the call allows, and would be shown inside.
    let (upper_path, work_path) = (descriptor_path(&upper), descriptor_path(&work));
    let mut options: Vec<(&str, &str)> = layers.iter().map(|name| ("lowerdir+", name.as_str())).collect();
    options.push(("upperdir", &upper_path));
    options.push(("workdir", &work_path));
    new_file_system("overlay", &options, MountAttrFlags::MOUNT_ATTR_NODEV)
}

fn descriptor_path(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Opens a volume's place on the machine. Links are not followed: another app may be the one that has put one there, for its
/// volume may hold this one's path.
fn open_volume(host: &Path) -> Result<OwnedFd, SetupError> {
    let links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(CWD, host, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), links) {
        Err(Errno::LOOP) => Err(SetupError::VolumeLink { path: host.display().to_string() }),
        opened => opened.doing(|| format!("volume {}", host.display())),
    }
}

/// Takes everything by descriptor that is mounted after the machine's root has gone.
fn take(
    spec: &SandboxSpec,
    staging: &OwnedFd,
    ids: Option<BorrowedFd<'_>>,
    cgroups: &[(String, PathBuf)],
) -> Result<Taken, SetupError> {
    let staged = |path: &str| clone_mount(staging.as_fd(), Path::new(path), false);
    let mut volumes = Vec::new();
    for volume in &spec.volumes {
        let place = open_volume(&volume.host)?;
        let stat = rustix::fs::fstat(&place).doing(|| format!("volume {}", volume.host.display()))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let kind = if is_directory { Kind::Directory } else { Kind::File };
        let clone = clone_mount(place.as_fd(), Path::new(""), true)?;
        if let Some(ids) = ids {
            map_ids(&clone, ids, true, &volume.host)?;
        }
        let change =
            MountChange { read_only: volume.read_only, no_devices: true, recursive: true, ..MountChange::default() };
        change_mount(&clone, change).doing(|| format!("preparing volume {}", volume.host.display()))?;
        volumes.push((volume.inside.clone(), kind, clone));
    }
    let mut taken_cgroups = Vec::new();
    for (name, path) in cgroups {
        if !name.is_empty() {
            directory_in(staging, &format!("cgroup/{name}"), 0o755)?;
        }
        let clone = clone_host(path, false)?;
        change_mount(&clone, kernel_files()).doing(|| format!("preparing {}", path.display()))?;
        taken_cgroups.push((name.clone(), clone));
    }
    let dev = staged("dev")?;
    let mut devices = Vec::new();
    if ids.is_none() {
        // Here root inside can make nodes, if it has the capability: only those that are mounted are devices.
        for (name, ..) in DEVICES {
            devices.push((name, staged(&format!("dev/{name}"))?));
        }
        let change = MountChange { no_devices: true, ..MountChange::default() };
        change_mount(&dev, change).doing(|| "preparing /dev".to_owned())?;
    }
    let mask = staged("mask")?;
    change_mount(&mask, kernel_files()).doing(|| "preparing the mask".to_owned())?;
    Ok(Taken {
        dev,
        devices,
        null: staged("dev/null")?,
        cgroup: staged("cgroup")?,
        mask,
        volumes,
        cgroups: taken_cgroups,
    })
}

/// Read-only and good for nothing but reading.
fn kernel_files() -> MountChange<'static> {
    MountChange { read_only: true, no_suid: true, no_devices: true, no_exec: true, ..MountChange::default() }
}

/// Files of `/etc` that the machine writes, as far as they are wanted.
fn etc_files(spec: &SandboxSpec) -> impl Iterator<Item = (&'static str, &String)> {
    let files = [("hosts", &spec.etc.hosts), ("resolv.conf", &spec.etc.resolv_conf), ("hostname", &spec.etc.hostname)];
    files.into_iter().filter_map(|(name, content)| Some((name, content.as_ref()?)))
}

/// Mounts everything into the new root; gives back the file of the groups that may ping.
fn furnish(spec: &SandboxSpec, root: &Root, taken: &Taken, base: u32) -> Result<File, SetupError> {
    let at = |path: &str| {
        let found = root.existing(path)?;
        found.ok_or_else(|| SetupError::Target { path: path.to_owned(), found: "missing".to_owned() })
    };
    // Before anything is mounted: whatever the names lead to is one of the app's own files.
    for (name, content) in etc_files(spec) {
        root.write(Path::new("/etc").join(name).as_path(), content)?;
    }
    let proc = new_file_system("proc", &[], PLAIN)?;
    attach(&proc, root.system_directory("proc")?.as_fd(), "/proc")?;
    let sys = new_file_system("sysfs", &[], PLAIN | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    attach(&sys, root.system_directory("sys")?.as_fd(), "/sys")?;
    attach(&taken.dev, root.system_directory("dev")?.as_fd(), "/dev")?;
    for (name, device) in &taken.devices {
        let path = format!("/dev/{name}");
        attach(device, at(&path)?.as_fd(), &path)?;
    }

    let terminals = terminals(base)?;
    own(&terminals, ".", base)?;
    attach(&terminals, at("/dev/pts")?.as_fd(), "/dev/pts")?;
    let owner = base.to_string();
    let shared = [("mode", "1777"), ("size", SHM_SIZE), ("uid", owner.as_str()), ("gid", owner.as_str())];
    attach(&new_file_system("tmpfs", &shared, PLAIN)?, at("/dev/shm")?.as_fd(), "/dev/shm")?;
    let queues = new_file_system("mqueue", &[], PLAIN)?;
    own(&queues, ".", base)?;
    attach(&queues, at("/dev/mqueue")?.as_fd(), "/dev/mqueue")?;

    furnish_cgroups(root, taken)?;
    std::fs::write(PORT_START, "0").doing(|| format!("setting {PORT_START}"))?;
    let ping_groups = File::options().write(true).open(PING_GROUPS).doing(|| format!("opening {PING_GROUPS}"))?;
    furnish_volumes(spec, root, taken, base)?;
    mask(root, taken)?;
    Ok(ping_groups)
}

/// Terminals, which belong to the group `tty`, and are at most [`MAX_TERMINALS`]. Older kernels (6.12, say) take no group above `i32::MAX`, that of the apps
/// after some 30,000: there, terminals belong to the group of whoever opens them.
fn terminals(base: u32) -> Result<OwnedFd, SetupError> {
    let group = base + TTY_GROUP;
    let tty = group.to_string();
    let options = [("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS), ("gid", tty.as_str())];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    match new_file_system("devpts", &options, attributes) {
        Err(_) if i32::try_from(group).is_err() => new_file_system("devpts", &options[..3], attributes),
        made => made,
    }
}

fn furnish_cgroups(root: &Root, taken: &Taken) -> Result<(), SetupError> {
    let path = "/sys/fs/cgroup";
    let Some(place) = root.existing(path)? else { return Ok(()) };
    if let [(name, only)] = taken.cgroups.as_slice()
        && name.is_empty()
    {
        return attach(only, place.as_fd(), path);
    }
    attach(&taken.cgroup, place.as_fd(), path)?;
    for (name, group) in &taken.cgroups {
        let path = format!("{path}/{name}");
        if let Some(place) = root.existing(&path)? {
            attach(group, place.as_fd(), &path)?;
        }
    }
    let place = root.existing(path)?;
    let place = place.ok_or_else(|| SetupError::Target { path: path.to_owned(), found: "missing".to_owned() })?;
    change_mount(&place, kernel_files()).doing(|| format!("making {path} read-only"))
}

/// Volumes and memory file systems, parents before what lies in them.
fn furnish_volumes(spec: &SandboxSpec, root: &Root, taken: &Taken, base: u32) -> Result<(), SetupError> {
    let owner = base.to_string();
    let tmpfs = |size_bytes: u64| {
        let size = size_bytes.to_string();
        let options = [("mode", "1777"), ("size", size.as_str()), ("uid", owner.as_str()), ("gid", owner.as_str())];
        new_file_system("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)
    };
    let made = spec.tmpfs.iter().map(|mount| tmpfs(mount.size_bytes)).collect::<Result<Vec<_>, _>>()?;
    let made = spec.tmpfs.iter().zip(&made).map(|(mount, made)| (&mount.inside, Kind::Directory, made));
    let volumes = taken.volumes.iter().map(|(inside, kind, volume)| (inside, *kind, volume));
    let mut mounts: Vec<_> = made.chain(volumes).collect();
    mounts.sort_by_key(|(inside, ..)| inside.components().count());
    for (inside, kind, mount) in mounts {
        let target = root.mount_point(inside, kind)?;
        attach(mount, target.as_fd(), &inside.display().to_string())?;
    }
    Ok(())
}

/// Before Linux 6.15 only what is mounted somewhere can be cloned: so a cover's first place gets the cover itself.
fn mask(root: &Root, taken: &Taken) -> Result<(), SetupError> {
    let (mut mask_used, mut null_used) = (false, false);
    for path in MASKED {
        let Some(target) = root.existing(path)? else { continue };
        let stat = rustix::fs::fstat(&target).doing(|| format!("examining {path}"))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let (cover, used) = if is_directory { (&taken.mask, &mut mask_used) } else { (&taken.null, &mut null_used) };
        if std::mem::replace(used, true) {
            attach(&clone_mount(cover.as_fd(), Path::new(""), false)?, target.as_fd(), path)?;
        } else {
            attach(cover, target.as_fd(), path)?;
        }
    }
    for path in READ_ONLY {
        if root.existing(path)?.is_none() {
            continue;
        }
        let clone = clone_mount(CWD, Path::new(path), false)?;
        let change = MountChange { read_only: true, ..MountChange::default() };
        change_mount(&clone, change).doing(|| format!("preparing {path}"))?;
        if let Some(target) = root.existing(path)? {
            attach(&clone, target.as_fd(), path)?;
        }
    }
    Ok(())
}

//! Programs that decide about devices in a cgroup v2: `bpf(2)`, `BPF_PROG_TYPE_CGROUP_DEVICE`.
//!
//! A program that is attached to a group stays in force as long as the group exists, whoever attached it. It is run for each
//! `open` and `mknod` of a device node by a process in the group or below it, after the programs of the groups above.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// One instruction of extended BPF, as `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// Destination in the lower four bits, source in the upper ones.
    registers: u8,
    offset: i16,
    operand: i32,
}

/// What a program may do with some devices. A request is allowed if one rule allows all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRule {
    /// Which devices; none: both kinds.
    pub kind: Option<DeviceKind>,
    /// Major number; none: every one.
    pub major: Option<u32>,
    /// Minor number; none: every one.
    pub minor: Option<u32>,
    /// Making nodes (`mknod`).
    pub make: bool,
    /// Opening them to read and to write.
    pub open: bool,
}

/// Kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Block devices.
    Block,
    /// Character devices.
    Character,
}

/// `union bpf_attr`, as far as it is used here: the kernel takes the rest to be zero.
#[repr(C)]
#[derive(Default)]
struct Load {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct Attach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}

const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const CGROUP_DEVICE_PROGRAM: u32 = 15;
const CGROUP_DEVICE: u32 = 6;

/// `BPF_DEVCG_ACC_MKNOD`; reading is 2 and writing 4.
const MAKE: i32 = 1;
const OPEN: i32 = 2 | 4;

/// Registers: result, context and scratch, then what is asked for.
const R0: u8 = 0;
const R1: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

const fn instruction(code: u8, destination: u8, source: u8, offset: i16, operand: i32) -> Instruction {
    Instruction { code, registers: destination | source << 4, offset, operand }
}

/// `destination = *(u32 *)(context + offset)`
const fn load(destination: u8, offset: i16) -> Instruction {
    instruction(0x61, destination, R1, offset, 0)
}

/// 32-bit arithmetic: `destination = destination op operand`.
const fn arithmetic(code: u8, destination: u8, operand: i32) -> Instruction {
    instruction(code | 0x04, destination, 0, 0, operand)
}

const AND: u8 = 0x50;
const SHIFT_RIGHT: u8 = 0x70;
const MOVE: u8 = 0xb0;
/// `destination = source`, 32 bits.
const COPY: u8 = 0xbc;
/// 32-bit comparison with an operand: jump unless equal.
const UNLESS_EQUAL: u8 = 0x56;
const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);

fn program(rules: &[DeviceRule]) -> Vec<Instruction> {
    // struct bpf_cgroup_dev_ctx: access << 16 | kind, major, minor.
    let mut program = vec![
        load(KIND, 0),
        instruction(COPY, ACCESS, KIND, 0, 0),
        arithmetic(SHIFT_RIGHT, ACCESS, 16),
        arithmetic(AND, KIND, 0xffff),
        load(MAJOR, 4),
        load(MINOR, 8),
    ];
    for rule in rules {
        let mut tests = Vec::new();
        let kind = rule.kind.map(|kind| match kind {
            DeviceKind::Block => 1,
            DeviceKind::Character => 2,
        });
        for (register, wanted) in [(KIND, kind), (MAJOR, rule.major), (MINOR, rule.minor)] {
            tests.extend(wanted.map(|wanted| instruction(UNLESS_EQUAL, register, 0, 0, wanted.cast_signed())));
        }
        let allowed = if rule.make { MAKE } else { 0 } | if rule.open { OPEN } else { 0 };
        tests.push(instruction(COPY, R1, ACCESS, 0, 0));
        tests.push(arithmetic(AND, R1, !allowed));
        tests.push(instruction(UNLESS_EQUAL, R1, 0, 0, 0));
        let allow = [arithmetic(MOVE, R0, 1), EXIT];
        let end = tests.len() + allow.len();
        for (at, test) in tests.iter_mut().enumerate().filter(|(_, test)| test.code == UNLESS_EQUAL) {
            // To the first instruction of the next rule. A rule is ten instructions at most.
            test.offset = (end - at - 1) as i16;
        }
        program.extend(tests);
        program.extend(allow);
    }
    program.extend([arithmetic(MOVE, R0, 0), EXIT]);
    program
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: `attributes` is a `bpf_attr` of `command` as long as said, which the kernel only reads. What its addresses lead
    // to outlives the call (see the callers).
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as RawFd) }
}

/// A program that allows what `rules` say and refuses everything else with `EPERM`.
///
/// # Errors
/// `EPERM` without CAP_BPF and CAP_NET_ADMIN, `EINVAL` where the kernel has no such programs (CONFIG_CGROUP_BPF), `ENOSYS`
/// where it has no BPF.
pub fn device_program(rules: &[DeviceRule]) -> io::Result<OwnedFd> {
    let instructions = program(rules);
    let license = c"Apache-2.0";
    let mut name = [0; 16];
    name[..14].copy_from_slice(b"torpor_devices");
    let attributes = Load {
        program_type: CGROUP_DEVICE_PROGRAM,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        name,
        ..Load::default()
    };
    let program = bpf(PROG_LOAD, &attributes)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(program) })
}

/// Puts a program made by [`device_program`] in force for a group and those below it; it replaces the one that was attached
/// to the group so before.
///
/// # Errors
/// `EPERM` where a group above forbids it.
pub fn guard_devices(group: impl AsFd, program: impl AsFd) -> io::Result<()> {
    let number = |fd: &dyn AsRawFd| fd.as_raw_fd().unsigned_abs();
    let attributes = Attach {
        target: number(&group.as_fd()),
        program: number(&program.as_fd()),
        attach_type: CGROUP_DEVICE,
        flags: 0,
    };
    bpf(PROG_ATTACH, &attributes).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_programs() {
        let any = DeviceRule { kind: None, major: None, minor: None, make: true, open: false };
        let one =
            DeviceRule { kind: Some(DeviceKind::Block), major: Some(u32::MAX), minor: Some(1), make: true, open: true };
        for rules in [&[][..], &[any], &[any, one, one]] {
            device_program(rules).unwrap();
        }
    }

    #[test]
    fn a_failed_test_goes_on_with_the_next_rule() {
        let rule =
            DeviceRule { kind: Some(DeviceKind::Character), major: Some(1), minor: Some(3), make: true, open: true };
        let all = program(&[rule]);
        let last = all.len() - 2;
        for (at, test) in all.iter().enumerate().filter(|(_, test)| test.code == UNLESS_EQUAL) {
            assert_eq!(at + 1 + test.offset as usize, last);
        }
    }
}

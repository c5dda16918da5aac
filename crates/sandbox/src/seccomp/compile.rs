//! Turns ranges of system-call numbers into classic BPF: a binary search over the ranges, then the answer.

use torpor_linux::seccomp::Instruction;

use super::rules::{Answer, Condition};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

// Offsets in `struct seccomp_data`; little-endian, so an argument's low half comes first.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

fn instruction(code: u16, jump_true: u8, jump_false: u8, operand: u32) -> Instruction {
    Instruction { code, jump_true, jump_false, operand }
}

/// The filter for `ranges`: `(first number, answer)`, ascending, the first one 0.
pub(super) fn compile(ranges: &[(u32, Answer)]) -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCH),
        instruction(JUMP_EQUAL, 1, 0, ARCHITECTURE),
        instruction(RETURN, 0, 0, ENOSYS),
        instruction(LOAD, 0, 0, NUMBER),
    ];
    search(ranges, &mut program);
    program
}

fn search(ranges: &[(u32, Answer)], program: &mut Vec<Instruction>) {
    match ranges {
        [] => {}
        [(_, answer)] => decide(*answer, program),
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let mut below = Vec::new();
            search(low, &mut below);
            match u8::try_from(below.len()) {
                Ok(skip) => program.push(instruction(JUMP_AT_LEAST, skip, 0, high[0].0)),
                // Conditional jumps reach 255 instructions; this one goes on to an unconditional jump.
                Err(_) => {
                    program.push(instruction(JUMP_AT_LEAST, 0, 1, high[0].0));
                    program.push(instruction(JUMP, 0, 0, below.len() as u32));
                }
            }
            program.append(&mut below);
            search(high, program);
        }
    }
}

fn decide(answer: Answer, program: &mut Vec<Instruction>) {
    let result = |value| instruction(RETURN, 0, 0, value);
    match answer {
        Answer::Allow => program.push(result(ALLOW)),
        Answer::Eperm => program.push(result(EPERM)),
        Answer::Enosys => program.push(result(ENOSYS)),
        Answer::If(condition) => {
            program.push(instruction(LOAD, 0, 0, FIRST_ARGUMENT));
            match condition {
                Condition::HasNone(bits) => program.push(instruction(JUMP_ANY_BIT, 1, 0, bits)),
                Condition::IsNot(value) => program.push(instruction(JUMP_EQUAL, 1, 0, value)),
                Condition::In(values) => {
                    for (index, &value) in values.iter().enumerate() {
                        // To the allowing return, which follows the comparisons; the last one falls to the other.
                        let left = (values.len() - 1 - index) as u8;
                        program.push(instruction(JUMP_EQUAL, left, u8::from(left == 0), value));
                    }
                }
            }
            program.extend([result(ALLOW), result(EPERM)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::rules;
    use super::*;
    use crate::capabilities::Capabilities;
    use crate::spec::Security;

    /// Runs a filter as the kernel does.
    fn run(program: &[Instruction], architecture: u32, number: u32, argument: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let Instruction { code, jump_true, jump_false, operand } = program[at];
            at += 1;
            let mut branch = |holds: bool| at += usize::from(if holds { jump_true } else { jump_false });
            match code {
                LOAD => {
                    accumulator = match operand {
                        NUMBER => number,
                        ARCH => architecture,
                        FIRST_ARGUMENT => argument,
                        other => panic!("loads from {other}"),
                    }
                }
                JUMP_EQUAL => branch(accumulator == operand),
                JUMP_AT_LEAST => branch(accumulator >= operand),
                JUMP_ANY_BIT => branch(accumulator & operand != 0),
                JUMP => at += operand as usize,
                RETURN => return operand,
                other => panic!("unknown operation {other}"),
            }
        }
    }

    fn capabilities(add: &[&str]) -> Capabilities {
        let security = Security { cap_add: add.iter().map(|&name| name.to_owned()).collect(), ..Security::default() };
        security.capabilities().unwrap()
    }

    #[test]
    fn every_number_gets_the_answer_of_its_range() {
        for add in [&[][..], &["ALL"][..]] {
            let ranges = rules(capabilities(add));
            let program = compile(&ranges);
            assert!(program.len() < 400, "{} instructions", program.len());
            for number in (0..1000).chain([0x3fff_ffff, 0x4000_0000, 0x4000_0001, u32::MAX]) {
                let answer = ranges.iter().rev().find(|(first, _)| *first <= number).unwrap().1;
                let expected = match answer {
                    Answer::Allow => ALLOW,
                    Answer::Eperm => EPERM,
                    Answer::Enosys => ENOSYS,
                    Answer::If(_) => continue,
                };
                assert_eq!(run(&program, ARCHITECTURE, number, 0), expected, "call {number} with {add:?}");
            }
        }
    }

    #[test]
    fn arguments_decide() {
        let program = compile(&rules(capabilities(&[])));
        let answer = |call: libc::c_long, argument| run(&program, ARCHITECTURE, call as u32, argument);
        assert_eq!(answer(libc::SYS_clone, libc::SIGCHLD as u32), ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWCGROUP, libc::CLONE_NEWNET] {
            assert_eq!(answer(libc::SYS_clone, flag as u32 | 17), EPERM);
        }
        assert_eq!(answer(libc::SYS_socket, libc::AF_INET as u32), ALLOW);
        assert_eq!(answer(libc::SYS_socket, libc::AF_VSOCK as u32), EPERM);
        for allowed in [0, 8, 0x2_0000, 0x2_0008, u32::MAX] {
            assert_eq!(answer(libc::SYS_personality, allowed), ALLOW);
        }
        assert_eq!(answer(libc::SYS_personality, 0x4_0000), EPERM);
    }

    #[test]
    fn what_matters_is_denied() {
        let program = compile(&rules(capabilities(&[])));
        let answer = |call: libc::c_long| run(&program, ARCHITECTURE, call as u32, 0);
        for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_clone3]
        {
            assert_eq!(answer(call), ENOSYS);
        }
        for call in [
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_userfaultfd,
            libc::SYS_kexec_load,
            libc::SYS_open_by_handle_at,
            libc::SYS_perf_event_open,
            libc::SYS_init_module,
        ] {
            assert_eq!(answer(call), EPERM, "call {call}");
        }
        assert_eq!(run(&program, 0x4000_0003, 1, 0), ENOSYS, "32-bit calls");
        let admin = compile(&rules(capabilities(&["SYS_ADMIN"])));
        assert_eq!(run(&admin, ARCHITECTURE, libc::SYS_mount as u32, 0), ALLOW);
        assert_eq!(run(&admin, ARCHITECTURE, libc::SYS_clone as u32, libc::CLONE_NEWNS as u32), ALLOW);
    }
}

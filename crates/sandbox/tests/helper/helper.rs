//! Stands for the torpor binary in the tests of sandboxes: handles its two hidden subcommands.

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(torpor_sandbox::SETUP_COMMAND) => torpor_sandbox::setup_main(),
        Some(torpor_sandbox::EXEC_COMMAND) => torpor_sandbox::exec_main(),
        other => panic!("unknown subcommand {other:?}"),
    }
}

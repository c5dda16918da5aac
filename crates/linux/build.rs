//! Builds the freestanding init of the sandboxes (`init/init.rs`) with the compiler that builds this crate.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Where the init is linked: beside the stack of a program started without address randomisation, so that one page
/// table covers both. Other architectures take the customary address.
fn base(architecture: &str) -> &'static str {
    match architecture {
        "x86_64" => "0x7fffffe00000",
        _ => "0x400000",
    }
}

fn main() {
    println!("cargo:rerun-if-changed=init/init.rs");
    println!("cargo:rerun-if-changed=init/init.ld");
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let output = PathBuf::from(variable("OUT_DIR")).join("sandbox-init");
    let target = variable("TARGET");
    let mut command = Command::new(variable("RUSTC"));
    command
        .args(["--crate-name", "sandbox_init", "--crate-type", "bin", "--edition", "2024", "--target", &target])
        .args(["-C", "panic=abort", "-C", "opt-level=s", "-C", "relocation-model=static", "-C", "strip=symbols"])
        .args(["-C", "force-unwind-tables=no", "-C", "debuginfo=0", "-C", "overflow-checks=off"]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        command.arg(format!("-Clinker={linker}"));
    }
    for argument in ["-nostdlib", "-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-z,norelro"] {
        command.arg(format!("-Clink-arg={argument}"));
    }
    command.arg(format!("-Clink-arg=-Wl,--defsym=BASE={}", base(&variable("CARGO_CFG_TARGET_ARCH"))));
    let script = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("init/init.ld");
    command.arg(format!("-Clink-arg=-Wl,-T,{}", script.display())).arg("-o").arg(&output).arg("init/init.rs");
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "the sandbox's init did not compile: {command:?}");
}

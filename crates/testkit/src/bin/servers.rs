//! Makes test programs by hand: `servers` builds all and says where they are, `servers lighttpd OUT.tar` makes the demo's tarball.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use torpor_testkit::error::chain;
use torpor_testkit::servers;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["lighttpd", out] => servers::make_lighttpd_tarball(Path::new(out)).map_err(Box::from),
        [] => all(),
        _ => Err("usage: servers [lighttpd OUT.tar]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("servers: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn all() -> Result<(), Box<dyn Error>> {
    for program in servers::programs()? {
        let megabytes = std::fs::metadata(&program.tarball)?.len() >> 20;
        println!("{:<10} {megabytes:>4} MiB  {}", program.name, program.tarball.display());
    }
    Ok(())
}

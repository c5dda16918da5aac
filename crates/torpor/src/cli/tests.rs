//! The lines that are read and refused.

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    let matches = definition().try_get_matches_from(line.split_whitespace())?;
    Cli::from_arg_matches(&matches)
}

#[test]
fn the_definition_is_sound() {
    definition().debug_assert();
}

#[test]
fn reads_the_lines_of_the_manual() {
    for line in [
        "torpor up --config /etc/torpor.toml",
        "torpor down",
        "torpor doctor --json",
        "torpor run --name web -p 8080:80 app.tar -- /usr/sbin/lighttpd -D -f /etc/lighttpd/lighttpd.conf",
        "torpor run -f app.toml",
        "torpor run --oci-layout dir --memory 64M --cpus 0.5 --open-files 99 --restart always --idle-after 30s --wake-on data",
        "torpor run app.tar -v /a:/b:ro --tmpfs /run:1M -p [::1]:53:53/udp --ignore 10.0.0.0/8 --cap-drop ALL",
        "torpor ps --json",
        "torpor ps -o name,state,addresses",
        "torpor explain -v web",
        "torpor logs -f -n 3 web",
        "torpor exec -it web -- /bin/sh -c true",
        "torpor sleep web",
        "torpor sleep --level warm web --json",
        "torpor run app.tar --warm-after 5m",
        "torpor run app.tar --warm-after never --no-sleep",
        "torpor exec web ls -l",
        "torpor stop -t 3s web",
        "torpor rm -f web db",
        "torpor events -f --json",
        "torpor stats",
        "torpor stats web",
        "torpor images",
        "torpor images --json",
        "torpor images ls --json",
        "torpor images load debian d.tar",
        "torpor images pull localhost:5000/d:1 --name d",
        "torpor images rm d",
        "torpor image export web -o web.torpor --json",
        "torpor image export web --no-sleep",
        "torpor image import - --name copy -p 81:80 -p 53:53/udp --trust --json",
        "torpor image import web.torpor --no-publish",
        "torpor image import web.torpor --yes --json",
        "torpor clef deploy counter counter.lua --key path:/{key} -p 8080 --durability sleep --memory 4M --idle-after 5s",
        "torpor clef ls --json",
        "torpor clef ls counter",
        "torpor clef call counter/ann add -2 [1] --json",
        "torpor clef sleep counter/ann",
        "torpor clef rm -f counter",
        "torpor clef stats counter",
        "torpor clef stats counter/ann --json",
        "torpor clef inspect counter/ann --json",
        "torpor clef repl counter/ann --write -e -1",
        "torpor clef fork counter/ann ann2",
        "torpor clef export counter/ann -o - --force",
        "torpor clef import counter/ann -",
        "torpor clef wake counter/ann",
        "torpor clef new a.lua",
        "torpor clef events -f -n 3 counter",
        "torpor clef pin counter",
        "torpor clef upgrade counter dir",
        "torpor clef logs -f counter",
        "torpor completion bash",
        "torpor --socket /tmp/s ps",
        "torpor ps --socket /tmp/s",
    ] {
        parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn keeps_the_flags_of_the_command_apart() {
    let Command::Exec(exec) = parse("torpor exec web ls -i -t").unwrap().command else { panic!("not exec") };
    assert_eq!(exec.command, ["ls", "-i", "-t"]);
    assert!(!exec.interactive && !exec.tty);
    let Command::Run(run) = parse("torpor run a.tar -- prog -p x").unwrap().command else { panic!("not run") };
    assert_eq!(run.command, ["prog", "-p", "x"]);
    assert!(run.ports.is_empty());
}

#[test]
fn refuses_what_makes_no_sense() {
    for line in [
        "torpor",
        "torpor frobnicate",
        "torpor run app.tar -p 80",
        "torpor run app.tar --memory lots",
        "torpor run app.tar --restart maybe",
        "torpor run app.tar --warm-after later",
        "torpor sleep web --level cold",
        "torpor run --oci-layout --docker-archive x",
        "torpor exec web",
        "torpor image export web --json",
        "torpor image import",
        "torpor image import x -p 81:80 --no-publish",
        "torpor rm",
        "torpor ps --socket /s --address 127.0.0.1:1",
        "torpor ps -o name,colour",
        "torpor checkpoint --pid 1 --image x --socket /s",
        "torpor clef dev x --key query:k -p 1 --socket /s",
        "torpor clef deploy x x.lua --key query:k",
        "torpor clef call x/a f nothing",
        "torpor clef dev x.lua --key lua -p 1 --memory 65M",
        "torpor clef deploy x x.lua --key lua -p 1 --memory 1k",
        "torpor clef deploy x x.lua --key lua -p 1 --awake 0",
        "torpor clef deploy x x.lua --key lua -p 1 --cpu 0s",
        "torpor clef deploy x x.lua --key lua -p 1 --host-memory 8M",
        "torpor clef deploy x x.lua --key path:/{id} -p 1",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

//! Apps that share volumes, and what one of them does to the mounts of the other.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;
mod support;

use std::fs;
use std::os::unix::fs::symlink;

use python::{Place, said};

const VICTIM: &str = "idle.py --print /private/key";

/// An app that shares two volumes with another one, one in the other, does not place the inner one over the other's files.
#[test]
fn a_link_of_another_app_does_not_place_a_volume() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let [outer, inner, private] = ["outer", "inner", "private"].map(|name| place.directory(name));
    fs::create_dir(outer.join("in")).unwrap();
    fs::write(private.join("key"), "private").unwrap();
    let volume = |host: &std::path::Path, inside: &str| format!("{}:{inside}", host.display());
    let (m, private) = (volume(&outer, "/m"), volume(&private, "/private"));
    let within = volume(&inner, "/m/in");
    place.run("victim", VICTIM, &["-v", &m, "-v", &within, "-v", &private]);
    place.run("scratch", VICTIM, &["-v", &m, "--tmpfs", "/m/in", "-v", &private]);
    for app in ["victim", "scratch"] {
        place.wait_log(app, "private\nup");
        support::warm(&place.daemon, app);
    }
    // It makes its mount point in the shared volume a link to a directory of the other apps.
    place.run("misplacer", "replace_by_link.py /o/in /private", &["-v", &volume(&outer, "/o")]);
    place.wait_log("misplacer", "linked");
    // It would start again with the machine, and link again.
    place.daemon.ok(&["rm", "-f", "misplacer"]).unwrap();
    // Everything is mounted anew.
    place.daemon.power_off().unwrap();
    place.daemon.up().unwrap();
    let refused = |command: &str, app: &str| {
        let output = place.daemon.cli(&[command, app]).unwrap();
        let text = said(&output);
        let link = "`/m/in` is a symbolic link on what is mounted at `/m`";
        assert!(!output.status.success() && text.contains(link), "{command} {app}: {text}");
    };
    for app in ["victim", "scratch"] {
        refused("wake", app);
    }
    let link = outer.join("in");
    fs::remove_file(&link).unwrap();
    fs::create_dir(&link).unwrap();
    for app in ["victim", "scratch"] {
        // Nothing is lost: what was asleep goes on.
        place.daemon.ok(&["wake", app]).unwrap();
        assert_eq!(place.daemon.ok(&["logs", app]).unwrap(), "private\nup\n");
        assert_eq!(place.daemon.ok(&["exec", app, "--", "/bin/cat", "/private/key"]).unwrap(), "private");
    }
    fs::rename(&link, outer.join("was")).unwrap();
    symlink("/private", &link).unwrap();
    for app in ["victim", "scratch"] {
        refused("restart", app);
    }
    assert_eq!(fs::read_dir(&inner).unwrap().count(), 0);
}

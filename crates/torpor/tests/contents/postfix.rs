//! Postfix with mails in its queue: each is delivered once, whatever happens between.
//!
//! Its configuration delivers to now.test at once, to slow.test one mail a second, and to later.test when there is a place
//! for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use torpor_testkit::client::smtp::Smtp;
use torpor_testkit::conformance::Between;
use torpor_testkit::wait::eventually_ok;

use crate::support::{PATIENCE, rounds, say};
use crate::{Server, assert_ended};

/// Mails for slow.test in a round.
const SLOW: u32 = 5;

struct Mails {
    server: Server,
    /// Those that Postfix has said it has.
    accepted: Vec<u32>,
    /// Number of the next.
    next: u32,
}

impl Mails {
    fn begin(&mut self, to: &str) -> (Smtp, u32) {
        let mut smtp = self.server.connect(Smtp::open);
        self.next += 1;
        self.server.well(smtp.begin(&format!("to@{to}.test"), &format!("mail {};", self.next)));
        (smtp, self.next)
    }

    fn send(&mut self, to: &str) {
        let (smtp, number) = self.begin(to);
        self.server.well(smtp.end());
        self.accepted.push(number);
    }

    /// Below the app's own files.
    fn upper(&self) -> PathBuf {
        let apps = self.server.daemon.data_dir().join("apps");
        let app = fs::read_dir(apps).unwrap().next().unwrap().unwrap().path();
        app.join("upper")
    }

    /// Mails in the queue: those that wait for the first time, and those that were put off.
    fn queued(&self) -> (usize, usize) {
        let of = |queue: &str| files(&self.upper().join("var/spool/postfix").join(queue)).len();
        (of("incoming") + of("active"), of("deferred"))
    }

    /// How often each mail was delivered.
    fn delivered(&self) -> BTreeMap<u32, u32> {
        let mut found = BTreeMap::new();
        for file in files(&self.upper().join("srv/mail")) {
            // Finished: the others are being written.
            if file.parent().is_some_and(|folder| folder.ends_with("new")) {
                let text = fs::read_to_string(&file).unwrap();
                let number = text.split_once("\nmail ").and_then(|(_, rest)| rest.split_once(';')?.0.parse().ok());
                *found.entry(number.unwrap_or_else(|| panic!("{}: {text}", file.display()))).or_default() += 1;
            }
        }
        found
    }

    fn exec(&self, command: &[&str]) {
        self.server.well(self.server.daemon.ok(&[&["exec", "postfix", "--"], command].concat()));
    }
}

/// Files at any depth.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn through(between: Between, rounds: u64) {
    let mut mails = Mails { server: Server::start("postfix", between), accepted: Vec::new(), next: 0 };
    mails.server.connect(Smtp::open);
    let (mut waited, mut put_off) = (0, 0);
    for _ in 0..rounds {
        for to in ["now", "later"].into_iter().chain(["slow"; SLOW as usize]) {
            mails.send(to);
        }
        let (half, number) = mails.begin("now");
        mails.server.sleep();
        let (new, old) = mails.queued();
        (waited, put_off) = (waited + new, put_off + old);
        match between {
            Between::Nothing => {
                mails.server.well(half.end());
                mails.accepted.push(number);
            }
            Between::PowerCut => assert_ended(half.end()),
        }
    }
    assert!(waited > 0 && put_off > 0, "its queue was empty: {waited} {put_off}");
    // Now there is a place for those that were put off; it sleeps again and again while they are delivered.
    mails.exec(&["/bin/chmod", "777", "/srv/mail/shut"]);
    mails.exec(&["/usr/sbin/postqueue", "-c", "/etc/servers", "-f"]);
    let wanted: BTreeMap<u32, u32> = mails.accepted.iter().map(|number| (*number, 1)).collect();
    let done = eventually_ok("every mail is delivered", PATIENCE * 4, || {
        let found = mails.delivered();
        if found.len() >= wanted.len() && mails.queued() == (0, 0) {
            return Ok(found);
        }
        mails.server.sleep();
        mails.server.connect(Smtp::open);
        Err(format!("{} of {} are, queued {:?}", found.len(), wanted.len(), mails.queued()))
    });
    let found = mails.server.well(done);
    assert_eq!(found, wanted, "mails are lost, or delivered twice");
    let log = mails.server.well(mails.server.daemon.ok(&["logs", "postfix"]));
    assert_eq!(log.matches("daemon started").count(), 1, "{log}");
    say(&format!(
        "postfix, {between:?}: {} mails, each delivered once; when it slept {waited} waited and {put_off} were put off",
        wanted.len()
    ));
}

#[test]
fn mails_wait_in_postfix_while_it_is_warm() {
    through(Between::Nothing, rounds(4, 40));
}

#[test]
fn mails_wait_in_postfix_over_power_cuts() {
    through(Between::PowerCut, rounds(3, 20));
}

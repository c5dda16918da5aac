//! clamd, whose signatures are nowhere but in its memory.

use torpor_testkit::client::Session;
use torpor_testkit::client::clamav::{Clam, FOUND, MATCHED};
use torpor_testkit::conformance::Between;

use crate::support::{rounds, say};
use crate::{Server, assert_ended};

/// Starts it and takes its database away: one that started anew would find nothing, and end.
fn start(between: Between) -> (Server, Clam) {
    let server = Server::start("clamav", between);
    let clam = server.connect(Clam::open);
    server.well(server.daemon.ok(&["exec", "clamav", "--", "/bin/rm", "/etc/servers/signatures/servers.ndb"]));
    (server, clam)
}

#[test]
fn clamav_goes_warm_within_a_stream() {
    let (mut server, mut clam) = start(Between::Nothing);
    let (first, second) = MATCHED.split_at(MATCHED.len() / 2);
    let rounds = rounds(6, 60);
    for round in 0..rounds {
        let pieces = [format!("round {round} {first}").into_bytes(), second.as_bytes().to_vec()];
        let answer = clam.scan_pieces(&[&pieces[0], &pieces[1]], || server.sleep());
        assert_eq!(server.well(answer), FOUND);
        server.well(clam.step());
    }
    say(&format!("clamav: {rounds} streams, twice warm within each"));
}

#[test]
fn clamav_comes_back_from_power_cuts() {
    let (mut server, mut clam) = start(Between::PowerCut);
    let rounds = rounds(3, 30);
    for _ in 0..rounds {
        server.sleep();
        assert_ended(clam.step());
        clam = server.connect(Clam::open);
        server.well(clam.step());
    }
    say(&format!("clamav: {rounds} power cuts, its signatures in memory only"));
}

//! Every file of every corpus, as an ordinary test; cut off and with bytes changed, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use torpor_fuzz::{TARGETS, can_pull, corpus};
use torpor_testkit::skip;

#[test]
fn registries_can_be_asked() {
    if !can_pull() {
        skip!("answers of registries need root, network namespaces and iproute2");
    }
}

#[test]
fn every_corpus_is_read() {
    let mut read = 0;
    for target in TARGETS {
        let mut files: Vec<_> = fs::read_dir(corpus(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        for file in files {
            let bytes = fs::read(&file).unwrap();
            (target.run)(&bytes);
            // A neighbourhood of each, the same every time.
            for at in (0..bytes.len()).step_by(bytes.len() / 16 + 1) {
                (target.run)(&bytes[..at]);
                let mut changed = bytes.clone();
                changed[at] ^= 1 << (at % 8);
                (target.run)(&changed);
            }
            read += 1;
        }
    }
    assert!(read >= TARGETS.len());
}

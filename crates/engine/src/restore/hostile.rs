//! Images and plans made by an enemy: what is read of them is whole, or refused; making a plan of any tree that was read ends
//! with a plan or an error.

use std::path::PathBuf;

use torpor_image::tree::Tree;
use torpor_image::{Header, PAGE};

use super::plan::{LIMITS_BYTES, Plan, key};
use super::{compile, load};

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures/complete-2.image")
}

/// Numbers that are the same in every run (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    /// One to four changes: a bit, a byte, eight bytes, a piece from elsewhere, a cut.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let (length, at) = (bytes.len(), self.below(bytes.len()));
            match self.below(8) {
                0..3 => bytes[at] ^= 1 << self.below(8),
                3 | 4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                5 => {
                    let from = self.below(length);
                    let piece = bytes[from..length.min(from + 40)].to_vec();
                    bytes.splice(at..length.min(at + piece.len()), piece);
                }
                6 => {
                    let word = [u64::MAX, u64::MAX >> 1, 1 << 47, PAGE][self.below(4)].to_le_bytes();
                    bytes.splice(at..length.min(at + 8), word);
                }
                _ if self.below(4) == 0 => bytes.truncate(at.max(1)),
                _ => {}
            }
        }
    }
}

fn parts() -> (Header, Vec<u8>) {
    let image = std::fs::read(golden()).expect("the fixture is part of the repository");
    let header = Header::decode(&image, image.len() as u64).expect("a golden image");
    let state = image[header.state_offset() as usize..header.plan_offset() as usize].to_vec();
    (header, state)
}

/// Everything that the restorer would take from it lies within the plan.
fn look_at(plan: &mut Plan) {
    assert!(plan.data.len().is_multiple_of(PAGE as usize));
    for task in plan.tasks.clone() {
        assert_eq!(plan.steps(&task).count() as u64, (task.end - task.first).div_ceil(64));
        assert_eq!(plan.limits(&task).map(|found| found.len()), (task.limits != 0).then_some(LIMITS_BYTES));
    }
}

#[test]
fn a_golden_image_is_loaded_and_its_foreign_plan_made_again() {
    let loaded = load(&golden()).unwrap();
    assert_eq!(loaded.plan.key, key(loaded.header.state_checksum));
    let mut ids: Vec<i32> = loaded.plan.tasks.iter().map(|task| task.tid).collect();
    ids.sort_unstable();
    assert_eq!(ids, [40, 41, 42, 43]);
    assert!(super::check::tasks(&loaded.tree, &loaded.plan));
    let again = Plan::decode(&loaded.plan.encode(), loaded.plan.key).unwrap();
    assert_eq!(again, loaded.plan);
}

#[test]
fn hostile_plans_are_refused_or_whole() {
    let (header, state) = parts();
    let tree = Tree::read(&state, &header).unwrap();
    let plan = compile::plan(&tree, 9).unwrap();
    let good = plan.encode();
    // Those of the head and the tasks matter: the steps are judged by nobody.
    let head = good.len() - plan.data.len();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..4000 {
        let mut bad = good[..head].to_vec();
        numbers.change(&mut bad);
        bad.extend_from_slice(&good[head..]);
        if let Some(mut plan) = Plan::decode(&bad, 9) {
            look_at(&mut plan);
            super::check::tasks(&tree, &plan);
        }
    }
}

#[test]
fn a_plan_of_a_hostile_tree_is_made_or_refused() {
    let (header, state) = parts();
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let mut read = 0;
    for _ in 0..4000 {
        let mut bad = state.clone();
        numbers.change(&mut bad);
        let Ok(tree) = Tree::decode(&bad, header.pages()) else { continue };
        read += 1;
        if let Ok(mut plan) = compile::plan(&tree, 9) {
            look_at(&mut plan);
        }
    }
    assert!(read > 200, "only {read} trees were read");
}

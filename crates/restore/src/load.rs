//! Reading a complete image: state and plan.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use torpor_image::tree::Tree;
use torpor_image::{FormatError, Header, Kind, checksum};

use torpor_planner::allowed;
use torpor_planner::compile::{self, CompileError};
use torpor_planner::plan::{self, Plan};

use super::RestoreError;
use torpor_store::header;

/// An image that was read.
pub struct Loaded {
    /// Its file.
    pub file: File,
    /// Its header.
    pub header: Header,
    /// Its state.
    pub tree: Tree,
    /// Its plan, or one made anew.
    pub plan: Plan,
}

/// Reads the complete image at `path`.
pub fn load(path: &Path) -> Result<Loaded, RestoreError> {
    let wrong = |error| RestoreError::Read(path.to_owned(), error);
    let format = |error| RestoreError::Format(path.to_owned(), error);
    let (file, header) = header::open(path).map_err(|error| error.either(wrong, format))?;
    if header.kind != Kind::Complete {
        return Err(RestoreError::Dozing(path.to_owned()));
    }
    let length = header.state_bytes.saturating_add(header.plan_bytes);
    if length > header::MOST_STATE_BYTES {
        return Err(format(FormatError::Invalid("length of the state")));
    }
    let mut body = vec![0; length as usize];
    file.read_exact_at(&mut body, header.state_offset()).map_err(wrong)?;
    let (state, plan) = body.split_at(header.state_bytes as usize);
    let tree = Tree::read(state, &header).map_err(format)?;
    if tree.processes.is_empty() {
        return Err(CompileError::Empty.into());
    }
    let key = plan::key(header.state_checksum);
    let stored = (checksum(plan) == header.plan_checksum).then(|| Plan::decode(plan, key)).flatten();
    let plan = match stored.filter(|plan| allowed::is_of(&tree, plan) && allowed::is_allowed(&tree, plan)) {
        Some(plan) => plan,
        None => compile::plan(&tree, key)?,
    };
    Ok(Loaded { file, header, tree, plan })
}

/// Makes the plan of a tree that has been changed since it was read, from the image with this header.
pub fn plan_again(tree: &Tree, header: &Header) -> Result<Plan, CompileError> {
    compile::plan(tree, plan::key(header.state_checksum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_golden_image_is_loaded_and_a_foreign_plan_is_replaced() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures/complete-3.image");
        let loaded = load(&golden).unwrap();
        assert_eq!(loaded.plan.key, plan::key(loaded.header.state_checksum));
        let mut ids: Vec<i32> = loaded.plan.tasks.iter().map(|task| task.tid).collect();
        ids.sort_unstable();
        assert_eq!(ids, [40, 41, 42, 43]);
        assert!(allowed::is_of(&loaded.tree, &loaded.plan));
        let again = Plan::decode(&loaded.plan.encode(), loaded.plan.key).unwrap();
        assert_eq!(again, loaded.plan);
    }
}

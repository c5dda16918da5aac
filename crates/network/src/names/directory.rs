//! Which apps there are, by name, and who may find whom.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// An app, as far as names are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The networks that it has joined.
    pub join: Vec<String>,
    /// Whether it may reach the outside, and so ask for names there.
    pub outgoing: bool,
}

/// All apps of a worker, by index. Shared by those who add and remove apps and the server.
#[derive(Debug, Default)]
pub struct Directory(RwLock<HashMap<u32, Member>>);

impl Directory {
    /// From now on this app is found.
    pub fn insert(&self, index: u32, member: Member) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(index, member);
    }

    /// From now on it is not.
    pub fn remove(&self, index: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&index);
    }

    /// The name of the app with this index.
    pub fn name(&self, index: u32) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&index).map(|member| member.name.clone())
    }

    /// Whether the app may ask for names outside.
    pub(super) fn may_ask_outside(&self, asker: u32) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&asker).is_some_and(|asker| asker.outgoing)
    }

    /// The app that `asker` finds as `name`, or as `name` in `network`; names in lower case.
    pub(super) fn find(&self, asker: u32, name: &str, network: Option<&str>) -> Option<u32> {
        let members = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let joined = &members.get(&asker)?.join;
        let shares = |member: &Member| {
            let common = |other: &&String| network.is_none_or(|network| *other == network) && joined.contains(other);
            member.join.iter().any(|other| common(&other))
        };
        members.iter().find(|(_, member)| member.name == name && shares(member)).map(|(index, _)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_askers_networks_are_found() {
        let directory = Directory::default();
        for (index, name, join) in
            [(1, "web", &["a", "b"][..]), (2, "db", &["a"]), (3, "other", &["c"]), (4, "alone", &[])]
        {
            let join = join.iter().map(|name| (*name).to_owned()).collect();
            directory.insert(index, Member { name: name.to_owned(), join, outgoing: false });
        }
        assert_eq!(directory.find(1, "db", None), Some(2));
        assert_eq!(directory.find(1, "db", Some("a")), Some(2));
        assert_eq!(directory.find(1, "db", Some("b")), None, "both have to be in the network that is named");
        assert_eq!(directory.find(1, "web", Some("b")), Some(1), "its own name");
        assert_eq!(directory.find(2, "web", Some("b")), None);
        for asker in [3, 4, 5] {
            assert_eq!(directory.find(asker, "db", None), None);
        }
        assert_eq!(directory.find(4, "alone", None), None);
        directory.remove(2);
        assert_eq!(directory.find(1, "db", None), None);
    }
}

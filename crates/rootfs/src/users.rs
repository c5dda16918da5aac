//! Users by name, as `etc/passwd` and `etc/group` of an app's own files have them.
//!
//! The rules are runc's: a number that no file knows is taken as it is, with group 0 and home `/`; a group that is given
//! replaces the user's other groups. Lines that do not read are passed over, as libc does.

use crate::digest::LayerDigest;
use crate::error::{Error, UserRefusal};
use crate::limits::{MAX_ID, MAX_USER_FILE_BYTES};
use crate::store::Store;
use crate::view::View;

const PASSWD: &str = "etc/passwd";
const GROUP: &str = "etc/group";

/// A user as the kernel knows it. Ids are the app's own, 0 to 65535.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups, sorted, each once.
    pub extra_gids: Vec<u32>,
    /// Home directory.
    pub home: String,
}

struct Passwd {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

impl Store {
    /// Resolves `user`, `uid`, `user:group` or `uid:gid` in the files of `layers` (lowest first). Empty is root.
    pub fn lookup_user(&self, layers: &[LayerDigest], user: &str) -> Result<User, Error> {
        let view = self.view(layers)?;
        let read = |path| view_lines(&view, path);
        let (passwd, groups) = (read(PASSWD)?, read(GROUP)?);
        resolve(user, &passwd, &groups).map_err(|why| Error::User { user: user.to_owned(), why })
    }
}

fn view_lines(view: &View, path: &str) -> Result<String, Error> {
    let content = view.read_file(path, MAX_USER_FILE_BYTES).map_err(Error::io("read the app's", path))?;
    Ok(String::from_utf8_lossy(&content.unwrap_or_default()).into_owned())
}

/// Resolves `user` in the contents of the two files.
fn resolve(user: &str, passwd: &str, groups: &str) -> Result<User, UserRefusal> {
    let (name, group) = user.split_once(':').map_or((user, None), |(name, group)| (name, Some(group)));
    if group.is_some_and(|group| group.is_empty() || group.contains(':')) || (name.is_empty() && group.is_some()) {
        return Err(UserRefusal::Form);
    }
    let name = if name.is_empty() { "0" } else { name };
    let number = id(name)?;
    let known = passwd.lines().filter_map(passwd_line).find(|entry| entry.name == name);
    let known = known.or_else(|| passwd.lines().filter_map(passwd_line).find(|entry| Some(entry.uid) == number));
    let (uid, gid, home) = match (&known, number) {
        (Some(entry), _) => (entry.uid, entry.gid, entry.home.clone()),
        (None, Some(uid)) => (uid, 0, "/".to_owned()),
        (None, None) => return Err(UserRefusal::Unknown { name: name.to_owned(), file: PASSWD }),
    };
    let parsed = || groups.lines().filter_map(group_line);
    let Some(group) = group else {
        let is_member = |group: &Group| known.as_ref().is_some_and(|entry| group.members.contains(&entry.name));
        let mut extra_gids: Vec<u32> = parsed().filter(is_member).map(|group| group.gid).collect();
        extra_gids.sort_unstable();
        extra_gids.dedup();
        return Ok(User { uid, gid, extra_gids, home });
    };
    let gid = match (parsed().find(|entry| entry.name == group), id(group)?) {
        (Some(entry), _) => entry.gid,
        (None, Some(gid)) => gid,
        (None, None) => return Err(UserRefusal::Unknown { name: group.to_owned(), file: GROUP }),
    };
    Ok(User { uid, gid, extra_gids: Vec::new(), home })
}

/// Reads a name and the two files, with empty lines between them: for fuzzing.
pub(crate) fn read_files(text: &str) {
    let mut parts = text.splitn(3, "\n\n");
    let mut next = || parts.next().unwrap_or_default();
    let _ = resolve(next(), next(), next());
}

/// A number, if it is one.
fn id(text: &str) -> Result<Option<u32>, UserRefusal> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let id = text.parse().unwrap_or(u64::MAX);
    match u32::try_from(id) {
        Ok(small) if id <= MAX_ID => Ok(Some(small)),
        _ => Err(UserRefusal::IdTooLarge { id }),
    }
}

/// `name:password:uid:gid:comment:home:shell`
fn passwd_line(line: &str) -> Option<Passwd> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    let uid = id(fields.nth(1)?).ok()??;
    let gid = id(fields.next()?).ok()??;
    let home = fields.nth(1).filter(|home| home.starts_with('/') && !home.contains('\0')).unwrap_or("/").to_owned();
    Some(Passwd { name, uid, gid, home })
}

/// `name:password:gid:member,member`
fn group_line(line: &str) -> Option<Group> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    let gid = id(fields.nth(1)?).ok()??;
    let members = fields.next().unwrap_or_default().split(',').map(str::to_owned).collect();
    Some(Group { name, gid, members })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken\nwww:x:33:34::/var/www:/bin/false\n77:x:5:6::/n:\nbig:x:70000:1::/:\n";
    const GROUP: &str = "root:x:0:\nwww:x:34:\nssl:x:40:www,other\nadm:x:4:www\nssl2:x:40:www\n9:x:90:\n";

    fn user(uid: u32, gid: u32, extra_gids: &[u32], home: &str) -> Result<User, UserRefusal> {
        Ok(User { uid, gid, extra_gids: extra_gids.to_vec(), home: home.to_owned() })
    }

    #[test]
    fn users_are_resolved_as_runc_does() {
        let resolve = |text| resolve(text, PASSWD, GROUP);
        assert_eq!(resolve(""), user(0, 0, &[], "/root"));
        assert_eq!(resolve("www"), user(33, 34, &[4, 40], "/var/www"));
        assert_eq!(resolve("33"), user(33, 34, &[4, 40], "/var/www"));
        assert_eq!(resolve("www:ssl"), user(33, 40, &[], "/var/www"));
        assert_eq!(resolve("1000"), user(1000, 0, &[], "/"));
        assert_eq!(resolve("1000:1001"), user(1000, 1001, &[], "/"));
        assert_eq!(resolve("77"), user(5, 6, &[], "/n"), "a name wins over a number");
        assert_eq!(resolve("0:9"), user(0, 90, &[], "/root"), "so does a group's");
    }

    #[test]
    fn bad_users_are_refused() {
        let resolve = |text| resolve(text, PASSWD, GROUP);
        let unknown = |name: &str, file| Err(UserRefusal::Unknown { name: name.to_owned(), file });
        assert_eq!(resolve("nobody"), unknown("nobody", super::PASSWD));
        assert_eq!(resolve("www:nogroup"), unknown("nogroup", super::GROUP));
        assert_eq!(resolve("65536"), Err(UserRefusal::IdTooLarge { id: 65536 }));
        assert_eq!(resolve("99999999999999999999999"), Err(UserRefusal::IdTooLarge { id: u64::MAX }));
        assert_eq!(resolve("big"), unknown("big", super::PASSWD));
        for form in ["www:", ":www", "a:b:c", ":"] {
            assert_eq!(resolve(form), Err(UserRefusal::Form), "{form}");
        }
    }
}

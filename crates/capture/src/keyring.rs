//! Session keyrings: they live as long as processes have them, and their keys can be made again only under other numbers.
//!
//! A process restored has the restorer's session keyring. That is no loss where it had the one that we have, or one without
//! keys of its own, as services and logins get it.

use torpor_linux::uapi::syscall;

use super::call_batch::{Answers, Asked, CallBatch, Place};

const GET_KEYRING_ID: u64 = 0;
const READ: u64 = 11;
const SESSION: u64 = -3_i64 as u64;
const USER: u64 = -4_i64 as u64;
const USER_SESSION: u64 = -5_i64 as u64;
/// Keys that are looked at; more are more than a link to the user's keyring.
const KEYS: usize = 4;
const SERIAL_BYTES: usize = 4;

/// Questions about the session keyring.
pub(super) struct AskedKeyring {
    session: Asked,
    user: Asked,
    user_session: Asked,
    keys: (Place, Asked),
}

impl AskedKeyring {
    pub(super) fn ask(list: &mut CallBatch) -> Self {
        let mut id = |which| list.ask("keyctl", syscall::KEYCTL, &[GET_KEYRING_ID, which, 0, 0, 0]);
        let (session, user, user_session) = (id(SESSION), id(USER), id(USER_SESSION));
        let place = list.place(KEYS * SERIAL_BYTES);
        let bytes = (KEYS * SERIAL_BYTES) as u64;
        let keys = (place, list.ask("keyctl", syscall::KEYCTL, &[READ, SESSION, place.address, bytes, 0]));
        Self { session, user, user_session, keys }
    }

    /// It has one of its own, with keys that would be lost.
    pub(super) fn has_keys(&self, answers: &Answers) -> bool {
        let serial = |asked| answers.result(asked).ok().map(|serial| serial as u32 as i32);
        let (session, user) = (serial(self.session), serial(self.user));
        if session.is_none() || session == serial(self.user_session) || session == torpor_linux::keyring::session() {
            return false;
        }
        let Ok(bytes) = answers.result(self.keys.1) else { return false };
        let key = |n: usize| (answers.word(self.keys.0, n / 2) >> (n % 2 * 32)) as u32 as i32;
        let count = bytes as usize / SERIAL_BYTES;
        count > KEYS || (0..count).any(|n| Some(key(n)) != user && Some(key(n)) != serial(self.user_session))
    }
}

//! Login ids of threads (`/proc/PID/loginuid`): who logged in, as the kernel's audit knows it.

use std::io;

use torpor_image::tree::{End, Login, Process};

use torpor_proc::login::{self, UNSET};
use torpor_process::view::View;

/// Places of threads that have one, with that: process, thread, user. Where an app's has none in its user namespace, it is the
/// worker's.
pub(super) fn find(processes: &[Process], view: &View) -> io::Result<Vec<(usize, usize, u32)>> {
    let mut found = Vec::new();
    for (p, process) in processes.iter().enumerate() {
        let End::Alive(life) = &process.end else { continue };
        for (t, thread) in life.threads.iter().enumerate() {
            let user = match login::of(process.pid, thread.tid)? {
                // A kernel without audit.
                None => return Ok(found),
                Some(UNSET) => continue,
                Some(user) => view.has_user(user),
            };
            found.extend(user.map(|user| (p, t, user)));
        }
    }
    Ok(found)
}

/// For the image, by the ids that the threads have in it.
pub(super) fn of(found: &[(usize, usize, u32)], processes: &[Process]) -> Vec<Login> {
    let login = |(p, t, user): &(usize, usize, u32)| {
        let thread = processes.get(*p)?.alive()?.threads.get(*t)?;
        Some(Login { tid: thread.tid, user: *user })
    };
    let mut logins: Vec<Login> = found.iter().filter_map(login).collect();
    logins.sort_unstable_by_key(|login| login.tid);
    logins
}

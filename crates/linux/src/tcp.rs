//! Options of TCP sockets that rustix lacks: `tcp(7)`.

pub mod repair;

use std::io;
use std::os::fd::{AsFd, AsRawFd};

fn get(socket: impl AsFd, level: i32, option: i32) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is an int that lives through the call, and `len` says its size; the kernel writes at most that.
    let result =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// `TCP_DEFER_ACCEPT` of a listening socket, in seconds; 0: off.
pub fn defer_accept(socket: impl AsFd) -> io::Result<u32> {
    get(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT).map(i32::unsigned_abs)
}

/// Sets `TCP_DEFER_ACCEPT`: a connection enters the accept queue with its first data, or after about so many seconds.
pub fn set_defer_accept(socket: impl AsFd, seconds: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(seconds).unwrap_or(libc::c_int::MAX);
    // SAFETY: `value` is an int that lives through the call and is only read; the length is its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferring_is_set_and_taken_back() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(defer_accept(&listener).unwrap(), 0);
        set_defer_accept(&listener, 30).unwrap();
        // The kernel rounds to its retransmission times.
        assert!(defer_accept(&listener).unwrap() >= 30);
        set_defer_accept(&listener, 0).unwrap();
        assert_eq!(defer_accept(&listener).unwrap(), 0);
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(defer_accept(&one).is_err());
    }
}

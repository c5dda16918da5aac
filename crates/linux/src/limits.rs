//! Resource limits by number (`getrlimit(2)`).

use rustix::process::{Resource, getrlimit};

/// All resources, by their `RLIMIT_*` number.
const RESOURCES: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

/// Number of the limit of open files.
pub const OPEN_FILES: usize = libc::RLIMIT_NOFILE as usize;

/// Hard limits of the calling process, by resource number; `u64::MAX` is infinity.
pub fn hard_limits() -> [u64; 16] {
    RESOURCES.map(|resource| getrlimit(resource).maximum.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order is the kernel's.
    #[test]
    fn limits_are_in_the_order_of_their_numbers() {
        for (resource, number) in RESOURCES.into_iter().zip(0_u32..) {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the structure is ours, and outlives the call.
            let answer = unsafe { libc::getrlimit(number, &mut limit) };
            assert_eq!((answer, getrlimit(resource).maximum.unwrap_or(u64::MAX)), (0, limit.rlim_max), "{resource:?}");
        }
        assert_eq!(RESOURCES[OPEN_FILES], Resource::Nofile);
    }
}

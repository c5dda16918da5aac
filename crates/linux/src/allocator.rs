//! The C library's allocator (`mallopt(3)`).

/// Lets all threads share one arena. By default each thread that comes takes one of eight for every processor, and what it
/// leaves half empty stays so: with threads that come for one sleep or wake that is memory for every app. To be called
/// before there are threads. Other C libraries than glibc have one anyway.
pub fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers. An allocator that refuses is as before.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Lets large blocks go back to the machine when they are given up. By default the first one that is given up makes all of its
/// size come from the heap from then on, where small ones behind it keep the room.
pub fn give_back_large_blocks() {
    /// The C library's own choice, which it does not change any more.
    #[cfg(target_env = "gnu")]
    const LARGE_BYTES: libc::c_int = 128 << 10;
    #[cfg(target_env = "gnu")]
    // SAFETY: as above.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

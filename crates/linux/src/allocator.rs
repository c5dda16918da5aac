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

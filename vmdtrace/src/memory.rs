//! Memory that is not needed any more goes back to the kernel.

/// Gives back what was freed: glibc keeps it otherwise, as long as anything
/// above it is in use. To be called after something large that is rare, such as
/// reading the kernel's types; it walks all free memory.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it has no preconditions; what is in use is not touched.
        let _whether_any_was = unsafe { nix::libc::malloc_trim(0) };
    }
}

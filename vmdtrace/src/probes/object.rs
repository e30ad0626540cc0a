//! The eBPF object inside this program.

/// The object, unless this program was built without it (see build.rs).
#[must_use]
pub fn embedded() -> Option<&'static [u8]> {
    #[cfg(ebpf_object)]
    {
        /// The loader reads ELF structures in place: they must be aligned.
        #[repr(C, align(8))]
        struct Aligned<Bytes: ?Sized>(Bytes);
        static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
            env!("OUT_DIR"),
            "/vmdtrace-ebpf.o"
        )));
        Some(&OBJECT.0)
    }
    #[cfg(not(ebpf_object))]
    None
}

//! BPF arrays mapped into this process: reading all of a map costs no system
//! call. The only unsafe code of the user side.

use std::{
    io,
    marker::PhantomData,
    mem::{MaybeUninit, offset_of},
    num::NonZeroUsize,
    os::fd::AsFd,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use vmdtrace_common::{
    CpuBank, LineCell, LossTotals, NameTable, Place, RequestLayout,
    bio_cells::{BioBank, BioSet},
    msi::MsiTotals,
    samples::DiskSamples,
    shares::Share,
};

/// An element of a mapped array.
///
/// # Safety
/// Any bytes must be a valid value, and size and alignment multiples of 8 (a
/// BPF array's elements lie one after the other, each rounded up to 8 bytes).
pub unsafe trait Element: Copy {}

// SAFETY: integers only; sizes are asserted where it is defined.
unsafe impl Element for CpuBank {}
// SAFETY: as above.
unsafe impl Element for LineCell {}
// SAFETY: as above.
unsafe impl Element for LossTotals {}
// SAFETY: as above.
unsafe impl Element for MsiTotals {}
// SAFETY: as above.
unsafe impl Element for BioBank {}
// SAFETY: as above.
unsafe impl Element for BioSet {}
// SAFETY: as above.
unsafe impl Element for DiskSamples {}
// SAFETY: as above.
unsafe impl Element for Share {}
// SAFETY: as above; one word.
unsafe impl Element for Place {}
// SAFETY: as above.
unsafe impl Element for u64 {}

/// What a mapping may be used for.
pub trait Access {
    const PROTECTION: ProtFlags;
}

/// For reading. The kernel does not let such a mapping be made writable later,
/// whatever the descriptor allows (kernel/bpf/syscall.c, bpf_map_mmap).
#[derive(Debug)]
pub enum ReadOnly {}

impl Access for ReadOnly {
    const PROTECTION: ProtFlags = ProtFlags::PROT_READ;
}

/// For reading and writing.
#[derive(Debug)]
pub enum Writable {}

impl Access for Writable {
    const PROTECTION: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);
}

/// A mapped array of `T`, written by the kernel while it is read.
#[derive(Debug)]
pub struct MappedArray<T, A = ReadOnly> {
    base: NonNull<u8>,
    bytes: NonZeroUsize,
    length: u32,
    _elements: PhantomData<T>,
    _access: PhantomData<A>,
}

// SAFETY: the mapping is shared memory that is only accessed atomically.
unsafe impl<T, A> Send for MappedArray<T, A> {}
// SAFETY: as above.
unsafe impl<T, A> Sync for MappedArray<T, A> {}

impl<T, A: Access> MappedArray<T, A> {
    /// Maps an array of `length` elements that was made with BPF_F_MMAPABLE.
    ///
    /// # Errors
    /// What mmap says.
    pub fn new(map: impl AsFd, length: u32) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8) && size_of::<T>() > 0) };
        let bytes = (length as usize)
            .checked_mul(size_of::<T>())
            .and_then(NonZeroUsize::new)
            .ok_or_else(|| io::Error::other("an array of no size"))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, bytes, A::PROTECTION, MapFlags::MAP_SHARED, map, 0) }?;
        Ok(Self {
            base: base.cast(),
            bytes,
            length,
            _elements: PhantomData,
            _access: PhantomData,
        })
    }
}

impl<T, A> MappedArray<T, A> {
    /// Start of an element.
    fn element(&self, index: u32) -> Option<NonNull<u8>> {
        if index >= self.length {
            return None;
        }
        // SAFETY: index < length, so the offset lies inside the mapping.
        Some(unsafe { self.base.add(index as usize * size_of::<T>()) })
    }
}

impl<T: Element, A> MappedArray<T, A> {
    /// A copy of an element, taken word by word: each word is whole, the words
    /// may be of different moments.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<T> {
        let words = self.element(index)?.cast::<u64>();
        let mut copy = MaybeUninit::<T>::uninit();
        for word in 0..size_of::<T>() / 8 {
            // SAFETY: inside the element, which is aligned to 8 bytes.
            let source = unsafe { words.add(word) };
            // SAFETY: valid, aligned, and only accessed atomically on this side.
            let value = unsafe { AtomicU64::from_ptr(source.as_ptr()) }.load(Ordering::Relaxed);
            // SAFETY: inside `copy`; T's size is a multiple of 8.
            let target = unsafe { copy.as_mut_ptr().cast::<u64>().add(word) };
            // SAFETY: valid for writes; unaligned because T may be aligned to less.
            unsafe { target.write_unaligned(value) };
        }
        // SAFETY: every byte was written, and any bytes are a valid T.
        Some(unsafe { copy.assume_init() })
    }

    /// Copies of all elements in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.length).filter_map(|index| self.get(index))
    }
}

impl<T, A> MappedArray<T, A> {
    /// How many elements there are.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }
}

impl<A> MappedArray<LineCell, A> {
    /// Whether a slot is taken and described: one word of it is read.
    #[must_use]
    pub fn is_ready(&self, slot: u32) -> bool {
        let Some(cell) = self.element(slot) else {
            return false;
        };
        // SAFETY: the field lies inside the element.
        let field = unsafe { cell.add(offset_of!(LineCell, ready)) };
        // SAFETY: valid and aligned; the programs write the word whole.
        unsafe { AtomicU32::from_ptr(field.cast().as_ptr()) }.load(Ordering::Relaxed) != 0
    }
}

impl MappedArray<CpuBank, Writable> {
    /// Lets the programs learn every line's name again.
    pub fn raise_generation(&self) {
        for cpu in 0..self.length {
            let Some(bank) = self.element(cpu) else {
                continue;
            };
            // SAFETY: the field lies inside the element.
            let field = unsafe { bank.add(offset_of!(CpuBank, generation)) };
            // SAFETY: valid and aligned; the programs only read it.
            unsafe { AtomicU32::from_ptr(field.cast().as_ptr()) }.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Arms a CPU on which no program runs now.
    pub fn arm(&self, cpu: u32) {
        let Some(bank) = self.element(cpu) else {
            return;
        };
        // SAFETY: the field lies inside the element.
        let field = unsafe { bank.add(offset_of!(CpuBank, armed)) };
        // SAFETY: valid and aligned.
        unsafe { AtomicU32::from_ptr(field.cast().as_ptr()) }.store(1, Ordering::Relaxed);
    }
}

impl MappedArray<Place, Writable> {
    /// Tells the programs where the CPUs are. While places change, a CPU is at
    /// its old one, at none, or at its new one, and no two CPUs at an old and a
    /// new one.
    pub fn set_all(&self, places: &[Place]) {
        let changed: Vec<_> = (0..self.length)
            .zip(places)
            .filter(|(cpu, place)| self.get(*cpu) != Some(**place))
            .collect();
        for (cpu, _) in &changed {
            self.set(*cpu, Place::default());
        }
        for (cpu, place) in changed {
            self.set(cpu, *place);
        }
    }

    fn set(&self, cpu: u32, place: Place) {
        let Some(element) = self.element(cpu) else {
            return;
        };
        // SAFETY: one aligned word, which the programs only read.
        unsafe { AtomicU64::from_ptr(element.cast().as_ptr()) }.store(place.0, Ordering::Relaxed);
    }
}

impl MappedArray<u64, Writable> {
    /// Writes an element, which the programs may be reading. One writer at a time.
    pub fn set(&self, index: u32, value: u64) {
        let Some(element) = self.element(index) else {
            return;
        };
        // SAFETY: one aligned word, which the programs only read.
        unsafe { AtomicU64::from_ptr(element.cast().as_ptr()) }.store(value, Ordering::Relaxed);
    }
}

impl MappedArray<NameTable, Writable> {
    /// Fills the table. To be done before a program is attached: it is no atomic copy.
    pub fn fill(&mut self, table: &NameTable) {
        let Some(element) = self.element(0) else {
            return;
        };
        // SAFETY: both are NameTables, and no program runs yet.
        unsafe { std::ptr::copy_nonoverlapping(table, element.cast().as_ptr(), 1) };
    }
}

impl MappedArray<RequestLayout, Writable> {
    /// Tells the programs, which may be running.
    pub fn set(&self, layout: RequestLayout) {
        let RequestLayout {
            known,
            controller,
            instance,
            disk,
            disk_of_queue,
            disk_name,
        } = layout;
        let Some(element) = self.element(0) else {
            return;
        };
        // What is known comes last: until then nobody looks at the rest.
        let fields = [
            (offset_of!(RequestLayout, disk_name), disk_name),
            (offset_of!(RequestLayout, disk_of_queue), disk_of_queue),
            (offset_of!(RequestLayout, disk), disk),
            (offset_of!(RequestLayout, instance), instance),
            (offset_of!(RequestLayout, controller), controller),
            (offset_of!(RequestLayout, known), known),
        ];
        for (offset, value) in fields {
            // SAFETY: the field lies inside the element.
            let field = unsafe { element.add(offset) };
            // SAFETY: valid and aligned; the programs only read it.
            unsafe { AtomicU32::from_ptr(field.cast().as_ptr()) }.store(value, Ordering::Release);
        }
    }
}

impl MappedArray<[u8; 8192], Writable> {
    /// Copies bytes to the start of the first element.
    pub fn write(&mut self, bytes: &[u8]) {
        let Some(element) = self.element(0) else {
            return;
        };
        let length = bytes.len().min(8192);
        // SAFETY: at most one element's bytes, inside the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), element.as_ptr(), length) };
    }
}

impl<T, A> Drop for MappedArray<T, A> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives self.
        // It cannot fail for a mapping that exists.
        let _ = unsafe { munmap(self.base.cast(), self.bytes.get()) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn memory(bytes: usize) -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes as u64).unwrap();
        file.into()
    }

    #[test]
    fn elements_are_read_where_they_lie_and_not_beyond() {
        let array = MappedArray::<CpuBank, Writable>::new(memory(4096), 3).unwrap();
        array.raise_generation();
        array.raise_generation();
        let banks: Vec<_> = array.iter().collect();
        assert_eq!(banks.len(), 3);
        assert!(banks.iter().all(|bank| *bank
            == CpuBank {
                generation: 2,
                ..CpuBank::default()
            }));
        assert!(array.get(3).is_none());
    }

    #[test]
    fn places_are_set_and_what_lies_beyond_is_left() {
        let array = MappedArray::<Place, Writable>::new(memory(4096), 2).unwrap();
        let places = [0, 1, 2].map(|cpu| Place::new(Some(cpu), Some(0)));
        array.set_all(&places);
        assert_eq!(array.iter().collect::<Vec<_>>(), places[..2]);
        array.set_all(&[Place::default(), places[1]]);
        assert_eq!(
            array.iter().collect::<Vec<_>>(),
            [Place::default(), places[1]]
        );
    }

    #[test]
    fn a_word_is_set_where_it_lies() {
        let array = MappedArray::<u64, Writable>::new(memory(4096), 3).unwrap();
        array.set(1, 7);
        array.set(3, 8);
        assert_eq!(array.iter().collect::<Vec<_>>(), [0, 7, 0]);
    }

    #[test]
    fn an_array_of_nothing_is_an_error() {
        assert!(MappedArray::<LineCell>::new(memory(4096), 0).is_err());
    }
}

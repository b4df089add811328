//! Memory for weights, KV pages and scratch: zeroed, aligned, and refused by an error value when there is none.

mod slab;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

pub use slab::{Piece, SlabPool};

/// Alignment of [`HugeBuffer`] in bytes: one huge page of x86-64 and of aarch64 with 4 KiB pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Alignment of [`AlignedVec`] in bytes: a cache line, and the widest vector register.
pub const LINE_BYTES: usize = 64;

/// Memory that could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// The size does not fit the address space.
    #[error("a buffer of {elements} elements of {element_bytes} bytes is larger than the address space")]
    TooLarge {
        /// Elements asked for.
        elements: usize,
        /// Bytes an element.
        element_bytes: usize,
    },
    /// The operating system refused.
    #[error("cannot allocate {wanted_bytes} bytes: use a smaller context or model, or raise the memory limit")]
    OutOfMemory {
        /// Bytes asked for.
        wanted_bytes: usize,
    },
}

mod sealed {
    pub trait Sealed {}
}

/// Plain numbers: all bits zero is a value of the type, and there is nothing to drop.
pub trait Plain: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($number:ty),*) => {$(
        impl sealed::Sealed for $number {}
        impl Plain for $number {}
    )*};
}
plain!(u8, i8, u16, i16, u32, i32, u64, f32, half::f16);

/// Zeroed memory of `len` elements and the way it is given back.
struct Block<T> {
    start: NonNull<T>,
    len: usize,
    release: Release,
    elements: PhantomData<T>,
}

enum Release {
    /// No memory is held.
    Nothing,
    Heap(Layout),
    #[cfg(target_os = "linux")]
    Unmap {
        bytes: usize,
    },
}

// SAFETY: a block owns its memory as a Vec does, so it may go to and be shared with other threads when its elements may.
unsafe impl<T: Plain> Send for Block<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Block<T> {}

impl<T: Plain> Block<T> {
    /// # Errors
    /// [`AllocError::TooLarge`]; the layout is rounded up to whole `align` bytes.
    fn layout(len: usize, align: usize) -> Result<Layout, AllocError> {
        let too_large = AllocError::TooLarge {
            elements: len,
            element_bytes: size_of::<T>(),
        };
        let layout = Layout::array::<T>(len)
            .and_then(|layout| layout.align_to(align))
            .map_err(|_| too_large)?;
        // Room for one more alignment unit below isize::MAX, which `map` needs.
        let fits = layout.size() <= isize::MAX as usize - 2 * align;
        if fits {
            Ok(layout.pad_to_align())
        } else {
            Err(too_large)
        }
    }

    fn heap(len: usize, align: usize) -> Result<Self, AllocError> {
        let layout = Self::layout(len, align)?;
        if layout.size() == 0 {
            return Ok(Self::empty());
        }
        // SAFETY: the layout has a size other than 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<T>());
        let start = start.ok_or(AllocError::OutOfMemory {
            wanted_bytes: layout.size(),
        })?;
        Ok(Self {
            start,
            len,
            release: Release::Heap(layout),
            elements: PhantomData,
        })
    }

    fn empty() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            release: Release::Nothing,
            elements: PhantomData,
        }
    }

    #[cfg(target_os = "linux")]
    fn huge(len: usize) -> Result<Self, AllocError> {
        let bytes = Self::layout(len, HUGE_PAGE_BYTES)?.size();
        if bytes == 0 {
            return Ok(Self::empty());
        }
        let start = map_huge(bytes).ok_or(AllocError::OutOfMemory { wanted_bytes: bytes })?;
        Ok(Self {
            start: start.cast(),
            len,
            release: Release::Unmap { bytes },
            elements: PhantomData,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn huge(len: usize) -> Result<Self, AllocError> {
        Self::heap(len, HUGE_PAGE_BYTES)
    }
}

/// Maps `bytes` (whole huge pages) of zeroed memory, aligned to a huge page.
#[cfg(target_os = "linux")]
fn map_huge(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    let mapped = bytes + HUGE_PAGE_BYTES;
    // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
    let raw = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            mapped,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .ok()?;
    let raw = raw.cast::<u8>();
    let head = raw.addr().next_multiple_of(HUGE_PAGE_BYTES) - raw.addr();
    let start = raw.wrapping_add(head);
    for (at, bytes) in [(raw, head), (start.wrapping_add(bytes), HUGE_PAGE_BYTES - head)] {
        if bytes > 0 {
            // SAFETY: this range lies inside the mapping just made, outside what is kept, and nothing refers to it. If it fails, the
            // range stays mapped, untouched and without memory behind it.
            let _ = unsafe { munmap(at.cast(), bytes) };
        }
    }
    // SAFETY: the range is ours, and the advice changes no content. A kernel without huge pages refuses; small pages work too.
    let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
    NonNull::new(start)
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        match self.release {
            Release::Nothing => {}
            // SAFETY: allocated by `heap` with this layout, and nothing borrows it any more.
            Release::Heap(layout) => unsafe { dealloc(self.start.as_ptr().cast(), layout) },
            #[cfg(target_os = "linux")]
            Release::Unmap { bytes } => {
                // SAFETY: mapped by `map_huge` with this length, and nothing borrows it any more. It fails only for a wrong range.
                let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
            }
        }
    }
}

impl<T> Deref for Block<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned and heads `len` elements, zeroed when made, which only this block owns (none if `len` is 0).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Block<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the block is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

macro_rules! slice_of_block {
    ($name:ident) => {
        impl<T: Plain> Deref for $name<T> {
            type Target = [T];

            fn deref(&self) -> &[T] {
                &self.0
            }
        }

        impl<T: Plain> DerefMut for $name<T> {
            fn deref_mut(&mut self) -> &mut [T] {
                &mut self.0
            }
        }

        impl<T: Plain> std::fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let bytes = size_of_val::<[T]>(self);
                f.debug_struct(stringify!($name))
                    .field("elements", &self.len())
                    .field("bytes", &bytes)
                    .finish()
            }
        }
    };
}

/// Zeroed memory in huge pages where the system has them, for what is read once a token from end to end: weights and, in a
/// [`SlabPool`], KV pages.
///
/// Memory is taken in steps of [`HUGE_PAGE_BYTES`], when first touched, so small things belong into a [`SlabPool`] or an [`AlignedVec`].
pub struct HugeBuffer<T: Plain = u8>(Block<T>);
slice_of_block!(HugeBuffer);

impl<T: Plain> HugeBuffer<T> {
    /// `len` elements, all zero, aligned to [`HUGE_PAGE_BYTES`] (unless empty).
    ///
    /// # Errors
    /// [`AllocError`]. A system that promises more memory than it has fails later, when the memory is touched: plan first.
    pub fn zeroed(len: usize) -> Result<Self, AllocError> {
        Block::huge(len).map(Self)
    }
}

/// Zeroed memory of fixed length that starts on a cache line, for scratch.
pub struct AlignedVec<T: Plain>(Block<T>);
slice_of_block!(AlignedVec);

impl<T: Plain> AlignedVec<T> {
    /// `len` elements, all zero, aligned to [`LINE_BYTES`] (unless empty).
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn zeroed(len: usize) -> Result<Self, AllocError> {
        Block::heap(len, LINE_BYTES).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_buffers_are_zeroed_aligned_and_writable() {
        for len in [
            1,
            4095,
            HUGE_PAGE_BYTES - 1,
            HUGE_PAGE_BYTES,
            HUGE_PAGE_BYTES + 1,
            5 * HUGE_PAGE_BYTES + 17,
        ] {
            let mut buffer = HugeBuffer::<u8>::zeroed(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert!(buffer.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn many_huge_buffers_do_not_overlap() {
        let mut buffers: Vec<_> = (0..40)
            .map(|i| HugeBuffer::<u32>::zeroed(1 + i * 20_000).unwrap())
            .collect();
        buffers.iter_mut().zip(0..).for_each(|(buffer, i)| buffer.fill(i));
        for i in [3, 20, 7] {
            drop(buffers.remove(i));
        }
        assert!(
            buffers
                .iter()
                .all(|buffer| buffer.iter().all(|value| *value == buffer[0]))
        );
        assert_eq!(
            buffers
                .iter()
                .map(|buffer| buffer[0])
                .filter(|i| [3, 8, 21].contains(i))
                .count(),
            0
        );
    }

    #[test]
    fn aligned_vecs_are_zeroed_aligned_and_writable() {
        for len in [1, 15, 16, 17, 100_003] {
            let mut scratch = AlignedVec::<f32>::zeroed(len).unwrap();
            assert_eq!(scratch.len(), len);
            assert!(scratch.as_ptr().addr().is_multiple_of(LINE_BYTES));
            assert!(scratch.iter().all(|value| value.to_bits() == 0));
            scratch.fill(1.5);
            assert!(scratch.iter().all(|&value| value == 1.5));
        }
        assert!(
            AlignedVec::<half::f16>::zeroed(9)
                .unwrap()
                .iter()
                .all(|value| value.to_bits() == 0)
        );
    }

    #[test]
    fn nothing_takes_no_memory() {
        assert!(HugeBuffer::<u8>::zeroed(0).unwrap().is_empty());
        assert!(AlignedVec::<f32>::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let too_large = |len| AllocError::TooLarge {
            elements: len,
            element_bytes: 4,
        };
        for len in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4] {
            assert_eq!(HugeBuffer::<f32>::zeroed(len).unwrap_err(), too_large(len));
            assert_eq!(AlignedVec::<f32>::zeroed(len).unwrap_err(), too_large(len));
        }
        // More than the address space of any machine of today, less than isize::MAX.
        let elements = 1_usize << 60;
        let refused = AllocError::OutOfMemory { wanted_bytes: 1 << 62 };
        assert_eq!(HugeBuffer::<f32>::zeroed(elements).unwrap_err(), refused);
        assert_eq!(AlignedVec::<f32>::zeroed(elements).unwrap_err(), refused);
    }

    #[test]
    fn buffers_go_to_other_threads() {
        let buffer = HugeBuffer::<f32>::zeroed(10).unwrap();
        let sum = std::thread::spawn(move || buffer.iter().sum::<f32>()).join().unwrap();
        assert_eq!(sum, 0.0);
    }
}

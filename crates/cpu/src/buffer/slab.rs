//! Pieces of huge pages, for things that are smaller than one but are read from end to end, such as KV pages.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{AllocError, HUGE_PAGE_BYTES, HugeBuffer, LINE_BYTES};

/// Bytes that are mapped at once; memory stands behind them once they are touched.
const SLAB_BYTES: usize = 8 << 20;

fn pieces_of_slab(piece_bytes: usize) -> usize {
    let stride = piece_bytes.next_multiple_of(LINE_BYTES);
    (SLAB_BYTES / stride.max(1)).max(1)
}

/// Memory in huge pages that is handed out in pieces, and taken back.
///
/// A slab has pieces of one length and lives as long as one of them does.
#[derive(Debug, Default)]
pub struct SlabPool {
    slabs: Mutex<Vec<Weak<Slab>>>,
}

#[derive(Debug)]
struct Slab {
    /// Keeps the memory; nothing but the pieces refers to what is in it.
    _memory: HugeBuffer<u8>,
    start: NonNull<u8>,
    piece_bytes: usize,
    free: Mutex<FreePieces>,
}

#[derive(Debug)]
struct FreePieces {
    /// Pieces from this one on were never handed out: they are zero.
    first_unused: usize,
    count: usize,
    given_back: Vec<usize>,
}

// SAFETY: a slab owns its memory and is only a way to hand out pieces of it, each to one owner.
unsafe impl Send for Slab {}
// SAFETY: as above; who is free is under a lock.
unsafe impl Sync for Slab {}

/// Bytes of a slab that nobody else has, from the start of a cache line on. They go back when it is dropped.
#[derive(Debug)]
pub struct Piece {
    slab: Arc<Slab>,
    index: usize,
}

impl SlabPool {
    /// Memory that `count` pieces of `bytes` bytes take at most: whole huge pages.
    pub fn most_bytes(bytes: usize, count: usize) -> usize {
        let of_slab = pieces_of_slab(bytes);
        let slab = of_slab.saturating_mul(bytes.next_multiple_of(LINE_BYTES));
        let slabs = count.div_ceil(of_slab);
        slabs.saturating_mul(slab.checked_next_multiple_of(HUGE_PAGE_BYTES).unwrap_or(usize::MAX))
    }

    /// `bytes` bytes, all zero.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn zeroed(&self, bytes: usize) -> Result<Piece, AllocError> {
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        slabs.retain(|slab| slab.strong_count() > 0);
        let with_room = slabs
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|slab| slab.piece_bytes == bytes);
        if let Some(piece) = { with_room }.find_map(Slab::take) {
            return Ok(piece);
        }
        let slab = Arc::new(Slab::new(bytes)?);
        slabs.push(Arc::downgrade(&slab));
        Ok(Slab::take(slab).expect("a new slab has a piece"))
    }
}

impl Slab {
    fn new(piece_bytes: usize) -> Result<Slab, AllocError> {
        Slab::with(piece_bytes, pieces_of_slab(piece_bytes))
    }

    /// A slab of `count` pieces.
    fn with(piece_bytes: usize, count: usize) -> Result<Slab, AllocError> {
        let stride = piece_bytes.next_multiple_of(LINE_BYTES);
        let mut memory = HugeBuffer::zeroed(count.saturating_mul(stride))?;
        Ok(Slab {
            start: NonNull::from(&mut *memory).cast(),
            _memory: memory,
            piece_bytes,
            free: Mutex::new(FreePieces {
                first_unused: 0,
                count,
                given_back: Vec::new(),
            }),
        })
    }

    /// A piece, all zero; none if all are taken.
    fn take(slab: Arc<Slab>) -> Option<Piece> {
        let mut free = slab.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, used) = match free.given_back.pop() {
            Some(index) => (index, true),
            None if free.first_unused < free.count => {
                free.first_unused += 1;
                (free.first_unused - 1, false)
            }
            None => return None,
        };
        drop(free);
        let mut piece = Piece { slab, index };
        if used {
            piece.fill(0);
        }
        Some(piece)
    }
}

impl Piece {
    /// `count` pieces of `bytes` bytes, all zero, side by side in memory that they have for themselves.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn many(bytes: usize, count: usize) -> Result<Vec<Piece>, AllocError> {
        let slab = Arc::new(Slab::with(bytes, count)?);
        Ok((0..count).filter_map(|_| Slab::take(Arc::clone(&slab))).collect())
    }

    fn start(&self) -> *mut u8 {
        let stride = self.slab.piece_bytes.next_multiple_of(LINE_BYTES);
        self.slab.start.as_ptr().wrapping_add(self.index * stride)
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slab has `index + 1` strides of at least `piece_bytes`, zeroed when mapped, and this one is nobody else's.
        unsafe { slice::from_raw_parts(self.start(), self.slab.piece_bytes) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the piece is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start(), self.slab.piece_bytes) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut free = self.slab.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.given_back.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_apart_and_come_back() {
        let pool = SlabPool::default();
        for bytes in [1, 100, 200_000, SLAB_BYTES, SLAB_BYTES + 1] {
            let mut pieces: Vec<Piece> = (0..50).map(|_| pool.zeroed(bytes).unwrap()).collect();
            for (piece, value) in pieces.iter_mut().zip(1..) {
                assert!(piece.as_ptr().addr().is_multiple_of(LINE_BYTES));
                assert!(piece.len() == bytes && piece.iter().all(|byte| *byte == 0));
                piece.fill(value);
            }
            for (piece, value) in pieces.iter().zip(1..) {
                assert!(piece.iter().all(|byte| *byte == value));
            }
            let given_back = pieces.swap_remove(7).as_ptr();
            let again = pool.zeroed(bytes).unwrap();
            assert!(again.iter().all(|byte| *byte == 0));
            assert!(bytes > SLAB_BYTES / 2 || again.as_ptr() == given_back, "{bytes}");
        }
    }

    #[test]
    fn many_pieces_lie_side_by_side() {
        let mut pieces = Piece::many(100, 5).unwrap();
        assert_eq!(pieces.len(), 5);
        for (piece, value) in pieces.iter_mut().zip(1..) {
            piece.fill(value);
        }
        let starts: Vec<usize> = pieces.iter().map(|piece| piece.as_ptr().addr()).collect();
        assert!(starts.is_sorted() && starts[4] - starts[0] == 4 * 128);
        assert!(
            pieces
                .iter()
                .zip(1..)
                .all(|(piece, value)| piece.iter().all(|byte| *byte == value))
        );
        assert!(Piece::many(100, 0).unwrap().is_empty());
    }

    #[test]
    fn a_slab_without_pieces_is_given_back() {
        let pool = SlabPool::default();
        let first = pool.zeroed(1000).unwrap();
        let slab = Arc::downgrade(&first.slab);
        let second = pool.zeroed(1000).unwrap();
        drop(first);
        assert!(slab.strong_count() == 1 && second.len() == 1000);
        drop(second);
        assert_eq!(slab.strong_count(), 0);
    }

    #[test]
    fn threads_take_and_give_back_at_once() {
        let pool = SlabPool::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..200 {
                        let mut piece = pool.zeroed(3000).unwrap();
                        assert!(piece.iter().all(|byte| *byte == 0));
                        piece.fill(thread * 50 + round % 50);
                        assert!(piece.iter().all(|byte| *byte == thread * 50 + round % 50));
                    }
                });
            }
        });
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(SlabPool::default().zeroed(usize::MAX / 2).is_err());
    }
}

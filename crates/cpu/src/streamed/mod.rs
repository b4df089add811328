//! Weights of models that are larger than the memory for them: those that were of use last are kept, the others read when a call wants
//! them.
//!
//! What is read at once is a [unit](units::Unit): an expert, or the matrices of a step of products. All units share one budget, in blocks
//! of one size ([`layout`]). A call [acquires](WeightStore::acquire) the units that it is about to use. Threads of the store read what is
//! missing, block by block and past the system's cache, and pack it; who needs a unit waits for it ([`Lease::wait`]). What a call computes
//! depends on none of this.

mod cache;
mod layout;
mod readers;
#[cfg(test)]
mod tests;
mod units;

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use goldcrest_format::TensorFiles;
use goldcrest_model::plan::Plan;

use crate::CpuError;
use crate::buffer::Piece;
use crate::exec::Step;

use cache::{Cache, Presence};
use layout::MatrixLayout;
pub use layout::Place;
use readers::Shared;
use units::Units;
pub use units::{StreamNeed, streamed_matrices};

/// Which experts make room for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Those that the fewest rows chose, older choices counting for less.
    #[default]
    LeastFrequent,
    /// Those that were chosen longest ago.
    LeastRecent,
}

/// Which weights are read when they are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streamed {
    /// Those of experts: a token wants few of them.
    #[default]
    Experts,
    /// Those of products and tables too, all of which every token wants.
    All,
}

/// How weights are kept that are read when they are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    pub streamed: Streamed,
    /// Most bytes of them in memory. More than all of them take is as much as they take.
    pub bytes: usize,
    pub eviction: Eviction,
    /// Threads that read.
    pub readers: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        StreamOptions {
            streamed: Streamed::default(),
            bytes: 0,
            eviction: Eviction::default(),
            readers: StreamOptions::READERS,
        }
    }
}

impl StreamOptions {
    /// Threads that read, unless told otherwise: enough to keep a fast disk busy.
    pub const READERS: usize = 8;

    /// Most bytes of matrices of a step of products, where these are streamed: enough to be worth a region of the threads, and little
    /// enough for several of them to be in memory.
    const STEP_BYTES: usize = 16 << 20;

    /// Most bytes of matrices of a step of products; none: however many there are.
    pub fn most_step_bytes(streamed: Option<Streamed>) -> Option<usize> {
        (streamed == Some(Streamed::All)).then_some(StreamOptions::STEP_BYTES)
    }
}

/// What happened to the streamed weights of a model so far: experts, and steps of products where these are streamed too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// Units that a call wanted and that were in memory, or on their way there.
    pub hits: u64,
    /// Units that a call wanted and that had to be read.
    pub misses: u64,
    /// Bytes that were read from files.
    pub bytes_read: u64,
    /// Time in which threads of a call waited for them, however many at once.
    pub waited: Duration,
    /// Of the experts of each layer, then of each step of products where these are streamed too.
    pub banks: Vec<BankCounters>,
}

/// The part of a layer or of a step in [`StreamCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BankCounters {
    pub hits: u64,
    pub misses: u64,
    pub bytes_read: u64,
    pub waited: Duration,
}

/// A projection of an expert: where its matrix stands among those of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    Up = 0,
    Down = 1,
    Gate = 2,
}

/// The streamed weights of a model.
pub struct WeightStore {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    /// Blocks that there are.
    blocks: usize,
    /// Units that surely fit at the same time.
    capacity: usize,
}

impl WeightStore {
    /// Makes room and starts the readers; reads nothing. `steps` are those of `plan`.
    ///
    /// # Errors
    /// [`CpuError::NoExperts`] if there is nothing to be streamed, [`CpuError::StreamMemory`] if not even one unit fits;
    /// [`CpuError::Alloc`], [`CpuError::Reader`].
    pub fn new(
        plan: &Arc<Plan>,
        steps: &[Step],
        files: &TensorFiles,
        options: StreamOptions,
    ) -> Result<WeightStore, CpuError> {
        let units = Units::of(plan, steps, options.streamed);
        let (block_bytes, most_blocks) = (units.block_bytes, units.most_blocks);
        let blocks = units.blocks_in(options.bytes)?;
        let window_bytes = units.window_bytes(plan, files)?;
        let cache = Cache::new(
            &units.bank_sizes(),
            plan.experts.len(),
            Piece::many(block_bytes, blocks)?,
            options.eviction,
        );
        let shared = Arc::new(Shared::new(Arc::clone(plan), files.clone(), cache, units));
        let mut store = WeightStore {
            shared,
            readers: Vec::new(),
            blocks,
            capacity: blocks / most_blocks.max(1),
        };
        // One by one, so that those that run are told to end if another cannot start.
        for index in 0..options.readers.max(1) {
            let reader = readers::start(&store.shared, index, window_bytes)?;
            store.readers.push(reader);
        }
        Ok(store)
    }

    /// Where the weights are read from.
    pub fn files(&self) -> &TensorFiles {
        &self.shared.files
    }

    /// Blocks that there are, for all units together.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Blocks that a unit of a bank takes.
    pub fn blocks_of(&self, bank: usize, unit: usize) -> usize {
        let units = &self.shared.units;
        units.blocks_of(units.firsts[bank] + unit)
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.shared.units.block_bytes
    }

    /// Units that surely fit at the same time.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Tells what the rows of a call chose in a layer, experts with their number of rows, before any of it is acquired.
    pub fn choose(&self, bank: usize, chosen: impl Iterator<Item = (usize, usize)>) {
        let first = self.shared.units.firsts[bank];
        let chosen = chosen.map(|(expert, rows)| (first + expert, rows));
        self.shared.lock().choose(bank, chosen);
    }

    /// Keeps units of a bank in memory until their leases end, and has those read that are not there. All leases that live together have
    /// room: they are at most [`WeightStore::capacity`], or their blocks no more than [`WeightStore::blocks`].
    ///
    /// # Panics
    /// If there are more: a caller's bug.
    pub fn acquire(&self, bank: usize, wanted: &[usize]) -> Vec<Lease> {
        let shared = &self.shared;
        let first = shared.units.firsts[bank];
        // Before the lock: leases that are dropped take it.
        let mut leases = Vec::with_capacity(wanted.len());
        let mut cache = shared.lock();
        for unit in wanted {
            cache.want(first + unit);
            leases.push(Lease {
                shared: Arc::clone(shared),
                unit: first + unit,
                blocks: OnceLock::new(),
            });
        }
        // What is here is held by now, so that it cannot make room for what is not.
        let blocks = |lease: &Lease| shared.units.blocks_of(lease.unit);
        let absent = leases.iter().filter(|lease| cache.is_absent(lease.unit));
        let room = absent.map(blocks).sum();
        cache.make_room(room);
        for lease in &leases {
            while cache.is_absent(lease.unit) || cache.is_lost(lease.unit) {
                if cache.is_absent(lease.unit) && cache.request(lease.unit, blocks(lease)) {
                    shared.work.notify_all();
                    break;
                }
                // Units that a call gave up are still on their way, this one perhaps.
                assert!(
                    cache.is_lost(lease.unit) || cache.is_anything_unleased_coming(),
                    "more weights than there is room for"
                );
                cache = shared.wait_for_arrival(cache, lease.unit);
            }
        }
        drop(cache);
        leases
    }

    pub fn counters(&self) -> StreamCounters {
        self.shared.lock().counters.clone()
    }
}

impl Drop for WeightStore {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for reader in self.readers.drain(..) {
            // A reader that panicked has said so.
            let _ = reader.join();
        }
    }
}

/// A unit that stays in memory while this lives, once it is there.
pub struct Lease {
    shared: Arc<Shared>,
    unit: usize,
    blocks: OnceLock<Arc<Vec<Piece>>>,
}

impl Lease {
    /// Whether it is there.
    pub fn is_here(&self) -> bool {
        if self.blocks.get().is_none()
            && let Presence::Here(blocks) = self.shared.lock().presence(self.unit)
        {
            // Another thread may have been first.
            let _ = self.blocks.set(Arc::clone(blocks));
        }
        self.blocks.get().is_some()
    }

    /// Waits until it is there; false if it could not be read ([`Lease::wait_or_fail`] says why).
    pub fn wait(&self) -> bool {
        if self.is_here() {
            return true;
        }
        let mut cache = self.shared.lock();
        while let Presence::Coming { .. } = cache.presence(self.unit) {
            cache = self.shared.wait_for_arrival(cache, self.unit);
        }
        drop(cache);
        self.is_here()
    }

    /// Waits until it is there.
    ///
    /// # Errors
    /// Why it could not be read.
    pub fn wait_or_fail(&self) -> Result<(), CpuError> {
        match self.wait() {
            true => Ok(()),
            false => Err(self
                .shared
                .lock()
                .take_error(self.unit)
                .unwrap_or(CpuError::ReaderPanicked)),
        }
    }

    /// A matrix of a unit that is there, by its place in it: its layout, and the blocks that it lies in.
    ///
    /// # Panics
    /// If it is not there.
    pub fn matrix(&self, place: usize) -> (&MatrixLayout, &[Piece]) {
        let blocks = self.blocks.get().expect("a unit is waited for before it is used");
        let units = &self.shared.units;
        let layout = &units.layouts[units.units[self.unit].layout];
        (&layout.matrices[place], blocks)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // First, so that the cache owns the blocks alone when it takes them away.
        self.blocks.take();
        self.shared.lock().release(self.unit);
    }
}

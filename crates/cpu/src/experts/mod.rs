//! Experts of models that are larger than the memory for them: those that were of use last are kept, the others read when a call wants
//! them.
//!
//! All experts of all layers share one budget, in blocks of one size ([`layout`]). A call [acquires](ExpertStore::acquire) the experts that
//! it is about to use. Threads of the store read what is missing, block by block and past the system's cache, and pack it; who needs an
//! expert waits for it ([`Lease::wait`]). What a call computes depends on none of this.

mod cache;
mod layout;
mod readers;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use goldcrest_format::TensorFiles;
use goldcrest_model::plan::{ExpertBank, ExpertsId, Plan};
use goldcrest_model::spec::Matrix;

use crate::CpuError;
use crate::buffer::{HUGE_PAGE_BYTES, Piece};
use crate::weights::Panels;
use crate::weights::window::Window;

use cache::{Cache, Chosen, Presence};
pub use layout::Place;
use layout::{Layout, MatrixLayout, block_bytes};
use readers::Shared;

/// Which experts make room for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Those that the fewest rows chose, older choices counting for less.
    #[default]
    LeastFrequent,
    /// Those that were chosen longest ago.
    LeastRecent,
}

/// How experts are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertOptions {
    /// Most bytes of experts in memory. More than all of them take is as much as they take.
    pub bytes: usize,
    pub eviction: Eviction,
    /// Threads that read.
    pub readers: usize,
}

impl Default for ExpertOptions {
    fn default() -> Self {
        ExpertOptions {
            bytes: 0,
            eviction: Eviction::default(),
            readers: ExpertOptions::READERS,
        }
    }
}

impl ExpertOptions {
    /// Threads that read, unless told otherwise: enough to keep a fast disk busy.
    pub const READERS: usize = 8;
}

/// What happened to the experts of a model so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertCounters {
    /// Experts that a call wanted and that were in memory, or on their way there.
    pub hits: u64,
    /// Experts that a call wanted and that had to be read.
    pub misses: u64,
    /// Bytes that were read from files.
    pub bytes_read: u64,
    /// Time in which threads of a call waited for experts, however many at once.
    pub waited: Duration,
    /// Rows that chose each expert, by layer.
    pub chosen: Vec<Vec<u64>>,
}

/// A projection of an expert: where its matrix stands in the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    Up = 0,
    Down = 1,
    Gate = 2,
}

/// The experts of a model.
pub struct ExpertStore {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    /// The first expert of each bank among those of all.
    firsts: Vec<usize>,
    /// Experts that surely fit at the same time.
    capacity: usize,
}

/// One expert of one layer.
struct Expert {
    /// Among [`Shared::layouts`].
    layout: usize,
    /// In the order of [`Projection`].
    matrices: Vec<Matrix>,
}

/// All experts of a plan, and how they lie in memory.
struct Experts {
    experts: Vec<Expert>,
    /// See [`ExpertStore::firsts`].
    firsts: Vec<usize>,
    layouts: Vec<Layout>,
    block_bytes: usize,
    /// Of all experts.
    all_blocks: usize,
    /// Of the largest expert.
    most_blocks: usize,
}

impl Experts {
    fn of(plan: &Plan) -> Experts {
        let mut shapes: Vec<(Vec<Panels>, usize)> = Vec::new();
        let mut experts = Vec::new();
        let mut firsts = Vec::new();
        for bank in &plan.experts {
            firsts.push(experts.len());
            for index in 0..bank.count {
                let matrices = matrices(plan, bank, index);
                let panels: Vec<Panels> = matrices.iter().map(Panels::of).collect();
                let known = shapes.iter().position(|(shape, _)| *shape == panels);
                let layout = known.unwrap_or_else(|| {
                    shapes.push((panels, 0));
                    shapes.len() - 1
                });
                shapes[layout].1 += 1;
                experts.push(Expert { layout, matrices });
            }
        }
        let block_bytes = block_bytes(&shapes);
        let layouts: Vec<Layout> = shapes
            .iter()
            .map(|(panels, _)| Layout::new(panels, block_bytes))
            .collect();
        let all_blocks: usize = layouts
            .iter()
            .zip(&shapes)
            .map(|(layout, (_, count))| layout.blocks * count)
            .sum();
        let most_blocks = layouts.iter().map(|layout| layout.blocks).max().unwrap_or(0);
        Experts {
            experts,
            firsts,
            layouts,
            block_bytes,
            all_blocks,
            most_blocks,
        }
    }
}

/// What the experts of a plan take of memory where they are read when they are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNeed {
    /// For the largest expert alone.
    pub least: u64,
    /// For all.
    pub all: u64,
    /// What one thread reads into.
    pub reader: u64,
}

impl ExpertNeed {
    /// Reads nothing; none without experts.
    ///
    /// # Errors
    /// [`CpuError::MissingTensor`].
    pub fn of(plan: &Plan, files: &TensorFiles) -> Result<Option<ExpertNeed>, CpuError> {
        if plan.experts.is_empty() {
            return Ok(None);
        }
        let experts = Experts::of(plan);
        let window_bytes = readers::window_bytes(files, &experts.experts, &experts.layouts)?;
        // Blocks lie in huge pages, the last of which need not be full.
        let blocks = |count: usize| (count * experts.block_bytes).next_multiple_of(HUGE_PAGE_BYTES) as u64;
        Ok(Some(ExpertNeed {
            least: blocks(experts.most_blocks),
            all: blocks(experts.all_blocks),
            reader: Window::memory_bytes(window_bytes) as u64,
        }))
    }
}

impl ExpertStore {
    /// Makes room and starts the readers; reads nothing.
    ///
    /// # Errors
    /// [`CpuError::ExpertMemory`] if not even one expert fits; [`CpuError::Alloc`], [`CpuError::Reader`].
    pub fn new(plan: &Plan, files: &TensorFiles, options: ExpertOptions) -> Result<ExpertStore, CpuError> {
        let Experts {
            experts,
            firsts,
            layouts,
            block_bytes,
            all_blocks,
            most_blocks,
        } = Experts::of(plan);
        let blocks = (options.bytes / block_bytes).min(all_blocks);
        if blocks < most_blocks {
            return Err(CpuError::ExpertMemory {
                bytes: options.bytes,
                least_bytes: most_blocks * block_bytes,
            });
        }
        let banks: Vec<usize> = plan.experts.iter().map(|bank| bank.count).collect();
        let shared = Arc::new(Shared::new(
            files.clone(),
            Cache::new(&banks, Piece::many(block_bytes, blocks)?, options.eviction),
            experts,
            layouts,
        ));
        let mut store = ExpertStore {
            shared,
            readers: Vec::new(),
            firsts,
            capacity: blocks / most_blocks.max(1),
        };
        // One by one, so that those that run are told to end if another cannot start.
        let window_bytes = readers::window_bytes(files, &store.shared.experts, &store.shared.layouts)?;
        for index in 0..options.readers.max(1) {
            let reader = readers::start(&store.shared, index, window_bytes)?;
            store.readers.push(reader);
        }
        Ok(store)
    }

    /// Experts that surely fit at the same time.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Tells what the rows of a call chose in a layer, experts with their number of rows, before any of it is acquired.
    pub fn choose(&self, bank: ExpertsId, chosen: impl Iterator<Item = (usize, usize)>) {
        let first = self.firsts[bank.0];
        let chosen = chosen.map(|(expert, rows)| Chosen {
            expert: first + expert,
            in_bank: expert,
            rows,
        });
        self.shared.lock().choose(bank.0, chosen);
    }

    /// Keeps experts of a bank in memory until their leases end, and has those read that are not there. With all leases that live there
    /// are at most [`ExpertStore::capacity`].
    ///
    /// # Panics
    /// If there are more: a caller's bug.
    pub fn acquire(&self, bank: ExpertsId, wanted: &[usize]) -> Vec<Lease> {
        let shared = &self.shared;
        let first = self.firsts[bank.0];
        // Before the lock: leases that are dropped take it.
        let mut leases = Vec::with_capacity(wanted.len());
        let mut cache = shared.lock();
        for expert in wanted {
            cache.want(first + expert);
            leases.push(Lease {
                shared: Arc::clone(shared),
                expert: first + expert,
                blocks: OnceLock::new(),
            });
        }
        // What is here is held by now, so that it cannot make room for what is not.
        let blocks = |lease: &Lease| shared.layouts[shared.experts[lease.expert].layout].blocks;
        let absent = leases.iter().filter(|lease| cache.is_absent(lease.expert));
        let room = absent.map(blocks).sum();
        cache.make_room(room);
        for lease in &leases {
            while cache.is_absent(lease.expert) || cache.is_lost(lease.expert) {
                if cache.is_absent(lease.expert) && cache.request(lease.expert, blocks(lease)) {
                    shared.work.notify_all();
                    break;
                }
                // Experts that a call gave up are still on their way, this one perhaps.
                assert!(
                    cache.is_lost(lease.expert) || cache.is_anything_unleased_coming(),
                    "more experts than there is room for"
                );
                cache = shared.wait_for_arrival(cache);
            }
        }
        drop(cache);
        leases
    }

    pub fn counters(&self) -> ExpertCounters {
        self.shared.lock().counters.clone()
    }
}

impl Drop for ExpertStore {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for reader in self.readers.drain(..) {
            // A reader that panicked has said so.
            let _ = reader.join();
        }
    }
}

/// The matrices of an expert, in the order of [`Projection`].
fn matrices(plan: &Plan, bank: &ExpertBank, expert: usize) -> Vec<Matrix> {
    let linears = [&bank.up, &bank.down].into_iter().chain(bank.gating.gate());
    let ids = linears.map(|linears| linears.matrices.start + expert);
    ids.map(|id| plan.matrices[id].clone()).collect()
}

/// An expert that stays in memory while this lives, once it is there.
pub struct Lease {
    shared: Arc<Shared>,
    expert: usize,
    blocks: OnceLock<Arc<Vec<Piece>>>,
}

impl Lease {
    /// Whether it is there.
    pub fn is_here(&self) -> bool {
        if self.blocks.get().is_none()
            && let Presence::Here(blocks) = self.shared.lock().presence(self.expert)
        {
            // Another thread may have been first.
            let _ = self.blocks.set(Arc::clone(blocks));
        }
        self.blocks.get().is_some()
    }

    /// Waits until it is there; false if it could not be read ([`Lease::take_error`]).
    pub fn wait(&self) -> bool {
        if self.is_here() {
            return true;
        }
        let mut cache = self.shared.lock();
        while let Presence::Coming { .. } = cache.presence(self.expert) {
            cache = self.shared.wait_for_arrival(cache);
        }
        drop(cache);
        self.is_here()
    }

    /// Why it could not be read, once.
    pub fn take_error(&self) -> Option<CpuError> {
        self.shared.lock().take_error(self.expert)
    }

    /// A matrix of an expert that is there: its layout, and the blocks that it lies in.
    ///
    /// # Panics
    /// If it is not there.
    pub fn matrix(&self, projection: Projection) -> (&MatrixLayout, &[Piece]) {
        let blocks = self.blocks.get().expect("an expert is waited for before it is used");
        let layout = &self.shared.layouts[self.shared.experts[self.expert].layout];
        (&layout.matrices[projection as usize], blocks)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // First, so that the cache owns the blocks alone when it takes them away.
        self.blocks.take();
        self.shared.lock().release(self.expert);
    }
}

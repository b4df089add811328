//! The threads that read units.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use goldcrest_format::TensorFiles;
use goldcrest_model::plan::Plan;

use super::cache::{Cache, Outcome, Task};
use super::layout::Run;
use super::units::Units;
use crate::CpuError;
use crate::weights::load::{Buffers, PanelSource};
use crate::weights::window::Window;
use crate::weights::{Panels, find, weights_error};

/// What calls and readers share.
pub struct Shared {
    plan: Arc<Plan>,
    pub files: TensorFiles,
    pub units: Units,
    cache: Mutex<Cache>,
    /// There is something to read, or the readers are to end.
    pub work: Condvar,
    /// Something was read, or could not be.
    pub arrived: Condvar,
}

impl Shared {
    pub fn new(plan: Arc<Plan>, files: TensorFiles, cache: Cache, units: Units) -> Shared {
        Shared {
            plan,
            files,
            units,
            cache: Mutex::new(cache),
            work: Condvar::new(),
            arrived: Condvar::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Cache> {
        // Whoever panicked while it was locked had a bug; what it left is no worse than what the panic said.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, for the sake of a unit, until something was read, or could not be.
    pub fn wait_for_arrival<'a>(&self, mut cache: MutexGuard<'a, Cache>, unit: usize) -> MutexGuard<'a, Cache> {
        cache.begin_waiting(unit);
        let mut cache = self.arrived.wait(cache).unwrap_or_else(PoisonError::into_inner);
        cache.end_waiting();
        cache
    }

    /// Waits for a block to read that is of use; none when the readers are to end.
    fn next_task(&self) -> Option<Task> {
        let mut cache = self.lock();
        loop {
            if cache.stop {
                return None;
            }
            while let Some(task) = cache.next_task() {
                if !cache.is_dropped(task.unit) {
                    return Some(task);
                }
                if cache.deliver(task, Outcome::Dropped) {
                    self.arrived.notify_all();
                }
            }
            cache = self.work.wait(cache).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads and packs what belongs into a block.
    fn fill(&self, task: &mut Task, buffers: &mut Buffers) -> Result<(), CpuError> {
        let unit = &self.units.units[task.unit];
        let layout = &self.units.layouts[unit.layout];
        for Run { matrix, panels, offset } in layout.runs(task.block) {
            let part = unit.matrices[matrix];
            let matrix = self.plan.matrix(part.id);
            let whole = Panels::of(matrix);
            let info = find(&self.files, &matrix.tensor)?;
            let source = PanelSource::new(&self.files, info, matrix)?;
            let target = &mut task.piece[offset..][..panels.len() * whole.panel_bytes];
            source
                .pack(&whole, part.panels(panels), target, buffers)
                .map_err(|error| weights_error(info, error))?;
        }
        Ok(())
    }
}

/// Starts a reader, with a window of so many bytes.
pub fn start(shared: &Arc<Shared>, index: usize, window_bytes: usize) -> Result<JoinHandle<()>, CpuError> {
    let mut buffers = Buffers {
        window: Some(Window::new(window_bytes)?),
        ..Buffers::default()
    };
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(format!("goldcrest-reader-{index}"));
    let started = thread.spawn(move || {
        while let Some(mut task) = shared.next_task() {
            // A panic is a bug, but whoever waits for the block would wait for ever.
            let outcome = catch_unwind(AssertUnwindSafe(|| shared.fill(&mut task, &mut buffers)))
                .unwrap_or(Err(CpuError::ReaderPanicked))
                .map_or_else(Outcome::Failed, |()| Outcome::Read);
            let bytes = buffers.window.as_mut().map_or(0, Window::take_bytes_read);
            let mut cache = shared.lock();
            cache.count_read(task.unit, bytes);
            if cache.deliver(task, outcome) {
                drop(cache);
                shared.arrived.notify_all();
            }
        }
    });
    started.map_err(CpuError::Reader)
}

//! Which units are in memory, which are on their way, and which make room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::{BankCounters, Eviction, StreamCounters};
use crate::CpuError;
use crate::buffer::Piece;

/// After so many choices of rows for each unit, earlier ones count half.
const CHOICES_PER_AGE: u64 = 32;

/// Where a unit is.
pub enum Presence {
    Absent,
    Coming {
        /// Blocks that have been read.
        arrived: Vec<Option<Piece>>,
        missing: usize,
        /// It will not come.
        lost: bool,
    },
    Here(Arc<Vec<Piece>>),
}

/// Threads that wait for units.
#[derive(Default)]
struct Waiting {
    threads: usize,
    /// When the first of them began, and for which bank.
    since: Option<(Instant, usize)>,
}

/// What became of a task.
pub enum Outcome {
    Read,
    Failed(CpuError),
    /// Another block of the unit failed, or nobody wants it any more.
    Dropped,
}

/// A block to be read.
pub struct Task {
    pub unit: usize,
    pub block: usize,
    pub piece: Piece,
}

/// What is known of a unit.
struct Entry {
    presence: Presence,
    bank: usize,
    leases: usize,
    /// Rows that chose it, older choices counting for less.
    choices: u64,
    /// When it was last wanted.
    last: u64,
    /// Rows of the op that runs chose it, and it is still to be wanted.
    awaited: bool,
    /// Why it could not be read.
    error: Option<CpuError>,
}

/// The units in memory.
pub struct Cache {
    entries: Vec<Entry>,
    free: Vec<Piece>,
    tasks: VecDeque<Task>,
    eviction: Eviction,
    /// Goes up with every want.
    clock: u64,
    /// Rows that chose a unit, older choices counting for less: of each bank in which rows choose.
    bank_choices: Vec<u64>,
    choices_left: u64,
    /// Those that are [`Entry::awaited`].
    awaited: Vec<usize>,
    waiting: Waiting,
    pub counters: StreamCounters,
    /// The readers are to end.
    pub stop: bool,
}

impl Cache {
    /// `banks` has the number of units of each bank; in the first `chosen_banks` rows choose, of the others every call wants all.
    pub fn new(banks: &[usize], chosen_banks: usize, free: Vec<Piece>, eviction: Eviction) -> Cache {
        let entry = |bank| Entry {
            presence: Presence::Absent,
            bank,
            leases: 0,
            choices: 0,
            last: 0,
            awaited: false,
            error: None,
        };
        let in_banks = banks.iter().enumerate();
        let entries = in_banks.flat_map(|(bank, count)| (0..*count).map(move |_| entry(bank)));
        let entries: Vec<Entry> = entries.collect();
        Cache {
            choices_left: CHOICES_PER_AGE * entries.len() as u64,
            entries,
            bank_choices: vec![0; chosen_banks],
            free,
            tasks: VecDeque::new(),
            eviction,
            clock: 0,
            awaited: Vec::new(),
            waiting: Waiting::default(),
            counters: StreamCounters {
                banks: vec![BankCounters::default(); banks.len()],
                ..StreamCounters::default()
            },
            stop: false,
        }
    }

    pub fn presence(&self, unit: usize) -> &Presence {
        &self.entries[unit].presence
    }

    pub fn is_absent(&self, unit: usize) -> bool {
        matches!(self.entries[unit].presence, Presence::Absent)
    }

    /// Notes what the rows of a call chose in a layer, units with their number of rows, all of it before any of it is wanted: shares of a
    /// layer that is half told would make those seem of little use that are about to be wanted.
    pub fn choose(&mut self, bank: usize, chosen: impl Iterator<Item = (usize, usize)>) {
        for unit in self.awaited.drain(..) {
            self.entries[unit].awaited = false;
        }
        for (unit, rows) in chosen {
            self.entries[unit].awaited = true;
            self.awaited.push(unit);
            let rows = rows as u64;
            self.entries[unit].choices += rows;
            self.bank_choices[bank] += rows;
            self.choices_left = self.choices_left.saturating_sub(rows);
        }
        if self.choices_left == 0 {
            self.choices_left = CHOICES_PER_AGE * self.entries.len() as u64;
            self.entries.iter_mut().for_each(|entry| entry.choices /= 2);
            self.bank_choices.iter_mut().for_each(|choices| *choices /= 2);
        }
    }

    /// Notes that a call wants a unit, which a lease holds from now on.
    pub fn want(&mut self, unit: usize) {
        let is_missing = self.is_absent(unit) || self.is_lost(unit);
        let of_bank = &mut self.counters.banks[self.entries[unit].bank];
        let (all, of_bank) = match is_missing {
            true => (&mut self.counters.misses, &mut of_bank.misses),
            false => (&mut self.counters.hits, &mut of_bank.hits),
        };
        *all += 1;
        *of_bank += 1;
        self.clock += 1;
        let entry = &mut self.entries[unit];
        entry.leases += 1;
        entry.last = self.clock;
        entry.awaited = false;
    }

    pub fn release(&mut self, unit: usize) {
        self.entries[unit].leases -= 1;
    }

    /// Takes blocks of those that are worth least until `blocks` are free, if there are so many that nobody leases.
    pub fn make_room(&mut self, blocks: usize) {
        let Some(lacking) = blocks.checked_sub(self.free.len()).filter(|lacking| *lacking > 0) else {
            return;
        };
        // Shares, since layers are told one after the other: by numbers, those of a long prompt's next layers would seem of little use.
        let worth = |entry: &Entry| match self.eviction {
            // Every call wants it. Calls come by in the same order, so that of such units the one used last is the last to come again.
            _ if entry.bank >= self.bank_choices.len() => f64::MAX,
            Eviction::LeastFrequent => entry.choices as f64 / self.bank_choices[entry.bank].max(1) as f64,
            Eviction::LeastRecent => entry.last as f64,
        };
        let idle = self.entries.iter().enumerate();
        let idle = idle.filter(|(_, entry)| entry.leases == 0 && matches!(entry.presence, Presence::Here(_)));
        // Of equal ones the last that was wanted goes first, as its layer is the last to come again.
        let mut idle: Vec<(bool, f64, u64, usize)> = idle
            .map(|(unit, entry)| (entry.awaited, worth(entry), u64::MAX - entry.last, unit))
            .collect();
        let order = |a: &(bool, f64, u64, usize), b: &(bool, f64, u64, usize)| {
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2))
        };
        // Each has a block at least.
        if lacking < idle.len() {
            idle.select_nth_unstable_by(lacking, order);
            idle.truncate(lacking);
        }
        idle.sort_unstable_by(order);
        for (.., unit) in idle {
            if self.free.len() >= blocks {
                return;
            }
            let presence = std::mem::replace(&mut self.entries[unit].presence, Presence::Absent);
            if let Presence::Here(blocks) = presence {
                self.free
                    .extend(Arc::into_inner(blocks).expect("leases gave their blocks back"));
            }
        }
    }

    /// Has an absent unit read into `blocks` blocks; false if they are not to be had.
    pub fn request(&mut self, unit: usize, blocks: usize) -> bool {
        self.make_room(blocks);
        if self.free.len() < blocks {
            return false;
        }
        let pieces = self.free.split_off(self.free.len() - blocks);
        let tasks = pieces.into_iter().enumerate();
        self.tasks
            .extend(tasks.map(|(block, piece)| Task { unit, block, piece }));
        let entry = &mut self.entries[unit];
        entry.error = None;
        entry.presence = Presence::Coming {
            arrived: (0..blocks).map(|_| None).collect(),
            missing: blocks,
            lost: false,
        };
        true
    }

    /// Whether a unit is on its way that nobody waits for.
    pub fn is_anything_unleased_coming(&self) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.leases == 0 && matches!(entry.presence, Presence::Coming { .. }))
    }

    /// The next block to read.
    pub fn next_task(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    /// Whether a unit on its way will not come.
    pub fn is_lost(&self, unit: usize) -> bool {
        matches!(self.entries[unit].presence, Presence::Coming { lost: true, .. })
    }

    /// Whether a task of a unit need not be done.
    pub fn is_dropped(&self, unit: usize) -> bool {
        self.is_lost(unit) || self.entries[unit].leases == 0
    }

    /// Why a unit could not be read, once.
    pub fn take_error(&mut self, unit: usize) -> Option<CpuError> {
        self.entries[unit].error.take()
    }

    /// Notes what was read of a unit.
    pub fn count_read(&mut self, unit: usize, bytes: u64) {
        self.counters.bytes_read += bytes;
        self.counters.banks[self.entries[unit].bank].bytes_read += bytes;
    }

    /// A thread begins to wait for a unit.
    pub fn begin_waiting(&mut self, unit: usize) {
        self.waiting.threads += 1;
        let bank = self.entries[unit].bank;
        self.waiting.since.get_or_insert_with(|| (Instant::now(), bank));
    }

    /// A thread has waited.
    pub fn end_waiting(&mut self) {
        self.waiting.threads -= 1;
        if self.waiting.threads == 0 {
            let Some((since, bank)) = self.waiting.since.take() else {
                return;
            };
            let time = since.elapsed();
            self.counters.waited += time;
            self.counters.banks[bank].waited += time;
        }
    }

    /// Takes a block back. True if somebody may have waited for that.
    pub fn deliver(&mut self, task: Task, outcome: Outcome) -> bool {
        let entry = &mut self.entries[task.unit];
        let Presence::Coming { arrived, missing, lost } = &mut entry.presence else {
            unreachable!("the tasks of a unit end before it is anything else");
        };
        arrived[task.block] = Some(task.piece);
        *missing -= 1;
        match outcome {
            Outcome::Read => {}
            Outcome::Dropped => *lost = true,
            Outcome::Failed(error) => {
                *lost = true;
                entry.error = Some(error);
            }
        }
        if *missing > 0 {
            return false;
        }
        let blocks: Vec<Piece> = arrived.drain(..).flatten().collect();
        entry.presence = match *lost {
            true => {
                self.free.extend(blocks);
                Presence::Absent
            }
            false => Presence::Here(Arc::new(blocks)),
        };
        true
    }
}

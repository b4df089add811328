//! Which experts are in memory, which are on their way, and which make room.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Eviction, ExpertCounters};
use crate::CpuError;
use crate::buffer::Piece;

/// After so many choices of rows for each expert, earlier ones count half.
const CHOICES_PER_AGE: u64 = 32;

/// Where an expert is.
pub enum Presence {
    Absent,
    Coming {
        /// Blocks that have been read.
        arrived: Vec<Option<Piece>>,
        missing: usize,
        failed: bool,
    },
    Here(Arc<Vec<Piece>>),
}

/// A block to be read.
pub struct Task {
    pub expert: usize,
    pub block: usize,
    pub piece: Piece,
}

/// What is known of an expert.
struct Entry {
    presence: Presence,
    bank: usize,
    leases: usize,
    /// Rows that chose it, older choices counting for less.
    choices: u64,
    /// When it was last wanted.
    last: u64,
}

/// An expert that rows of a call chose.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// Among all.
    pub expert: usize,
    /// In its bank.
    pub in_bank: usize,
    pub rows: usize,
}

/// The experts in memory.
pub struct Cache {
    entries: Vec<Entry>,
    free: Vec<Piece>,
    blocks: usize,
    tasks: VecDeque<Task>,
    eviction: Eviction,
    /// Goes up with every want.
    clock: u64,
    /// Rows that chose an expert of each layer, older choices counting for less.
    bank_choices: Vec<u64>,
    choices_left: u64,
    /// Of the last expert that could not be read.
    pub failure: Option<CpuError>,
    pub counters: ExpertCounters,
    /// The readers are to end.
    pub stop: bool,
}

impl Cache {
    /// `banks` has the number of experts of each layer.
    pub fn new(banks: &[usize], free: Vec<Piece>, eviction: Eviction) -> Cache {
        let entry = |bank| Entry {
            presence: Presence::Absent,
            bank,
            leases: 0,
            choices: 0,
            last: 0,
        };
        let in_banks = banks.iter().enumerate();
        let entries = in_banks.flat_map(|(bank, count)| (0..*count).map(move |_| entry(bank)));
        let entries: Vec<Entry> = entries.collect();
        Cache {
            choices_left: CHOICES_PER_AGE * entries.len() as u64,
            entries,
            bank_choices: vec![0; banks.len()],
            blocks: free.len(),
            free,
            tasks: VecDeque::new(),
            eviction,
            clock: 0,
            failure: None,
            counters: ExpertCounters {
                chosen: banks.iter().map(|count| vec![0; *count]).collect(),
                ..ExpertCounters::default()
            },
            stop: false,
        }
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    pub fn presence(&self, expert: usize) -> &Presence {
        &self.entries[expert].presence
    }

    pub fn is_absent(&self, expert: usize) -> bool {
        matches!(self.entries[expert].presence, Presence::Absent)
    }

    /// Notes what the rows of a call chose in a layer, all of it before any of it is wanted: shares of a layer that is half told would
    /// make those seem of little use that are about to be wanted.
    pub fn choose(&mut self, bank: usize, chosen: impl Iterator<Item = Chosen>) {
        for Chosen { expert, in_bank, rows } in chosen {
            let rows = rows as u64;
            self.entries[expert].choices += rows;
            self.bank_choices[bank] += rows;
            self.counters.chosen[bank][in_bank] += rows;
            self.choices_left = self.choices_left.saturating_sub(rows);
        }
        if self.choices_left == 0 {
            self.choices_left = CHOICES_PER_AGE * self.entries.len() as u64;
            self.entries.iter_mut().for_each(|entry| entry.choices /= 2);
            self.bank_choices.iter_mut().for_each(|choices| *choices /= 2);
        }
    }

    /// Notes that a call wants an expert, which a lease holds from now on.
    pub fn want(&mut self, expert: usize) {
        match self.is_absent(expert) {
            true => self.counters.misses += 1,
            false => self.counters.hits += 1,
        }
        self.clock += 1;
        let entry = &mut self.entries[expert];
        entry.leases += 1;
        entry.last = self.clock;
    }

    pub fn release(&mut self, expert: usize) {
        self.entries[expert].leases -= 1;
    }

    /// Has an absent expert read into `blocks` blocks, which others may have to leave; false if there is no room.
    pub fn request(&mut self, expert: usize, blocks: usize) -> bool {
        while self.free.len() < blocks {
            if !self.evict() {
                return false;
            }
        }
        let pieces = self.free.split_off(self.free.len() - blocks);
        let tasks = pieces.into_iter().enumerate();
        self.tasks
            .extend(tasks.map(|(block, piece)| Task { expert, block, piece }));
        self.entries[expert].presence = Presence::Coming {
            arrived: (0..blocks).map(|_| None).collect(),
            missing: blocks,
            failed: false,
        };
        true
    }

    /// Whether an expert is on its way that nobody waits for.
    pub fn is_anything_unleased_coming(&self) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.leases == 0 && matches!(entry.presence, Presence::Coming { .. }))
    }

    /// Takes the blocks of the expert that is worth least; false if all are held.
    fn evict(&mut self) -> bool {
        let (eviction, bank_choices) = (self.eviction, &self.bank_choices);
        // Shares, since layers are told one after the other: by numbers, those of a long prompt's next layers would seem of little use.
        let share = |entry: &Entry| entry.choices as f64 / bank_choices[entry.bank].max(1) as f64;
        let order = |a: &Entry, b: &Entry| match eviction {
            // Of equal ones the last that was wanted, as its layer is the last to come again.
            Eviction::LeastFrequent => share(a).total_cmp(&share(b)).then(b.last.cmp(&a.last)),
            Eviction::LeastRecent => a.last.cmp(&b.last),
        };
        let entries = self.entries.iter_mut();
        let idle = entries.filter(|entry| entry.leases == 0 && matches!(entry.presence, Presence::Here(_)));
        let least = idle.min_by(|a, b| order(a, b));
        let Some(entry) = least else { return false };
        if let Presence::Here(blocks) = std::mem::replace(&mut entry.presence, Presence::Absent) {
            self.free
                .extend(Arc::into_inner(blocks).expect("leases gave their blocks back"));
        }
        true
    }

    /// The next block to read.
    pub fn next_task(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    /// Whether a block of the expert could not be read, so that the others are of no use.
    pub fn has_failed(&self, expert: usize) -> bool {
        matches!(self.entries[expert].presence, Presence::Coming { failed: true, .. })
    }

    /// Takes a block back, read or not. True if somebody may have waited for that.
    pub fn deliver(&mut self, task: Task, result: Result<(), CpuError>) -> bool {
        let Presence::Coming {
            arrived,
            missing,
            failed,
        } = &mut self.entries[task.expert].presence
        else {
            unreachable!("the tasks of an expert end before it is anything else");
        };
        arrived[task.block] = Some(task.piece);
        *missing -= 1;
        if let Err(error) = result {
            *failed = true;
            self.failure = Some(error);
        }
        if *missing > 0 {
            return false;
        }
        let blocks: Vec<Piece> = arrived.drain(..).flatten().collect();
        self.entries[task.expert].presence = match *failed {
            true => {
                self.free.extend(blocks);
                Presence::Absent
            }
            false => Presence::Here(Arc::new(blocks)),
        };
        true
    }
}

//! One sequence, fed in chunks: alone or beside others ([`batch`]), gone back to ([`snapshot`]), kept in a file ([`saved`]).

mod batch;
mod saved;
mod snapshot;

use std::sync::atomic::AtomicBool;

use goldcrest_cpu::{CpuError, State};
use goldcrest_model::backend::{Backend, Probe};

use crate::counters::Counters;
use crate::engine::Engine;
use crate::steering::Steering;

pub use batch::{BatchError, BatchFeed};
pub use saved::{LoadError, LoadProblem, SaveError};
pub use snapshot::{RestoreError, Snapshot};

/// Consecutive tokens to feed. Any cut of a sequence into chunks gives the same bits.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Position of the first token: the session's length, said again so that a mistake is found.
    pub start: usize,
    /// Token ids.
    pub ids: &'a [u32],
    /// The rows whose logits are computed.
    pub want: Want<'a>,
}

/// Rows of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want<'a> {
    /// None: the head does not run.
    Nothing,
    /// The last one.
    Last,
    /// Every one.
    All,
    /// These, ascending, counted from the chunk's start.
    Rows(&'a [usize]),
}

impl Want<'_> {
    /// How many rows of a chunk of `len` tokens are wanted.
    pub fn count(&self, len: usize) -> usize {
        match self {
            Want::Nothing => 0,
            Want::Last => len.min(1),
            Want::All => len,
            Want::Rows(rows) => rows.len(),
        }
    }

    /// How many of the wanted rows of a chunk of `len` tokens come before row `to`.
    fn count_before(&self, len: usize, to: usize) -> usize {
        match self {
            Want::Nothing => 0,
            Want::Last => usize::from(to >= len),
            Want::All => to,
            Want::Rows(rows) => rows.partition_point(|row| *row < to),
        }
    }

    /// Appends the wanted rows in `from..to` of a chunk of `len` tokens, counted from `from`.
    fn within(&self, len: usize, from: usize, to: usize, out: &mut Vec<usize>) {
        let inside = |row: &usize| (from..to).contains(row);
        match self {
            Want::Nothing => {}
            Want::Last => out.extend(Some(len - 1).filter(inside).map(|row| row - from)),
            Want::All => out.extend(0..to - from),
            Want::Rows(rows) => out.extend(rows.iter().copied().filter(inside).map(|row| row - from)),
        }
    }
}

/// Who looks on while a chunk is fed.
#[derive(Default)]
pub struct Watch<'a> {
    /// Set by another thread to stop between forward calls.
    pub cancel: Option<&'a AtomicBool>,
    /// Called after each op.
    pub probe: Option<&'a mut dyn Probe>,
}

/// Why a session could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A sequence of no positions cannot be fed.
    #[error("a session needs a capacity of at least one position")]
    NoCapacity,
    /// The model has learned so many positions, and no others.
    #[error("a session of {capacity} positions is too long: the model has {positions} learned positions")]
    TooManyPositions {
        /// As asked for.
        capacity: usize,
        /// Of the model.
        positions: usize,
    },
    /// The back end has no state for it.
    #[error(transparent)]
    Backend(#[from] CpuError),
}

/// Why a chunk was not fed, or not to its end. All but the last two are found before anything changes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FeedError {
    /// States belong to the engine that made them.
    #[error("the session belongs to another engine than the one that is to feed it")]
    OtherEngine,
    /// A chunk without tokens.
    #[error("the chunk is empty")]
    EmptyChunk,
    /// A chunk that would leave a gap or an overlap.
    #[error("the chunk starts at position {start}, but the session is at {position}")]
    WrongStart {
        /// As the chunk says.
        start: usize,
        /// Where it has to start.
        position: usize,
    },
    /// An id that the model does not have.
    #[error("token {id} at index {index} is outside the vocabulary of {vocabulary} tokens")]
    IdOutsideVocabulary {
        /// Index in the chunk.
        index: usize,
        /// The id.
        id: u32,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// More tokens than the session was made for.
    #[error("{tokens} more tokens do not fit: the session holds {position} of at most {capacity} positions")]
    CapacityExceeded {
        /// Tokens of the chunk.
        tokens: usize,
        /// Positions held.
        position: usize,
        /// Positions the session was made for.
        capacity: usize,
    },
    /// Wanted rows out of order or outside the chunk.
    #[error("wanted rows must ascend and lie in a chunk of {tokens} tokens; row {row} does not")]
    WantedRow {
        /// The first wrong one.
        row: usize,
        /// Tokens of the chunk.
        tokens: usize,
    },
    /// The logits' buffer has another size than `[wanted rows, vocabulary]`.
    #[error("the buffer for logits holds {found} numbers, but the wanted rows have {expected}")]
    LogitsLength {
        /// Its length.
        found: usize,
        /// The length it has to have.
        expected: usize,
    },
    /// Cancelled; the tokens before `position` are fed.
    #[error("cancelled at position {position}")]
    Cancelled {
        /// The session's length now.
        position: usize,
    },
    /// A forward call failed; the tokens before `position` are fed.
    #[error("the forward call failed at position {position}: {source}")]
    Forward {
        /// The session's length now.
        position: usize,
        /// What failed.
        source: CpuError,
    },
}

/// A session cannot be steered so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// What a session holds is a function of its tokens and one steering.
    #[error("the session holds {position} positions: its steering can change only while it is empty")]
    NotEmpty {
        /// Positions held.
        position: usize,
    },
    /// It was made for a model of another width or number of layers.
    #[error("the steering was made for another model")]
    OtherModel,
}

/// A session cannot go back that far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewindError {
    /// There are not that many positions.
    #[error("cannot rewind to {length}: the session holds {position} positions")]
    Ahead {
        /// Length asked for.
        length: usize,
        /// Length of the session.
        position: usize,
    },
    /// A window has moved past what would be seen again, or recurrent memories have replaced it.
    #[error(
        "cannot rewind to {length}: the layers have let go of what they held there; the shortest possible but 0 is {shortest}, \
         and snapshots can be taken for the way back"
    )]
    Gone {
        /// Length asked for.
        length: usize,
        /// Shortest length possible but 0.
        shortest: usize,
    },
}

/// One sequence: the ids fed so far and the state they produced.
pub struct Session {
    engine: Engine,
    state: State,
    ids: Vec<u32>,
    capacity: usize,
    /// What is done to its residual stream, if that is anything; all of `ids` were fed so.
    steering: Option<Steering>,
    counters: Option<Box<Counters>>,
    /// Reused: the wanted rows of a forward call.
    wanted: Vec<usize>,
}

impl Session {
    pub(crate) fn new(engine: Engine, capacity: usize) -> Result<Session, SessionError> {
        if capacity == 0 {
            return Err(SessionError::NoCapacity);
        }
        if let Some(positions) = engine.plan().positions_max().filter(|positions| capacity > *positions) {
            return Err(SessionError::TooManyPositions { capacity, positions });
        }
        let state = engine.backend().state(engine.program(), capacity)?;
        Ok(Session {
            engine,
            state,
            ids: Vec::new(),
            capacity,
            steering: None,
            counters: None,
            wanted: Vec::new(),
        })
    }

    /// Feeds a chunk. `logits` receives `[wanted rows, vocabulary]` in the order of the rows.
    ///
    /// # Errors
    /// [`FeedError`]; the session is then at the position that it reports, exactly as if the tokens before had been fed. `logits` then
    /// holds nothing of use.
    pub fn feed(&mut self, chunk: Chunk, logits: &mut [f32]) -> Result<(), FeedError> {
        self.feed_watched(chunk, logits, Watch::default())
    }

    /// As [`Session::feed`], with somebody looking on.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_watched(&mut self, chunk: Chunk, logits: &mut [f32], watch: Watch) -> Result<(), FeedError> {
        let engine = self.engine.clone();
        let feed = BatchFeed {
            session: self,
            chunk,
            logits,
        };
        let result = engine.feed_batch_watched(&mut [feed], watch);
        result.map_err(|error| error.of_one(self.position()))
    }

    /// Everything that can be wrong about a chunk.
    fn check(&self, chunk: &Chunk, logits_len: usize) -> Result<(), FeedError> {
        let (position, tokens) = (self.position(), chunk.ids.len());
        let vocabulary = self.engine.spec().vocabulary;
        if tokens == 0 {
            return Err(FeedError::EmptyChunk);
        }
        if chunk.start != position {
            return Err(FeedError::WrongStart {
                start: chunk.start,
                position,
            });
        }
        if let Some((index, &id)) = chunk.ids.iter().enumerate().find(|(_, id)| **id as usize >= vocabulary) {
            return Err(FeedError::IdOutsideVocabulary { index, id, vocabulary });
        }
        if tokens > self.capacity - position {
            return Err(FeedError::CapacityExceeded {
                tokens,
                position,
                capacity: self.capacity,
            });
        }
        if let Want::Rows(rows) = chunk.want {
            let mut next = 0;
            for &row in rows {
                if row < next || row >= tokens {
                    return Err(FeedError::WantedRow { row, tokens });
                }
                next = row + 1;
            }
        }
        let expected = chunk.want.count(tokens) * vocabulary;
        if logits_len != expected {
            return Err(FeedError::LogitsLength {
                found: logits_len,
                expected,
            });
        }
        Ok(())
    }

    /// Number of tokens fed: where the next chunk starts.
    pub fn position(&self) -> usize {
        self.ids.len()
    }

    /// The tokens fed.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Positions the session was made for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The engine that it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Goes back to `length` tokens, as if the others had never been fed. 0 is always possible.
    ///
    /// # Errors
    /// [`RewindError`]; nothing changes then.
    pub fn rewind(&mut self, length: usize) -> Result<(), RewindError> {
        let position = self.position();
        if length > position {
            return Err(RewindError::Ahead { length, position });
        }
        let backend = self.engine.backend();
        backend
            .rewind(&mut self.state, length)
            .map_err(|shortest| RewindError::Gone { length, shortest })?;
        self.ids.truncate(length);
        Ok(())
    }

    /// Steers all tokens that are fed from now on, or none with `None`. The session has to be empty (fresh, or rewound to 0), so that what
    /// it holds is a function of its tokens and of its steering. Forks and snapshots are steered alike.
    ///
    /// # Errors
    /// [`SteerError`]; nothing changes then.
    pub fn steer(&mut self, steering: Option<Steering>) -> Result<(), SteerError> {
        let position = self.position();
        if position > 0 {
            return Err(SteerError::NotEmpty { position });
        }
        if steering.as_ref().is_some_and(|steering| !steering.fits(&self.engine)) {
            return Err(SteerError::OtherModel);
        }
        self.steering = steering.filter(|steering| !steering.is_idle());
        Ok(())
    }

    /// What it is steered with. `None` also if that changes nothing.
    pub fn steering(&self) -> Option<&Steering> {
        self.steering.as_ref()
    }

    /// Numbers of keys and values that were too large for their type and were stored as its largest, over all tokens that the
    /// state has seen.
    pub fn saturated(&self) -> u64 {
        self.engine.backend().saturated(&self.state)
    }

    /// Bytes of memory that the state holds. Pages shared with forks and snapshots count in each of them.
    pub fn bytes(&self) -> usize {
        self.engine.backend().state_bytes(&self.state)
    }

    /// Everything that tokens to come can see, as bytes: equal for equal histories, however they were fed.
    pub fn visible_state(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.engine.backend().visible(&self.state, &mut bytes);
        bytes
    }

    /// Starts to count calls, tokens, time and bytes, or starts anew.
    pub fn count(&mut self) {
        self.counters = Some(Box::default());
    }

    /// What was counted since [`Session::count`].
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_deref()
    }
}

//! A session in a file.
//!
//! ```text
//! magic "GOLDSESS", format version u32
//! fingerprint of the model [32], numeric options as text [48], digest of the steering [32], positions u64, capacity u64
//!                                                                                                    the head, with what is above
//! record: ids, u32 each
//! records of the state, as the back end makes them
//! ```
//!
//! All numbers are little-endian. The head and each record are followed by a seal: the SHA-256 of the seal before (32 zeros at first) and
//! of what it follows. So each byte is vouched for at its place; a file that is damaged, cut short or put together from others is refused
//! whole. The head says how long the file is, so nothing is allocated on the word of a count that the file does not bear out.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use goldcrest_cpu::CpuError;
use goldcrest_format::AtomicFile;
use goldcrest_model::backend::Backend;

use super::{Session, SessionError, SteerError};
use crate::digest::{Bytes32, Digester};
use crate::engine::Engine;
use crate::steering::Steering;

const MAGIC: &[u8; 8] = b"GOLDSESS";
/// Rises with every change of this file, of a page or of what decides a bit of the state.
const FORMAT_VERSION: u32 = 2;
const NUMERICS_BYTES: usize = 48;
const SEAL_BYTES: usize = size_of::<Bytes32>();
const BUFFER_BYTES: usize = 1 << 20;

/// A session was not saved.
#[derive(Debug, thiserror::Error)]
#[error("saving a session as {}: {source}", path.display())]
pub struct SaveError {
    /// The file that was asked for. If there was one of this name, it is as before.
    pub path: PathBuf,
    /// What failed.
    pub source: io::Error,
}

/// A session was not loaded.
#[derive(Debug, thiserror::Error)]
#[error("loading a session from {}: {problem}", path.display())]
pub struct LoadError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    #[source]
    pub problem: LoadProblem,
}

/// Why a session was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadProblem {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something else than a saved session.
    #[error("this is no saved session")]
    NotASession,
    /// Another version of the format.
    #[error(
        "the file has version {found} of the format; this program reads version {expected}. Feed the sequence again"
    )]
    Version {
        /// In the file.
        found: u32,
        /// The one that can be read.
        expected: u32,
    },
    /// Bytes have changed since it was saved.
    #[error("the file is damaged in the {bytes} bytes from {offset} on")]
    Damaged {
        /// Where the damaged part begins in the file.
        offset: u64,
        /// Its length with its seal.
        bytes: u64,
    },
    /// Part of the file is missing, or there is more than it should hold.
    #[error("the file has {found} bytes, but a session like this takes {expected}")]
    Length {
        /// Bytes of the file.
        found: u64,
        /// Bytes it has to have.
        expected: u64,
    },
    /// Saved from another model.
    #[error("the session belongs to another model than the one that is open")]
    OtherModel,
    /// Saved from an engine with other numbers.
    #[error("the session was computed with {found}, the engine computes with {expected}")]
    OtherNumerics {
        /// Options of the engine that saved it.
        found: String,
        /// Options of this one.
        expected: String,
    },
    /// Saved from a session that was steered otherwise.
    #[error(
        "the session was steered with something else than it is to be steered with now, or one of the two with nothing"
    )]
    OtherSteering,
    /// The steering does not fit the model.
    #[error(transparent)]
    Steer(#[from] SteerError),
    /// The session does not fit.
    #[error("the session holds {positions} positions, more than the capacity of {capacity}")]
    CapacityExceeded {
        /// Positions held.
        positions: u64,
        /// Positions asked for.
        capacity: usize,
    },
    /// The model's rotations depend on the capacity, and the two differ.
    #[error(
        "the session was computed with a capacity of {found}; with this model no other will do, and {expected} was asked for"
    )]
    OtherCapacity {
        /// Capacity of the session that was saved.
        found: u64,
        /// Positions asked for.
        expected: usize,
    },
    /// No session of that capacity can be made.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl From<CpuError> for LoadProblem {
    fn from(error: CpuError) -> LoadProblem {
        LoadProblem::Session(error.into())
    }
}

impl Session {
    /// Writes the session to a file, from which [`Engine::restore`] makes it again, in any process that has the same model open with the
    /// same numeric options. The file appears whole or not at all: it is written beside its place and then renamed.
    ///
    /// # Errors
    /// [`SaveError`].
    pub fn save(&self, path: &Path) -> Result<(), SaveError> {
        self.write_new(path).map_err(|source| SaveError {
            path: path.to_owned(),
            source,
        })
    }

    fn write_new(&self, path: &Path) -> io::Result<()> {
        let mut out = Sealed::new(AtomicFile::create(path)?);
        out.write(&Head::of(self).to_bytes())?;
        let ids: Vec<u8> = self.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        out.write(&ids)?;
        self.engine
            .backend()
            .save(&self.state, &mut |record| out.write(record))?;
        out.inner.finish()
    }
}

impl Engine {
    /// The session that [`Session::save`] wrote to `path`, with room for `capacity` positions.
    ///
    /// # Errors
    /// [`LoadError`], if anything about the file is not as it was written, or it was written by another model, other numeric options or
    /// another version.
    pub fn restore(&self, path: &Path, capacity: usize) -> Result<Session, LoadError> {
        self.restore_steered(path, capacity, None)
    }

    /// As [`Engine::restore`], of a session that was steered so. The file knows only what it was steered with, not the vectors.
    ///
    /// # Errors
    /// As [`Engine::restore`]; also if the session was steered otherwise, or not at all.
    pub fn restore_steered(
        &self,
        path: &Path,
        capacity: usize,
        steering: Option<Steering>,
    ) -> Result<Session, LoadError> {
        self.read_session(path, capacity, steering)
            .map_err(|problem| LoadError {
                path: path.to_owned(),
                problem,
            })
    }

    fn read_session(&self, path: &Path, capacity: usize, steering: Option<Steering>) -> Result<Session, LoadProblem> {
        let file = File::open(path)?;
        let found = file.metadata()?.len();
        let mut input = Sealed::new(BufReader::with_capacity(BUFFER_BYTES, file));
        let head = Head::read(&mut input)?;
        let mut session = self.session(capacity)?;
        session.steer(steering)?;
        head.check(&session)?;
        let positions = head.positions;
        let length = usize::try_from(positions).ok().filter(|length| *length <= capacity);
        let length = length.ok_or(LoadProblem::CapacityExceeded { positions, capacity })?;
        let expected = self.saved_bytes(length).unwrap_or(u64::MAX);
        if found != expected {
            return Err(LoadProblem::Length { found, expected });
        }
        let mut ids = vec![0; length * size_of::<u32>()];
        input.read(&mut ids)?;
        session.ids = ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        let mut read = |record: &mut [u8]| input.read(record);
        session.state = self.backend().load(self.program(), length, capacity, &mut read)?;
        Ok(session)
    }

    /// Bytes of a saved session of so many positions, if there can be such.
    fn saved_bytes(&self, positions: usize) -> Option<u64> {
        let state = self.backend().saved_size(self.program(), positions)?;
        let ids = (positions as u64).checked_mul(size_of::<u32>() as u64)?;
        // The head and the ids have a seal too.
        let seals = state.records.checked_add(2)?.checked_mul(SEAL_BYTES as u64)?;
        let head = Head::BYTES as u64;
        head.checked_add(ids)?.checked_add(state.bytes)?.checked_add(seals)
    }

    /// What of its options decides bits, for people to read.
    fn numerics(&self) -> String {
        let (kv, activations) = (self.options().kv, self.activations());
        format!("{kv} keys and values, {activations:?} activations").to_lowercase()
    }
}

/// What comes before the records.
struct Head {
    fingerprint: Bytes32,
    /// Padded with zeros.
    numerics: [u8; NUMERICS_BYTES],
    /// Zeros if there was none.
    steering: Bytes32,
    positions: u64,
    capacity: u64,
}

impl Head {
    const BYTES: usize =
        MAGIC.len() + size_of::<u32>() + 2 * size_of::<Bytes32>() + NUMERICS_BYTES + 2 * size_of::<u64>();

    fn of(session: &Session) -> Head {
        let engine = &session.engine;
        let mut numerics = [0; NUMERICS_BYTES];
        for (byte, letter) in numerics.iter_mut().zip(engine.numerics().bytes()) {
            *byte = letter;
        }
        Head {
            fingerprint: *engine.fingerprint(),
            numerics,
            steering: session
                .steering
                .as_ref()
                .map_or_else(Bytes32::default, |steering| *steering.digest()),
            positions: session.position() as u64,
            capacity: session.capacity as u64,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(self.fingerprint);
        bytes.extend(self.numerics);
        bytes.extend(self.steering);
        bytes.extend(self.positions.to_le_bytes());
        bytes.extend(self.capacity.to_le_bytes());
        bytes
    }

    fn read(input: &mut Sealed<impl Read>) -> Result<Head, LoadProblem> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], LoadProblem> {
            let (taken, rest) = bytes.split_first_chunk().ok_or(LoadProblem::NotASession)?;
            *bytes = rest;
            Ok(*taken)
        }
        let mut bytes = [0; Head::BYTES];
        let mut seal = [0; SEAL_BYTES];
        let read = input.inner.read_exact(&mut bytes);
        read.and_then(|()| input.inner.read_exact(&mut seal))
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => LoadProblem::NotASession,
                _ => error.into(),
            })?;
        let mut rest = &bytes[..];
        if take(&mut rest)? != *MAGIC {
            return Err(LoadProblem::NotASession);
        }
        // Before the seal: a later version may have another head.
        let found = u32::from_le_bytes(take(&mut rest)?);
        if found != FORMAT_VERSION {
            let expected = FORMAT_VERSION;
            return Err(LoadProblem::Version { found, expected });
        }
        input.check(&bytes, &seal)?;
        Ok(Head {
            fingerprint: take(&mut rest)?,
            numerics: take(&mut rest)?,
            steering: take(&mut rest)?,
            positions: u64::from_le_bytes(take(&mut rest)?),
            capacity: u64::from_le_bytes(take(&mut rest)?),
        })
    }

    /// Whether the state can become that of this still empty session.
    fn check(&self, session: &Session) -> Result<(), LoadProblem> {
        let expected = Head::of(session);
        if self.fingerprint != expected.fingerprint {
            return Err(LoadProblem::OtherModel);
        }
        if self.numerics != expected.numerics {
            let text = |head: &Head| {
                String::from_utf8_lossy(&head.numerics)
                    .trim_end_matches('\0')
                    .to_owned()
            };
            return Err(LoadProblem::OtherNumerics {
                found: text(self),
                expected: text(&expected),
            });
        }
        if self.steering != expected.steering {
            return Err(LoadProblem::OtherSteering);
        }
        if self.capacity != expected.capacity && session.engine.capacity_decides_bits() {
            return Err(LoadProblem::OtherCapacity {
                found: self.capacity,
                expected: session.capacity,
            });
        }
        Ok(())
    }
}

/// A file whose parts are sealed one after the other.
struct Sealed<F> {
    inner: F,
    /// The last seal.
    seal: Bytes32,
    /// Bytes read.
    offset: u64,
}

impl<F> Sealed<F> {
    fn new(inner: F) -> Sealed<F> {
        Sealed {
            inner,
            seal: [0; SEAL_BYTES],
            offset: 0,
        }
    }

    /// The seal of a part that follows what was sealed before.
    fn next_seal(&mut self, part: &[u8]) -> &Bytes32 {
        let mut digester = Digester::default();
        digester.update(&self.seal);
        digester.update(part);
        self.seal = digester.finish();
        &self.seal
    }
}

impl<F: Write> Sealed<F> {
    fn write(&mut self, part: &[u8]) -> io::Result<()> {
        self.inner.write_all(part)?;
        let seal = *self.next_seal(part);
        self.inner.write_all(&seal)
    }
}

impl<F: Read> Sealed<F> {
    fn read(&mut self, part: &mut [u8]) -> Result<(), LoadProblem> {
        let mut seal = [0; SEAL_BYTES];
        self.inner.read_exact(part)?;
        self.inner.read_exact(&mut seal)?;
        self.check(part, &seal)
    }

    /// Whether what was just read is as it was written.
    fn check(&mut self, part: &[u8], seal: &Bytes32) -> Result<(), LoadProblem> {
        let (offset, bytes) = (self.offset, (part.len() + SEAL_BYTES) as u64);
        self.offset += bytes;
        if seal == self.next_seal(part) {
            Ok(())
        } else {
            Err(LoadProblem::Damaged { offset, bytes })
        }
    }
}

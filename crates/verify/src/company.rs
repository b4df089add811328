//! A case beside strangers: what other sequences of a batch are must not matter.

use std::path::Path;

use goldcrest_engine::{BatchFeed, Chunk, Engine, Session, Want};
use goldcrest_format::Checkpoint;

use super::case::Case;
use super::run::{Options, VerifyError, hash};

/// The hash of all logits of a case, as in [`super::Report`], when every chunk is fed in one call with chunks of two other sequences, one
/// longer and one shorter.
///
/// # Errors
/// [`VerifyError`].
pub fn logits_hash_in_company(folder: &Path, options: &Options) -> Result<String, VerifyError> {
    let case = Case::open(folder)?;
    let checkpoint = Checkpoint::open(options.model.as_deref().unwrap_or(folder))?;
    let engine = Engine::open(&checkpoint, options.engine)?;
    let (prompt, greedy) = (&case.file.prompt_ids, &case.file.greedy_ids);
    let mut company = Company::new(&engine, &case)?;
    let mut logits = Vec::new();
    for ids in prompt.chunks(options.chunk.unwrap_or(prompt.len()).max(1)) {
        logits.extend(company.feed(ids)?);
    }
    let vocabulary = engine.spec().vocabulary;
    let mut step_logits = logits[(prompt.len() - 1) * vocabulary..].to_vec();
    for id in &greedy[..greedy.len() - 1] {
        step_logits.extend(company.feed(&[*id])?);
    }
    Ok(hash(&[&logits, &step_logits]))
}

/// A sequence between two others.
struct Company {
    /// The strangers, the first before and the second after the sequence itself.
    strangers: [Session; 2],
    own: Session,
    vocabulary: usize,
}

/// Tokens that the strangers feed beside every chunk.
const STRANGERS: [usize; 2] = [3, 1];

impl Company {
    fn new(engine: &Engine, case: &Case) -> Result<Company, VerifyError> {
        let calls = case.file.prompt_ids.len() + case.file.greedy_ids.len();
        let most = engine.plan().positions_max().unwrap_or(usize::MAX);
        let session = |tokens: usize| engine.session((tokens * calls).min(most));
        let mut strangers = [session(STRANGERS[0] + 1)?, session(STRANGERS[1])?];
        let mut row = Vec::new();
        // The first is ahead by more than a chunk, so that positions differ in every call.
        let ahead: Vec<u32> = case.file.prompt_ids.iter().rev().copied().collect();
        feed(&mut strangers[0], &ahead, &mut row)?;
        Ok(Company {
            strangers,
            own: engine.session(calls)?,
            vocabulary: engine.spec().vocabulary,
        })
    }

    /// Feeds `ids`, and as many tokens of the strangers as they always feed; returns the logits of `ids`.
    fn feed(&mut self, ids: &[u32]) -> Result<Vec<f32>, VerifyError> {
        let vocabulary = self.vocabulary;
        let strange: Vec<u32> = (0..STRANGERS[0] + STRANGERS[1])
            .map(|i| (self.own.position() * 7 + i * 5) as u32 % vocabulary as u32)
            .collect();
        let (before, after) = strange.split_at(STRANGERS[0]);
        let mut logits = vec![0.0; ids.len() * vocabulary];
        let mut others = [vec![0.0; before.len() * vocabulary], Vec::new()];
        let [before_logits, after_logits] = &mut others;
        let [before_session, after_session] = &mut self.strangers;
        for (session, ids) in [(&mut *before_session, before), (&mut *after_session, after)] {
            // A stranger that is as long as can be begins anew.
            if session.position() + ids.len() > session.capacity() {
                *session = session.engine().session(session.capacity())?;
            }
        }
        let own = &mut self.own;
        let engine = own.engine().clone();
        engine.feed_batch(&mut [
            part(before_session, before, Want::All, before_logits),
            part(own, ids, Want::All, &mut logits),
            part(after_session, after, Want::Nothing, after_logits),
        ])?;
        Ok(logits)
    }
}

fn part<'a>(session: &'a mut Session, ids: &'a [u32], want: Want<'a>, logits: &'a mut [f32]) -> BatchFeed<'a> {
    let start = session.position();
    BatchFeed {
        session,
        chunk: Chunk { start, ids, want },
        logits,
    }
}

fn feed(session: &mut Session, ids: &[u32], logits: &mut [f32]) -> Result<(), VerifyError> {
    let chunk = Chunk {
        start: session.position(),
        ids,
        want: Want::Nothing,
    };
    Ok(session.feed(chunk, logits)?)
}

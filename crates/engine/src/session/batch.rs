//! The driver of forward calls: chunks of one or several sessions, cut into calls.

use std::sync::atomic::Ordering;

use goldcrest_cpu::CpuError;
use goldcrest_model::backend::{Backend, Batch, Part, Probe, Span};

use super::{Chunk, FeedError, Session, Watch};
use crate::counters::CountingProbe;
use crate::engine::Engine;
use crate::steering::Steering;

/// One session's share of a batch.
pub struct BatchFeed<'a> {
    /// Who is fed.
    pub session: &'a mut Session,
    /// With what.
    pub chunk: Chunk<'a>,
    /// Receives `[wanted rows, vocabulary]`.
    pub logits: &'a mut [f32],
}

/// Why a batch was not fed, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Something is wrong about one feed. Nothing has changed.
    #[error("feed {index} of the batch: {source}")]
    Feed {
        /// Index of the feed.
        index: usize,
        /// What is wrong.
        source: FeedError,
    },
    /// Cancelled between two calls; sessions are where they say.
    #[error("cancelled; each session is at the position that it reports")]
    Cancelled,
    /// A forward call failed; sessions are where they say, at the end of the call before.
    #[error("a forward call failed, and each session is at the position that it reports: {source}")]
    Forward {
        /// What failed.
        source: CpuError,
    },
}

impl BatchError {
    /// The same of a batch of one, whose session is now at `position`.
    pub(super) fn of_one(self, position: usize) -> FeedError {
        match self {
            BatchError::Feed { source, .. } => source,
            BatchError::Cancelled => FeedError::Cancelled { position },
            BatchError::Forward { source } => FeedError::Forward { position, source },
        }
    }
}

impl Engine {
    /// Feeds chunks of several sessions together: weights are read once for all rows of a call. No session's numbers depend on which
    /// others are fed beside it.
    ///
    /// Together the chunks may have any number of rows. They are cut into calls of at most [`crate::EngineOptions::max_rows`], in which
    /// the sessions' shares are as equal as possible; a session whose chunk is fed leaves its share to the others.
    ///
    /// # Errors
    /// [`BatchError`]. Every feed is checked before anything changes. A call is all or nothing for all of its sessions: after a failure
    /// or a cancel, each is at the position that it reports, exactly as if only the tokens before had been fed.
    pub fn feed_batch(&self, feeds: &mut [BatchFeed<'_>]) -> Result<(), BatchError> {
        self.feed_batch_watched(feeds, Watch::default())
    }

    /// As [`Engine::feed_batch`], with somebody looking on. The probe sees the rows of all sessions, in the order of the feeds, and is
    /// told before each call which those are.
    ///
    /// # Errors
    /// As [`Engine::feed_batch`].
    pub fn feed_batch_watched(&self, feeds: &mut [BatchFeed<'_>], watch: Watch) -> Result<(), BatchError> {
        for (index, feed) in feeds.iter().enumerate() {
            feed.check(self).map_err(|source| BatchError::Feed { index, source })?;
        }
        let Watch { cancel, mut probe } = watch;
        let max_rows = self.backend().max_rows(self.program());
        let mut rows = vec![0; feeds.len()];
        loop {
            let rests: Vec<usize> = feeds.iter().map(|feed| feed.chunk.ids.len() - feed.fed()).collect();
            share_rows(&rests, max_rows, &mut rows);
            if rows.iter().all(|rows| *rows == 0) {
                return Ok(());
            }
            if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(BatchError::Cancelled);
            }
            let called = self.call(feeds, &rows, &mut probe);
            called.map_err(|source| BatchError::Forward { source })?;
        }
    }

    /// One forward call of the next `rows` of each feed, and its place in the sessions' histories.
    fn call(
        &self,
        feeds: &mut [BatchFeed<'_>],
        rows: &[usize],
        probe: &mut Option<&mut dyn Probe>,
    ) -> Result<(), CpuError> {
        for (feed, &rows) in feeds.iter_mut().zip(rows) {
            feed.choose_wanted(rows);
        }
        let spans = feeds.iter().zip(rows).enumerate().map(|(feed, (of, &rows))| Span {
            feed,
            start: of.session.position(),
            rows,
        });
        let spans: Vec<Span> = spans.filter(|span| span.rows > 0).collect();
        if let Some(probe) = probe {
            probe.before_call(&spans);
        }
        if feeds.iter().any(|feed| feed.session.counters.is_some()) {
            let wanted = feeds.iter().map(|feed| feed.session.wanted.len()).sum();
            let mut counting = CountingProbe::new(self.plan(), probe);
            self.forward(feeds, rows, Some(&mut counting))?;
            let counted = counting.finish(self.program(), &spans, wanted);
            for (feed, &rows) in feeds.iter_mut().zip(rows).filter(|(_, rows)| **rows > 0) {
                if let Some(counters) = &mut feed.session.counters {
                    counters.add(&counted, rows);
                }
            }
        } else {
            let probe = probe.as_mut().map(|probe| &mut **probe as &mut dyn Probe);
            self.forward(feeds, rows, probe)?;
        }
        for (feed, &rows) in feeds.iter_mut().zip(rows) {
            let fed = feed.fed();
            feed.session.ids.extend_from_slice(&feed.chunk.ids[fed..fed + rows]);
        }
        Ok(())
    }

    fn forward(
        &self,
        feeds: &mut [BatchFeed<'_>],
        rows: &[usize],
        probe: Option<&mut dyn Probe>,
    ) -> Result<(), CpuError> {
        let vocabulary = self.spec().vocabulary;
        let (mut parts, mut states, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        for (feed, &rows) in feeds.iter_mut().zip(rows).filter(|(_, rows)| **rows > 0) {
            let fed = feed.fed();
            let BatchFeed { session, chunk, logits } = feed;
            let Session {
                state,
                wanted,
                steering,
                ..
            } = &mut **session;
            let before = chunk.want.count_before(chunk.ids.len(), fed);
            let output = &mut logits[before * vocabulary..][..wanted.len() * vocabulary];
            outputs.extend((!output.is_empty()).then_some(output));
            states.push(state);
            parts.push(Part {
                ids: &chunk.ids[fed..fed + rows],
                wanted,
                steering: steering.as_ref().map(Steering::steps),
            });
        }
        let batch = Batch { parts: &parts };
        let forward = |logits: &mut [f32]| {
            self.backend()
                .forward(self.program(), batch, &mut states, logits, probe)
        };
        match &mut outputs[..] {
            [] => forward(&mut []),
            [output] => forward(output),
            outputs => {
                let mut gathered = self.gathered_logits();
                gathered.resize(batch.wanted() * vocabulary, 0.0);
                forward(&mut gathered)?;
                let mut rest = &gathered[..];
                for output in outputs {
                    let (here, after) = rest.split_at(output.len());
                    output.copy_from_slice(here);
                    rest = after;
                }
                Ok(())
            }
        }
    }
}

impl BatchFeed<'_> {
    fn check(&self, engine: &Engine) -> Result<(), FeedError> {
        if !self.session.engine.is(engine) {
            return Err(FeedError::OtherEngine);
        }
        self.session.check(&self.chunk, self.logits.len())
    }

    /// Tokens of the chunk that are fed.
    fn fed(&self) -> usize {
        self.session.position() - self.chunk.start
    }

    /// Sets the wanted rows of the session to those among the next `rows`.
    fn choose_wanted(&mut self, rows: usize) {
        let fed = self.fed();
        let wanted = &mut self.session.wanted;
        wanted.clear();
        self.chunk.want.within(self.chunk.ids.len(), fed, fed + rows, wanted);
    }
}

/// How many of the `rests` go into a call of at most `max_rows`: shares that differ by no more than one, except where a rest is smaller.
fn share_rows(rests: &[usize], max_rows: usize, shares: &mut [usize]) {
    shares.fill(0);
    let mut left = max_rows;
    loop {
        let open = rests.iter().zip(&*shares).filter(|(rest, share)| share < rest).count();
        if open == 0 || left == 0 {
            return;
        }
        let each = (left / open).max(1);
        for (share, rest) in shares.iter_mut().zip(rests) {
            let more = each.min(rest - *share).min(left);
            *share += more;
            left -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::share_rows;

    fn shares(rests: &[usize], max_rows: usize) -> Vec<usize> {
        let mut shares = vec![usize::MAX; rests.len()];
        share_rows(rests, max_rows, &mut shares);
        shares
    }

    #[test]
    fn shares_are_as_equal_as_can_be_and_fill_the_call() {
        assert!(shares(&[], 4).is_empty());
        assert_eq!(shares(&[10], 4), [4]);
        assert_eq!(shares(&[3], 4), [3]);
        assert_eq!(shares(&[10, 10], 8), [4, 4]);
        assert_eq!(shares(&[10, 10, 10], 8), [3, 3, 2]);
        assert_eq!(shares(&[1, 10, 10], 8), [1, 4, 3]);
        assert_eq!(shares(&[100, 1, 0, 3], 64), [60, 1, 0, 3]);
        assert_eq!(shares(&[2, 2, 2], 2), [1, 1, 0]);
        assert_eq!(shares(&[2, 2], 64), [2, 2]);
        assert_eq!(shares(&[0, 0], 64), [0, 0]);
        assert_eq!(
            shares(&[usize::MAX, usize::MAX], usize::MAX),
            [usize::MAX / 2 + 1, usize::MAX / 2]
        );
    }
}

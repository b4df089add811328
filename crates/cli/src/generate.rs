//! From a prompt to a reply: a session, a sampler, a detokeniser and stop strings in one loop.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use goldcrest_engine::sample::{ParamsError, SampleError, Sampled, Sampler, SamplingParams};
use goldcrest_engine::{Chunk, FeedError, RewindError, Session, Want, Watch};
use goldcrest_text::{SpecialTokens, TextStream, TokenText, Tokenizer, TokenizerError};

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The whole prompt. What the session already holds of it is not fed again.
    pub prompt: &'a [u32],
    /// How tokens are chosen.
    pub sampling: &'a SamplingParams,
    /// Texts that end the reply; they are not part of it.
    pub stop: &'a [String],
    /// Most tokens of the reply; `None`: as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// The reply goes on where the prompt's text ends, with the white space between the two. Otherwise it is a text of its own.
    pub continues_text: bool,
    /// Set by another thread to stop.
    pub cancel: Option<&'a AtomicBool>,
}

/// A piece of a reply, passed on as soon as it is certain.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// A token with its text, which may be empty.
    Token(&'a TokenText<Sampled>),
    /// Text at the end that belongs to tokens passed on before.
    Rest(&'a str),
}

impl Piece<'_> {
    /// The text; that of all pieces is the text of the reply.
    pub fn text(&self) -> &str {
        match self {
            Piece::Token(token) => &token.text,
            Piece::Rest(text) => text,
        }
    }
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    EndToken,
    /// A stop string came.
    StopString,
    /// It has as many tokens as were asked for.
    MaxTokens,
    /// The session's context is full.
    ContextFull,
    /// It was cancelled, or the callback wanted no more.
    Cancelled,
}

/// A reply.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Why it ended.
    pub finish: Finish,
    /// Its text: that of all pieces.
    pub text: String,
    /// Tokens that were sampled, the end token and those of a stop string included.
    pub ids: Vec<u32>,
    /// Tokens of the prompt that the session already held.
    pub reused: usize,
    /// Wall time of feeding the rest of the prompt.
    pub prompt_time: Duration,
    /// Wall time of everything after.
    pub reply_time: Duration,
}

/// Why there is no reply, or no whole one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// Nothing to go on from.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    /// Nothing is cut off silently.
    #[error("the prompt has {prompt} tokens, but the context holds {context}: shorten it, or raise the context")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of the session.
        context: usize,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The model could not be run.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The session could not begin anew.
    #[error(transparent)]
    Rewind(#[from] RewindError),
    /// A token has no text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Generates a reply and passes each piece on as soon as it is certain.
///
/// # Errors
/// [`GenerateError`]; the session holds what was fed until then.
pub fn generate(
    session: &mut Session,
    tokenizer: &Tokenizer,
    request: &Request,
    on_piece: &mut dyn FnMut(Piece) -> ControlFlow<()>,
) -> Result<Reply, GenerateError> {
    let vocabulary = session.engine().spec().vocabulary;
    let mut sampler = Sampler::new(request.sampling.clone(), vocabulary)?;
    sampler.accept_prompt(request.prompt)?;
    let reused = keep_common_prefix(session, request.prompt)?;
    let mut writer = Writer::new(tokenizer, request, on_piece)?;
    let mut logits = vec![0.0; vocabulary];
    let started = Instant::now();
    let fed = feed(session, &request.prompt[reused..], &mut logits, request.cancel)?;
    let prompt_time = started.elapsed();
    let mut ids = Vec::new();
    let finish = loop {
        if !fed || is_set(request.cancel) {
            break Finish::Cancelled;
        }
        if request.max_tokens.is_some_and(|most| ids.len() >= most) {
            break Finish::MaxTokens;
        }
        let sampled = sampler.sample(&logits, ids.len() as u64)?;
        let id = sampled.id;
        sampler.accept(id)?;
        ids.push(id);
        if tokenizer.end_ids().contains(&id) {
            break Finish::EndToken;
        }
        match writer.push(sampled)? {
            ControlFlow::Break(finish) => break finish,
            ControlFlow::Continue(()) if session.position() == session.capacity() => break Finish::ContextFull,
            ControlFlow::Continue(()) => {}
        }
        // The logits of a token behind the last one are not needed.
        if request.max_tokens != Some(ids.len()) && !feed(session, &[id], &mut logits, request.cancel)? {
            break Finish::Cancelled;
        }
    };
    let text = writer.finish();
    Ok(Reply {
        finish,
        text,
        ids,
        reused,
        prompt_time,
        reply_time: started.elapsed() - prompt_time,
    })
}

/// Makes the session hold a prefix of `prompt`, the longest that leaves a token to feed, and returns its length.
fn keep_common_prefix(session: &mut Session, prompt: &[u32]) -> Result<usize, GenerateError> {
    let Some(most) = prompt.len().checked_sub(1) else {
        return Err(GenerateError::EmptyPrompt);
    };
    let context = session.capacity();
    if prompt.len() > context {
        return Err(GenerateError::PromptTooLong {
            prompt: prompt.len(),
            context,
        });
    }
    let common = session
        .ids()
        .iter()
        .zip(prompt)
        .take_while(|(held, wanted)| held == wanted)
        .count()
        .min(most);
    if session.rewind(common).is_ok() {
        return Ok(common);
    }
    // Layers with a window have let go of what would be seen again.
    session.rewind(0)?;
    Ok(0)
}

/// Feeds tokens and fetches the logits of the last. False: cancelled.
fn feed(
    session: &mut Session,
    ids: &[u32],
    logits: &mut [f32],
    cancel: Option<&AtomicBool>,
) -> Result<bool, GenerateError> {
    let chunk = Chunk {
        start: session.position(),
        ids,
        want: Want::Last,
    };
    match session.feed_watched(chunk, logits, Watch { cancel, probe: None }) {
        Ok(()) => Ok(true),
        Err(FeedError::Cancelled { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_set(flag: Option<&AtomicBool>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Turns tokens into the pieces that are passed on.
struct Writer<'a, 'c> {
    /// Ids from here on have no text: a model may have more rows than its vocabulary has tokens.
    vocabulary: usize,
    stream: TextStream<'a, Sampled>,
    on_piece: &'c mut dyn FnMut(Piece) -> ControlFlow<()>,
    text: String,
}

impl<'a, 'c> Writer<'a, 'c> {
    fn new(
        tokenizer: &'a Tokenizer,
        request: &Request,
        on_piece: &'c mut dyn FnMut(Piece) -> ControlFlow<()>,
    ) -> Result<Self, GenerateError> {
        let mut detokenizer = tokenizer.detokenizer(SpecialTokens::Skip);
        if request.continues_text {
            for &id in request.prompt {
                detokenizer.push(id)?;
            }
        }
        let stream = TextStream::new(detokenizer, request.stop.to_vec());
        Ok(Writer {
            vocabulary: tokenizer.vocabulary_len(),
            stream,
            on_piece,
            text: String::new(),
        })
    }

    /// Takes a token; breaks off if the reply ends here.
    fn push(&mut self, sampled: Sampled) -> Result<ControlFlow<Finish>, GenerateError> {
        if sampled.id as usize >= self.vocabulary {
            return Ok(ControlFlow::Continue(()));
        }
        let released = self.stream.push(sampled.id, sampled)?;
        let passed_on = released
            .tokens
            .iter()
            .try_for_each(|token| self.pass_on(Piece::Token(token)));
        Ok(match (released.stop, passed_on) {
            (Some(_), _) => ControlFlow::Break(Finish::StopString),
            (None, ControlFlow::Break(())) => ControlFlow::Break(Finish::Cancelled),
            (None, ControlFlow::Continue(())) => ControlFlow::Continue(()),
        })
    }

    fn pass_on(&mut self, piece: Piece) -> ControlFlow<()> {
        self.text.push_str(piece.text());
        (self.on_piece)(piece)
    }

    /// Passes on what was held back, and returns the whole text.
    fn finish(self) -> String {
        let Writer {
            stream,
            on_piece,
            mut text,
            ..
        } = self;
        let (tokens, rest) = stream.finish();
        let rest = Some(Piece::Rest(&rest)).filter(|rest| !rest.text().is_empty());
        for piece in tokens.iter().map(Piece::Token).chain(rest) {
            text.push_str(piece.text());
            // The reply is over: there is nothing left to break off.
            let _ = on_piece(piece);
        }
        text
    }
}

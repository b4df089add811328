//! `logits`: the logits of every position of a sequence.

use anyhow::Context;
use goldcrest::files::{Tensor, TensorFile};
use goldcrest_engine::{Chunk, Engine, FeedError, Sequences, Want};
use goldcrest_model::read_spec;

use crate::args::LogitsArgs;
use crate::memory::{Beside, Need};
use crate::model::open_checkpoint;
use crate::output::{note, size};

pub fn run(args: &LogitsArgs) -> anyhow::Result<()> {
    let (path, checkpoint) = open_checkpoint(&args.model)?;
    let cannot_run = || format!("cannot run {}", path.display());
    let spec = read_spec(&checkpoint).with_context(cannot_run)?;
    let vocabulary = spec.vocabulary;
    if let Some((index, &id)) = args.ids.iter().enumerate().find(|(_, id)| **id as usize >= vocabulary) {
        return Err(FeedError::IdOutsideVocabulary { index, id, vocabulary }.into());
    }
    let (positions, context) = (args.ids.len(), spec.context);
    if positions > context {
        note(format_args!(
            "{positions} positions are more than the {context} that the model was trained for"
        ));
    }
    let need = Need {
        sequences: Sequences {
            count: 1,
            capacity: positions,
        },
        beside: Beside {
            name: "logits of a chunk (--chunk)",
            bytes: (args.chunk.min(positions) * vocabulary * size_of::<f32>()) as u64,
        },
    };
    let options = args.engine.fit(&checkpoint, || Ok(need)).with_context(cannot_run)?;
    let engine = Engine::open(&checkpoint, options).with_context(cannot_run)?;
    let mut session = engine.session(positions)?;
    let tensor = Tensor {
        name: "logits",
        shape: &[positions, vocabulary],
    };
    let mut file = TensorFile::create(&args.out, &[tensor], &[])?;
    let mut logits = Vec::new();
    for ids in args.ids.chunks(args.chunk) {
        logits.resize(ids.len() * vocabulary, 0.0);
        session.feed(
            Chunk {
                start: session.position(),
                ids,
                want: Want::All,
            },
            &mut logits,
        )?;
        file.write(&logits)?;
    }
    file.finish()?;
    let bytes = positions * vocabulary * size_of::<f32>();
    note(format_args!(
        "{}: logits [{positions}, {vocabulary}], {}",
        args.out.display(),
        size(bytes as u64)
    ));
    Ok(())
}

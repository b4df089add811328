//! `perplexity`: how well a model predicts a text.

use std::io::{self, Write, stdout};

use goldcrest_engine::perplexity::{Perplexity, PerplexityError, windows};
use goldcrest_engine::{Engine, FeedError, RouterCounting, Sequences};
use goldcrest_format::Checkpoint;
use goldcrest_model::read_spec;
use serde_json::json;

use super::Outcome;
use crate::args::PerplexityArgs;
use crate::input::read_text;
use crate::interrupt;
use crate::memory::{Beside, Need};
use crate::model::Model;
use crate::output::{UsageError, note};
use crate::progress::Steps;
use crate::router_stats;

/// Tokens of a window where nobody says.
const DEFAULT_CONTEXT: usize = 2048;

pub fn run(args: &PerplexityArgs) -> anyhow::Result<Outcome> {
    let text = read_text(&args.file)?;
    let window = |trained: usize| args.context.unwrap_or(trained.min(DEFAULT_CONTEXT));
    let mut stats = None;
    let options = |checkpoint: &Checkpoint| {
        stats = args.routers.begin(checkpoint)?;
        args.engine.fit(checkpoint, || {
            let spec = read_spec(checkpoint)?;
            let capacity = window(spec.context);
            Ok(Need {
                sequences: Sequences { count: 1, capacity },
                beside: Beside {
                    name: "logits of a window",
                    bytes: Perplexity::logits_bytes(spec.vocabulary, capacity) as u64,
                },
            })
        })
    };
    let model = Model::open(&args.model, options, true)?;
    let trained = model.engine.spec().context;
    let context = window(trained);
    if context > trained {
        note(format_args!(
            "windows of {context} tokens are longer than the {trained} that the model was trained for"
        ));
    }
    let before = model.prompts.text("", false)?;
    if context <= before.len() {
        let (least, begin) = (before.len() + 1, before.len());
        return Err(UsageError(format!(
            "--context {context} is less than {least}: {begin} begin a window"
        ))
        .into());
    }
    let ids = model.prompts.text(&text, false)?;
    let ids = ids.strip_prefix(&before[..]).unwrap_or(&ids);
    let mut session = model.engine.session(context)?;
    let mut routers = RouterCounting::new(&model.engine);
    if args.routers.is_given() {
        session.count();
    }
    let watch = interrupt::watch();
    let mut steps = Steps::new("tokens", ids.len());
    let mut measured = Perplexity::default();
    let mut windows_fed = 0;
    for window in windows(&before, ids, context) {
        match measured.add_window(&mut session, &window, Some(watch.flag())) {
            Err(PerplexityError::Feed(FeedError::Cancelled { .. })) => return Ok(Outcome::Interrupted),
            result => result?,
        }
        windows_fed += 1;
        steps.advance(window.len() - before.len());
    }
    steps.finish();
    if measured.tokens() == 0 {
        return Err(UsageError(format!("{}: there is no token to predict", args.file.display())).into());
    }
    let cut = Cut {
        context,
        windows: windows_fed,
    };
    report(args, &model.engine, cut, &measured)?;
    if let Some(counters) = session.counters() {
        routers.add(counters);
        router_stats::write(stats, &args.model.model, &routers.counters())?;
    }
    Ok(Outcome::Done)
}

/// How the text was cut.
struct Cut {
    context: usize,
    windows: usize,
}

fn report(args: &PerplexityArgs, engine: &Engine, cut: Cut, measured: &Perplexity) -> io::Result<()> {
    let (tokens, Cut { context, windows }) = (measured.tokens(), cut);
    let (nll, nll_error) = (measured.mean_nll(), measured.standard_error_nll());
    let (perplexity, error) = (measured.value(), measured.standard_error());
    let mut out = stdout().lock();
    if args.json {
        let report = json!({
            "model": args.model.model,
            "context": context,
            "windows": windows,
            "tokens": tokens,
            "mean_nll": nll,
            "mean_nll_standard_error": nll_error,
            "perplexity": perplexity,
            "perplexity_standard_error": error,
            "activations": format!("{:?}", engine.activations()).to_lowercase(),
            "kv": engine.options().kv.name(),
        });
        return writeln!(out, "{report:#}");
    }
    writeln!(out, "tokens      {tokens} in {windows} windows of {context}")?;
    writeln!(out, "mean nll    {nll:.6} ± {nll_error:.6}")?;
    writeln!(out, "perplexity  {perplexity:.4} ± {error:.4}")
}

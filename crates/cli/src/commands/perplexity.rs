//! `perplexity`: how well a model predicts a text.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::Context;
use goldcrest_engine::FeedError;
use goldcrest_engine::perplexity::{Perplexity, PerplexityError, windows};
use serde_json::json;

use super::Outcome;
use crate::args::PerplexityArgs;
use crate::interrupt;
use crate::model::Model;
use crate::output::{UsageError, note};
use crate::progress::Steps;

/// Tokens of a window where nobody says.
const DEFAULT_CONTEXT: usize = 2048;

pub fn run(args: &PerplexityArgs) -> anyhow::Result<Outcome> {
    let text = read_text(&args.file)?;
    let model = Model::open(&args.model, args.engine.options(), true)?;
    let trained = model.engine.spec().context;
    let context = args.context.unwrap_or(trained.min(DEFAULT_CONTEXT));
    if context > trained {
        note(format_args!(
            "windows of {context} tokens are longer than the {trained} that the model was trained for"
        ));
    }
    let before = model.prompts.text("", false)?;
    if context <= before.len() {
        let (least, begin) = (before.len() + 1, before.len());
        return Err(UsageError(format!("--context {context} is less than {least}: {begin} begin a window")).into());
    }
    let ids = model.prompts.text(&text, false)?;
    let ids = ids.strip_prefix(&before[..]).unwrap_or(&ids);
    let mut session = model.engine.session(context)?;
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
    let mut out = stdout().lock();
    if args.json {
        let report = json!({
            "model": args.model.model,
            "text_tokens": ids.len(),
            "context": context,
            "windows": windows_fed,
            "tokens": measured.tokens(),
            "mean_nll": measured.mean_nll(),
            "mean_nll_standard_error": measured.standard_error_nll(),
            "perplexity": measured.value(),
            "perplexity_standard_error": measured.standard_error(),
            "activations": format!("{:?}", model.engine.activations()).to_lowercase(),
            "kv": model.engine.options().kv.name(),
        });
        writeln!(out, "{report:#}")?;
    } else {
        writeln!(out, "tokens      {} in {windows_fed} windows of {context}", measured.tokens())?;
        writeln!(out, "mean nll    {:.6} ± {:.6}", measured.mean_nll(), measured.standard_error_nll())?;
        writeln!(out, "perplexity  {:.4} ± {:.4}", measured.value(), measured.standard_error())?;
    }
    Ok(Outcome::Done)
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))
}

//! `run`: one reply, or a chat on a terminal.

use anyhow::Context;
use goldcrest::generate::Finish;
use goldcrest_engine::Sequences;
use goldcrest_engine::steering::{ControlVector, Operation, Steer};
use goldcrest_format::Checkpoint;
use goldcrest_model::read_spec;

use super::Outcome;
use crate::args::{RunArgs, SteerArg};
use crate::chat;
use crate::input::Piped;
use crate::memory::Need;
use crate::model::Model;
use crate::output::{UsageError, note};
use crate::reply::{Speaker, context, message};
use crate::router_stats;

pub fn run(args: &RunArgs) -> anyhow::Result<Outcome> {
    // How many tokens there are shows later; everything else is known to be right before a model is loaded.
    args.sampling
        .params()
        .validate(u32::MAX as usize + 1)
        .map_err(|error| UsageError(error.to_string()))?;
    let steers = args.steer.iter().map(open_steer).collect::<anyhow::Result<Vec<_>>>()?;
    let piped = Piped::start();
    let mut stats = None;
    let options = |checkpoint: &Checkpoint| {
        stats = args.routers.begin(checkpoint)?;
        args.engine.fit(checkpoint, || {
            let capacity = context(args, read_spec(checkpoint)?.context);
            Ok(Need::of(Sequences { count: 1, capacity }))
        })
    };
    let model = Model::open(&args.model, options, args.raw)?;
    let name = &args.model.model;
    if args.prompt.is_none() && piped.is_none() {
        let mut speaker = Speaker::new(args, model, &steers)?;
        let outcome = chat::run(&mut speaker, name)?;
        router_stats::write(stats, name, &speaker.routers())?;
        return Ok(outcome);
    }
    let prompt = whole_prompt(args, piped)?;
    let mut speaker = Speaker::new(args, model, &steers)?;
    let ids = speaker.prompt(&[message("user", &prompt)])?;
    let reply = speaker.reply(&ids)?;
    router_stats::write(stats, name, &speaker.routers())?;
    // The process ends, which gives all memory back at once and not one token's text after the other.
    std::mem::forget(speaker);
    Ok(if reply.finish == Finish::Cancelled {
        Outcome::Interrupted
    } else {
        Outcome::Done
    })
}

fn open_steer(arg: &SteerArg) -> anyhow::Result<Steer> {
    let vector = ControlVector::open(&arg.file).with_context(|| format!("cannot steer with {}", arg.file.display()))?;
    Ok(Steer {
        operation: Operation::Add {
            vector,
            scale: arg.scale,
        },
        layers: arg.layers.as_ref().map(|layers| layers.0.clone()),
    })
}

/// The argument, and after it what is piped.
fn whole_prompt(args: &RunArgs, piped: Option<Piped>) -> anyhow::Result<String> {
    let Some(prompt) = &args.prompt else {
        let text = piped.map_or(Ok(String::new()), Piped::all)?;
        if text.trim().is_empty() {
            return Err(UsageError("there is no prompt: give one as an argument or on standard input".into()).into());
        }
        return Ok(if args.raw {
            text
        } else {
            text.trim_end_matches(['\r', '\n']).to_owned()
        });
    };
    let Some(text) = piped.map_or(Ok(Some(String::new())), Piped::all_unless_silent)? else {
        note("standard input is open but silent: the prompt is taken alone (</dev/null spares the wait)");
        return Ok(prompt.clone());
    };
    Ok(match text.trim_end_matches(['\r', '\n']) {
        "" => prompt.clone(),
        _ if args.raw => format!("{prompt}{text}"),
        text => format!("{prompt}\n\n{text}"),
    })
}

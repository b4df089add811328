//! Replies on standard output, as they come.

use std::io::{self, Write, stdout};
use std::ops::ControlFlow;

use goldcrest::generate::{Finish, Reply, Request, generate};
use goldcrest::prompts::PromptError;
use goldcrest_engine::sample::SamplingParams;
use goldcrest_engine::steering::Steer;
use goldcrest_engine::{OpKind, PhaseCounters, RouterCounters, RouterCounting, Session};
use serde_json::Value;

use crate::args::RunArgs;
use crate::interrupt;
use crate::memory::LIMITED_CONTEXT;
use crate::model::Model;
use crate::output::{UsageError, note, rate, size, tell};

/// A file may claim any context; more than this has to be asked for.
const MAX_DEFAULT_CONTEXT: usize = 1 << 20;

/// What a reply depends on besides its prompt; may be changed between two.
#[derive(Clone, Debug)]
pub struct Settings {
    pub sampling: SamplingParams,
    pub stop: Vec<String>,
    pub max_tokens: Option<usize>,
    /// First message of every conversation.
    pub system: Option<String>,
}

/// Positions of prompt and reply together; under a limit, of which they take their part before they are used, fewer unless told.
pub fn context(args: &RunArgs, trained: usize) -> usize {
    let most = match args.engine.arithmetic.memory.memory {
        Some(_) => LIMITED_CONTEXT,
        None => MAX_DEFAULT_CONTEXT,
    };
    args.context.unwrap_or(trained.min(most))
}

/// A model that replies.
pub struct Speaker {
    model: Model,
    session: Session,
    pub settings: Settings,
    /// The prompt may hold control tokens and is fed as it is.
    raw: bool,
    verbose: bool,
    /// What routers choose in all replies, if that is to be told.
    routers: Option<RouterCounting>,
}

impl Speaker {
    pub fn new(args: &RunArgs, model: Model, steers: &[Steer]) -> anyhow::Result<Speaker> {
        let trained = model.engine.spec().context;
        let context = context(args, trained);
        if context > trained {
            note(format_args!(
                "a context of {context} tokens is more than the {trained} that the model was trained for"
            ));
        }
        let has_template = model.prompts.template().is_some();
        if !args.raw && !has_template {
            note("the model has no chat template: the prompt is fed as it is, and the reply goes on from it");
        }
        if args.system.is_some() && !has_template {
            return Err(UsageError("--system needs a model with a chat template".into()).into());
        }
        let settings = Settings {
            sampling: args.sampling.params_with(model.prompts.tokenizer()),
            stop: args.stop.clone(),
            max_tokens: args.max_tokens,
            system: args.system.clone(),
        };
        if args.verbose {
            tell(format_args!(
                "load    {:.2} s, {} of weights, {} threads, {}, {} activations",
                model.load_time.as_secs_f64(),
                size(model.engine.weight_bytes() as u64),
                model.engine.threads(),
                model.engine.isa(),
                format!("{:?}", model.engine.activations()).to_lowercase()
            ));
        }
        let mut session = model.engine.session(context)?;
        if !steers.is_empty() {
            session.steer(Some(model.engine.steering(steers)?))?;
        }
        Ok(Speaker {
            routers: args.routers.is_given().then(|| RouterCounting::new(&model.engine)),
            model,
            session,
            settings,
            raw: args.raw,
            verbose: args.verbose,
        })
    }

    /// Whether there are conversations; otherwise texts are continued.
    pub fn chats(&self) -> bool {
        self.model.prompts.template().is_some()
    }

    /// Tokens of the model's vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.model.engine.spec().vocabulary
    }

    /// What routers chose; nothing if nobody asked.
    pub fn routers(&self) -> Vec<RouterCounters> {
        self.routers.as_ref().map_or(Vec::new(), RouterCounting::counters)
    }

    /// The prompt for a conversation, the system message excepted, that ends with the user's turn. Without a template, the user's
    /// last words alone.
    pub fn prompt(&self, messages: &[Value]) -> Result<Vec<u32>, PromptError> {
        if !self.chats() {
            let text = messages.last().and_then(|message| message["content"].as_str());
            return self.model.prompts.text(text.unwrap_or_default(), self.raw);
        }
        let system = self.settings.system.as_ref().map(|text| message("system", text));
        let messages: Vec<Value> = system.into_iter().chain(messages.iter().cloned()).collect();
        self.model.prompts.chat(&messages)
    }

    /// Writes the reply to a prompt to standard output. Ctrl-C ends it.
    pub fn reply(&mut self, prompt: &[u32]) -> anyhow::Result<Reply> {
        let watch = interrupt::watch();
        if self.verbose || self.routers.is_some() {
            self.session.count();
        }
        let request = Request {
            prompt,
            sampling: &self.settings.sampling,
            stop: &self.settings.stop,
            max_tokens: self.settings.max_tokens,
            continues_text: !self.chats(),
            cancel: Some(watch.flag()),
        };
        let mut written = Ok(());
        let reply = generate(
            &mut self.session,
            self.model.prompts.tokenizer(),
            &request,
            &mut |piece| {
                // What is held back still comes after a failure.
                if written.is_ok() {
                    written = write(piece.text());
                }
                if written.is_ok() {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            },
        );
        if let (Some(routers), Some(counters)) = (&mut self.routers, self.session.counters()) {
            routers.add(counters);
        }
        let reply = reply?;
        written?;
        if !reply.text.ends_with('\n') && !reply.text.is_empty() {
            write("\n")?;
        }
        if reply.finish == Finish::ContextFull {
            note(format_args!(
                "the reply ends here: the context of {} tokens is full",
                self.session.capacity()
            ));
        }
        if self.verbose {
            self.tell_speeds(prompt.len(), &reply);
        }
        Ok(reply)
    }

    fn tell_speeds(&self, prompt: usize, reply: &Reply) {
        let fed = prompt - reply.reused;
        tell(format_args!(
            "prompt  {fed} tokens in {:.2} s, {:.1} tok/s ({} tokens were held already)",
            reply.prompt_time.as_secs_f64(),
            rate(fed as u64, reply.prompt_time),
            reply.reused
        ));
        tell(format_args!(
            "reply   {} tokens in {:.2} s, {:.1} tok/s",
            reply.ids.len(),
            reply.reply_time.as_secs_f64(),
            rate(reply.ids.len() as u64, reply.reply_time)
        ));
        let Some(counters) = self.session.counters() else {
            return;
        };
        for (name, phase) in [("prefill", &counters.prefill), ("decode", &counters.decode)] {
            tell_ops(name, phase);
        }
        tell(format_args!(
            "keys and values of {} positions: {}",
            self.session.position(),
            size(self.session.bytes() as u64)
        ));
        if self.session.saturated() > 0 {
            note(format_args!(
                "{} numbers were too large for {}; --kv f32 keeps them",
                self.session.saturated(),
                self.session.engine().options().kv
            ));
        }
    }
}

fn tell_ops(name: &str, phase: &PhaseCounters) {
    if phase.calls == 0 {
        return;
    }
    let all = phase.all().time.as_secs_f64();
    tell(format_args!(
        "{name}: {} calls, {} rows, {:.3} s in ops",
        phase.calls, phase.tokens, all
    ));
    for &kind in OpKind::ALL {
        let op = phase.op(kind);
        if op.runs > 0 {
            tell(format_args!(
                "  {:9} {:>8} runs {:>10.2} ms {:>5.1} % {:>7.1} GB/s",
                kind.name(),
                op.runs,
                op.time.as_secs_f64() * 1e3,
                op.time.as_secs_f64() * 100.0 / all,
                rate(op.cost.bytes(), op.time) / 1e9
            ));
        }
    }
}

/// A message of a conversation.
pub fn message(role: &str, text: &str) -> Value {
    serde_json::json!({ "role": role, "content": text })
}

/// Shown at once, whole words or not.
fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

//! What may be typed.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use goldcrest_engine::Isa;
use goldcrest_engine::sample::{Dry, SamplingParams, Xtc};
use goldcrest_text::Tokenizer;

use crate::engine_args::{ArithmeticArgs, EngineArgs, isa};
use crate::memory::PlanArgs;
use crate::ranges::Range;
use crate::router_stats::RouterStatsArgs;

const MODEL_HELP: &str = "Path of a file or folder, an alias, or org/name[@revision][:quant] of the hub";

#[derive(Debug, Parser)]
#[command(name = "goldcrest", version, about, max_term_width = 120)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt, or chat on a terminal
    Run(RunArgs),
    /// Show what a model is
    Show(ShowArgs),
    /// Show what a model takes of memory, before anything is loaded
    Plan(PlanArgs),
    /// Show the token ids of a text
    Tokenize(TokenizeArgs),
    /// Write the logits of every position of a sequence to a safetensors file
    Logits(LogitsArgs),
    /// Write residual streams of a sequence to a safetensors file
    Capture(CaptureArgs),
    /// Make control vectors for `run --steer`
    Steer {
        /// What to do
        #[command(subcommand)]
        command: SteerCommand,
    },
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Compare the engine with the reference outputs of a golden case
    Verify(VerifyArgs),
    /// Measure the speed of prompts and replies
    Bench(BenchArgs),
    /// Download a model
    Pull(PullArgs),
    /// List the models on this machine
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub struct ModelArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// Never download: use what is on this machine
    #[arg(long)]
    pub offline: bool,
}

/// How tokens are chosen.
#[derive(Clone, Debug, Args)]
#[command(
    next_help_heading = "Sampling (in this order: bias, penalties, DRY, temperature, top-k, typical, top-p, min-p, XTC)"
)]
pub struct SamplingArgs {
    /// Divides the logits, before the filters choose; at 0 the likeliest token is always taken
    #[arg(
        long = "temp",
        visible_alias = "temperature",
        value_name = "T",
        default_value_t = 0.0
    )]
    pub temperature: f32,
    /// Keep this many likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0, requires = "temperature")]
    pub top_k: usize,
    /// Keep the fewest tokens that are about as surprising as a token is on average and together have this share
    #[arg(
        long,
        visible_alias = "typical",
        value_name = "P",
        default_value_t = 1.0,
        requires = "temperature"
    )]
    pub typical_p: f32,
    /// Keep the fewest likeliest tokens that together have this share
    #[arg(long, value_name = "P", default_value_t = 1.0, requires = "temperature")]
    pub top_p: f32,
    /// Keep tokens at least this many times as probable as the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.0, requires = "temperature")]
    pub min_p: f32,
    /// How often to leave out the likeliest tokens but the last one above the threshold (XTC)
    #[arg(long, value_name = "P", default_value_t = 0.0, requires = "temperature")]
    pub xtc_probability: f32,
    /// Least probability of the tokens that XTC leaves out; above 0.5 there are none
    #[arg(
        long,
        value_name = "P",
        default_value_t = Xtc::DEFAULT_THRESHOLD,
        requires = "xtc_probability"
    )]
    pub xtc_threshold: f32,
    /// Subtracted from logits of tokens that go on with a repetition, times the base for each token of it above the allowed length (DRY)
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub dry_multiplier: f32,
    /// See --dry-multiplier
    #[arg(long, value_name = "X", default_value_t = Dry::default().base, requires = "dry_multiplier")]
    pub dry_base: f32,
    /// Tokens of the shortest repetition that DRY sees
    #[arg(long, value_name = "N", default_value_t = Dry::default().allowed_length, requires = "dry_multiplier")]
    pub dry_allowed_length: usize,
    /// How many of the last tokens DRY looks at [default: all]
    #[arg(
        long,
        visible_alias = "dry-penalty-last-n",
        value_name = "N",
        requires = "dry_multiplier"
    )]
    pub dry_window: Option<usize>,
    /// No repetition reaches over a token with this text; may be given again; "none" for no text at all
    #[arg(
        long,
        visible_alias = "dry-sequence-breaker",
        value_name = "TEXT",
        default_values = ["\n", ":", "\"", "*"],
        hide_default_value = true,
        requires = "dry_multiplier",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub dry_breaker: Vec<String>,
    /// Divides positive logits of tokens seen and multiplies negative ones; 1 is none
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// Subtracted from logits of tokens in the reply
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted from logits of tokens for every time they are in the reply
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Added to the logit of a token, as ID=BIAS (-inf forbids it); may be given again
    #[arg(long, value_name = "ID=B", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws: the same seed gives the same reply
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl SamplingArgs {
    /// All but the tokens that break repetitions, which a tokenizer knows.
    pub fn params(&self) -> SamplingParams {
        SamplingParams {
            typical_p: self.typical_p,
            xtc: (self.xtc_probability != 0.0).then_some(Xtc {
                probability: self.xtc_probability,
                threshold: self.xtc_threshold,
            }),
            dry: (self.dry_multiplier != 0.0).then_some(Dry {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed_length: self.dry_allowed_length,
                window: self.dry_window,
                breakers: Vec::new(),
            }),
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            ..SamplingParams::default()
        }
    }

    /// All parameters.
    pub fn params_with(&self, tokenizer: &Tokenizer) -> SamplingParams {
        let mut params = self.params();
        if let Some(dry) = &mut params.dry {
            let texts = self.dry_breaker.iter().map(String::as_str);
            dry.breakers = tokenizer.ids_with(&texts.filter(|text| *text != "none").collect::<Vec<_>>());
        }
        params
    }
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The prompt; piped standard input is appended to it, or is the prompt
    pub prompt: Option<String>,
    /// Instructions that precede the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Feed the prompt as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Most tokens of a reply [default: until the model ends it]
    #[arg(short = 'n', long, value_name = "N", value_parser = positive())]
    pub max_tokens: Option<usize>,
    /// End the reply before this text; may be given again
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// Positions of prompt and reply together [default: what the model was trained for]
    #[arg(short, long, value_name = "N", value_parser = positive())]
    pub context: Option<usize>,
    /// Add SCALE [default: 1] times the directions of a control vector (GGUF or safetensors) to what the LAYERS [default: all of it], such
    /// as 4-12, leave; may be given again
    #[arg(long, value_name = "FILE[:SCALE[:LAYERS]]", value_parser = steer)]
    pub steer: Vec<SteerArg>,
    /// Tell times and speeds on standard error
    #[arg(long)]
    pub verbose: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub routers: RouterStatsArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print the ops of a forward call
    #[arg(long, group = "what")]
    pub plan: bool,
    /// Print the chat template
    #[arg(long, group = "what")]
    pub template: bool,
    /// Print everything as JSON
    #[arg(long, group = "what")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text [default: standard input, to its last byte]
    pub text: Option<String>,
    /// Recognise control tokens in the text
    #[arg(long)]
    pub special: bool,
    /// Print the ids alone, with commas between
    #[arg(long, conflicts_with = "json")]
    pub ids: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Token ids, with commas between
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',', required = true)]
    pub ids: Vec<u32>,
    /// The file: one f32 tensor `logits` of shape [ids, vocabulary]
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Tokens of one chunk; changes no bit
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = positive())]
    pub chunk: usize,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("sequence").required(true))]
pub struct CaptureArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The sequence as text, begun as the model wants; control tokens in it are recognised
    #[arg(long, value_name = "TEXT", group = "sequence")]
    pub prompt: Option<String>,
    /// The sequence as token ids, with commas between
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',', group = "sequence")]
    pub ids: Vec<u32>,
    /// Streams to write, such as 0,4-7: N is the one that enters layer N, and the number of layers that which leaves the last
    /// [default: all]
    #[arg(long, value_name = "A-B,C,...", value_delimiter = ',')]
    pub layers: Vec<Range>,
    /// Positions to write, such as 0,4-7 [default: all]
    #[arg(long, value_name = "A-B,C,...", value_delimiter = ',')]
    pub positions: Vec<Range>,
    /// The file: for each layer N an f32 tensor `residual.N` of shape [positions, hidden]
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Subcommand)]
pub enum SteerCommand {
    /// Make a control vector that leads from one set of prompts to another
    Make(SteerMakeArgs),
}

#[derive(Debug, Args)]
pub struct SteerMakeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Prompts to lead to, one a line; control tokens in them are recognised
    #[arg(long, value_name = "FILE")]
    pub positive: PathBuf,
    /// Prompts to lead away from, one a line
    #[arg(long, value_name = "FILE")]
    pub negative: PathBuf,
    /// The file: safetensors if it is named so, else GGUF for llama.cpp
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// How directions are found
    #[arg(long, value_enum, default_value_t)]
    pub method: MethodArg,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum MethodArg {
    /// The mean of the positive ones minus that of the negative ones, at the last token of each
    #[default]
    Mean,
    /// The first principal component of the differences of the i-th ones; at length 1
    Pca,
}

/// A control vector and what to do with it.
#[derive(Clone, Debug, PartialEq)]
pub struct SteerArg {
    pub file: PathBuf,
    pub scale: f32,
    pub layers: Option<Range>,
}

/// The text's tokens are cut into windows of --context tokens, each fed from an empty context and begun as the model wants a text to
/// begin (with its BOS token, if it has one). Every token of a window but its first is predicted; the last window may be shorter. The
/// perplexity is the exponential of the mean of -ln p, from the raw logits; its standard error takes tokens as independent.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct PerplexityArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text, UTF-8; control tokens in it are text
    pub file: PathBuf,
    /// Tokens of a window [default: 2048, or what the model was trained for if that is less]
    #[arg(short, long, visible_alias = "ctx", value_name = "N", value_parser = positive())]
    pub context: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub routers: RouterStatsArgs,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folder of the case
    pub case: PathBuf,
    /// Tokens of one chunk of the prompt [default: the prompt whole]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub chunk: Option<usize>,
    /// Threads [default: as many as the machine has for us]
    #[arg(short, long, value_name = "N", value_parser = positive())]
    pub threads: Option<usize>,
    /// Instruction set [default: the fastest of this machine]
    #[arg(long, value_name = "ISA", value_parser = isa())]
    pub isa: Option<Isa>,
    /// Take the model from this file instead of the case's own checkpoint
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Change this key of the configuration first: the case must fail then
    #[arg(long, value_name = "KEY")]
    pub perturb: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Tests are named as in llama-bench: pp512 is a prompt of 512 tokens, tg128 a reply of 128 tokens, @d4096 after 4096 tokens of context,
/// and x8 for 8 sequences side by side, whose tokens are added up. Lists have commas between; every combination is measured. GB/s are
/// bytes of weights that the forward calls have to read, each once a call, and of experts only those chosen; Gop/s are multiplications
/// and additions of products, attention and recurrences. Times of loading count from opening the files, without the vocabulary.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of prompts; 0 leaves these tests out
    #[arg(short, long, value_name = "N,N,...", value_delimiter = ',', default_value = "512")]
    pub prompt: Vec<usize>,
    /// Tokens of replies; 0 leaves these tests out
    #[arg(
        short = 'n',
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "128"
    )]
    pub reply: Vec<usize>,
    /// Tokens of context before, whose time does not count
    #[arg(short, long, value_name = "N,N,...", value_delimiter = ',', default_value = "0")]
    pub depth: Vec<usize>,
    /// Sequences that get replies side by side
    #[arg(short, long, value_name = "N,N,...", value_delimiter = ',', default_value = "1", value_parser = positive())]
    pub batch: Vec<usize>,
    /// Repetitions, after one that is not counted
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive())]
    pub repetitions: usize,
    /// Measure right before and after each test what the machine can do, and give figures as shares of the mean of both: reading half a
    /// GB of memory, products of bytes and of f32 in registers
    #[arg(long)]
    pub roofline: bool,
    /// Show where the time goes, by one more repetition of each test
    #[arg(long)]
    pub profile: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Threads [default: as many as the machine has for us]
    #[arg(short, long, value_name = "N,N,...", value_delimiter = ',', value_parser = positive(), help_heading = "Engine")]
    pub threads: Vec<usize>,
    #[command(flatten)]
    pub arithmetic: ArithmeticArgs,
    #[command(flatten)]
    pub routers: RouterStatsArgs,
}

#[derive(Debug, Args)]
pub struct PullArgs {
    #[arg(help = "An alias, or org/name[@revision][:quant] of the hub")]
    pub name: String,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print names alone
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A count of at least one.
pub fn positive() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u64).range(1..).try_map(usize::try_from)
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("there is no '=' between id and bias")?;
    let id = id.parse().map_err(|_| format!("{id:?} is no token id"))?;
    let bias = bias.parse().map_err(|_| format!("{bias:?} is no number"))?;
    Ok((id, bias))
}

/// A file's name may hold colons: what follows the last ones is only taken for a scale and layers if it is such.
fn steer(text: &str) -> Result<SteerArg, String> {
    let scaled = |text: &str| {
        let (file, scale) = text.rsplit_once(':')?;
        Some((PathBuf::from(file), scale.parse::<f32>().ok()?))
    };
    let ranged = text.rsplit_once(':').and_then(|(rest, layers)| {
        let (file, scale) = scaled(rest)?;
        Some((file, scale, Some(layers.parse::<Range>().ok()?)))
    });
    let (file, scale, layers) = ranged
        .or_else(|| scaled(text).map(|(file, scale)| (file, scale, None)))
        .unwrap_or_else(|| (PathBuf::from(text), 1.0, None));
    match file.as_os_str().is_empty() || !scale.is_finite() {
        true => Err("it is not FILE, FILE:SCALE or FILE:SCALE:LAYERS with a finite scale".into()),
        false => Ok(SteerArg { file, scale, layers }),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn filters_without_a_temperature_are_refused() {
        let parse = |words: &[&str]| Arguments::try_parse_from([&["goldcrest", "run", "m", "p"], words].concat());
        assert!(parse(&["--top-k", "5"]).is_err());
        assert!(parse(&["--top-k", "5", "--temp", "0.7"]).is_ok());
        assert!(parse(&["--seed", "5"]).is_ok());
    }

    #[test]
    fn a_bias_is_an_id_and_a_number() {
        assert_eq!(logit_bias("7=-1.5"), Ok((7, -1.5)));
        assert_eq!(logit_bias("7=-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["7", "x=1", "7=x", "-1=2", "=1"] {
            assert!(logit_bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_steer_is_a_file_a_scale_and_layers() {
        let arg = |file: &str, scale, layers| {
            let file = file.into();
            Ok(SteerArg { file, scale, layers })
        };
        assert_eq!(steer("v.gguf"), arg("v.gguf", 1.0, None));
        assert_eq!(steer("v.gguf:-0.5"), arg("v.gguf", -0.5, None));
        assert_eq!(steer("v.gguf:2:3-5"), arg("v.gguf", 2.0, Some(Range(3..=5))));
        assert_eq!(steer("a:b.gguf:2"), arg("a:b.gguf", 2.0, None));
        assert_eq!(steer("a:b.gguf"), arg("a:b.gguf", 1.0, None));
        for wrong in ["", ":1", "v:inf", "v:NaN:1"] {
            assert!(steer(wrong).is_err(), "{wrong}");
        }
    }
}

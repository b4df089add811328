//! How to compute, as it may be typed.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use goldcrest_engine::{Activations, EngineOptions, Eviction, Isa, KvElement, StreamOptions};
use goldcrest_format::Checkpoint;

use crate::args::positive;
use crate::memory::{MemoryArgs, Need, memory_size};

/// How to compute.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Threads [default: as many as the machine has for us]
    #[arg(short, long, value_name = "N", value_parser = positive())]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub arithmetic: ArithmeticArgs,
}

impl EngineArgs {
    pub fn options(&self) -> EngineOptions {
        self.arithmetic.options(self.threads)
    }

    /// The options with which a model stays below the limit, where there is one.
    pub fn fit(
        &self,
        checkpoint: &Checkpoint,
        need: impl FnOnce() -> anyhow::Result<Need>,
    ) -> anyhow::Result<EngineOptions> {
        self.arithmetic.memory.fit(checkpoint, self.options(), need)
    }
}

/// What is computed with, threads aside.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct ArithmeticArgs {
    /// Instruction set [default: the fastest of this machine]
    #[arg(long, value_name = "ISA", value_parser = isa())]
    pub isa: Option<Isa>,
    /// How products with quantised weights see their input: in eight bits, or as it is [default: as it is in models under 256 MiB,
    /// whose answers eight bits can change; else in eight bits]
    #[arg(long, value_enum)]
    pub activations: Option<ActivationsArg>,
    /// Type of stored keys and values
    #[arg(long, value_enum, default_value_t)]
    pub kv: KvArg,
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Memory for experts, as in 6GiB: those that it does not hold are read from the file when they are wanted, which makes room for
    /// models larger than memory [default: all experts are loaded]
    #[arg(long, value_name = "SIZE", value_parser = memory_size, group = "limit")]
    pub expert_memory: Option<usize>,
    /// Which experts make room for others
    #[arg(long, value_enum, default_value_t, requires = "limit")]
    pub expert_eviction: EvictionArg,
}

impl ArithmeticArgs {
    /// `threads`: none for as many as the machine has for us. Under a limit of all memory there is none for experts yet.
    pub fn options(&self, threads: Option<usize>) -> EngineOptions {
        let reads_experts = self.expert_memory.is_some() || self.memory.memory.is_some();
        EngineOptions {
            threads,
            isa: self.isa,
            activations: self.activations.map(|activations| match activations {
                ActivationsArg::Q8 => Activations::Q8,
                ActivationsArg::F32 => Activations::F32,
            }),
            kv: match self.kv {
                KvArg::F32 => KvElement::F32,
                KvArg::F16 => KvElement::F16,
                KvArg::Q8_0 => KvElement::Q8_0,
                KvArg::Q4 => KvElement::Q4,
            },
            streaming: reads_experts.then(|| StreamOptions {
                bytes: self.expert_memory.unwrap_or(0),
                eviction: match self.expert_eviction {
                    EvictionArg::LeastFrequent => Eviction::LeastFrequent,
                    EvictionArg::LeastRecent => Eviction::LeastRecent,
                },
                ..StreamOptions::default()
            }),
            ..EngineOptions::default()
        }
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum EvictionArg {
    /// Those that the fewest rows chose, older choices counting for less
    #[default]
    LeastFrequent,
    /// Those that were chosen longest ago
    LeastRecent,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ActivationsArg {
    Q8,
    F32,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum KvArg {
    F32,
    #[default]
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    Q4,
}

pub fn isa() -> impl TypedValueParser<Value = Isa> {
    PossibleValuesParser::new(["scalar", "avx2", "avx512", "neon"]).try_map(|name| name.parse::<Isa>())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    fn options(words: &str) -> Option<EngineOptions> {
        let words = ["goldcrest", "run", "model"]
            .into_iter()
            .chain(words.split_whitespace());
        match Arguments::try_parse_from(words).ok()?.command {
            Command::Run(args) => Some(args.engine.options()),
            _ => None,
        }
    }

    #[test]
    fn who_makes_room_may_be_chosen_under_either_limit() {
        let eviction = |words: &str| options(words)?.streaming.map(|experts| experts.eviction);
        for limit in ["--memory 6GiB", "--memory auto", "--expert-memory 2GiB"] {
            assert_eq!(eviction(limit), Some(Eviction::LeastFrequent), "{limit}");
            let chosen = format!("{limit} --expert-eviction least-recent");
            assert_eq!(eviction(&chosen), Some(Eviction::LeastRecent), "{limit}");
        }
        assert_eq!(options("").unwrap().streaming, None);
        for wrong in ["--expert-eviction least-recent", "--memory 6GiB --expert-memory 2GiB"] {
            assert!(options(wrong).is_none(), "{wrong}");
        }
    }
}

//! What can differ between state spaces. Sizes are those of the tensors, beside the few that tensors do not tell apart.

use crate::families::{Name, Number};
use crate::read::{Key, keys};

/// Mamba's selective scan, in layers that have an input projection.
#[derive(Clone, Copy, Debug)]
pub struct MambaFacts {
    pub names: MambaNames,
    /// Of the convolved input; absent: SiLU, as the gate's is.
    pub activation: Key,
}

/// Mamba-2's state space, in layers that have an input projection.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2Facts {
    pub names: MambaNames,
    /// Of the convolved x, B and C; absent: SiLU, as the gate's is.
    pub activation: Key,
    pub dt_limits: DtLimits,
    pub norm: GatedNormFacts,
    /// Factors of gate, x, B, C and dt as projected.
    pub scales: [Number; 5],
}

/// The norm of what the states give, with the gate before or after it.
#[derive(Clone, Copy, Debug)]
pub struct GatedNormFacts {
    /// Each group of heads that shares B and C is normed by itself.
    pub grouped: bool,
    /// Only if the configuration says true here. GGUF files say it by their tensors.
    pub only_if: Option<Key>,
    /// The gate comes after, if the configuration says so or is silent here. In GGUF files it comes before.
    pub gate_last: Option<Key>,
}

/// Within what time steps are kept.
#[derive(Clone, Copy, Debug)]
pub enum DtLimits {
    /// The two of the configuration; absent: no limits.
    Key(Key),
    /// At least what the configuration says; absent: this.
    AtLeast(Key, f32),
}

#[derive(Clone, Copy, Debug)]
pub struct MambaNames {
    /// Mamba: x, gate. Mamba-2: gate, x, B, C, dt.
    pub input: Name,
    pub conv: Name,
    /// Mamba: x → low-rank dt, B, C.
    pub low: Name,
    /// Mamba: low-rank dt → dt.
    pub dt: Name,
    /// Mamba-2, with its last part.
    pub dt_bias: Name,
    /// With its last part. Checkpoints hold A_log of `−exp(A_log)`, GGUF files the whole.
    pub rate: Name,
    /// With its last part.
    pub skip: Name,
    /// Mamba-2.
    pub norm: Name,
    pub output: Name,
}

macro_rules! names {
    ($block:literal) => {
        MambaNames {
            input: (concat!($block, ".in_proj"), "blk.{}.ssm_in"),
            conv: (concat!($block, ".conv1d"), "blk.{}.ssm_conv1d"),
            low: (concat!($block, ".x_proj"), "blk.{}.ssm_x"),
            dt: (concat!($block, ".dt_proj"), "blk.{}.ssm_dt"),
            dt_bias: (concat!($block, ".dt_bias"), "blk.{}.ssm_dt.bias"),
            rate: (concat!($block, ".A_log"), "blk.{}.ssm_a"),
            skip: (concat!($block, ".D"), "blk.{}.ssm_d"),
            norm: (concat!($block, ".norm"), "blk.{}.ssm_norm"),
            output: (concat!($block, ".out_proj"), "blk.{}.ssm_out"),
        }
    };
}

impl MambaNames {
    /// In models of one block a layer.
    pub const MIXER: MambaNames = names!("backbone.layers.{}.mixer");
    /// In models of several.
    pub const MAMBA: MambaNames = names!("model.layers.{}.mamba");
}

impl Mamba2Facts {
    /// As in Mamba-2 itself.
    pub const MAMBA2: Mamba2Facts = Mamba2Facts {
        names: MambaNames::MIXER,
        activation: keys::ACTIVATION,
        dt_limits: DtLimits::Key(keys::DT_LIMITS),
        norm: GatedNormFacts {
            grouped: false,
            only_if: None,
            gate_last: None,
        },
        scales: [Number::One; 5],
    };
}

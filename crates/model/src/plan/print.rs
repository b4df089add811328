//! A plan as text: one line an op, with the shapes and names that a reader wants beside it.

use std::fmt::{Display, Formatter, Result};

use super::op::{Activations, BufferId, MatrixId, NormId, Op, Rows, VectorId};
use super::{Kv, NormUse, Plan};
use crate::spec::{Activation, NormKind, Rope, RopeScaling, RowOrder};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter) -> Result {
        writeln!(
            f,
            "plan: {} layers, hidden {}, vocabulary {}",
            self.layers, self.hidden, self.vocabulary
        )?;
        for buffer in &self.buffers {
            let rows = if buffer.rows == Rows::Wanted {
                " (wanted rows)"
            } else {
                ""
            };
            writeln!(f, "buffer {} [rows, {}]{rows}", buffer.name, buffer.width)?;
        }
        for (i, rope) in self.ropes.iter().enumerate() {
            writeln!(f, "rope {i}: {rope}")?;
        }
        for (i, kv) in self.kvs.iter().enumerate() {
            writeln!(f, "kv {i}: {kv}")?;
        }
        for (i, recurrent) in self.recurrents.iter().enumerate() {
            writeln!(f, "recurrent {i}: {} numbers", recurrent.len)?;
        }
        for op in &self.ops {
            if let Op::Boundary { layer, .. } = op {
                writeln!(f, "-- {layer}")?;
            } else {
                writeln!(f, "{}", OpText { plan: self, op })?;
            }
        }
        Ok(())
    }
}

impl Display for Kv {
    fn fmt(&self, f: &mut Formatter) -> Result {
        write!(
            f,
            "{} heads, key {}, value {}",
            self.heads, self.key_dim, self.value_dim
        )?;
        match self.window {
            None => write!(f, ", all positions"),
            Some(window) => write!(f, ", window {window}"),
        }
    }
}

impl Display for Rope {
    fn fmt(&self, f: &mut Formatter) -> Result {
        write!(f, "theta {}, {} dimensions", self.theta, self.rotary)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => write!(f, ", linear 1/{factor}"),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                write!(
                    f,
                    ", llama3 1/{factor}, bands {low_freq_factor} to {high_freq_factor} in {original_context}"
                )
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                truncate,
                attention_factor,
            } => {
                let ramp = if *truncate {
                    "whole dimensions"
                } else {
                    "fractional dimensions"
                };
                write!(
                    f,
                    ", yarn 1/{factor}, {beta_fast} to {beta_slow} turns in {original_context}, {ramp}"
                )?;
                write!(f, ", cos and sin × {attention_factor}")
            }
            RopeScaling::Divisors(vector) => write!(f, ", divided by {}", vector.tensor),
        }
    }
}

struct OpText<'a> {
    plan: &'a Plan,
    op: &'a Op,
}

impl OpText<'_> {
    fn buffer(&self, id: BufferId) -> &'static str {
        self.plan.buffer(id).name
    }

    fn matrix(&self, id: MatrixId) -> String {
        let matrix = self.plan.matrix(id);
        format!("{} {}{}", matrix.tensor, matrix.dtype.name(), order(matrix.order))
    }

    fn vector(&self, id: VectorId) -> String {
        let vector = &self.plan.vectors[id.0];
        format!("{}{}", vector.tensor, order(vector.order))
    }

    fn norm(&self, id: NormId) -> String {
        let NormUse { norm, .. } = &self.plan.norms[id.0];
        let kind = match norm.kind {
            NormKind::Rms => "rms_norm",
        };
        let offset = if norm.weight.offset == 0.0 {
            String::new()
        } else {
            format!("{} + ", norm.weight.offset)
        };
        format!("{kind}({offset}{}, eps {})", norm.weight.tensor, norm.eps)
    }
}

fn order(order: RowOrder) -> &'static str {
    match order {
        RowOrder::Plain => "",
        RowOrder::Pairs { .. } => " (pairs to halves)",
    }
}

fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_tanh",
    }
}

impl Display for OpText<'_> {
    fn fmt(&self, f: &mut Formatter) -> Result {
        let name = |id| self.buffer(id);
        match *self.op {
            Op::Embed { table, scale, out } => write!(f, "{} = embed {} × {scale}", name(out), self.matrix(table)),
            Op::Boundary { layer, stream } => write!(f, "boundary {layer} of {}", name(stream)),
            Op::Norm {
                norm,
                groups,
                input,
                out,
            } => {
                write!(f, "{} = {} of {}", name(out), self.norm(norm), name(input))?;
                if groups == 1 {
                    Ok(())
                } else {
                    write!(f, " in {groups} groups")
                }
            }
            Op::MatMul {
                weight,
                bias,
                activations,
                input,
                out,
            } => {
                let kind = if activations == Activations::Q8 { "q8" } else { "f32" };
                write!(f, "{} = {kind} {} · {}", name(out), self.matrix(weight), name(input))?;
                bias.map_or(Ok(()), |bias| write!(f, " + {}", self.vector(bias)))
            }
            Op::Rope { rope, heads, buffer } => {
                write!(f, "{} = rope {} of {heads} heads", name(buffer), rope.0)
            }
            Op::KvWrite { kv, key, value } => write!(f, "kv {} ← {}, {}", kv.0, name(key), name(value)),
            Op::Attend {
                kv,
                heads,
                scale,
                softcap,
                query,
                out,
            } => {
                write!(
                    f,
                    "{} = attend {} over kv {}, {heads} heads, scale {scale}",
                    name(out),
                    name(query),
                    kv.0
                )?;
                softcap.map_or(Ok(()), |cap| write!(f, ", cap {cap}"))
            }
            Op::Activate {
                activation: kind,
                gate,
                up,
            } => {
                write!(
                    f,
                    "{gate} = {}({gate}) × {}",
                    activation(kind),
                    name(up),
                    gate = name(gate)
                )
            }
            Op::Add { stream, input } => write!(f, "{} += {}", name(stream), name(input)),
            Op::Want { input, out } => write!(f, "{} = wanted rows of {}", name(out), name(input)),
            Op::Softcap { cap, buffer } => write!(f, "{b} = {cap} · tanh({b} / {cap})", b = name(buffer)),
        }
    }
}

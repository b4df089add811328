//! Recurrent blocks → ops.

use super::build::Builder;
use super::op::{BufferId, Decay, Factors, Op};
use crate::spec::{
    Activation, Conv, DeltaNet, KeySharing, Lightning, Linear, Mamba, Mamba2, Norm, NormKind, ShortConv,
};

impl Builder {
    /// See [`DeltaNet`].
    pub fn delta_net(&mut self, net: &DeltaNet, input: BufferId, out: BufferId) {
        let DeltaNet {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = *net;
        let query = self.buffer("query", key_heads * key_dim);
        let key = self.buffer("key", key_heads * key_dim);
        let value = self.buffer("value", value_heads * value_dim);
        let projections = [(&net.query, query), (&net.key, key), (&net.value, value)];
        for (projection, buffer) in projections {
            self.linear(projection, input, buffer);
        }
        for ((_, buffer), conv) in projections.into_iter().zip(&net.convs) {
            self.conv(conv, buffer);
            self.activate(net.activation, buffer);
        }
        let unit = Norm {
            kind: NormKind::Unit,
            weight: None,
            bias: None,
            eps: net.unit_eps,
        };
        self.norm(&unit, key_heads, query, query);
        self.norm(&unit, key_heads, key, key);
        self.scale(query, 1.0 / (key_dim as f32).sqrt());
        let decay = self.low_rank(&net.decay, "decay", input);
        self.activate(Activation::Softplus, decay);
        self.scale_by(&net.rate, decay);
        self.activate(Activation::Exp, decay);
        let beta = self.buffer("beta", value_heads);
        self.exact_linear(&net.beta, input, beta);
        self.activate(Activation::Sigmoid, beta);
        self.scale(beta, net.beta_scale);
        let memory = self.recurrent(value_heads * key_dim * value_dim);
        let mixed = self.buffer("mixed", value_heads * value_dim);
        self.op(Op::LinearState {
            memory,
            heads: value_heads,
            key_heads,
            key_sharing: net.key_sharing,
            decay: Decay::Buffer(decay),
            beta: Some(beta),
            query,
            key,
            value,
            out: mixed,
        });
        self.norm(&net.norm, value_heads, mixed, mixed);
        let gate = self.low_rank(&net.gate, "output_gate", input);
        self.op(Op::Activate {
            activation: net.gate_activation,
            gate,
            up: Some(mixed),
        });
        self.linear(&net.output, gate, out);
    }

    /// See [`Mamba2`].
    pub fn mamba2(&mut self, mamba: &Mamba2, input: BufferId, out: BufferId) {
        let Mamba2 {
            heads,
            head_dim,
            groups,
            state_dim,
            ..
        } = *mamba;
        let gate = self.buffer("output_gate", heads * head_dim);
        let x = self.buffer("value", heads * head_dim);
        let b = self.buffer("key", groups * state_dim);
        let c = self.buffer("query", groups * state_dim);
        let dt = self.buffer("dt", heads);
        let [gate_scale, x_scale, b_scale, c_scale, dt_scale] = mamba.scales;
        self.linear(&mamba.gate, input, gate);
        self.scale(gate, gate_scale);
        let projections = [(&mamba.x, x, x_scale), (&mamba.b, b, b_scale), (&mamba.c, c, c_scale)];
        for (projection, buffer, scale) in projections {
            self.linear(projection, input, buffer);
            self.scale(buffer, scale);
        }
        for ((_, buffer, _), conv) in projections.into_iter().zip(&mamba.convs) {
            self.conv(conv, buffer);
            self.activate(mamba.activation, buffer);
        }
        self.exact_linear(&mamba.dt, input, dt);
        self.scale(dt, dt_scale);
        let decay = self.mamba2_steps(mamba, dt);
        let skipped = self.buffer("skipped", heads * head_dim);
        self.op(Op::Copy { input: x, out: skipped });
        self.scale_by(&mamba.skip, skipped);
        self.op(Op::Scale {
            buffer: x,
            factors: Factors::Buffer(dt),
        });
        let memory = self.recurrent(heads * state_dim * head_dim);
        let mixed = self.buffer("mixed", heads * head_dim);
        self.op(Op::LinearState {
            memory,
            heads,
            key_heads: groups,
            key_sharing: KeySharing::Neighbours,
            decay: Decay::Buffer(decay),
            beta: None,
            query: c,
            key: b,
            value: x,
            out: mixed,
        });
        self.op(Op::Add {
            out: mixed,
            input: skipped,
            scale: 1.0,
        });
        let gated = self.mamba2_gate(mamba, gate, mixed);
        self.linear(&mamba.output, gated, out);
    }

    /// Makes time steps of `dt` as projected; returns what states decay by.
    fn mamba2_steps(&mut self, mamba: &Mamba2, dt: BufferId) -> BufferId {
        let bias = self.vector(&mamba.dt_bias);
        self.op(Op::AddVector {
            vector: bias,
            buffer: dt,
        });
        self.activate(Activation::Softplus, dt);
        let [low, high] = mamba.dt_limits;
        if low > 0.0 || high < f32::INFINITY {
            self.op(Op::Clamp { low, high, buffer: dt });
        }
        let decay = self.buffer("decay", mamba.heads);
        self.op(Op::Copy { input: dt, out: decay });
        self.scale_by(&mamba.rate, decay);
        self.activate(Activation::Exp, decay);
        decay
    }

    fn mamba2_gate(&mut self, mamba: &Mamba2, gate: BufferId, mixed: BufferId) -> BufferId {
        let norm = |builder: &mut Builder, buffer| {
            if let Some(gated) = &mamba.norm {
                builder.norm(&gated.norm, gated.groups, buffer, buffer);
            }
        };
        let gate_first = mamba.norm.as_ref().is_none_or(|gated| gated.gate_first);
        if !gate_first {
            norm(self, mixed);
        }
        self.op(Op::Activate {
            activation: Activation::Silu,
            gate,
            up: Some(mixed),
        });
        if gate_first {
            norm(self, gate);
        }
        gate
    }

    /// See [`Mamba`].
    pub fn mamba(&mut self, mamba: &Mamba, input: BufferId, out: BufferId) {
        let Mamba {
            channels, state_dim, ..
        } = *mamba;
        let gate = self.buffer("output_gate", channels);
        let x = self.buffer("value", channels);
        self.linear(&mamba.gate, input, gate);
        self.linear(&mamba.x, input, x);
        self.conv(&mamba.conv, x);
        self.activate(mamba.activation, x);
        let low = self.buffer("dt_low", mamba.dt_low.weight.outputs());
        let (b, c) = (self.buffer("key", state_dim), self.buffer("query", state_dim));
        for (projection, buffer) in [(&mamba.dt_low, low), (&mamba.b, b), (&mamba.c, c)] {
            self.linear(projection, x, buffer);
        }
        let dt = self.buffer("dt", channels);
        self.exact_linear(&mamba.dt, low, dt);
        self.activate(Activation::Softplus, dt);
        let (rate, skip) = (self.vector(&mamba.rate), self.vector(&mamba.skip));
        let memory = self.recurrent(state_dim * channels);
        let mixed = self.buffer("mixed", channels);
        self.op(Op::Scan {
            memory,
            rate,
            skip,
            x,
            dt,
            b,
            c,
            out: mixed,
        });
        self.op(Op::Activate {
            activation: Activation::Silu,
            gate,
            up: Some(mixed),
        });
        self.linear(&mamba.output, gate, out);
    }

    /// See [`Lightning`].
    pub fn lightning(&mut self, lightning: &Lightning, input: BufferId, out: BufferId) {
        let Lightning { heads, head_dim, .. } = *lightning;
        let width = heads * head_dim;
        let [query, key, value] = ["query", "key", "value"].map(|name| self.buffer(name, width));
        let projections = [
            (&lightning.query, query),
            (&lightning.key, key),
            (&lightning.value, value),
        ];
        for (projection, buffer) in projections {
            self.linear(projection, input, buffer);
            self.activate(lightning.activation, buffer);
        }
        let memory = self.recurrent(heads * head_dim * head_dim);
        let mixed = self.buffer("mixed", width);
        self.op(Op::LinearState {
            memory,
            heads,
            key_heads: heads,
            key_sharing: KeySharing::Neighbours,
            decay: Decay::Slopes {
                scale: lightning.slope_scale,
            },
            beta: None,
            query,
            key,
            value,
            out: mixed,
        });
        self.norm(&lightning.norm, 1, mixed, mixed);
        let mixed = self.sigmoid_gate(&lightning.gate, input, mixed);
        self.linear(&lightning.output, mixed, out);
    }

    /// See [`ShortConv`].
    pub fn short_conv(&mut self, block: &ShortConv, input: BufferId, out: BufferId) {
        let width = block.conv.channels;
        let [b, c, x] = ["key", "query", "value"].map(|name| self.buffer(name, width));
        for (projection, buffer) in [(&block.b, b), (&block.c, c), (&block.x, x)] {
            self.linear(projection, input, buffer);
        }
        self.op(Op::Scale {
            buffer: x,
            factors: Factors::Buffer(b),
        });
        self.conv(&block.conv, x);
        self.op(Op::Scale {
            buffer: x,
            factors: Factors::Buffer(c),
        });
        self.linear(&block.output, x, out);
    }

    fn conv(&mut self, conv: &Conv, buffer: BufferId) {
        let weight = self.vector(&conv.weight);
        let bias = conv.bias.as_ref().map(|bias| self.vector(bias));
        let memory = self.recurrent((conv.kernel - 1) * conv.channels);
        self.op(Op::Conv {
            memory,
            kernel: conv.kernel,
            weight,
            bias,
            buffer,
        });
    }

    /// One matrix, or several one after the other.
    fn low_rank(&mut self, linears: &[Linear], name: &'static str, input: BufferId) -> BufferId {
        let mut from = input;
        for (i, linear) in linears.iter().enumerate() {
            let name = if i + 1 == linears.len() { name } else { "low_rank" };
            let to = self.buffer(name, linear.weight.outputs());
            self.exact_linear(linear, from, to);
            from = to;
        }
        from
    }

    fn activate(&mut self, activation: Activation, buffer: BufferId) {
        self.op(Op::Activate {
            activation,
            gate: buffer,
            up: None,
        });
    }

    fn scale_by(&mut self, vector: &crate::spec::Vector, buffer: BufferId) {
        let vector = self.vector(vector);
        self.op(Op::Scale {
            buffer,
            factors: Factors::Vector(vector),
        });
    }
}

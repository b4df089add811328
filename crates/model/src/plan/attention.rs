//! Attention blocks → ops.

use super::Kv;
use super::build::Builder;
use super::op::{BufferId, Factors, KvId, MatrixId, Op};
use crate::spec::{
    Activation, Attention, AttentionRule, HeadNorm, Indexer, KeyChoice, KeyValue, Linear, Matrix, Mla, OwnKeyValue,
    PositionScale, Rope, Visible,
};

impl Builder {
    /// Products of one input follow each other, so that a back end can run them as one.
    pub fn attention(&mut self, attention: &Attention, input: BufferId, out: BufferId) {
        let Attention { heads, .. } = *attention;
        let query = self.buffer("query", heads * attention.key_dim);
        self.linear(&attention.query, input, query);
        let kv = match &attention.kv {
            KeyValue::Own(own) => {
                let projected = self.project_key_value(attention, own, input);
                self.query_steps(attention, query);
                self.store_key_value(attention, own, projected)
            }
            KeyValue::Shared { layer } => {
                self.query_steps(attention, query);
                self.shared_key_value(*layer)
            }
        };
        let mixed = self.buffer("mixed", heads * attention.value_dim);
        self.attend(&attention.rule, (kv, heads, None), query, mixed);
        let mixed = match &attention.gate {
            None => mixed,
            Some(gate) => self.sigmoid_gate(gate, input, mixed),
        };
        self.linear(&attention.output, mixed, out);
    }

    fn query_steps(&mut self, attention: &Attention, query: BufferId) {
        let steps = HeadSteps {
            norm: attention.query_norm.as_ref(),
            norm_after_rope: attention.norm_after_rope,
            rope: attention.rope.as_ref(),
            heads: attention.heads,
        };
        self.head_steps(steps, query);
        self.position_scale(attention.position_scale, query);
    }

    fn project_key_value(&mut self, attention: &Attention, own: &OwnKeyValue, input: BufferId) -> [BufferId; 2] {
        let key = self.buffer("key", attention.kv_heads * attention.key_dim);
        let value = self.buffer("value", attention.kv_heads * attention.value_dim);
        self.linear(&own.key, input, key);
        match &own.value {
            Some(projection) => self.linear(projection, input, value),
            None => self.op(Op::Copy { input: key, out: value }),
        }
        [key, value]
    }

    fn store_key_value(&mut self, attention: &Attention, own: &OwnKeyValue, [key, value]: [BufferId; 2]) -> KvId {
        let Attention {
            kv_heads,
            key_dim,
            value_dim,
            ..
        } = *attention;
        let steps = HeadSteps {
            norm: own.key_norm.as_ref(),
            norm_after_rope: attention.norm_after_rope,
            rope: attention.rope.as_ref(),
            heads: kv_heads,
        };
        self.head_steps(steps, key);
        if let Some(HeadNorm { norm, groups }) = &own.value_norm {
            self.norm(norm, *groups, value, value);
        }
        self.scale(value, own.value_scale);
        let kv = self.kv(Kv {
            heads: kv_heads,
            key_dim,
            plain_key_dims: 0,
            value_dim,
            window: attention.rule.visible.window(),
        });
        self.op(Op::KvWrite {
            kv,
            key,
            value: Some(value),
        });
        kv
    }

    /// See [`Mla`].
    pub fn mla(&mut self, mla: &Mla, input: BufferId, out: BufferId) {
        let Mla {
            heads,
            nope_dim,
            rope_dim,
            latent_dim,
            ..
        } = *mla;
        let key_dim = latent_dim + rope_dim;
        let query_down = mla.query.down.as_ref().map(|(down, norm)| {
            let low = self.buffer("query_low", down.weight.outputs());
            self.linear(down, input, low);
            (low, norm)
        });
        let latent = self.buffer("latent", latent_dim);
        self.linear(&mla.latent, input, latent);
        let rope_key = self.buffer("rope_key", rope_dim);
        self.linear(&mla.rope_key, input, rope_key);
        let source = match query_down {
            None => input,
            Some((low, norm)) => {
                self.norm(norm, 1, low, low);
                self.scale(low, mla.latent_scales[0]);
                low
            }
        };
        let chosen = self.key_choice(mla, input, source);
        let query = self.mla_query(mla, source);
        self.norm(&mla.latent_norm, 1, latent, latent);
        self.scale(latent, mla.latent_scales[1]);
        self.rotate(mla.rope.as_ref(), 1, rope_key);
        let key = self.buffer("latent_key", key_dim);
        self.op(Op::Concat {
            heads: 1,
            first: latent,
            second: rope_key,
            out: key,
        });
        let kv = self.kv(Kv {
            heads: 1,
            key_dim,
            plain_key_dims: rope_dim,
            value_dim: latent_dim,
            window: mla.rule.visible.window(),
        });
        self.op(Op::KvWrite {
            kv,
            key,
            value: Some(latent),
        });
        let mixed = self.buffer("mixed_latent", heads * latent_dim);
        self.attend(&mla.rule, (kv, heads, chosen), query, mixed);
        let value = self.buffer("mixed", heads * mla.value_dim);
        self.head_matmul(&mla.value_up, mixed, value);
        self.linear(&mla.output, value, out);
        debug_assert_eq!(
            mla.key_up.len(),
            heads,
            "a matrix of [{latent_dim}, {nope_dim}] for each head"
        );
    }

    /// Queries in the space of latent keys, from their latent or the input: `[heads · (latent_dim + rope_dim)]`.
    fn mla_query(&mut self, mla: &Mla, source: BufferId) -> BufferId {
        let heads = mla.heads;
        let nope = self.buffer("query_nope", heads * mla.nope_dim);
        self.linear(&mla.query.nope, source, nope);
        let rope = self.buffer("query_rope", heads * mla.rope_dim);
        self.linear(&mla.query.rope, source, rope);
        self.rotate(mla.rope.as_ref(), heads, rope);
        let absorbed = self.buffer("query_latent", heads * mla.latent_dim);
        self.head_matmul(&mla.key_up, nope, absorbed);
        let query = self.buffer("query", heads * (mla.latent_dim + mla.rope_dim));
        self.op(Op::Concat {
            heads,
            first: absorbed,
            second: rope,
            out: query,
        });
        self.position_scale(mla.position_scale, query);
        query
    }

    /// The buffer of the positions that rows attend to; none: all that they see.
    fn key_choice(&mut self, mla: &Mla, input: BufferId, source: BufferId) -> Option<BufferId> {
        if let KeyChoice::Own(indexer) = mla.choice.as_ref()? {
            let chosen = self.choose_keys(indexer, mla.rule.visible, input, source);
            self.chosen_keys = Some(chosen);
        }
        self.chosen_keys
    }

    /// See [`Indexer`].
    fn choose_keys(&mut self, indexer: &Indexer, visible: Visible, input: BufferId, source: BufferId) -> BufferId {
        let Indexer { heads, head_dim, .. } = *indexer;
        let query = self.buffer("index_query", heads * head_dim);
        self.linear(&indexer.query, source, query);
        self.rotate(Some(&indexer.rope), heads, query);
        let key = self.buffer("index_key", head_dim);
        self.linear(&indexer.key, input, key);
        self.norm(&indexer.key_norm, 1, key, key);
        self.rotate(Some(&indexer.rope), 1, key);
        let kv = self.kv(Kv {
            heads: 1,
            key_dim: head_dim,
            // A choice is all or nothing: its scores are worth f16.
            plain_key_dims: head_dim,
            value_dim: 0,
            window: visible.window(),
        });
        self.op(Op::KvWrite { kv, key, value: None });
        let weights = self.buffer("index_weights", heads);
        self.exact_linear(&indexer.weights, input, weights);
        self.scale(weights, (1.0 / ((heads * head_dim) as f64).sqrt()) as f32);
        let chosen = self.buffer("chosen_keys", indexer.keep);
        self.op(Op::ChooseKeys {
            kv,
            visible,
            query,
            weights,
            chosen,
        });
        chosen
    }

    fn attend(
        &mut self,
        rule: &AttentionRule,
        (kv, heads, chosen): (KvId, usize, Option<BufferId>),
        query: BufferId,
        out: BufferId,
    ) {
        let sinks = rule.sinks.as_ref().map(|sinks| self.vector(sinks));
        self.op(Op::Attend {
            kv,
            heads,
            visible: rule.visible,
            scale: rule.scale,
            softcap: rule.softcap,
            sinks,
            alibi: rule.alibi,
            chosen,
            query,
            out,
        });
    }

    fn kv(&mut self, kv: Kv) -> KvId {
        let id = KvId(self.plan.kvs.len());
        self.plan.kvs.push(kv);
        self.kv_of_layer.push((self.layer, id));
        id
    }

    /// The keys and values that layer `layer` stored.
    fn shared_key_value(&self, layer: usize) -> KvId {
        let stored = self.kv_of_layer.iter().find(|(of, _)| *of == layer);
        stored.expect("the reader shares only what an earlier layer stores").1
    }

    fn head_steps(&mut self, steps: HeadSteps, buffer: BufferId) {
        if steps.norm_after_rope {
            self.rotate(steps.rope, steps.heads, buffer);
        }
        if let Some(HeadNorm { norm, groups }) = steps.norm {
            self.norm(norm, *groups, buffer, buffer);
        }
        if !steps.norm_after_rope {
            self.rotate(steps.rope, steps.heads, buffer);
        }
    }

    fn rotate(&mut self, rope: Option<&Rope>, heads: usize, buffer: BufferId) {
        if let Some(rope) = rope {
            let rope = self.rope(rope);
            self.op(Op::Rope { rope, heads, buffer });
        }
    }

    fn position_scale(&mut self, scale: Option<PositionScale>, buffer: BufferId) {
        if let Some(scale) = scale {
            self.op(Op::ScaleByPosition { scale, buffer });
        }
    }

    /// `value · sigmoid(gate · input)`, in the gate's buffer. A gate of fewer outputs covers equal parts of the value.
    pub fn sigmoid_gate(&mut self, gate: &Linear, input: BufferId, value: BufferId) -> BufferId {
        let factors = self.buffer("output_gate", gate.weight.outputs());
        self.exact_linear(gate, input, factors);
        self.op(Op::Activate {
            activation: Activation::Sigmoid,
            gate: factors,
            up: None,
        });
        self.op(Op::Scale {
            buffer: value,
            factors: Factors::Buffer(factors),
        });
        value
    }

    /// A matrix for each head; they lie in a row, as no other matrix equals them.
    fn head_matmul(&mut self, matrices: &[Matrix], input: BufferId, out: BufferId) {
        let first = MatrixId(self.plan.matrices.len());
        self.plan.matrices.extend_from_slice(matrices);
        self.op(Op::HeadMatMul {
            first,
            heads: matrices.len(),
            input,
            out,
        });
    }
}

/// What happens to queries or keys between projection and attention.
struct HeadSteps<'a> {
    norm: Option<&'a HeadNorm>,
    norm_after_rope: bool,
    rope: Option<&'a Rope>,
    heads: usize,
}

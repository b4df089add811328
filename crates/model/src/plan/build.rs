//! Spec → ops: the one decoder.

use super::op::{Activations, BufferId, KvId, MatrixId, NormId, Op, RopeId, Rows, VectorId};
use super::{Buffer, Kv, NormUse, Plan, PlanOptions};
use crate::spec::{Attention, DenseFfn, Ffn, Linear, Matrix, Mixer, ModelSpec, Norm, Rope, Sublayer, Vector};

pub fn build(spec: &ModelSpec, options: PlanOptions) -> Plan {
    let mut builder = Builder::new(spec, options);
    let stream = builder.buffer("stream", spec.hidden);
    let table = builder.matrix(&spec.embedding.table);
    builder.op(Op::Embed {
        table,
        scale: spec.embedding.scale,
        out: stream,
    });
    for (i, layer) in spec.layers.iter().enumerate() {
        builder.op(Op::Boundary { layer: i, stream });
        builder.sublayer(stream, &layer.mixer, |builder, mixer, input| match mixer {
            Mixer::Attention(attention) => builder.attention(attention, input),
        });
        builder.sublayer(stream, &layer.ffn, |builder, ffn, input| match ffn {
            Ffn::Dense(dense) => builder.dense_ffn(dense, input),
        });
    }
    builder.op(Op::Boundary {
        layer: spec.layers.len(),
        stream,
    });
    builder.head(spec, stream)
}

struct Builder {
    options: PlanOptions,
    plan: Plan,
}

impl Builder {
    fn new(spec: &ModelSpec, options: PlanOptions) -> Builder {
        let plan = Plan {
            vocabulary: spec.vocabulary,
            hidden: spec.hidden,
            layers: spec.layers.len(),
            buffers: Vec::new(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            norms: Vec::new(),
            ropes: Vec::new(),
            kvs: Vec::new(),
            recurrents: Vec::new(),
            ops: Vec::new(),
            logits: BufferId(0),
        };
        Builder { options, plan }
    }

    fn op(&mut self, op: Op) {
        self.plan.ops.push(op);
    }

    /// A buffer of this name and width; layers share theirs.
    fn buffer(&mut self, name: &'static str, width: usize) -> BufferId {
        self.buffer_of(Buffer {
            name,
            width,
            rows: Rows::All,
        })
    }

    fn buffer_of(&mut self, buffer: Buffer) -> BufferId {
        BufferId(find_or_push(&mut self.plan.buffers, buffer))
    }

    fn matrix(&mut self, matrix: &Matrix) -> MatrixId {
        MatrixId(find_or_push(&mut self.plan.matrices, matrix.clone()))
    }

    fn vector(&mut self, vector: &Vector) -> VectorId {
        VectorId(find_or_push(&mut self.plan.vectors, vector.clone()))
    }

    fn rope(&mut self, rope: &Rope) -> RopeId {
        RopeId(find_or_push(&mut self.plan.ropes, rope.clone()))
    }

    fn norm(&mut self, norm: &Norm, groups: usize, input: BufferId, out: BufferId) {
        let weight = self.vector(&norm.weight);
        let norm = NormId(find_or_push(
            &mut self.plan.norms,
            NormUse {
                norm: norm.clone(),
                weight,
            },
        ));
        self.op(Op::Norm {
            norm,
            groups,
            input,
            out,
        });
    }

    fn linear(&mut self, linear: &Linear, input: BufferId, out: BufferId) {
        let weight = self.matrix(&linear.weight);
        let bias = linear.bias.as_ref().map(|bias| self.vector(bias));
        let activations = match self.options.activations {
            Activations::Q8 if (self.options.integer_types)(linear.weight.dtype) => Activations::Q8,
            _ => Activations::F32,
        };
        self.op(Op::MatMul {
            weight,
            bias,
            activations,
            input,
            out,
        });
    }

    /// `stream += post(block(pre(stream)))`.
    fn sublayer<T>(
        &mut self,
        stream: BufferId,
        sublayer: &Sublayer<T>,
        block: impl FnOnce(&mut Builder, &T, BufferId) -> BufferId,
    ) {
        let input = match &sublayer.pre {
            None => stream,
            Some(norm) => {
                let normed = self.buffer("normed", self.plan.hidden);
                self.norm(norm, 1, stream, normed);
                normed
            }
        };
        let output = block(self, &sublayer.block, input);
        if let Some(norm) = &sublayer.post {
            self.norm(norm, 1, output, output);
        }
        self.op(Op::Add { stream, input: output });
    }

    fn attention(&mut self, attention: &Attention, input: BufferId) -> BufferId {
        let Attention {
            heads,
            kv_heads,
            head_dim,
            ..
        } = *attention;
        let query = self.buffer("query", heads * head_dim);
        let key = self.buffer("key", kv_heads * head_dim);
        let value = self.buffer("value", kv_heads * head_dim);
        self.linear(&attention.query, input, query);
        self.linear(&attention.key, input, key);
        self.linear(&attention.value, input, value);
        if let Some(norm) = &attention.query_norm {
            self.norm(norm, heads, query, query);
        }
        if let Some(norm) = &attention.key_norm {
            self.norm(norm, kv_heads, key, key);
        }
        if let Some(rope) = &attention.rope {
            let rope = self.rope(rope);
            self.op(Op::Rope {
                rope,
                heads,
                buffer: query,
            });
            self.op(Op::Rope {
                rope,
                heads: kv_heads,
                buffer: key,
            });
        }
        let kv = KvId(self.plan.kvs.len());
        self.plan.kvs.push(Kv {
            heads: kv_heads,
            key_dim: head_dim,
            value_dim: head_dim,
            window: attention.window,
        });
        self.op(Op::KvWrite { kv, key, value });
        let mixed = self.buffer("mixed", heads * head_dim);
        let Attention { scale, softcap, .. } = *attention;
        self.op(Op::Attend {
            kv,
            heads,
            scale,
            softcap,
            query,
            out: mixed,
        });
        let out = self.buffer("update", self.plan.hidden);
        self.linear(&attention.output, mixed, out);
        out
    }

    fn dense_ffn(&mut self, ffn: &DenseFfn, input: BufferId) -> BufferId {
        let width = ffn.up.weight.outputs();
        let (gate, up) = (self.buffer("gate", width), self.buffer("up", width));
        self.linear(&ffn.gate, input, gate);
        self.linear(&ffn.up, input, up);
        self.op(Op::Activate {
            activation: ffn.activation,
            gate,
            up,
        });
        let out = self.buffer("update", self.plan.hidden);
        self.linear(&ffn.down, gate, out);
        out
    }

    fn head(mut self, spec: &ModelSpec, stream: BufferId) -> Plan {
        let wanted = |name, width| Buffer {
            name,
            width,
            rows: Rows::Wanted,
        };
        let last = self.buffer_of(wanted("last", spec.hidden));
        let logits = self.buffer_of(wanted("logits", spec.vocabulary));
        self.op(Op::Want {
            input: stream,
            out: last,
        });
        self.norm(&spec.final_norm, 1, last, last);
        self.linear(&spec.head.projection, last, logits);
        if let Some(cap) = spec.head.softcap {
            self.op(Op::Softcap { cap, buffer: logits });
        }
        self.plan.logits = logits;
        self.plan
    }
}

/// The index of `item` in `list`, appended if it is not there. Lists are short, and this runs once for a model.
fn find_or_push<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|other| *other == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

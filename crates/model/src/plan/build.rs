//! Spec → ops: the one decoder. Blocks are lowered in the modules beside this one.

use super::op::{Activations, BufferId, Factors, MatrixId, NormId, Op, RecurrentId, RopeId, Rows, VectorId};
use super::{Buffer, NormUse, Plan, PlanOptions, Recurrent};
use crate::spec::{
    Block, Branch, Layer, Linear, Matrix, ModelSpec, Norm, PerLayerEmbedding, PerLayerInput, Residual, Rope, Sublayer,
    Vector,
};

pub fn build(spec: &ModelSpec, options: PlanOptions) -> Plan {
    let mut builder = Builder::new(spec, options);
    let stream = builder.buffer("stream", spec.hidden);
    builder.embed(spec, stream);
    for (i, layer) in spec.layers.iter().enumerate() {
        builder.op(Op::Boundary { layer: i, stream });
        builder.layer(i, layer, stream);
    }
    builder.op(Op::Boundary {
        layer: spec.layers.len(),
        stream,
    });
    builder.head(spec, stream)
}

pub struct Builder {
    options: PlanOptions,
    pub plan: Plan,
    /// The layer being lowered.
    pub layer: usize,
    /// Keys and values of each layer so far that has any.
    pub kv_of_layer: Vec<(usize, super::KvId)>,
    /// What the last index chose.
    pub chosen_keys: Option<BufferId>,
    /// The embeddings of all layers.
    per_layer: Option<BufferId>,
    /// What joins the stream at the end of the layer.
    deferred: Option<BufferId>,
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
            experts: Vec::new(),
            ops: Vec::new(),
            logits: BufferId(0),
        };
        Builder {
            options,
            plan,
            layer: 0,
            kv_of_layer: Vec::new(),
            chosen_keys: None,
            per_layer: None,
            deferred: None,
        }
    }

    pub fn op(&mut self, op: Op) {
        self.plan.ops.push(op);
    }

    /// A buffer of this name and width; layers share theirs.
    pub fn buffer(&mut self, name: &'static str, width: usize) -> BufferId {
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

    pub fn vector(&mut self, vector: &Vector) -> VectorId {
        VectorId(find_or_push(&mut self.plan.vectors, vector.clone()))
    }

    pub fn rope(&mut self, rope: &Rope) -> RopeId {
        RopeId(find_or_push(&mut self.plan.ropes, rope.clone()))
    }

    /// A recurrent memory of this layer.
    pub fn recurrent(&mut self, len: usize) -> RecurrentId {
        self.plan.recurrents.push(Recurrent { len });
        RecurrentId(self.plan.recurrents.len() - 1)
    }

    pub fn norm(&mut self, norm: &Norm, groups: usize, input: BufferId, out: BufferId) {
        let weight = norm.weight.as_ref().map(|weight| self.vector(weight));
        let bias = norm.bias.as_ref().map(|bias| self.vector(bias));
        let norm = norm.clone();
        let norm = NormId(find_or_push(&mut self.plan.norms, NormUse { norm, weight, bias }));
        self.op(Op::Norm {
            norm,
            groups,
            input,
            out,
        });
    }

    pub fn linear(&mut self, linear: &Linear, input: BufferId, out: BufferId) {
        let activations = self.activations(&linear.weight);
        self.product(linear, activations, input, out);
    }

    /// A product that sees its input as it is: routers, gates, decays, whose small errors would grow.
    pub fn exact_linear(&mut self, linear: &Linear, input: BufferId, out: BufferId) {
        self.product(linear, Activations::F32, input, out);
    }

    fn product(&mut self, linear: &Linear, activations: Activations, input: BufferId, out: BufferId) {
        let weight = self.matrix(&linear.weight);
        let bias = linear.bias.as_ref().map(|bias| self.vector(bias));
        self.op(Op::MatMul {
            weight,
            bias,
            activations,
            input,
            out,
        });
    }

    pub fn activations(&self, matrix: &Matrix) -> Activations {
        match self.options.activations {
            Activations::Q8 if (self.options.integer_types)(matrix.dtype) => Activations::Q8,
            _ => Activations::F32,
        }
    }

    /// `buffer · factor`, unless that is 1.
    pub fn scale(&mut self, buffer: BufferId, factor: f32) {
        if factor != 1.0 {
            self.op(Op::Scale {
                buffer,
                factors: Factors::One(factor),
            });
        }
    }

    fn embed(&mut self, spec: &ModelSpec, stream: BufferId) {
        let table = self.matrix(&spec.embedding.table);
        self.op(Op::Embed {
            table,
            scale: spec.embedding.scale,
            out: stream,
        });
        if let Some(positions) = &spec.embedding.positions {
            let table = self.matrix(positions);
            self.op(Op::EmbedPosition { table, out: stream });
        }
        if let Some(norm) = &spec.embedding.norm {
            self.norm(norm, 1, stream, stream);
        }
        if let Some(embedding) = &spec.embedding.per_layer {
            self.embed_per_layer(embedding, stream);
        }
    }

    /// See [`PerLayerEmbedding`].
    fn embed_per_layer(&mut self, embedding: &PerLayerEmbedding, stream: BufferId) {
        let width = embedding.projection.weight.outputs();
        let table = self.matrix(&embedding.table);
        let tokens = self.buffer("token_layers", width);
        self.op(Op::Embed {
            table,
            scale: embedding.scale,
            out: tokens,
        });
        let layers = self.buffer("embedded_layers", width);
        self.linear(&embedding.projection, stream, layers);
        self.scale(layers, embedding.projection_scale);
        self.norm(&embedding.norm, width / embedding.width, layers, layers);
        self.op(Op::Add {
            out: layers,
            input: tokens,
            scale: 1.0,
        });
        self.scale(layers, std::f32::consts::FRAC_1_SQRT_2);
        self.per_layer = Some(layers);
    }

    fn layer(&mut self, index: usize, layer: &Layer, stream: BufferId) {
        self.layer = index;
        for sublayer in &layer.sublayers {
            self.sublayer(stream, sublayer);
        }
        if let Some(deferred) = self.deferred.take() {
            self.op(Op::Add {
                out: stream,
                input: deferred,
                scale: 1.0,
            });
        }
        self.scale(stream, layer.scale);
    }

    /// See [`Sublayer`].
    fn sublayer(&mut self, stream: BufferId, sublayer: &Sublayer) {
        let mut updates = Vec::with_capacity(sublayer.branches.len());
        for branch in &sublayer.branches {
            if branch.deferred {
                let out = self.buffer("deferred", self.plan.hidden);
                self.branch(stream, branch, out);
                self.deferred = Some(out);
                continue;
            }
            // The first branch's update is complete before the second branch begins: they have a buffer each.
            let name = if updates.is_empty() { "update" } else { "update_2" };
            let out = self.buffer(name, self.plan.hidden);
            self.branch(stream, branch, out);
            updates.push(out);
        }
        let Some((&update, others)) = updates.split_first() else {
            return;
        };
        for &other in others {
            self.op(Op::Add {
                out: update,
                input: other,
                scale: 1.0,
            });
        }
        if let Some(norm) = &sublayer.post {
            self.norm(norm, 1, update, update);
        }
        if let Residual::NormedInput { scale } = sublayer.residual {
            let normed = self.buffer("normed", self.plan.hidden);
            self.op(Op::Copy {
                input: normed,
                out: stream,
            });
            self.scale(stream, scale);
        }
        self.op(Op::Add {
            out: stream,
            input: update,
            scale: sublayer.scale,
        });
    }

    fn branch(&mut self, stream: BufferId, branch: &Branch, out: BufferId) {
        let [scale_in, scale_out] = branch.scales;
        let normed = self.buffer("normed", self.plan.hidden);
        let input = match &branch.pre {
            None if scale_in == 1.0 => stream,
            None => {
                self.op(Op::Copy {
                    input: stream,
                    out: normed,
                });
                normed
            }
            Some(norm) => {
                self.norm(norm, 1, stream, normed);
                normed
            }
        };
        self.scale(input, scale_in);
        match &branch.block {
            Block::Attention(attention) => self.attention(attention, input, out),
            Block::Mla(mla) => self.mla(mla, input, out),
            Block::DeltaNet(net) => self.delta_net(net, input, out),
            Block::Mamba(mamba) => self.mamba(mamba, input, out),
            Block::Mamba2(mamba) => self.mamba2(mamba, input, out),
            Block::Lightning(lightning) => self.lightning(lightning, input, out),
            Block::ShortConv(conv) => self.short_conv(conv, input, out),
            Block::Dense(ffn) => self.dense_ffn(ffn, input, out),
            Block::Moe(moe) => self.moe(moe, stream, input, out),
            Block::PerLayerInput(block) => self.per_layer_input(block, input, out),
        }
        self.scale(out, scale_out);
        if let Some(norm) = &branch.post {
            self.norm(norm, 1, out, out);
        }
    }

    /// See [`PerLayerInput`].
    fn per_layer_input(&mut self, block: &PerLayerInput, input: BufferId, out: BufferId) {
        let layers = self
            .per_layer
            .expect("the reader gives such a block only with its embedding");
        let width = block.gate.weight.outputs();
        let gate = self.buffer("layer_gate", width);
        self.linear(&block.gate, input, gate);
        let embedded = self.buffer("embedded_layer", width);
        self.op(Op::Columns {
            first: self.layer * width,
            input: layers,
            out: embedded,
        });
        self.op(Op::Activate {
            activation: block.activation,
            gate,
            up: Some(embedded),
        });
        self.linear(&block.projection, gate, out);
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
        self.scale(logits, spec.head.scale);
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

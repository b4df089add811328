//! A plan as text: one line an op, with the shapes and names that a reader wants beside it.

use std::fmt::{Display, Formatter, Result};

use super::op::{Activations, BufferId, Decay, Factors, MatrixId, NormId, Op, Rows, VectorId};
use super::{ExpertBank, ExpertLinears, Kv, NormUse, Plan};
use crate::spec::{
    Divisors, KeySharing, LongRopeList, NormKind, Rope, RopeScaling, RouteRule, RowOrder, RowSelection, Storage,
    Vector, VectorMap, Visible,
};

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
            writeln!(f, "memory {i}: {} numbers", recurrent.len)?;
        }
        for (i, experts) in self.experts.iter().enumerate() {
            writeln!(f, "experts {i}: {}", ExpertsText { plan: self, experts })?;
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
        write!(f, "{} heads, key {}", self.heads, self.key_dim)?;
        if self.plain_key_dims > 0 {
            write!(f, " of which {} plain", self.plain_key_dims)?;
        }
        write!(f, ", value {}", self.value_dim)?;
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
            RopeScaling::Divisors(vector) => write!(f, ", divided by {}", vector.tensors.join(" ‖ ")),
            RopeScaling::LongRope {
                original_context,
                short,
                long,
            } => {
                write!(
                    f,
                    ", divided by {short} up to {original_context} positions, by {long} beyond"
                )
            }
            RopeScaling::Dynamic { factor, context } => write!(f, ", base stretched by {factor} beyond {context}"),
            RopeScaling::Proportional { angles } => write!(f, ", the first {angles} pairs"),
        }
    }
}

impl Display for LongRopeList {
    fn fmt(&self, f: &mut Formatter) -> Result {
        match &self.divisors {
            Divisors::Listed(list) => write!(f, "{list:?}")?,
            Divisors::Stored(vector) => write!(f, "{vector}")?,
        }
        write!(f, " (cos and sin × {})", self.attention_factor)
    }
}

impl Display for RowSelection {
    /// Empty for a stretch from the start.
    fn fmt(&self, f: &mut Formatter) -> Result {
        if self.is_contiguous() {
            match self.first {
                0 => Ok(()),
                first => write!(f, "[{first}..{}]", first + self.count),
            }
        } else {
            write!(f, "[{} + {} of each {}]", self.first, self.block, self.stride)
        }
    }
}

impl Display for Vector {
    fn fmt(&self, f: &mut Formatter) -> Result {
        let name = format!("{}{}{}", self.tensors.join(" ‖ "), self.elements, order(self.order));
        match self.map {
            VectorMap::Plain => write!(f, "{name}"),
            VectorMap::PlusOne => write!(f, "1 + {name}"),
            VectorMap::NegativeExp => write!(f, "−exp({name})"),
            VectorMap::Times(factor) => write!(f, "{factor} · {name}"),
        }
    }
}

impl Display for RouteRule {
    fn fmt(&self, f: &mut Formatter) -> Result {
        write!(f, "{} of {} by {:?}", self.top_k, self.experts, self.scoring)?;
        if let Some(groups) = self.groups {
            write!(
                f,
                ", in {} of {} groups by {:?}",
                groups.keep, groups.count, groups.score
            )?;
        }
        write!(f, ", normalised {:?}, × {}", self.normalise, self.scale)
    }
}

struct ExpertsText<'a> {
    plan: &'a Plan,
    experts: &'a ExpertBank,
}

impl Display for ExpertsText<'_> {
    fn fmt(&self, f: &mut Formatter) -> Result {
        let ExpertBank { count, gating, .. } = self.experts;
        write!(f, "{count} × {gating}")?;
        let parts = [
            ("gate", gating.gate()),
            ("up", Some(&self.experts.up)),
            ("down", Some(&self.experts.down)),
        ];
        for (name, ExpertLinears { matrices, biases }) in parts.into_iter().filter_map(|(n, part)| Some((n, part?))) {
            write!(f, ", {name} {}", matrix_text(self.plan, MatrixId(matrices.start)))?;
            if !biases.is_empty() {
                write!(f, " + {}", self.plan.vectors[biases.start])?;
            }
        }
        if self.experts.weigh_input {
            write!(f, ", weights multiply the input")?;
        }
        Ok(())
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
        matrix_text(self.plan, id)
    }

    fn vector(&self, id: VectorId) -> String {
        self.plan.vector(id).to_string()
    }

    /// ` + vector`, or nothing.
    fn plus(&self, id: Option<VectorId>) -> String {
        id.map_or(String::new(), |id| format!(" + {}", self.vector(id)))
    }

    fn factors(&self, factors: Factors) -> String {
        match factors {
            Factors::One(factor) => factor.to_string(),
            Factors::Vector(id) => self.vector(id),
            Factors::Buffer(id) => self.buffer(id).to_owned(),
        }
    }

    fn norm(&self, id: NormId) -> String {
        let NormUse { norm, .. } = &self.plan.norms[id.0];
        let kind = match norm.kind {
            NormKind::Rms => "rms_norm",
            NormKind::Layer => "layer_norm",
            NormKind::Unit => "unit_norm",
        };
        let vector = |vector: &Option<Vector>| vector.as_ref().map_or(String::new(), |v| format!("{v}, "));
        format!("{kind}({}{}eps {})", vector(&norm.weight), vector(&norm.bias), norm.eps)
    }
}

fn matrix_text(plan: &Plan, id: MatrixId) -> String {
    let matrix = plan.matrix(id);
    let storage = match &matrix.storage {
        Storage::Rows => String::new(),
        Storage::Columns { first_input } => format!(" (columns of rows from {first_input})"),
        Storage::Mxfp4 { scales } => format!(" (scales {scales})"),
    };
    let scales = matrix.scales.as_ref();
    let scales = scales.map_or(String::new(), |scales| format!(" (scales {})", scales.tensor));
    format!(
        "{}{} {}{storage}{scales}{}",
        matrix.tensor,
        matrix.rows,
        matrix.dtype.name(),
        order(matrix.order)
    )
}

fn order(order: RowOrder) -> &'static str {
    match order {
        RowOrder::Plain => "",
        RowOrder::Pairs { .. } => " (pairs to halves)",
        RowOrder::Transposed { .. } => " (transposed)",
    }
}

fn seen(visible: Visible) -> String {
    match visible {
        Visible::All => String::new(),
        Visible::Window(positions) => format!(", window {positions}"),
        Visible::Chunk(positions) => format!(", chunks of {positions}"),
    }
}

impl Display for OpText<'_> {
    fn fmt(&self, f: &mut Formatter) -> Result {
        let name = |id| self.buffer(id);
        match *self.op {
            Op::Embed { table, scale, out } => write!(f, "{} = embed {} × {scale}", name(out), self.matrix(table)),
            Op::EmbedPosition { table, out } => write!(f, "{} += position {}", name(out), self.matrix(table)),
            Op::Boundary { layer, stream } => write!(f, "boundary {layer} of {}", name(stream)),
            Op::Norm {
                norm,
                groups,
                input,
                out,
            } => {
                let groups = if groups == 1 {
                    String::new()
                } else {
                    format!(" in {groups} groups")
                };
                write!(f, "{} = {} of {}{groups}", name(out), self.norm(norm), name(input))
            }
            Op::MatMul {
                weight,
                bias,
                activations,
                input,
                out,
            } => {
                let (kind, bias) = (product(activations), self.plus(bias));
                write!(
                    f,
                    "{} = {kind} {} · {}{bias}",
                    name(out),
                    self.matrix(weight),
                    name(input)
                )
            }
            Op::HeadMatMul {
                first,
                heads,
                input,
                out,
            } => {
                let matrix = self.matrix(first);
                write!(
                    f,
                    "{} = {matrix} · {} for each of {heads} heads",
                    name(out),
                    name(input)
                )
            }
            Op::Rope { rope, heads, buffer } => write!(f, "{} = rope {} of {heads} heads", name(buffer), rope.0),
            Op::KvWrite { .. } | Op::ChooseKeys { .. } => self.keys(f),
            Op::Attend { .. } => self.attend(f),
            Op::Conv { .. } | Op::LinearState { .. } | Op::Scan { .. } => self.recurrence(f),
            Op::Route { .. } | Op::Experts { .. } => self.mixture(f),
            _ => self.elementwise(f),
        }
    }
}

impl OpText<'_> {
    fn keys(&self, f: &mut Formatter) -> Result {
        let name = |id| self.buffer(id);
        match *self.op {
            Op::KvWrite { kv, key, value } => {
                write!(f, "kv {} ← {}", kv.0, name(key))?;
                value.map_or(Ok(()), |value| write!(f, ", {}", name(value)))
            }
            Op::ChooseKeys {
                kv,
                visible,
                query,
                weights,
                chosen,
            } => write!(
                f,
                "{} = choose from kv {}{} by {}, weights {}",
                name(chosen),
                kv.0,
                seen(visible),
                name(query),
                name(weights)
            ),
            _ => Ok(()),
        }
    }

    fn attend(&self, f: &mut Formatter) -> Result {
        let Op::Attend {
            kv,
            heads,
            visible,
            scale,
            softcap,
            sinks,
            alibi,
            chosen,
            query,
            out,
        } = *self.op
        else {
            return Ok(());
        };
        let (query, out) = (self.buffer(query), self.buffer(out));
        write!(
            f,
            "{out} = attend {query} over kv {}, {heads} heads{}, scale {scale}",
            kv.0,
            seen(visible)
        )?;
        if let Some(chosen) = chosen {
            write!(f, ", only {}", self.buffer(chosen))?;
        }
        if let Some(cap) = softcap {
            write!(f, ", cap {cap}")?;
        }
        if let Some(sinks) = sinks {
            write!(f, ", sinks {}", self.vector(sinks))?;
        }
        if alibi { write!(f, ", alibi") } else { Ok(()) }
    }

    fn recurrence(&self, f: &mut Formatter) -> Result {
        let name = |id| self.buffer(id);
        match *self.op {
            Op::Conv {
                memory,
                kernel,
                weight,
                bias,
                buffer,
            } => {
                let weight = format!("{}{}", self.vector(weight), self.plus(bias));
                write!(
                    f,
                    "{b} = conv of {kernel} {weight} · {b}, memory {}",
                    memory.0,
                    b = name(buffer)
                )
            }
            Op::LinearState { .. } => self.linear_state(f),
            Op::Scan {
                memory,
                rate,
                skip,
                x,
                dt,
                b,
                c,
                out,
            } => {
                write!(
                    f,
                    "{} = scan of {}, memory {}, rate {}, ",
                    name(out),
                    name(x),
                    memory.0,
                    self.vector(rate)
                )?;
                write!(f, "skip {}; {}, {}, {}", self.vector(skip), name(dt), name(b), name(c))
            }
            _ => Ok(()),
        }
    }

    fn linear_state(&self, f: &mut Formatter) -> Result {
        let name = |id| self.buffer(id);
        let Op::LinearState {
            memory,
            heads,
            key_heads,
            key_sharing,
            decay,
            beta,
            query,
            key,
            value,
            out,
        } = *self.op
        else {
            return Ok(());
        };
        let decay = match decay {
            Decay::Slopes { scale } => format!("by slopes × {scale}"),
            Decay::Buffer(id) => name(id).to_owned(),
        };
        let turns = match key_sharing {
            KeySharing::Neighbours => "",
            KeySharing::InTurns => " in turns",
        };
        let rule = beta.map_or("added".to_owned(), |beta| format!("delta rule by {}", name(beta)));
        write!(
            f,
            "{} = state of {heads} heads ({key_heads} of keys{turns}), memory {}, ",
            name(out),
            memory.0
        )?;
        write!(
            f,
            "decay {decay}, {rule}; {}, {}, {}",
            name(query),
            name(key),
            name(value)
        )
    }

    fn mixture(&self, f: &mut Formatter) -> Result {
        let name = |id| self.buffer(id);
        match *self.op {
            Op::Route {
                rule,
                correction,
                expert_scale,
                logits,
                ids,
                weights,
                ..
            } => {
                write!(f, "{}, {} = route {} {rule}", name(ids), name(weights), name(logits))?;
                if let Some(correction) = correction {
                    write!(f, ", corrected by {}", self.vector(correction))?;
                }
                expert_scale.map_or(Ok(()), |scale| write!(f, ", weights × {}", self.vector(scale)))
            }
            Op::Experts {
                experts,
                activations,
                ids,
                weights,
                input,
                out,
            } => {
                let kind = product(activations);
                write!(
                    f,
                    "{} = {kind} experts {} by {}, {} ",
                    name(out),
                    experts.0,
                    name(ids),
                    name(weights)
                )?;
                write!(f, "of {}", name(input))
            }
            _ => Ok(()),
        }
    }

    fn elementwise(&self, f: &mut Formatter) -> Result {
        let name = |id| self.buffer(id);
        match *self.op {
            Op::ScaleByPosition { scale, buffer } => {
                let (beta, offset, floor) = (scale.beta, scale.offset, scale.floor);
                write!(
                    f,
                    "{b} = {b} × (1 + {beta} · ln(1 + ⌊(position + {offset}) / {floor}⌋))",
                    b = name(buffer)
                )
            }
            Op::Activate { activation, gate, up } => {
                write!(f, "{gate} = {activation:?}({gate})", gate = name(gate))?;
                up.map_or(Ok(()), |up| write!(f, " × {}", name(up)))
            }
            Op::Scale { buffer, factors } => write!(f, "{b} = {b} × {}", self.factors(factors), b = name(buffer)),
            Op::Clamp { low, high, buffer } => write!(f, "{b} = {b} within {low} to {high}", b = name(buffer)),
            Op::Copy { input, out } => write!(f, "{} = {}", name(out), name(input)),
            Op::Columns { first, input, out } => {
                write!(f, "{} = columns of {} from {first}", name(out), name(input))
            }
            Op::Concat {
                heads,
                first,
                second,
                out,
            } => write!(f, "{} = {} ‖ {} of {heads} heads", name(out), name(first), name(second)),
            Op::AddVector { vector, buffer } => write!(f, "{} += {}", name(buffer), self.vector(vector)),
            Op::Add { out, input, scale: 1.0 } => write!(f, "{} += {}", name(out), name(input)),
            Op::Add { out, input, scale } => write!(f, "{} += {} × {scale}", name(out), name(input)),
            Op::Want { input, out } => write!(f, "{} = wanted rows of {}", name(out), name(input)),
            Op::Softcap { cap, buffer } => write!(f, "{b} = {cap} · tanh({b} / {cap})", b = name(buffer)),
            _ => Ok(()),
        }
    }
}

fn product(activations: Activations) -> &'static str {
    match activations {
        Activations::Q8 => "q8",
        Activations::F32 => "f32",
    }
}

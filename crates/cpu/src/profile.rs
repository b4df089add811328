//! What ops cost: the bytes that they have to move and the operations that they have to do, from the plan and the rows of a call.

use goldcrest_kernels::KvElement;
use goldcrest_model::backend::Span;
use goldcrest_model::plan::{BufferId, Decay, Factors, MatrixId, Op, Plan, RecurrentId, Rows};
use goldcrest_model::spec::Visible;

use crate::weights::Panels;
use crate::{Program, kv_bytes_per_token};

/// What an op has to move and to do in one call. A byte counts once, however often an implementation comes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Of matrices, as they lie in memory.
    pub weight_bytes: u64,
    /// Of keys, values and recurrent memories, read or written.
    pub state_bytes: u64,
    /// Of the plan's buffers, read or written.
    pub buffer_bytes: u64,
    /// Multiplications and additions of products, attention, convolutions and recurrences; other ops have none.
    pub operations: u64,
}

impl Cost {
    /// All that it moves.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.state_bytes + self.buffer_bytes
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.weight_bytes += other.weight_bytes;
        self.state_bytes += other.state_bytes;
        self.buffer_bytes += other.buffer_bytes;
        self.operations += other.operations;
    }
}

/// The experts that the rows of a call chose in one layer. An id beyond the experts is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Different ones.
    pub experts: usize,
    /// Pairs of a row and an expert.
    pub pairs: usize,
}

/// The rows of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallShape<'a> {
    pub spans: &'a [Span],
    /// Rows whose logits are wanted.
    pub wanted: usize,
    /// By the router before the op; of interest to [`Op::Experts`] alone.
    pub chosen: Chosen,
}

impl CallShape<'_> {
    fn rows(&self) -> usize {
        self.spans.iter().map(|span| span.rows).sum()
    }
}

/// What the ops of a plan cost, known from shapes alone.
#[derive(Clone, Copy, Debug)]
pub struct Costs<'a> {
    plan: &'a Plan,
    kv: KvElement,
}

impl<'a> Costs<'a> {
    /// With keys and values of this type.
    pub fn new(plan: &'a Plan, kv: KvElement) -> Costs<'a> {
        Costs { plan, kv }
    }

    /// What an op of the plan costs in a call.
    pub fn of(&self, op: &Op, shape: &CallShape) -> Cost {
        let mut cost = Cost::default();
        each_access(op, &mut |buffer| {
            cost.buffer_bytes +=
                (self.rows_of(buffer, shape) * self.plan.buffer(buffer).width * size_of::<f32>()) as u64;
        });
        match *op {
            Op::Embed { table, .. } | Op::EmbedPosition { table, .. } => {
                cost.weight_bytes = self.panels(table).row_bytes() * shape.rows() as u64;
            }
            Op::MatMul { weight, out, .. } => self.add_products(&mut cost, weight.0, 1, self.rows_of(out, shape)),
            Op::HeadMatMul { first, heads, out, .. } => {
                self.add_products(&mut cost, first.0, heads, self.rows_of(out, shape));
            }
            Op::Experts { experts, .. } => {
                for linears in self.plan.experts[experts.0].projections() {
                    let panels = self.panels(MatrixId(linears.matrices.start));
                    cost.weight_bytes += panels.bytes() * shape.chosen.experts as u64;
                    cost.operations += panels.operations() * shape.chosen.pairs as u64;
                }
            }
            Op::KvWrite { kv, .. } => cost.state_bytes = self.position_bytes(kv.0) * shape.rows() as u64,
            Op::ChooseKeys {
                kv, visible, weights, ..
            } => {
                let (distinct, seen) = positions(shape.spans, visible, usize::MAX);
                let heads = self.plan.buffer(weights).width;
                cost.state_bytes = self.position_bytes(kv.0) * distinct;
                cost.operations = 2 * (heads * self.plan.kvs[kv.0].key_dim) as u64 * seen;
            }
            Op::Attend {
                kv,
                heads,
                visible,
                chosen,
                ..
            } => {
                let most = chosen.map_or(usize::MAX, |chosen| self.plan.buffer(chosen).width);
                let (distinct, seen) = positions(shape.spans, visible, most);
                let kv_plan = &self.plan.kvs[kv.0];
                cost.state_bytes = self.position_bytes(kv.0) * distinct;
                cost.operations = 2 * (heads * (kv_plan.key_dim + kv_plan.value_dim)) as u64 * seen;
            }
            Op::Conv {
                memory, kernel, buffer, ..
            } => {
                cost.state_bytes = self.memory_bytes(memory, shape);
                cost.operations = (2 * kernel * self.plan.buffer(buffer).width * shape.rows()) as u64;
            }
            // A product with the memory for the update, one for the output, and one more for the value that it holds already.
            Op::LinearState { memory, beta, .. } => {
                let products = if beta.is_some() { 3 } else { 2 };
                cost.state_bytes = self.memory_bytes(memory, shape);
                cost.operations = (2 * products * self.plan.recurrents[memory.0].len * shape.rows()) as u64;
            }
            Op::Scan { memory, .. } => {
                cost.state_bytes = self.memory_bytes(memory, shape);
                cost.operations = (4 * self.plan.recurrents[memory.0].len * shape.rows()) as u64;
            }
            _ => {}
        }
        cost
    }

    /// `count` products with matrices of one shape, `first` and those after it, of `rows` rows.
    fn add_products(&self, cost: &mut Cost, first: usize, count: usize, rows: usize) {
        if rows == 0 {
            return;
        }
        let panels = self.panels(MatrixId(first));
        cost.weight_bytes += panels.bytes() * count as u64;
        cost.operations += panels.operations() * (count * rows) as u64;
    }

    fn rows_of(&self, buffer: BufferId, shape: &CallShape) -> usize {
        match self.plan.buffer(buffer).rows {
            Rows::All => shape.rows(),
            Rows::Wanted => shape.wanted,
        }
    }

    fn position_bytes(&self, kv: usize) -> u64 {
        kv_bytes_per_token(&self.plan.kvs[kv], self.kv) as u64
    }

    /// Read and written once by each row: rows follow each other.
    fn memory_bytes(&self, memory: RecurrentId, shape: &CallShape) -> u64 {
        (2 * self.plan.recurrents[memory.0].len * size_of::<f32>() * shape.rows()) as u64
    }

    fn panels(&self, id: MatrixId) -> Panels {
        Panels::of(self.plan.matrix(id))
    }
}

impl Program {
    /// What `op` of the program's plan costs in a call.
    pub fn cost(&self, op: &Op, shape: &CallShape) -> Cost {
        Costs::new(&self.plan, self.kv_element).of(op, shape)
    }

    /// Type and shape of the matrices of an op, such as `Q4_K 1536x576` (outputs x inputs); none for an op without.
    pub fn weights_of(&self, op: &Op) -> Option<String> {
        let described = |panels: Panels| format!("{} {}x{}", panels.panel_type, panels.outputs, panels.k);
        match *op {
            Op::Embed { table, .. } | Op::EmbedPosition { table, .. } => Some(described(self.weights.matrix(table))),
            Op::MatMul { weight, .. } => Some(described(self.weights.matrix(weight))),
            Op::HeadMatMul { first, heads, .. } => {
                Some(format!("{heads} of {}", described(self.weights.matrix(first))))
            }
            Op::Experts { experts, .. } => {
                let bank = &self.plan.experts[experts.0];
                let mut all: Vec<String> = bank
                    .projections()
                    .map(|linears| described(self.weights.matrix(MatrixId(linears.matrices.start))))
                    .collect();
                all.dedup();
                Some(format!("{} of {}", bank.count, all.join(", ")))
            }
            _ => None,
        }
    }
}

/// Stored positions that the rows see, each `most` of them: different ones of each sequence, if no two rows choose the same, and those of
/// every row added up.
fn positions(spans: &[Span], visible: Visible, most: usize) -> (u64, u64) {
    let seen_by = |position: usize| match visible {
        Visible::All => position + 1,
        Visible::Window(window) => window.min(position + 1),
        Visible::Chunk(chunk) => position % chunk + 1,
    };
    let (mut distinct, mut seen) = (0, 0);
    for span in spans.iter().filter(|span| span.rows > 0) {
        let of_all: usize = (span.start..span.start + span.rows)
            .map(|position| seen_by(position).min(most))
            .sum();
        distinct += (seen_by(span.start) + span.rows - 1).min(of_all);
        seen += of_all;
    }
    (distinct as u64, seen as u64)
}

/// Calls `access` with each buffer that an op reads and each that it writes.
fn each_access(op: &Op, access: &mut dyn FnMut(BufferId)) {
    let mut all = |buffers: &[BufferId]| buffers.iter().for_each(|buffer| access(*buffer));
    match *op {
        Op::Boundary { .. } => {}
        Op::Embed { out, .. } => all(&[out]),
        // As many columns or rows as are written are read, of a wider or longer buffer.
        Op::EmbedPosition { out, .. } | Op::Columns { out, .. } | Op::Want { out, .. } => all(&[out, out]),
        Op::Norm { input, out, .. }
        | Op::MatMul { input, out, .. }
        | Op::HeadMatMul { input, out, .. }
        | Op::Copy { input, out } => all(&[input, out]),
        Op::Rope { buffer, .. }
        | Op::ScaleByPosition { buffer, .. }
        | Op::Conv { buffer, .. }
        | Op::Clamp { buffer, .. }
        | Op::AddVector { buffer, .. }
        | Op::Softcap { buffer, .. } => all(&[buffer, buffer]),
        Op::KvWrite { key, value, .. } => {
            all(&[key]);
            value.iter().for_each(|value| all(&[*value]));
        }
        Op::ChooseKeys {
            query, weights, chosen, ..
        } => all(&[query, weights, chosen]),
        Op::Attend { query, out, chosen, .. } => {
            all(&[query, out]);
            chosen.iter().for_each(|chosen| all(&[*chosen]));
        }
        Op::LinearState {
            decay,
            beta,
            query,
            key,
            value,
            out,
            ..
        } => {
            all(&[query, key, value, out]);
            beta.iter().for_each(|beta| all(&[*beta]));
            if let Decay::Buffer(decay) = decay {
                all(&[decay]);
            }
        }
        Op::Scan { x, dt, b, c, out, .. } => all(&[x, dt, b, c, out]),
        Op::Route {
            logits, ids, weights, ..
        } => all(&[logits, ids, weights]),
        Op::Experts {
            ids,
            weights,
            input,
            out,
            ..
        } => all(&[ids, weights, input, out]),
        Op::Activate { gate, up, .. } => {
            all(&[gate, gate]);
            up.iter().for_each(|up| all(&[*up]));
        }
        Op::Scale { buffer, factors } => {
            all(&[buffer, buffer]);
            if let Factors::Buffer(factors) = factors {
                all(&[factors]);
            }
        }
        Op::Concat { first, second, out, .. } => all(&[first, second, out]),
        Op::Add { out, input, .. } => all(&[out, out, input]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_seen_as_the_rule_says() {
        let span = |start, rows| Span { feed: 0, start, rows };
        assert_eq!(positions(&[], Visible::All, usize::MAX), (0, 0));
        assert_eq!(positions(&[span(0, 4)], Visible::All, usize::MAX), (4, 1 + 2 + 3 + 4));
        assert_eq!(
            positions(&[span(10, 2), span(0, 1)], Visible::All, usize::MAX),
            (12 + 1, 11 + 12 + 1)
        );
        // The rows at 5, 6 and 7 see 3..=5, 4..=6 and 5..=7.
        assert_eq!(positions(&[span(5, 3)], Visible::Window(3), usize::MAX), (5, 9));
        assert_eq!(positions(&[span(1, 1)], Visible::Window(3), usize::MAX), (2, 2));
        // The rows at 6, 7 and 8 see 4..=6, 4..=7 and 8.
        assert_eq!(positions(&[span(6, 3)], Visible::Chunk(4), usize::MAX), (5, 3 + 4 + 1));
        // Of 11 and 12 positions 4 each, and at least as many as that.
        assert_eq!(positions(&[span(10, 2)], Visible::All, 4), (8, 8));
        assert_eq!(positions(&[span(2, 2)], Visible::All, 4), (4, 3 + 4));
    }
}

//! Mixtures of experts: the choice, and the chosen experts with their rows side by side.

use std::ops::Range;

use goldcrest_kernels::{
    ActivationType, Activations as Packed, GroupLimit, GroupScore, Normalise, RouteRule as KernelRule, Router, Scoring,
};
use goldcrest_model::plan::{ExpertBank, ExpertLinears, MatrixId, Op, VectorId};
use goldcrest_model::spec::{self, Gating};

use super::Call;
use super::elementwise::{gated_kernel, kernel};
use super::matmul::{Weighted, activation_type, pack_rows, run_product};
use crate::{Cpu, CpuError, Program};

/// Memory of expert ops that outlives a call. Rows are those of one expert.
#[derive(Default)]
pub struct ExpertScratch {
    scores: Vec<f32>,
    ids: Vec<u32>,
    /// (expert, row, weight) of every choice, in rising order.
    choices: Vec<(u32, u32, f32)>,
    packed: Packed,
    /// `[rows, hidden]`
    input: Vec<f32>,
    /// `[rows, width]`
    gate: Vec<f32>,
    /// `[rows, width]`
    up: Vec<f32>,
    /// `[rows, hidden]`
    output: Vec<f32>,
}

impl Call<'_, '_> {
    pub fn route(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::Route {
            rule,
            correction,
            expert_scale,
            logits,
            ids,
            weights,
        } = *op
        else {
            return Ok(());
        };
        let program = self.program;
        let kernel_rule = kernel_rule(&rule);
        let [correction, expert_scale] = [correction, expert_scale].map(|id| id.map(|id| program.weights.vector(id)));
        let rows = self.scratch.rows.len();
        let k = rule.top_k;
        let super::Scratch { buffers, experts, .. } = &mut *self.scratch;
        let [logits, ids, weights] = buffers
            .get_disjoint_mut([logits.0, ids.0, weights.0])
            .expect("an op's buffers differ");
        kernel_rule.check(rule.experts, k).map_err(CpuError::RouteRule)?;
        experts.ids.resize(k, 0);
        let router = Router {
            rule: &kernel_rule,
            correction,
            per_expert: expert_scale,
        };
        for row in 0..rows {
            let (logits, weights) = (
                &logits[row * rule.experts..][..rule.experts],
                &mut weights[row * k..][..k],
            );
            self.cpu
                .kernels
                .route(&router, logits, &mut experts.ids, weights, &mut experts.scores)
                .map_err(|source| CpuError::Route { row, source })?;
            for (to, id) in ids[row * k..][..k].iter_mut().zip(&experts.ids) {
                *to = *id as f32;
            }
        }
        Ok(())
    }

    /// Experts in rising id, each over all rows that chose it, so that every row's sum grows in the order of the definition.
    pub fn experts(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::Experts {
            experts,
            activations,
            ids,
            weights,
            input,
            out,
        } = *op
        else {
            return Ok(());
        };
        let (cpu, program) = (self.cpu, self.program);
        let bank = &program.plan.experts[experts.0];
        let rows = self.scratch.rows.len();
        let (k, hidden) = (self.width(ids), self.width(out));
        let mut scratch = std::mem::take(&mut self.scratch.experts);
        let (reads, out) = self.scratch.split(out);
        let out = &mut out[..rows * hidden];
        out.fill(0.0);
        scratch.choices.clear();
        let chosen = reads.get(ids, rows * k).iter().zip(reads.get(weights, rows * k));
        let choices = chosen
            .enumerate()
            .map(|(i, (id, weight))| (*id as u32, (i / k) as u32, *weight));
        scratch.choices.extend(choices);
        scratch.choices.sort_unstable_by_key(|&(id, row, _)| (id, row));
        let run = ExpertRun {
            cpu,
            program,
            bank,
            kind: activation_type(activations),
            hidden,
            input: reads.get(input, rows * hidden),
        };
        let mut result = Ok(());
        let mut start = 0;
        while start < scratch.choices.len() && result.is_ok() {
            let expert = scratch.choices[start].0;
            let same = scratch.choices[start..].iter().take_while(|choice| choice.0 == expert);
            let range = start..start + same.count();
            start = range.end;
            result = run.expert(expert as usize, range, &mut scratch, out);
        }
        self.scratch.experts = scratch;
        result
    }
}

/// What the experts of one op share.
struct ExpertRun<'a> {
    cpu: &'a Cpu,
    program: &'a Program,
    bank: &'a ExpertBank,
    kind: ActivationType,
    hidden: usize,
    input: &'a [f32],
}

impl ExpertRun<'_> {
    /// One expert over the rows of its choices, added to `out`.
    fn expert(
        &self,
        expert: usize,
        choices: Range<usize>,
        scratch: &mut ExpertScratch,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        let hidden = self.hidden;
        scratch.input.clear();
        for &(_, row, weight) in &scratch.choices[choices.clone()] {
            scratch
                .input
                .extend_from_slice(&self.input[row as usize * hidden..][..hidden]);
            if self.bank.weigh_input {
                let start = scratch.input.len() - hidden;
                self.cpu.kernels.scale(&mut scratch.input[start..], weight);
            }
        }
        let rows = choices.len();
        if expert < self.bank.count {
            self.compute(expert, rows, scratch)?;
        } else {
            // An id beyond the experts returns its input.
            scratch.output.clear();
            scratch.output.extend_from_slice(&scratch.input);
        }
        for (i, &(_, row, weight)) in scratch.choices[choices].iter().enumerate() {
            let weight = if self.bank.weigh_input { 1.0 } else { weight };
            let sum = &mut out[row as usize * hidden..][..hidden];
            let output = &scratch.output[i * hidden..][..hidden];
            self.cpu.kernels.add_scaled(sum, weight, output);
        }
        Ok(())
    }

    fn compute(&self, expert: usize, rows: usize, scratch: &mut ExpertScratch) -> Result<(), CpuError> {
        let up = self.weighted(&self.bank.up, expert);
        let width = up.panels.outputs;
        let ExpertScratch {
            packed,
            input,
            gate,
            up: up_rows,
            output,
            ..
        } = scratch;
        pack_rows(self.cpu, self.kind, input, self.hidden, packed)?;
        up_rows.resize(rows * width, 0.0);
        run_product(self.cpu, self.program, &up, packed, up_rows)?;
        let inner = match &self.bank.gating {
            Gating::Gated {
                activation,
                gate: linears,
            } => {
                gate.resize(rows * width, 0.0);
                run_product(self.cpu, self.program, &self.weighted(linears, expert), packed, gate)?;
                self.cpu
                    .kernels
                    .activate_gated(gated_kernel(*activation), gate, up_rows);
                gate
            }
            Gating::Ungated(activation) => {
                self.cpu.kernels.activate(kernel(*activation), up_rows);
                up_rows
            }
        };
        pack_rows(self.cpu, self.kind, inner, width, packed)?;
        output.resize(rows * self.hidden, 0.0);
        run_product(
            self.cpu,
            self.program,
            &self.weighted(&self.bank.down, expert),
            packed,
            output,
        )
    }

    fn weighted(&self, linears: &ExpertLinears, expert: usize) -> Weighted<'_> {
        let weights = &self.program.weights;
        let bias = (!linears.biases.is_empty()).then(|| weights.vector(VectorId(linears.biases.start + expert)));
        Weighted {
            panels: weights.matrix(MatrixId(linears.matrices.start + expert)),
            bias,
        }
    }
}

/// The kernel's words for a rule.
fn kernel_rule(rule: &spec::RouteRule) -> KernelRule {
    KernelRule {
        scoring: match rule.scoring {
            spec::Scoring::Softmax => Scoring::Softmax,
            spec::Scoring::SoftmaxOfChosen => Scoring::SoftmaxOfChosen,
            spec::Scoring::Sigmoid => Scoring::Sigmoid,
            spec::Scoring::SigmoidOfChosen => Scoring::SigmoidOfChosen,
            spec::Scoring::SqrtSoftplus => Scoring::SqrtSoftplus,
            spec::Scoring::SparseMixer { jitter } => Scoring::SparseMixer { jitter },
        },
        groups: rule.groups.map(|groups| GroupLimit {
            count: groups.count,
            keep: groups.keep,
            score: match groups.score {
                spec::GroupScore::Max => GroupScore::Max,
                spec::GroupScore::SumOfBestTwo => GroupScore::SumOfBestTwo,
            },
        }),
        normalise: match rule.normalise {
            spec::Normalise::None => Normalise::None,
            spec::Normalise::Sum { eps } => Normalise::Sum { eps },
            spec::Normalise::AtLeast { least } => Normalise::AtLeast { min: least },
        },
        scale: rule.scale,
    }
}

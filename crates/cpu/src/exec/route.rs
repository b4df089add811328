//! Mixtures of experts: the choice.

use goldcrest_kernels::{GroupLimit, GroupScore, Normalise, RouteRule as KernelRule, Router, Scoring};
use goldcrest_model::plan::Op;
use goldcrest_model::spec;

use super::Call;
use super::experts::{Choice, StreamedExperts};
use crate::CpuError;

impl Call<'_, '_> {
    /// Chooses the experts of every row, and asks for those that are not there where it is known early.
    pub fn route(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::Route {
            experts: bank,
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
        experts.choices.clear();
        experts.choices.reserve_exact(rows * k);
        let chosen = ids[..rows * k].iter().zip(&weights[..rows * k]);
        experts
            .choices
            .extend(chosen.enumerate().map(|(i, (id, weight))| Choice {
                expert: *id as usize,
                row: i / k,
                weight: *weight,
            }));
        experts
            .choices
            .sort_unstable_by_key(|choice| (choice.expert, choice.row));
        if let Some(streamed) = StreamedExperts::of(program, bank) {
            streamed.choose(&experts.choices);
            if streamed.is_asked_early() {
                experts.leases = streamed.acquire(streamed.batch(&experts.choices).0);
            }
        }
        Ok(())
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

//! Feed-forward blocks → ops.

use super::build::Builder;
use super::op::{BufferId, ExpertsId, Op};
use super::{ExpertBank, ExpertLinears};
use crate::spec::{DenseFfn, Experts, Linear, Moe, SharedExpert};

impl Builder {
    pub fn dense_ffn(&mut self, ffn: &DenseFfn, input: BufferId, out: BufferId) {
        let width = ffn.up.weight.outputs();
        let up = self.buffer("up", width);
        let inner = match &ffn.gate {
            None => {
                self.linear(&ffn.up, input, up);
                self.op(Op::Activate {
                    activation: ffn.activation,
                    gate: up,
                    up: None,
                });
                up
            }
            Some(projection) => {
                let gate = self.buffer("gate", width);
                self.linear(projection, input, gate);
                self.scale(gate, ffn.gate_scale);
                self.linear(&ffn.up, input, up);
                self.op(Op::Activate {
                    activation: ffn.activation,
                    gate,
                    up: Some(up),
                });
                gate
            }
        };
        self.linear(&ffn.down, inner, out);
    }

    /// `stream` is what the router's own norm sees, where it has one.
    pub fn moe(&mut self, moe: &Moe, stream: BufferId, input: BufferId, out: BufferId) {
        let router = &moe.router;
        let router_input = match &router.norm {
            None => input,
            Some(norm) => {
                let normed = self.buffer("router_input", self.plan.hidden);
                self.norm(norm, 1, stream, normed);
                normed
            }
        };
        let logits = self.buffer("router", router.logits.weight.outputs());
        self.exact_linear(&router.logits, router_input, logits);
        let ids = self.buffer("expert_ids", router.rule.top_k);
        let weights = self.buffer("expert_weights", router.rule.top_k);
        let correction = router.correction.as_ref().map(|correction| self.vector(correction));
        let expert_scale = router.expert_scale.as_ref().map(|scale| self.vector(scale));
        let (experts, activations) = (self.experts(&moe.experts), self.activations(&moe.experts.up[0].weight));
        self.op(Op::Route {
            experts,
            rule: router.rule,
            correction,
            expert_scale,
            logits,
            ids,
            weights,
        });
        // Before the experts, which may have to be read first.
        let shared = moe.shared.as_ref().map(|shared| self.shared_expert(shared, input));
        self.op(Op::Experts {
            experts,
            activations,
            ids,
            weights,
            input,
            out,
        });
        if let Some(shared) = shared {
            self.op(Op::Add {
                out,
                input: shared,
                scale: 1.0,
            });
        }
        self.scale(out, moe.scale);
    }

    /// What the shared expert makes of `input`.
    fn shared_expert(&mut self, shared: &SharedExpert, input: BufferId) -> BufferId {
        let update = self.buffer("shared", self.plan.hidden);
        self.dense_ffn(&shared.ffn, input, update);
        if let Some(gate) = &shared.gate {
            self.sigmoid_gate(gate, input, update);
        }
        update
    }

    fn experts(&mut self, experts: &Experts) -> ExpertsId {
        let bank = ExpertBank {
            count: experts.up.len(),
            gating: experts.gating.map(|gate| self.expert_linears(gate)),
            up: self.expert_linears(&experts.up),
            down: self.expert_linears(&experts.down),
            weigh_input: experts.weigh_input,
        };
        self.plan.experts.push(bank);
        ExpertsId(self.plan.experts.len() - 1)
    }

    fn expert_linears(&mut self, linears: &[Linear]) -> ExpertLinears {
        let plan = &mut self.plan;
        let (matrix, bias) = (plan.matrices.len(), plan.vectors.len());
        plan.matrices.extend(linears.iter().map(|linear| linear.weight.clone()));
        plan.vectors
            .extend(linears.iter().filter_map(|linear| linear.bias.clone()));
        ExpertLinears {
            matrices: matrix..plan.matrices.len(),
            biases: bias..plan.vectors.len(),
        }
    }
}

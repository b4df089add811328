//! Mixtures of experts of a layer.

use super::SpecError;
use super::ffn::FfnNames;
use super::keys::{self, Key};
use super::layers::LayerReader;
use super::tensors::{Place, Tensors};
use crate::families::{Bias, FusedExperts, Groups, MoeFacts, MoeNames, Name, NormaliseFact, ScoringFact};
use crate::spec::{
    ExpertGroups, Experts, GatedActivation, Gating, GroupScore, Linear, Matrix, Moe, Normalise, RouteRule, Router,
    RowSelection, Scoring, SharedExpert, Storage, Vector,
};

impl LayerReader<'_> {
    /// The layer's mixture of experts, if it has a router.
    pub fn moe(&self, tensors: &mut Tensors, layer: usize) -> Result<Option<Moe>, SpecError> {
        let facts = &self.family.moe;
        if !tensors.has(facts.names.router, layer, "weight") {
            return Ok(None);
        }
        let experts = self.positive(keys::EXPERTS, layer)?;
        let identities = self.identities(facts.identities)?;
        let router = self.router(tensors, layer, experts + identities)?;
        let shared = self.shared_expert(tensors, layer)?;
        // One shared expert of the width of all stands for several; the average counts them with the sum of the chosen as one more.
        let scale = match (&shared, facts.average_shared) {
            (Some(_), true) => {
                let strategy = self
                    .settings
                    .hf("shared_expert_combination_strategy")
                    .and_then(|v| v.as_str());
                if strategy.is_none_or(|strategy| strategy == "average") {
                    0.5
                } else {
                    1.0
                }
            }
            _ => 1.0,
        };
        Ok(Some(Moe {
            router,
            experts: self.experts(tensors, layer, (experts, identities))?,
            shared,
            scale,
        }))
    }

    /// Number of ids that return their input.
    fn identities(&self, key: Option<Key>) -> Result<usize, SpecError> {
        const TYPE: &str = "zero_expert_type";
        let number = match key {
            Some(key) => self.settings.opt_usize(key)?.unwrap_or(0),
            None => 0,
        };
        match self.settings.hf(TYPE).and_then(|value| value.as_str()) {
            Some(other) if number > 0 && other != "identity" => Err(SpecError::Unsupported {
                key: TYPE.into(),
                value: other.into(),
            }),
            _ => Ok(number),
        }
    }

    /// A number above zero, that of the layer where the file has one for each.
    pub fn positive(&self, key: Key, layer: usize) -> Result<usize, SpecError> {
        self.settings.positive(key, self.settings.opt_usize_at(key, layer)?)
    }

    fn router(&self, tensors: &mut Tensors, layer: usize, experts: usize) -> Result<Router, SpecError> {
        let facts = &self.family.moe;
        let top_k = match facts.scoring {
            ScoringFact::SparseMixer(_) => 2,
            _ => self.positive(keys::TOP_K, layer)?,
        };
        if top_k > experts {
            let expected = format!("at most the {experts} experts");
            return Err(self.settings.bad_value(keys::TOP_K, top_k, expected));
        }
        let scoring = self.scoring(facts)?;
        let mut correction = None;
        for &name in facts.names.correction {
            correction = match correction {
                None => tensors.opt_vector(name, layer, "", experts)?,
                found => found,
            };
        }
        Ok(Router {
            norm: None,
            logits: tensors.linear(facts.names.router, layer, [experts, self.hidden], Bias::Stored)?,
            rule: RouteRule {
                experts,
                top_k,
                scoring,
                groups: self.expert_groups((facts.groups, scoring), experts, top_k)?,
                normalise: self.normalise(facts, scoring)?,
                scale: self.number(facts.scale)?,
            },
            correction,
            expert_scale: None,
        })
    }

    fn scoring(&self, facts: &MoeFacts) -> Result<Scoring, SpecError> {
        Ok(match facts.scoring {
            ScoringFact::Fixed(scoring) => scoring,
            ScoringFact::ChosenByKey(key, default) if self.settings.is_gguf() => match self.settings.opt_usize(key)? {
                None => default,
                Some(2) => Scoring::SigmoidOfChosen,
                // The softmax of all, normalised over the chosen, is theirs.
                Some(1 | 3) => Scoring::SoftmaxOfChosen,
                Some(other) => return Err(self.settings.unsupported(key, other)),
            },
            ScoringFact::ChosenByKey(key, default) => match self.settings.opt_str(key)? {
                None => default,
                Some("sigmoid") => Scoring::SigmoidOfChosen,
                Some("softmax") => Scoring::SoftmaxOfChosen,
                Some(other) => return Err(self.settings.unsupported(key, other)),
            },
            ScoringFact::GgufNumber { hf, .. } if !self.settings.is_gguf() => hf,
            ScoringFact::GgufNumber { gguf_default, .. } => match self.settings.opt_usize(keys::EXPERT_SCORING)? {
                None | Some(0) => gguf_default,
                Some(1) => Scoring::Softmax,
                Some(2) => Scoring::Sigmoid,
                Some(3) => Scoring::SoftmaxOfChosen,
                Some(other) => return Err(self.settings.unsupported(keys::EXPERT_SCORING, other)),
            },
            ScoringFact::SparseMixer(key) => Scoring::SparseMixer {
                jitter: self.settings.opt_f64(key)?.unwrap_or(0.01) as f32,
            },
        })
    }

    fn expert_groups(
        &self,
        (groups, scoring): (Groups, Scoring),
        experts: usize,
        top_k: usize,
    ) -> Result<Option<ExpertGroups>, SpecError> {
        let score = match groups {
            Groups::None => return Ok(None),
            Groups::BestTwo => GroupScore::SumOfBestTwo,
            Groups::OfScoring if scoring == Scoring::Softmax => GroupScore::Max,
            Groups::OfScoring => GroupScore::SumOfBestTwo,
            Groups::MaxIfLimited => match self.settings.opt_str(keys::GROUP_METHOD)? {
                None | Some("greedy") => return Ok(None),
                Some("group_limited_greedy") => GroupScore::Max,
                Some(other) => return Err(self.settings.unsupported(keys::GROUP_METHOD, other)),
            },
        };
        let count = self.settings.opt_usize(keys::EXPERT_GROUPS)?.unwrap_or(1);
        let keep = self.settings.opt_usize(keys::KEPT_GROUPS)?.unwrap_or(1);
        // GGUF files write 0 for none.
        if count == 0 && self.settings.is_gguf() {
            return Ok(None);
        }
        let least = match score {
            GroupScore::Max => 1,
            GroupScore::SumOfBestTwo => 2,
        };
        let members = experts.checked_div(count).unwrap_or(0);
        if members * count != experts || members < least || keep > count || keep * members < top_k {
            let value = format!("{count} groups, {keep} kept");
            let expected =
                format!("equal groups of {experts} experts, of which the kept ones hold the {top_k} to choose");
            return Err(self.settings.bad_value(keys::EXPERT_GROUPS, value, expected));
        }
        Ok((keep < count).then_some(ExpertGroups { count, keep, score }))
    }

    fn normalise(&self, facts: &MoeFacts, scoring: Scoring) -> Result<Normalise, SpecError> {
        Ok(match facts.normalise {
            // These weights have the sum 1.
            _ if scoring == Scoring::SoftmaxOfChosen => Normalise::None,
            NormaliseFact::Never => Normalise::None,
            NormaliseFact::Always { eps } => Normalise::Sum { eps },
            NormaliseFact::Key {
                key,
                default,
                gguf_default,
                eps,
            } => {
                let default = if self.settings.is_gguf() { gguf_default } else { default };
                match self.settings.opt_bool(key)?.unwrap_or(default) {
                    true => Normalise::Sum { eps },
                    false => Normalise::None,
                }
            }
            NormaliseFact::AtLeast { key, default } => Normalise::AtLeast {
                least: self.settings.opt_f64(key)?.unwrap_or(default) as f32,
            },
        })
    }

    fn shared_expert(&self, tensors: &mut Tensors, layer: usize) -> Result<Option<SharedExpert>, SpecError> {
        let names = &self.family.moe.names;
        if !tensors.has(names.shared_up, layer, "weight") {
            return Ok(None);
        }
        let ffn_names = FfnNames {
            gate: names.shared_gate,
            up: names.shared_up,
            down: names.shared_down,
        };
        let ffn = self.ffn(tensors, layer, ffn_names)?;
        let gate = match tensors.has(names.shared_router, layer, "weight") {
            true => Some(tensors.linear(names.shared_router, layer, [1, self.hidden], Bias::Stored)?),
            false => None,
        };
        Ok(Some(SharedExpert { ffn, gate }))
    }

    fn experts(
        &self,
        tensors: &mut Tensors,
        layer: usize,
        (count, identities): (usize, usize),
    ) -> Result<Experts, SpecError> {
        let facts = &self.family.moe;
        let reader = ExpertReader {
            layer,
            count,
            hidden: self.hidden,
            fused: match self.settings.is_gguf() {
                true => FusedExperts::Rows,
                false => facts.fused,
            },
        };
        let gated = self.family.ffn.gated;
        let fused = match gated {
            true => reader.fused(tensors, facts)?,
            false => None,
        };
        let Projections { gate, up, down } = match fused {
            Some(projections) => projections,
            None => reader.separate(tensors, &facts.names, gated)?,
        };
        let gating = match (gate, facts.activation) {
            (None, _) => Gating::Ungated(self.activation()?),
            (Some(gate), Some(activation)) => Gating::Gated { activation, gate },
            (Some(gate), None) => Gating::Gated {
                activation: GatedActivation::Product(self.activation()?),
                gate,
            },
        };
        reader.ignore_identities(tensors, facts, identities);
        Ok(Experts {
            gating,
            up,
            down,
            weigh_input: facts.weigh_input,
            identities,
        })
    }
}

/// The projections of all experts of a layer.
struct Projections {
    gate: Option<Vec<Linear>>,
    up: Vec<Linear>,
    down: Vec<Linear>,
}

/// Finds the experts of one layer, in the ways in which files hold them.
struct ExpertReader {
    layer: usize,
    count: usize,
    hidden: usize,
    /// How gate and up lie in one tensor.
    fused: FusedExperts,
}

/// One projection of all experts: its tensor, and where an expert's rows are.
struct Stack {
    /// In MXFP4 without `_blocks` and `_scales`.
    tensor: String,
    /// For its biases.
    bias: String,
    inputs: usize,
    /// Of an expert's stored outputs.
    stored: usize,
    rows: RowSelection,
    form: StackForm,
}

/// How the matrices of all experts lie in one tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StackForm {
    /// `[experts, outputs, inputs]`
    Rows,
    /// `[experts, inputs, outputs]`
    Columns,
    /// Hugging Face's MXFP4: `…_blocks` of `[experts, outputs, inputs / 32, 16]`, `…_scales` without the last dimension.
    Mxfp4,
}

impl ExpertReader {
    /// A tensor an expert, or a tensor a projection.
    fn separate(&self, tensors: &mut Tensors, names: &MoeNames, gated: bool) -> Result<Projections, SpecError> {
        let width = self.width(tensors, names.up)?;
        let mut all = |name, shape| self.all(tensors, name, shape);
        Ok(Projections {
            gate: match gated {
                true => Some(all(names.gate, [width, self.hidden])?),
                false => None,
            },
            up: all(names.up, [width, self.hidden])?,
            down: all(names.down, [self.hidden, width])?,
        })
    }

    fn one(&self, tensors: &Tensors, name: Name, expert: usize) -> Option<String> {
        let spelled = tensors.spelled(name, self.layer)?;
        spelled
            .contains("{e}")
            .then(|| spelled.replace("{e}", &expert.to_string()))
    }

    /// Some checkpoints hold matrices of experts that only return their input.
    fn ignore_identities(&self, tensors: &mut Tensors, facts: &MoeFacts, identities: usize) {
        for name in [facts.names.gate, facts.names.up, facts.names.down] {
            for expert in self.count..self.count + identities {
                if let Some(tensor) = self.one(tensors, name, expert) {
                    tensors.ignore_named(&format!("{tensor}.weight"));
                }
            }
        }
    }

    /// Width of an expert.
    fn width(&self, tensors: &Tensors, up: Name) -> Result<usize, SpecError> {
        match self.one(tensors, up, 0) {
            Some(first) => tensors.rows_named(&format!("{first}.weight")),
            None => Ok(tensors.rows(up, self.layer)? / self.count),
        }
    }

    fn all(&self, tensors: &mut Tensors, name: Name, shape: [usize; 2]) -> Result<Vec<Linear>, SpecError> {
        if self.one(tensors, name, 0).is_some() {
            return (0..self.count)
                .map(|expert| {
                    let tensor = self.one(tensors, name, expert).unwrap_or_default();
                    let place = Place::whole(name, self.layer, shape);
                    tensors.linear_named(&tensor, place)
                })
                .collect();
        }
        let tensor = tensors.spelled(name, self.layer).unwrap_or_default();
        self.stack(
            tensors,
            Stack {
                bias: format!("{tensor}.bias"),
                tensor: format!("{tensor}.weight"),
                inputs: shape[1],
                stored: shape[0],
                rows: RowSelection::all(shape[0]),
                form: StackForm::Rows,
            },
        )
    }

    /// Gate and up of all experts in one tensor, and their downs in another.
    fn fused(&self, tensors: &mut Tensors, facts: &MoeFacts) -> Result<Option<Projections>, SpecError> {
        let Some(gate_up) = tensors.spelled(facts.names.gate_up, self.layer) else {
            return Ok(None);
        };
        let plain = match self.fused {
            FusedExperts::Rows => StackForm::Rows,
            FusedExperts::Columns | FusedExperts::InterleavedColumns => StackForm::Columns,
        };
        let held = |end: &str| tensors.has_named(&format!("{gate_up}{end}"));
        // MXFP4 holds the rows of each output together, whichever way the plain form lies.
        let (form, end) = if held("_blocks") {
            (StackForm::Mxfp4, "")
        } else if held("") {
            (plain, "")
        } else if held(".weight") {
            (plain, ".weight")
        } else if tensors.spelled(facts.names.up, self.layer).is_some() {
            return Ok(None);
        } else {
            return Err(SpecError::MissingTensor { tensor: gate_up });
        };
        let down = tensors.spelled(facts.names.fused_down, self.layer).unwrap_or_default();
        let elements = match form {
            StackForm::Mxfp4 => tensors.elements_named(&format!("{gate_up}_scales"))? * 32,
            _ => tensors.elements_named(&format!("{gate_up}{end}"))?,
        };
        let width = elements / (2 * self.count * self.hidden).max(1);
        let interleaved = self.fused == FusedExperts::InterleavedColumns;
        let part = |index: usize| Stack {
            tensor: format!("{gate_up}{end}"),
            bias: format!("{gate_up}_bias"),
            inputs: self.hidden,
            stored: 2 * width,
            rows: match interleaved {
                true => RowSelection::grouped(width, 2, index, 1),
                false => RowSelection::stretch(index * width, width),
            },
            form,
        };
        let down = Stack {
            tensor: format!("{down}{end}"),
            bias: format!("{down}_bias"),
            inputs: width,
            stored: self.hidden,
            rows: RowSelection::all(self.hidden),
            form,
        };
        Ok(Some(Projections {
            gate: Some(self.stack(tensors, part(0))?),
            up: self.stack(tensors, part(1))?,
            down: self.stack(tensors, down)?,
        }))
    }

    fn stack(&self, tensors: &mut Tensors, stack: Stack) -> Result<Vec<Linear>, SpecError> {
        let matrix = self.matrix(tensors, &stack)?;
        (0..self.count)
            .map(|expert| {
                let mut weight = matrix.clone();
                weight.cols = stack.inputs;
                match stack.form {
                    StackForm::Rows | StackForm::Mxfp4 => weight.rows = shifted(stack.rows, expert * stack.stored),
                    StackForm::Columns => {
                        weight.rows = stack.rows;
                        weight.storage = Storage::Columns {
                            first_input: expert * stack.inputs,
                        };
                    }
                }
                let bias = self.bias(tensors, &stack, expert)?;
                Ok(Linear { weight, bias })
            })
            .collect()
    }

    /// The matrices of all experts as one.
    fn matrix(&self, tensors: &mut Tensors, stack: &Stack) -> Result<Matrix, SpecError> {
        let Stack { inputs, stored, .. } = *stack;
        let (shape, whole) = match stack.form {
            StackForm::Rows => ([stored, inputs], [self.count * stored, inputs]),
            StackForm::Columns => ([inputs, stored], [stored, self.count * inputs]),
            StackForm::Mxfp4 => {
                let [blocks, scales] = ["blocks", "scales"].map(|part| format!("{}_{part}", stack.tensor));
                return tensors.mxfp4_matrix(&blocks, &scales, [self.count, stored, inputs]);
            }
        };
        tensors.check_experts(&stack.tensor, &[self.count, shape[0], shape[1]])?;
        let place = Place {
            columns: stack.form == StackForm::Columns,
            ..Place::whole(("", ""), self.layer, whole)
        };
        tensors.matrix_named(stack.tensor.clone(), place)
    }

    fn bias(&self, tensors: &mut Tensors, stack: &Stack, expert: usize) -> Result<Option<Vector>, SpecError> {
        if !tensors.has_named(&stack.bias) {
            return Ok(None);
        }
        let elements = shifted(stack.rows, expert * stack.stored);
        tensors
            .vector_named(stack.bias.clone(), (self.count * stack.stored, elements))
            .map(Some)
    }
}

fn shifted(mut rows: RowSelection, by: usize) -> RowSelection {
    rows.first += by;
    rows
}

//! How the ops of a plan are grouped into regions of the thread pool.
//!
//! Most ops are a region each, or are so small that the calling thread does them alone. Products of one input run together, and with them
//! whatever happens to single columns of their outputs: activations, factors, additions. No thread waits for another in between. The norm
//! that makes the input is part of the step, because its rows are packed while they are in the cache.

use std::ops::Range;

use goldcrest_model::plan::{Activations, BufferId, Factors, MatrixId, NormId, Op, Plan, VectorId};
use goldcrest_model::spec::Activation;

use crate::pool::MOST_MATRICES;

mod cut;

#[cfg(test)]
mod tests;

/// What runs as one.
pub enum Step {
    Op(usize),
    Products(Products),
}

impl Step {
    /// The ops of the plan that it stands for.
    pub fn ops(&self) -> Range<usize> {
        match self {
            Step::Op(index) => *index..index + 1,
            Step::Products(products) => products.ops.clone(),
        }
    }

    pub fn products(&self) -> Option<&Products> {
        match self {
            Step::Op(_) => None,
            Step::Products(products) => Some(products),
        }
    }
}

/// Products of one input, the norm that makes it, and what happens to their outputs column by column.
#[derive(Clone)]
pub struct Products {
    /// Of a step that was cut the norm is with the first part, all others with the last.
    ops: Range<usize>,
    /// Makes `input`, if that is the op before.
    pub norm: Option<Normed>,
    pub input: BufferId,
    pub activations: Activations,
    /// At most [`MOST_GROUPS`].
    pub groups: Vec<Group>,
    /// Every buffer of a group, in rising order.
    pub homes: Vec<Home>,
}

/// A norm of rows; see [`Op::Norm`].
#[derive(Clone, Copy)]
pub struct Normed {
    pub norm: NormId,
    pub groups: usize,
    pub input: BufferId,
    out: BufferId,
}

impl Normed {
    fn of(op: &Op) -> Option<Normed> {
        match *op {
            Op::Norm {
                norm,
                groups,
                input,
                out,
            } => Some(Normed {
                norm,
                groups,
                input,
                out,
            }),
            _ => None,
        }
    }
}

/// Most groups of a step.
pub const MOST_GROUPS: usize = 8;

/// Where a buffer belongs.
#[derive(Clone, Copy)]
pub struct Home {
    pub buffer: BufferId,
    pub group: usize,
    /// In [`Group::buffers`].
    pub place: usize,
}

/// Buffers of one width whose columns depend on the input, and on the same columns of each other.
#[derive(Clone, Default)]
pub struct Group {
    /// At most [`MOST_MATRICES`].
    pub buffers: Vec<BufferId>,
    /// Of the buffers: all, unless the step was cut.
    pub columns: Range<usize>,
    /// In order; buffers by their place in `buffers`.
    pub ops: Vec<ColumnOp>,
}

/// An op on some columns.
#[derive(Clone, Copy)]
pub enum ColumnOp {
    MatMul {
        weight: MatrixId,
        bias: Option<VectorId>,
        out: usize,
        /// Among the products of the step.
        place: usize,
    },
    Activate {
        activation: Activation,
        gate: usize,
        up: Option<usize>,
    },
    Scale {
        factor: f32,
        buffer: usize,
    },
    Add {
        out: usize,
        input: usize,
        scale: f32,
    },
}

/// The steps of a plan, in order. Products are cut by columns into steps of at most `most_bytes` of matrices, where these are given.
pub fn steps(plan: &Plan, most_bytes: Option<usize>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut index = 0;
    while index < plan.ops.len() {
        let Some(products) = Products::of(plan, index..plan.ops.len()) else {
            steps.push(Step::Op(index));
            index += 1;
            continue;
        };
        index = products.ops.end;
        match most_bytes {
            Some(bytes) => steps.extend(products.cut(plan, bytes).into_iter().map(Step::Products)),
            None => steps.push(Step::Products(products)),
        }
    }
    steps
}

impl Products {
    /// The longest run at the start of `ops` that can be one step; none if it begins with no product, nor with the norm of one's input.
    fn of(plan: &Plan, ops: Range<usize>) -> Option<Products> {
        let norm = Normed::of(&plan.ops[ops.start]);
        let first = ops.start + usize::from(norm.is_some());
        let Op::MatMul { input, activations, .. } = *plan.ops[..ops.end].get(first)? else {
            return None;
        };
        if norm.is_some_and(|norm| norm.out != input) {
            return None;
        }
        let mut products = Products {
            ops: ops.start..first,
            norm,
            input,
            activations,
            groups: Vec::new(),
            homes: Vec::new(),
        };
        while products.ops.end < ops.end && products.take(plan, &plan.ops[products.ops.end]) {
            products.ops.end += 1;
        }
        products.complete();
        Some(products)
    }

    /// Says where buffers and products are, once the groups are what they stay.
    fn complete(&mut self) {
        self.homes.clear();
        for (group, Group { buffers, .. }) in self.groups.iter().enumerate() {
            let home = |(place, buffer): (usize, &BufferId)| Home {
                buffer: *buffer,
                group,
                place,
            };
            self.homes.extend(buffers.iter().enumerate().map(home));
        }
        self.homes.sort_by_key(|home| home.buffer);
        let ops = self.groups.iter_mut().flat_map(|group| &mut group.ops);
        let places = ops.filter_map(|op| match op {
            ColumnOp::MatMul { place, .. } => Some(place),
            _ => None,
        });
        places.enumerate().for_each(|(number, place)| *place = number);
    }

    /// The matrices with the outputs that belong to this step, in the order of the products.
    pub fn matrices(&self) -> impl Iterator<Item = (MatrixId, Range<usize>)> {
        self.groups.iter().flat_map(|group| {
            let matrices = group.ops.iter().filter_map(ColumnOp::matrix);
            matrices.map(|id| (id, group.columns.clone()))
        })
    }

    /// Takes an op, unless it needs a barrier before it.
    fn take(&mut self, plan: &Plan, op: &Op) -> bool {
        match *op {
            Op::MatMul {
                weight,
                bias,
                activations,
                input,
                out,
            } => {
                let same = (input, activations) == (self.input, self.activations);
                let full = self.groups.len() == MOST_GROUPS;
                if !same || full || self.writes(input) || out == input || self.writes(out) {
                    return false;
                }
                self.groups.push(Group {
                    buffers: vec![out],
                    columns: 0..plan.buffer(out).width,
                    ops: vec![ColumnOp::MatMul {
                        weight,
                        bias,
                        out: 0,
                        place: 0,
                    }],
                });
                true
            }
            Op::Activate { activation, gate, up } => {
                let Some(group) = self.join(plan, gate, up) else {
                    return false;
                };
                let place = |buffer| group.place(buffer);
                let (gate, up) = (place(gate), up.map(place));
                group.ops.push(ColumnOp::Activate { activation, gate, up });
                true
            }
            Op::Scale {
                buffer,
                factors: Factors::One(factor),
            } => {
                let Some(group) = self.join(plan, buffer, None) else {
                    return false;
                };
                let buffer = group.place(buffer);
                group.ops.push(ColumnOp::Scale { factor, buffer });
                true
            }
            Op::Add { out, input, scale } => {
                let Some(group) = self.join(plan, input, Some(out)) else {
                    return false;
                };
                let (out, input) = (group.place(out), group.place(input));
                group.ops.push(ColumnOp::Add { out, input, scale });
                true
            }
            _ => false,
        }
    }

    fn writes(&self, buffer: BufferId) -> bool {
        self.groups.iter().any(|group| group.buffers.contains(&buffer))
    }

    /// The one group of a buffer that was written here and of another, which may be from before; none where they cannot be together.
    fn join(&mut self, plan: &Plan, buffer: BufferId, other: Option<BufferId>) -> Option<&mut Group> {
        let home = self.groups.iter().position(|group| group.buffers.contains(&buffer))?;
        let Some(other) = other.filter(|other| !self.groups[home].buffers.contains(other)) else {
            return Some(&mut self.groups[home]);
        };
        let shape = |id: BufferId| (plan.buffer(id).width, plan.buffer(id).rows);
        let away = self.groups.iter().position(|group| group.buffers.contains(&other));
        let more = away.map_or(1, |away| self.groups[away].buffers.len());
        if shape(buffer) != shape(other) || self.groups[home].buffers.len() + more > MOST_MATRICES {
            return None;
        }
        let Some(away) = away else {
            self.groups[home].buffers.push(other);
            return Some(&mut self.groups[home]);
        };
        let moved = self.groups.remove(away);
        let home = home - usize::from(away < home);
        let group = &mut self.groups[home];
        let first = group.buffers.len();
        group.buffers.extend(moved.buffers);
        group.ops.extend(moved.ops.into_iter().map(|op| op.moved(first)));
        Some(group)
    }
}

impl Group {
    /// Where a buffer of the group stands.
    fn place(&self, buffer: BufferId) -> usize {
        let place = self.buffers.iter().position(|of_group| *of_group == buffer);
        place.expect("joined before")
    }
}

impl ColumnOp {
    fn matrix(&self) -> Option<MatrixId> {
        match *self {
            ColumnOp::MatMul { weight, .. } => Some(weight),
            _ => None,
        }
    }

    /// The same after its buffers moved up by `by` places.
    fn moved(self, by: usize) -> ColumnOp {
        match self {
            ColumnOp::MatMul {
                weight,
                bias,
                out,
                place,
            } => ColumnOp::MatMul {
                weight,
                bias,
                out: out + by,
                place,
            },
            ColumnOp::Activate { activation, gate, up } => ColumnOp::Activate {
                activation,
                gate: gate + by,
                up: up.map(|up| up + by),
            },
            ColumnOp::Scale { factor, buffer } => ColumnOp::Scale {
                factor,
                buffer: buffer + by,
            },
            ColumnOp::Add { out, input, scale } => ColumnOp::Add {
                out: out + by,
                input: input + by,
                scale,
            },
        }
    }
}

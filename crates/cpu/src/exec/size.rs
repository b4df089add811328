//! How much memory the calls of a plan take beside weights and states, known before any call.

use goldcrest_kernels::{ActivationType, Activations as Packed, KvElement};
use goldcrest_model::plan::{BufferId, Op, Plan};

use super::attend::most_state_bytes;
use super::experts::most_expert_bytes;
use super::matmul::activation_type;

/// What calls are like.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Most rows of a call.
    pub max_rows: usize,
    pub threads: usize,
    /// Most positions of a sequence.
    pub capacity: usize,
    /// Element type of stored keys and values.
    pub kv: KvElement,
}

/// Grows or shrinks scratch. Where it grows, by no more than is needed: the memory is planned for.
pub fn resize_exact(scratch: &mut Vec<f32>, len: usize) {
    scratch.reserve_exact(len.saturating_sub(scratch.len()));
    scratch.resize(len, 0.0);
}

/// Most bytes that [`super::Scratch`] grows to.
pub fn most_scratch_bytes(plan: &Plan, calls: Calls) -> usize {
    let floats = |numbers: usize| numbers.saturating_mul(size_of::<f32>());
    let row_numbers = |id: BufferId| plan.buffer(id).width;
    let rows = calls.max_rows;
    let buffers = plan.buffers.iter().enumerate();
    let buffers = buffers.filter(|(id, _)| BufferId(*id) != plan.logits);
    let buffers = buffers.map(|(_, buffer)| floats(rows.saturating_mul(buffer.width)));
    let ropes = plan.ropes.iter().map(|rope| floats(rows.saturating_mul(rope.rotary)));
    let most = |bytes: &dyn Fn(&Op) -> usize| plan.ops.iter().map(bytes).max().unwrap_or(0);
    let packed = most(&|op| match *op {
        Op::MatMul { activations, input, .. } => {
            Packed::most_bytes(activation_type(activations), rows, row_numbers(input))
        }
        _ => 0,
    });
    let heads = most(&|op| match *op {
        Op::HeadMatMul { heads, input, .. } => {
            let inputs = row_numbers(input) / heads;
            let own = floats(rows.saturating_mul(inputs)).saturating_add(Packed::most_bytes(
                ActivationType::F32,
                rows,
                inputs,
            ));
            calls.threads.saturating_mul(own)
        }
        _ => 0,
    });
    let rotated = most(&|op| match *op {
        Op::Attend { query, .. } => floats(rows.saturating_mul(row_numbers(query))),
        Op::KvWrite { key, value, .. } => floats(rows.saturating_mul(row_numbers(key) + value.map_or(0, row_numbers))),
        _ => 0,
    });
    let choices = most(&|op| match *op {
        // A score and a place of every position.
        Op::ChooseKeys { .. } => calls.threads.saturating_mul(floats(calls.capacity.saturating_mul(2))),
        _ => 0,
    });
    let attention = most(&|op| most_state_bytes(plan, op, calls));
    let experts = most(&|op| most_expert_bytes(plan, op, calls));
    let line = most(&|op| match *op {
        Op::EmbedPosition { out, .. } => floats(row_numbers(out)),
        _ => 0,
    });
    let rotated = if calls.kv.is_quantized() { rotated } else { 0 };
    let parts = [
        packed,
        heads,
        rotated,
        choices,
        attention,
        experts,
        line,
        rows.saturating_mul(size_of::<super::Row>()),
    ];
    buffers.chain(ropes).chain(parts).fold(0, usize::saturating_add)
}

//! Steps of recurrent layers, one value at a time: the oracle of [`crate::recurrent`].

use super::math;
use crate::recurrent::{Decay, LinearStep, ScanStep};

/// See [`crate::Kernels::causal_conv`]; one row. `tail` is `[kernel − 1, channels]`, `weight` `[kernel, channels]`.
pub fn conv_step(tail: &mut [f32], weight: &[f32], bias: Option<&[f32]>, row: &mut [f32]) {
    let channels = row.len();
    let taps = weight.len() / channels;
    for c in 0..channels {
        let x = row[c];
        let mut y = bias.map_or(0.0, |bias| bias[c]);
        for j in 0..taps {
            let tap = if j < taps - 1 { tail[j * channels + c] } else { x };
            y = tap.mul_add(weight[j * channels + c], y);
        }
        for j in 1..taps {
            tail[(j - 1) * channels + c] = if j < taps - 1 { tail[j * channels + c] } else { x };
        }
        row[c] = y;
    }
}

/// See [`crate::Kernels::linear_state_step`]; `state` is `[key_dim, value_dim]`.
pub fn linear_state_step(state: &mut [f32], step: &LinearStep<'_>, out: &mut [f32]) {
    let (key_dim, value_dim) = (step.key.len(), step.value.len());
    for i in 0..key_dim {
        let decay = match step.decay {
            Decay::One(decay) => decay,
            Decay::PerKey(decay) => decay[i],
        };
        for j in 0..value_dim {
            state[i * value_dim + j] *= decay;
        }
    }
    for j in 0..value_dim {
        let mut value = step.value[j];
        if let Some(beta) = step.beta {
            let known = (0..key_dim).fold(0f32, |sum, i| state[i * value_dim + j].mul_add(step.key[i], sum));
            value = beta * (value - known);
        }
        out[j] = 0.0;
        for i in 0..key_dim {
            let s = &mut state[i * value_dim + j];
            *s = step.key[i].mul_add(value, *s);
            out[j] = s.mul_add(step.query[i], out[j]);
        }
    }
}

/// See [`crate::Kernels::selective_scan_step`]; `state` is `[state_dim, channels]`.
pub fn selective_scan_step(state: &mut [f32], step: &ScanStep<'_>, out: &mut [f32]) {
    let channels = out.len();
    for (ch, out) in out.iter_mut().enumerate() {
        let (x, dt) = (step.x[ch], step.dt[ch]);
        let mut y = 0f32;
        for (n, (b, c)) in step.b.iter().zip(step.c).enumerate() {
            let h = &mut state[n * channels + ch];
            *h = math::exp(dt * step.a.row(n)[ch]).mul_add(*h, (dt * x) * b);
            y = h.mul_add(*c, y);
        }
        *out = step.d[ch].mul_add(x, y);
    }
}

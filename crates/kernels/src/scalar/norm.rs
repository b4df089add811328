//! Row norms, one value at a time: the oracle of [`crate::norm`].

/// Number of partial sums of a reduction: element `i` belongs to sum `i % 16`.
pub(crate) const LANES: usize = 16;

/// Adds sixteen partial sums by halves: `i += i + 8`, then 4, 2, 1.
pub(crate) fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// The sum in sixteen chains.
pub(crate) fn sum(values: impl Iterator<Item = f32>) -> f32 {
    let mut lanes = [0.0; LANES];
    values.enumerate().for_each(|(i, x)| lanes[i % LANES] += x);
    tree_sum(lanes)
}

fn sum_of_squares(values: impl Iterator<Item = f32>) -> f32 {
    let mut lanes = [0f32; LANES];
    values
        .enumerate()
        .for_each(|(i, x)| lanes[i % LANES] = x.mul_add(x, lanes[i % LANES]));
    tree_sum(lanes)
}

/// See [`crate::Kernels::dot`].
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    x.iter()
        .zip(y)
        .enumerate()
        .for_each(|(i, (x, y))| lanes[i % LANES] = x.mul_add(*y, lanes[i % LANES]));
    tree_sum(lanes)
}

/// See [`crate::norm::rms_norm`]; one row.
pub fn rms_norm(x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let mean = sum_of_squares(x.iter().copied()) / x.len() as f32;
    let inverse = 1.0 / (mean + eps).sqrt();
    for (i, x) in x.iter_mut().enumerate() {
        let y = *x * inverse;
        *x = weight.map_or(y, |weight| y * weight[i]);
    }
}

/// See [`crate::norm::l2_norm`]; one row.
pub fn l2_norm(x: &mut [f32], eps: f32) {
    let inverse = 1.0 / (sum_of_squares(x.iter().copied()) + eps).sqrt();
    x.iter_mut().for_each(|x| *x *= inverse);
}

/// See [`crate::norm::layer_norm`]; one row.
pub fn layer_norm(x: &mut [f32], weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
    let len = x.len() as f32;
    let mean = sum(x.iter().copied()) / len;
    let variance = sum_of_squares(x.iter().map(|x| x - mean)) / len;
    let inverse = 1.0 / (variance + eps).sqrt();
    for (i, x) in x.iter_mut().enumerate() {
        let y = (*x - mean) * inverse;
        *x = match (weight, bias) {
            (None, None) => y,
            (Some(weight), None) => y * weight[i],
            (None, Some(bias)) => y + bias[i],
            (Some(weight), Some(bias)) => y.mul_add(weight[i], bias[i]),
        };
    }
}

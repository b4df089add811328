//! Rotary position embedding, one value at a time: the oracle of [`crate::rope`].

/// See [`crate::rope::rotate_halves`]; one head.
pub fn rotate_halves(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for i in 0..half {
        let (x, y) = (head[i], head[i + half]);
        head[i] = x.mul_add(cos[i], -(y * sin[i]));
        head[i + half] = y.mul_add(cos[i], x * sin[i]);
    }
}

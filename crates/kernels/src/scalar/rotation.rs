//! The rotation of queries, keys and values before they are quantised, from its definition: the oracle of [`crate::rotation`].

/// Signs of the first 1,024 dimensions of a head; further ones repeat them.
pub(crate) static SIGNS: [f32; 1024] = signs();

/// The top bits of SplitMix64 from state 0.
const fn signs() -> [f32; 1024] {
    let mut signs = [1.0; 1024];
    let mut state: u64 = 0;
    let mut i = 0;
    while i < signs.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        if z >> 63 == 1 {
            signs[i] = -1.0;
        }
        i += 1;
    }
    signs
}

/// The largest power of two that divides `len`, which is not 0.
pub(crate) const fn block_len(len: usize) -> usize {
    1 << len.trailing_zeros()
}

/// 1/√n for a power of two.
pub(crate) fn block_scale(n: usize) -> f32 {
    1.0 / (n as f32).sqrt()
}

/// See [`crate::Kernels::rotate_signed`]; one head.
pub fn rotate_signed(head: &mut [f32]) {
    sign(head);
    hadamard(head);
}

/// See [`crate::Kernels::unrotate_signed`]; one head.
pub fn unrotate_signed(head: &mut [f32]) {
    hadamard(head);
    sign(head);
}

fn sign(head: &mut [f32]) {
    for (i, x) in head.iter_mut().enumerate() {
        *x *= SIGNS[i % SIGNS.len()];
    }
}

fn hadamard(head: &mut [f32]) {
    let n = block_len(head.len());
    for block in head.chunks_exact_mut(n) {
        let mut distance = 1;
        while distance < n {
            for i in (0..n).filter(|i| i & distance == 0) {
                let (x, y) = (block[i], block[i + distance]);
                block[i] = x + y;
                block[i + distance] = x - y;
            }
            distance *= 2;
        }
        block.iter_mut().for_each(|x| *x *= block_scale(n));
    }
}

//! Rotary position embedding by the NEOX convention: dimension `i` pairs with `i + half`.

use crate::Kernels;
use crate::dispatch::Kernel;
use crate::elementwise::{load_up_to, store_up_to};
use crate::vector::Simd;

impl Kernels {
    /// Rotates every head of `heads` (`head_dim` elements each, all at one position) in place.
    ///
    /// `cos` and `sin` hold `half` numbers; the first `2·half` dimensions rotate, the others stay (partial rotary):
    ///
    /// ```text
    /// x = head[i], y = head[i + half]
    /// head[i]        = fma(x, cos[i], −(y·sin[i]))
    /// head[i + half] = fma(y, cos[i], x·sin[i])
    /// ```
    ///
    /// # Panics
    /// If `heads` is not a whole number of heads, `cos` and `sin` differ in length, or 2·half exceeds `head_dim`: a caller's bug.
    pub fn rotate_halves(self, heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        assert!(
            head_dim > 0 && heads.len().is_multiple_of(head_dim),
            "{} elements as heads of {head_dim}",
            heads.len()
        );
        assert_eq!(cos.len(), sin.len(), "lengths of cos and sin");
        assert!(
            2 * cos.len() <= head_dim,
            "rotating {} of {head_dim} dimensions",
            2 * cos.len()
        );
        self.run(RotateHalves {
            heads,
            head_dim,
            cos,
            sin,
        });
    }
}

struct RotateHalves<'a> {
    heads: &'a mut [f32],
    head_dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for RotateHalves<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let half = self.cos.len();
        for head in self.heads.chunks_exact_mut(self.head_dim) {
            let (first, second) = head[..2 * half].split_at_mut(half);
            let mut i = 0;
            while i < half {
                let left = half - i;
                // SAFETY: `left` elements follow the `i`-th in each of the four slices of `half` elements.
                unsafe {
                    let cos = load_up_to::<S>(self.cos.as_ptr().add(i), left);
                    let sin = load_up_to::<S>(self.sin.as_ptr().add(i), left);
                    let x = load_up_to::<S>(first.as_ptr().add(i), left);
                    let y = load_up_to::<S>(second.as_ptr().add(i), left);
                    let turned_x = S::fma(x, cos, S::neg(S::mul(y, sin)));
                    let turned_y = S::fma(y, cos, S::mul(x, sin));
                    store_up_to::<S>(first.as_mut_ptr().add(i), turned_x, left);
                    store_up_to::<S>(second.as_mut_ptr().add(i), turned_y, left);
                }
                i += S::LANES;
            }
        }
    }
}

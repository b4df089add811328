//! All instances give the same bits as plain Rust.

use super::Simd;
use crate::dispatch::Kernel;
use crate::{Isa, Kernels};

/// Values of the f32 inputs: special ones among ordinary ones.
const VALUES: [f32; 32] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    -3.5,
    0.5,
    -0.5,
    1e-45,
    -1e-40,
    1.2e-38,
    3.4e38,
    -3.4e38,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    65504.0,
    65520.0,
    6e-8,
    -2.9e-8,
    8388609.0,
    2147483520.0,
    2147483648.0,
    -2147483648.0,
    -2147483904.0,
    126.5,
    -126.5,
    std::f32::consts::PI,
    -std::f32::consts::E,
    1.0 / 3.0,
    1e10,
    -7e-10,
];

/// Applies every operation to 16 lanes of `a`, `b` and `c`; the results one after the other, 16 words each.
struct AllOperations {
    a: [f32; 16],
    b: [f32; 16],
    c: [f32; 16],
}

/// Which results are f32 lanes, whose NaNs count as one value.
struct Results {
    words: Vec<[u32; 16]>,
}

impl Results {
    fn floats(&mut self, lanes: [f32; 16]) {
        self.words
            .push(lanes.map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }));
    }

    fn integers(&mut self, lanes: [i32; 16]) {
        self.words.push(lanes.map(|x| x as u32));
    }
}

/// 16 lanes of a f32 expression, register by register from lane `$i`.
macro_rules! float_lanes {
    ($S:ident, $i:ident, $value:expr) => {{
        let mut lanes = [0.0f32; 16];
        for $i in (0..16).step_by($S::LANES) {
            $S::store(lanes.as_mut_ptr().add($i), $value);
        }
        lanes
    }};
}

impl Kernel for AllOperations {
    type Output = Vec<[u32; 16]>;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Vec<[u32; 16]> {
        let mut results = Results { words: Vec::new() };
        // SAFETY: `Kernels::run` calls this on a machine that has the instructions; all pointers are into 16 values at
        // a multiple of `LANES` below 16.
        unsafe {
            self.float_operations::<S>(&mut results);
            self.integer_operations::<S>(&mut results);
            self.byte_dots::<S>(&mut results);
        }
        results.words
    }
}

impl AllOperations {
    #[inline(always)]
    unsafe fn float_operations<S: Simd>(&self, results: &mut Results) {
        let (a, b, c) = (self.a.as_ptr(), self.b.as_ptr(), self.c.as_ptr());
        let halves: [u16; 16] = self.a.map(|x| half::f16::from_f32(x).to_bits());
        let brains: [u16; 16] = self.a.map(|x| half::bf16::from_f32(x).to_bits());
        // SAFETY: as in `run`.
        unsafe {
            results.floats(float_lanes!(S, i, S::add(S::load(a.add(i)), S::load(b.add(i)))));
            results.floats(float_lanes!(S, i, S::sub(S::load(a.add(i)), S::load(b.add(i)))));
            results.floats(float_lanes!(S, i, S::mul(S::load(a.add(i)), S::load(b.add(i)))));
            results.floats(float_lanes!(S, i, S::div(S::load(a.add(i)), S::load(b.add(i)))));
            results.floats(float_lanes!(S, i, S::max(S::load(a.add(i)), S::load(b.add(i)))));
            results.floats(float_lanes!(S, i, S::min(S::load(a.add(i)), S::load(b.add(i)))));
            results.floats(float_lanes!(S, i, S::neg(S::load(a.add(i)))));
            results.floats(float_lanes!(S, i, S::abs(S::load(a.add(i)))));
            results.floats(float_lanes!(
                S,
                i,
                S::fma(S::load(a.add(i)), S::load(b.add(i)), S::load(c.add(i)))
            ));
            results.floats(float_lanes!(S, i, S::load_f16(halves.as_ptr().add(i))));
            results.floats(float_lanes!(S, i, S::load_bf16(brains.as_ptr().add(i))));
            results.floats(float_lanes!(S, i, {
                let mask = S::less_equal(S::load(a.add(i)), S::load(b.add(i)));
                S::select(mask, S::splat(1.0), S::splat(0.0))
            }));
            results.floats(float_lanes!(S, i, {
                let (x, y) = (S::load(a.add(i)), S::load(b.add(i)));
                S::select(S::less(x, y), x, S::load(c.add(i)))
            }));
            for count in 0..=16 {
                let mut part = [7.0f32; 16];
                for i in (0..16).step_by(S::LANES) {
                    let lanes = count.clamp(i, i + S::LANES) - i;
                    let first = S::load_first(a.add(i), lanes);
                    S::store_first(part.as_mut_ptr().add(i), S::add(first, S::splat(1.0)), lanes);
                }
                results.floats(part);
            }
            let mut sixteen = [0.0f32; 16];
            for (i, &register) in S::splat_x16(2.5).as_ref().iter().enumerate() {
                S::store(sixteen.as_mut_ptr().add(i * S::LANES), register);
            }
            assert_eq!(sixteen, [2.5; 16]);
        }
    }

    #[inline(always)]
    unsafe fn integer_operations<S: Simd>(&self, results: &mut Results) {
        let (a, b) = (self.a.as_ptr().cast::<u8>(), self.b.as_ptr().cast::<u8>());
        macro_rules! integers {
            ($i:ident, $value:expr) => {{
                let lanes = float_lanes!(S, $i, S::from_bits($value));
                results.integers(lanes.map(|x| x.to_bits() as i32));
            }};
        }
        // SAFETY: as in `run`.
        unsafe {
            integers!(i, S::sub_i32(S::load_bytes(a.add(4 * i)), S::load_bytes(b.add(4 * i))));
            integers!(i, S::max_i32(S::load_bytes(a.add(4 * i)), S::load_bytes(b.add(4 * i))));
            integers!(i, S::and(S::load_bytes(a.add(4 * i)), S::load_bytes(b.add(4 * i))));
            integers!(i, S::or(S::load_bytes(a.add(4 * i)), S::load_bytes(b.add(4 * i))));
            integers!(i, S::shl(S::load_bytes(a.add(4 * i)), 7));
            integers!(i, S::shr(S::load_bytes(a.add(4 * i)), 9));
            let table = std::array::from_fn(|i| (i * i) as u8);
            integers!(i, {
                let indices = S::and(S::load_bytes(a.add(4 * i)), S::splat_i32(0x0f0f_0f0f));
                S::lookup(&table, indices)
            });
            integers!(i, S::to_bits(S::to_f32(S::load_bytes(a.add(4 * i)))));
            integers!(i, S::to_i32(S::load(a.add(4 * i).cast())));
            integers!(i, S::load_i8(b.add(i)));
            let mut bytes = [0i8; 16];
            let (mut sum, mut largest) = (0i32, i32::MIN);
            for i in (0..16).step_by(S::LANES) {
                let x = S::load_i8(a.add(2 * i));
                S::store_i8(bytes.as_mut_ptr().add(i), x);
                sum += S::sum_i32(S::load_i8(a.add(i)));
                largest = largest.max(S::largest_i32(S::load_bytes(b.add(4 * i))));
            }
            results.integers([sum; 16]);
            results.integers([largest; 16]);
        }
    }

    #[inline(always)]
    unsafe fn byte_dots<S: Simd>(&self, results: &mut Results) {
        let weights = self.a.as_ptr().cast::<u8>();
        let start = 1000;
        // Any byte but -128, and their sums by lane.
        let x: [u8; 64] = std::array::from_fn(|i| {
            let byte = self.b[i / 4].to_le_bytes()[i % 4];
            if byte == 0x80 { 0x81 } else { byte }
        });
        // SAFETY: as in `run`.
        unsafe {
            for (mask, calls) in [(0x0f0f_0f0f, 8), (0x1f1f_1f1f, 4), (0x3f3f_3f3f, 2)] {
                let lanes = float_lanes!(S, i, {
                    let start = S::splat_i32(start);
                    let mut sum = S::narrow_start(start);
                    for _ in 0..calls {
                        let codes = S::and(S::load_bytes(weights.add(4 * i)), S::splat_i32(mask));
                        sum = S::narrow_dot(sum, codes, S::load_bytes(x.as_ptr().add(4 * i)));
                    }
                    S::from_bits(S::narrow_finish(sum, start))
                });
                results.integers(lanes.map(|x| x.to_bits() as i32));
            }
            let minus_sums: [i32; 16] =
                std::array::from_fn(|l| -128 * (0..4).map(|j| i32::from(x[4 * l + j] as i8)).sum::<i32>());
            let lanes = float_lanes!(S, i, {
                let start = S::wide_start(S::load_bytes(minus_sums.as_ptr().add(i).cast()));
                S::from_bits(S::wide_dot(
                    start,
                    S::load_bytes(weights.add(4 * i)),
                    S::load_bytes(x.as_ptr().add(4 * i)),
                ))
            });
            results.integers(lanes.map(|x| x.to_bits() as i32));
        }
    }
}

#[test]
fn every_operation_gives_the_bits_of_plain_rust() {
    for shift in 0..VALUES.len() {
        let rotated = |step: usize| std::array::from_fn(|i| VALUES[(i * step + shift * (step + 1)) % VALUES.len()]);
        let expected = Kernels::new(Isa::Scalar).unwrap().run(AllOperations {
            a: rotated(1),
            b: rotated(3),
            c: rotated(5),
        });
        for isa in Isa::available() {
            let found = Kernels::new(isa).unwrap().run(AllOperations {
                a: rotated(1),
                b: rotated(3),
                c: rotated(5),
            });
            for (operation, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found, expected, "result {operation} on {isa}, inputs from {shift}");
            }
        }
    }
}

/// The width of the registers a kernel ran on.
struct Width;

impl Kernel for Width {
    type Output = usize;

    unsafe fn run<S: Simd>(self) -> usize {
        S::LANES
    }
}

#[test]
fn each_instruction_set_runs_its_own_instance() {
    let mut tested = Vec::new();
    for isa in Isa::available() {
        let lanes = match isa {
            Isa::Scalar | Isa::Neon => 4,
            Isa::Avx2 => 8,
            Isa::Avx512 => 16,
        };
        assert_eq!(Kernels::new(isa).unwrap().run(Width), lanes, "{isa}");
        tested.push(isa.to_string());
    }
    println!("instruction sets tested on this machine: {}", tested.join(", "));
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        assert!(Kernels::new(isa).is_err());
    }
}

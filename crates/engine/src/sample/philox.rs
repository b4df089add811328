//! Random numbers that are a function of (seed, output index, stream), so that a draw depends on nothing that was drawn before.
//!
//! Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// Added to the key between rounds: the golden ratio and the root of 3 less 1, as fractions of 2^32.
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: u32 = 10;

fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let halves = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    let (mut counter, mut key) = (counter, key);
    for _ in 0..ROUNDS {
        let [c0, c1, c2, c3] = counter;
        let (high_0, low_0) = halves(MULTIPLIERS[0], c0);
        let (high_1, low_1) = halves(MULTIPLIERS[1], c2);
        counter = [high_1 ^ c1 ^ key[0], low_1, high_0 ^ c3 ^ key[1], low_0];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// What a draw is for. Each purpose has numbers of its own, so that adding one changes no other.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    /// The choice of the token.
    Token = 0,
    /// Whether the likeliest tokens are left out.
    Xtc = 1,
}

/// A uniform number in [0, 1), a multiple of 2^-53, for output `index` under `seed`.
///
/// Key and counter are little-endian halves: key = seed, counter = (index, stream); the number is the top 53 bits of words 1 and 0.
pub(super) fn uniform(seed: u64, index: u64, stream: Stream) -> f64 {
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let [index_low, index_high] = halves(index);
    let [stream_low, stream_high] = halves(stream as u64);
    let [word_0, word_1, ..] = philox([index_low, index_high, stream_low, stream_high], halves(seed));
    let bits = (u64::from(word_1) << 32 | u64::from(word_0)) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors published with the authors' library Random123 (file `kat_vectors`).
    #[test]
    fn known_answers() {
        let pi = (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
        );
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(philox(pi.0, pi.1), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn uniform_takes_the_top_53_bits() {
        let bits = 0xe169_c58d_6627_e8d5_u64 >> 11;
        assert_eq!(uniform(0, 0, Stream::Token) * 9_007_199_254_740_992.0, bits as f64);
    }

    #[test]
    fn uniform_numbers_differ_by_seed_and_index_and_fill_the_interval() {
        let all = |seed: u64| (0..4000).map(move |index| uniform(seed, index, Stream::Token));
        let mean = all(7).sum::<f64>() / 4000.0;
        // The standard deviation of the mean is 0.0046.
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!(all(7).all(|u| (0.0..1.0).contains(&u)));
        assert!(all(7).zip(all(8)).all(|(a, b)| a != b));
        assert!(all(7).zip(all(7 + (1 << 32))).all(|(a, b)| a != b));
        assert_ne!(uniform(7, 1, Stream::Token), uniform(7, 1 + (1 << 32), Stream::Token));
        assert_ne!(uniform(7, 1, Stream::Token), uniform(7, 1, Stream::Xtc));
    }
}

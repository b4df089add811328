//! Random numbers that depend on a seed and a place, so that any part of a file can be written by itself.

/// SplitMix64: a counter and a mixing function (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of a place. Places that differ in any number have unrelated streams.
    pub(crate) fn of(seed: u64, place: [u64; 2]) -> Random {
        let start = place.into_iter().fold(mixed(seed), |state, part| {
            mixed(state ^ part.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        });
        Random(start)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.next().to_le_bytes();
        }
        let last = self.next().to_le_bytes();
        for (byte, last) in rest.iter_mut().zip(last) {
            *byte = last;
        }
    }

    /// Uniform in [0, 1), of 24 bits.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Uniform, with this mean and standard deviation.
    pub(crate) fn around(&mut self, mean: f32, std: f32) -> f32 {
        mean + std * 3.0_f32.sqrt() * (2.0 * self.unit() - 1.0)
    }
}

fn mixed(state: u64) -> u64 {
    let state = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ state >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ state >> 31
}

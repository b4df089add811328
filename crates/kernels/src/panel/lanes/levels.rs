//! Tables of the values that a code of four (or three) bits stands for.

/// A table. `VALUES[code] + ZERO` fits an unsigned byte.
pub(crate) trait Levels: 'static {
    const VALUES: [i8; 16];
    /// A power of two, at least as large as every magnitude: the byte of the value 0.
    const ZERO: i32;
    /// The bytes of the values.
    const BYTES: [u8; 16] = {
        let mut bytes = [0; 16];
        let mut code = 0;
        while code < 16 {
            bytes[code] = (Self::VALUES[code] as i32 + Self::ZERO) as u8;
            code += 1;
        }
        bytes
    };
    /// The code of each value, by its bits; 255 for those that are no level.
    const CODES: [u8; 256] = {
        let mut codes = [255; 256];
        let mut code = 16;
        while code > 0 {
            code -= 1;
            codes[Self::VALUES[code] as u8 as usize] = code as u8;
        }
        codes
    };
}

/// IQ4_NL and IQ4_XS: denser around zero.
pub(crate) struct Iq4;

impl Levels for Iq4 {
    const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    const ZERO: i32 = 128;
}

/// The 4-bit floats (E2M1) of the OCP microscaling formats, doubled. Minus zero counts as zero.
pub(crate) struct Fp4;

impl Levels for Fp4 {
    const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    const ZERO: i32 = 16;
}

/// IQ3_XXS, in halves of its grid.
pub(crate) struct Iq3Xxs;

impl Levels for Iq3Xxs {
    const VALUES: [i8; 16] = [2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31];
    const ZERO: i32 = 32;
}

/// IQ3_S.
pub(crate) struct Iq3S;

impl Levels for Iq3S {
    const VALUES: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];
    const ZERO: i32 = 16;
}

/// The IQ2 types, in eighths. Codes from 6 on stand for 0, which no grid holds.
pub(crate) struct Iq2;

impl Levels for Iq2 {
    const VALUES: [i8; 16] = [8, 25, 43, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const ZERO: i32 = 128;
}

/// The IQ1 types, in eighths: −1, 0 and 1, shifted by an eighth. Codes from 6 on stand for 0, which no grid holds.
pub(crate) struct Iq1;

impl Levels for Iq1 {
    const VALUES: [i8; 16] = [-9, -7, -1, 1, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const ZERO: i32 = 16;
}

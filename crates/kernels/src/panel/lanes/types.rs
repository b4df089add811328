//! The quantised panel types.

#![allow(non_camel_case_types, reason = "the published names of the types")]

use super::Records;
use super::levels::{Fp4, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4};
use super::quants::{Bytes, FiveBits, Nibbles, SixBits, Table, ThreeBits, TwoBits};
use super::scales::{
    Exponents, NibbleScales, PairMinimums, PairScales, RecordScale, Scales16, Scales32, SixBitScales, SmallFloats,
};

pub(crate) type Q8_0 = Records<PairScales, Bytes>;
pub(crate) type Q4_0 = Records<PairScales, Nibbles<8>>;
pub(crate) type Q4_1 = Records<PairMinimums, Nibbles<0>>;
pub(crate) type Q5_0 = Records<PairScales, FiveBits<16>>;
pub(crate) type Q5_1 = Records<PairMinimums, FiveBits<0>>;
pub(crate) type Q2_K = Records<NibbleScales, TwoBits<0>>;
pub(crate) type Q3_K = Records<Scales16, ThreeBits>;
pub(crate) type Q4_K = Records<SixBitScales, Nibbles<0>>;
pub(crate) type Q5_K = Records<SixBitScales, FiveBits<0>>;
pub(crate) type Q6_K = Records<Scales16, SixBits>;
pub(crate) type IQ1 = Records<Scales16, Table<Iq1, ThreeBits>>;
pub(crate) type IQ2 = Records<Scales16, Table<Iq2, ThreeBits>>;
pub(crate) type IQ3_XXS = Records<Scales16, Table<Iq3Xxs, Nibbles<0>>>;
pub(crate) type IQ3_S = Records<Scales16, Table<Iq3S, Nibbles<0>>>;
pub(crate) type IQ4_NL = Records<PairScales, Table<Iq4, Nibbles<0>>>;
pub(crate) type IQ4_XS = Records<Scales32, Table<Iq4, Nibbles<0>>>;
pub(crate) type TQ = Records<RecordScale, TwoBits<1>>;
pub(crate) type MXFP4 = Records<Exponents, Table<Fp4, Nibbles<0>>>;
pub(crate) type NVFP4 = Records<SmallFloats, Table<Fp4, Nibbles<0>>>;

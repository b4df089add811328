//! The instruction sets a kernel exists for, and which of them this machine has.

use std::fmt;
use std::str::FromStr;

/// An instruction set. All give the same bits; they differ in speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust for any machine. The fused multiply-add is done in software where the hardware has none: slow.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// AArch64 with NEON and the dot product instructions of ARMv8.2 (DotProd).
    Neon,
}

/// Why an instruction set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none of the known ones.
    #[error("unknown instruction set '{name}': use scalar, avx2, avx512 or neon")]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// The machine lacks the instruction set.
    #[error("this machine has no {isa}: the best it has is {}", Isa::best())]
    Unavailable {
        /// The instruction set asked for.
        isa: Isa,
    },
}

impl Isa {
    /// All instruction sets, those of an architecture slowest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// The fastest instruction set of this machine.
    pub fn best() -> Isa {
        Isa::available().last().unwrap_or(Isa::Scalar)
    }

    /// The instruction sets of this machine, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this machine, its operating system included, has the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => has_avx2(),
            Isa::Avx512 => has_avx2() && has_avx512(),
            Isa::Neon => has_neon(),
        }
    }

    /// Whether the processor reads a stream far enough ahead of these instructions by itself. Measured: at one row, asking for lines early
    /// gives 10 to 65 % with 8 lanes on Zen 3 and 16 on Sapphire Rapids, and costs 10 to 30 % with 16 lanes on Zen 4.
    pub(crate) fn reads_ahead(self) -> bool {
        self == Isa::Avx512 && is_amd()
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx]
        .map(u32::to_le_bytes)
        .as_flattened()
        == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_amd() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(target_arch = "aarch64")]
fn has_neon() -> bool {
    std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod")
}

#[cfg(not(target_arch = "aarch64"))]
fn has_neon() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        })
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Isa, IsaError> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.to_string() == name)
            .ok_or_else(|| IsaError::Unknown { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
        assert_eq!("sse".parse::<Isa>(), Err(IsaError::Unknown { name: "sse".into() }));
    }

    #[test]
    fn best_is_available_and_scalar_always_is() {
        assert!(Isa::best().is_available());
        assert_eq!(Isa::available().next(), Some(Isa::Scalar));
    }
}

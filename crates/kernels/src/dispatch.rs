//! Runs a kernel, written once over [`Simd`], on the instruction set chosen at run time.

use crate::isa::{Isa, IsaError};
use crate::vector::{Scalar, Simd};

#[cfg(target_arch = "x86_64")]
use crate::vector::{Avx2, Avx512};

#[cfg(target_arch = "aarch64")]
use crate::vector::Neon;

#[cfg(any(test, feature = "counting"))]
use crate::vector::counted;

/// The kernels of one instruction set that this machine is known to have. All operations are methods of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// Private: a value exists only for an instruction set that was found on this machine.
    isa: Isa,
    reads_ahead: bool,
}

/// An operation with its arguments, compiled once per instruction set by [`Kernels::run`].
///
/// `run` and all that it calls must be `#[inline(always)]`: code that is not inlined into the entry points below is
/// compiled without their instruction set. For the same reason kernels have no closures in their loops.
pub(crate) trait Kernel {
    type Output;

    /// # Safety
    /// The machine has the instruction set of `S`.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

impl Kernels {
    /// The kernels of `isa`, or [`IsaError::Unavailable`] if this machine lacks it.
    pub fn new(isa: Isa) -> Result<Kernels, IsaError> {
        if isa.is_available() {
            Ok(Kernels::of(isa))
        } else {
            Err(IsaError::Unavailable { isa })
        }
    }

    /// The kernels of the fastest instruction set of this machine.
    pub fn best() -> Kernels {
        Kernels::of(Isa::best())
    }

    /// Those of an instruction set that this machine has.
    fn of(isa: Isa) -> Kernels {
        Kernels {
            isa,
            reads_ahead: isa.reads_ahead(),
        }
    }

    /// Whether streams of weights are read far enough ahead of one row's products without being asked for.
    pub(crate) fn reads_ahead(self) -> bool {
        self.reads_ahead
    }

    /// The instruction set of these kernels.
    pub fn isa(self) -> Isa {
        self.isa
    }

    /// Runs `kernel` on the chosen instruction set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(any(test, feature = "counting"))]
        if counted::is_counting() {
            // SAFETY: `Counted` is plain Rust.
            return unsafe { kernel.run::<counted::Counted>() };
        }
        match self.isa {
            // SAFETY: every machine has it; a `Kernels` of the others exists only if `Isa::is_available` said so.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { run_avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { run_neon(kernel) },
            // SAFETY: `Scalar` is plain Rust.
            _ => unsafe { kernel.run::<Scalar>() },
        }
    }
}

/// # Safety
/// The machine has the features named.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: required of the caller.
    unsafe { kernel.run::<Avx2>() }
}

/// # Safety
/// The machine has the features named.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: required of the caller.
    unsafe { kernel.run::<Avx512>() }
}

/// # Safety
/// The machine has the features named.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
unsafe fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: required of the caller.
    unsafe { kernel.run::<Neon>() }
}

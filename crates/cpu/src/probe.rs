//! What this machine can do right now, on the threads of a back end: the speeds that others are judged by.

use std::hint::black_box;
use std::time::{Duration, Instant};

use goldcrest_kernels::Kernels;

use crate::buffer::HugeBuffer;
use crate::pool::Parts;
use crate::{Cpu, CpuError};

/// Bytes that are read: more than most machines' caches hold.
pub const PROBE_BYTES: usize = 512 << 20;
/// The best of so many tries counts: whatever disturbs one makes it slower.
pub const PROBE_TRIES: usize = 8;
/// Least time of one try at products.
const LEAST_TIME: Duration = Duration::from_millis(10);
/// Threads read whole pages.
const PAGE_BYTES: usize = 4096;

/// Speeds of all threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes that are read, each once, from anonymous memory in huge pages.
    pub read_bytes_per_s: f64,
    /// Multiplications and additions of bytes in registers.
    pub int8_ops_per_s: f64,
    /// As above, of f32.
    pub f32_ops_per_s: f64,
}

/// Measures [`Peaks`]; holds [`PROBE_BYTES`] of memory for it.
pub struct PeakProbe {
    memory: HugeBuffer,
}

impl PeakProbe {
    /// Takes the memory, and writes to it on the threads that are to read it.
    ///
    /// # Errors
    /// [`CpuError::Alloc`], [`CpuError::Pool`].
    pub fn new(cpu: &Cpu) -> Result<PeakProbe, CpuError> {
        let mut memory = HugeBuffer::zeroed(PROBE_BYTES)?;
        // Memory that was never written is one page of zeros, which a cache holds.
        on_shares(cpu, &mut memory, &|share| share.fill(1))?;
        Ok(PeakProbe { memory })
    }

    /// Measures: on two cores that read 20 GB/s together, for half a second.
    ///
    /// # Errors
    /// [`CpuError::Pool`].
    pub fn measure(&mut self, cpu: &Cpu) -> Result<Peaks, CpuError> {
        let kernels = cpu.kernels;
        let mut read_time = Duration::MAX;
        for _ in 0..PROBE_TRIES {
            let started = Instant::now();
            on_shares(cpu, &mut self.memory, &|share| {
                black_box(kernels.read_through(share));
            })?;
            read_time = read_time.min(started.elapsed());
        }
        Ok(Peaks {
            read_bytes_per_s: PROBE_BYTES as f64 / read_time.as_secs_f64(),
            int8_ops_per_s: peak_of(cpu, Kernels::multiply_bytes)?,
            f32_ops_per_s: peak_of(cpu, Kernels::multiply_floats)?,
        })
    }
}

/// Runs `work` on all threads, each with its own stretch of the memory, which are always the same.
fn on_shares(cpu: &Cpu, memory: &mut [u8], work: &(dyn Fn(&mut [u8]) + Sync)) -> Result<(), CpuError> {
    let parts = Parts::of_slice(memory, PAGE_BYTES, cpu.pool.threads());
    cpu.pool.run(&|thread| work(parts.take_slice(thread)))?;
    Ok(())
}

/// The highest rate of operations of `products(kernels, rounds)`, which all threads run at the same time.
fn peak_of(cpu: &Cpu, products: fn(Kernels, usize) -> u64) -> Result<f64, CpuError> {
    let time_of = |rounds: usize| {
        let started = Instant::now();
        cpu.pool.run(&|_| {
            products(cpu.kernels, rounds);
        })?;
        Ok::<_, CpuError>(started.elapsed())
    };
    let mut rounds = 1;
    while time_of(rounds)? < LEAST_TIME {
        rounds *= 2;
    }
    let mut best = Duration::MAX;
    for _ in 0..PROBE_TRIES {
        best = best.min(time_of(rounds)?);
    }
    let operations = products(cpu.kernels, 1) as f64 * rounds as f64 * cpu.pool.threads() as f64;
    Ok(operations / best.as_secs_f64())
}

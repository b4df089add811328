//! What this machine can do right now, on the threads of a back end and those that read files: the speeds that others are judged by.
//!
//! Every speed is found in many short tries. Of products the best counts: other programs may hold the processors for a while. Of reading
//! the middle one counts: memory is shared all the time, and so is it for what is compared.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use goldcrest_format::{Source, TensorFiles, TensorInfo};
use goldcrest_kernels::Kernels;

use crate::buffer::{AllocError, HugeBuffer};
use crate::pool::Parts;
use crate::weights::weights_error;
use crate::{Cpu, CpuError};

/// Bytes of memory that are read, over and over.
pub const PROBE_BYTES: usize = WINDOWS * WINDOW_BYTES;
/// Bytes of one try. The windows follow each other, so that all others are read before one comes again: no cache holds it still.
const WINDOW_BYTES: usize = 64 << 20;
const WINDOWS: usize = 8;
/// Times that each window is read.
const PASSES: usize = 6;
/// Threads read whole pages.
const PAGE_BYTES: usize = 4096;
/// Time given to products, of each kind.
const PRODUCTS_TIME: Duration = Duration::from_millis(100);
/// Least time of one try at products.
const TRY_TIME: Duration = Duration::from_millis(1);

/// Time given to reads of files.
const DISK_TIME: Duration = Duration::from_secs(1);

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
    windows: Vec<HugeBuffer>,
}

impl PeakProbe {
    /// Takes the memory, and writes to it on the threads that are to read it.
    ///
    /// # Errors
    /// [`CpuError::Alloc`], [`CpuError::Pool`].
    pub fn new(cpu: &Cpu) -> Result<PeakProbe, CpuError> {
        let windows = (0..WINDOWS).map(|_| HugeBuffer::zeroed(WINDOW_BYTES));
        let mut windows = windows.collect::<Result<Vec<_>, AllocError>>()?;
        for window in &mut windows {
            // Memory that was never written is one page of zeros, which a cache holds.
            on_shares(cpu, window, &|share| share.fill(1))?;
        }
        Ok(PeakProbe { windows })
    }

    /// Measures, which takes about half a second.
    ///
    /// # Errors
    /// [`CpuError::Pool`].
    pub fn measure(&mut self, cpu: &Cpu) -> Result<Peaks, CpuError> {
        let kernels = cpu.kernels;
        let mut read_times = Vec::with_capacity(PASSES * WINDOWS);
        for _ in 0..PASSES {
            for window in &mut self.windows {
                let started = Instant::now();
                on_shares(cpu, window, &|share| {
                    black_box(kernels.read_through(share));
                })?;
                read_times.push(started.elapsed());
            }
        }
        read_times.sort_unstable();
        Ok(Peaks {
            read_bytes_per_s: WINDOW_BYTES as f64 / read_times[read_times.len() / 2].as_secs_f64(),
            int8_ops_per_s: sum_of_best(cpu, Kernels::multiply_bytes)?,
            f32_ops_per_s: sum_of_best(cpu, Kernels::multiply_floats)?,
        })
    }
}

/// Bytes a second that so many threads together read of a model's tensors, in stretches of `len` bytes from anywhere and past the system's
/// page cache. Takes about a second. Tensors that are shorter are not read; 0 if all are.
///
/// # Errors
/// [`CpuError::Weights`], [`CpuError::Alloc`].
pub fn disk_bytes_per_s(files: &TensorFiles, len: usize, threads: usize) -> Result<f64, CpuError> {
    let stretches = Stretches::new(files, len);
    if stretches.count() == 0 {
        return Ok(0.0);
    }
    let started = Instant::now();
    // Other stretches each time: somebody between us and the disk may have kept those of last time.
    let seed = RandomState::new();
    let read = |thread: usize| {
        let mut room = HugeBuffer::zeroed(Source::uncached_len(len))?;
        let mut bytes = 0;
        let mut numbers = (0_u64..).map(|i| seed.hash_one((thread, i)));
        while started.elapsed() < DISK_TIME {
            let number = numbers.next().unwrap_or_default();
            let (tensor, offset) = stretches.at(number % stretches.count());
            let stretch = files.read_uncached(tensor, offset, len, &mut room);
            bytes += stretch.map_err(|error| weights_error(tensor, error))?.len();
        }
        Ok::<usize, CpuError>(bytes)
    };
    let bytes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1))
            .map(|thread| scope.spawn(move || read(thread)))
            .collect();
        let read = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        read.sum::<Result<usize, CpuError>>()
    })?;
    Ok(bytes as f64 / started.elapsed().as_secs_f64())
}

/// All stretches of a length in tensors.
struct Stretches<'a> {
    len: usize,
    /// Tensors, each with the number of stretches in it and in those before.
    tensors: Vec<(u64, &'a TensorInfo)>,
}

impl<'a> Stretches<'a> {
    fn new(files: &'a TensorFiles, len: usize) -> Stretches<'a> {
        let mut count = 0_u64;
        let tensors = files.tensors().filter_map(|tensor| {
            let here = (tensor.bytes + 1).checked_sub(len as u64).filter(|here| *here > 0)?;
            count = count.saturating_add(here);
            Some((count, tensor))
        });
        Stretches {
            len,
            tensors: tensors.collect(),
        }
    }

    fn count(&self) -> u64 {
        self.tensors.last().map_or(0, |(count, _)| *count)
    }

    /// One of them: its tensor, and where it begins there.
    fn at(&self, index: u64) -> (&'a TensorInfo, u64) {
        let (count, tensor) = self.tensors[self.tensors.partition_point(|(count, _)| *count <= index)];
        (tensor, tensor.bytes - self.len as u64 - (count - 1 - index))
    }
}

/// Runs `work` on all threads, each with its own stretch of the memory, which are always the same.
fn on_shares(cpu: &Cpu, memory: &mut [u8], work: &(dyn Fn(&mut [u8]) + Sync)) -> Result<(), CpuError> {
    let parts = Parts::of_slice(memory, PAGE_BYTES, cpu.pool.threads());
    cpu.pool.run(&|thread| work(parts.take_slice(thread)))?;
    Ok(())
}

/// Operations a second of `products(kernels, rounds)`: the best of each thread, while all run it.
fn sum_of_best(cpu: &Cpu, products: fn(Kernels, usize) -> u64) -> Result<f64, CpuError> {
    let mut best = vec![0.0; cpu.pool.threads()];
    let parts = Parts::of_slice(&mut best, 1, cpu.pool.threads());
    cpu.pool.run(&|thread| {
        for best in parts.take_slice(thread) {
            *best = best_rate(|rounds| products(cpu.kernels, rounds));
        }
    })?;
    Ok(best.iter().sum())
}

fn best_rate(products: impl Fn(usize) -> u64) -> f64 {
    let mut best = 0.0_f64;
    let mut rounds = 1;
    let started = Instant::now();
    while started.elapsed() < PRODUCTS_TIME || best == 0.0 {
        let tried = Instant::now();
        let operations = products(rounds);
        let time = tried.elapsed();
        if time < TRY_TIME {
            rounds *= 2;
        } else {
            best = best.max(operations as f64 / time.as_secs_f64());
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuOptions;

    #[test]
    fn every_page_is_some_thread_s() {
        let cpu = Cpu::new(CpuOptions {
            threads: Some(3),
            ..CpuOptions::default()
        })
        .unwrap();
        let mut memory = vec![0; 7 * PAGE_BYTES + 1];
        on_shares(&cpu, &mut memory, &|share| share.iter_mut().for_each(|byte| *byte += 1)).unwrap();
        assert!(memory.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn stretches_lie_in_tensors_and_each_counts_once() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/llama3");
        let checkpoint = goldcrest_format::Checkpoint::open(std::path::Path::new(folder)).unwrap();
        let most = checkpoint.tensors().map(|tensor| tensor.bytes).max().unwrap();
        for len in [1, 129, most as usize - 1, most as usize] {
            let stretches = Stretches::new(&checkpoint, len);
            let mut seen = Vec::new();
            for index in 0..stretches.count() {
                let (tensor, offset) = stretches.at(index);
                assert!(offset + len as u64 <= tensor.bytes, "{len} from {offset} of {tensor:?}");
                seen.push((&tensor.name, offset));
            }
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len() as u64, stretches.count());
        }
        assert_eq!(Stretches::new(&checkpoint, most as usize + 1).count(), 0);
        assert_eq!(disk_bytes_per_s(&checkpoint, most as usize + 1, 2).unwrap(), 0.0);
        assert!(disk_bytes_per_s(&checkpoint, 129, 2).unwrap() > 0.0);
    }
}

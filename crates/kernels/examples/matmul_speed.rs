//! Speed of the matrix kernels on one thread: GB/s of packed weights at one row, from memory and from the cache, and
//! billions of operations a second (a multiply and an add are two) at 64 rows.
//!
//! `cargo run --release -p goldcrest-kernels --example matmul_speed [scalar|avx2|avx512|neon]`

use std::time::{Duration, Instant};

use goldcrest_kernels::{ActivationType, Activations, Isa, Kernels, PANEL_ROWS, PanelType};

/// Values of a row of weights.
const K: usize = 2048;
/// Bytes of weights that one row streams through: more than the caches hold.
const STREAM_BYTES: usize = 128 << 20;
/// Bytes of a timed slice of them: short, so that most slices are not interrupted by other processes.
const SLICE_BYTES: usize = 4 << 20;
const PREFILL_ROWS: usize = 64;
/// Timed slices of the measurements from the cache, a panel each.
const CACHED_SLICES: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let isa = std::env::args().nth(1).map_or(Ok(Isa::best()), |name| name.parse())?;
    let kernels = Kernels::new(isa)?;
    println!("{isa}, k {K}: GB/s at one row from memory, from the cache; Gop/s at {PREFILL_ROWS} rows");
    for panel_type in PanelType::ALL {
        for activation_type in [ActivationType::Q8, ActivationType::F32] {
            if activation_type == ActivationType::F32 || panel_type.is_quantized() {
                measure(kernels, panel_type, activation_type);
            }
        }
    }
    Ok(())
}

fn measure(kernels: Kernels, panel_type: PanelType, activation_type: ActivationType) {
    // Bytes repeated from a small pattern: neither NaN nor infinite in any type. Quants of integer blocks are of one level.
    let pattern = match panel_type {
        PanelType::IQ1 | PanelType::IQ3_S => [1; 3],
        PanelType::IQ2 => [8; 3],
        PanelType::IQ3_XXS => [2; 3],
        _ => [0x11, 0x2a, 0x35],
    };
    let row: Vec<u8> = (0..panel_type.row_bytes(K)).map(|i| pattern[i % 3]).collect();
    let mut panel = vec![0; panel_type.panel_bytes(K)];
    panel_type.pack(&[row.as_slice(); PANEL_ROWS], K, &mut panel);

    let one = packed(kernels, activation_type, 1);
    let weights = panel.repeat(STREAM_BYTES / panel.len());
    let slices: Vec<&[u8]> = weights.chunks_exact(SLICE_BYTES / panel.len() * panel.len()).collect();
    let streamed = undisturbed(
        slices
            .iter()
            .map(|slice| time(|| multiply(kernels, panel_type, slice, &one))),
    );
    let cached = undisturbed((0..CACHED_SLICES).map(|_| time(|| multiply(kernels, panel_type, &panel, &one))));
    let many = packed(kernels, activation_type, PREFILL_ROWS);
    let prefill = undisturbed((0..CACHED_SLICES).map(|_| time(|| multiply(kernels, panel_type, &panel, &many))));

    let per_nanosecond = |count: usize, elapsed: Duration| count as f64 / elapsed.as_nanos() as f64;
    println!(
        "{:>7} {activation_type:?} {:>8.1} {:>8.1} {:>8.1}",
        panel_type.to_string(),
        per_nanosecond(slices[0].len(), streamed),
        per_nanosecond(panel.len(), cached),
        per_nanosecond(2 * K * PANEL_ROWS * PREFILL_ROWS, prefill)
    );
}

fn packed(kernels: Kernels, activation_type: ActivationType, rows: usize) -> Activations {
    let x: Vec<f32> = (0..rows * K).map(|i| (i % 251) as f32 - 125.0).collect();
    let mut activations = Activations::new();
    activations.pack(kernels, activation_type, &x, K);
    activations
}

/// All rows times all panels, a panel at a time.
fn multiply(kernels: Kernels, panel_type: PanelType, weights: &[u8], activations: &Activations) {
    let mut out = [0.0; PREFILL_ROWS * PANEL_ROWS];
    for panel in weights.chunks_exact(panel_type.panel_bytes(K)) {
        for run in activations.runs() {
            let rows = run.row_range();
            let out = &mut out[rows.start * PANEL_ROWS..rows.end * PANEL_ROWS];
            kernels.matmul(panel_type, panel, run, out);
        }
    }
    std::hint::black_box(&out);
}

fn time(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

/// The 20th percentile: the time of a slice that other processes did not disturb.
fn undisturbed(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times.get(times.len() / 5).copied().unwrap_or_default()
}

//! Speed of the matrix kernels on one thread: GB/s of packed weights at one row, billions of operations a second (a multiply and an
//! add are two) at 64. `cargo run --release -p goldcrest-kernels --example matmul_speed [scalar|avx2|avx512]`

use std::time::{Duration, Instant};

use goldcrest_kernels::{ActivationType, Activations, Isa, Kernels, PANEL_ROWS, PanelType};

/// Values of a row of weights.
const K: usize = 2048;
/// Bytes of weights that one row streams through: more than the caches hold.
const STREAM_BYTES: usize = 128 << 20;
/// Panels that many rows meet: they stay in the last-level cache.
const PREFILL_PANELS: usize = 64;
const PREFILL_ROWS: usize = 64;
const REPEATS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let isa = std::env::args().nth(1).map_or(Ok(Isa::best()), |name| name.parse())?;
    let kernels = Kernels::new(isa)?;
    println!("{isa}, k {K}\n{:>6} {:>4} {:>10} {:>12}", "type", "", "GB/s, 1 row", "Gop/s, 64 rows");
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
    // Bytes repeated from a small pattern: neither NaN nor infinite in any type.
    let row: Vec<u8> = (0..panel_type.row_bytes(K)).map(|i| [0x11, 0x2a, 0x35][i % 3]).collect();
    let mut panel = vec![0; panel_type.panel_bytes(K)];
    panel_type.pack(&[&row; PANEL_ROWS], K, &mut panel);

    let one = packed(kernels, activation_type, 1);
    let weights = panel.repeat(STREAM_BYTES / panel.len());
    let elapsed = fastest(|| multiply(kernels, panel_type, &weights, &one));
    let gigabytes_per_second = weights.len() as f64 / elapsed.as_secs_f64() / 1e9;

    let many = packed(kernels, activation_type, PREFILL_ROWS);
    let weights = panel.repeat(PREFILL_PANELS);
    let elapsed = fastest(|| multiply(kernels, panel_type, &weights, &many));
    let operations = 2 * K * PANEL_ROWS * PREFILL_PANELS * PREFILL_ROWS;
    let gigaops_per_second = operations as f64 / elapsed.as_secs_f64() / 1e9;

    let name = panel_type.to_string();
    println!("{name:>6} {activation_type:?} {gigabytes_per_second:>10.1} {gigaops_per_second:>12.1}");
}

fn packed(kernels: Kernels, activation_type: ActivationType, rows: usize) -> Activations {
    let x: Vec<f32> = (0..rows * K).map(|i| (i % 251) as f32 - 125.0).collect();
    let mut activations = Activations::new();
    activations.pack(kernels, activation_type, &x, K);
    activations
}

/// All groups of rows times all panels, a panel at a time.
fn multiply(kernels: Kernels, panel_type: PanelType, weights: &[u8], activations: &Activations) {
    let mut out = [0.0; PREFILL_ROWS * PANEL_ROWS];
    for panel in weights.chunks_exact(panel_type.panel_bytes(K)) {
        for group in activations.groups() {
            let out = &mut out[group.first_row() * PANEL_ROWS..][..group.rows() * PANEL_ROWS];
            kernels.matmul(panel_type, panel, group, out);
        }
    }
    std::hint::black_box(&out);
}

/// The shortest of some runs: the one that other processes disturbed least.
fn fastest(mut run: impl FnMut()) -> Duration {
    let times = (0..REPEATS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

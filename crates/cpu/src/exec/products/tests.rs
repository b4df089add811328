//! How products are cut: real tiles, done by workers in virtual time.

use goldcrest_kernels::{ActivationType, Activations, GROUP_ROWS_MAX, PANEL_ROWS, PanelType};

use super::{row_cuts, tile_bytes, tile_columns, weight_bytes};
use crate::pool::{SharedTiles, TileOrder};

/// Outputs and inputs of matrices of SmolLM2 135M and Llama 3.2 1B, and of a head.
const SHAPES: [(usize, usize); 8] = [
    (576, 576),
    (1536, 576),
    (576, 1536),
    (512, 2048),
    (2048, 2048),
    (8192, 2048),
    (2048, 8192),
    (49152, 576),
];

/// Rows and columns of a tile.
type Tile = [std::ops::Range<usize>; 2];

/// The tiles of a product with `rows` rows, in the order in which threads get them.
fn tiles(rows: usize, (width, k): (usize, usize), threads: usize) -> Vec<Tile> {
    let (mut packed, mut cuts) = (Activations::new(), Vec::new());
    packed.reset(ActivationType::Q8, rows, k);
    let panel_bytes = PanelType::Q4_K.panel_bytes(k.next_multiple_of(256));
    let tile_bytes = tile_bytes(&packed, weight_bytes(width, panel_bytes), threads);
    let tile_columns = tile_columns(width, panel_bytes, tile_bytes, threads);
    row_cuts(&packed, width.div_ceil(tile_columns), threads, &mut cuts);
    let mut out = vec![0_u8; rows * width];
    let mut tiles = SharedTiles::new(&cuts, (width, 0..width), tile_columns, TileOrder::Rows);
    tiles.set(0, &mut out);
    let claimed = std::iter::from_fn(|| tiles.next());
    claimed
        .filter_map(|[tile, ..]| tile.map(|tile| [tile.rows(), tile.columns()]))
        .collect()
}

/// The time until workers of these speeds, who are free from these times on, have done all tiles of a product of 512 rows, as a multiple
/// of what an even share would take. A worker claims the next tile when its clock is behind all others.
fn slowdown(shape: (usize, usize), speeds: &[f64], free: impl Fn(usize, f64) -> f64) -> f64 {
    const ROWS: usize = 512;
    let outputs = (ROWS * shape.0) as f64;
    let mut clocks: Vec<f64> = (0..speeds.len()).map(|worker| free(worker, outputs)).collect();
    let lost: f64 = clocks.iter().zip(speeds).map(|(clock, speed)| clock * speed).sum();
    let even = (outputs + lost) / speeds.iter().sum::<f64>();
    for [rows, columns] in tiles(ROWS, shape, speeds.len()) {
        let first = (0..clocks.len())
            .min_by(|&a, &b| f64::total_cmp(&clocks[a], &clocks[b]))
            .unwrap();
        clocks[first] += (rows.len() * columns.len()) as f64 / speeds[first];
    }
    clocks.into_iter().fold(0.0, f64::max) / even
}

/// Whenever it comes: up to as late as one of 16 tiles of a thread takes it.
#[test]
fn a_worker_four_times_slower_does_not_hold_up_the_others() {
    for (shape, threads) in SHAPES
        .into_iter()
        .flat_map(|shape| [2, 3, 4, 6, 8].map(|threads| (shape, threads)))
    {
        for slow in [0, threads - 1] {
            let mut speeds = vec![1.0; threads];
            speeds[slow] = 0.25;
            for late in 0..=16 {
                let one_tile = |outputs: f64| outputs / (16 * threads) as f64 / speeds[slow];
                let slowdown = slowdown(shape, &speeds, |worker, outputs| {
                    if worker == slow {
                        one_tile(outputs) * f64::from(late) / 16.0
                    } else {
                        0.0
                    }
                });
                assert!(
                    (1.0..=1.25).contains(&slowdown),
                    "{shape:?}, thread {slow} of {threads} slow, late by {late}/16: {slowdown:.3}"
                );
            }
        }
    }
}

/// Nobody waits longer than for one of 16 tiles of a thread.
#[test]
fn equal_workers_finish_together() {
    for shape in SHAPES {
        for threads in [1, 2, 4, 8] {
            let slowdown = slowdown(shape, &vec![1.0; threads], |_, _| 0.0);
            assert!(
                (1.0..=1.0625).contains(&slowdown),
                "{shape:?}, {threads} threads: {slowdown:.3}"
            );
        }
    }
}

/// Few rows: every thread has one tile of whole panels, which it reads from its beginning to its end.
#[test]
fn decode_is_one_stream_a_thread() {
    for shape in SHAPES {
        for threads in [1, 2, 3, 4, 8] {
            for rows in [1, GROUP_ROWS_MAX] {
                let tiles = tiles(rows, shape, threads);
                assert_eq!(tiles.len(), threads, "{shape:?}, {rows} rows");
                let mut end = 0;
                for [tile_rows, columns] in tiles {
                    assert_eq!((tile_rows, columns.start), (0..rows, end), "{shape:?}");
                    assert!(columns.start.is_multiple_of(PANEL_ROWS));
                    end = columns.end;
                }
                assert_eq!(end, shape.0);
            }
        }
    }
}

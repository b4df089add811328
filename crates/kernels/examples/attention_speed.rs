//! Speed of attention on one thread: `cargo run --release -p goldcrest-kernels --example attention_speed [ISA]`.
//!
//! Decode: rows of one token over 4,096 positions, in millions of positions a second and in GB/s of KV pages, beside a plain read of the
//! same pages. Prefill: 2,048 tokens over
//! 4,096 positions, in GFLOP/s (2 operations per multiply-add of both products). The median of several rounds, by the time that the
//! thread was on a core (Linux), so that other jobs of the machine count less.

use std::hint::black_box;

use goldcrest_kernels::{
    Isa, Kernels, KvElement, KvLayout, QueryRow, SEGMENT_POSITIONS, ScoreRule, SeenSlots, attention_state_len,
    clear_attention_states,
};

const POSITIONS: usize = 4096;
const SEGMENTS: usize = POSITIONS / SEGMENT_POSITIONS;
/// Enough pages that no cache holds them.
const CACHE_BYTES: usize = 256 << 20;
const ROUNDS: usize = 7;

fn main() {
    let kernels = match std::env::args().nth(1) {
        None => Kernels::best(),
        Some(name) => match name.parse::<Isa>().and_then(Kernels::new) {
            Ok(kernels) => kernels,
            Err(error) => return eprintln!("{error}"),
        },
    };
    println!("{}, one thread, {POSITIONS} positions", kernels.isa());
    for head_dim in [64, 128, 256] {
        for element in KvElement::ALL {
            let layout = KvLayout {
                k_dim: head_dim,
                plain_k_dims: 0,
                v_dim: head_dim,
                element,
            };
            for group in [1, 2, 3, 4, 8] {
                decode(kernels, &layout, group);
            }
            prefill(kernels, &layout, 2048);
        }
    }
}

/// `count` pages of small numbers.
fn pages(layout: &KvLayout, count: usize) -> Vec<Vec<u8>> {
    let mut page = vec![0; layout.page_bytes()];
    for slot in 0..SEGMENT_POSITIONS {
        let number = |d: usize| ((slot * 31 + d * 17) % 101) as f32 / 101.0 - 0.5;
        let (k, v): (Vec<f32>, Vec<f32>) = (0..layout.k_dim).map(|d| (number(d), number(d + 50))).unzip();
        layout.write(&mut page, slot, &k, &v);
    }
    vec![page; count]
}

/// Seconds that this thread has been on a core: the first number, in nanoseconds, that Linux keeps for it.
fn core_seconds() -> f64 {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = line.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    nanoseconds.expect("this example reads the scheduler's statistics of Linux") / 1e9
}

/// Seconds of the middle one of several calls.
fn median_seconds(mut call: impl FnMut()) -> f64 {
    let mut seconds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = core_seconds();
            call();
            core_seconds() - start
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[ROUNDS / 2]
}

/// Attends from `queries` to all `pages`, a sequence of `SEGMENTS` after the other.
fn attend(kernels: Kernels, layout: &KvLayout, pages: &[Vec<u8>], queries: &[f32], states: &mut [f32]) {
    let rule = ScoreRule {
        scale: 0.125,
        softcap: None,
    };
    let query = |q| QueryRow {
        q,
        seen: SeenSlots::Range(0..SEGMENT_POSITIONS),
        alibi: None,
    };
    let rows: Vec<QueryRow> = queries.chunks(layout.k_dim).map(query).collect();
    for sequence in pages.chunks(SEGMENTS) {
        clear_attention_states(states, layout.v_dim);
        for (i, page) in sequence.iter().enumerate() {
            let next = sequence.get(i + 1).map(Vec::as_slice);
            kernels.attend_segment(layout, (page, next), &rule, &rows, states);
        }
        black_box(&states);
    }
}

fn decode(kernels: Kernels, layout: &KvLayout, group: usize) {
    let pages = pages(layout, CACHE_BYTES / layout.page_bytes());
    let queries = vec![0.25; group * layout.k_dim];
    let mut states = vec![0.0; group * attention_state_len(layout.v_dim)];
    let gigabytes = (pages.len() * layout.page_bytes()) as f64 / 1e9;
    let seconds = median_seconds(|| attend(kernels, layout, &pages, &queries, &mut states));
    let read = median_seconds(|| {
        let words = |page: &Vec<u8>| {
            page.as_chunks::<8>()
                .0
                .iter()
                .fold(0, |sum: u64, word| sum ^ u64::from_le_bytes(*word))
        };
        black_box(pages.iter().map(words).fold(0, |a, b| a ^ b));
    });
    let cached = median_seconds(|| {
        for _ in 0..pages.len() {
            attend(kernels, layout, &pages[..1], &queries, &mut states);
        }
    });
    println!(
        "{:4}, head dim {:3}, decode, {group} heads: {:5.1} M positions/s, {:5.1} GB/s; {:5.1} from the cache; plain read {:5.1}",
        layout.element.name(),
        layout.k_dim,
        (pages.len() * SEGMENT_POSITIONS) as f64 / seconds / 1e6,
        gigabytes / seconds,
        gigabytes / cached,
        gigabytes / read
    );
}

fn prefill(kernels: Kernels, layout: &KvLayout, tokens: usize) {
    let pages = pages(layout, SEGMENTS);
    let queries = vec![0.25; tokens * layout.k_dim];
    let mut states = vec![0.0; tokens * attention_state_len(layout.v_dim)];
    let seconds = median_seconds(|| attend(kernels, layout, &pages, &queries, &mut states));
    let operations = 2 * tokens * POSITIONS * (layout.k_dim + layout.v_dim);
    println!(
        "{:4}, head dim {:3}, prefill, {tokens} rows: {:.1} GFLOP/s",
        layout.element.name(),
        layout.k_dim,
        operations as f64 / seconds / 1e9
    );
}

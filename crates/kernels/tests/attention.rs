//! Paged attention: the oracle against f64, and every instruction set, grouping of rows and order of work against the oracle bit by bit.

use std::ops::Range;

use goldcrest_kernels::{
    Alibi, Isa, Kernels, KvElement, KvLayout, QueryRow, SEGMENT_POSITIONS, ScoreRule, SeenSlots, SlotSet, Visible,
    attention_state_len, clear_attention_states, scalar, visible_segments, visible_slots,
};
use proptest::prelude::*;

/// Usual ones, odd ones, and those of keys and values that differ (MLA in its absorbed form has keys of 576 and values of 512).
const HEAD_DIMS: [usize; 14] = [1, 7, 16, 24, 32, 50, 64, 80, 100, 128, 192, 256, 512, 576];

/// One KV head with its cache, and the query rows that attend to it.
#[derive(Debug)]
struct Case {
    layout: KvLayout,
    rule: ScoreRule,
    visible: Visible,
    sink: Option<f32>,
    /// Pages of all positions before `len`; every other byte says NaN.
    pages: Vec<Vec<u8>>,
    /// Keys and values as they read back, a row per position.
    keys: Vec<f32>,
    values: Vec<f32>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    position: usize,
    q: Vec<f32>,
    slope: Option<f32>,
    /// The positions that count, where they are chosen.
    chosen: Option<Vec<usize>>,
}

impl Row {
    /// Those of the chosen positions that lie in a segment, as slots.
    fn chosen_slots(&self, segment: usize) -> Option<SlotSet> {
        let chosen = self.chosen.as_ref()?;
        let here = chosen
            .iter()
            .filter(|position| **position / SEGMENT_POSITIONS == segment);
        Some(here.map(|position| position % SEGMENT_POSITIONS).collect())
    }
}

/// Numbers in (−1, 1) from a seed (a linear congruential generator: proptest need not shrink them one by one).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn take(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// Pages of `len` positions whose other slots, and padding, hold NaN.
fn fill_pages(layout: &KvLayout, len: usize, numbers: &mut Numbers) -> Vec<Vec<u8>> {
    let mut pages = vec![vec![0xff; layout.page_bytes()]; len.div_ceil(SEGMENT_POSITIONS)];
    for position in 0..len {
        let (k, v) = (numbers.take(layout.k_dim), numbers.take(layout.v_dim));
        let page = &mut pages[position / SEGMENT_POSITIONS];
        assert_eq!(layout.write(page, position % SEGMENT_POSITIONS, &k, &v), 0);
    }
    pages
}

fn read_back(layout: &KvLayout, pages: &[Vec<u8>], len: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut keys, mut values) = (vec![0.0; len * layout.k_dim], vec![0.0; len * layout.v_dim]);
    let rows = keys.chunks_mut(layout.k_dim).zip(values.chunks_mut(layout.v_dim));
    for (position, (k, v)) in rows.enumerate() {
        let (page, slot) = (&pages[position / SEGMENT_POSITIONS], position % SEGMENT_POSITIONS);
        layout.read_k(page, slot, k);
        layout.read_v(page, slot, v);
    }
    (keys, values)
}

/// Latent keys: the number of their dimensions, and of those that are rotated by position.
const LATENT_KEYS: [(usize, usize); 4] = [(40, 8), (49, 16), (80, 7), (576, 64)];

prop_compose! {
    fn latent_layouts()(
        (k_dim, plain_k_dims) in prop::sample::select(&LATENT_KEYS[..]),
        element in prop::sample::select(&KvElement::ALL[..]),
    ) -> KvLayout {
        KvLayout { k_dim, plain_k_dims, v_dim: k_dim - plain_k_dims, element }
    }
}

prop_compose! {
    fn ordinary_layouts()(
        k_dim in prop::sample::select(&HEAD_DIMS[..]),
        other in prop::sample::select(&HEAD_DIMS[..]),
        same in prop::bool::weighted(0.7),
        element in prop::sample::select(&KvElement::ALL[..]),
    ) -> KvLayout {
        KvLayout { k_dim, plain_k_dims: 0, v_dim: if same { k_dim } else { other }, element }
    }
}

fn layouts() -> impl Strategy<Value = KvLayout> {
    prop_oneof![2 => ordinary_layouts(), 1 => latent_layouts()]
}

fn visible() -> impl Strategy<Value = Visible> {
    prop_oneof![
        Just(Visible::All),
        (1usize..600).prop_map(Visible::Window),
        (1usize..600).prop_map(Visible::Chunk),
    ]
}

prop_compose! {
    /// `tokens` consecutive positions of `group` heads each, in a sequence of up to three segments.
    fn cases()(
        layout in layouts(),
        (tokens, group) in (1usize..6, 1usize..9),
        len in 6usize..700,
        start in 0f64..1.0,
        visible in visible(),
        slope in prop::option::of(0.001f32..1.0),
        softcap in prop::option::of(5f32..50.0),
        sink in prop::option::of(-2f32..2.0),
        density in prop::option::weighted(0.3, 0f32..1.0),
        sharpness in 0.5f32..20.0,
        seed: u64,
    ) -> Case {
        let mut numbers = Numbers(seed);
        let pages = fill_pages(&layout, len, &mut numbers);
        let (keys, values) = read_back(&layout, &pages, len);
        let first = ((len - tokens) as f64 * start) as usize;
        let heads = (first..first + tokens).flat_map(|position| (0..group).map(move |head| (position, head)));
        let row = |(position, head): (usize, usize)| Row {
            position,
            q: numbers.take(layout.k_dim),
            slope: slope.map(|slope| slope / (head + 1) as f32),
            chosen: density.map(|density| {
                let visible = visible.positions(position);
                visible.filter(|_| numbers.next().abs() < density).collect()
            }),
        };
        let rows = heads.map(row).collect();
        let rule = ScoreRule { scale: sharpness / (layout.k_dim as f32).sqrt(), softcap };
        Case { layout, rule, visible, sink, pages, keys, values, rows }
    }
}

impl Case {
    fn oracle(&self, row: usize) -> Vec<f32> {
        let row = &self.rows[row];
        let query = scalar::attention::Query {
            q: &row.q,
            position: row.position,
            visible: self.visible.positions(row.position),
            chosen: row.chosen.as_deref(),
            slope: row.slope,
        };
        let cache = (&self.keys[..], &self.values[..], self.layout.v_dim);
        scalar::attention::attend(&query, cache, &self.rule, self.sink)
    }

    /// The segments that any row sees.
    fn segments(&self) -> Range<usize> {
        let of_rows = self.rows.iter().map(|row| visible_segments(row.position, self.visible));
        of_rows
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
            .unwrap_or(0..0)
    }

    /// Attends from the rows in `range` to one segment.
    fn attend_segment(&self, kernels: Kernels, segment: usize, range: Range<usize>, states: &mut [f32]) {
        let rows = &self.rows[range];
        let chosen: Vec<_> = rows.iter().map(|row| row.chosen_slots(segment)).collect();
        let rows: Vec<QueryRow> = rows
            .iter()
            .zip(&chosen)
            .map(|(row, chosen)| QueryRow {
                q: &row.q,
                seen: match chosen {
                    Some(chosen) => SeenSlots::Chosen(chosen),
                    None => SeenSlots::Range(visible_slots(row.position, self.visible, segment)),
                },
                alibi: row.slope.map(|slope| Alibi::new(slope, row.position, segment)),
            })
            .collect();
        let next = self.pages.get(segment + 1).map(Vec::as_slice);
        kernels.attend_segment(&self.layout, (&self.pages[segment], next), &self.rule, &rows, states);
    }

    fn finish(&self, kernels: Kernels, states: &[f32]) -> Vec<Vec<f32>> {
        let finish = |state: &[f32]| {
            let mut out = vec![f32::NAN; self.layout.v_dim];
            kernels.finish_attention(state, self.sink, &mut out);
            out
        };
        states.chunks(self.state_len()).map(finish).collect()
    }

    fn state_len(&self) -> usize {
        attention_state_len(self.layout.v_dim)
    }

    fn cleared(&self, rows: usize) -> Vec<f32> {
        let mut states = vec![f32::NAN; rows * self.state_len()];
        clear_attention_states(&mut states, self.layout.v_dim);
        states
    }
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter()
        .map(|row| row.iter().map(|x| x.to_bits()).collect())
        .collect()
}

/// How far the oracle may be from exact attention: see the comments.
fn error_bound(case: &Case, row: usize) -> f64 {
    let unit = libm::ldexp(1.0, -24);
    let row = &case.rows[row];
    let visible = case.visible.positions(row.position);
    let k_dim = case.layout.k_dim;
    let magnitude = |position: usize| {
        let key = &case.keys[position * k_dim..][..k_dim];
        let dot: f64 = key.iter().zip(&row.q).map(|(k, q)| f64::from(k * q).abs()).sum();
        dot * f64::from(case.rule.scale) + f64::from(row.slope.unwrap_or(0.0)) * (row.position - position) as f64
    };
    let largest_score = visible.clone().map(magnitude).fold(0.0, f64::max);
    let largest_value = case.values.iter().fold(0.0, |max: f64, v| max.max(f64::from(v.abs())));
    // A chain of k_dim steps, the scale and the bias; the cap adds a division, tanh (2 ulp) and a product.
    let score_error = (k_dim as f64 + 8.0) * unit * largest_score;
    // The subtraction of the maximum, and exp (2 ulp); weights then add in chains of at most 256, and merges take 4 steps each.
    let weight_error = score_error + unit * 2.0 * largest_score + 4.0 * unit;
    let chain_error = (SEGMENT_POSITIONS as f64 + 8.0 * case.segments().len() as f64) * unit;
    // Numerator and denominator each have these errors.
    2.0 * largest_value * (2.0 * weight_error + chain_error)
}

fn exact_attention(case: &Case, row: usize) -> Vec<f64> {
    let row = &case.rows[row];
    let (k_dim, v_dim) = (case.layout.k_dim, case.layout.v_dim);
    let score = |position: usize| {
        let key = &case.keys[position * k_dim..][..k_dim];
        let dot: f64 = key.iter().zip(&row.q).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
        let bias = f64::from(row.slope.unwrap_or(0.0)) * (position as f64 - row.position as f64);
        let score = dot * f64::from(case.rule.scale) + bias;
        case.rule
            .softcap
            .map_or(score, |cap| f64::from(cap) * libm::tanh(score / f64::from(cap)))
    };
    let visible: Vec<usize> = match &row.chosen {
        Some(chosen) => chosen.clone(),
        None => case.visible.positions(row.position).collect(),
    };
    if visible.is_empty() {
        return vec![0.0; v_dim];
    }
    let scores: Vec<f64> = visible.iter().map(|&position| score(position)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| libm::exp(score - max)).collect();
    let sink = case.sink.map_or(0.0, |logit| libm::exp(f64::from(logit) - max));
    let total = weights.iter().sum::<f64>() + sink;
    let column = |d: usize| {
        let products = visible
            .iter()
            .zip(&weights)
            .map(|(&position, weight)| f64::from(case.values[position * v_dim + d]) * weight);
        products.sum::<f64>() / total
    };
    (0..v_dim).map(column).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_oracle_is_close_to_exact_attention(case in cases()) {
        for row in 0..case.rows.len() {
            let bound = error_bound(&case, row);
            for (got, exact) in case.oracle(row).iter().zip(exact_attention(&case, row)) {
                let error = (f64::from(*got) - exact).abs();
                prop_assert!(error <= bound, "{got} for {exact}: error {error:e} > {bound:e}");
            }
        }
    }

    #[test]
    fn all_instruction_sets_and_groupings_have_the_bits_of_the_oracle(case in cases(), cuts: u64) {
        let count = case.rows.len();
        let expected: Vec<_> = (0..count).map(|row| case.oracle(row)).collect();
        for isa in Isa::available() {
            let kernels = Kernels::new(isa).unwrap();

            let mut together = case.cleared(count);
            for segment in case.segments() {
                case.attend_segment(kernels, segment, 0..count, &mut together);
            }
            prop_assert_eq!(bits(&case.finish(kernels, &together)), bits(&expected), "all rows together, {}", isa);

            // Rows in chunks as the bits of `cuts` say; every segment in its own states, last segment first, merged in order.
            let starts: Vec<usize> = (0..count).filter(|row| *row == 0 || cuts >> (row % 64) & 1 == 1).collect();
            let mut partials = Vec::new();
            for segment in case.segments().rev() {
                let mut states = case.cleared(count);
                for (i, &start) in starts.iter().enumerate() {
                    let end = starts.get(i + 1).copied().unwrap_or(count);
                    let len = case.state_len();
                    case.attend_segment(kernels, segment, start..end, &mut states[start * len..end * len]);
                }
                partials.push(states);
            }
            let mut merged = case.cleared(count);
            for partial in partials.iter().rev() {
                kernels.merge_attention(&mut merged, partial, case.layout.v_dim);
            }
            prop_assert_eq!(bits(&case.finish(kernels, &merged)), bits(&expected), "rows and segments apart, {}", isa);
        }
    }

    #[test]
    fn visible_slots_are_what_the_rule_says(position in 0usize..2000, visible in visible()) {
        let sees = |key: usize| key <= position && match visible {
            Visible::All => true,
            Visible::Window(window) => key + window > position,
            Visible::Chunk(chunk) => key / chunk == position / chunk,
        };
        let segments = visible_segments(position, visible);
        for segment in 0..9 {
            let slots = visible_slots(position, visible, segment);
            for slot in 0..SEGMENT_POSITIONS {
                let seen = sees(segment * SEGMENT_POSITIONS + slot);
                prop_assert_eq!(slots.contains(&slot), seen);
                prop_assert!(!seen || segments.contains(&segment));
            }
            prop_assert_eq!(segments.contains(&segment), !slots.is_empty());
        }
    }

    #[test]
    fn pages_give_back_what_was_written(layout in layouts(), slot in 0..SEGMENT_POSITIONS, seed: u64) {
        let mut numbers = Numbers(seed);
        let mut page = vec![0xff; layout.page_bytes()];
        let (k, v) = (numbers.take(layout.k_dim), numbers.take(layout.v_dim));
        layout.write(&mut page, slot, &k, &v);
        let (mut k_back, mut v_back) = (vec![0.0; layout.k_dim], vec![0.0; layout.v_dim]);
        layout.read_k(&page, slot, &mut k_back);
        layout.read_v(&page, slot, &mut v_back);
        let keys = if layout.element == KvElement::Q4 { KvElement::Q8_0 } else { layout.element };
        let leading = layout.leading_k_dims();
        check_stored(keys, &k[..leading], &k_back[..leading])?;
        check_stored(KvElement::F16, &k[leading..], &k_back[leading..])?;
        check_stored(layout.element, &v, &v_back)?;
        let written = page.iter().filter(|byte| **byte != 0xff).count();
        prop_assert!(written <= layout.token_bytes(), "only the slot was written");
    }
}

const SMALLEST_F16: f32 = 1.0 / (1 << 24) as f32;
const SMALLEST_NORMAL_F16: f32 = 1.0 / (1 << 14) as f32;

/// Whether `back` is what the element type makes of `x`.
fn check_stored(element: KvElement, x: &[f32], back: &[f32]) -> Result<(), TestCaseError> {
    let largest = |x: &[f32]| x.iter().fold(0f32, |max, x| max.max(x.abs()));
    for (x, back) in x.chunks(32).zip(back.chunks(32)) {
        let codes = match element {
            KvElement::Q4 => 8.0,
            _ => 127.0,
        };
        // An f16 is at most one part in 2^10, or the smallest f16, above the scale that just reaches the largest number.
        let least_scale = largest(x) / codes;
        let scale = (least_scale * (1.0 + 1.0 / 1024.0)).max(least_scale + SMALLEST_F16);
        // Half a step, and a whole one where Q4 has no code +8.
        let error = match element {
            KvElement::F32 | KvElement::F16 => 0.0,
            KvElement::Q8_0 => scale / 2.0,
            KvElement::Q4 => scale,
        };
        for (x, back) in x.iter().zip(back) {
            let expected = match element {
                KvElement::F16 => half::f16::from_f32(*x).to_f32(),
                _ => *x,
            };
            prop_assert!((back - expected).abs() <= error, "{back} for {x} in {element}");
        }
        // Its code is the largest one, unless steps of scales are coarser than codes.
        if element.is_quantized() && least_scale >= SMALLEST_NORMAL_F16 {
            let (x, back) = (largest(x), largest(back));
            prop_assert!(
                back >= x * (1.0 - 1e-6) && back <= x * (1.0 + 1.0 / 1024.0),
                "the largest number {back} for {x}"
            );
        }
    }
    Ok(())
}

#[test]
fn quantised_blocks_saturate_count_and_keep_nan() {
    const KEY_REACH: f32 = 127.0 * 65504.0;
    for (element, value_reach) in [(KvElement::Q8_0, KEY_REACH), (KvElement::Q4, 8.0 * 65504.0)] {
        let layout = KvLayout {
            k_dim: 64,
            plain_k_dims: 0,
            v_dim: 97,
            element,
        };
        let mut page = vec![0xff; layout.page_bytes()];
        let (mut k, mut v) = ([1.0; 64], [0.0; 97]);
        k[3] = f32::NEG_INFINITY;
        k[5] = -2.0 * KEY_REACH;
        k[40] = f32::NAN;
        v[2] = 2.0 * value_reach;
        v[70] = f32::NAN;
        v[96] = -1e-9;
        assert_eq!(layout.write(&mut page, 100, &k, &v), 3, "{element}");
        let (mut k_back, mut v_back) = ([0.0; 64], [f32::INFINITY; 97]);
        layout.read_k(&page, 100, &mut k_back);
        layout.read_v(&page, 100, &mut v_back);
        assert_eq!(
            (k_back[3], k_back[5], k_back[31]),
            (-KEY_REACH, -KEY_REACH, 0.0),
            "{element}"
        );
        assert!(k_back[32..].iter().all(|x| x.is_nan()), "{element}");
        assert_eq!((v_back[2], v_back[3]), (value_reach, 0.0), "{element}");
        assert_eq!(v_back[32..64], [0.0; 32], "{element}");
        assert!(v_back[64..96].iter().all(|x| x.is_nan()), "{element}");
        assert!(v_back[96].abs() <= 1.0 / (1 << 24) as f32 * 128.0, "{element}");
    }
}

/// Root of the mean squared error of attention with quantised keys and values, against f32.
fn quantisation_error(element: KvElement, rotated: bool, outlier: f32) -> f64 {
    const DIM: usize = 128;
    const POSITIONS: usize = 300;
    let kernels = Kernels::best();
    let layout = |element| KvLayout {
        k_dim: DIM,
        plain_k_dims: 0,
        v_dim: DIM,
        element,
    };
    let mut numbers = Numbers(11);
    let mut tokens = Vec::new();
    for _ in 0..POSITIONS {
        let (mut k, mut v) = (numbers.take(DIM), numbers.take(DIM));
        k[37] += outlier;
        v[90] -= outlier;
        tokens.push((k, v));
    }
    let attend = |layout: &KvLayout, rotated: bool, q: &[f32]| {
        let turn = |x: &[f32]| {
            let mut x = x.to_vec();
            if rotated {
                kernels.rotate_signed(&mut x, DIM);
            }
            x
        };
        let mut pages = vec![vec![0; layout.page_bytes()]; POSITIONS.div_ceil(SEGMENT_POSITIONS)];
        for (position, (k, v)) in tokens.iter().enumerate() {
            let page = &mut pages[position / SEGMENT_POSITIONS];
            layout.write(page, position % SEGMENT_POSITIONS, &turn(k), &turn(v));
        }
        let rule = ScoreRule {
            scale: 0.5,
            softcap: None,
        };
        let (q, mut state) = (turn(q), vec![0.0; attention_state_len(DIM)]);
        clear_attention_states(&mut state, DIM);
        for (segment, page) in pages.iter().enumerate() {
            let row = QueryRow {
                q: &q,
                seen: SeenSlots::Range(visible_slots(POSITIONS - 1, Visible::All, segment)),
                alibi: None,
            };
            kernels.attend_segment(layout, (page, None), &rule, &[row], &mut state);
        }
        let mut out = vec![0.0; DIM];
        kernels.finish_attention(&state, None, &mut out);
        if rotated {
            kernels.unrotate_signed(&mut out, DIM);
        }
        out
    };
    let mut squares = 0.0;
    for _ in 0..8 {
        let q = numbers.take(DIM);
        let exact = attend(&layout(KvElement::F32), false, &q);
        let found = attend(&layout(element), rotated, &q);
        let errors = exact.iter().zip(&found).map(|(x, y)| f64::from(x - y));
        squares += errors.map(|error| error * error).sum::<f64>() / DIM as f64;
    }
    (squares / 8.0).sqrt()
}

#[test]
fn rotation_saves_the_neighbours_of_an_outlier_channel() {
    for element in [KvElement::Q8_0, KvElement::Q4] {
        let error = |rotated, outlier| quantisation_error(element, rotated, outlier);
        let (plain, rotated) = (error(false, 20.0), error(true, 20.0));
        println!(
            "{element}: plain {plain:.2e}, rotated {rotated:.2e}; no outlier: plain {:.2e}, rotated {:.2e}",
            error(false, 0.0),
            error(true, 0.0)
        );
        assert!(rotated < plain / 2.0, "{element}: rotated {rotated}, plain {plain}");
    }
    let error = |element| quantisation_error(element, true, 0.0);
    assert!(error(KvElement::Q8_0) < error(KvElement::Q4) / 8.0);
}

#[test]
fn a_row_without_visible_keys_is_zero_and_a_visible_nan_is_not_hidden() {
    let rule = ScoreRule {
        scale: 0.25,
        softcap: None,
    };
    for (isa, element) in Isa::available().flat_map(|isa| KvElement::ALL.map(|element| (isa, element))) {
        let layout = KvLayout {
            k_dim: 16,
            plain_k_dims: 0,
            v_dim: 16,
            element,
        };
        let kernels = Kernels::new(isa).unwrap();
        let mut page = fill_pages(&layout, 40, &mut Numbers(1)).remove(0);
        let q = [0.5; 16];
        let attend = |page: &[u8], visible: Range<usize>| {
            let mut state = vec![0.0; attention_state_len(16)];
            clear_attention_states(&mut state, 16);
            kernels.attend_segment(
                &layout,
                (page, None),
                &rule,
                &[QueryRow {
                    q: &q,
                    seen: SeenSlots::Range(visible),
                    alibi: None,
                }],
                &mut state,
            );
            let mut out = [f32::NAN; 16];
            kernels.finish_attention(&state, Some(1.0), &mut out);
            out
        };
        assert_eq!(attend(&page, 12..12), [0.0; 16], "{isa}, {element}");
        assert!(attend(&page, 0..40).iter().all(|x| x.is_finite()), "{isa}, {element}");
        layout.write(&mut page, 39, &[f32::NAN; 16], &[1.0; 16]);
        assert!(attend(&page, 0..40).iter().all(|x| x.is_nan()), "{isa}, {element}");
        assert!(attend(&page, 0..39).iter().all(|x| x.is_finite()), "{isa}, {element}");
    }
}

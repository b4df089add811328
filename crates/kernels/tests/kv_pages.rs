//! Where keys and values lie in a page.

use goldcrest_kernels::{KvElement, KvLayout};

#[test]
fn half_precision_saturates_and_counts() {
    let layout = KvLayout {
        k_dim: 4,
        plain_k_dims: 0,
        v_dim: 2,
        element: KvElement::F16,
    };
    let mut page = vec![0; layout.page_bytes()];
    let k = [65504.0, 65505.0, f32::NEG_INFINITY, f32::NAN];
    assert_eq!(layout.write(&mut page, 7, &k, &[-1e9, 1.0]), 3);
    let (mut k_back, mut v_back) = ([0.0; 4], [0.0; 2]);
    layout.read_k(&page, 7, &mut k_back);
    layout.read_v(&page, 7, &mut v_back);
    assert_eq!(k_back[..3], [65504.0, 65504.0, -65504.0]);
    assert!(k_back[3].is_nan());
    assert_eq!(v_back, [-65504.0, 1.0]);

    let exact = KvLayout {
        element: KvElement::F32,
        ..layout
    };
    let mut page = vec![0; exact.page_bytes()];
    assert_eq!(exact.write(&mut page, 7, &k, &[-1e9, 1.0]), 0);
}

#[test]
fn keys_lie_in_panels_of_32_positions_and_values_in_rows() {
    let layout = KvLayout {
        k_dim: 3,
        plain_k_dims: 0,
        v_dim: 5,
        element: KvElement::F32,
    };
    let mut page = vec![0; layout.page_bytes()];
    layout.write(&mut page, 33, &[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0, 7.0, 8.0]);
    let (numbers, _) = page.as_chunks::<4>();
    let at = |i: usize| f32::from_le_bytes(numbers[i]);
    assert_eq!([at(96 + 1), at(96 + 32 + 1), at(96 + 64 + 1)], [1.0, 2.0, 3.0]);
    assert_eq!([at(256 * 3 + 33 * 16), at(256 * 3 + 33 * 16 + 4)], [4.0, 8.0]);
    assert_eq!(numbers.len(), 256 * (3 + 16));
}

#[test]
fn plain_numbers_follow_the_codes_of_a_panel() {
    let layout = KvLayout {
        k_dim: 40,
        plain_k_dims: 8,
        v_dim: 32,
        element: KvElement::Q4,
    };
    let mut page = vec![0; layout.page_bytes()];
    let mut key = [0.0; 40];
    key[..32].fill(127.0);
    key[33] = 3.0;
    layout.write(&mut page, 34, &key, &[0.0; 32]);
    // The second panel: a scale of 1 and codes of 127, then the second of eight lines of f16.
    let panel = &page[32 * (2 + 32 + 16)..];
    assert_eq!(panel[2 * 2..][..2], half::f16::from_f32(1.0).to_le_bytes());
    assert_eq!(panel[32 * 2 + 32 + 2], 127);
    assert_eq!(
        panel[32 * (2 + 32) + 32 * 2 + 2 * 2..][..2],
        half::f16::from_f32(3.0).to_le_bytes()
    );
    assert_eq!(layout.token_bytes(), 2 + 32 + 16 + 2 + 16);
}

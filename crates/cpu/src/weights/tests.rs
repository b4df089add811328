use goldcrest_format::{Checkpoint, DType};
use goldcrest_model::spec::{BlockScales, RowOrder, RowSelection};

use super::*;

/// A tensor of 6 rows and 5 columns of FP8, row r holding (−1)^r · 2^c, with factors 1, 3, 5 … for its blocks of 2 × 2.
fn block_scaled(name: &str) -> Checkpoint {
    let powers = |r: u8| (0..5).map(move |c| r % 2 * 0x80 + 0x38 + 8 * c);
    let elements: Vec<u8> = (0..6).flat_map(powers).collect();
    let factors: Vec<u8> = (0..9).flat_map(|i| (1.0 + 2.0 * i as f32).to_le_bytes()).collect();
    checkpoint(
        name,
        r#"{"w":{"dtype":"F8_E4M3","shape":[6,5],"data_offsets":[0,30]},"s":{"dtype":"F32","shape":[3,3],"data_offsets":[30,66]}}"#,
        &[elements, factors].concat(),
    )
}

fn checkpoint(name: &str, header: &str, data: &[u8]) -> Checkpoint {
    let folder = std::env::temp_dir().join(format!("goldcrest-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), "{}").unwrap();
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    checkpoint
}

/// All rows of a matrix as it is in memory.
fn loaded(checkpoint: &Checkpoint, matrix: &Matrix) -> Vec<Vec<f32>> {
    let weights = Weights::load_matrices(
        checkpoint,
        std::slice::from_ref(matrix),
        (&Pool::new(2).unwrap(), CachedPages::Keep),
        &|_| false,
    )
    .unwrap();
    let panels = weights.matrix(MatrixId(0));
    let row = |row| {
        let mut out = vec![0.0; matrix.cols];
        weights.row(&panels, row, &mut out);
        out
    };
    (0..matrix.outputs()).map(row).collect()
}

/// By the definition.
fn element(row: usize, column: usize) -> f32 {
    let sign = if row.is_multiple_of(2) { 1.0 } else { -1.0 };
    sign * (1 << column) as f32 * (1 + 2 * (row / 2 * 3 + column / 2)) as f32
}

#[test]
fn rows_and_columns_meet_the_factors_of_their_blocks() {
    let checkpoint = block_scaled("block-scaled");
    let rows = Matrix {
        tensor: "w".into(),
        dtype: DType::F8_E4M3,
        rows: RowSelection::stretch(1, 5),
        cols: 5,
        order: RowOrder::Plain,
        storage: Storage::Rows,
        scales: Some(BlockScales {
            tensor: "s".into(),
            block: [2, 2],
        }),
    };
    let expected: Vec<Vec<f32>> = (1..6).map(|row| (0..5).map(|c| element(row, c)).collect()).collect();
    assert_eq!(loaded(&checkpoint, &rows), expected);
    // Inputs from the middle of a block on, outputs into the last block, which is cut.
    let columns = Matrix {
        rows: RowSelection::stretch(1, 4),
        cols: 3,
        storage: Storage::Columns { first_input: 3 },
        ..rows
    };
    let expected: Vec<Vec<f32>> = (1..5).map(|c| (3..6).map(|row| element(row, c)).collect()).collect();
    assert_eq!(loaded(&checkpoint, &columns), expected);
}

/// Element c of row r is 1000 r + c.
fn numbered(rows: usize, columns: usize) -> Checkpoint {
    let header = format!(
        r#"{{"w":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[0,{}]}}}}"#,
        rows * columns * 4
    );
    let value = |i: usize| (1000 * (i / columns) + i % columns) as f32;
    let data: Vec<u8> = (0..rows * columns).flat_map(|i| value(i).to_le_bytes()).collect();
    checkpoint(&format!("numbered-{rows}-{columns}"), &header, &data)
}

#[test]
fn every_selection_and_order_takes_its_rows() {
    let checkpoint = numbered(120, 6);
    let rows = |rows, order| Matrix {
        tensor: "w".into(),
        dtype: DType::F32,
        rows,
        cols: 6,
        order,
        storage: Storage::Rows,
        scales: None,
    };
    // Near each other, in stretches of 5 far apart, in stretches longer than a panel; pairs of a rotation within them.
    let parts = |block, stride, count| RowSelection {
        first: 3,
        count,
        block,
        stride,
    };
    let pairs = RowOrder::Pairs {
        head_dim: 20,
        rotary: 12,
    };
    for matrix in [
        rows(RowSelection::all(120), RowOrder::Plain),
        rows(RowSelection::stretch(7, 33), RowOrder::Plain),
        rows(parts(5, 20, 25), RowOrder::Plain),
        rows(parts(1, 2, 50), RowOrder::Plain),
        rows(parts(20, 50, 40), RowOrder::Plain),
        rows(RowSelection::all(120), pairs),
        rows(parts(20, 50, 40), pairs),
    ] {
        let expected: Vec<Vec<f32>> = (0..matrix.outputs())
            .map(|row| (0..6).map(|c| (1000 * matrix.source_row(row) + c) as f32).collect())
            .collect();
        assert_eq!(loaded(&checkpoint, &matrix), expected, "{matrix:?}");
    }
}

#[test]
fn columns_become_rows_also_where_they_are_many() {
    // Two tiles of a thread: 2 MiB hold 4 panels of 8192 inputs.
    let checkpoint = numbered(8192, 90);
    let matrix = Matrix {
        tensor: "w".into(),
        dtype: DType::F32,
        rows: RowSelection {
            first: 1,
            count: 80,
            block: 20,
            stride: 22,
        },
        cols: 8190,
        order: RowOrder::Plain,
        storage: Storage::Columns { first_input: 2 },
        scales: None,
    };
    for (row, values) in loaded(&checkpoint, &matrix).iter().enumerate() {
        let expected = |i: usize| (1000 * (i + 2) + matrix.source_row(row)) as f32;
        assert!(
            values.iter().enumerate().all(|(i, value)| *value == expected(i)),
            "row {row}"
        );
    }
}

#[test]
fn a_file_that_shrank_is_an_error_that_names_the_tensor() {
    let folder = std::env::temp_dir().join(format!("goldcrest-shrunk-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), "{}").unwrap();
    let header = br#"{"w":{"dtype":"F32","shape":[40,6],"data_offsets":[0,960]}}"#;
    let path = folder.join("model.safetensors");
    std::fs::write(
        &path,
        [&(header.len() as u64).to_le_bytes()[..], header, &[0; 960]].concat(),
    )
    .unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(500)
        .unwrap();
    let matrix = Matrix {
        tensor: "w".into(),
        dtype: DType::F32,
        rows: RowSelection::all(40),
        cols: 6,
        order: RowOrder::Plain,
        storage: Storage::Rows,
        scales: None,
    };
    let refused = Weights::load_matrices(
        &checkpoint,
        &[matrix],
        (&Pool::new(2).unwrap(), CachedPages::Keep),
        &|_| false,
    );
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(refused, Err(CpuError::Weights { tensor, .. }) if tensor == "w"));
}

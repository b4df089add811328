//! The tensor table of a GGUF file, checked against the length of the file.

use std::collections::HashSet;

use super::NAME_LIMIT_BYTES;
use super::cursor::Cursor;
use super::error::{GgufError, Problem, shown};
use crate::{DType, Source, TensorInfo};

/// The format allows four dimensions.
const DIMS_LIMIT: u32 = 4;
/// Smallest table row: empty name, no dimension, type, offset.
const ROW_BYTES: u64 = 8 + 4 + 4 + 8;

/// What the header says about the table.
pub(super) struct Table {
    pub tensor_count: u64,
    /// Bytes; a power of two.
    pub alignment: u64,
    /// `TensorInfo::source` of every tensor.
    pub number: usize,
}

/// A tensor and the place of its row in the table, for messages.
struct Row {
    tensor: TensorInfo,
    at: u64,
}

pub(super) fn read(cursor: &mut Cursor, source: &Source, table: Table) -> Result<Vec<TensorInfo>, GgufError> {
    let start = cursor.offset();
    let count = cursor
        .check_count(table.tensor_count, ROW_BYTES)
        .map_err(|problem| problem.at("tensor count", 8))?;
    let mut rows = Vec::new();
    for index in 0..count {
        rows.push(read_row(cursor, &table, index)?);
    }
    let data_start = cursor.offset().checked_next_multiple_of(table.alignment);
    let data_start = data_start.ok_or_else(|| Problem::Elements.at("tensor data", start))?;
    for row in &mut rows {
        place(row, data_start, source.length())?;
    }
    refuse_duplicates(&rows)?;
    refuse_overlaps(&rows)?;
    Ok(rows.into_iter().map(|row| row.tensor).collect())
}

/// Reads one row; `offset` of the tensor is still relative to the data section.
fn read_row(cursor: &mut Cursor, table: &Table, index: usize) -> Result<Row, GgufError> {
    let at = cursor.offset();
    let name = cursor
        .string(NAME_LIMIT_BYTES)
        .map_err(|problem| problem.at(&format!("name of tensor {index}"), at))?;
    let offset = cursor.offset();
    match read_layout(cursor, table.alignment) {
        Ok((dtype, shape, bytes, offset)) => Ok(Row {
            tensor: TensorInfo {
                name,
                dtype,
                shape,
                source: table.number,
                offset,
                bytes,
            },
            at,
        }),
        Err(problem) => Err(problem.at(&name, offset)),
    }
}

type Layout = (DType, Vec<usize>, u64, u64);

fn read_layout(cursor: &mut Cursor, alignment: u64) -> Result<Layout, Problem> {
    let dims = cursor.u32()?;
    if dims > DIMS_LIMIT {
        return Err(Problem::Dims {
            dims,
            limit: DIMS_LIMIT,
        });
    }
    let mut shape = Vec::with_capacity(dims as usize);
    let mut elements = 1u64;
    for _ in 0..dims {
        let dim = cursor.u64()?;
        if dim == 0 {
            return Err(Problem::EmptyDim);
        }
        elements = elements.checked_mul(dim).ok_or(Problem::Elements)?;
        shape.push(usize::try_from(dim).map_err(|_| Problem::Elements)?);
    }
    let dtype = DType::from_ggml_id(cursor.u32()?)?;
    // Blocks lie along the innermost dimension, which the file names first.
    let row = shape.first().map_or(1, |&row| row as u64);
    if !row.is_multiple_of(dtype.block_elements() as u64) {
        return Err(Problem::Row { row, dtype });
    }
    shape.reverse();
    let bytes = dtype.bytes(elements)?;
    let offset = cursor.u64()?;
    if !offset.is_multiple_of(alignment) {
        return Err(Problem::Misaligned {
            value: offset,
            alignment,
        });
    }
    Ok((dtype, shape, bytes, offset))
}

/// Makes the offset absolute and checks that the data lies in the file.
fn place(row: &mut Row, data_start: u64, length: u64) -> Result<(), GgufError> {
    let tensor = &mut row.tensor;
    let start = data_start.checked_add(tensor.offset);
    let end = start.and_then(|start| start.checked_add(tensor.bytes));
    match (start, end) {
        (Some(start), Some(end)) if end <= length => {
            tensor.offset = start;
            Ok(())
        }
        _ => {
            let start = start.unwrap_or(u64::MAX);
            Err(Problem::DataPastEnd {
                start,
                bytes: tensor.bytes,
                length,
            }
            .at(&tensor.name, row.at))
        }
    }
}

fn refuse_duplicates(rows: &[Row]) -> Result<(), GgufError> {
    let mut names = HashSet::with_capacity(rows.len());
    match rows.iter().find(|row| !names.insert(row.tensor.name.as_str())) {
        Some(row) => Err(Problem::Duplicate.at(&row.tensor.name, row.at)),
        None => Ok(()),
    }
}

/// Tensors that share bytes would let a small file announce any amount of weights.
fn refuse_overlaps(rows: &[Row]) -> Result<(), GgufError> {
    let mut order: Vec<&Row> = rows.iter().filter(|row| row.tensor.bytes > 0).collect();
    order.sort_by_key(|row| row.tensor.offset);
    for pair in order.windows(2) {
        if let [before, after] = pair
            && before.tensor.offset + before.tensor.bytes > after.tensor.offset
        {
            let other = shown(&before.tensor.name);
            return Err(Problem::Overlap { other }.at(&after.tensor.name, after.at));
        }
    }
    Ok(())
}

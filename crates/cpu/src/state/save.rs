//! A state as records of bytes, for a file. Which records there are, and how large, follows from the plan and the length alone: the count
//! of saturated numbers, the pages held of each layer, the recurrent memories. A page is as it is in memory: slots that hold nothing of
//! the sequence come along.

use std::sync::Arc;

use goldcrest_kernels::KvElement;
use goldcrest_model::backend::SavedSize;
use goldcrest_model::plan::{Plan, Recurrent};

use super::State;
use super::kv::KvPages;
use super::recurrent::Memory;
use crate::CpuError;

impl State {
    /// Hands over the records, one after the other.
    ///
    /// # Errors
    /// The first one of `write`.
    pub fn save<E>(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        write(&self.saturated.to_le_bytes())?;
        for layer in &self.layers {
            layer.save(write)?;
        }
        if self.length > 0 {
            for memory in &self.memories {
                write(&memory.to_bytes())?;
            }
        }
        Ok(())
    }

    /// Makes an empty state the one of `length` positions whose records `read` fills in, one after the other.
    ///
    /// # Errors
    /// The first one of `read`, or no memory. The state is of no use then.
    pub fn load<E: From<CpuError>>(
        &mut self,
        length: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut saturated = [0; 8];
        read(&mut saturated)?;
        self.saturated = u64::from_le_bytes(saturated);
        self.length = length;
        for layer in &mut self.layers {
            layer.load(length, read)?;
        }
        if length > 0 {
            for memory in &mut self.memories {
                memory.load(read)?;
            }
        }
        Ok(())
    }

    /// The records of a state of `length` positions; `None`: more bytes than can be counted.
    pub fn saved_size(plan: &Plan, element: KvElement, length: usize) -> Option<SavedSize> {
        let mut size = SavedSize {
            records: 1,
            bytes: size_of::<u64>() as u64,
        };
        let mut add = |records: usize, bytes: usize| {
            size.records = size.records.checked_add(records as u64)?;
            size.bytes = size.bytes.checked_add((records as u64).checked_mul(bytes as u64)?)?;
            Some(())
        };
        for kv in &plan.kvs {
            let (pages, bytes) = KvPages::new(kv, element, &Arc::default()).saved_pages(length);
            add(pages, bytes)?;
        }
        if length > 0 {
            for Recurrent { len } in &plan.recurrents {
                add(1, len.checked_mul(size_of::<f32>())?)?;
            }
        }
        Some(size)
    }
}

impl Memory {
    fn to_bytes(&self) -> Vec<u8> {
        match self.committed() {
            None => vec![0; self.len() * size_of::<f32>()],
            Some(committed) => committed.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    fn load<E: From<CpuError>>(&mut self, read: &mut dyn FnMut(&mut [u8]) -> Result<(), E>) -> Result<(), E> {
        let mut bytes = vec![0; self.len() * size_of::<f32>()];
        read(&mut bytes)?;
        self.reserve().map_err(CpuError::from)?;
        let (numbers, _) = bytes.as_chunks();
        for (x, bytes) in self.pending_mut().iter_mut().zip(numbers) {
            *x = f32::from_le_bytes(*bytes);
        }
        self.commit();
        Ok(())
    }
}

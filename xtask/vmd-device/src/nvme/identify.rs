//! Identify data structures (NVM Express Base Specification 1.4, section 5.15).

use super::prp::MAX_TRANSFER;
use super::registers::VERSION;
use super::store::Store;
use crate::bytes::put;
use crate::memory::PAGE;

/// Bytes of every identify data structure.
pub(crate) const LEN: usize = 4096;

/// What distinguishes one disk from another.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) index: u16,
    pub(crate) serial: String,
    /// NVMe qualified name, unique in the guest.
    pub(crate) nqn: String,
    /// Extended unique identifier of each namespace, unique in the guest.
    pub(crate) eui64: Vec<u64>,
    /// Whether there is a volatile write cache.
    pub(crate) write_cache: bool,
}

impl Identity {
    /// The identifier of a namespace that exists.
    fn eui64(&self, namespace: u32) -> [u8; 8] {
        let index = (namespace as usize).wrapping_sub(1);
        let eui64 = self.eui64.get(index).copied().unwrap_or_default();
        eui64.to_be_bytes()
    }
}

/// Outstanding asynchronous event requests that are accepted.
pub(crate) const MAX_EVENT_REQUESTS: usize = 4;

pub(crate) fn controller(identity: &Identity) -> Vec<u8> {
    let mut data = vec![0; LEN];
    put(&mut data, 0, &0x1b36_u16.to_le_bytes());
    put(&mut data, 2, &0x1af4_u16.to_le_bytes());
    // Serial number, model and firmware are padded with spaces.
    put(&mut data, 4, &[b' '; 68]);
    put(&mut data, 4, &clipped(&identity.serial, 20));
    put(&mut data, 24, b"VMD Lab NVMe");
    put(&mut data, 64, b"1.0");
    // Maximum transfer; controller id; version.
    data[77] = transfer_exponent();
    put(&mut data, 78, &identity.index.to_le_bytes());
    put(&mut data, 80, &VERSION.to_le_bytes());
    // Optional event: namespace changes. None happens, but without an optional
    // event Linux asks for no events at all (`nvme_enable_aen`).
    put(&mut data, 92, &0x100_u32.to_le_bytes());
    // Abort limit, event request limit, one read-only firmware slot; all but
    // the last are one less than the number.
    data[258] = 3;
    data[259] = MAX_EVENT_REQUESTS as u8 - 1;
    data[260] = 3;
    // Temperature thresholds in kelvin.
    put(&mut data, 266, &343_u16.to_le_bytes());
    put(&mut data, 268, &353_u16.to_le_bytes());
    // Queue entry sizes as powers of two, required and maximum; namespaces.
    data[512] = 0x66;
    data[513] = 0x44;
    put(&mut data, 516, &(identity.eui64.len() as u32).to_le_bytes());
    // Optional command: write zeroes.
    put(&mut data, 520, &0x0008_u16.to_le_bytes());
    // Volatile write cache: without one Linux never flushes (`NVME_CTRL_VWC_PRESENT`
    // in drivers/nvme/host/core.c).
    data[525] = identity.write_cache.into();
    put(&mut data, 768, &clipped(&identity.nqn, 255));
    data
}

/// The limits of the NVM command set: write zeroes covers as much as a transfer
/// may move (NVM Command Set Specification 1.0, figure 118; Linux takes it in
/// `nvme_init_non_mdts_limits`). One command must not keep the device busy for long.
pub(crate) fn command_set_limits() -> Vec<u8> {
    let mut data = vec![0; LEN];
    data[1] = transfer_exponent();
    data
}

/// `MAX_TRANSFER` as a power of two of pages.
fn transfer_exponent() -> u8 {
    (MAX_TRANSFER / PAGE as usize).ilog2() as u8
}

/// A namespace with this store.
pub(crate) fn namespace(identity: &Identity, namespace: u32, store: &Store) -> Vec<u8> {
    let mut data = vec![0; LEN];
    // Size, capacity, utilisation.
    for offset in [0, 8, 16] {
        put(&mut data, offset, &store.blocks().to_le_bytes());
    }
    put(&mut data, 120, &identity.eui64(namespace));
    // Format 0, the only one: the block as a power of two, no metadata.
    data[130] = store.block().ilog2() as u8;
    data
}

/// The active namespaces with an id above `after`.
pub(crate) fn active_namespaces(identity: &Identity, after: u32) -> Vec<u8> {
    let mut data = vec![0; LEN];
    let ids = (1..=identity.eui64.len() as u32).filter(|id| *id > after);
    for (entry, id) in data.chunks_exact_mut(4).zip(ids) {
        entry.copy_from_slice(&id.to_le_bytes());
    }
    data
}

/// A namespace's identifiers: its EUI-64.
pub(crate) fn namespace_descriptors(identity: &Identity, namespace: u32) -> Vec<u8> {
    let mut data = vec![0; LEN];
    put(&mut data, 0, &[1, 8]);
    put(&mut data, 4, &identity.eui64(namespace));
    data
}

fn clipped(text: &str, length: usize) -> Vec<u8> {
    text.bytes().take(length).collect()
}

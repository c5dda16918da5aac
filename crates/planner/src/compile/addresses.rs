//! Addresses that all parts of a plan know.

/// Flags of mremap(2): the memory moves to the address that is given.
pub(super) const MREMAP_MAYMOVE_FIXED: u64 = 3;
/// Lowest address that may be mapped, and the end of user memory with four levels of page tables.
pub(super) const LOWEST: u64 = 0x1_0000;
pub(super) const HIGHEST: u64 = 0x7fff_ffff_f000;

/// Addresses that are free in every address space of the tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScratchArea {
    /// Where the kernel's areas are put meanwhile.
    pub(super) start: u64,
    /// Address of the blob, behind them.
    pub(super) address: u64,
    /// Behind the blob.
    pub(super) end: u64,
}

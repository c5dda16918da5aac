//! What the processor can do, as programs may have seen it (`CPUID`).

use std::sync::OnceLock;

/// Bits of `CPUID`: (1.ecx, 1.edx), (7.ebx, 7.ecx), (7.edx, 7.1.eax), (0x80000001.ecx, .edx), the first in the low half.
///
/// What differs from one processor or moment to the next of the same machine (whether the operating system uses XSAVE) is
/// part of it as it is.
pub fn features() -> [u64; 4] {
    // In a virtual machine each of these instructions is an exit.
    static FEATURES: OnceLock<[u64; 4]> = OnceLock::new();
    *FEATURES.get_or_init(look)
}

fn look() -> [u64; 4] {
    use std::arch::x86_64::__cpuid_count as cpuid;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let (one, seven, seven_one, extended) = (cpuid(1, 0), cpuid(7, 0), cpuid(7, 1), cpuid(0x8000_0001, 0));
    [
        pair(one.ecx, one.edx),
        pair(seven.ebx, seven.ecx),
        pair(seven.edx, seven_one.eax),
        pair(extended.ecx, extended.edx),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_processor_of_this_kind_has_sse2() {
        assert!(super::features()[0] >> 32 & (1 << 26) != 0);
    }
}

//! Folding with VPCLMULQDQ, 32 bytes with two instructions.
#![expect(unsafe_code, reason = "instructions that not every processor has")]
// UNSAFETY: one call, behind the look whether the processor has them.

use std::arch::x86_64::{__m256i, _mm256_clmulepi64_epi128, _mm256_set_epi64x, _mm256_xor_si256};

use zerocopy::transmute;

/// Registers that are folded side by side: an instruction's result is there after four cycles, and
/// two begin in four.
const LANES: usize = 8;
/// Bytes of all lanes.
const STRIDE: usize = LANES * 32;
/// Fewer bytes take the library no longer.
const BYTES_MIN: usize = 4 * STRIDE;

/// The polynomial of CRC-64/NVME (NVM Command Set Specification 1.0, 5.2.1.3.4), its bits reversed
/// as those of all remainders: bit 63 is the term without x.
const POLYNOMIAL: u64 = 0xad93_d235_94c9_3659_u64.reverse_bits();

/// The remainder of x to this power.
const fn power(exponent: usize) -> u64 {
    let (mut remainder, mut done) = (1 << 63, 0);
    while done < exponent {
        remainder = (remainder >> 1) ^ if remainder & 1 == 1 { POLYNOMIAL } else { 0 };
        done += 1;
    }
    remainder
}

/// What moves 8 bytes by a stride: the first of 16 stand 64 bits higher. The product of two
/// reversed numbers has one power of x too many.
const FIRST: i64 = (power(STRIDE * 8 + 64 - 1)).cast_signed();
const SECOND: i64 = (power(STRIDE * 8 - 1)).cast_signed();

/// Bytes whose remainder, begun with 0, is that of all whole strides, begun with this one; and the
/// bytes behind these strides. Nothing for few bytes, or where the library is as fast.
pub(crate) fn fold(remainder: u64, bytes: &[u8]) -> Option<([u8; STRIDE], &[u8])> {
    let (strides, rest) = bytes.as_chunks::<STRIDE>();
    let is_faster = bytes.len() >= BYTES_MIN
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx2")
        && !is_x86_feature_detected!("avx512vl");
    // SAFETY: the processor has the two features that the function needs.
    is_faster.then(|| (unsafe { fold_strides(remainder, strides) }, rest))
}

#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold_strides(remainder: u64, strides: &[[u8; STRIDE]]) -> [u8; STRIDE] {
    let (first, others) = strides.split_first().expect("no fewer bytes than the fewest");
    let by = _mm256_set_epi64x(SECOND, FIRST, SECOND, FIRST);
    let mut lanes: [__m256i; LANES] = transmute!(*first);
    lanes[0] = _mm256_xor_si256(lanes[0], _mm256_set_epi64x(0, 0, 0, remainder.cast_signed()));
    for stride in others {
        let stride: [__m256i; LANES] = transmute!(*stride);
        for (lane, next) in lanes.iter_mut().zip(stride) {
            let first = _mm256_clmulepi64_epi128::<0x00>(*lane, by);
            let second = _mm256_clmulepi64_epi128::<0x11>(*lane, by);
            *lane = _mm256_xor_si256(_mm256_xor_si256(first, second), next);
        }
    }
    transmute!(lanes)
}

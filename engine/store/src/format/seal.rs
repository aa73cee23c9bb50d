//! The checksum that ends every structure.

use kvrail_crc::crc64;

/// Bytes of the checksum.
pub(super) const SEAL_BYTES: usize = 8;

/// Writes the checksum of an image into its last bytes.
pub(super) fn seal(image: &mut [u8]) {
    let at = image.len() - SEAL_BYTES;
    let crc = crc64(&image[..at]);
    image[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Whether an image is whole.
pub(super) fn is_whole(image: &[u8]) -> bool {
    let (body, crc) = image.split_at(image.len() - SEAL_BYTES);
    crc == crc64(body).to_le_bytes()
}

//! Text in rows: UTF-8 in an array of bytes, zero-padded.

/// As much of a text as fits.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let end = text.floor_char_boundary(N);
    bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    bytes
}

/// The text, as far as it is UTF-8.
pub fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let bytes = &bytes[..end];
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString as _;

    #[test]
    fn a_text_is_cut_between_characters() {
        let read = |long: &str| text(&padded::<8>(long)).to_string();
        assert_eq!(read(""), "");
        assert_eq!(read("no room"), "no room");
        assert_eq!(read("öööööö"), "öööö");
        assert_eq!(read("xöööööö"), "xööö");
        assert_eq!(text(&[b'a', 0xff, b'b']), "a", "what is no text ends it");
    }
}

//! The fields of a generation's rows, noted beside its maps: symbolic links whose targets are
//! text, the one kind of file in which a BPF file system keeps what it is told.
//!
//! The kernel knows the fields too, but tells them only who has `CAP_SYS_ADMIN`, and an agent has
//! no other need of that.

use std::os::unix::fs::symlink;

use btf_rs::Btf;

use super::{
    error::KernelError,
    layout::{Layout, LayoutError},
    object,
    pins::{self, Pins, failed},
};

/// The longest target of a link.
const LONGEST: usize = 4095;

/// Notes the fields of this agent's rows in a generation of its own.
///
/// # Errors
/// When the object does not tell them, or a link cannot be made.
pub(super) fn note(pins: &Pins) -> Result<(), KernelError> {
    let what = "the fields of this version's rows";
    let error = |source: LayoutError| KernelError::Handover { what: what.into(), source: source.into() };
    let object = object::parse()?;
    let bytes = object.btf.as_ref().map(|btf| btf.to_bytes()).unwrap_or_default();
    let btf = Btf::from_bytes(&bytes).map_err(|source| error(source.into()))?;
    for (name, pin) in object::names() {
        let Some(map) = object.maps.get(name) else { continue };
        let aya_obj::Map::Btf(declared) = map else { continue };
        let (key, value) = (declared.def.btf_key_type_id, declared.def.btf_value_type_id);
        let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
        // Ring buffers and arrays of programs have no rows to carry over.
        if [key, value].contains(&0) || [key_size, value_size].contains(&0) {
            continue;
        }
        let key = Layout::of(&btf, key, key_size).map_err(error)?;
        let value = Layout::of(&btf, value, value_size).map_err(error)?;
        let (text, link) = (format!("{};{}", key.text(), value.text()), pins.fields(pin));
        if text.len() <= LONGEST {
            pins::remove(&link)?;
            symlink(&text, &link).map_err(failed("cannot create", &link))?;
        }
    }
    Ok(())
}

/// The fields of keys and values of these sizes, if the text tells them.
pub(super) fn parse(text: &str, key_size: usize, value_size: usize) -> Option<(Layout, Layout)> {
    let (key, value) = text.split_once(';')?;
    Some((Layout::parse(key, key_size)?, Layout::parse(value, value_size)?))
}

#[cfg(test)]
mod tests {
    use proxy_common::{
        addr::Ip4,
        maps::conntrack::{CtEntry, CtKey},
    };

    use super::*;

    #[test]
    fn every_map_of_this_version_has_its_fields_noted() {
        let dir = tempfile::tempdir().expect("a directory");
        let pins = Pins::new(dir.path());
        pins.create().expect("made");
        note(&pins).expect("noted");
        let target = std::fs::read_link(pins.fields("conntrack_v4")).expect("a link");
        let text = target.to_str().expect("text");
        let sizes = (size_of::<CtKey<Ip4>>(), size_of::<CtEntry<Ip4>>());
        let (key, value) = parse(text, sizes.0, sizes.1).expect("fields");
        assert_eq!(format!("{};{}", key.text(), value.text()), text);
        let mut row = vec![0; value.size()];
        assert!(value.set_number(&mut row, "last_seen", 7) && value.set_number(&mut row, "service", 8));
        assert_eq!((value.number(&row, "last_seen"), value.number(&row, "service")), (Some(7), Some(8)));
        for pin in ["frontends_v6", "backends_v4", "settings", "services", "affinity_v6", "source_ranges_v4"]
        {
            assert!(pins.fields(pin).symlink_metadata().is_ok(), "{pin}");
        }
    }
}

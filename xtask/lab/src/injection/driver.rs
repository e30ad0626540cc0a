//! A vmd driver with a fault: the one module of the lab that is not Debian's own,
//! byte for byte.

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use crate::error::{LabError, Result};

/// Called to enable a child's interrupt (drivers/pci/controller/vmd.c): puts it on
/// the list of its vector, and unmasks it at the disk.
const FUNCTION: &str = "vmd_irq_enable";

/// What is left of it: `return data->chip->irq_unmask(data)`, by Debian's layout of
/// 6.12 on x86-64 (`struct irq_data`, `struct irq_chip` in include/linux/irq.h).
const UNMASK: [u8; 10] = [
    0x48, 0x8b, 0x47, 0x18, // mov 0x18(%rdi),%rax: chip
    0x48, 0x8b, 0x40, 0x40, // mov 0x40(%rax),%rax: irq_unmask
    0xff, 0xe0, // jmp *%rax
];

/// The loads that the function itself makes of these members, which show that the
/// layout is that one: `data->chip_data`, and `irq_unmask` of a chip.
const SHOW_LAYOUT: [[u8; 4]; 2] = [[0x48, 0x8b, 0x5f, 0x30], [0x48, 0x8b, 0x40, 0x40]];

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// A call, with its operand: that of ftrace, which has to stay.
const CALL: (u8, usize) = (0xe8, 5);

/// What a signed module ends with, and before it the length of the signature in
/// big-endian, in a struct of this size (include/linux/module_signature.h).
const SIGNED: &[u8] = b"~Module signature appended~\n";
const SIGNATURE_INFORMATION: usize = 12;

/// The driver as it was in some of 6.17, where nothing called that function
/// any more: a child's interrupt is unmasked, its vector is interrupted, and no
/// handler of a child is called.
///
/// # Errors
/// When the module is not as expected.
pub(super) fn that_never_enables(module: &[u8]) -> Result<Vec<u8>> {
    let bad = |what: &str| LabError::Invalid(format!("vmd.ko: {what}"));
    let not_elf = |error: object::Error| LabError::Invalid(format!("vmd.ko: {error}"));
    let file = object::File::parse(module).map_err(not_elf)?;
    let mut symbols = file.symbols();
    let symbol = symbols
        .find(|symbol| symbol.name() == Ok(FUNCTION))
        .ok_or_else(|| bad("there is no function vmd_irq_enable"))?;
    let section = symbol
        .section_index()
        .ok_or_else(|| bad("vmd_irq_enable is in no section"))?;
    let section = file.section_by_index(section).map_err(not_elf)?;
    let (in_file, _) = section
        .file_range()
        .ok_or_else(|| bad("vmd_irq_enable is not in the file"))?;
    let begin = usize::try_from(in_file + symbol.address()).unwrap_or(usize::MAX);
    let size = usize::try_from(symbol.size()).unwrap_or(0);
    let code = module
        .get(begin..)
        .and_then(|code| code.get(..size))
        .ok_or_else(|| bad("vmd_irq_enable is cut"))?;

    let mut body = 0;
    if code.starts_with(&ENDBR64) {
        body += ENDBR64.len();
    }
    let (call, length) = CALL;
    if code.get(body) == Some(&call) {
        body += length;
    }
    let as_expected = SHOW_LAYOUT
        .iter()
        .all(|load| code.windows(load.len()).any(|it| it == load));
    if !as_expected || code.len() < body + UNMASK.len() {
        return Err(bad("vmd_irq_enable is not that of 6.12"));
    }
    // What the kernel writes there when it loads the module would undo it.
    let replaced = symbol.address() + body as u64..symbol.address() + (body + UNMASK.len()) as u64;
    if section.relocations().any(|(at, _)| replaced.contains(&at)) {
        return Err(bad("vmd_irq_enable begins with an address"));
    }
    let mut changed = unsigned(module).to_vec();
    if let Some(code) = changed.get_mut(begin + body..begin + body + UNMASK.len()) {
        code.copy_from_slice(&UNMASK);
    }
    Ok(changed)
}

/// Without its signature, which would be wrong: then the kernel does not load it,
/// while one without is a matter of policy.
fn unsigned(module: &[u8]) -> &[u8] {
    let without = || {
        let rest = module.strip_suffix(SIGNED)?;
        let (rest, information) =
            rest.split_at_checked(rest.len().checked_sub(SIGNATURE_INFORMATION)?)?;
        let length = information.last_chunk().map(|it| u32::from_be_bytes(*it))?;
        rest.get(..rest.len().checked_sub(length as usize)?)
    };
    without().unwrap_or(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_cut_off() {
        let mut signed = b"ELF...".to_vec();
        signed.extend([7; 300]);
        signed.extend([0, 0, 2, 0, 0, 0, 0, 0]);
        signed.extend(300_u32.to_be_bytes());
        signed.extend(SIGNED);
        assert_eq!(unsigned(&signed), b"ELF...");
        assert_eq!(unsigned(b"ELF..."), b"ELF...");
        // One that says it is longer than the file.
        assert_eq!(unsigned(&signed[200..]), &signed[200..]);
        assert_eq!(unsigned(SIGNED), SIGNED);
    }

    #[test]
    fn what_is_no_such_module_is_refused() {
        for module in [&b""[..], b"ELF", &[0x7f; 100]] {
            let error = that_never_enables(module).unwrap_err().to_string();
            assert!(error.starts_with("vmd.ko: "), "{error}");
        }
    }
}

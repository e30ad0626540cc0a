//! Admin commands for NVMe controllers, past their driver.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// `struct nvme_passthru_cmd` of include/uapi/linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    dwords_2_and_3: [u32; 2],
    metadata: u64,
    data: u64,
    metadata_length: u32,
    data_length: u32,
    dwords_10_to_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

mod sys {
    // NVME_IOCTL_ADMIN_CMD.
    nix::ioctl_readwrite!(admin_command, b'N', 0x41, super::AdminCommand);
}

const SET_FEATURES: u8 = 0x09;

/// Sets a feature that has no data.
pub(crate) fn set_feature(controller: &Path, feature: u8, value: u32) -> io::Result<()> {
    let mut command = AdminCommand {
        opcode: SET_FEATURES,
        dwords_10_to_15: [feature.into(), value, 0, 0, 0, 0],
        ..AdminCommand::default()
    };
    let controller = OpenOptions::new().read(true).write(true).open(controller)?;
    submit(&controller, &mut command)
}

fn submit(controller: &File, command: &mut AdminCommand) -> io::Result<()> {
    // SAFETY: the kernel reads and writes a structure of this layout, which
    // `command` is, and no other memory, since it names no data.
    let status = unsafe { sys::admin_command(controller.as_raw_fd(), command) }?;
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "the controller answers with status {status:#x}"
        )))
    }
}

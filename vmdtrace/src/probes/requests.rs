//! Where the kernel keeps what leads from a request to its NVMe disk, from the
//! types of the kernel and of the module nvme_core.

use std::{fs, path::Path};

use vmdtrace_common::RequestLayout;

use super::btf::{Btf, BtfError};
use crate::host::Roots;

/// Reads the layout as far as it is known now. A disk's number is found from
/// nvme_core's types, so once that is loaded and where modules have types (5.11);
/// else the block device's name has to do, which the admin queue's requests lack.
///
/// # Errors
/// Why no request's disk can be told.
pub fn layout(roots: &Roots) -> Result<RequestLayout, String> {
    let types = roots.sysfs.join("kernel/btf");
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let kernel_data = read(&types.join("vmlinux"))?;
    let kernel = Btf::parse(&kernel_data).map_err(|error| error.to_string())?;
    let mut layout = RequestLayout::default();
    let by_name = add_block_device(&mut layout, &kernel);
    let by_number = read(&types.join("nvme_core")).and_then(|data| {
        Btf::parse_module(&data, &kernel)
            .and_then(|module| add_number(&mut layout, &kernel, &module))
            .map_err(|error| error.to_string())
    });
    match (by_number, by_name) {
        (Err(reason), Err(error)) => Err(format!("{reason}; {error}")),
        _ => Ok(layout),
    }
}

/// A request is followed by the driver's part of it, which starts with struct
/// nvme_request (drivers/nvme/host/nvme.h, nvme_req).
fn add_number(
    layout: &mut RequestLayout,
    kernel: &Btf<'_>,
    module: &Btf<'_>,
) -> Result<(), BtfError> {
    let request = kernel.struct_size("request")?;
    let controller = module.member_offset("nvme_request", "ctrl")?;
    layout.instance = module.member_offset("nvme_ctrl", "instance")?;
    layout.controller = request.saturating_add(controller);
    layout.known |= RequestLayout::NUMBER;
    Ok(())
}

/// `rq_disk` of the request up to 5.16, `disk` of its queue since 5.15
/// (include/linux/blkdev.h, include/linux/blk-mq.h).
fn add_block_device(layout: &mut RequestLayout, kernel: &Btf<'_>) -> Result<(), BtfError> {
    layout.disk_name = kernel.member_offset("gendisk", "disk_name")?;
    if let Ok(disk) = kernel.member_offset("request", "rq_disk") {
        layout.disk = disk;
    } else {
        layout.disk = kernel.member_offset("request", "q")?;
        layout.disk_of_queue = kernel.member_offset("request_queue", "disk")?;
    }
    layout.known |= RequestLayout::BLOCK_DEVICE;
    Ok(())
}

//! A guest whose PID 1 is systemd: what Debian's packages need beside their files.

use std::fs;

use xtask_setup::DebianRoot;

use crate::error::{LabError, Result};
use crate::initramfs::Archive;

/// Where the agent is.
pub(crate) const AGENT: &str = "/usr/lib/lab/agent";
/// Without `rdinit` the kernel would look for `/init`. Network devices keep the
/// names that the lab knows.
pub(crate) const KERNEL_ARGUMENTS: &str = "rdinit=/usr/lib/systemd/systemd net.ifnames=0";

/// The agent ends well when the host asks to switch off: systemd then stops all
/// services in order.
const SERVICE: &str = "\
[Unit]
Description=Agent of the virtual server
SuccessAction=poweroff

[Service]
ExecStart=/usr/lib/lab/agent service
StandardOutput=journal+console
StandardError=journal+console
";

/// Debian's files, and what the packages' scripts would have made of them.
pub(crate) fn root(debian: &DebianRoot) -> Result<Archive> {
    let mut archive = Archive::default();
    archive.tree(&debian.folder)?;
    archive.console();
    for (master, file) in [("passwd.master", "passwd"), ("group.master", "group")] {
        let master = debian.folder.join("usr/share/base-passwd").join(master);
        let content = fs::read(&master).map_err(LabError::path(&master))?;
        archive.bytes(&format!("/etc/{file}"), 0o644, content);
    }
    // For dpkg, to which nothing is installed: what is there was only unpacked.
    archive.bytes("/var/lib/dpkg/status", 0o644, "");
    archive.bytes("/etc/hostname", 0o644, "lab\n");
    archive.bytes("/etc/fstab", 0o644, "");
    // Empty: systemd makes an id, and does not take this for a first boot, at which
    // it would ask.
    archive.bytes("/etc/machine-id", 0o444, "");
    let units = "/etc/systemd/system";
    archive.bytes(&format!("{units}/lab-agent.service"), 0o644, SERVICE);
    archive.link(
        &format!("{units}/multi-user.target.wants/lab-agent.service"),
        "../lab-agent.service",
    );
    archive.link(
        &format!("{units}/default.target"),
        "/usr/lib/systemd/system/multi-user.target",
    );
    // The hardware's names are left out.
    archive.link(&format!("{units}/systemd-hwdb-update.service"), "/dev/null");
    Ok(archive)
}

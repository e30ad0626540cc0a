//! What the finished program says of recordings, on this machine.

use std::path::Path;
use std::process::Command;

use crate::artifacts::Artifacts;
use crate::error::{LabError, Result};

impl Artifacts {
    /// What `vmdtrace ARGUMENTS RECORDINGS` prints, such as `diagnose --from`; needs no
    /// privileges.
    ///
    /// # Errors
    /// When it is not there or does not end with status 0.
    pub fn vmdtrace_says(&self, arguments: &[&str], recordings: &[&Path]) -> Result<String> {
        let missing = || LabError::Invalid("the lab was given no vmdtrace".to_owned());
        let program = self.vmdtrace.as_deref().ok_or_else(missing)?;
        let output = Command::new(program)
            .args(arguments)
            .args(recordings)
            .output()
            .map_err(LabError::path(program))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(LabError::failed(format!(
                "`vmdtrace {}` ended with {}: {}",
                arguments.join(" "),
                output.status,
                said.trim()
            )));
        }
        String::from_utf8(output.stdout)
            .map_err(|_| LabError::Invalid("vmdtrace printed no text".to_owned()))
    }
}

//! Which Git commit the workspace is at.

use std::path::Path;
use std::process::Command;

use crate::process;

/// Twelve digits of the commit, and `-dirty` where files Git tracks differ from
/// it. None where the folder is not the top of a Git work tree, or Git is not
/// installed or refuses to read it: a revision is nice to have, never needed.
pub(crate) fn revision(workspace: &Path) -> Option<String> {
    // Sources unpacked inside another project's repository are not at its commit.
    if !git(workspace, &["rev-parse", "--show-cdup"])?.is_empty() {
        return None;
    }
    let commit = git(workspace, &["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(
        workspace,
        &["status", "--porcelain", "--untracked-files=no"],
    )?;
    let dirty = if changes.is_empty() { "" } else { "-dirty" };
    Some(format!("{commit}{dirty}"))
}

/// What Git prints, without the line's end; None if it fails.
fn git(workspace: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // A build takes no lock that a git command of the user's may be waiting for.
    command
        .arg("--no-optional-locks")
        .args(arguments)
        .current_dir(workspace);
    let output = process::output(&mut command).ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run(folder: &Path, arguments: &[&str]) {
        let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"];
        let mut command = Command::new("git");
        command
            .args(identity)
            .args(["-c", "commit.gpgsign=false"])
            .args(arguments)
            .current_dir(folder);
        process::capture(&mut command).unwrap();
    }

    #[test]
    fn a_work_tree_is_at_its_commit_or_dirty() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        run(root, &["init", "--quiet"]);
        assert_eq!(revision(root), None, "there is no commit yet");
        fs::write(root.join("file"), "one\n").unwrap();
        run(root, &["add", "file"]);
        run(root, &["commit", "--quiet", "--message=Add a file"]);

        let clean = revision(root).unwrap();
        assert_eq!(clean.len(), 12, "{clean}");
        assert!(clean.bytes().all(|byte| byte.is_ascii_hexdigit()));
        fs::write(root.join("untracked"), "").unwrap();
        assert_eq!(revision(root), Some(clean.clone()));
        fs::write(root.join("file"), "two\n").unwrap();
        assert_eq!(revision(root), Some(format!("{clean}-dirty")));

        let inside = root.join("inside");
        fs::create_dir(&inside).unwrap();
        assert_eq!(revision(&inside), None, "another project's repository");
    }

    #[test]
    fn no_work_tree_has_no_revision() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(revision(folder.path()), None);
        assert_eq!(revision(&folder.path().join("missing")), None);
    }
}

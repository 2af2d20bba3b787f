//! What the threads of a process and of its descendants are doing, as the kernel tells it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// A text about all of them.
pub(crate) fn of(process: u32) -> String {
    let mut text = String::from("Threads of the test and of what it has started:\n");
    for process in family(process) {
        let folder = Path::new("/proc").join(process.to_string());
        let command = fs::read(folder.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "process {process}: {command}");
        for thread in numbers(&folder.join("task")) {
            thread_of(&mut text, &folder.join("task").join(thread.to_string()), thread);
        }
    }
    text
}

fn thread_of(text: &mut String, folder: &Path, thread: u32) {
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let status = read("status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
    let (name, state, waits) = (field("Name:"), field("State:"), read("wchan"));
    let _ = writeln!(text, "  thread {thread} {name}: {state}, in {waits}, {}", read("syscall").trim());
    for line in read("stack").lines() {
        let _ = writeln!(text, "    {line}");
    }
}

/// The process and its descendants, parents first.
fn family(process: u32) -> Vec<u32> {
    let all: Vec<(u32, u32)> =
        numbers(Path::new("/proc")).into_iter().filter_map(|child| Some((child, parent(child)?))).collect();
    let mut family = vec![process];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(all.iter().filter(|(_, of)| *of == parent).map(|(child, _)| child));
        next += 1;
    }
    family
}

fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// The entries of a folder that are numbers.
fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn children_belong_to_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let text = of(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(text.contains(&format!("process {}: ", child.id())), "{text}");
        assert!(text.contains("sleeping"), "{text}");
    }
}

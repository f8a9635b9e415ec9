//! Commands that were asked for wrongly say so in a line, and end with exit code 2.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// A file that goes with this value.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let name = format!("braid-usage-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).expect("a writable directory");
        File(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // It may be gone.
        let _ = fs::remove_file(&self.0);
    }
}

/// Fails unless the command is refused, by a first line that has all of `words` in it.
fn expect_refusal(arguments: &[&str], words: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(arguments)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let first = said.lines().next().expect("a line");
    for word in words {
        assert!(first.contains(word), "{word:?} in {first:?}");
    }
}

#[test]
fn plan_says_which_file_is_wrong_and_where() {
    let sites = "[[server]]\nname = \"oslo\"\npaths = [{ bandwidth = \"fast\" }]\n";
    let slow = File::new("slow", sites);
    expect_refusal(
        &["plan", slow.name()],
        &[slow.name(), ":3:", "`fast` is no rate"],
    );
    let json = File::new("json", "{\"servers\": []}");
    let words = [
        json.name(),
        "no measurements of servers",
        "braid box servers --json",
    ];
    expect_refusal(&["plan", json.name()], &words);
    expect_refusal(
        &["plan", "/no/such/file"],
        &["/no/such/file", "cannot read"],
    );
    expect_refusal(
        &["plan", json.name(), "--by", "price"],
        &["'price'", "--by"],
    );
    expect_refusal(&["plan", json.name(), "--count", "0"], &["'0'", "--count"]);
}

#[test]
fn password_says_what_it_cannot_use() {
    let weak = File::new("weak", "hunter2");
    let file = ["--user", "laptop", "--secret-file"];
    let ask = |to, secret, words: &[&str]| {
        expect_refusal(&[&["password", to][..], &file, &[secret]].concat(), words);
    };
    ask("example.com:80", weak.name(), &[weak.name(), "secret"]);
    ask(
        "example.com:80",
        "/no/such/file",
        &["/no/such/file", "cannot read"],
    );
    for to in [
        "example.com",
        "example.com:0",
        "a b:80",
        "[2001:db8::7]",
        ":80",
        "example.com:+80",
        "192.0.2.1:+80",
    ] {
        ask(to, weak.name(), &[to, "no destination"]);
    }
    for user in [String::new(), "x".repeat(256)] {
        let bytes = format!("{} bytes", user.len());
        let file = ["--user", &user, "--secret-file", weak.name()];
        expect_refusal(
            &[&["password", "example.com:80"][..], &file].concat(),
            &["--user", &bytes, "1 to 255"],
        );
    }
}

/// As box and server do.
#[test]
fn password_warns_of_a_secret_that_everybody_may_read() {
    let secret = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let file = File::new("open", secret);
    for (mode, open) in [(0o644, true), (0o600, false)] {
        fs::set_permissions(&file.0, Permissions::from_mode(mode)).expect("it is ours");
        let output = Command::new(env!("CARGO_BIN_EXE_braid"))
            .args(["password", "example.com:80", "--user", "laptop"])
            .args(["--secret-file", file.name()])
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("chmod 600"), open, "{said}");
    }
}

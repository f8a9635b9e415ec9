//! Commands with wrong usage report that in a line, and end with exit code 2.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// A file that is removed with this value.
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
        // The file may be gone already.
        let _ = fs::remove_file(&self.0);
    }
}

/// Fails unless the command is refused, with all of `words` in the first line of its error.
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

/// Returns the output of a command; fails unless it succeeds and writes no error.
fn printed(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(arguments)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_key_is_made_once_and_shown_again() {
    let file = File::new("key", "");
    fs::remove_file(&file.0).expect("it was made");
    let public = printed(&["key", "new", file.name()]);
    let mode = fs::metadata(&file.0).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let private = fs::read_to_string(&file.0).expect("a file");
    for line in [&public, &private] {
        assert!(line.len() == 45 && line.ends_with("=\n"), "{line:?}");
    }
    assert_ne!(public, private);
    assert_eq!(printed(&["key", "show", file.name()]), public);
    let json = printed(&["key", "show", file.name(), "--json"]);
    assert_eq!(json, format!("\"{}\"\n", public.trim_end()));

    let words = [file.name(), "exists", "another file"];
    expect_refusal(&["key", "new", file.name()], &words);
    assert_eq!(fs::read_to_string(&file.0).expect("a file"), private);
    let other = File::new("other-key", "");
    fs::remove_file(&other.0).expect("it was made");
    assert_ne!(printed(&["key", "new", other.name()]), public);
}

#[test]
fn key_says_what_it_cannot_use() {
    let show = |text: &str, words: &[&str]| {
        let file = File::new("no-key", text);
        fs::set_permissions(&file.0, Permissions::from_mode(0o600)).expect("it is ours");
        expect_refusal(
            &["key", "show", file.name()],
            &[&[file.name(), "no private key"], words].concat(),
        );
    };
    show("hunter2", &["7 characters, but a key has 44"]);
    show(&"?".repeat(44), &["44 characters are not 43 of"]);
    let nowhere = "/no/such/directory/key";
    expect_refusal(&["key", "show", nowhere], &[nowhere, "cannot read"]);
    expect_refusal(&["key", "new", nowhere], &[nowhere, "cannot write"]);
    expect_refusal(&["key", "new"], &["required"]);
}

const SERVER_KEY: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
const PRIVATE_KEY: &str = "1O5y2/kTWErVttjx92n4rTr+fCjL8dT74Jeoj0R1WEI=";

#[test]
fn password_says_what_it_cannot_use() {
    let bad = File::new("bad", "hunter2");
    let ask = |to, key, server, words: &[&str]| {
        let arguments = ["password", to, "--key", key, "--server-key", server];
        expect_refusal(&arguments, words);
    };
    let words = [bad.name(), "no private key", "7 characters"];
    ask("example.com:80", bad.name(), SERVER_KEY, &words);
    let nowhere = "/no/such/file";
    ask(
        "example.com:80",
        nowhere,
        SERVER_KEY,
        &[nowhere, "cannot read"],
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
        ask(to, bad.name(), SERVER_KEY, &[to, "not a destination"]);
    }
    for server in ["laptop", &SERVER_KEY[1..]] {
        let length = format!("it has {} characters, but a key has 44", server.len());
        let words = [server, "--server-key", &length];
        ask("example.com:80", bad.name(), server, &words);
    }
}

/// Box and server warn alike.
#[test]
fn password_warns_of_a_key_that_everybody_may_read() {
    let file = File::new("open", PRIVATE_KEY);
    for (mode, open) in [(0o644, true), (0o600, false)] {
        fs::set_permissions(&file.0, Permissions::from_mode(mode)).expect("it is ours");
        let output = Command::new(env!("CARGO_BIN_EXE_braid"))
            .args(["password", "example.com:80", "--key", file.name()])
            .args(["--server-key", SERVER_KEY])
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("chmod 600"), open, "{said}");
    }
}

/// One line for `curl --proxy-user`, within the lengths of RFC 1929.
#[test]
fn password_prints_user_and_password() {
    let file = File::new("mine", PRIVATE_KEY);
    fs::set_permissions(&file.0, Permissions::from_mode(0o600)).expect("it is ours");
    let arguments = [
        "password",
        "example.com:80",
        "--key",
        file.name(),
        "--server-key",
    ];
    let line = printed(&[&arguments[..], &[SERVER_KEY]].concat());
    let (user, password) = line.trim_end().split_once(':').expect("two fields");
    assert_eq!(format!("{user}\n"), printed(&["key", "show", file.name()]));
    assert_eq!(password.len(), 204);
    let json = printed(&[&arguments[..], &[SERVER_KEY, "--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["user"], user);
    assert_ne!(json["password"], password, "each is used once");
}

//! A page with many objects, as a browser loads it.

use std::fs;

use super::captures::{Sought, Watched, addresses_of_content, identities};
use super::control::status;
use super::fixture::{Fixture, MAX_TIME_S, stderr};

const OBJECTS: usize = 60;

/// Fetches all objects at once, with as many connections as the browser chooses, and shows length and
/// checksum of each.
const PAGE: &str = r#"<!doctype html><meta charset=utf-8><title>page</title><body>loading<script>
const sum = bytes => bytes.reduce((sum, byte) => (sum * 31 + byte) % 65521, 0);
const load = async (_, i) => {
  const answer = await fetch("object" + i);
  const bytes = new Uint8Array(await answer.arrayBuffer());
  return i + ":" + bytes.length + ":" + sum(bytes);
};
Promise.all(Array.from({length: OBJECTS}, load)).then(
  all => document.body.textContent = "here: " + all.join(" "),
  error => document.body.textContent = "failed: " + error);
</script>
"#;

fn sum(bytes: &[u8]) -> u32 {
    let add = |sum, byte: &u8| (sum * 31 + u32::from(*byte)) % 65_521;
    bytes.iter().fold(0, add)
}

/// Loads the page over both links, and checks what the browser shows; returns the number of connections to
/// the box.
fn load(bed: &Fixture) -> u64 {
    let sizes = [500, 4_000, 15_000, 60_000, 250_000];
    let objects = (0..OBJECTS).map(|i| {
        let bytes = bed.offer(&format!("object{i}"), sizes[i % sizes.len()] + i);
        format!("{i}:{}:{}", bytes.len(), sum(&bytes))
    });
    let expected = format!("here: {}", objects.collect::<Vec<_>>().join(" "));
    let page = PAGE.replace("OBJECTS", &OBJECTS.to_string());
    fs::write(bed.www().join("page.html"), page).expect("the state directory is writable");
    let home = bed.testbed.state_dir().join("browser");
    let before = bed.carried();
    let output = bed
        .exec("user", "timeout")
        .args([
            MAX_TIME_S,
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
        ])
        .args([
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
        ])
        .arg(format!("--user-data-dir={}", home.display()))
        // The browser's clock stands still while something is loaded.
        .args(["--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("http://{}/page.html", bed.v4("content")))
        .env("HOME", &home)
        .output()
        .expect("it runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains(&expected), "{shown}{}", stderr(&output));
    bed.expect_carried(before, 300_000);
    status(bed, "box").counters["accepted"]
}

#[test]
#[ignore = "network"]
fn a_browser_loads_a_page_of_many_objects() {
    let accepted = load(&Fixture::up());
    assert!((2..=20).contains(&accepted), "{accepted} connections");
}

#[test]
#[ignore = "network"]
fn nothing_of_the_page_is_on_the_links() {
    for clear in [false, true] {
        let watched = Watched::up(clear);
        let bed = &watched.bed;
        load(bed);
        let object = fs::read(bed.www().join("object0")).expect("it was offered");
        let mut shown = vec![
            Sought::new("a request", "GET /object7 HTTP"),
            Sought::new("the browser", "User-Agent: "),
            Sought::new("the page", "Promise.all(Array.from("),
            Sought::new("an object", &object[..100]),
        ];
        shown.extend(addresses_of_content(bed.v4("content")));
        let (never, public) = identities(bed);
        shown.push(public);
        watched.expect(clear, &shown, &never);
    }
}

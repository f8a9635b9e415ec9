//! Memory that one user can occupy at a server, and the shares of others.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{CONTENT, Setup, World, server_key};
use braid_proxy::socks::{Destination, request, sign_in};
use braid_secure::auth::password;
use braid_secure::keys::PrivateKey;
use braid_wire::Instant;

const BLOCK: usize = 32 << 10;
const LEN: usize = 1_000_000;
const ENDLESS: &str = "198.51.100.9:80";

fn greedy_key() -> PrivateKey {
    PrivateKey::from_seed([3; 32])
}

/// Returns the time of a download by a user of the box.
fn download(w: &mut World) -> Duration {
    let began: Instant = w.now;
    let user = w.open(CONTENT, b"GET /", false);
    w.run_until(|w| w.user(user).got_end);
    assert_eq!(w.user(user).got.len(), LEN);
    w.now.saturating_since(began)
}

/// Thousands of connections from which nothing is read. Another user then has shares of 128 KiB, which allow 50
/// Mbit/s at a round-trip time of 20 ms.
#[test]
fn who_reads_nothing_leaves_others_their_share() {
    let key = greedy_key();
    let setup = Setup {
        server: &format!("[[user]]\nname = \"greedy\"\nkey = \"{}\"", key.public()),
        ..Setup::default()
    };
    let mut w = World::met(1, setup);
    w.content(CONTENT, Content::Sends(vec![1; LEN], true));
    w.content(ENDLESS, Content::Sends(vec![2; LEN], true));
    let alone = download(&mut w);
    let destination = Destination::Address(ENDLESS.parse().unwrap());
    for n in 0..2_000_u64 {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&n.to_le_bytes());
        let server = server_key().public();
        let password = password(&key, server, &destination.to_bytes(), w.unix_ms(), nonce);
        let user = key.public().to_string();
        let said = [
            sign_in(user.as_bytes(), &password),
            request(None, &destination),
        ];
        let conn = w.raw_connect();
        w.raw.write(w.now, conn, &said.concat()).unwrap();
    }
    w.run_for(Duration::from_secs(5));
    // 64 MiB, an eighth of which is a reserve.
    let (node, _) = w.server.as_ref().unwrap();
    let stuck = node.stack.buffered();
    let all = 64 << 20;
    assert!(stuck > all / 2, "{stuck} bytes are held");
    assert!(stuck <= all / 32 * 21 + 8 * BLOCK, "{stuck} bytes are held");
    for _ in 0..3 {
        let now = download(&mut w);
        assert!(now <= alone * 2, "{now:?}, {alone:?} before");
    }
}

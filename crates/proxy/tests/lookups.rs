//! Limits on a server's name look-ups: those of one user do not block other users.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{Setup, World, box_key, server_key};
use braid_engine::ConnId;
use braid_proxy::socks::{Destination, request, sign_in};
use braid_secure::auth::password;
use braid_secure::keys::{PrivateKey, PublicKey};

fn laptop_key() -> PrivateKey {
    PrivateKey::from_seed([3; 32])
}

fn users() -> [(&'static str, PublicKey); 2] {
    [
        ("box", box_key().public()),
        ("laptop", laptop_key().public()),
    ]
}

/// Creates a server for both users. It permits each of them two look-ups at a time. Only the name `known.example`
/// is answered, with the address of the content.
fn of_both() -> World {
    let key = laptop_key().public();
    let setup = Setup {
        server: &format!(
            "limits.lookups = 2\ntimeouts.connect = \"5s\"\n\
             [[user]]\nname = \"laptop\"\nkey = \"{key}\""
        ),
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    w.content("198.51.100.1:80", Content::Sends(b"there".to_vec(), true));
    let address = "198.51.100.1:0".parse().unwrap();
    let names = &mut w.server_downstream().names;
    names.insert("known.example".into(), vec![address]);
    w
}

/// Requests a connection to `name` as the user with `key`.
fn ask(w: &mut World, key: &PrivateKey, name: &str) -> ConnId {
    let conn = w.raw_connect();
    let destination = Destination::Name(name.into(), 80);
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&conn.as_u64().to_le_bytes());
    let password = password(
        key,
        server_key().public(),
        &destination.to_bytes(),
        w.unix_ms(),
        nonce,
    );
    let said = [
        sign_in(key.public().to_string().as_bytes(), &password),
        request(None, &destination),
    ];
    w.raw.write(w.now, conn, &said.concat()).unwrap();
    w.run_for(Duration::from_millis(100));
    conn
}

/// Returns the SOCKS reply, if there is one.
fn answer(w: &mut World, conn: ConnId) -> Option<u8> {
    w.raw_read(conn).get(5).copied()
}

fn under_way(w: &mut World) -> usize {
    w.server_downstream().unanswered.len()
}

#[test]
fn look_ups_of_a_user_do_not_wait_for_those_of_others() {
    let mut w = of_both();
    for name in ["a.silent", "b.silent", "c.silent", "d.silent"] {
        ask(&mut w, &box_key(), name);
    }
    let waits = ask(&mut w, &box_key(), "known.example");
    assert_eq!(under_way(&mut w), 2);
    assert_eq!(w.server().counters().lookups_waited, 3);
    assert_eq!(answer(&mut w, waits), None);
    let other = ask(&mut w, &laptop_key(), "known.example");
    assert_eq!(answer(&mut w, other), Some(0));
    // The next look-ups start in order when earlier ones have ended.
    for left in [2, 2, 1] {
        w.server_downstream().give_up_lookup();
        w.run_for(Duration::from_millis(100));
        assert_eq!(under_way(&mut w), left);
    }
    assert_eq!(answer(&mut w, waits), Some(0));
}

/// A look-up still occupies a thread after its session has ended. So another session of the user waits until its
/// own timeout.
#[test]
fn a_look_up_counts_until_it_ends_though_its_session_has_ended() {
    let mut w = of_both();
    for name in ["a.silent", "b.silent"] {
        let conn = ask(&mut w, &box_key(), name);
        w.raw.abort(w.now, conn);
    }
    let waits = ask(&mut w, &box_key(), "known.example");
    w.run_for(Duration::from_secs(6));
    assert_eq!(answer(&mut w, waits), Some(4), "host unreachable");
    assert_eq!(w.server().counters().not_resolved, 1);
    for _ in 0..2 {
        w.server_downstream().give_up_lookup();
    }
    // The sessions that waited have ended, so their names are not looked up.
    w.run_for(Duration::from_millis(100));
    assert_eq!(under_way(&mut w), 0);
    let next = ask(&mut w, &box_key(), "known.example");
    assert_eq!(answer(&mut w, next), Some(0));
}

/// After a reload, a user may have another index, or may be removed.
#[test]
fn look_ups_stay_with_their_users_over_a_reload() {
    let mut w = of_both();
    for key in [box_key(), laptop_key()] {
        for name in ["a.silent", "b.silent", "c.silent"] {
            ask(&mut w, &key, name);
        }
    }
    let [boxed, laptop] = users();
    w.set_users(&[laptop]);
    w.set_users(&[laptop, boxed]);
    let waits = ask(&mut w, &laptop_key(), "known.example");
    let back = ask(&mut w, &box_key(), "known.example");
    // Look-ups that began for the box before its removal count towards no user.
    assert_eq!(
        (answer(&mut w, waits), answer(&mut w, back)),
        (None, Some(0))
    );
    assert_eq!(under_way(&mut w), 4);
    while under_way(&mut w) > 0 {
        w.server_downstream().give_up_lookup();
        w.run_for(Duration::from_millis(50));
    }
    assert_eq!(answer(&mut w, waits), Some(0));
    // The other sessions have had time to close.
    for conn in [waits, back] {
        w.raw.abort(w.now, conn);
    }
    w.run_for(Duration::from_secs(6));
    assert_eq!(w.server().connections(), 0);
}

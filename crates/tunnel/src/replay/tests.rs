use super::*;

#[test]
fn each_number_is_fresh_once() {
    let mut window = ReplayWindow::default();
    for number in [0, 5, 3, 4, 1, 63, 64, 4095, 2, 4096] {
        assert!(window.is_fresh(number), "{number}");
        window.insert(number);
        assert!(!window.is_fresh(number), "{number}");
    }
    assert_eq!(window.next(), 4097);
    // The oldest number in the window is 1, which was received; 0 is too old to tell.
    assert!(!window.is_fresh(0));
    assert!(window.is_fresh(6));
}

#[test]
fn a_jump_forgets_what_the_window_has_passed() {
    let mut window = ReplayWindow::default();
    window.insert(7);
    for jump in [1000, 4096, 1_000_000, u64::MAX >> 2] {
        let next = window.next();
        window.insert(next + jump);
        assert!(!window.is_fresh(next + jump));
        assert!(window.is_fresh(next + jump - 1));
        assert!(window.is_fresh(next + jump + 1));
        let too_old = (next + jump).checked_sub(WINDOW);
        assert!(too_old.is_none_or(|number| !window.is_fresh(number)));
    }
}
